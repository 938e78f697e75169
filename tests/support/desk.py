"""A desk that answers calls as the pipeline does, and reads on in what it answered."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from dragoman.access.callers import LOCAL, Caller
from dragoman.cache.bounded import BoundedCache
from dragoman.cache.settings import CacheConfig
from dragoman.calls.call import Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.clock import Clock
from dragoman.errors import ToolError
from dragoman.protocol.results import ToolResult
from dragoman.replies.artifacts import Artifact, Artifacts
from dragoman.replies.dialects import make_dialect
from dragoman.replies.result_continue import NAME, result_continue_tool
from dragoman.replies.settings import ResponseConfig
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import ManualClock
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.context import Cancellation, ToolContext
from dragoman.tools.settings import ToolsConfig
from dragoman.tools.tool import Hints, ToolDefinition, define_tool

SERVER_INFO = {"name": "dragoman", "version": "0.1.0"}
LOGGER = StructuredLogger(lambda entry: None)


class Desk:
    """Answers for one tool, in one dialect, with what its handler would have returned or raised."""

    def __init__(
        self,
        dialect: str = "envelope",
        *,
        output_schema: dict[str, Any] | None = None,
        hints: Hints = Hints(),  # noqa: B008
        cache: CacheConfig = CacheConfig(),  # noqa: B008
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.config = msgspec.convert({"dialect": dialect, **settings}, ResponseConfig)
        self.cache: BoundedCache[Artifact] = BoundedCache(cache, clock or ManualClock())
        self.artifacts = Artifacts(self.cache)
        self.dialect = make_dialect(self.config, self.artifacts, SERVER_INFO)
        self.catalogue = Catalogue(ToolsConfig(), LOGGER)
        definition = ToolDefinition(
            name="tool",
            description="",
            input_schema={"type": "object"},
            output_schema=output_schema,
            hints=hints,
            timeout_ms=5000,
        )
        self.catalogue.register(define_tool(definition, lambda arguments, context: None))
        self.catalogue.register(result_continue_tool(self.artifacts, self.config))

    def call(self, name: str = "tool", caller: Caller = LOCAL, correlation_id: str = "corr-1") -> Call:
        call = Call(Origin(caller), name, {}, "run-1", correlation_id, lambda call, outcome: None)
        tool = self.catalogue.get(name)
        if tool is not None:
            call.tool = tool
        call.duration_ms = 12.5
        return call

    def render(self, outcome: Outcome, call: Call | None = None) -> ToolResult:
        """As the pipeline does it: what cannot be sent is answered with the reason."""
        call = call or self.call()
        try:
            return self.dialect.render(call, outcome)
        except ToolError as error:
            return self.dialect.render(call, Outcome(error=error))

    def answer(self, outcome: Outcome, call: Call | None = None) -> dict[str, Any]:
        """The result as it reaches a client of the modern era, after checking that it is not too large."""
        result = self.render(outcome, call)
        result.result_type, result.meta.server_info = "complete", SERVER_INFO
        line = msgspec.json.encode(result)
        assert len(line) <= self.config.max_response_bytes
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer

    def give(self, value: Any, call: Call | None = None) -> dict[str, Any]:
        return self.answer(Outcome(value), call)

    def fail(self, error: ToolError, call: Call | None = None) -> dict[str, Any]:
        return self.answer(Outcome(error=error), call)

    def go_on(self, cursor: str, caller: Caller = LOCAL) -> dict[str, Any]:
        """What `result_continue` answers."""
        call = self.call(NAME, caller)
        call.tool.validator.check({"cursor": cursor})
        context = ToolContext("run-1", "corr-1", LOGGER, Cancellation(), caller)
        try:
            call.tool.handler({"cursor": cursor}, context).send(None)  # It waits for nothing.
        except StopIteration as returned:
            outcome = Outcome(returned.value)
        except ToolError as error:
            outcome = Outcome(error=error)
        return self.answer(outcome, call)

    def whole(self, answer: dict[str, Any]) -> Any:
        """What an envelope stands for: the data, with everything that was cut read to its end."""
        body = body_of(answer)
        if not body["success"]:
            return msgspec.json.decode(self._text(body["error"]["context"]["cursor"]))
        data = copy.deepcopy(body["data"])
        continuations = body["metadata"].get("continuations", [])
        assert bool(continuations) is body["metadata"]["truncated"]
        for each in continuations:
            if each["kind"] == "json":
                return msgspec.json.decode(self._text(each["cursor"]))
        # Inner cuts first: their paths lead through what is still there.
        root = [data]
        for each in sorted(continuations, key=lambda each: -each["path"].count("/")):
            place: Any = root
            *steps, last = ["0", *map(unescape, each["path"].split("/")[1:])]
            for step in steps:
                place = place[int(step) if isinstance(place, list) else step]
            key: Any = int(last) if isinstance(place, list) else last
            if each["kind"] == "list":
                assert len(place[key]) == each["kept"]
                place[key] += self._items(each["cursor"])
                assert len(place[key]) == each["total"]
            else:
                place[key] = place[key][: each["kept"]] + self._text(each["cursor"])
                assert len(place[key]) == each["total"]
        return root[0]

    def _parts(self, cursor: str, key: str) -> Any:
        while True:
            part = self.whole(self.go_on(cursor))
            assert part["hasMore"] is (part["offset"] + len(part[key]) < part["total"])
            assert part["hasMore"] is ("nextCursor" in part)
            assert part[key], "a part that holds nothing leads nowhere"
            yield part[key]
            if not part["hasMore"]:
                return
            cursor = part["nextCursor"]

    def _items(self, cursor: str) -> list[Any]:
        return [item for part in self._parts(cursor, "items") for item in part]

    def _text(self, cursor: str) -> str:
        return "".join(self._parts(cursor, "text"))


def unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def body_of(answer: dict[str, Any]) -> Any:
    """The JSON that the text of an answer is."""
    ((kind, text),) = [(block["type"], block["text"]) for block in answer["content"]]
    assert kind == "text"
    return msgspec.json.decode(text)

"""The calls that are made from the explorer's page: how far they are, what they ask, and how they went."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Outcome, Withdrawal
from dragoman.calls.origin import Origin
from dragoman.calls.tracing import Span, spans
from dragoman.clock import Clock
from dragoman.edge.asgi import Disconnected, Receive, until_gone
from dragoman.edge.connection import Services
from dragoman.errors import ClientCannotBeAsked, ProtocolError, ResultTooLarge
from dragoman.explorer.explained import explain
from dragoman.explorer.recent_calls import MaySee, Ring
from dragoman.replies.encoding import encode_value
from dragoman.tools.content import encode_json

T = TypeVar("T")

MOST_SAID = 50
LONGEST_SAID = 500
MOST_ASKED = 8
MOST_DETAILS, MOST_DETAIL_BYTES = 200, 2 * 1024 * 1024


class PageRun:
    """The client of one call: the person before the page, who can be asked as long as the page waits.

    With `is_followed` False the caller named no correlation id, so it cannot find the questions, and none are asked.
    """

    capabilities: ClassVar[Mapping[str, Any]] = {"elicitation": {"form": {}}}
    log_level = "info"

    def __init__(self, caller: Caller, *, is_followed: bool = True) -> None:
        self.caller = caller
        self.has_missed = False
        """Whether there was a question that could not be asked."""
        self._is_open = is_followed
        self._progress: dict[str, Any] | None = None
        self._said: deque[dict[str, str]] = deque(maxlen=MOST_SAID)
        self._ids = count(1)
        self._asked: dict[int, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}

    @property
    def can_be_asked(self) -> bool:
        self.has_missed = self.has_missed or not self._is_open  # Read only where there is a question.
        return self._is_open

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """The tool says how far it is; from any thread."""
        said = message[:LONGEST_SAID] if message is not None else None
        self._progress = {"progress": done, "total": total, "message": said}

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """The tool says something; from any thread."""
        if method == "notifications/message":
            data = params["data"]
            text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
            self._said.append({"level": params["level"], "text": text[:LONGEST_SAID]})

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the page ask the person, and wait for the answer."""
        if not self.can_be_asked or len(self._asked) >= MOST_ASKED:
            raise ClientCannotBeAsked(method)
        number = next(self._ids)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = (params, answered)
        try:
            return await answered
        finally:
            del self._asked[number], answered  # An error in it leads back here, through its traceback.

    def answer(self, number: int, result: dict[str, Any]) -> bool:
        """The person has answered; False when that is not asked, or not any longer."""
        _, answered = self._asked.get(number, (None, None))
        if answered is None or answered.done():
            return False
        answered.set_result(result)
        return True

    def report(self) -> dict[str, Any]:
        """What the page shows while it waits."""
        questions = [
            {"id": number, "message": params.get("message"), "schema": params.get("requestedSchema")}
            for number, (params, answered) in self._asked.items()
            if not answered.done()
        ]
        return {"progress": self._progress, "said": list(self._said), "questions": questions}

    def close(self) -> None:
        """Nobody waits any longer, so nobody answers."""
        self._is_open = False
        for _, answered in self._asked.values():
            if not answered.done():
                answered.set_exception(ClientCannotBeAsked("a question"))


class Finished(NamedTuple):
    """A call that was answered; its result as JSON, unless it is an error."""

    call: Call
    outcome: Outcome
    encoded: bytes
    has_missed: bool
    """Whether there was a question that nobody could be asked."""


class PageRuns:
    """Makes calls, each with a `PageRun` for its client, and keeps where the time of the last ones went."""

    def __init__(self, services: Services, clock: Clock, most_bytes: int) -> None:
        """No result weighs more than `most_bytes`."""
        self._intake, self._dialect = services.intake, services.dialect
        self._clock = clock
        self._most_bytes = most_bytes
        self._open: dict[str, PageRun] = {}
        self._details: Ring[tuple[Caller, dict[str, Any]]] = Ring(MOST_DETAILS, MOST_DETAIL_BYTES)

    async def run(
        self,
        name: str,
        arguments: dict[str, Any],
        correlation_id: str | None,
        caller: Caller,
        receive: Receive,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Finished:
        """Call a tool, traced, and wait for the answer. Raises `Disconnected` when whoever asked has left."""
        is_followed = correlation_id is not None and correlation_id not in self._open
        run = PageRun(caller, is_followed=is_followed)
        origin = Origin(caller, "explorer", run, headers=headers)
        call = self._intake.make_local(name, arguments, origin, correlation_id)
        call.progress, call.trace = run.progress, []
        is_first = self._open.setdefault(call.correlation_id, run) is run
        answer = self._intake.answer(call, self._finished, by_leaving)
        try:
            outcome, encoded, stages = await answered_or_gone(answer, receive)
        finally:
            run.close()
            if is_first:
                del self._open[call.correlation_id]
        self._keep_details(call, outcome, stages)
        return Finished(call, outcome, encoded, run.has_missed)

    def find(self, correlation_id: str, caller: Caller) -> PageRun | None:
        """A call of the caller's that was not answered yet."""
        run = self._open.get(correlation_id)
        return run if run is not None and run.caller == caller else None

    def details(self, run_id: str, may_see: MaySee) -> dict[str, Any] | None:
        """Stages and error of a call, if they are known still."""
        whose, found = self._details.get(run_id) or (None, None)
        return found if whose is not None and found is not None and may_see(whose, found["toolName"]) else None

    def _finished(self, call: Call, outcome: Outcome) -> tuple[Outcome, bytes, list[Span]]:
        return outcome, self._encoded(call, outcome), spans(call, self._clock.monotonic())

    def _encoded(self, call: Call, outcome: Outcome) -> bytes:
        """A result as JSON. Raises, for the call to fail, where a client could not be sent it either."""
        if not isinstance(outcome.error, ProtocolError):
            self._dialect.render(call, outcome)
        if outcome.error is not None:
            return b""
        encoded, _ = encode_value(outcome.value, self._most_bytes)
        if encoded is None:
            raise ResultTooLarge(None, self._most_bytes)
        return bytes(encoded)

    def _keep_details(self, call: Call, outcome: Outcome, stages: list[Span]) -> None:
        details: dict[str, Any] = {
            "runId": call.run_id,
            "correlationId": call.correlation_id,
            "toolName": call.name[:200],
            "durationMs": call.duration_ms,
            "stages": msgspec.to_builtins(stages),
        }
        if outcome.error is not None:
            details["error"] = explain(call, outcome.error)
        self._details.put(call.run_id, (call.origin.caller, details), len(encode_json(details)))


def by_leaving() -> Withdrawal:
    """Why a call is withdrawn that nobody waits for any longer."""
    return "disconnect"


async def answered_or_gone(answer: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Wait for the answer. When nobody else waits for it any longer, stop and raise `Disconnected`."""
    answering, watching = asyncio.create_task(answer), asyncio.create_task(until_gone(receive))
    try:
        await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Disconnected
        return answering.result()
    finally:
        answering.cancel()
        watching.cancel()

"""The explorer: a page to look at the tools and to try them, and what it fetches.

1. The page is one file that asks for nothing elsewhere. Its script and its style are named by their hashes in the
   Content-Security-Policy, so that nothing a tool returns can run in it.
2. `tools`, `tools/<name>` and `tools/<name>/call` answer with what is specified and nothing else; whatever more the
   page shows has endpoints of its own. Names of tools contain `/`, and are taken whole.
3. Tools are run only where that was allowed, for requests in JSON that bring the token of this process. Another page
   can send no such request: it does not know the token, and may not set the header.
4. A run is a call like any other, of whoever the endpoint says the caller is.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import re
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qs

import msgspec

from dragoman import errors
from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Outcome, Stage
from dragoman.calls.runner import Runner
from dragoman.calls.stages.record_completion import Watcher
from dragoman.calls.tracing import Span, spans
from dragoman.clock import Clock
from dragoman.config import Config
from dragoman.edge.http.asgi import JSON, MOST_READ_AT_ONCE, Bodies, Disconnected, Header, Receive, Scope, Send, answer
from dragoman.edge.http.recent_calls import RecentCalls, Ring
from dragoman.edge.http.runs import Run
from dragoman.errors import InvalidArgument, NotFound, ProtocolError, ResultTooLarge, ToolError
from dragoman.ids import Ids
from dragoman.protocol.session import correlation_id_in
from dragoman.replies.encoding import clean_details, clean_message, encode_value
from dragoman.replies.failures import code_of, may_repeat
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.content import encode_json
from dragoman.tools.tool import Hints, ToolDefinition
from dragoman.version import __version__

RUN_ID = b"x-run-id"
CORRELATION_ID = b"x-correlation-id"
TOKEN = b"x-explorer-token"
MOST_ANSWER = 64 * 1024
"""Bytes of an answer to a question."""

_PAGE = Path(__file__).with_name("explorer.html")
_HARDENED: tuple[Header, ...] = (
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_DATA: tuple[Header, ...] = (JSON, (b"content-security-policy", b"default-src 'none'"), *_HARDENED)
_REQUIRED = re.compile(r'^"(.+)" is a required property$')
_MOST_DETAILS, _MOST_DETAIL_BYTES = 200, 2 * 1024 * 1024

Headers: TypeAlias = dict[bytes, bytes]
WhoIs: TypeAlias = Callable[[Headers], Awaitable[Caller]]


class Explored(Protocol):
    """What the page is about: a runtime."""

    config: Config
    clock: Clock
    ids: Ids
    catalogue: Catalogue
    runner: Runner
    stages: tuple[Stage, ...]
    watchers: list[Watcher]

    @property
    def dialect(self) -> Any: ...
    @property
    def state(self) -> Any: ...
    def health(self) -> dict[str, Any]: ...


class _Reply(NamedTuple):
    status: int
    body: bytes
    headers: tuple[Header, ...] = _DATA


class _Answer(NamedTuple):
    outcome: Outcome
    encoded: bytes
    stages: list[Span]


class Explorer:
    """Serves everything under its prefix. From its making on, it watches the calls of the runtime."""

    def __init__(self, runtime: Explored, *, endpoint: str, is_authenticated: bool, token: str | None = None) -> None:
        config = runtime.config
        self.prefix = config.explorer.prefix.rstrip("/")
        self.token = token or secrets.token_urlsafe(24)
        """What a request to run a tool must bring: whoever was given the address has it."""
        self.recent = RecentCalls()
        self._runtime = runtime
        self._endpoint = endpoint
        self._is_authenticated = is_authenticated
        self._may_execute = config.explorer.allow_execute
        self._most = config.limits.max_request_bytes
        self._read = Bodies(self._most, MOST_READ_AT_ONCE).read
        self._read_answer = Bodies(MOST_ANSWER, MOST_READ_AT_ONCE).read
        self._page = _Reply(200, *_load_page())
        self._runs: dict[str, Run] = {}
        self._details: Ring[tuple[Caller, dict[str, Any]]] = Ring(_MOST_DETAILS, _MOST_DETAIL_BYTES)
        runtime.watchers.append(self.recent.watch)

    def serves(self, path: str) -> bool:
        """Whether a path is the explorer's."""
        return path.startswith(self.prefix) and path[len(self.prefix) : len(self.prefix) + 1] in ("", "/")

    @property
    def address(self) -> str:
        """Where the page is, from the server's root on; with the token, where tools can be run."""
        return f"{self.prefix}/" + (f"#token={self.token}" if self._may_execute else "")

    async def handle(
        self, path: str, scope: Scope, receive: Receive, send: Send, headers: Headers, who_is: WhoIs
    ) -> None:
        """Answer a request. The page is for everybody; what it fetches is for whoever `who_is` lets in."""
        kind, _, rest = path[len(self.prefix) + 1 :].partition("/")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if not kind:
            reply = self._open_page(path, method)
        else:
            caller = await who_is(headers)
            if method == "GET":
                reply = self._look_up(kind, rest, path, scope, caller)
            elif method == "POST" and kind == "tools" and rest.endswith("/call"):
                reply = self._refusal(headers) or await self._call(rest[: -len("/call")], receive, headers, caller)
            elif method == "POST" and kind == "running":
                reply = self._refusal(headers) or await self._answer_question(rest, receive, caller)
            else:
                reply = _error(405, f"{method} is not allowed here")
        await answer(send, *reply)

    def _open_page(self, path: str, method: str) -> _Reply:
        if method != "GET":
            return _error(405, f"{method} is not allowed here")
        if path == self.prefix:  # Relative: wherever this is mounted, and the fragment stays.
            return _Reply(307, b"", ((b"location", self.prefix.rpartition("/")[2].encode() + b"/"), *_HARDENED))
        return self._page

    # To look at.

    def _look_up(self, kind: str, rest: str, path: str, scope: Scope, caller: Caller) -> _Reply:
        is_whole = path == f"{self.prefix}/{kind}"
        whose = caller if self._is_authenticated else None
        match kind:
            case "tools" if is_whole:
                definitions = (registered.definition for registered in self._runtime.catalogue)
                return _json([_summary(each) for each in definitions if caller.may_call(each.name)])
            case "tools":
                return self._show_tool(rest, caller)
            case "calls" if is_whole:
                after = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("after", ["0"])[0]
                number = int(after) if after.isascii() and after.isdigit() and len(after) < 16 else 0
                return _json({"calls": self.recent.since(number, whose), "last": self.recent.total})
            case "calls":
                return self._show_call(rest, whose)
            case "running":
                run = self._runs.get(rest)
                return _json(run.report()) if run is not None and run.caller == caller else _error(404, "Not running")
            case "pipeline" if is_whole:
                return _json([*_described(self._runtime.stages)])
            case "load" if is_whole:
                return _json(self._load())
            case "server" if is_whole:
                return _json(self._server())
        return _error(404, "Nothing is served here")

    def _show_tool(self, name: str, caller: Caller) -> _Reply:
        found = self._runtime.catalogue.get(name)
        if found is None or not caller.may_call(name):
            return _not_found(name)
        definition = found.definition
        return _json({**_summary(definition), "inputSchema": definition.listing()["inputSchema"]})

    def _show_call(self, run_id: str, whose: Caller | None) -> _Reply:
        seen = self.recent.find(run_id, whose)
        found = self._details.get(run_id)
        details = found[1] if found is not None and whose in (None, found[0]) else None
        if seen is None and details is None:
            return _error(404, "No such call is known, or not any longer")
        return _json({**(details or {}), **(msgspec.to_builtins(seen) if seen is not None else {})})

    def _load(self) -> dict[str, Any]:
        recent = self.recent
        return {
            "state": self._runtime.state.value,
            "health": self._runtime.health(),
            "tools": self._runtime.catalogue.version,
            "underWay": self._runtime.runner.under_way,
            "completed": recent.total,
            "failed": recent.failed,
        }

    def _server(self) -> dict[str, Any]:
        config = self._runtime.config
        return {
            "name": config.server.name,
            "version": config.server.version,
            "dragoman": __version__,
            "prefix": self.prefix,
            "endpoint": self._endpoint,
            "mayExecute": self._may_execute,
            "isAuthenticated": self._is_authenticated,
        }

    # To run.

    def _refusal(self, headers: Headers) -> _Reply | None:
        """Why nothing is run for this request, if nothing is."""
        if not self._may_execute:
            return _error(403, "Tool execution is disabled")
        if not hmac.compare_digest(headers.get(TOKEN, b""), self.token.encode()):
            return _error(403, "The token is missing or wrong: open the address that the server printed")
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            return _error(415, "Content-Type must be application/json")
        return None

    async def _call(self, name: str, receive: Receive, headers: Headers, caller: Caller) -> _Reply:
        try:
            arguments = msgspec.json.decode(await self._read(receive), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return _error(400, "Input validation failed: the body must be a JSON object")
        ids = self._runtime.ids
        wanted = correlation_id_in({"correlationId": headers.get(CORRELATION_ID, b"").decode("latin-1")})
        correlation_id = wanted or ids.correlation_id()
        run = Run(caller)
        answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

        def reply(call: Call, outcome: Outcome) -> None:
            if not answered.done():
                encoded = self._encoded(call, outcome)
                answered.set_result(_Answer(outcome, encoded, spans(call.trace, self._runtime.clock.monotonic())))

        call = Call(name, arguments, ids.run_id(), correlation_id, reply, caller, "explorer")
        call.client, call.progress, call.trace = run, run.progress, []
        is_followed = self._runs.setdefault(correlation_id, run) is run
        self._runtime.runner.submit(call)
        try:
            outcome, encoded, stages = await _unless_gone(answered, call, receive)
        finally:
            run.close()
            if is_followed:
                del self._runs[correlation_id]
        self._keep_details(call, outcome, stages)
        headers_of_run = (*_DATA, (RUN_ID, call.run_id.encode()))
        if outcome.error is None:
            return _Reply(200, b'{"result":%b}' % encoded, headers_of_run)
        return _failure(call, outcome.error)._replace(headers=headers_of_run)

    def _encoded(self, call: Call, outcome: Outcome) -> bytes:
        """A result as JSON. Raises, for the call to fail, where a client could not be sent it either."""
        if not isinstance(outcome.error, ProtocolError):
            self._runtime.dialect.render(call, outcome)
        if outcome.error is not None:
            return b""
        encoded, _ = encode_value(outcome.value)
        most = self._runtime.config.response.max_response_bytes
        if len(encoded) > most:
            raise ResultTooLarge(len(encoded), most)
        return encoded

    def _keep_details(self, call: Call, outcome: Outcome, stages: Sequence[Span]) -> None:
        details: dict[str, Any] = {
            "runId": call.run_id,
            "correlationId": call.correlation_id,
            "toolName": call.name[:200],
            "durationMs": call.duration_ms,
            "stages": msgspec.to_builtins(stages),
        }
        if outcome.error is not None:
            details["error"] = _explained(call, outcome.error)
        self._details.put(call.run_id, (call.caller, details), len(encode_json(details)))

    async def _answer_question(self, correlation_id: str, receive: Receive, caller: Caller) -> _Reply:
        run = self._runs.get(correlation_id)
        if run is None or run.caller != caller:
            return _error(404, "Not running")
        try:
            given = msgspec.json.decode(await self._read_answer(receive), type=_Given)
        except (msgspec.DecodeError, RecursionError):
            return _error(400, "Input validation failed: the body must be an object with id and result")
        return _json({}) if run.answer(given.id, given.result) else _error(404, "That is not asked, or not any longer")


class _Given(msgspec.Struct):
    id: int
    result: dict[str, Any]


async def _unless_gone(answered: asyncio.Future[_Answer], call: Call, receive: Receive) -> _Answer:
    """The answer, or `Disconnected` when nobody waits for it any longer; the tool is then asked to stop."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.create_task(until_gone())
    try:
        await asyncio.wait((answered, watching), return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        raise Disconnected
    finally:
        watching.cancel()
        if not answered.done():
            call.disconnected = True
            call.withdraw("disconnect")


def _load_page() -> tuple[bytes, tuple[Header, ...]]:
    """The page, and the headers that let its own script and style run, and no others."""
    page = _PAGE.read_bytes()
    policy = (
        f"default-src 'none'; script-src {_hashes(page, b'script')}; style-src {_hashes(page, b'style')}; "
        "img-src data: blob:; media-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    kind = (b"content-type", b"text/html; charset=utf-8")
    return page, (kind, (b"content-security-policy", policy.encode()), *_HARDENED)


def _hashes(page: bytes, element: bytes) -> str:
    contents = re.findall(rb"<%b>(.*?)</%b>" % (element, element), page, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(content).digest()).decode()}'" for content in contents)


def _summary(definition: ToolDefinition) -> dict[str, Any]:
    """A tool in the list. Hints are booleans there: where a tool says nothing, MCP's own defaults."""
    hints: Hints = definition.hints
    return {
        "name": definition.name,
        "description": definition.description,
        "annotations": {
            "readOnlyHint": bool(hints.read_only),
            "destructiveHint": not hints.read_only if hints.destructive is None else hints.destructive,
            "idempotentHint": bool(hints.idempotent),
            "openWorldHint": hints.open_world is not False,
        },
    }


def _described(stages: Sequence[Stage]) -> Iterator[dict[str, str]]:
    for stage in stages:
        yield {"name": type(stage).__name__, "description": _first_words(type(stage))}
    yield {"name": "handler", "description": "The tool itself."}
    yield {"name": "answer", "description": "What was taken is given back, and the result is worded."}


def _first_words(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


def _failure(call: Call, error: ToolError | ProtocolError) -> _Reply:
    if isinstance(error, NotFound) and not call.ran:
        return _not_found(call.name)
    if isinstance(error, InvalidArgument) and not call.ran:
        said = [f"{field['path'] or '/'}: {field['message']}" for field in _fields(error)]
        return _error(400, f"Input validation failed: {'; '.join(said) or clean_message(error.message)}")
    return _error(500, clean_message(error.message))


def _explained(call: Call, error: ToolError | ProtocolError) -> dict[str, Any]:
    """What the page shows about an error: whatever a client would be told, and what to do about it."""
    explained: dict[str, Any] = {"code": error.code, "message": clean_message(error.message)}
    if isinstance(error, ToolError):
        ours = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        explained |= {
            "details": clean_details(error.details),
            "retryable": may_repeat(error, code_of(error), call),
            "hint": _first_words(ours),
            "fields": _fields(error),
        }
    return explained


def _fields(error: ToolError) -> list[dict[str, str]]:
    """Which arguments an error is about, as JSON pointers: those that the validator or the tool named."""
    details = msgspec.json.decode(encode_json(clean_details(error.details)))
    if not isinstance(details, dict):
        return []
    found: list[dict[str, str]] = []
    named = details.get("field")
    if isinstance(named, str):
        found.append({"path": f"/{named.lstrip('/')}", "message": clean_message(error.message)})
    problems = details.get("errors")
    for each in problems if isinstance(problems, list) else ():
        if isinstance(each, dict) and isinstance(path := each.get("path"), str):
            message = clean_message(str(each.get("message", error.message)))
            missing = _REQUIRED.match(message)
            step = missing[1].replace("~", "~0").replace("/", "~1") if missing is not None else None
            found.append({"path": path if step is None else f"{path}/{step}", "message": message})
    return found


def _not_found(name: str) -> _Reply:
    return _error(404, f"Tool '{name[:200]}' not found")


def _error(status: int, message: str) -> _Reply:
    return _json({"error": message}, status)


def _json(value: Any, status: int = 200) -> _Reply:
    return _Reply(status, encode_json(value))

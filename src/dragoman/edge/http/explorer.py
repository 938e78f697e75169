"""The explorer: a page to look at the tools and to try them, and what it fetches.

1. The page is one file that asks for nothing elsewhere. Its script and its style are named by their hashes in the
   Content-Security-Policy, so that nothing a tool returns can run in it.
2. `tools`, `tools/<name>` and `tools/<name>/call` answer with what is specified and nothing else; whatever more the
   page shows has endpoints of its own. Names of tools contain `/`, and are taken whole.
3. Tools are run only where that was allowed, for requests in JSON that bring the token of this process. Another page
   can send no such request: it does not know the token, and may not set the header.
4. A run is a call like any other, of whoever the endpoint says the caller is. A POST that does not become a call is
   logged under a correlation id, which is in the header of the answer.
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qs

import msgspec

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Stage
from dragoman.calls.stages.record_completion import Observer
from dragoman.calls.tracing import name_of
from dragoman.edge.asgi import JSON, MOST_READ_AT_ONCE, Bodies, Header, Receive, Scope, Send, answer
from dragoman.edge.http.explained import fields_of, first_words
from dragoman.edge.http.recent_calls import RecentCalls
from dragoman.edge.http.runs import Runs, Runtime
from dragoman.edge.peer import log_refusal
from dragoman.errors import InvalidArgument, InvalidRequest, NotFound, ProtocolError, ToolError
from dragoman.protocol.jsonrpc import decode_object
from dragoman.protocol.session import Identity, correlation_id_in, modern_reader
from dragoman.replies.encoding import clean_message
from dragoman.schemas.findings import with_place
from dragoman.schemas.schema import ANY_OBJECT
from dragoman.telemetry.log import Logger
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.content import encode_json
from dragoman.tools.tool import ToolDefinition
from dragoman.version import __version__

RUN_ID = b"x-run-id"
CORRELATION_ID = b"x-correlation-id"
TOKEN = b"x-explorer-token"
NOT_ASKED = (
    "The tool has a question, and nobody can be asked: run it from the page, or send an X-Correlation-Id that is not "
    "in use, and answer at running/<that id>"
)
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

Headers: TypeAlias = dict[bytes, bytes]
WhoIs: TypeAlias = Callable[[Headers], Awaitable[Caller]]


class Explored(Runtime, Protocol):
    """What the page is about."""

    catalogue: Catalogue
    stages: tuple[Stage, ...]
    observers: list[Observer]
    logger: Logger
    identity: Identity

    @property
    def state(self) -> Enum: ...
    def health(self) -> dict[str, Any]: ...


class _Reply(NamedTuple):
    status: int
    body: bytes
    headers: tuple[Header, ...] = _DATA


class Explorer:
    """Serves everything under its prefix. From its making on, it watches the calls of the runtime."""

    def __init__(self, runtime: Explored, *, endpoint: str, is_authenticated: bool) -> None:
        config = runtime.config
        self.prefix = config.explorer.prefix.rstrip("/")
        self.token = secrets.token_urlsafe(24)
        """What a request to run a tool must bring: whoever was given the address has it."""
        self.recent = RecentCalls()
        self._runtime = runtime
        self._endpoint = endpoint
        self._is_authenticated = is_authenticated
        self._may_execute = config.explorer.allow_execute
        self._read = Bodies(config.limits.max_request_bytes, MOST_READ_AT_ONCE, config.limits.shape).read
        self._read_answer = Bodies(MOST_ANSWER, MOST_READ_AT_ONCE).read
        self._page = _Reply(200, *_load_page())
        self._runs = Runs(runtime)
        self._reader = modern_reader(runtime.identity, runtime.ids.connection_correlation_id())
        runtime.observers.append(self.recent.observe)

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
                reply = self._refusal(headers) or await self._answer_question(rest, receive, headers, caller)
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
                run = self._runs.find(rest, caller)
                return _json(run.report()) if run is not None else _error(404, "Not running")
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
        details = self._runs.details(run_id, whose)
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
            return self._refuse(403, InvalidRequest("Tool execution is disabled"), headers)
        if not hmac.compare_digest(headers.get(TOKEN, b""), self.token.encode()):
            wrong = "The token is missing or wrong: open the address that the server printed"
            return self._refuse(403, InvalidRequest(wrong), headers)
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            return self._refuse(415, InvalidRequest("Content-Type must be application/json"), headers)
        return None

    def _refuse(self, status: int, error: ProtocolError, headers: Headers, saying: str | None = None) -> _Reply:
        """Answer with `saying`, or the message of `error`; both have the correlation id of the log entry."""
        refusal = self._reader.refuse(error, None, _meta_in(headers))
        log_refusal(self._runtime.logger, refusal, {"status": status})
        reply = _error(status, saying or error.message)
        return reply._replace(headers=(*_DATA, (CORRELATION_ID, refusal.correlation_id.encode())))

    async def _call(self, name: str, receive: Receive, headers: Headers, caller: Caller) -> _Reply:
        try:
            arguments = decode_object(await self._read(receive))
        except ProtocolError as error:
            said = error.message.removeprefix("Invalid request: ")
            return self._refuse(400, error, headers, f"Input validation failed: {said}")
        wanted = correlation_id_in(_meta_in(headers))
        sent = [*headers.items()]
        call, outcome, encoded, has_missed = await self._runs.run(name, arguments, wanted, caller, receive, sent)
        if outcome.error is None:
            reply = _Reply(200, b'{"result":%b}' % encoded)
        elif has_missed:
            reply = _error(500, f"{clean_message(outcome.error.message)}. {NOT_ASKED}")
        else:
            reply = _failure(call, outcome.error)
        return reply._replace(headers=(*_DATA, (RUN_ID, call.run_id.encode())))

    async def _answer_question(self, correlation_id: str, receive: Receive, headers: Headers, caller: Caller) -> _Reply:
        run = self._runs.find(correlation_id, caller)
        if run is None:
            return _error(404, "Not running")
        try:
            given = msgspec.convert(decode_object(await self._read_answer(receive)), _Given)
        except ProtocolError as error:
            said = error.message.removeprefix("Invalid request: ")
            return self._refuse(400, error, headers, f"Input validation failed: {said}")
        except msgspec.ValidationError:
            shapeless = InvalidRequest("the body must be an object with id and result")
            return self._refuse(400, shapeless, headers, f"Input validation failed: {shapeless.message}")
        return _json({}) if run.answer(given.id, given.result) else _error(404, "That is not asked, or not any longer")


def _meta_in(headers: Headers) -> dict[str, str]:
    """The `_meta` that a message would have: the correlation id that the page brings."""
    return {"correlationId": headers.get(CORRELATION_ID, b"").decode("latin-1")}


class _Given(msgspec.Struct):
    id: int
    result: dict[str, Any]


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
    hints = definition.hints
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
        yield {"name": name_of(stage), "description": first_words(stage)}
    yield {"name": "handler", "description": "The tool itself."}
    yield {"name": "answer", "description": "What was taken is given back, and the result is worded."}


def _failure(call: Call, error: ToolError | ProtocolError) -> _Reply:
    if isinstance(error, NotFound) and not call.ran:
        return _not_found(call.name)
    if isinstance(error, InvalidArgument) and (not call.ran or call.tool.validator is ANY_OBJECT):
        said = [with_place(field) for field in fields_of(error)]
        return _error(400, f"Input validation failed: {'; '.join(said) or clean_message(error.message)}")
    return _error(500, clean_message(error.message))


def _not_found(name: str) -> _Reply:
    return _error(404, f"Tool '{name[:200]}' not found")


def _error(status: int, message: str) -> _Reply:
    return _json({"error": message}, status)


def _json(value: Any, status: int = 200) -> _Reply:
    return _Reply(status, encode_json(value))

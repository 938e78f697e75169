"""The same bad message gets the same answer and the same log entry on every transport."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec
import pytest

from dragoman.testing.connection import ENVELOPE
from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, INITIALIZED, MODERN, Response, Wire, request
from tests.support.processes import HANDSHAKE, ServerProcess
from tests.support.processes import INITIALIZE as FIRST_LINE
from tests.support.served import path_of

TARGET = path_of("offers_under_test.py")
NAPS = path_of("napping_tools.py")
PARSE, INVALID, UNKNOWN_METHOD, BAD_PARAMS, UNREADY = -32700, -32600, -32601, -32602, -32002
UNREADY_DATA = {
    "code": "NOT_INITIALIZED",
    "message": "The connection is not initialized: send `initialize`, then the `initialized` notification, first.",
}
NEW, OPENING, RUNNING = "new", "opening", "running"
_ids = count(1)


class Bad(NamedTuple):
    """A message, and the error that answers it. `$id` in the message stands for an id of its own."""

    body: bytes
    code: int
    message: str
    data: dict[str, Any] = {}  # noqa: RUF012 -- never changed
    is_modern: bool = True
    """Whether the modern era answers it in the same words."""

    @property
    def has_id(self) -> bool:
        return b'"$id"' in self.body


def ask(method: str, params: str = "{}", meta: str = "") -> bytes:
    """A request; `params` is JSON text, `meta` the text of its members."""
    if params.startswith("{"):
        members = ",".join(part for part in (params[1:-1], f'"_meta":{{{meta}}}' if meta else "") if part)
        params = f"{{{members}}}"
    return f'{{"jsonrpc":"2.0","id":"$id","method":"{method}","params":{params}}}'.encode()


MALFORMED = {
    "not JSON": Bad(b"{", PARSE, "Parse error: Input data was truncated"),
    "invalid UTF-8": Bad(
        b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', PARSE, "Parse error: invalid UTF-8 (byte 23)"
    ),
    "deep nesting": Bad(b"[" * 50_000, PARSE, "Parse error: nested too deeply"),
    "a batch": Bad(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID, "Invalid request: batches are not allowed"),
    "a string": Bad(b'"ping"', INVALID, "Invalid request: a message must be an object"),
    "another version": Bad(
        b'{"jsonrpc":"1.0","id":"$id","method":"ping"}', INVALID, 'Invalid request: jsonrpc must be "2.0"'
    ),
    "an id of null": Bad(
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        INVALID,
        "Invalid request: id must be a string of at most 1024 characters or an integer",
    ),
    "no method": Bad(b'{"jsonrpc":"2.0","id":"$id"}', INVALID, "Invalid request: method is missing"),
    "a method that is a number": Bad(
        b'{"jsonrpc":"2.0","id":"$id","method":5}', INVALID, "Invalid request: method must be a string"
    ),
}
REQUESTS = {
    "an unknown method": Bad(ask("nothing/known"), UNKNOWN_METHOD, "Method not found: nothing/known"),
    "a long unknown method": Bad(ask("x" * 300), UNKNOWN_METHOD, f"Method not found: {'x' * 200}"),
    "a call without params": Bad(
        b'{"jsonrpc":"2.0","id":"$id","method":"tools/call"}',
        BAD_PARAMS,
        "Invalid params: tools/call needs params with a name",
        is_modern=False,
    ),
    "a call without a name": Bad(ask("tools/call"), BAD_PARAMS, "Invalid params: Object missing required field `name`"),
    "a call with a list for arguments": Bad(
        ask("tools/call", '{"name":"echo","arguments":[]}'),
        BAD_PARAMS,
        "Invalid params: Expected `object`, got `array` - at `params.arguments`",
    ),
    "a call with a list for params": Bad(
        ask("tools/call", "[]"), BAD_PARAMS, "Invalid params: Expected `object`, got `array`", is_modern=False
    ),
    "a progress token that is a list": Bad(
        ask("tools/list", meta='"progressToken":[]'),
        BAD_PARAMS,
        "Invalid params: _meta.progressToken must be a string or an integer",
    ),
    "a cursor": Bad(
        ask("tools/list", '{"cursor":"x"}'),
        BAD_PARAMS,
        "Invalid params: the list has one page, and no cursor was given out",
    ),
    "a cursor that is a number": Bad(
        ask("tools/list", '{"cursor":5}'),
        BAD_PARAMS,
        "Invalid params: the list has one page, and no cursor was given out",
    ),
    "a level that is none": Bad(
        ask("logging/setLevel", '{"level":"loud"}'), BAD_PARAMS, "Invalid request parameters", is_modern=False
    ),
    "a URI that is a number": Bad(
        ask("resources/read", '{"uri":5}'), BAD_PARAMS, "Invalid request parameters", is_modern=False
    ),
    "an unknown prompt": Bad(
        ask("prompts/get", '{"name":"none"}'),
        BAD_PARAMS,
        "Invalid params: unknown prompt: none",
        {"code": "NOT_FOUND", "retryable": False},
        is_modern=False,
    ),
    "an unknown resource": Bad(
        ask("resources/read", '{"uri":"test://none"}'),
        UNREADY,
        "Resource not found",
        {"uri": "test://none", "code": "NOT_FOUND", "retryable": False},
        is_modern=False,
    ),
    "a method of another era": Bad(
        ask("server/discover"), UNKNOWN_METHOD, "Method not found: server/discover", is_modern=False
    ),
}
AGAIN = "Invalid request: the connection is initialized already"
HANDSHAKES = {
    RUNNING: {"a second handshake": Bad(ask("initialize"), INVALID, AGAIN, is_modern=False)},
    OPENING: {
        "a second handshake": Bad(ask("initialize"), INVALID, "Invalid request: initialize was sent already"),
        "a ping": Bad(ask("ping"), UNREADY, "Not initialized", UNREADY_DATA),
        "a call": Bad(ask("tools/call", '{"name":"echo"}'), UNREADY, "Not initialized", UNREADY_DATA),
        "an unknown method": Bad(ask("nothing/known"), UNREADY, "Not initialized", UNREADY_DATA),
        "wrong params": Bad(ask("tools/call", "[]"), UNREADY, "Not initialized", UNREADY_DATA),
    },
    NEW: {
        "a ping": Bad(ask("ping"), UNREADY, "Not initialized", UNREADY_DATA),
        "a handshake without a client": Bad(
            ask("initialize", '{"protocolVersion":"2025-11-25","capabilities":{}}'),
            BAD_PARAMS,
            "Invalid params: Object missing required field `clientInfo`",
        ),
    },
}


class Client(Protocol):
    """A connection or session in a state."""

    server: ServerProcess

    def ask(self, body: bytes) -> dict[str, Any]:
        """The answer to a message."""
        ...


class OverStdio:
    def __init__(self, server: ServerProcess, state: str) -> None:
        self.server = server
        self._read = 0
        if state != NEW:
            self.ask(FIRST_LINE.rstrip())
        if state == RUNNING:
            server.send(HANDSHAKE.removeprefix(FIRST_LINE))

    def ask(self, body: bytes) -> dict[str, Any]:
        self.server.send(body + b"\n")
        return self.next()

    def next(self) -> dict[str, Any]:
        """The next answer."""
        read, self._read = self._read, self._read + 1
        line = self.server.output.wait_until(lambda lines: lines[read] if len(lines) > read else None)
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer


class OverSession:
    def __init__(self, server: HttpProcess, state: str) -> None:
        self.server = server
        self.session = server.open(is_running=state == RUNNING)

    def ask(self, body: bytes) -> dict[str, Any]:
        return answered(self.session.post(body))


class OverModernHttp:
    def __init__(self, server: HttpProcess) -> None:
        self.server = server

    def ask(self, body: bytes) -> dict[str, Any]:
        routing: dict[str, str | None] = {"mcp-protocol-version": MODERN}
        if b'"params":{' in body:
            message = msgspec.json.decode(body)
            message["params"]["_meta"] = {**ENVELOPE, **message["params"].get("_meta", {})}
            routing["mcp-method"] = message["method"]
            body = msgspec.json.encode(message)
        return answered(self.server.ask(request(body, routing)))


class OverSse:
    """Answers come on the stream; what has no id is answered in the response."""

    def __init__(self, server: HttpProcess, state: str) -> None:
        self.server = server
        self._stream: Wire = server.wire()
        self._stream.send(request(None, {"accept": "text/event-stream"}, method="GET", path="/sse"))
        assert self._stream.head()[0] == 200
        self._rest = ""
        self._path = self._event()
        if state != NEW:
            self.ask(msgspec.json.encode(INITIALIZE))
        if state == RUNNING:
            assert self.post(msgspec.json.encode(INITIALIZED)).status == 202

    def ask(self, body: bytes) -> dict[str, Any]:
        posted = self.post(body)
        return self.next() if posted.status == 202 else answered(posted)

    def next(self) -> dict[str, Any]:
        """The next answer on the stream."""
        answer: dict[str, Any] = msgspec.json.decode(self._event())
        return answer

    def post(self, body: bytes) -> Response:
        return self.server.ask(request(body, path=self._path))

    def _event(self) -> str:
        data = ""
        while not data:  # A ping has none.
            while "\r\n\r\n" not in self._rest:
                self._rest += self._stream.chunk().decode()
            event, _, self._rest = self._rest.partition("\r\n\r\n")
            data = event.partition("data: ")[2]
        return data

    def close(self) -> None:
        self._stream.close()


def answered(response: Response) -> dict[str, Any]:
    return response.message


class Servers:
    """Started when they are first needed; clients are kept by transport and state."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._servers: dict[str, Any] = {}
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, transport: str, state: str) -> Client:
        if (transport, state) not in self._clients:
            self._clients[transport, state] = self._open(transport, state)
        found: Client = self._clients[transport, state]
        return found

    def _open(self, transport: str, state: str) -> Any:
        if transport == "stdio":
            return OverStdio(self._stack.enter_context(ServerProcess(TARGET)), state)
        if transport == "sse":
            client = OverSse(self.http("sse", transport="sse"), state)
            self._stack.callback(client.close)
            return client
        if transport == "modern http":
            return OverModernHttp(self.http("http"))
        if transport == "session of a worker":
            return OverSession(self.http("workers", "--workers", "2"), state)
        return OverSession(self.http("http"), state)

    def http(self, name: str, *arguments: str, **options: Any) -> HttpProcess:
        if name == "http":
            arguments = ("--explorer", "--allow-execute")
        if name not in self._servers:
            self._servers[name] = self._stack.enter_context(HttpProcess(TARGET, *arguments, **options))
        found: HttpProcess = self._servers[name]
        return found


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


CASES = [
    *((RUNNING, name, bad) for name, bad in {**MALFORMED, **REQUESTS, **HANDSHAKES[RUNNING]}.items()),
    *((OPENING, name, bad) for name, bad in {**MALFORMED, **HANDSHAKES[OPENING]}.items()),
    *((NEW, name, bad) for name, bad in {**MALFORMED, **HANDSHAKES[NEW]}.items()),
]
HANDSHAKE_TRANSPORTS = ("stdio", "session", "session of a worker", "sse")


def transports_for(state: str, bad: Bad) -> list[str]:
    if state == NEW:  # There is no session over streamable HTTP yet.
        return ["stdio", "sse"]
    if state == RUNNING and bad.is_modern:
        return [*HANDSHAKE_TRANSPORTS, "modern http"]
    return [*HANDSHAKE_TRANSPORTS]


@pytest.mark.slow
@pytest.mark.requirement(
    "FND-RPC-01", "FND-RPC-03", "FND-RPC-04", "FND-RPC-05", "FND-RPC-06", "FND-RPC-07", "FND-RPC-09", "FND-CORR-04",
    "FND-CORR-06", "FND-CORR-07", "FND-CORR-08",
)  # fmt: skip
@pytest.mark.parametrize(("state", "bad"), [case[::2] for case in CASES], ids=[f"{s}: {name}" for s, name, _ in CASES])
def test_a_bad_message_gets_the_same_answer_and_one_log_entry_on_every_transport(
    servers: Servers, state: str, bad: Bad
) -> None:
    for transport in transports_for(state, bad):
        client = servers.client(transport, state)
        request_id, before = f"id {next(_ids)}", len(refusals(client.server))
        answer = client.ask(bad.body.replace(b"$id", request_id.encode()))
        correlation_id = str(UUID(answer["error"]["data"].pop("correlationId")))
        error = {"code": bad.code, "message": bad.message, "data": bad.data}
        assert (transport, answer) == (
            transport,
            {"jsonrpc": "2.0", "id": request_id if bad.has_id else None, "error": error},
        )
        assert refusals_after(client.server, before) == [
            (correlation_id, {"code": str(bad.code), "message": bad.message}, None)
        ]


def refusals(server: ServerProcess) -> list[tuple[str, Any, int | None]]:
    """The correlation id, the error and the HTTP status of each message that the log says was refused."""
    entries = [msgspec.json.decode(line) for line in [*server.errors.lines] if b'"message refused"' in line]
    return [(entry["correlationId"], entry["error"], entry.get("status")) for entry in entries]


def refusals_after(server: ServerProcess, before: int) -> list[tuple[str, Any, int | None]]:
    """Those that were logged since there were `before`, as soon as there is one."""
    server.wait_for_log("message refused", before + 1)
    return refusals(server)[before:]


@pytest.mark.slow
@pytest.mark.requirement("FND-CORR-05", "FND-CORR-06", "FND-CORR-07", "FND-RPC-03")
@pytest.mark.parametrize("transport", HANDSHAKE_TRANSPORTS)
def test_an_error_has_the_correlation_id_of_its_request_or_else_of_its_connection(
    servers: Servers, transport: str
) -> None:
    def told(state: str, body: bytes) -> str:
        client = servers.client(transport, state)
        before = len(refusals(client.server))
        found: str = client.ask(body.replace(b"$id", f"id {next(_ids)}".encode()))["error"]["data"]["correlationId"]
        assert [logged for logged, _, _ in refusals_after(client.server, before)] == [found]
        return found

    own = '"correlationId":"mine"'
    connection = told(RUNNING, b"{")
    assert told(RUNNING, b"[]") == connection == told(RUNNING, ask("nothing/known"))
    assert told(RUNNING, ask("nothing/known", meta=own)) == "mine"
    assert told(RUNNING, ask("resources/read", '{"uri":"test://none"}', own)) == "mine"
    other = told(OPENING, b"{")
    assert other != connection
    assert told(OPENING, ask("ping", meta=own)) == other


@pytest.mark.slow
@pytest.mark.requirement("FND-CORR-04", "FND-CORR-06")
@pytest.mark.parametrize(
    ("path", "method", "headers", "status", "said"),
    [
        ("/mcp", "POST", {"mcp-session-id": "0" * 32}, 404, "Session not found"),
        ("/mcp", "POST", {"host": "evil.example.org"}, 421, None),
        ("/mcp", "POST", {"content-type": "text/plain"}, 415, "Content-Type must be application/json"),
        ("/mcp", "GET", {"mcp-session-id": "0" * 32}, 404, "Session not found"),
        ("/mcp", "PUT", {}, 405, "PUT is not allowed here"),
        ("/nowhere", "GET", {}, 404, "Nothing is served here; MCP is at /mcp"),
        ("/messages/", "POST", {}, 400, "session_id is required"),
        ("/messages/?session_id=x", "POST", {}, 400, "Invalid session ID"),
        (f"/messages/?session_id={'0' * 32}", "POST", {}, 404, "Could not find session"),
    ],
)
def test_a_request_that_reaches_no_session_is_answered_and_logged_under_one_correlation_id(
    servers: Servers, path: str, method: str, headers: dict[str, str | None], status: int, said: str | None
) -> None:
    name, options = ("sse", {"transport": "sse"}) if path.startswith("/messages") else ("http", {})
    server = servers.http(name, **options)
    before = len(refusals(server))
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"} if method == "POST" else None
    response = server.ask(request(body, headers, method=method, path=path))
    error = response.error
    assert (response.status, error["code"]) == (status, INVALID)
    assert said is None or error["message"] == said
    told = {"code": str(error["code"]), "message": error["message"]}
    assert refusals_after(server, before) == [(error["data"]["correlationId"], told, status)]


NO_OBJECTS = {name: bad for name, bad in MALFORMED.items() if bad.code == PARSE or not bad.body.startswith(b"{")}


@pytest.mark.slow
@pytest.mark.requirement("FND-CORR-04", "FND-CORR-06", "FR-EXPLORER-004")
@pytest.mark.parametrize("bad", NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_the_explorer_has_the_same_words_for_a_body_that_is_not_json(servers: Servers, bad: Bad) -> None:
    server = servers.http("http")
    found = server.output.wait_until(lambda lines: re.search(rb"#token=(\S+)", b"\n".join(lines)))
    before = len(refusals(server))
    headers = {"x-explorer-token": found[1].decode()}
    response = server.ask(request(bad.body, headers, path="/explorer/tools/echo/call"))
    said = bad.message if bad.code == PARSE else "the body must be a JSON object"
    assert (response.status, response.json) == (400, {"error": f"Input validation failed: {said}"})
    ((correlation_id, error, status),) = refusals_after(server, before)
    assert (correlation_id, status) == (response.headers["x-correlation-id"], 400)
    assert error["code"] == str(bad.code)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "session", "sse"])
def test_a_request_with_an_id_under_way_is_refused_in_the_same_words_and_the_first_one_answered(transport: str) -> None:
    call, wake = (ask("tools/call", f'{{"name":"{name}"}}') for name in ("nap", "wake"))
    call = call.replace(b"$id", b"mine")
    with ExitStack() as stack:
        client: OverStdio | OverSse | OverSession
        if transport == "stdio":
            client = OverStdio(stack.enter_context(ServerProcess(NAPS)), RUNNING)
            client.server.send(call + b"\n")
        elif transport == "sse":
            client = OverSse(stack.enter_context(HttpProcess(NAPS, transport="sse")), RUNNING)
            stack.callback(client.close)
            assert client.post(call).status == 202
        else:
            client = OverSession(stack.enter_context(HttpProcess(NAPS)), RUNNING)
            waiting = stack.enter_context(client.server.wire())
            waiting.send(client.session.request(call))
        client.server.wait_for_log("napping")
        refused = client.ask(call)
        assert refused["error"].pop("data").keys() == {"correlationId"}
        said = {"code": INVALID, "message": "Invalid request: a request with this id is under way"}
        assert refused == {"jsonrpc": "2.0", "id": "mine", "error": said}
        answers = [client.ask(wake)]
        answers.append(waiting.read().message if isinstance(client, OverSession) else client.next())
        assert {each["id"]: each["result"]["isError"] for each in answers} == {"mine": False, "$id": False}

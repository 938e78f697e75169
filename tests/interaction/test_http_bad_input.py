"""Whatever a client sends, it is told what is wrong, in words that programs understand, and the server stays well."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dragoman.testing.connection import ENVELOPE
from tests.support.answers import text_in
from tests.support.http_process import HttpProcess, HttpSession
from tests.support.http_wire import (
    BOTH,
    INITIALIZE,
    INITIALIZED,
    LATEST,
    MODERN,
    Response,
    message,
    modern,
    modern_call,
    request,
)

pytestmark = pytest.mark.slow

PARSE, INVALID, UNKNOWN_METHOD, BAD_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
UNREADY, MISMATCH, BAD_VERSION = -32002, -32020, -32022
MOST = 10 * 1024 * 1024
CALL = message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1)


@pytest.fixture(scope="module")
def process() -> Iterator[HttpProcess]:
    settings = {"http.allowed_origins": '["https://app.example.org"]', "http.allowed_hosts": '["tools.example.org"]'}
    with HttpProcess(settings=settings) as server:
        yield server
    errors = [entry for entry in server.log() if entry["level"] == "error"]
    assert errors == [], errors


@pytest.fixture
def server(process: HttpProcess) -> Iterator[HttpProcess]:
    """After every test, the server answers as before."""
    yield process
    process.check_health()


@pytest.fixture
def session(server: HttpProcess) -> Iterator[HttpSession]:
    """After every test, the session still serves."""
    session = server.open()
    yield session
    assert text_in(session.call("echo", id="afterwards", message="hi")) == {"message": "hi"}
    assert session.delete().status == 200


def told(response: Response) -> tuple[int, int]:
    """The status, and the code in the body."""
    assert "content-length" in response.headers
    return response.status, response.code


# What is wrong with the request as HTTP.

HEADERS: dict[str, tuple[dict[str, str | None], int, int]] = {
    "no content type": ({"content-type": None}, 415, INVALID),
    "another content type": ({"content-type": "text/plain"}, 415, INVALID),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, 415, INVALID),
    "nearly the content type": ({"content-type": "application/json-seq"}, 415, INVALID),
    "no JSON accepted": ({"accept": "text/html"}, 406, INVALID),
    "only a stream accepted": ({"accept": "text/event-stream"}, 406, INVALID),
    "another page": ({"origin": "https://evil.example.org"}, 403, INVALID),
    "a page of no origin": ({"origin": "null"}, 403, INVALID),
    "a page whose name is like ours": ({"origin": "http://localhost.evil.example.org"}, 403, INVALID),
    "another host": ({"host": "evil.example.org"}, 421, INVALID),
    "no host": ({"host": None}, 421, INVALID),
    "a host with a user": ({"host": "localhost@evil.example.org"}, 421, INVALID),
    "a length beyond the limit": ({"content-length": str(MOST + 1)}, 413, INVALID),
    "a length beyond any limit": ({"content-length": "9" * 18}, 413, INVALID),
}


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize(("headers", "status", "code"), HEADERS.values(), ids=HEADERS)
def test_a_request_with_wrong_headers_is_told_so(
    server: HttpProcess, era: str, headers: dict[str, str | None], status: int, code: int
) -> None:
    asked = modern_call("echo", headers, message="hi") if era == "modern" else request(INITIALIZE, headers)
    assert told(server.ask(asked)) == (status, code)


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ready", "/version", "/mcp", "/nowhere"])
def test_hosts_and_origins_are_checked_on_every_route(server: HttpProcess, path: str) -> None:
    rebound = request(None, {"host": "evil.example.org"}, method="GET", path=path)
    foreign = request(None, {"origin": "https://evil.example.org"}, method="GET", path=path)
    assert (told(server.ask(rebound)), told(server.ask(foreign))) == ((421, INVALID), (403, INVALID))


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "tools.example.org:443", "LOCALHOST"])
def test_addresses_and_names_of_our_own_are_let_in(server: HttpProcess, host: str) -> None:
    assert server.ask(request(None, {"host": host}, method="GET", path="/health")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/mcp", 405),
        ("PATCH", "/mcp", 405),
        ("HEAD", "/mcp", 405),
        ("GET", "/mcp", 400),
        ("DELETE", "/mcp", 400),
        ("POST", "/health", 405),
        ("DELETE", "/version", 405),
        ("POST", "/", 404),
        ("POST", "/mcp/", 404),
        ("POST", "//mcp", 404),
        ("POST", "/MCP", 404),
        ("GET", "/sse", 404),
        ("POST", "/messages/", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/%2e%2e/mcp", 404),
    ],
)
def test_a_method_or_path_that_is_not_served_is_told_so(
    server: HttpProcess, method: str, path: str, status: int
) -> None:
    answered = server.ask(request(None, method=method, path=path), is_head=method == "HEAD")
    assert answered.status == status
    if method != "HEAD":
        assert answered.code == INVALID
    if status == 405:
        assert "allow" in answered.headers


def test_a_modern_request_that_is_not_posted_is_told_what_there_is_not(server: HttpProcess) -> None:
    for method in ("GET", "DELETE"):
        answered = server.ask(request(None, {"mcp-protocol-version": MODERN}, method=method))
        assert told(answered) == (405, INVALID)
        assert answered.headers["allow"] == "POST"
        assert server.ask(request(None, {"mcp-method": "tools/list"}, method=method)).status == 405


def test_health_needs_no_body_to_be_asked_for_its_head(server: HttpProcess) -> None:
    with server.wire() as wire:
        answered = wire.ask(request(None, method="HEAD", path="/health"), is_head=True)
        assert (answered.status, wire.ask(request(None, method="GET", path="/health")).status) == (200, 200)


def test_a_page_that_is_allowed_may_look_before_it_asks_and_read_what_it_is_told(server: HttpProcess) -> None:
    origin = {"origin": "https://app.example.org"}
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-param-region"}
    preflight = server.ask(request(None, {**origin, **wanted}, method="OPTIONS"))
    assert (preflight.status, preflight.body) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == origin["origin"]
    assert preflight.headers["access-control-allow-headers"] == "mcp-param-region"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for asked in (modern_call("echo", origin, message="hi"), modern_call("echo", {**origin, "mcp-method": "x"})):
        answered = server.ask(asked)
        assert answered.headers["access-control-allow-origin"] == origin["origin"], answered
        assert "mcp-session-id" in answered.headers["access-control-expose-headers"]


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {"accept": "text/html"}, {"mcp-method": "x"}])
def test_a_page_can_read_a_refusal_too(server: HttpProcess, headers: dict[str, str | None]) -> None:
    answered = server.ask(modern_call("echo", {**headers, "origin": "https://app.example.org"}, message="hi"))
    assert answered.status >= 400
    assert answered.headers["access-control-allow-origin"] == "https://app.example.org"


def test_another_page_may_not_even_look(server: HttpProcess) -> None:
    foreign = {"origin": "https://evil.example.org", "access-control-request-method": "POST"}
    answered = server.ask(request(None, foreign, method="OPTIONS"))
    assert told(answered) == (403, INVALID)
    assert "access-control-allow-origin" not in answered.headers


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("Host", ("127.0.0.1", "localhost"), INVALID),
        ("Origin", ("http://localhost", "http://localhost"), INVALID),
        ("Authorization", ("Bearer a", "Bearer b"), INVALID),
        ("Content-Type", ("application/json", "application/json"), INVALID),
        ("Mcp-Session-Id", ("a", "b"), INVALID),
        ("Last-Event-Id", ("0-1", "0-2"), INVALID),
        ("MCP-Protocol-Version", (MODERN, LATEST), MISMATCH),
        ("MCP-Protocol-Version", (LATEST, MODERN), MISMATCH),
        ("Mcp-Method", ("tools/call", "tools/call"), MISMATCH),
        ("Mcp-Name", ("echo", "other"), MISMATCH),
    ],
)
def test_a_header_that_decides_and_is_there_twice_is_refused(
    server: HttpProcess, name: str, values: tuple[str, str], code: int
) -> None:
    usual = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
    fields = [*((key, value) for key, value in usual.items() if key != name), *((name, value) for value in values)]
    body = {**CALL, "params": {**CALL["params"], "_meta": ENVELOPE}}
    assert told(server.ask(request(body, fields))) == (400, code)


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a1030300000000") + bytes(100) + b"\r\n\r\n",
    "a space in a name": b"GET /health HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    "a length and chunks": (
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a negative length": b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    "a chunk of no size": (
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    ),
    "a null in a header": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\x00\r\n\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_http_is_told_so_and_disconnected(server: HttpProcess, data: bytes) -> None:
    with server.wire() as wire:
        answered = wire.ask(data)
        assert told(answered) == (400, INVALID)
        assert answered.headers["connection"] == "close"
        assert wire.is_ended


def test_a_head_of_100_kb_is_refused_before_it_is_read_and_one_within_the_limit_is_not(server: HttpProcess) -> None:
    large = request(None, {"x-large": "a" * 60_000}, method="GET", path="/health")
    assert server.ask(large).status == 200
    for pieces in (1, 20):
        with server.wire() as wire:
            assert wire.ask(large).status == 200
            head = request(None, [(f"x-{number}", "a" * 100) for number in range(1000)], method="GET", path="/health")
            for start in range(0, len(head), len(head) // pieces + 1):
                wire.send(head[start : start + len(head) // pieces + 1])
            assert told(wire.read()) == (431, INVALID)
            assert wire.is_ended


@pytest.mark.parametrize("kind", ["trailers", "sizes of chunks"])
def test_what_is_neither_head_nor_body_is_bounded_as_well(server: HttpProcess, kind: str) -> None:
    chunked = {"transfer-encoding": "chunked", "content-type": "application/json"}
    with server.wire() as wire:
        wire.send(request(None, chunked, method="POST") + b"1\r\n{\r\n")
        wire.send(b"0\r\n" + b"x-a: b\r\n" * 20_000 if kind == "trailers" else b"1;" + b"x" * 200_000)
        assert told(wire.read()) == (431, INVALID)
        assert wire.is_ended


def test_a_trailer_is_not_a_header(server: HttpProcess) -> None:
    body = msgspec.json.encode(CALL)
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    head = request(None, {"transfer-encoding": "chunked", "content-type": "application/json"}, method="POST")
    trailers = b"Origin: https://evil.example.org\r\nMcp-Session-Id: x\r\n"
    for is_whole in (True, False):
        with server.wire() as wire:
            if is_whole:
                wire.send(head + chunk + trailers + b"\r\n")
            else:  # The server looks at the head before the end has come.
                wire.send(head + chunk + trailers)
                wire.wait_until_read()
                wire.send(b"\r\n")
            answered = wire.read()
            assert told(answered) == (400, INVALID)
            assert "Mcp-Session-Id is missing" in answered.error["message"]


def test_an_upgrade_is_not_made_and_what_follows_is_no_request(server: HttpProcess) -> None:
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "content-length": "50"}
    with server.wire() as wire:
        wire.send(request(None, upgrade, method="GET", path="/health"))
        wire.send(request(None, method="DELETE", path="/smuggled"))
        assert wire.read().status == 200
        assert wire.is_ended


def test_http_1_0_is_answered_and_disconnected(server: HttpProcess) -> None:
    with server.wire() as wire:
        answered = wire.ask(request(None, method="GET", path="/health", version="HTTP/1.0"))
        assert (answered.status, wire.is_ended) == (200, True)


def test_requests_that_do_not_wait_for_each_other_are_answered_in_order(server: HttpProcess) -> None:
    with server.wire() as wire:
        wire.send(b"".join(modern_call("echo", id=number, message=str(number)) for number in range(50)))
        assert [text_in(wire.read()) for _ in range(50)] == [{"message": str(number)} for number in range(50)]


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(server: HttpProcess) -> None:
    asked = modern_call("echo", {"expect": "100-continue"}, message="hi")
    head, _, body = asked.partition(b"\r\n\r\n")
    with server.wire() as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.head()[0] == 100
        wire.send(body)
        assert text_in(wire.read()) == {"message": "hi"}


def test_a_client_that_asks_before_it_sends_too_much_is_told_not_to(server: HttpProcess) -> None:
    with server.wire() as wire:
        wire.send(modern_call("echo", {"expect": "100-continue", "content-length": "100000000"}).partition(b"{")[0])
        assert wire.head()[0] == 413


# What is wrong with the body.


def test_100_mb_are_refused_before_they_are_read(server: HttpProcess) -> None:
    with server.wire() as wire:
        wire.send(request(None, {"content-type": "application/json", "content-length": "100000000"}, method="POST"))
        sending = threading.Thread(target=flood, args=(wire.socket, 100))
        sending.start()
        assert told(wire.read()) == (413, INVALID)
        sending.join()


def test_100_mb_in_chunks_are_refused_at_the_limit(server: HttpProcess) -> None:
    with server.wire() as wire:
        wire.send(request(None, {"content-type": "application/json", "transfer-encoding": "chunked"}, method="POST"))
        sending = threading.Thread(target=flood, args=(wire.socket, 100, b"100000\r\n" + b"x" * 0x100000 + b"\r\n"))
        sending.start()
        assert told(wire.read()) == (413, INVALID)
        sending.join()


def flood(socket: socket.socket, times: int, data: bytes = b"x" * 1_000_000) -> None:
    """Send without listening; the other end may have closed by then."""
    try:
        for _ in range(times):
            socket.sendall(data)
    except OSError:
        pass


def test_a_body_at_the_limit_is_read(server: HttpProcess) -> None:
    body = msgspec.json.encode(message("notifications/progress", {"progressToken": 1, "progress": 1}))
    padded = body + b" " * (MOST - len(body))
    assert server.ask(request(padded, {"mcp-protocol-version": MODERN})).status == 202
    assert told(server.ask(request(padded + b" ", {"mcp-protocol-version": MODERN}))) == (413, INVALID)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_ends_too_early_is_told_so(server: HttpProcess, chunked: bool) -> None:
    length = {"transfer-encoding": "chunked"} if chunked else {"content-length": "1000"}
    with server.wire() as wire:
        wire.send(request(None, {"content-type": "application/json", **length}, method="POST") + b'5\r\n{"a":')
        wire.socket.shutdown(socket.SHUT_WR)
        assert told(wire.read()) == (400, INVALID)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(server: HttpProcess) -> None:
    for _ in range(20):
        with server.wire() as wire:
            wire.send(modern_call("echo", {"content-length": "1000"}, message="hi"))


BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", PARSE),
    "spaces": (b"  \n", PARSE),
    "no JSON": (b"{", PARSE),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\xff"}}', PARSE),
    "invalid UTF-8 in the name of a member": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","\xb5":"io.modelcontextprotocol/protocolVersion"}',
        PARSE,
    ),
    "two messages": (b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n{"jsonrpc":"2.0","id":2,"method":"ping"}', PARSE),
    "100,000 brackets": (b"[" * 100_000, PARSE),
    "90,000 brackets in the params": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"message":'
        + b"[" * 90_000
        + b"]" * 90_000
        + b"}}}",
        PARSE,
    ),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID),
    "an empty batch": (b"[]", INVALID),
    "a string": (b'"tools/call"', INVALID),
    "an old version": (b'{"jsonrpc":"1.0","id":1,"method":"tools/call"}', INVALID),
    "no method": (b'{"jsonrpc":"2.0","id":1}', INVALID),
    "an id of null": (b'{"jsonrpc":"2.0","id":null,"method":"tools/call"}', INVALID),
    "an id of 1.5": (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/call"}', INVALID),
    "an id of true": (b'{"jsonrpc":"2.0","id":true,"method":"tools/call"}', INVALID),
    "a list as id": (b'{"jsonrpc":"2.0","id":[1],"method":"tools/call"}', INVALID),
}


@pytest.mark.parametrize("era", ["modern", "in a session", "to open a session"])
@pytest.mark.parametrize(("body", "code"), BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_message_is_told_so(
    server: HttpProcess, session: HttpSession, era: str, body: bytes, code: int
) -> None:
    headers: dict[str, str | None] = {}
    if era == "modern":
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "echo"}
    elif era == "in a session":
        headers = {**session.headers}
    assert told(server.ask(request(body, headers))) == (400, code)


# What is wrong with a modern request.


def test_a_modern_request_is_known_by_its_meta_and_told_which_headers_it_lacks(server: HttpProcess) -> None:
    body = {**CALL, "params": {**CALL["params"], "_meta": ENVELOPE}}
    assert told(server.ask(request(body))) == (400, MISMATCH)
    assert told(server.ask(request(body, {"mcp-protocol-version": MODERN}))) == (400, MISMATCH)
    assert told(server.ask(request(body, {"mcp-protocol-version": MODERN, "mcp-method": "tools/call"}))) == (
        400,
        MISMATCH,
    )


@pytest.mark.parametrize(
    "headers",
    [{"mcp-protocol-version": MODERN}, {"mcp-method": "tools/call"}, {"mcp-name": "echo"}],
    ids=["version", "method", "name"],
)
def test_a_modern_request_is_known_by_any_of_its_headers_and_told_what_its_meta_lacks(
    server: HttpProcess, session: HttpSession, headers: dict[str, str | None]
) -> None:
    assert told(server.ask(request(CALL, headers))) == (400, BAD_PARAMS)
    in_session = {"mcp-session-id": session.id, **headers}
    assert told(server.ask(request(CALL, in_session))) == (400, BAD_PARAMS)


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp-protocol-version": "2025-11-25"},
        {"mcp-protocol-version": "2099-01-01"},
        {"mcp-protocol-version": None},
        {"mcp-method": "ping"},
        {"mcp-method": "Tools/call"},
        {"mcp-method": None},
        {"mcp-name": "other"},
        {"mcp-name": None},
        {"mcp-name": "=?base64?!?="},
        {"mcp-name": "=?base64?b3RoZXI=?="},
    ],
    ids=str,
)
def test_a_modern_request_whose_headers_say_something_else_than_its_body_is_refused(
    server: HttpProcess, headers: dict[str, str | None]
) -> None:
    answered = server.ask(modern_call("echo", headers, id="mine", message="hi"))
    assert told(answered) == (400, MISMATCH)
    assert answered.json["id"] == "mine"
    assert text_in(server.ask(modern_call("echo", {"mcp-name": "=?base64?ZWNobw==?="}, message="hi")))


def test_a_version_that_nobody_speaks_is_told_which_are_spoken(server: HttpProcess) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    answered = server.ask(modern("tools/list", None, {"mcp-protocol-version": "2099-01-01"}, meta=meta))
    assert told(answered) == (400, BAD_VERSION)
    assert answered.error["data"]["supported"] == [MODERN]
    assert answered.error["data"]["requested"] == "2099-01-01"


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        (None, 400, BAD_VERSION),
        ({}, 400, BAD_VERSION),
        (INITIALIZE["params"], 400, BAD_VERSION),
        ({"_meta": ENVELOPE}, 404, UNKNOWN_METHOD),
    ],
    ids=["no", "empty", "all", "modern"],
)
def test_a_handshake_in_the_modern_era_is_told_that_there_is_none(
    server: HttpProcess, params: dict[str, Any] | None, status: int, code: int
) -> None:
    asked = request(message("initialize", params, 1), {"mcp-protocol-version": MODERN, "mcp-method": "initialize"})
    answered = server.ask(asked)
    assert told(answered) == (status, code)
    assert code != BAD_VERSION or answered.error["data"]["supported"] == [MODERN]


def test_an_empty_version_is_none_of_ours(server: HttpProcess, session: HttpSession) -> None:
    assert told(server.ask(session.request(CALL, {"mcp-protocol-version": ""}))) == (400, BAD_PARAMS)


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("nothing/known", {}, 404, UNKNOWN_METHOD),
        ("ping", {}, 404, UNKNOWN_METHOD),
        ("tools/list", {"cursor": 5}, 400, BAD_PARAMS),
        ("tools/list", {"cursor": "never given out"}, 400, BAD_PARAMS),
        ("resources/read", {"uri": "file:///etc/passwd"}, 400, MISMATCH),
    ],
)
def test_a_modern_request_that_cannot_be_served_has_a_status_that_says_so(
    server: HttpProcess, method: str, params: dict[str, Any], status: int, code: int
) -> None:
    assert told(server.ask(modern(method, params))) == (status, code)


def test_a_modern_stream_needs_a_client_that_takes_streams(server: HttpProcess) -> None:
    asked = modern("subscriptions/listen", {"notifications": {}}, {"accept": "application/json"})
    assert told(server.ask(asked)) == (406, INVALID)


def test_a_session_means_nothing_to_a_modern_request(server: HttpProcess) -> None:
    for session_id in ("no such session", "é" * 1000):
        assert text_in(server.ask(modern_call("echo", {"mcp-session-id": session_id}, message="hi"))) == {
            "message": "hi"
        }


@pytest.mark.parametrize(
    "body",
    [message("notifications/cancelled", {"requestId": 1}), message("notifications/whatever"), INITIALIZED],
)
def test_a_modern_notification_is_taken_and_not_answered(server: HttpProcess, body: dict[str, Any]) -> None:
    answered = server.ask(request(body, {"mcp-protocol-version": MODERN}))
    assert (answered.status, answered.body) == (202, b"")
    assert told(server.ask(request(body, {"mcp-protocol-version": "2099-01-01"}))) == (400, BAD_VERSION)


def test_an_answer_that_nobody_asked_for_is_refused_in_the_modern_era(server: HttpProcess) -> None:
    answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert told(server.ask(request(answer, {"mcp-protocol-version": MODERN}))) == (400, INVALID)


# What is wrong with a request in a session.


def test_only_initialize_opens_a_session(server: HttpProcess) -> None:
    for body in (CALL, message("ping", None, 1), INITIALIZED, {"jsonrpc": "2.0", "id": 1, "result": {}}):
        answered = server.ask(request(body))
        assert told(answered) == (400, INVALID)
        assert answered.json["id"] == body.get("id")


@pytest.mark.parametrize("session_id", ["unknown", "0" * 32, "a" * 10_000, "../../etc", "é"])
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_an_unknown_session_is_not_found(server: HttpProcess, session_id: str, method: str) -> None:
    body = CALL if method == "POST" else None
    answered = server.ask(request(body, {"mcp-session-id": session_id}, method=method))
    assert told(answered) == (404, INVALID)


def test_a_session_that_was_ended_is_not_found(server: HttpProcess) -> None:
    session = server.open()
    assert session.delete().status == 200
    assert told(session.call("echo", message="hi")) == (404, INVALID)
    assert told(session.post(message("ping", None, 1))) == (404, INVALID)
    assert told(session.delete()) == (404, INVALID)


@pytest.mark.parametrize("params", [None, {}, {"protocolVersion": 5}, []], ids=str)
def test_a_bad_handshake_opens_no_session_that_would_serve(server: HttpProcess, params: Any) -> None:
    answered = server.ask(request({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
    assert answered.code in (BAD_PARAMS, INVALID)
    if session_id := answered.headers.get("mcp-session-id"):
        refused = server.ask(request(CALL, {"mcp-session-id": session_id}))
        assert (refused.status, refused.code) in {(200, UNREADY), (404, INVALID)}


def test_a_handshake_of_an_unknown_version_is_offered_the_latest(server: HttpProcess) -> None:
    body = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": "1999-01-01"}}
    result = server.ask(request(body)).message["result"]
    assert (result["protocolVersion"], result["capabilities"]["tools"]) == (LATEST, {"listChanged": True})


def test_nothing_is_served_before_the_handshake_is_through(server: HttpProcess) -> None:
    session = server.open(is_running=False)
    for body in (CALL, message("ping", None, 2), message("tools/list", None, 3)):
        answered = session.post(body)
        assert (answered.status, answered.code) == (200, UNREADY)
    assert session.post(INITIALIZED).status == 202
    assert text_in(session.call("echo", message="hi")) == {"message": "hi"}
    session.delete()


def test_the_foundations_word_for_initialized_is_understood(server: HttpProcess) -> None:
    session = server.open(is_running=False)
    assert session.post(message("initialized")).status == 202
    assert text_in(session.call("echo", message="hi")) == {"message": "hi"}
    assert session.post(message("tools/list", None, 2)).message["result"]["tools"]
    session.delete()


def test_a_second_handshake_in_a_session_is_refused(session: HttpSession) -> None:
    answered = session.post(INITIALIZE)
    assert answered.code == INVALID


def test_an_id_that_is_in_use_is_refused_and_its_first_owner_served(server: HttpProcess, session: HttpSession) -> None:
    with server.wire() as wire:
        wire.send(session.request(message("tools/call", {"name": "wait_to_be_cancelled"}, 7)))
        server.wait_for_log("under way")
        for body in (
            message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 7),
            message("tools/list", None, "7"),
        ):
            answered = session.post(body)
            assert told(answered) == (400, INVALID)
            assert answered.json["id"] == body["id"]
        assert session.post(message("notifications/cancelled", {"requestId": 7})).status == 202
        assert wire.read().message["id"] == 7


@pytest.mark.requirement("FND-CORR-06")
@pytest.mark.parametrize("given", [None, "my-own"])
@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}], ids=["in the lane", "in the SDK"])
def test_a_cancelled_request_in_a_session_is_answered_with_its_correlation_id(
    server: HttpProcess, session: HttpSession, meta: dict[str, Any], given: str | None
) -> None:
    meta = meta if given is None else {**meta, "correlationId": given}
    before = sum(b'"under way"' in each for each in server.errors.lines)
    with server.wire() as wire:
        wire.send(session.request(message("tools/call", {"name": "wait_to_be_cancelled", "_meta": meta}, 8)))
        server.wait_for_log("under way", before + 1)
        assert session.post(message("notifications/cancelled", {"requestId": 8})).status == 202
        error = wire.read().error
    assert (error["code"], error["message"]) == (-32800, "Request cancelled")
    assert error["data"]["correlationId"] == given or (given is None and UUID(error["data"]["correlationId"]))


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": "never asked", "error": {"code": 1, "message": "x"}},
        message("notifications/cancelled", {"requestId": 999}),
        message("notifications/cancelled", {"requestId": {"odd": 1}}),
        message("notifications/whatever", {"a": 1}),
        INITIALIZED,
    ],
    ids=["answer", "error", "cancel", "odd cancel", "unknown", "initialized again"],
)
def test_answers_and_notifications_in_a_session_are_taken(session: HttpSession, body: dict[str, Any]) -> None:
    answered = session.post(body)
    assert (answered.status, answered.body) == (202, b"")


def test_a_modern_request_in_a_session_is_one_whose_headers_disagree(session: HttpSession) -> None:
    body = {**CALL, "params": {**CALL["params"], "_meta": ENVELOPE}}
    assert told(session.post(body)) == (400, MISMATCH)


def test_a_session_needs_a_client_that_takes_both_kinds_of_answer(session: HttpSession) -> None:
    assert told(session.post(CALL, {"accept": "application/json"})) == (406, INVALID)
    assert text_in(session.post(CALL, {"accept": None})) == {"message": "hi"}
    assert text_in(session.post(CALL, {"accept": "text/*;q=0.5, application/*"})) == {"message": "hi"}


@pytest.mark.parametrize("event_id", ["0-99", "99-0", "0-0", "x", "-", "0-", "9" * 30 + "-1", "٣-1", "0-1-1"])
def test_an_event_that_was_never_given_out_cannot_be_resumed_after(session: HttpSession, event_id: str) -> None:
    headers = {"accept": "text/event-stream", "last-event-id": event_id.encode().decode("latin-1")}
    answered = session._server.ask(session.request(None, headers, method="GET"))
    assert told(answered) == (400, INVALID)


def test_a_session_has_one_stream_of_its_own(server: HttpProcess, session: HttpSession) -> None:
    with server.wire() as wire:
        wire.send(session.request(None, {"accept": "text/event-stream"}, method="GET"))
        assert wire.head()[0] == 200
        again = server.ask(session.request(None, {"accept": "text/event-stream"}, method="GET"))
        assert told(again) == (409, INVALID)
        assert told(server.ask(session.request(None, {"accept": "application/json"}, method="GET"))) == (406, INVALID)


def test_a_client_that_only_asks_for_errors_gets_them_quickly(server: HttpProcess) -> None:
    with server.wire() as wire:
        for _ in range(200):
            assert wire.ask(modern_call("echo", {"mcp-method": "x"})).status == 400
            assert wire.ask(request(b"{", {"content-type": "text/plain"})).status == 415


# Heads that others on the way may have understood differently.


def head_of(*headers: tuple[str, str], target: str = "/mcp", version: str = "HTTP/1.1") -> bytes:
    """The head of a call without a Content-Length."""
    usual = [("host", "127.0.0.1"), ("accept", BOTH), ("content-type", "application/json")]
    routing = [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "echo")]
    own = {name for name, _ in headers}
    fields = [f"{name}: {value}" for name, value in (*usual, *routing) if name not in own]
    fields += [f"{name}: {value}" for name, value in headers if value]
    return "\r\n".join((f"POST {target} {version}", *fields, "", "")).encode("latin-1")


ECHO = modern_call("echo", message="x").partition(b"\r\n\r\n")[2]
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ECHO), ECHO)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize(
    ("codings", "status"),
    [
        (["chunked"], 200),
        (["Chunked"], 200),
        (["gzip, chunked"], 501),
        (["gzip , chunked"], 501),
        (["gzip", "chunked"], 501),
        (["identity, chunked"], 501),
        (["gzip"], 501),
        (["identity"], 501),
        (["xchunked"], 501),
        (["chunked, chunked"], 400),
        (["chunked", "chunked"], 400),
        (["chunked, gzip"], 400),
        ([", chunked"], 400),
        (["chunked;q=1"], 400),
        (['gzip;a="b,c", chunked'], 400),
        (["x y, chunked"], 400),
    ],
    ids=str,
)
def test_only_the_transfer_coding_chunked_is_understood(
    server: HttpProcess, codings: list[str], status: int, in_parts: bool
) -> None:
    head = head_of(*(("transfer-encoding", each) for each in codings))
    with server.wire() as wire:
        if in_parts:
            wire.send(head)
            answered = wire.ask(IN_CHUNKS) if status == 200 else wire.read()
        else:
            answered = wire.ask(head + IN_CHUNKS)
        assert answered.status == status
        if status != 200:
            assert answered.headers["connection"] == "close"
            assert wire.is_ended
    server.check_health()


def test_a_transfer_coding_in_http_1_0_is_refused(server: HttpProcess) -> None:
    head = head_of(("transfer-encoding", "chunked"), version="HTTP/1.0")
    assert server.ask(head + IN_CHUNKS).status == 400


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://127.0.0.1/mcp", "127.0.0.1", 200),
        ("HTTP://LOCALHOST:80/mcp", "localhost:80", 200),
        ("http://evil.example/mcp", "127.0.0.1", 400),
        ("http://evil.example/health", "127.0.0.1", 400),
        ("http://127.0.0.1/mcp", "evil.example", 400),
        ("http://evil.example/mcp", "evil.example", 421),
        ("http://evil.example/mcp", "", 400),
        ("http://127.0.0.1:81/mcp", "127.0.0.1", 400),
        ("http://user@127.0.0.1/mcp", "127.0.0.1", 400),
        ("http://127.0.0.1@evil.example/mcp", "127.0.0.1", 400),
        ("ftp://127.0.0.1/mcp", "127.0.0.1", 400),
        ("127.0.0.1:443", "127.0.0.1", 400),
    ],
)
def test_the_host_in_a_target_is_the_one_that_is_checked(
    server: HttpProcess, target: str, host: str, status: int
) -> None:
    head = head_of(("host", host), ("content-length", str(len(ECHO))), target=target)
    assert server.ask(head + ECHO).status == status
    server.check_health()

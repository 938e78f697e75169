"""Requests that come whole are answered by a shorter way than others. Nobody may be able to tell, but by the time."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.answers import text_in
from tests.support.examples import examples
from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, INITIALIZED, Response, Wire, message, modern, modern_call, request
from tests.support.served import path_of
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow
TOOLS = path_of("http_tools.py")


@pytest.fixture(scope="module")
def server() -> Iterator[HttpProcess]:
    with HttpProcess(TOOLS, settings={"response.max_response_bytes": 100_000_000}) as server:
        yield server
        server.check_health()


def in_parts(wire: Wire, data: bytes, *cuts: int) -> Response:
    """Ask in several packets, so that the request does not come whole."""
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        wire.send(data[begin:end])
        wire.wait_until_read()
    return wire.read()


def in_chunks(asked: bytes) -> bytes:
    """The same request, with a body whose length is not known beforehand."""
    head, _, body = asked.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    return b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        b"\r\n".join((*lines, b"transfer-encoding: chunked")),
        len(body),
        body,
    )


ECHO = modern_call("echo", message="hi")
ASKED = {
    "a call": ECHO,
    "an unknown tool": modern_call("nothing"),
    "bad arguments": modern_call("echo", message=1),
    "a list": modern("tools/list"),
    "what the kernel answers": modern("prompts/list"),
    "an unknown method": modern("no/such/method"),
    "headers that disagree": modern_call("echo", {"mcp-name": "other"}, message="hi"),
    "a name that is wrapped": modern_call("echo", {"mcp-name": "=?base64?ZWNobw==?="}, message="hi"),
    "a name with blanks": modern_call("echo", {"mcp-name": "  echo  "}, message="hi"),
    "another type": modern_call("echo", {"content-type": "text/plain"}, message="hi"),
    "a type with a charset": modern_call("echo", {"content-type": "application/json; charset=utf-8"}, message="hi"),
    "nothing acceptable": modern_call("echo", {"accept": "text/html"}, message="hi"),
    "JSON alone": modern_call("echo", {"accept": "application/json"}, message="hi"),
    "a subscription without streams": modern("subscriptions/listen", {}, {"accept": "application/json"}),
    "another host": modern_call("echo", {"host": "evil.example.org"}, message="hi"),
    "a page": modern_call("echo", {"origin": "http://localhost:3000"}, message="hi"),
    "another page": modern_call("echo", {"origin": "https://evil.example.org"}, message="hi"),
    "a page that is refused": modern_call("echo", {"origin": "http://localhost:3000", "accept": "text/html"}),
    "a page that reads a stream": modern(
        "tools/call",
        {"name": "report", "arguments": {"steps": 2, "seconds": 0.01}},
        {"origin": "http://localhost:3000"},
        meta={"progressToken": 1},
    ),
    "a page that asks first": request(None, {"origin": "http://localhost:3000"}, method="OPTIONS"),
    "a trace": modern_call("echo", {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, message="hi"),
    "no body": request(b"", {"mcp-protocol-version": "2026-07-28"}),
    "no JSON": request(b"{", {"mcp-protocol-version": "2026-07-28"}),
    "a notification": request(message("notifications/cancelled", {"requestId": 1}), {"mcp-method": "x"}),
    "no session": request(message("tools/list", id=1)),
    "a stream without a session": request(None, method="GET"),
    "the end of no session": request(None, method="DELETE"),
    "another method": request(None, method="PUT"),
    "health": request(None, method="GET", path="/health"),
    "a version": request(None, method="GET", path="/version"),
    "a message to health": request(b"{}", path="/health"),
    "an address that nothing is served at": request(b"{}", path="/nowhere"),
    "an unknown session": request(message("tools/list", id=1), {"mcp-session-id": "0" * 32}),
    "a query": ECHO.replace(b"/mcp ", b"/mcp?x=1 "),
    "an end": modern_call("echo", {"connection": "close"}, message="hi"),
    "an older version": ECHO.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a doubled header": ECHO.replace(b"\r\n\r\n", b"\r\nhost: 127.0.0.1\r\n\r\n"),
    "chunks": request(None, {"content-type": "application/json", "transfer-encoding": "chunked"})
    + b"1\r\n{\r\n0\r\n\r\n",
    "a call in chunks": in_chunks(ECHO),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_comes_whole_is_answered_as_what_comes_in_parts_is(server: HttpProcess, asked: bytes) -> None:
    with server.wire() as whole, server.wire() as other:
        assert whole.ask(ECHO).status == 200  # Its host is known from now on.
        first, second = whole.ask(asked), in_parts(other, asked, asked.index(b"\r\n\r\n") - 2)
        assert (first.status, _same(first)) == (second.status, _same(second))
        kept = [wire.ask(ECHO).status if response.headers.get("connection") != "close" else wire.is_ended
                for wire, response in ((whole, first), (other, second))]  # fmt: skip
        assert kept[0] == kept[1]


def _same(response: Response) -> object:
    """What must not differ: all but ids, times and lengths that follow from them."""
    headers = {name: value for name, value in response.headers.items() if name not in ("date", "content-length")}
    if not response.body:
        return headers, None
    said = response.message
    result, error = said.get("result") or {}, said.get("error")
    if error is not None:
        del error["data"]["correlationId"]
    return (
        headers,
        error,
        result.get("content") if not result.get("isError") else "an error",
        sorted(result),
    )


@given(cuts=st.lists(st.integers(1, len(ECHO) - 1), max_size=3, unique=True).map(sorted))
@settings(max_examples=examples(0.5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wherever_a_request_is_cut_it_is_answered(server: HttpProcess, cuts: list[int]) -> None:
    with server.wire() as wire:
        for _ in range(2):
            assert text_in(in_parts(wire, ECHO, *cuts)) == {"message": "hi"}


def test_requests_on_one_connection_are_answered_in_order_whatever_each_takes(server: HttpProcess) -> None:
    asked = [
        modern_call("nap", id=1, seconds=0.2),
        modern_call("echo", id=2, message="quick"),
        modern_call("nap", id=3, seconds=0.0),
        request(None, method="GET", path="/health"),
        modern_call("report", id=5, steps=2, seconds=0.01),
        modern_call("echo", id=6, message="last"),
    ]
    with server.wire() as wire:
        assert wire.ask(ECHO).status == 200
        wire.send(b"".join(asked))
        answers = [wire.read() for _ in asked]
    assert [answer.message.get("id") if index != 3 else answer.status for index, answer in enumerate(answers)] == [
        *(1, 2, 3, 200, 5, 6)
    ]


def test_a_request_that_follows_on_a_slow_one_waits_for_its_turn(server: HttpProcess) -> None:
    with server.wire() as wire:
        wire.send(modern_call("nap", id=1, seconds=0.3))
        wire.wait_until_read()
        wire.send(modern_call("echo", id=2, message="after"))
        assert [wire.read().message["id"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    "last",
    [modern("tools/list", None, {"connection": "close"}), modern_call("nap", {"connection": "close"}, seconds=0)],
    ids=["answered at once", "answered later"],
)
def test_what_follows_on_the_last_request_is_not_done(last: bytes) -> None:
    with HttpProcess(TOOLS) as server:
        with server.wire() as wire:
            assert wire.ask(ECHO).status == 200
            assert wire.ask(last + modern_call("who") + request(None, method="GET", path="/health")).status == 200
            assert wire.is_ended
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "who" not in server.records()


@pytest.mark.parametrize("waiting", [b"", request(None, method="GET", path="/health")], ids=["alone", "with another"])
def test_who_leaves_takes_the_call_along_at_once(waiting: bytes) -> None:
    # Whoever writes to the connection would notice as well, but only after a longer silence.
    with HttpProcess(TOOLS, extra={"NO_PINGS": "1"}) as server:
        assert server.get("/health").status == 200  # Its host is known from now on.
        with server.wire() as wire:
            wire.send(modern_call("wait") + waiting)
            server.wait_for_log("under way")
        server.wait_for_log("tool call completed")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.records() == {"wait": ["aborted"]}


def test_who_asks_and_never_reads_is_not_answered_without_end() -> None:
    wanted = modern_call("repeat", text="x" * 1000, times=900)
    with HttpProcess(TOOLS) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.settimeout(2)
            with pytest.raises(TimeoutError):  # Nearly a megabyte for each: then no more is read either.
                deaf.sendall(wanted * 20_000)
        server.wait_for_log("tool call completed")
        server.signal(signal.SIGTERM)
        server.wait()
        assert len(server.records()["repeat"]) < 100


@pytest.mark.parametrize("seconds", [0.0, 0.12, 0.5], ids=["at once", "after a while", "as a stream"])
def test_calls_in_a_session_are_answered_however_long_they_take(server: HttpProcess, seconds: float) -> None:
    with server.wire() as wire:
        opened = wire.ask(request(INITIALIZE))
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        assert wire.ask(request(INITIALIZED, session)).status == 202
        call = request(message("tools/call", {"name": "nap", "arguments": {"seconds": seconds}}, id=7), session)
        for _ in range(2):
            answered = wire.ask(call)
            assert (answered.status, answered.message["id"]) == (200, 7)
            assert answered.headers["mcp-session-id"] == session["mcp-session-id"]
            is_stream = answered.headers["content-type"].startswith("text/event-stream")
            assert is_stream == (seconds > 0.3)


def test_a_connection_is_not_idle_because_of_what_was_answered_before_in_the_same_packet() -> None:
    with HttpProcess(TOOLS, settings={"http.keep_alive_ms": 1000}) as server, server.wire() as wire:
        assert wire.ask(ECHO).status == 200
        wire.send(modern("tools/list", id=1) + modern_call("nap", id=2, seconds=2.5))
        assert [wire.read().message["id"] for _ in range(2)] == [1, 2]


def test_what_is_wrong_with_a_request_is_not_the_answer_to_the_one_before(server: HttpProcess) -> None:
    nowhere = b"GET http://elsewhere HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with server.wire() as wire:
        assert wire.ask(ECHO).status == 200
        wire.send(modern_call("nap", seconds=0.3) + nowhere + ECHO)
        assert [wire.read().status, wire.read().status] == [200, 400]
        assert wire.is_ended
    assert server.ask(nowhere).status == 400


def test_who_has_sent_everything_is_not_told_to_go_on(server: HttpProcess) -> None:
    head = request(None, {"content-type": "application/json", "transfer-encoding": "chunked"})
    with server.wire() as wire:
        assert wire.ask(ECHO).status == 200
        wire.send(head + b"1\r\n{\r\n0\r\nexpect: 100-continue\r\n\r\n")
        assert wire.head()[0] == 400


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in parts"])
def test_who_says_at_the_very_end_that_it_was_the_last_request_is_believed(server: HttpProcess, is_whole: bool) -> None:
    head = request(None, {"content-type": "application/json", "transfer-encoding": "chunked"})
    asked = head + b"1\r\n{\r\n0\r\nconnection: close\r\n\r\n"
    with server.wire() as wire:
        assert wire.ask(ECHO).status == 200
        assert in_parts(wire, asked, *(() if is_whole else (len(head) + 1,))).status == 400
        assert wire.is_ended


@pytest.mark.parametrize("begun", [ECHO[:20], ECHO[:-5]], ids=["half a head", "half a body"])
def test_who_asks_ahead_and_stops_halfway_loses_no_answer_but_the_one_it_did_not_ask_for(begun: bytes) -> None:
    settings = {"http.read_timeout_ms": 1000}
    with HttpProcess(TOOLS, settings=settings) as server, server.wire() as stays, server.wire() as goes_on:
        for wire in (stays, goes_on):
            wire.send(modern_call("nap", id=1, seconds=3) + begun)
        assert goes_on.read().message["id"] == 1  # The time for the next begins here.
        assert goes_on.ask(ECHO[len(begun) :]).status == 200
        assert (stays.read().message["id"], stays.read().status) == (1, 408)
        assert stays.is_ended


def test_who_was_answered_before_it_had_sent_everything_is_not_answered_again(server: HttpProcess) -> None:
    with server.wire() as wire:
        assert wire.ask(request(b"{}", {"content-length": "100"}, path="/nowhere")).status == 404
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.is_ended


LAST_REQUESTS = {
    "a call": ECHO,
    "a call that takes a moment": modern_call("nap", seconds=0.01),
    "a call on a thread": modern_call("doze", seconds=0.01),
    "several": modern_call("nap", seconds=0.01) * 3,
    "what the kernel answers": modern("prompts/list"),
    "a session": request(INITIALIZE),
    "the metrics": request(None, method="GET", path="/metrics"),
    "an older version": request(None, method="GET", path="/metrics", version="HTTP/1.0"),
    "the beginning of another": modern_call("nap", seconds=0.01) + ECHO[:20],
}


@pytest.mark.parametrize("asked", LAST_REQUESTS.values(), ids=LAST_REQUESTS)
def test_who_says_that_it_sends_no_more_is_still_answered(server: HttpProcess, asked: bytes) -> None:
    assert server.ask(request(INITIALIZE)).status == 200  # What takes long the first time is done.
    with server.wire() as wire:
        wire.send(asked)
        wire.socket.shutdown(socket.SHUT_WR)
        for _ in range(asked.count(b"content-length") or 1):
            assert wire.read().status in (200, 404)  # There are no prompts.
        assert wire.is_ended


def test_who_says_that_it_sends_no_more_is_not_waited_for_long() -> None:
    with HttpProcess(TOOLS) as server, server.wire() as wire:
        wire.send(modern_call("wait"))
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.is_ended
        server.wait_for_log("tool call completed")  # It was told to end.


@pytest.mark.parametrize("ahead", [ECHO, ECHO * 10, ECHO[:-5]], ids=["a request", "several", "half a body"])
def test_who_asks_ahead_and_leaves_is_missed(ahead: bytes) -> None:
    with HttpProcess(TOOLS) as server:
        with server.wire() as wire:
            wire.send(modern_call("wait"))
            server.wait_for_log("under way")
            wire.send(ahead)
            wire.wait_until_read()
        server.wait_for_log("tool call completed")
    assert server.records() == {"wait": ["aborted"]}


def test_what_one_connection_asks_for_is_not_read_without_end() -> None:
    asked = modern_call("nap", seconds=0.01) * 500
    with HttpProcess(TOOLS) as server, server.wire() as wire:
        assert wire.ask(ECHO).status == 200
        wire.socket.settimeout(2)
        with pytest.raises(TimeoutError):  # A hundred are answered in a second, and with each a packet was read.
            _send_often(wire, asked, 200)
        wire.socket.settimeout(PATIENCE)
        assert [wire.read().status for _ in range(100)] == [200] * 100


def _send_often(wire: Wire, data: bytes, times: int) -> None:
    for _ in range(times):
        wire.send(data)

"""The load generator knows where an answer ends, and takes no wrong one for an answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from bench.http_load import Answer, Expected, Requests, call_for, close_session, drive, is_whole, open_session
from bench.process import BenchError

BODY = b'{"jsonrpc":"2.0","id":1000000,"result":{"content":[{"type":"text","text":"null"}],"isError":false}}'
EVENTS = (
    b'event: message\r\ndata: {"method":"notifications/message"}\r\n\r\nevent: message\r\ndata: ' + BODY + b"\r\n\r\n"
)


def _plain(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def _chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


WHOLE = {
    "with a length": _plain(BODY),
    "in chunks": _chunked(EVENTS[:10], EVENTS[10:]),
    "with no body": b"HTTP/1.1 204 No Content\r\nserver: any\r\n\r\n",
    "with an empty body": _plain(b"", "202 Accepted"),
    "with what looks like the last chunk": _chunked(b"\r\n0\r\n\r\n" + EVENTS),
}


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_an_answer_is_whole_at_its_last_byte_and_not_before(data: bytes) -> None:
    assert [end for end in range(len(data) + 1) if is_whole(data[:end])] == [len(data)]


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_more_than_one_answer_spoils_the_run(data: bytes) -> None:
    with pytest.raises(BenchError, match=f"{len(data)} bytes more than one answer"):
        is_whole(data + data)


def test_a_chunk_without_a_size_spoils_the_run() -> None:
    with pytest.raises(BenchError, match="not the size of a chunk: b'none'"):
        is_whole(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n")


def test_the_message_is_the_body_or_the_last_event_of_a_stream() -> None:
    plain, stream = Answer.read(_plain(BODY)), Answer.read(_chunked(EVENTS[:10], EVENTS[10:]))
    assert (plain.status, plain.headers["content-length"], plain.message) == (200, str(len(BODY)), BODY)
    assert (stream.body, stream.message) == (EVENTS, BODY)


@pytest.mark.parametrize("data", [_plain(BODY), _chunked(EVENTS)], ids=["JSON", "stream"])
def test_the_right_answer_is_taken(data: bytes) -> None:
    Expected(("null",)).check(1_000_000, data)


@pytest.mark.parametrize(
    "data",
    [
        _plain(BODY.replace(b"1000000", b"1000001")),
        _plain(BODY.replace(b"false", b"true")),
        _plain(BODY.replace(b"null", b"nothing")),
        _plain(b'{"jsonrpc":"2.0","id":1000000,"result":{"content":[]}}'),
        _plain(b'{"jsonrpc":"2.0","id":1000000,"result":{}}'),
        _plain(b'{"jsonrpc":"2.0","id":1000000,"error":{"code":-32603,"message":"no"}}'),
        _plain(BODY[:-1]),
        _plain(BODY, "503 Service Unavailable"),
        _chunked(),
        _chunked(b'data: {"method":"notifications/message"}\r\n\r\n'),
    ],
    ids=["id", "tool error", "text", "no text", "no content", "error", "cut", "status", "empty stream", "no result"],
)
def test_a_wrong_answer_is_found_out(data: bytes) -> None:
    with pytest.raises(BenchError, match="call 1000000 was answered with"):
        Expected(("null",)).check(1_000_000, data)


def test_a_constant_answer_must_be_the_same_to_the_byte() -> None:
    Expected(constant=BODY).check(1, _plain(BODY))
    with pytest.raises(BenchError, match="call 1 was answered with"):
        Expected(constant=BODY).check(1, _plain(BODY + b" "))


Respond = Callable[[bytes, int], bytes]


@contextmanager
def _serving(respond: Respond) -> Iterator[int]:
    """A server that gives its answers to the bytes of each request and its number, in two pieces; b"" closes."""
    numbers = count(1)

    def attend(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while request := connection.recv(1 << 16):
                answer = respond(request, next(numbers))
                if not answer:
                    return
                connection.sendall(answer[:20])
                connection.sendall(answer[20:])

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=attend, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _message(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


def _echo(request: bytes, _: int) -> bytes:
    return _plain(BODY.replace(b"1000000", b"%d" % _message(request)["id"]))


def _load(port: int, connections: int = 3, seconds: float = 0.05) -> int:
    sessions = [None] * connections
    return len(call_for(seconds, port, sessions, count(1_000_000), Expected(("null",))).latencies)


def test_every_call_on_every_connection_is_timed() -> None:
    asked: list[int] = []

    def respond(request: bytes, number: int) -> bytes:
        asked.append(_message(request)["id"])
        return _echo(request, number)

    with _serving(respond) as port:
        calls = _load(port)
    assert calls >= 3
    assert sorted(asked) == list(range(1_000_000, 1_000_000 + calls))


def test_there_are_two_calls_however_short_the_time() -> None:
    with _serving(_echo) as port:
        assert _load(port, connections=1, seconds=0.0) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_plain(BODY.replace(b"1000000", b"7")), "was answered with"),
        (_plain(BODY) * 2, "bytes more than one answer"),
        (b"", "the server closed a connection"),
        (_plain(BODY)[:50], "no answer on 1 connections"),
    ],
    ids=["an answer to something else", "two answers", "no answer", "half an answer"],
)
def test_one_bad_answer_among_good_ones_spoils_the_run(
    wrong: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.http_load._RUN_LIMIT", 0.6)

    def respond(request: bytes, number: int) -> bytes:
        return wrong if number == 3 else _echo(request, number)

    with _serving(respond) as port, pytest.raises(BenchError, match=words):
        _load(port)


def test_who_waits_alone_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.http_load._RUN_LIMIT", 0.3)
    with _serving(lambda *_: _plain(BODY)[:50]) as port, pytest.raises(BenchError, match="no answer for 0 s"):
        _load(port, connections=1)


def test_a_request_of_either_era_says_so_in_its_headers() -> None:
    requests = Requests(80)
    modern, handshake = (b"1000000".join(requests.call(session)) for session in (None, "1000000"))
    assert b"\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: noop\r\n" in modern
    assert b"\r\nMCP-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: 1000000\r\n" in handshake
    for request in (modern, handshake):
        head, _, body = request.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert json.loads(body)["id"] == 1_000_000
    assert _message(modern)["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


OPENED = _plain(b'{"id":1000000,"result":{"protocolVersion":"2025-11-25"}}', "200 OK", "Mcp-Session-Id: Ab1")
ACCEPTED = _plain(b"", "202 Accepted")


def test_a_session_is_opened_and_ended() -> None:
    asked: list[bytes] = []

    def respond(request: bytes, number: int) -> bytes:
        asked.append(request)
        return (OPENED, ACCEPTED, _plain(b""))[number - 1]

    opened: list[str] = []
    with _serving(respond) as port:
        drive(port, [open_session(Requests(port), opened)])
        drive(port, [close_session(Requests(port), opened[0])])
    assert opened == ["Ab1"]
    assert [request.split()[0] for request in asked] == [b"POST", b"POST", b"DELETE"]
    assert [b"Mcp-Session-Id: Ab1" in request for request in asked] == [False, True, True]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([_plain(BODY)], "initialize was answered with 200"),
        ([_plain(BODY, "200 OK", "Mcp-Session-Id: a")], "initialize was answered with 200"),
        ([_plain(b"full", "503 Service Unavailable")], "initialize was answered with 503: b'full'"),
        ([OPENED, _plain(b"", "404 Not Found")], "initialized was answered with 404"),
    ],
    ids=["no session", "no version", "refused", "not accepted"],
)
def test_a_session_that_cannot_be_opened_spoils_the_run(answers: list[bytes], words: str) -> None:
    with (
        _serving(lambda _, number: answers[number - 1]) as port,
        pytest.raises(BenchError, match=words),
    ):
        drive(port, [open_session(Requests(port), [])])


def test_a_session_that_cannot_be_ended_spoils_the_run() -> None:
    with (
        _serving(lambda *_: _plain(b"", "405 Method Not Allowed")) as port,
        pytest.raises(BenchError, match="DELETE was answered with 405"),
    ):
        drive(port, [close_session(Requests(port), "any")])

"""What the server's own protocol does with an application that takes requests as they are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman.edge.asgi import PlainApplication, Post, WholeHead, answer
from dragoman.edge.http.listening import BACKLOG, bind, bind_file
from dragoman.edge.http.messages import AnswerError
from dragoman.edge.http.server import HttpServer
from dragoman.edge.settings import HttpConfig
from tests.support.http_serving import listening, serving
from tests.support.http_wire import modern_call
from tests.support.tcp_queues import most_waiting
from tests.support.waiting import PATIENCE


async def fail(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("it was taken")


class Defective(PlainApplication):
    """Answers with a header that has two lines, and then says that this went wrong."""

    endpoint = "/mcp"
    refused = 0

    def __init__(self) -> None:
        super().__init__(fail)

    def take(self, post: Post, head: WholeHead, body: bytes) -> bool:
        try:
            post.answer(200, b"fine", ((b"x-name", b"one\r\nset-cookie: two"),))
        except AnswerError:
            self.refused += 1
            post.answer(500, b"wrong", ())
        return True


async def test_an_answer_that_cannot_be_sent_leaves_room_for_another() -> None:
    app = Defective()
    async with asyncio.timeout(PATIENCE), listening(HttpServer(app, HttpConfig())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 500 ")
            assert b"set-cookie" not in head
            assert await reader.readexactly(5) == b"wrong"
        assert app.refused == 2
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, pytest.importorskip("uvloop").new_event_loop])
def test_a_burst_of_connections_waits_to_be_accepted(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def serve() -> None:
        sock = bind("127.0.0.1", 0)
        before = most_waiting(sock)
        async with listening(HttpServer(Defective(), HttpConfig()), sock):
            assert most_waiting(sock) == before >= min(BACKLOG, somaxconn)

    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text("ascii"))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


mark: ContextVar[str] = ContextVar("mark", default="none")


@dragoman.tool
async def leave_mark(text: str) -> str:
    """Sets a context variable, and returns what it was."""
    before = mark.get()
    mark.set(text)
    await asyncio.sleep(0)
    return before


async def marked(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, 200, (await leave_mark(scope["path"])).encode())


async def read_bodies(port: int, *asked: bytes) -> list[bytes]:
    """Send all requests at once; the bodies of the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(asked))
    bodies = []
    for _ in asked:
        head = await reader.readuntil(b"\r\n\r\n")
        bodies.append(await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0])))
    writer.close()
    await writer.wait_closed()
    return bodies


async def test_a_call_sees_no_context_variable_of_the_one_that_was_sent_before_it() -> None:
    async with serving([leave_mark]) as here:
        bodies = await read_bodies(here.port, *(modern_call("leave_mark", id=number, text="a") for number in range(3)))
    assert [msgspec.json.decode(body)["result"]["content"][0]["text"] for body in bodies] == ["none", "none", "none"]


async def test_an_application_sees_no_context_variable_of_the_request_before() -> None:
    server = HttpServer(PlainApplication(marked), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        asked = b"GET /a HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert await read_bodies(port, asked, asked, asked) == [b"none", b"none", b"none"]


async def say_hi(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, 200, b"hi")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")
async def test_a_server_that_stops_leaves_a_socket_file_to_the_others_that_serve_it(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    sock = bind_file(path)
    first, second = (HttpServer(PlainApplication(say_hi), HttpConfig()) for _ in range(2))
    async with asyncio.timeout(PATIENCE), listening(second, sock.dup()):
        await first.start(sock)
        await first.stop()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()

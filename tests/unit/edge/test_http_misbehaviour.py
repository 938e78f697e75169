"""Clients and applications that do what none should: each costs a connection at most, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextvars import ContextVar
from typing import Any

import pytest

from dragoman.edge.asgi import PlainApplication, Post, WholeHead, answer
from dragoman.edge.http.connection import HttpState
from dragoman.edge.http.protocol import HttpProtocol
from dragoman.edge.http.server import HttpServer
from dragoman.edge.settings import HttpConfig
from dragoman.testing.clock import ManualClock
from tests.support.http_serving import listening
from tests.support.waiting import PATIENCE, until

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
LARGE = 20_000_000
MAY_READ: ContextVar[asyncio.Event] = ContextVar("may_read")


async def serve_paths(scope: Any, receive: Any, send: Any) -> None:
    """Answer in the way that the path names."""
    path = scope["path"]
    if path == "/fails":
        raise RuntimeError("It was asked to")
    if path == "/bad-length":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"many")]})
    elif path == "/unknown":
        await send({"type": "http.response.debug"})
    elif path == "/medium":
        await answer(send, 200, b"x" * 100_000)
    elif path == "/counts":
        await MAY_READ.get().wait()
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        await answer(send, 200, b"%d" % size)
    elif path == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(300):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    elif path == "/begins":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await receive()
        await send({"type": "http.response.body", "body": b"hi"})
    elif path == "/unread":
        await answer(send, 404, b"no")
    elif path == "/unread-large":
        await answer(send, 404, b"x" * LARGE)
    else:
        await answer(send, 200, path.encode() + b"?" + scope["query_string"])


async def whole(reader: asyncio.StreamReader, *, is_head: bool = False) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split()[1]), b"" if is_head else await reader.readexactly(length)


async def only(server: HttpServer) -> HttpProtocol:
    await until(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    return connection


@pytest.mark.parametrize("path", [b"/fails", b"/bad-length", b"/unknown"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_an_application_that_cannot_answer_costs_one_request(method: bytes, path: bytes) -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.replace(b"GET / ", b"%b %b " % (method, path)) + GET)
        status, _ = await whole(reader, is_head=method == b"HEAD")
        assert status == 500
        assert await whole(reader) == (200, b"/?")
        writer.close()


class Taking(PlainApplication):
    """Takes requests and answers them later; one whose body says so makes it fail."""

    endpoint = "/mcp"

    def __init__(self) -> None:
        super().__init__(serve_paths)
        self.posts: list[Post] = []
        self.gone = 0

    def take(self, post: Post, head: WholeHead, body: bytes) -> bool:
        if body == b"fail":
            raise RuntimeError("It was asked to")
        self.posts.append(post)
        post.on_gone = self.count
        return True

    def count(self) -> None:
        self.gone += 1


async def test_a_request_that_cannot_be_taken_does_not_trouble_the_answer_to_the_one_before() -> None:
    app = Taking()
    server = HttpServer(app, HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
        writer.write(head + b"fine" + head + b"fail" + head + b"more")
        await until(lambda: len(app.posts) == 1)
        app.posts[0].answer(200, b"fine")
        app.posts[0].answer(500, b"twice")
        assert await whole(reader) == (200, b"fine")
        assert await reader.read() == b""
        assert (len(app.posts), app.gone) == (1, 0)
        writer.close()


async def test_a_client_that_leaves_is_told_of_once_and_what_is_answered_after_that_is_dropped() -> None:
    app = Taking()
    server = HttpServer(app, HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nfine")
        await until(lambda: app.posts)
        writer.transport.abort()
        await until(lambda: not server.connections)
        app.posts[0].answer(200, b"late")
        app.posts[0].go_on(serve_paths)
        assert app.gone == 1


async def test_the_rest_of_a_body_is_read_after_the_client_has_read_its_answer() -> None:
    """Nothing is read for a client that does not read: the rest waits, until reading is paused as well."""
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = await only(server)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"POST /unread-large HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3000000\r\n\r\n")
        await until(lambda: connection.line.unread_since is not None)
        assert connection.connection.state is HttpState.BODY_ANSWERED
        writer.write(b"x" * 3_000_000 + GET)
        await until(lambda: not connection.line.is_read)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await whole(reader))[0] == 404
        assert await whole(reader) == (200, b"/?")
        writer.close()


async def test_all_that_was_asked_is_answered_if_the_client_ends_before_it_reads() -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig(), ManualClock())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = await only(server)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/ ", b"/medium ") * 200)
        await until(lambda: connection.line.unread_since is not None and not server._shared.tasks)
        assert connection.connection.state is HttpState.IDLE
        writer.write_eof()
        await until(lambda: connection.connection._is_ended != "no")
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            assert (await whole(reader))[0] == 200
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("path", [b"/unread", b"/fails"])
async def test_a_client_that_still_sends_sees_the_last_answer_and_an_end(path: bytes) -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100\r\n\r\n" % path
        writer.write(head)
        assert (await whole(reader))[0] in (404, 500)
        assert await reader.read() == b""
        assert len(server.connections) == 1  # It is still read: what comes now must not reset it.
        writer.write(b"x" * 100)
        writer.close()
        await until(lambda: not server.connections)


async def test_a_last_answer_is_followed_by_an_end_even_if_the_client_has_sent_more_than_is_read() -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"x" * LARGE)
        assert await whole(reader) == (200, b"/?")
        assert await reader.read() == b""
        await writer.drain()
        writer.close()


async def test_the_path_of_a_whole_address_ends_where_its_query_begins() -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for target, seen in ((b"http://localhost?to=/admin", b"/?to=/admin"), (b"http://localhost/a?b=/c", b"/a?b=/c")):
            writer.write(GET.replace(b" / ", b" %b " % target))
            assert await whole(reader) == (200, seen)
        writer.close()


async def test_a_client_that_resets_its_connection_does_not_keep_others_from_being_watched() -> None:
    clock = ManualClock()
    server = HttpServer(PlainApplication(serve_paths), HttpConfig(read_timeout_ms=1000), clock)
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /unread HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx")
            connection = await only(server)
            await until(lambda: connection.connection.state is HttpState.BODY_ANSWERED)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        clock.advance(2.0)  # Before the loop has had a turn to notice.
        assert connection.connection.state is HttpState.CLOSED
        await until(lambda: not server.connections)


async def test_a_body_that_nobody_asks_for_is_not_read_and_its_client_is_not_late() -> None:
    MAY_READ.set(asyncio.Event())
    clock = ManualClock()
    server = HttpServer(PlainApplication(serve_paths), HttpConfig(read_timeout_ms=1000), clock)
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = await only(server)
        writer.write(
            b"POST /counts HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000000\r\n\r\n" + b"x" * LARGE + GET
        )
        await until(lambda: not connection.line.is_read)
        clock.advance(5)
        MAY_READ.get().set()
        assert await whole(reader) == (200, b"20000000")
        assert await whole(reader) == (200, b"/?")
        writer.close()


async def test_thousands_of_requests_ahead_are_answered_and_so_are_those_after_them() -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = await only(server)
        writer.write(GET * 3000)
        await until(lambda: not connection.line.is_read)
        for _ in range(3000):
            assert await whole(reader) == (200, b"/?")
        writer.write(GET)
        assert await whole(reader) == (200, b"/?")
        writer.close()


@pytest.mark.parametrize("reads_on", [True, False])
async def test_an_application_waits_for_a_client_that_does_not_read_and_ends_when_it_leaves(reads_on: bool) -> None:
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = await only(server)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/ ", b"/endless "))
        await until(lambda: connection.line.unread_since is not None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert connection.line.transport.get_write_buffer_size() < 300_000
        if reads_on:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            await reader.readexactly(LARGE)
        writer.transport.abort()
        await until(lambda: not server._shared.tasks)


@pytest.mark.parametrize(
    ("path", "body"), [(b"/begins", b""), (b"/counts", b"x")], ids=["has begun to answer", "has the body"]
)
async def test_a_client_is_not_told_to_go_on_by_a_server_that(path: bytes, body: bytes) -> None:
    MAY_READ.set(asyncio.Event())
    MAY_READ.get().set()
    server = HttpServer(PlainApplication(serve_paths), HttpConfig())
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n" % path
        writer.write(head + body)
        await until(lambda: server._shared.tasks or body)
        connection = await only(server)
        await until(lambda: connection.connection.state.name in ("BODY_ANSWERING", "IDLE"))
        writer.write(b"x" if not body else b"")
        assert (await whole(reader))[0] == 200
        writer.close()

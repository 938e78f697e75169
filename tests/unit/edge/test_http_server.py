"""What the server's own protocol does with an application that takes requests as they are."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.edge.asgi import Header, Post
from dragoman.edge.http.server import HttpServer, bind
from dragoman.edge.settings import HttpConfig
from tests.support.waiting import PATIENCE


class Defective:
    """Answers with a header that has two lines, and then says that this went wrong."""

    endpoint = "/mcp"
    refused = 0

    def take(self, post: Post, pairs: list[Header], body: bytes) -> bool:
        try:
            post.answer(200, b"fine", ((b"x-name", b"one\r\nset-cookie: two"),))
        except ValueError:
            self.refused += 1
            post.answer(500, b"wrong", ())
        return True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was taken")


async def test_an_answer_that_cannot_be_sent_leaves_room_for_another() -> None:
    app = Defective()
    listening = bind("127.0.0.1", 0)
    server = HttpServer(app, HttpConfig())
    serving = asyncio.create_task(server.serve([listening]))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 500 ")
            assert b"set-cookie" not in head
            assert await reader.readexactly(5) == b"wrong"
        assert app.refused == 2
        writer.close()
        await writer.wait_closed()
        server.should_exit = True
        await serving

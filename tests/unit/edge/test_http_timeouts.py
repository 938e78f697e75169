"""How long clients may take, by a clock that stands still until a test says otherwise."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from dragoman.edge.asgi import PlainApplication, answer
from dragoman.edge.http.server import HttpServer
from dragoman.edge.settings import HttpConfig
from dragoman.testing.clock import ManualClock
from tests.support.http_serving import listening
from tests.support.waiting import PATIENCE, until

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhello"
SETTINGS = HttpConfig(read_timeout_ms=30_000, write_timeout_ms=60_000, keep_alive_ms=75_000)


class Slow:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/unread":
            await answer(send, 200, b"hi")
            return
        while (await receive()).get("more_body"):
            pass
        self.asked.set()
        if scope["path"] == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        if scope["path"] == "/later":
            await self.may_answer.wait()
        await answer(send, 200, b"x" * 10_000_000 if scope["path"] == "/large" else b"hi")


class Scene:
    """A server whose clock stands still, and one client of it."""

    def __init__(self, app: Slow, server: HttpServer, clock: ManualClock) -> None:
        self.app, self.server, self.clock = app, server, clock
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, half a second at a time, as the server looks at the clock."""
        await until(lambda: len(self.server.connections) == 1)
        for _ in range(int(seconds * 2)):
            self.clock.advance(0.5)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    app, clock = Slow(), ManualClock()
    server = HttpServer(PlainApplication(app), SETTINGS, clock)
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        here = Scene(app, server, clock)
        here.reader, here.writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(server.connections) == 1)
        yield here
        here.writer.transport.abort()


async def read(here: Scene) -> None:
    """Return when the server has read what was sent last."""
    (connection,) = here.server.connections
    await until(lambda: connection.connection.ahead > 0 or connection.connection.state.name not in ("IDLE", "HEAD"))


@pytest.mark.parametrize("sent", [b"", GET[:10], HALF_A_BODY], ids=["nothing", "half a head", "half a body"])
async def test_a_client_that_takes_too_long_to_send_a_request_is_told_so(sent: bytes) -> None:
    async with scene() as here:
        here.send(sent)
        if sent:
            await read(here)
        await here.pass_time(30)
        assert len(here.server.connections) == 1
        await here.pass_time(1)
        assert await here.status() == 408
        assert await here.reader.read() == b""


async def test_the_time_for_a_request_begins_with_its_first_byte() -> None:
    async with scene() as here:
        here.send(GET)
        assert await here.status() == 200
        await here.pass_time(60)
        here.send(GET[:10])
        await read(here)
        await here.pass_time(29)
        here.send(GET[10:])
        assert await here.status() == 200


@pytest.mark.parametrize(("before", "times"), [(b"", 2), (GET, 5)], ids=["at first", "after a request"])
async def test_empty_lines_give_a_client_no_more_time(before: bytes, times: int) -> None:
    async with scene() as here:
        here.send(before)
        if before:
            assert await here.status() == 200
        (connection,) = here.server.connections
        for _ in range(times):
            skipped = connection.connection._skipped
            here.send(b"\r\n")
            await until(lambda before=skipped: connection.connection._skipped > before)  # type: ignore[misc]
            await here.pass_time(18)
        if not before:
            assert await here.status() == 408
        assert await here.reader.read() == b""


async def test_a_connection_whose_request_was_answered_before_its_end_is_idle_like_any_other() -> None:
    async with scene() as here:
        here.send(HALF_A_BODY.replace(b"/ ", b"/unread "))
        assert await here.status() == 200
        here.send(b"world")
        (connection,) = here.server.connections
        await until(lambda: connection.connection.state.name == "IDLE")
        await here.pass_time(76)
        assert await here.reader.read() == b""


async def test_a_request_that_came_slowly_was_not_waited_for_when_its_client_ends() -> None:
    async with scene() as here:
        path = GET.replace(b"/ ", b"/later ")
        here.send(path[:10])
        (connection,) = here.server.connections
        await until(lambda: connection.connection.state.name == "HEAD")
        here.clock.advance(10)
        here.send(path[10:])
        await here.app.asked.wait()
        here.writer.write_eof()
        await until(lambda: connection.connection._is_ended != "no")
        here.app.may_answer.set()
        assert await here.status() == 200


async def test_a_connection_that_nobody_uses_is_closed_without_a_word() -> None:
    async with scene() as here:
        here.send(GET)
        assert await here.status() == 200
        await here.pass_time(75)
        here.send(GET)
        assert await here.status() == 200
        await here.pass_time(76)
        assert await here.reader.read() == b""


async def test_a_client_that_waits_for_its_answer_is_neither_late_nor_idle() -> None:
    async with scene() as here:
        here.send(GET.replace(b"/ ", b"/later ") + GET[:10])
        await here.app.asked.wait()
        await here.pass_time(300)
        here.app.may_answer.set()
        assert await here.status() == 200
        await here.pass_time(29)  # The time for the next one begins when it is its turn.
        here.send(GET[10:])
        assert await here.status() == 200


async def test_a_client_that_does_not_read_is_dropped() -> None:
    async with scene() as here:
        here.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        here.writer.transport.pause_reading()  # type: ignore[attr-defined]
        here.send(GET.replace(b"/ ", b"/large "))
        (connection,) = here.server.connections
        await until(lambda: connection.line.unread_since is not None)
        await here.pass_time(60)
        assert len(here.server.connections) == 1
        here.clock.advance(0.5)
        await until(lambda: not here.server.connections)


async def test_a_client_that_has_asked_for_the_last_time_is_answered_and_not_waited_for_long() -> None:
    async with scene() as here:
        here.send(GET.replace(b"/ ", b"/wait "))
        await here.app.asked.wait()
        here.writer.write_eof()
        (connection,) = here.server.connections
        await until(lambda: connection._is_half_closed)
        assert not here.app.left.is_set()
        await here.pass_time(1.5)
        await here.app.left.wait()


async def test_a_client_that_ends_after_a_while_has_left() -> None:
    async with scene() as here:
        here.send(GET.replace(b"/ ", b"/wait "))
        await here.app.asked.wait()
        here.clock.advance(0.2)
        here.writer.write_eof()
        await here.app.left.wait()


async def test_a_client_that_is_refused_may_go_on_sending_for_a_while() -> None:
    async with scene() as here:
        here.send(b"nonsense\r\n\r\n")
        assert await here.status() == 400
        here.send(b"x" * 100_000)
        await here.pass_time(5)
        assert len(here.server.connections) == 1
        here.clock.advance(0.5)
        await until(lambda: not here.server.connections)


async def test_a_server_without_clients_does_not_look_at_the_clock() -> None:
    clock = CountedClock(datetime(2026, 11, 17, 18, 0, tzinfo=UTC))
    server = HttpServer(PlainApplication(Slow()), SETTINGS, clock)
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        for day in (17, 18):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET.replace(b"/ ", b"/unread "))
            head = await reader.readuntil(b"\r\n\r\n")
            assert f"date: {'Tue' if day == 17 else 'Wed'}, {day} Nov 2026 18:00:00 GMT".encode() in head
            writer.transport.abort()
            await until(lambda: not server.connections)
            clock.advance(1)
            before = clock.timers
            clock.advance(86_399)
            assert clock.timers == before


class CountedClock(ManualClock):
    """Counts the timers that were asked for."""

    timers = 0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.timers += 1
        return super().call_later(seconds, callback)

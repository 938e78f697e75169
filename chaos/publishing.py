"""A process that publishes messages on the bus of the servers, and knows none of them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import msgspec

from chaos.servers import SERVED, Place
from dragoman.messaging.bus import BusMessage

_STOP_LIMIT = 60.0


class Publisher:
    """The process, and the messages that were given to it and are not published yet."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self.reader = asyncio.create_task(self._read())

    async def publish(self, message: BusMessage) -> bool:
        """Whether it is published: it may not be when the database is busy. Raises `EOFError` without a process."""
        if self.reader.done():
            raise EOFError("the publisher has ended")
        published = self._waiting[message.id] = asyncio.get_running_loop().create_future()
        self._stdin.write(msgspec.json.encode(message) + b"\n")
        await self._stdin.drain()
        return await published

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            sign, id = line[:1], line[1:-1].decode()
            self._waiting.pop(id).set_result(sign == b"+")
        for waiting in self._waiting.values():
            waiting.set_exception(EOFError("the publisher has ended"))


@contextlib.asynccontextmanager
async def publishing(place: Place) -> AsyncIterator[Publisher]:
    """A publisher for the servers at a place."""
    place.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (place.folder / "publisher.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SERVED / "publisher.py"),
            str(place.data),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=place.folder,
            env=place.environment(),
        )
    publisher = Publisher(process)
    try:
        yield publisher
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_LIMIT):
                await publisher.reader
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

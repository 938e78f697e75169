"""One HTTP connection, byte by byte, on an event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.support.http_wire import Response, events_in

_RESET = struct.pack("ii", 1, 0)


class Peer:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._events: deque[tuple[str, dict[str, Any]]] = deque()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send_slowly(self, data: bytes, seconds: float) -> None:
        """Byte by byte for the first and the last bytes, so that the pauses fall into the head and into the body."""
        slow = min(len(data) // 2, 25)
        for byte in data[:slow]:
            await self.send(bytes([byte]))
            await asyncio.sleep(seconds / (2 * slow))
        await self.send(data[slow:-slow])
        for byte in data[-slow:]:
            await asyncio.sleep(seconds / (2 * slow))
            await self.send(bytes([byte]))

    def half_close(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        """Leave with a reset instead of an end."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()

    async def head(self) -> tuple[int, dict[str, str]]:
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines if line)
        return int(status.split()[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def chunk(self) -> bytes:
        """The next chunk of a body; empty at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def event(self) -> tuple[str, dict[str, Any]] | None:
        """The next message on a stream and the id of its event, if it has one; None at its end."""
        while not self._events:
            chunk = await self.chunk()
            if not chunk:
                return None
            self._events += [(event_id or "", msgspec.json.decode(data)) for event_id, data in events_in(chunk) if data]
        return self._events.popleft()

    async def read(self, pause: float = 0.0) -> Response:
        """The next response, whole; with a pause before each piece of its body."""
        status, headers = await self.head()
        return Response(status, headers, await self.body(headers, pause))

    async def body(self, headers: dict[str, str], pause: float = 0.0) -> bytes:
        """The body that comes after this head."""
        pieces = []
        if headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                pieces.append(chunk)
        left = int(headers.get("content-length", "0"))
        while left:
            await asyncio.sleep(pause)
            pieces.append(await self._reader.read(min(left, 1 << 16)))
            if not pieces[-1]:
                raise ConnectionResetError(f"{left} bytes of the body are missing")
            left -= len(pieces[-1])
        return b"".join(pieces)

    async def wait_for_end(self) -> bytes:
        """What comes until the server closes the connection."""
        return await self._reader.read()


@asynccontextmanager
async def connected(port: int, *, buffer: int | None = None) -> AsyncIterator[Peer]:
    """A connection to a server here; a small `buffer` lets little wait to be read."""
    sock = socket.socket()
    if buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=buffer or 1 << 16)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()

"""A connection to another process of the same server, over which a request is passed on and its answer brought back.

1. What is asked and answered goes through as it is, but for what belongs to a connection and not to a message.
2. An answer is passed on as it comes, chunk by chunk, and no faster than the client reads it.
3. When the client leaves, the connection is closed, so that the other process sees what it would have seen itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dragoman.edge.asgi import Header

_PIECE = 1 << 16
_HOPS = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that are between two neighbours, or that each of them adds by itself."""


class LinkBroken(Exception):
    """The other process is gone. `was_answering`: it had begun to answer; `was_heard`: it may have begun to work."""

    def __init__(self, *, was_answering: bool = False, was_heard: bool = True) -> None:
        super().__init__("the connection to another worker broke")
        self.was_answering = was_answering
        self.was_heard = was_heard


@dataclass(frozen=True)
class Head:
    """How an answer begins."""

    status: int
    headers: list[Header]
    length: int | None
    """Of the body, in bytes; None when it comes in chunks."""
    closes: bool

    @classmethod
    def read(cls, data: bytes) -> Head:
        first, *lines = data.split(b"\r\n")[:-2]
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        said = dict(pairs)
        chunked = b"chunked" in said.get(b"transfer-encoding", b"")
        length = None if chunked else int(said.get(b"content-length", b"0"))
        headers = [pair for pair in pairs if pair[0] not in _HOPS]
        if length is not None and b"content-length" in said:
            headers.append((b"content-length", said[b"content-length"]))
        return cls(int(first.split(b" ", 2)[1]), headers, length, said.get(b"connection", b"").lower() == b"close")


class Link:
    """A connection to another process; one request after another."""

    def __init__(self, sock: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._socket = sock
        self._reader = reader
        self._writer = writer
        self.is_idle = True
        """Whether the last answer has been read to its end, and another request may follow."""

    @classmethod
    async def open(cls, path: Path) -> Link | None:
        """None: nobody is there any more."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, str(path))
            return cls(sock, *await asyncio.open_unix_connection(sock=sock, limit=_PIECE))
        except OSError:
            sock.close()
            return None

    @property
    def is_usable(self) -> bool:
        if not self.is_idle or self._reader.at_eof() or self._writer.is_closing():
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)  # The loop may not have seen yet that it was closed.
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """At once: whoever waits for an answer here gets `LinkBroken`.

        The other end sees it even if a forked child of this process has a copy of the socket.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._writer.transport.abort()

    async def ask(self, method: str, target: bytes, headers: Iterable[Header], body: bytes) -> Head:
        """Send a request; how the answer begins. Raises `LinkBroken`."""
        self.is_idle = False
        lines = [b"%b: %b\r\n" % (name, value) for name, value in headers if name not in _HOPS]
        start = b"%b %b HTTP/1.1\r\n%b" % (method.encode(), target, b"".join(lines))
        try:
            self._writer.write(b"%bcontent-length: %d\r\n\r\n%b" % (start, len(body), body))
            await self._writer.drain()
            head = Head.read(await self._reader.readuntil(b"\r\n\r\n"))
        except OSError:
            # An end that comes as an error leaves something unread: the request was never seen as a whole.
            raise LinkBroken(was_heard=False) from None
        except asyncio.IncompleteReadError as error:
            raise LinkBroken(was_answering=bool(error.partial)) from None
        self._head = head
        return head

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body of the answer, as it comes. Raises `LinkBroken`."""
        try:
            if self._head.length is None:
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
                await self._reader.readexactly(2)
            else:
                left = self._head.length
                while left:
                    piece = await self._reader.read(min(left, _PIECE))
                    if not piece:
                        raise LinkBroken(was_answering=True)
                    left -= len(piece)
                    yield piece
        except (OSError, asyncio.IncompleteReadError):
            raise LinkBroken(was_answering=True) from None
        self.is_idle = not self._head.closes

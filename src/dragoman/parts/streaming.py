"""A response in pieces: the next one is made when the client has read the last, and none when it has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamedResponse:
    """A response whose body is never held whole. An ASGI application: routes return it as a `Stream`."""

    status: int
    pieces: Callable[[], AsyncGenerator[bytes, None]]
    """Begins the body. Closed, at the latest, when the response ends."""
    headers: tuple[tuple[bytes, bytes], ...]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with aclosing(self.pieces()) as pieces:
            piece = await anext(pieces, None)  # First: what cannot be read at all is no response that has begun.
            leaving = asyncio.ensure_future(_until_gone(receive))
            try:
                await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers]})
                while piece is not None and scope["method"] != "HEAD" and not leaving.done():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    piece = await anext(pieces, None)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                leaving.cancel()


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

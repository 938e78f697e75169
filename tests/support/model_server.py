"""A real HTTP server that plays a model behind an OpenAI-compatible API, and records what it was sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct, field


class ModelServer(Struct):
    """Answers every request with `pieces`, one event of a stream each, unless it is told otherwise."""

    url: str = ""
    pieces: Iterable[str] = ("Owls hunt ", "at night [1].")
    raw: bytes | None = None
    """A whole response in place of them."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Waited for before the last piece."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a server whose answers it writes."""
        return {"answers_url": self.url, "answers_model": "scripted"}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.strip().split("\r\n")
            named = dict(each.split(": ", 1) for each in rest)
            headers = {name.lower(): value for name, value in named.items()}
            self.headers.append({"request": line, **headers})
            self.requests.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
            async for chunk in self._response():
                writer.write(chunk)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client has what it wanted.
        finally:
            writer.close()

    async def _response(self) -> AsyncIterator[bytes]:
        if self.raw is not None:
            yield self.raw
            return
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\n"
        *first, last = self.pieces
        for piece in first:
            yield event(piece)
        await self.gate.wait()
        yield event(last)
        yield b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


def event(piece: str) -> bytes:
    """A piece of a completion, as it is streamed."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}).encode() + b"\n\n"


def whole(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    """A response that is not streamed."""
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def serving_model(**fields: Any) -> AsyncIterator[ModelServer]:
    """A model that answers at once, until the end of the block."""
    model = ModelServer(**fields)
    model.gate.set()
    server = await asyncio.start_server(model._serve, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        model.gate.set()
        server.close()


@contextmanager
def model_on_a_thread(**fields: Any) -> Iterator[ModelServer]:
    """The same for tests that have no event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    serving = serving_model(**fields)
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

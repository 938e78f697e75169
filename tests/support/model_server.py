"""A real HTTP server that plays a model behind an OpenAI-compatible API, and records what it was sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct, field

MEANINGS = (("vacation", "holiday"), ("train", "railway"))


class ModelServer(Struct):
    """Answers every request with `pieces`, one event of a stream each, or with vectors, unless it is told otherwise.

    The vector of a text says which of its `MEANINGS` it has.
    """

    url: str = ""
    pieces: Iterable[str] = ("Owls hunt ", "at night [1].")
    raw: bytes | None = None
    """A whole response in place of them."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Waited for before the last piece, and before vectors."""
    held: str = ""
    """Only requests with this text wait for the gate."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a server whose answers it writes."""
        return {"answers_url": self.url, "answers_model": "scripted"}

    @property
    def embeddings(self) -> dict[str, Any]:
        """The settings of a server whose vectors it makes."""
        return {"embedder": "openai", "embeddings_url": self.url, "embeddings_model": "scripted"}

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
        asked = self.requests[-1]
        is_held = self.held in json.dumps(asked)
        if "input" in asked:
            made = [{"index": i, "embedding": vector_of(text)} for i, text in enumerate(asked["input"])]
            if is_held:
                await self.gate.wait()
            yield whole("200 OK", json.dumps({"data": made}).encode())
            return
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\n"
        *first, last = self.pieces
        for piece in first:
            yield event(piece)
        if is_held:
            await self.gate.wait()
        yield event(last)
        yield b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


def vector_of(text: str) -> list[float]:
    """Texts with words of the same meaning have vectors that are alike."""
    return [0.01, *(float(any(word in text.lower() for word in words)) for words in MEANINGS)]


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

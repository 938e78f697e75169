"""A server on a free port of this process, and a client of it that hides nothing of what is on the wire."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from uvicorn import Config, Server

from dragoman import Tool
from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.edge.http.listening import bind
from dragoman.edge.http.server import HttpServer
from dragoman.runtime import Runtime
from dragoman.telemetry.log import CompletionRecord, Entry, StructuredLogger
from dragoman.testing import is_json_rpc
from dragoman.testing.connection import CLIENT_INFO, ENVELOPE
from tests.support.waiting import PATIENCE, until

BOTH = "application/json, text/event-stream"


@dataclass
class Serving:
    """A server that runs, and all that it has logged."""

    runtime: Runtime
    port: int = 0
    log: list[Entry] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    """The clients that the server thinks it has."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def records(self) -> list[tuple[str, str]]:
        """Tool and outcome of every call that has ended."""
        return [(each.tool_name, each.outcome) for each in self.log if isinstance(each, CompletionRecord)]

    async def recorded(self, *expected: tuple[str, str]) -> None:
        """Return when exactly these calls have ended."""
        await until(lambda: len(self.records()) >= len(expected))
        assert sorted(self.records()) == sorted(expected)


@asynccontextmanager
async def serving(
    tools: Iterable[Tool], settings: Mapping[str, Any] | None = None, *, sse: bool = False, **options: Any
) -> AsyncIterator[Serving]:
    """Serve over HTTP for as long as the block takes, which ends in time or fails."""
    config = make_config(settings)
    log: list[Entry] = []
    logger = StructuredLogger(log.append)
    runtime = create_server(ServerOptions(config=config, tools=tools, logger=logger, **options))
    app = runtime.http(sse=sse)
    server = HttpServer(app, config.http)
    async with asyncio.timeout(4 * PATIENCE), listening(server) as port:
        await app.start()
        try:
            yield Serving(runtime, port, log, server.connections)
        finally:
            await app.stop(0.1)


@asynccontextmanager
async def listening(server: HttpServer, sock: socket.socket | None = None) -> AsyncIterator[int]:
    """Run a server for as long as the block takes; gives its port."""
    sock = sock or bind("127.0.0.1", 0)
    await server.start(sock)
    port = sock.getsockname()[1]
    try:
        yield port
    finally:
        await server.stop()


@asynccontextmanager
async def hosting(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serve an application as anybody would, with uvicorn; gives its address."""
    server: Any = Server(Config(app, log_config=None, **options))
    server.capture_signals = no_signals
    sock = bind("127.0.0.1", 0)
    ended = asyncio.Event()
    server.main_loop = ended.wait  # uvicorn's own looks ten times a second whether it should end.
    async with asyncio.timeout(PATIENCE):
        running = asyncio.create_task(server.serve([sock]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            ended.set()
            await running


class no_signals:
    """The signals are pytest's."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class SseEvent(NamedTuple):
    """An event as it came."""

    id: str | None
    message: dict[str, Any] | None
    """None for one that only says where to resume."""


class Reply:
    """The answer to one request, on a connection of its own, read as it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: deque[SseEvent] = deque()
        self.status = 0
        self.headers: dict[str, str] = {}

    async def begin(self) -> Reply:
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return self

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def json(self) -> dict[str, Any]:
        """The one message that the body is."""
        assert self.headers["content-type"] == "application/json", self.headers
        message = msgspec.json.decode(await self._reader.readexactly(int(self.headers["content-length"])))
        self.drop()
        assert is_json_rpc(message), message
        return dict(message)

    async def event(self) -> SseEvent | None:
        """The next event; None when the stream has ended as it should."""
        assert self.is_stream, (self.status, self.headers)
        while not self._waiting:
            size = int(await self._reader.readline(), 16)
            if not size:
                self.drop()
                return None
            chunk = await self._reader.readexactly(size + 2)
            for block in chunk.decode().replace("\r\n", "\n").split("\n\n"):
                fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != ":")
                if fields:
                    data = fields.get("data")
                    self._waiting.append(SseEvent(fields.get("id"), msgspec.json.decode(data) if data else None))
        return self._waiting.popleft()

    async def events(self) -> list[SseEvent]:
        """All that come until the stream has ended as it should."""
        found = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found

    async def answer(self) -> dict[str, Any]:
        """The last message, whichever way it comes."""
        if not self.is_stream:
            return await self.json()
        messages = [event.message for event in await self.events() if event.message is not None]
        return messages[-1]

    def drop(self) -> None:
        """Be gone, without a word."""
        self._writer.transport.abort()


async def request(port: int, method: str, headers: Mapping[str, str], body: bytes = b"") -> Reply:
    """Send a request, without waiting for its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = [f"{method} /mcp HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}", *lines]
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    return Reply(reader, writer)


def message(method: str, params: Mapping[str, Any] | None = None, request_id: int | str | None = None) -> bytes:
    """A request, or a notification when it has no id."""
    ids = {} if request_id is None else {"id": request_id}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, **ids, "params": params or {}})


def call_params(name: str, arguments: Mapping[str, Any], token: int | str | None = None) -> dict[str, Any]:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return {"name": name, "arguments": arguments, **meta}


async def modern_call(port: int, request_id: int, name: str, *, accept: str = BOTH, **arguments: Any) -> Reply:
    """Begin a call of the modern era."""
    params = {**call_params(name, arguments), "_meta": ENVELOPE}
    headers = {
        "Content-Type": "application/json",
        "Accept": accept,
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
    }
    return await request(port, "POST", headers, message("tools/call", params, request_id))


class RawSession:
    """A session of the handshake era, each request on a connection of its own."""

    def __init__(self, port: int, version: str, session_id: str) -> None:
        self.port = port
        self.id = session_id
        self._headers = {"Mcp-Session-Id": session_id, "MCP-Protocol-Version": version}

    async def post(self, body: bytes) -> Reply:
        """Send a message, without waiting for what comes of it."""
        headers = {**self._headers, "Content-Type": "application/json", "Accept": BOTH}
        return await request(self.port, "POST", headers, body)

    async def call(self, request_id: int | str, name: str, token: int | str | None = None, **arguments: Any) -> Reply:
        """Begin a call, without waiting for what comes of it."""
        return await self.post(message("tools/call", call_params(name, arguments, token), request_id))

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        reply = await (await self.post(message(method, params))).begin()
        reply.drop()
        assert reply.status == 202

    async def listen(self, last_event_id: str | None = None) -> Reply:
        """Open the stream of the session, or again the one that an event was on."""
        resumed = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        headers = {**self._headers, "Accept": "text/event-stream", **resumed}
        return await (await request(self.port, "GET", headers)).begin()

    async def end(self) -> int:
        """Say that the session is over; the status."""
        reply = await (await request(self.port, "DELETE", self._headers)).begin()
        reply.drop()
        return reply.status


async def open_session(
    port: int, version: str = "2025-11-25", capabilities: Mapping[str, Any] | None = None
) -> RawSession:
    """Both halves of the handshake."""
    params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": CLIENT_INFO}
    headers = {"Content-Type": "application/json", "Accept": BOTH}
    reply = await (await request(port, "POST", headers, message("initialize", params, 0))).begin()
    answer = await reply.answer()
    assert answer["result"]["protocolVersion"] == version
    session = RawSession(port, version, reply.headers["mcp-session-id"])
    await session.notify("notifications/initialized")
    return session

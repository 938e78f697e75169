"""A server under attack, as each transport reaches it: the same request, with raw bytes for its params."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any, Protocol

import msgspec

from dragoman import Tool
from dragoman.config import make_config
from dragoman.edge.stdio import StdioSession, Streams
from dragoman.testing.connection import ENVELOPE, open_server
from tests.support.cost import Work, counting
from tests.support.http_serving import serving
from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, MODERN, Response, Wire, events_in, request
from tests.support.processes import HANDSHAKE, Lines

TRANSPORTS = ("stdio", "modern", "modern without headers", "session", "sse")


def body_of(method: str, members: bytes, meta: Mapping[str, Any] | None = None, id: Any = 1) -> bytes:
    """A request whose params have these members, given as JSON."""
    head = b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":{' % (msgspec.json.encode(id), method.encode())
    return head + b'"_meta":%b%b%b}}' % (msgspec.json.encode(meta or {}), b"," if members else b"", members)


class Target(Protocol):
    """One way to a server."""

    meta: Mapping[str, Any]

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request."""
        ...


class LineServer(Protocol):
    """A server on pipes, in a process of its own or in this one."""

    output: Lines

    def send(self, data: bytes) -> None: ...


class HttpServer(Protocol):
    """A server on a port, likewise."""

    def ask(self, data: bytes) -> Response: ...
    def wire(self) -> Wire: ...


class StdioTarget:
    meta: Mapping[str, Any] = {}

    def __init__(self, server: LineServer) -> None:
        self._server = server

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        before = len(self._server.output.lines)
        self._server.send(body_of(method, members, meta) + b"\n")
        found = self._server.output.wait_until(lambda lines: lines[before:] or None)
        return dict(msgspec.json.decode(found[0]))


class ModernTarget:
    meta = ENVELOPE

    def __init__(self, server: HttpServer, *, has_headers: bool = True) -> None:
        self._server = server
        self._has_headers = has_headers

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method} if self._has_headers else {}
        if method == "tools/call":
            headers["mcp-name"] = members.split(b'"')[3].decode()
        body = body_of(method, members, {**ENVELOPE, **(meta or {})})
        return self._server.ask(request(body, headers if self._has_headers else {})).message


class SessionTarget:
    meta: Mapping[str, Any] = {}

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        id = server.ask(request(INITIALIZE)).headers["mcp-session-id"]
        self._headers = {"mcp-session-id": id, "mcp-protocol-version": LATEST}
        assert server.ask(request(INITIALIZED, self._headers)).status == 202

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._server.ask(request(body_of(method, members, meta), self._headers)).message


class SseTarget:
    meta: Mapping[str, Any] = {}

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._stream = server.wire()
        self._stream.send(request(None, {"accept": "text/event-stream"}, method="GET", path="/sse"))
        assert self._stream.head()[0] == 200
        self._path = self._event()
        assert self._post(msgspec.json.encode(INITIALIZE)).status == 202
        self._event()
        assert self._post(msgspec.json.encode(INITIALIZED)).status == 202

    def close(self) -> None:
        self._stream.close()

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        posted = self._post(body_of(method, members, meta))
        return posted.message if posted.status != 202 else dict(msgspec.json.decode(self._event()))

    def _post(self, body: bytes) -> Response:
        return self._server.ask(request(body, path=self._path))

    def _event(self) -> str:
        """The data of the next event."""
        text = b""
        while not (found := events_in(text)):
            text += self._stream.chunk()
        return found[0][1]


# Servers in this process, where their work can be counted. Their clients are on other threads, and so is what those do.


@asynccontextmanager
async def opened(
    transport: str, tools: Iterable[Tool], settings: Mapping[str, Any] | None = None
) -> AsyncIterator[Target]:
    """A server with these tools that is reached by one of the `TRANSPORTS`."""
    if transport == "stdio":
        async with _on_pipes(tools, settings) as pipes:
            yield StdioTarget(pipes)
        return
    async with opened_http(tools, settings, sse=transport == "sse") as server:
        if transport == "session":
            yield await asyncio.to_thread(SessionTarget, server)
        elif transport == "sse":
            with closing(await asyncio.to_thread(SseTarget, server)) as target:
                yield target
        else:
            yield ModernTarget(server, has_headers=transport == "modern")


@asynccontextmanager
async def opened_http(
    tools: Iterable[Tool], settings: Mapping[str, Any] | None = None, *, sse: bool = False
) -> AsyncIterator[HttpServer]:
    """The same over HTTP, for requests byte by byte."""
    async with serving(tools, settings, sse=sse) as served:
        yield _OnPort(served.port)


async def work_for(target: Target, method: str, members: bytes) -> Work:
    """The work of the server's loop for a request like one that it has answered before."""
    await asyncio.to_thread(target.ask, method, members)
    with counting() as work:
        await asyncio.to_thread(target.ask, method, members)
    return work


class _OnPort:
    def __init__(self, port: int) -> None:
        self._port = port

    def wire(self) -> Wire:
        return Wire(self._port)

    def ask(self, data: bytes) -> Response:
        with self.wire() as wire:
            return wire.ask(data)


class _OnPipes:
    def __init__(self, input: int, output: int) -> None:
        self._input = input
        self.output = Lines(output)
        self.output.start()

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._input, left) :]


@asynccontextmanager
async def _on_pipes(tools: Iterable[Tool], settings: Mapping[str, Any] | None) -> AsyncIterator[_OnPipes]:
    (read, sent), (answered, written) = os.pipe(), os.pipe()
    ended = asyncio.Event()
    async with open_server(tools, make_config(settings)) as server:
        running = asyncio.create_task(StdioSession(server.runtime, Streams(read, written), lambda: False, ended).run())
        pipes = _OnPipes(sent, answered)
        pipes.send(HANDSHAKE)
        await asyncio.to_thread(pipes.output.wait_until, lambda lines: lines or None)
        try:
            yield pipes
        finally:
            ended.set()
            await running
            for descriptor in (read, sent, answered, written):
                os.close(descriptor)

"""A server and its clients in one process, wired through memory: what tests of tools talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec

from dragoman.access.callers import LOCAL, Caller
from dragoman.app import ServerOptions, configure, create_server
from dragoman.config import Config
from dragoman.edge.connection import TransportType
from dragoman.offers.catalogue import Offered
from dragoman.protocol.session import State
from dragoman.protocol.versions import CAPABILITIES_KEY, CLIENT_INFO_KEY, VERSION_KEY
from dragoman.runtime import Runtime
from dragoman.telemetry.log import Entry, EntryWriter, StructuredLogger
from dragoman.testing.wire import MemoryWire, decode, is_json_rpc

CLIENT_INFO = {"name": "memory-client", "version": "1"}
ENVELOPE = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}, CLIENT_INFO_KEY: CLIENT_INFO}


class MemoryClient:
    """A client that speaks to a connection byte for byte, and keeps every message that came back."""

    def __init__(
        self,
        runtime: Runtime,
        transport: TransportType = "stdio",
        *,
        modern: bool = False,
        caller: Caller = LOCAL,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self._runtime = runtime
        self._capabilities = capabilities or {}
        self._questions = 0
        self._ids = count(1)
        self._modern = modern
        self._read = 0
        self.wire = MemoryWire(transport)
        self.connection = runtime.connect(self.wire, caller)
        self.messages: list[dict[str, Any]] = []

    @property
    def state(self) -> State:
        return self.connection.state

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.connection.receive(data)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        self.send(msgspec.json.encode(message) + b"\n")

    def begin(self, method: str, params: Mapping[str, Any] | None = None, *, id: int | str | None = None) -> int | str:
        """Send a request without waiting for its answer; returns its id."""
        request_id = next(self._ids) if id is None else id
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if self._modern:
            meta = (params or {}).get("_meta", {})
            params = {**(params or {}), "_meta": {**ENVELOPE, CAPABILITIES_KEY: self._capabilities, **meta}}
        if params is not None:
            message["params"] = params
        self.send(msgspec.json.encode(message) + b"\n")
        return request_id

    async def answer(self, request_id: int | str | None) -> dict[str, Any]:
        """The answer to a request, when it comes."""
        while True:
            for message in self.received():
                if "method" not in message and message.get("id") == request_id:
                    return message
            await self.wire.wait()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return await self.answer(self.begin(method, params))

    def received(self) -> list[dict[str, Any]]:
        """Every message so far; each is checked to be JSON-RPC."""
        for line in self.wire.lines[self._read :]:
            message = decode(line)
            assert is_json_rpc(message), message
            self.messages.append(message)
        self._read = len(self.wire.lines)
        return self.messages

    async def initialize(self, version: str = "2025-11-25") -> dict[str, Any]:
        """The first half of the handshake."""
        return await self.request(
            "initialize",
            {"protocolVersion": version, "capabilities": self._capabilities, "clientInfo": CLIENT_INFO},
        )

    def initialized(self) -> None:
        """The second half of the handshake."""
        self.notify("notifications/initialized")

    async def handshake(self) -> MemoryClient:
        """Both halves; returns the client itself."""
        await self.initialize()
        self.initialized()
        return self

    async def list_tools(self) -> list[dict[str, Any]]:
        answer = await self.request("tools/list")
        tools: list[dict[str, Any]] = answer["result"]["tools"]
        return tools

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The result of a call, or the JSON-RPC error that it was answered with."""
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if meta is not None:
            params["_meta"] = meta
        answer = await self.request("tools/call", params)
        result: dict[str, Any] = answer.get("result") or answer["error"]
        return result

    async def question(self) -> dict[str, Any]:
        """The next request of the server's own, when it comes."""
        while True:
            asked = [message for message in self.received() if "method" in message and "id" in message]
            if len(asked) > self._questions:
                self._questions += 1
                return asked[self._questions - 1]
            await self.wire.wait()

    def reply(self, question: Mapping[str, Any], result: Any) -> None:
        """Answer a request of the server's."""
        self.send(msgspec.json.encode({"jsonrpc": "2.0", "id": question["id"], "result": result}) + b"\n")

    def disconnect(self) -> None:
        """Leave without a word."""
        self._runtime.disconnect(self.connection)


class TestServer:
    """A running server, and everything that it logged."""

    __test__ = False

    def __init__(self, runtime: Runtime, entries: list[Entry], config: Config) -> None:
        self.runtime = runtime
        self.entries = entries
        self._writer = EntryWriter(config.logging)

    def connect(
        self,
        transport: TransportType = "stdio",
        *,
        modern: bool = False,
        caller: Caller = LOCAL,
        capabilities: Mapping[str, Any] | None = None,
    ) -> MemoryClient:
        """A client that has said nothing yet. In the modern era it says what it is capable of with every request."""
        return MemoryClient(self.runtime, transport, modern=modern, caller=caller, capabilities=capabilities)

    async def client(self, caller: Caller = LOCAL, capabilities: Mapping[str, Any] | None = None) -> MemoryClient:
        """A client whose handshake is through."""
        return await self.connect(caller=caller, capabilities=capabilities).handshake()

    @property
    def stderr(self) -> bytes:
        """The log as it would stand on stderr."""
        return self._writer(self.entries) if self.entries else b""

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log, line by line, as whoever reads stderr would parse it."""
        return [msgspec.json.decode(line) for line in self.stderr.splitlines()]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The completion records among the log's entries."""
        return [entry for entry in self.log if entry["message"] == "tool call completed"]


@asynccontextmanager
async def open_server(
    tools: Iterable[Offered] = (), config: Mapping[str, Any] | Config | None = None, **options: Any
) -> AsyncIterator[TestServer]:
    """A server to test: partial settings, and any of `ServerOptions` such as `clock` or `ids`."""
    settings = configure(config, **options)
    entries: list[Entry] = []
    clock = options.get("clock")
    logger = StructuredLogger(entries.append, clock, settings.logging)
    runtime = create_server(ServerOptions(config=settings, tools=tools, logger=logger, **options))
    await runtime.start()
    try:
        yield TestServer(runtime, entries, settings)
    finally:
        await runtime.stop(0.5)
        await asyncio.sleep(0)

"""Throws bytes at a whole server, from the pipe to the answer, and looks for what must never happen.

`python -m fuzz.request_path [libFuzzer options] fuzz/corpus`. The first byte of an input says how the connection was
opened (not at all, with a handshake, in the modern era), the second how the rest is cut into chunks. After every input:

1. everything that was sent is JSON-RPC, one message a line, and no call was answered twice;
2. every call has ended, every slot is free, and each call that was answered left one record;
3. a connection that is open still answers, correctly;
4. nothing was logged that says that we failed.

A hang is found by libFuzzer's `-timeout`, unbounded memory by its `-rss_limit_mb`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["dragoman"]):
    import dragoman
    from dragoman.app import ServerOptions, create_server
    from dragoman.config import make_config
    from dragoman.edge.connection import Connection
    from dragoman.protocol.session import Era, State
    from dragoman.telemetry.log import CompletionRecord, Entry, EntryWriter, StructuredLogger
    from dragoman.testing.wire import MemoryWire, decode, is_json_rpc
    from dragoman.tools.builtin.echo import echo_tool

TOKENS = Path(__file__).with_name("tokens.dict")
HANDSHAKE = (
    b'{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"fuzz","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)
META = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'
)
MODERN = (
    b'{"jsonrpc":"2.0","id":"hello","method":"tools/call","params":{"name":"echo","arguments":{"message":"x"},%s}}\n'
)
OPENINGS = (b"", HANDSHAKE, MODERN % META)
PROBE = (
    b'\n{"jsonrpc":"2.0","id":"probe","method":"tools/call","params":{"name":"echo","arguments":{"message":"x"}%s}}\n'
)
SETTINGS = {
    "limits": {"max_request_bytes": 4096, "max_array_size": 5, "max_string_length": 64, "max_object_depth": 4},
    "tools": {"max_payload_bytes": 512, "memory_enabled": True, "admin_registration_enabled": True},
    "security": {"dynamic_registration_enabled": True},
    "storage": {"engine": "memory", "max_bytes_per_caller": 65536},
    "response": {"max_response_bytes": 1024},
    "cache": {"max_size_bytes": 4096, "max_entries": 8},
}


@dragoman.tool(read_only=True, cache_ttl_ms=1000, cache_tags=("n",))
async def add(a: int, b: float = 1.5, names: list[str] | None = None) -> dict[str, Any]:
    """Has types to convert, and results to keep."""
    return {"sum": a + b, "names": names}


@dragoman.tool(invalidates=("n",))
async def nest(value: dict[str, Any], ctx: dragoman.ToolContext) -> Any:
    """Gives back what it is given, after a turn of the loop."""
    await asyncio.sleep(0)
    ctx.progress(1, 2)
    return value


@dragoman.tool
async def fail(kind: str = "") -> None:
    """Fails in one way or another."""
    raise dragoman.InvalidArgument(kind) if kind else ValueError(kind)


class Target:
    """One server for all inputs, and a connection for each."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._writer = EntryWriter()
        config = make_config(SETTINGS)
        logger = StructuredLogger(self.entries.append, None, config.logging)
        self.server = create_server(ServerOptions(config=config, tools=[echo_tool(), add, nest, fail], logger=logger))
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.server.start())

    def one_input(self, data: bytes) -> None:
        self.loop.run_until_complete(self._one_input(data))

    async def _one_input(self, data: bytes) -> None:
        self.entries.clear()
        opening, cut, rest = data[:1], data[1:2], data[2:]
        wire = MemoryWire()
        connection = self.server.connect(wire)
        connection.receive(OPENINGS[opening[0] % len(OPENINGS)] if opening else b"")
        size = (cut[0] if cut else 0) or len(rest) or 1
        for start in range(0, len(rest), size):
            connection.receive(rest[start : start + size])
        await self._settled(connection)
        self._probe(connection)
        await self._settled(connection)
        self._check(connection, wire)
        self.server.disconnect(connection)
        for name in {each.definition.name for each in self.server.catalogue if each.is_dynamic}:
            self.server.catalogue.unregister(name)

    async def _settled(self, connection: Connection) -> None:
        for _ in range(2000):
            await asyncio.sleep(0)
            if self.server.runner.under_way == 0 and connection.is_idle:
                return
        if self.server.kernel.is_loaded or not connection.is_idle:
            await connection.finish_requests(20)
        assert self.server.runner.under_way == 0, "a call never ends"

    def _probe(self, connection: Connection) -> None:
        if _is_open(connection):
            connection.receive(PROBE % (b"," + META if connection.session.era is Era.MODERN else b""))

    def _check(self, connection: Connection, wire: MemoryWire) -> None:
        messages = [decode(line) for line in wire.lines]
        assert all(map(is_json_rpc, messages)), "something was sent that is not JSON-RPC"
        if _is_open(connection):
            assert any(message.get("id") == "probe" for message in messages), "an open connection no longer answers"
        assert self.server.resources.in_use == 0, "a slot was lost"
        recorded = Counter(entry.run_id for entry in self.entries if isinstance(entry, CompletionRecord))
        answered = Counter(filter(None, map(_run_id, messages)))
        assert set(answered.values()) <= {1}, "a call was answered twice"
        assert set(recorded.values()) <= {1}, "a call was recorded twice"
        assert answered.keys() <= recorded.keys(), "a call was not recorded"
        errors = [entry for entry in self.entries if isinstance(entry, dict) and entry["level"] == "error"]
        ours = [entry for entry in errors if entry["message"] != "tool failed"]
        assert not ours, f"we failed: {ours[0]}"
        lines = self._writer(self.entries).splitlines() if self.entries else []
        assert len(lines) == len(self.entries), "an entry is not one line"


def _is_open(connection: Connection) -> bool:
    return connection.session.era is Era.MODERN or connection.session.state is State.RUNNING


def _run_id(message: dict[str, Any]) -> str | None:
    """The run id of the call that a message answers with a result."""
    result = message.get("result")
    meta = result.get("_meta", {}) if isinstance(result, dict) else {}
    run_id: str | None = meta.get("dragoman/runId")
    return run_id


def main() -> None:
    target = Target()
    atheris.Setup([*sys.argv, f"-dict={TOKENS}"], target.one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

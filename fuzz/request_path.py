"""Throws bytes at a whole server, from the pipe to the answer, and looks for what must never happen.

`python -m fuzz.request_path [libFuzzer options] fuzz/corpus`. The first byte of an input says how the connection was
opened (not at all, with a handshake, in the modern era) and, with its highest bit, whether the server has limits that
are small or those that are shipped; the second says how the rest is cut into chunks. After every input:

1. everything that was sent is JSON-RPC, one message a line, and no call was answered twice;
2. every call has ended, every slot is free, and each call that was answered left one record;
3. a connection that is open still answers, correctly;
4. nothing was logged that says that we failed;
5. it took no more CPU time and left no more memory in use than `BOUNDS` allows.

A hang is found by libFuzzer's `-timeout`, unbounded memory by its `-rss_limit_mb`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import atheris
import uvloop

with atheris.instrument_imports(include=["dragoman"]):
    import dragoman
    from dragoman.app import ServerOptions, create_server
    from dragoman.config import make_config
    from dragoman.edge.connection import Connection
    from dragoman.protocol.session import Era, State
    from dragoman.telemetry.log import CompletionRecord, Entry, EntryWriter, StructuredLogger
    from dragoman.testing.ids import SequentialIds
    from dragoman.testing.wire import MemoryWire, decode, is_json_rpc
    from dragoman.tools.builtin.echo import echo_tool

from fuzz import costly
from fuzz.costs import Bounds, Cost, memory_in_use
from fuzz.fuzzer import fuzz, write_seeds

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
SHIPPED = SETTINGS | {
    "limits": {"max_request_bytes": 1 << 20},
    "tools": {"memory_enabled": True, "admin_registration_enabled": True},
    "response": {},
}
CHUNKS_PER_STEP = 10
# Measured with instrumented code: 0.1 ms for an empty input; up to 2 µs per byte, for containers that are nested too
# deeply, and mostly below 1; 20 to 35 µs per message; 3 µs per chunk; 8 KB held.
BOUNDS = Bounds(seconds=0.05, seconds_per_byte=5e-6, seconds_per_step=150e-6, held=256 * 1024)


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

    def __init__(self, settings: dict[str, Any]) -> None:
        self.entries: list[Entry] = []
        self._writer = EntryWriter()
        config = make_config(settings)
        logger = StructuredLogger(self.entries.append, None, config.logging)
        tools, ids = [echo_tool(), add, nest, fail], SequentialIds()  # Random ids are made in advance, a page of them.
        self.server = create_server(ServerOptions(config=config, tools=tools, logger=logger, ids=ids))
        self.loop = uvloop.new_event_loop()  # asyncio's own keeps timers for a while after they are cancelled.
        self.loop.run_until_complete(self.server.start())

    def one_input(self, data: bytes) -> Cost:
        opening, cut, rest = data[:1], data[1:2], data[2:]
        size = (cut[0] if cut else 0) or len(rest) or 1
        first = OPENINGS[(opening[0] & 0x7F) % len(OPENINGS)] if opening else b""
        chunks = [first, *(rest[start : start + size] for start in range(0, len(rest), size))]
        before = memory_in_use()
        cpu, held = self.loop.run_until_complete(self._one_input(chunks, before))
        unfinished = len(rest) - rest.rfind(b"\n") - 1  # A line whose end is awaited, in a buffer with room to grow.
        return Cost(cpu, 1 + rest.count(b"\n") + len(chunks) // CHUNKS_PER_STEP, held - 2 * unfinished)

    async def _one_input(self, chunks: list[bytes], before: int) -> tuple[float, int]:
        wire = MemoryWire()
        started = time.process_time()
        connection = self.server.connect(wire)
        for chunk in chunks:
            connection.receive(chunk)
        await self._settled(connection)
        cpu = time.process_time() - started
        self._probe(connection)
        await self._settled(connection)
        self._check(connection, wire)
        self.entries.clear()
        wire.lines.clear()
        held = memory_in_use() - before
        self.server.disconnect(connection)
        for name in {each.definition.name for each in self.server.catalogue if each.is_dynamic}:
            self.server.catalogue.unregister(name)
        return cpu, held

    async def _settled(self, connection: Connection) -> None:
        for _ in range(2000):
            await asyncio.sleep(0)
            if self.server.runner.under_way == 0 and connection.is_idle:
                return
        await connection.finish_requests(20)
        await self.server.runner.drain(20)  # Something large may be prepared on a thread.
        assert self.server.runner.under_way == 0, "a call never ends"

    def _probe(self, connection: Connection) -> None:
        if _is_open(connection):
            connection.receive(PROBE % (b"," + META if connection.session.era is Era.MODERN else b""))

    def _check(self, connection: Connection, wire: MemoryWire) -> None:
        messages = [decode(line) for line in wire.lines]
        assert all(map(is_json_rpc, messages)), "something was sent that is not JSON-RPC"
        if _is_open(connection):
            assert any(message.get("id") == "probe" for message in messages), "an open connection no longer answers"
        assert self.server.slots.in_use == 0, "a slot was lost"
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


def seeds() -> dict[str, bytes]:
    """Inputs that are a step away from expensive ones; written by `python -m fuzz.request_path --seeds`."""
    found = {name: b"\x81\x00" + line + b"\n" for name, line in costly.CALLS.items()}
    return found | {"capabilities": b"\x80\x00" + costly.CAPABILITIES + b"\n"}


def main() -> None:
    if "--seeds" in sys.argv:
        write_seeds(Path(__file__).with_name("corpus"), seeds())
        return
    targets = Target(SETTINGS), Target(SHIPPED)
    fuzz(__doc__, lambda data: targets[data[:1] >= b"\x80"].one_input(data), BOUNDS, list(seeds().values()))


if __name__ == "__main__":
    main()

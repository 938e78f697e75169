"""The official SDK's client of a server of its own, over each transport and in both eras of the protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any, NamedTuple

import mcp_types as types
import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client

from dragoman.telemetry.log import EntryWriter
from dragoman.tools.attached import made_of
from tests.support.http_serving import serving
from tests.support.processes import environment
from tests.support.waiting import PATIENCE, until

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"], ids=["handshake", "modern"])


class Way(NamedTuple):
    """How a client reaches a server: the transport, and what the SDK calls the era."""

    transport: str
    mode: str

    @property
    def is_modern(self) -> bool:
        return self.mode != "legacy"


WAYS = {
    "stdio-handshake": Way("stdio", "legacy"),
    "stdio-modern": Way("stdio", "auto"),
    "http-handshake": Way("http", "legacy"),
    "http-modern": Way("http", "auto"),
    "sse-handshake": Way("sse", "legacy"),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
handshake_ways = pytest.mark.parametrize("way", [way for way in WAYS.values() if not way.is_modern], ids=lambda w: w[0])
modern_ways = pytest.mark.parametrize("way", [way for way in WAYS.values() if way.is_modern], ids=lambda w: w[0])


class Connected(NamedTuple):
    """A client that is connected, and the log of its server."""

    client: Client
    read_log: Callable[[], bytes]

    def log(self) -> list[dict[str, Any]]:
        """The entries so far; each whole line is checked to be JSON."""
        return [msgspec.json.decode(line) for line in self.read_log().split(b"\n")[:-1]]

    def records(self) -> list[tuple[str, str]]:
        """Tool and outcome of every call that has ended."""
        return [(each["toolName"], each["outcome"]) for each in self.log() if each["message"] == "tool call completed"]

    async def recorded(self, *expected: tuple[str, str]) -> None:
        """Return when exactly these calls have ended, in any order."""
        await until(lambda: len(self.records()) >= len(expected))
        assert sorted(self.records()) == sorted(expected)


def offered_by(module: ModuleType) -> list[Any]:
    """The tools, resources and prompts that a server of this module has."""
    return [made for value in vars(module).values() for made in made_of(value)]


@asynccontextmanager
async def connected(
    way: Way, module: ModuleType, settings: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Connected]:
    """A client of a server that has what `module` offers: in a process of its own over stdio, in this one over HTTP."""
    if way.transport == "stdio":
        serve = ("-m", "dragoman", "serve", str(module.__file__))
        async with spawned(way.mode, serve, settings, **options) as found:
            yield found
        return
    sections = {name.partition(".")[0]: {name.partition(".")[2]: value} for name, value in (settings or {}).items()}
    async with serving(offered_by(module), sections, sse=way.transport == "sse") as server:
        url = f"http://127.0.0.1:{server.port}"
        target: Any = sse_client(f"{url}/sse") if way.transport == "sse" else f"{url}/mcp"
        async with asyncio.timeout(PATIENCE), Client(target, mode=way.mode, **options) as client:
            yield Connected(client, lambda: EntryWriter()(list(server.log)))


@asynccontextmanager
async def spawned(
    mode: str,
    arguments: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    *,
    log: Any = None,
    **options: Any,
) -> AsyncIterator[Connected]:
    """A client of a Python process that serves over stdio, and logs to a file; one that is given can be read later."""
    server = StdioServerParameters(command=sys.executable, args=list(arguments), env=environment(settings))
    with nullcontext(log) if log else NamedTemporaryFile("w") as file:
        async with asyncio.timeout(PATIENCE), Client(stdio_client(server, file), mode=mode, **options) as client:
            yield Connected(client, Path(file.name).read_bytes)


def error_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.is_error
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    error: dict[str, Any] = msgspec.json.decode(block.text)
    return error

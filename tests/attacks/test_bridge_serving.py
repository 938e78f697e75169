"""`apcore-mcp` as a process: the names it is reached by, large outputs, and calls that nobody can approve."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from dragoman.explorer.explorer import NOT_ASKED
from tests.support.forking import BRIDGE
from tests.support.http_wire import Wire, request
from tests.support.processes import Lines, environment, free_port, running
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

COMMAND = (*BRIDGE, "--extensions-dir")
MEBIBYTE = 1_048_576
MODULES = """
from apcore.decorator import module


@module(id="texts.repeat")
def repeat(text: str, times: int) -> dict[str, str]:
    "Repeat a text."
    return {"text": text * times}


@module(id="files.delete", annotations={"requires_approval": True, "destructive": True})
def delete(path: str) -> dict[str, str]:
    "Delete a file."
    return {"deleted": path}
"""
FRAME = len('{"text": ""}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("modules")
    (place / "all.py").write_text(MODULES)
    return str(place)


class Bridge(NamedTuple):
    """A server of modules."""

    port: int
    printed: Lines

    def get(self, path: str, host: str) -> int:
        with Wire(self.port) as wire:
            return wire.ask(request(None, {"host": host}, method="GET", path=path)).status

    def token(self) -> str:
        found = self.printed.wait_until(lambda lines: re.search(rb"#token=(\S+)", b"\n".join(lines)))
        return found[1].decode()


@contextmanager
def bridge(folder: str, *arguments: str, transport: str, settings: dict[str, Any] | None = None) -> Iterator[Bridge]:
    port = free_port()
    command = [*COMMAND, folder, "--transport", transport, "--port", str(port), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command, env=environment(settings), **pipes) as process:
        printed, log = Lines(process.stdout.fileno()), Lines(process.stderr.fileno())  # type: ignore[union-attr]
        printed.start()
        log.start()
        log.wait_until(lambda lines: any(b"apcore-mcp server started" in each for each in lines) or None)
        yield Bridge(port, printed)
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def over_http(folder: str) -> Iterator[Bridge]:
    names = ("--allowed-host", "mcp.example.org", "--allowed-host", "tools")
    with bridge(folder, *names, "--explorer", "--allow-execute", transport="streamable-http") as server:
        yield server


@pytest.fixture(scope="module")
def over_sse(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    file = tmp_path_factory.mktemp("settings") / "settings.toml"
    file.write_text('[http]\nallowed_hosts = ["mcp.example.org"]\n')
    with bridge(folder, "--config", str(file), transport="sse") as server:
        yield server


# The names it is reached by


def test_only_listed_names_and_addresses_are_served_over_http(over_http: Bridge) -> None:
    hosts = ("mcp.example.org", "MCP.example.org:8000", "tools:80", "127.0.0.1", "[::1]:8000", "192.0.2.1", "localhost")
    assert {host: over_http.get("/health", host) for host in hosts} == dict.fromkeys(hosts, 200)
    others = ("evil.example.org", "mcp.example.org.evil.example", "127.0.0.1.evil.example", "xmcp.example.org", "")
    assert {host: over_http.get("/explorer/tools", host) for host in others} == dict.fromkeys(others, 421)


def test_only_listed_names_are_served_over_sse(over_sse: Bridge) -> None:
    assert over_sse.get("/health", "mcp.example.org") == 200
    assert over_sse.get("/sse", "evil.example.org") == 421


def test_a_server_at_every_address_is_reached_by_any_address_and_by_names_from_the_environment(folder: str) -> None:
    settings = {"http.allowed_hosts": '["mcp.example.org"]'}
    with bridge(folder, "--host", "0.0.0.0", transport="streamable-http", settings=settings) as server:
        hosts = {"127.0.0.1": 200, "192.0.2.1:8000": 200, "mcp.example.org": 200, "evil.example.org": 421}
        assert {host: server.get("/health", host) for host in hosts} == hosts


# Large outputs


@asynccontextmanager
async def http_client(server: Bridge, mode: str) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers={"host": "mcp.example.org"}, timeout=PATIENCE) as http:
        way = streamable_http_client(f"http://127.0.0.1:{server.port}/mcp", http_client=http)
        async with Client(way, mode=mode) as client:
            yield client


async def lengths(opened: AbstractAsyncContextManager[Client], *asked: tuple[str, int]) -> list[int | str]:
    """How long the texts of the outputs are, or the errors in their place."""
    found: list[int | str] = []
    async with asyncio.timeout(3 * PATIENCE), opened as client:
        for text, times in asked:
            result = await client.call_tool("texts.repeat", {"text": text, "times": times})
            said = result.content[0].text  # type: ignore[union-attr]
            if not result.is_error:
                assert json.loads(said) == result.structured_content == {"text": text * times}
            found.append(said if result.is_error else len(said))
    return found


FITS = (("x", MEBIBYTE - FRAME), ('"', (MEBIBYTE - FRAME) // 2), ("é", (MEBIBYTE - FRAME) // 6))
"""Outputs of a mebibyte of JSON, the last two of which are longer in a result: as text they are escaped again."""
TOO_LARGE = "Module error: RESULT_TOO_LARGE"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_output_of_a_mebibyte_arrives_over_http(over_http: Bridge, mode: str) -> None:
    *fitting, last = await lengths(http_client(over_http, mode), *FITS, ("x", 2 * MEBIBYTE))
    assert [isinstance(each, int) and each > MEBIBYTE - 6 for each in fitting] == [True, True, True]
    assert last == TOO_LARGE


@pytest.mark.parametrize("raised", [False, True])
async def test_the_settings_raise_what_an_output_may_weigh(folder: str, raised: bool) -> None:
    settings = {"response.max_response_bytes": 8 * MEBIBYTE} if raised else None
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], folder], env=environment(settings))
    found = await lengths(Client(stdio_client(server)), FITS[0], ("x", 3 * MEBIBYTE))
    assert found == [MEBIBYTE, 3 * MEBIBYTE + FRAME if raised else TOO_LARGE]


async def test_a_larger_output_than_a_client_takes_is_an_error_over_sse_and_the_connection_stays(
    over_sse: Bridge,
) -> None:
    way = sse_client(f"http://127.0.0.1:{over_sse.port}/sse", headers={"host": "mcp.example.org"})
    found = await lengths(Client(way, mode="legacy"), ("x", 520_000), ("x", MEBIBYTE), ("x", 1))
    assert found == [520_000 + FRAME, TOO_LARGE, 1 + FRAME]


# Calls that nobody can approve


@pytest.mark.parametrize("name", ["files.delete", "texts.repeat"])
def test_a_run_without_the_page_is_answered_at_once(over_http: Bridge, name: str) -> None:
    arguments: dict[str, Any] = {"path": "a"} if name == "files.delete" else {"text": "a", "times": 2}
    headers = {"x-explorer-token": over_http.token(), "host": "mcp.example.org"}
    with Wire(over_http.port) as wire:
        answer = wire.ask(request(arguments, headers, path=f"/explorer/tools/{name}/call"))
    denied = (500, {"error": f"Module error: APPROVAL_DENIED. {NOT_ASKED}"})
    expected = denied if name == "files.delete" else (200, {"result": {"text": "aa"}})
    assert (answer.status, answer.json) == expected

"""`dragoman.http_app` inside other applications, served as they come."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

import dragoman
from dragoman import ToolContext, tool
from dragoman.edge.http.app import HttpApp
from dragoman.errors import ConfigError
from tests.support.http_serving import hosting
from tests.support.http_wire import Wire, modern_call
from tests.support.processes import environment, free_port, running
from tests.support.sdk_client import both_eras
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-adas-own"
AUTH = {"auth": {"callers": {"ada": {"token": TOKEN}}}}


@tool
async def who(ctx: ToolContext) -> dict[str, str]:
    """Says who calls."""
    return {"caller": ctx.caller.name}


@tool
def where() -> dict[str, str]:
    """Says where it is."""
    return {"place": "here"}


@tool
def elsewhere() -> dict[str, str]:
    """Says where it is not."""
    return {"place": "there"}


def make_app(*tools: Any, settings: Mapping[str, Any] | None = None) -> HttpApp:
    return dragoman.http_app(tools or (who, where), settings, allow_unauthenticated=True)


async def hello(request: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def place(url: str, mode: str = "auto", name: str = "where") -> Any:
    async with Client(url, mode=mode) as client:
        return (await client.call_tool(name, {})).structured_content


@both_eras
@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("kind", [Starlette, FastAPI])
async def test_an_app_serves_under_a_prefix(mode: str, http: str, kind: type[Starlette]) -> None:
    app = make_app()
    host = kind(lifespan=app.lifespan)
    host.mount("/tools", app)
    host.add_route("/", hello)
    async with hosting(host, http=http) as address, Client(f"{address}/tools/mcp", mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["health", "where", "who"]
        assert (await client.call_tool("where", {})).structured_content == {"place": "here"}
        assert (await client.call_tool("who", {})).structured_content == {"caller": "anonymous"}
        async with httpx2.AsyncClient() as http_client:
            assert (await http_client.get(f"{address}/")).text == "hello"
            assert (await http_client.get(f"{address}/tools/health")).json()["status"] == "ok"
            missing = await http_client.get(f"{address}/tools/nothing")
            assert missing.status_code == 404
            assert "/tools/mcp" in missing.text


@both_eras
async def test_an_app_alone_is_an_application(mode: str) -> None:
    async with hosting(make_app()) as address:
        assert await place(f"{address}/mcp", mode) == {"place": "here"}


@both_eras
async def test_an_app_without_a_lifespan_starts_with_its_first_request(mode: str) -> None:
    host = Starlette(routes=[Mount("/tools", make_app())])
    async with hosting(host) as address:
        places = await asyncio.gather(*(place(f"{address}/tools/mcp", mode) for _ in range(5)))
        assert places == [{"place": "here"}] * 5


async def test_an_app_whose_host_ends_refuses_calls_and_ends_its_streams() -> None:
    app = make_app()
    async with hosting(Starlette(routes=[Mount("/tools", app)], lifespan=app.lifespan)) as address:
        assert await place(f"{address}/tools/mcp") == {"place": "here"}
        await app.stop()
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{address}/tools/ready")).status_code == 503


@both_eras
async def test_two_apps_in_one_host_share_nothing(mode: str) -> None:
    here, there = make_app(where), make_app(elsewhere)

    @asynccontextmanager
    async def lifespan(host: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(here.lifespan(host))
            await stack.enter_async_context(there.lifespan(host))
            yield

    async with hosting(Starlette(routes=[Mount("/a", here), Mount("/b", there)], lifespan=lifespan)) as address:
        places = await asyncio.gather(
            place(f"{address}/a/mcp", mode), place(f"{address}/b/mcp", mode, name="elsewhere")
        )
        assert places == [{"place": "here"}, {"place": "there"}]
        async with Client(f"{address}/a/mcp", mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["health", "where"]


async def test_the_sessions_of_one_app_are_not_those_of_another() -> None:
    here, there = make_app(where), make_app(where)
    host = Starlette(routes=[Mount("/a", here), Mount("/b", there)])
    async with hosting(host) as address, Client(f"{address}/a/mcp", mode="legacy") as client:
        await client.call_tool("where", {})
        (session_id,) = here._eras.handshake._sessions.open._index
        headers = {"Mcp-Session-Id": session_id, "Accept": "application/json, text/event-stream"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "where", "arguments": {}}}
        async with httpx2.AsyncClient(headers=headers) as http:
            assert (await http.post(f"{address}/a/mcp", json=call)).status_code == 200
            assert (await http.post(f"{address}/b/mcp", json=call)).status_code == 404


@both_eras
@pytest.mark.parametrize("mounted", [True, False])
async def test_an_app_behind_a_root_path_serves(mode: str, mounted: bool) -> None:
    app = make_app()
    host = Starlette(routes=[Mount("/tools", app)], lifespan=app.lifespan) if mounted else app
    prefix = "/tools" if mounted else ""
    async with hosting(host, root_path="/api") as address:
        assert await place(f"{address}{prefix}/mcp", mode) == {"place": "here"}


async def test_a_root_path_is_a_prefix_of_segments_only() -> None:
    app = make_app()

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        """A server that leaves the path as the proxy sent it."""
        await app({**scope, "root_path": "/m"} if scope["type"] == "http" else scope, receive, send)

    async with hosting(proxied) as address:
        assert await place(f"{address}/mcp") == {"place": "here"}


@both_eras
async def test_callers_are_told_apart(mode: str) -> None:
    app = dragoman.http_app([who], AUTH)
    async with hosting(Starlette(routes=[Mount("/tools", app)], lifespan=app.lifespan)) as address:
        url = f"{address}/tools/mcp"
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            assert (await client.call_tool("who", {})).structured_content == {"caller": "ada"}
        with pytest.raises((MCPError, ExceptionGroup)):
            await place(url, mode, "who")


def test_an_app_that_tells_nobody_apart_has_to_be_wanted() -> None:
    with pytest.raises(ConfigError, match="nobody is authenticated"):
        dragoman.http_app([where])
    assert not make_app().is_authenticated
    assert not dragoman.http_app([where], {"auth": {"allow_unauthenticated": True}}).is_authenticated
    assert dragoman.http_app([where], AUTH).is_authenticated


async def test_names_have_to_be_allowed() -> None:
    async with (
        hosting(make_app()) as strict,
        hosting(make_app(settings={"http": {"allowed_hosts": ["tools.example"]}})) as open_to_one,
        httpx2.AsyncClient() as http,
    ):
        for address, expected in ((strict, 421), (open_to_one, 200)):
            answered = await http.get(f"{address}/health", headers={"Host": "tools.example"})
            assert answered.status_code == expected
        assert (await http.get(f"{open_to_one}/health", headers={"Host": "other.example"})).status_code == 421


async def test_the_path_of_the_endpoint_can_be_chosen() -> None:
    async with hosting(Starlette(routes=[Mount("/t", make_app(settings={"http": {"path": "/rpc"}}))])) as address:
        assert await place(f"{address}/t/rpc") == {"place": "here"}


def test_an_application_that_is_served_by_nobody_costs_no_sdk(tmp_path: Path) -> None:
    script = "import sys, dragoman; dragoman.http_app(allow_unauthenticated=True); print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "False\n"


SERVERS = {
    "uvicorn-h11": ("uvicorn", "--http", "h11", "--port", "PORT", "in_starlette"),
    "uvicorn-httptools": ("uvicorn", "--http", "httptools", "--port", "PORT", "in_fastapi"),
    "granian-starlette": ("granian", "--interface", "asgi", "--port", "PORT", "in_starlette"),
    "granian-fastapi": ("granian", "--interface", "asgi", "--port", "PORT", "in_fastapi"),
    "hypercorn-starlette": ("hypercorn", "--bind", "127.0.0.1:PORT", "in_starlette"),
    "hypercorn-fastapi": ("hypercorn", "--bind", "127.0.0.1:PORT", "in_fastapi"),
}


EVERY_TIME = ("uvicorn-httptools", "granian-starlette")
EACH_SERVER = [
    pytest.param(arguments, id=name, marks=() if name in EVERY_TIME else pytest.mark.nightly)
    for name, arguments in SERVERS.items()
]


@pytest.fixture(scope="module", params=EACH_SERVER)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a server in a process of its own, started by its own command."""
    port = free_port()
    *arguments, host = (each.replace("PORT", str(port)) for each in request.param)
    command = [sys.executable, "-m", *arguments, f"tests.support.served.mounted:{host}"]
    with running(command, cwd=Path(__file__).parents[2], env=environment()) as process:
        wait_until(lambda: process.poll() is not None or is_served(port))
        yield port
        process.terminate()
        process.wait(PATIENCE)


def is_served(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/tools/ready").status_code == 200
    except httpx2.TransportError:
        return False


@both_eras
async def test_every_server_serves_calls_and_streams(port: int, mode: str) -> None:
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with Client(f"http://127.0.0.1:{port}/tools/mcp", mode=mode) as client:
        assert (await client.call_tool("where", {})).structured_content == {"place": "here"}
        counted = await client.call_tool("count_up", {"to": 3}, progress_callback=hear)
        assert (counted.structured_content, heard) == ({"result": 3}, [1, 2, 3])


async def test_a_client_that_leaves_is_noticed_behind_every_server(port: int) -> None:
    async with Client(f"http://127.0.0.1:{port}/tools/mcp") as client:

        async def changed(event: str, before: Mapping[str, int]) -> None:
            async with asyncio.timeout(PATIENCE):
                while (await client.call_tool("stays", {})).structured_content[event] == before[event]:
                    pass

        before = (await client.call_tool("stays", {})).structured_content
        with Wire(port) as wire:
            wire.send(modern_call("stay").replace(b"/mcp", b"/tools/mcp", 1))
            await changed("began", before)
        await changed("left", before)

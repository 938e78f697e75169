"""Who calls over HTTP is known to apcore's access rules."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from apcore import ACL, ACLRule, Executor, Identity
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from apcore_mcp import async_serve, attach
from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.edge.http.server import HttpServer
from tests.support.http_serving import hosting, listening
from tests.support.modules import Resize, registry_of
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

TOKENS = {"ada": "a-token-that-only-ada-has", "eve": "a-token-that-only-eve-has"}
CALLERS = {
    "ada": {"token": TOKENS["ada"], "roles": ["editor"]},
    "eve": {"token": TOKENS["eve"], "roles": ["reader"]},
}


@pytest.mark.requirement("NFR-SEC-001", "FR-ERROR-003", "C-05")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_rules_about_roles_hold_over_http(mode: str) -> None:
    rule = ACLRule(callers=["*"], targets=["*"], effect="allow", conditions={"roles": ["editor"]})
    executor = Executor(registry_of(image__resize=Resize()), acl=ACL([rule], default_effect="deny"))
    config = make_config({"auth": {"callers": CALLERS}, "response": {"dialect": "plain"}})
    runtime = create_server(ServerOptions(config=config))
    attach(runtime, executor)
    app = runtime.http()
    async with asyncio.timeout(3 * PATIENCE), listening(HttpServer(app, config.http)) as port:
        await app.start()
        said = {}
        for name, token in TOKENS.items():
            async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http:
                way = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
                async with Client(way, mode=mode) as client:
                    result = await client.call_tool("image.resize", {"width": 2})
                    said[name] = result.content[0].text  # type: ignore[union-attr]
        await app.stop(0.1)
    assert said == {"ada": '{"width": 2, "height": 1}', "eve": "Access denied"}


class Keys:
    """Knows callers by a header that no setting of the server is about."""

    async def authenticate(self, headers: dict[str, str]) -> Identity | None:
        types = {TOKENS["ada"]: "human", TOKENS["eve"]: "agent"}
        found = types.get(headers.get("x-api-key", ""))
        return None if found is None else Identity(found, type=found)


@pytest.mark.requirement("NFR-SEC-001", "C-05")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_rules_about_what_an_authenticator_found_hold_where_the_application_is_mounted(mode: str) -> None:
    rule = ACLRule(callers=["*"], targets=["*"], effect="allow", conditions={"identity_types": ["human"]})
    options = {"authenticator": Keys(), "acl": ACL([rule], default_effect="deny")}
    said = {}
    async with async_serve(registry_of(image__resize=Resize()), **options) as made:
        combined = Starlette(routes=[Mount("/tools", made)])
        async with hosting(combined) as address:
            for name, token in TOKENS.items():
                async with httpx2.AsyncClient(headers={"x-api-key": token}) as http:
                    way = streamable_http_client(f"{address}/tools/mcp", http_client=http)
                    async with Client(way, mode=mode) as client:
                        result = await client.call_tool("image.resize", {"width": 2})
                        said[name] = result.content[0].text  # type: ignore[union-attr]
            async with httpx2.AsyncClient() as http:
                assert (await http.post(f"{address}/tools/mcp", json={})).status_code == 401
    assert said == {"ada": '{"width": 2, "height": 1}', "eve": "Access denied"}

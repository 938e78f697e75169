"""Actions as MCP tools: who sees them, who can call them, and whose documents are meant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.knowledge.port import Documents
from dragoman.knowledge.standing import TENANT_KEY
from dragoman.testing import open_server
from tests.support.answers import error_in
from tests.support.asgi import Driver
from tests.support.gateway import Signer, create_args
from tests.support.gateway_serving import (
    INTERNAL,
    NOBODY,
    TOKEN,
    Answer,
    answer_in,
    internal,
    keep_keys,
    open_gateway,
)
from tests.support.http_wire import INITIALIZE, LATEST, message, modern, request

ALL = {f"knowledge.{name}_document" for name in ("create", "update", "delete", "move")} | {"knowledge.query_knowledge"}
MEMORY: dict[str, Any] = {"gateway": {"enabled": True}, "storage": {"engine": "memory"}}


def is_seen(tools: list[dict[str, Any]]) -> bool:
    """Whether the actions are among the tools: all of them or none."""
    found = {tool["name"] for tool in tools if tool["name"].startswith("knowledge")}
    assert found in (ALL, set())
    return bool(found)


def headers_of(token: str | None) -> dict[str, str | None]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


async def sees_actions(driver: Driver, token: str | None = TOKEN) -> bool:
    """Whether a client is shown the actions, in either era, and can call them exactly then."""
    listed = await driver.ask(modern("tools/list", {}, headers_of(token)))
    opened = await driver.ask(request(INITIALIZE, headers_of(token)))
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": LATEST, **headers_of(token)}
    assert (await driver.ask(request(message("notifications/initialized"), session))).status == 202
    again = await driver.ask(request(message("tools/list", {}, 1), session))
    seen = is_seen(listed.message["result"]["tools"])
    assert is_seen(again.message["result"]["tools"]) is seen
    for action in ALL:
        answer = await call(driver, action, {"document_id": "none"}, token)
        if seen:
            assert answer.code == "INVALID_ARGUMENT"
        else:
            assert answer == await call(driver, f"{action}s", {}, token), "there is no difference to no such tool"
    return seen


async def call(
    driver: Driver, name: str, arguments: Mapping[str, Any], token: str | None = TOKEN, meta: Any = None
) -> Answer:
    asked = modern("tools/call", {"name": name, "arguments": arguments}, headers_of(token), meta=meta)
    result = (await driver.ask(asked)).message["result"]
    if result["isError"] and error_in(result)["code"] == "NOT_FOUND":
        return Answer(code="NOT_FOUND")
    return answer_in(result)


async def test_whoever_started_the_process_is_the_owner_of_the_local_tenant() -> None:
    args = create_args()
    async with open_server(config=MEMORY) as server:
        client = await server.client()
        assert is_seen(await client.list_tools())
        created = answer_in(await client.call_tool("knowledge.create_document", args))
        moved = {"document_id": args["document_id"], "new_parent_id": "root"}
        assert answer_in(await client.call_tool("knowledge.move_document", moved)).code is None
        documents = server.runtime.facilities.storage.port(Documents)
        assert await documents.get("local", args["document_id"]) is not None
    uri = f"/knowledge/documents/local/{args['document_id']}"
    assert created.data == {"id": args["document_id"], "revision": 1, "web_uri": uri}


async def test_without_the_gateway_there_are_no_actions() -> None:
    async with open_server(config={"storage": {"engine": "memory"}}) as server:
        assert not is_seen(await (await server.client()).list_tools())


async def test_whoever_brings_the_secret_of_the_data_directory_owns_the_local_tenant(tmp_path: Path) -> None:
    await keep_keys(tmp_path, Signer())
    args = create_args()
    async with open_gateway(NOBODY, tmp_path) as gateway:
        assert await sees_actions(gateway.driver, gateway.local_secret)
        assert not await sees_actions(gateway.driver, None), "a loopback address is everybody's behind a proxy"
        created = await call(gateway.driver, "knowledge.create_document", args, gateway.local_secret)
        assert created.code is None
        assert await gateway.documents.get("local", args["document_id"]) is not None


async def test_where_others_could_connect_the_secret_is_nothing(tmp_path: Path) -> None:
    await keep_keys(tmp_path, Signer())
    async with open_gateway(NOBODY, tmp_path) as gateway:
        secret = gateway.local_secret
    async with open_gateway(NOBODY, tmp_path, is_near=False) as gateway:
        assert not await sees_actions(gateway.driver, secret)


async def test_a_setting_makes_an_owner_of_everybody_who_reaches_the_address(tmp_path: Path) -> None:
    await keep_keys(tmp_path, Signer())
    settings = {"auth": {"callers": {}, "local_owner": True}}
    for is_near in (True, False):
        async with open_gateway(settings, tmp_path, is_near=is_near) as gateway:
            assert await sees_actions(gateway.driver, None) is is_near
    assert not (tmp_path / "keys" / "local").exists()


async def test_an_embedded_application_shows_them_to_nobody_who_is_anonymous(tmp_path: Path) -> None:
    await keep_keys(tmp_path, Signer())
    config = {"gateway": {"enabled": True}, "storage": {"data_dir": str(tmp_path)}}
    app = dragoman.http_app(config=config, allow_unauthenticated=True)
    await app.start()
    try:
        assert not await sees_actions(Driver(app), None)
    finally:
        await app.stop(0.1)


@pytest.mark.parametrize(("tenants", "is_shown"), [(("acme",), True), (("acme", "globex"), True), ((), False)])
@pytest.mark.parametrize("is_near", [True, False])
async def test_a_caller_with_a_token_sees_them_if_it_has_a_tenant(
    tenants: tuple[str, ...], is_shown: bool, is_near: bool
) -> None:
    settings = {"auth": {"callers": {INTERNAL: internal("owner", tenants=tenants)}}}
    async with open_gateway(settings, is_near=is_near) as gateway:
        # Of several tenants one has to be named, before anything else is looked at.
        assert await sees_actions(gateway.driver) is is_shown


async def test_a_caller_with_several_tenants_names_the_one_that_it_means() -> None:
    settings = {"auth": {"callers": {INTERNAL: internal("owner", tenants=("acme", "globex"))}}}
    args, name = create_args(), "knowledge.create_document"
    async with open_gateway(settings) as gateway:
        unnamed = await call(gateway.driver, name, args)
        assert (unnamed.code, unnamed.details["reason"]) == ("INVALID_ARGUMENT", "which_tenant")
        assert unnamed.details["tenants"] == ["acme", "globex"]
        for tenant in ("other", "", "local", 1, ["acme"], {"a": 1}):
            foreign = await call(gateway.driver, name, args, meta={TENANT_KEY: tenant})
            assert (foreign.code, foreign.details["reason"]) == ("UNAUTHORIZED", "other_tenant")
        for tenant in ("acme", "globex"):
            assert (await call(gateway.driver, name, args, meta={TENANT_KEY: tenant})).code is None
            assert await gateway.documents.get(tenant, args["document_id"]) is not None
        assert [event.tenant for event in await gateway.events()] == ["acme", "globex"]


@pytest.mark.requirement("MC-RBAC-04")
async def test_an_alias_that_the_token_grants_is_noted_over_mcp_too() -> None:
    callers = {"cody": {"token": "a-token-of-cody-himself", "roles": ["codex"], "tenants": ["acme"]}}
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        for _ in range(2):
            made = await call(gateway.driver, "knowledge.create_document", create_args(), "a-token-of-cody-himself")
            assert made.code is None
        noted = [each for each in await gateway.events() if each.event == "role.deprecation"]
        assert [(each.subject, each.tenant, each.principal) for each in noted] == [("codex", "acme", "cody")]

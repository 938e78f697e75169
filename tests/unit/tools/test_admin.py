"""Registering tools while the server runs: two switches, a policy, and a closed set of what can be registered."""

from __future__ import annotations

import asyncio
import json
from itertools import product
from typing import Any

import pytest

from dragoman import tool
from dragoman.changes import ToolRegistered, ToolRemoved
from dragoman.edge.connection import TransportType
from dragoman.errors import DuplicateTool, DynamicRegistrationOff
from dragoman.testing import MemoryClient, SequentialIds, open_server
from dragoman.tools.builtin.admin import CANONICAL_SCHEMAS
from dragoman.tools.builtin.echo import echo_tool
from tests.support.answers import error_in

REGISTER, UNREGISTER = "admin/registerTool", "admin/unregisterTool"


def switched(one: bool = True, other: bool = True, mode: str = "local_stdio_only") -> dict[str, Any]:
    return {
        "tools": {"adminRegistrationEnabled": one, "adminPolicy": {"mode": mode}},
        "security": {"dynamicRegistrationEnabled": other},
    }


async def names(client: MemoryClient) -> list[str]:
    return [listed["name"] for listed in await client.list_tools()]


@tool
async def zebra() -> str:
    return "stripes"


@pytest.mark.requirement("FND-ADMIN-01", "FND-ADMIN-02")
@pytest.mark.parametrize(("one", "other"), list(product([False, True], repeat=2)))
async def test_admin_tools_exist_only_when_both_switches_are_on(one: bool, other: bool) -> None:
    async with open_server([], switched(one, other)) as server:
        client = await server.client()
        on = one and other
        assert server.runtime.config.is_dynamic_registration_effective() is on
        assert [name for name in await names(client) if name.startswith("admin/")] == (
            [REGISTER, UNREGISTER] if on else []
        )
        if not on:
            for name in (REGISTER, UNREGISTER):
                arguments = {"toolType": "echo", "name": "mine"}
                assert error_in(await client.call_tool(name, arguments))["code"] == "NOT_FOUND"
            with pytest.raises(DynamicRegistrationOff):
                server.runtime.catalogue.register(echo_tool(), is_dynamic=True)
            assert await names(client) == ["health"]


@pytest.mark.requirement("FND-ADMIN-03", "FND-ADMIN-04", "FND-ADMIN-05")
@pytest.mark.parametrize(
    ("mode", "transport", "said"),
    [
        ("deny_all", "stdio", "Admin operations are disabled"),
        ("deny_all", "http", "Admin operations are disabled"),
        ("local_stdio_only", "stdio", None),
        ("local_stdio_only", "http", "Admin operations only allowed via stdio"),
        ("local_stdio_only", "sse", "Admin operations only allowed via stdio"),
        ("token", "stdio", "Token mode not supported in v0.1"),
        ("token", "http", "Token mode not supported in v0.1"),
    ],
)
async def test_policy_decides_by_mode_and_transport(mode: str, transport: TransportType, said: str | None) -> None:
    async with open_server([zebra], switched(mode=mode)) as server:
        client = await server.connect(transport).handshake()
        before = await names(client)
        for name, arguments in ((REGISTER, {"toolType": "echo", "name": "a"}), (UNREGISTER, {"name": "zebra"})):
            result = await client.call_tool(name, arguments)
            if said is None:
                assert result["isError"] is False
            else:
                error = error_in(result)
                assert (error["code"], error["message"]) == ("UNAUTHORIZED", said)
        if said is not None:
            assert await names(client) == before


@pytest.mark.requirement("FND-ADMIN-04", "FND-ADMIN-05")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (REGISTER, {"toolType": "echo", "name": "a", "inputSchema": {}}),
        (REGISTER, {"toolType": "agentProxy", "name": "a"}),
        (REGISTER, {"toolType": "echo", "name": "health"}),
        (REGISTER, {"toolType": "echo", "name": "zebra"}),
        (UNREGISTER, {"name": "health"}),
        (UNREGISTER, {"name": "nobody"}),
    ],
    ids=str,
)
async def test_a_call_that_the_policy_refuses_learns_nothing_else(name: str, arguments: dict[str, Any]) -> None:
    async with open_server([zebra], switched()) as server:
        error = error_in(await (await server.connect("http").handshake()).call_tool(name, arguments))
        assert (error["code"], error["message"]) == ("UNAUTHORIZED", "Admin operations only allowed via stdio")
        assert error_in(await (await server.client()).call_tool(name, arguments))["message"] != error["message"]


async def test_calls_that_do_not_come_over_stdio_are_not_local() -> None:
    async with open_server([], switched()) as server:
        outcome = await server.runtime.call(REGISTER, {"toolType": "echo", "name": "a"})
        assert outcome.error is not None
        assert outcome.error.code == "UNAUTHORIZED"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"name": "a"},
        {"toolType": "echo"},
        {"toolType": "shell", "name": "a"},
        {"toolType": "Echo", "name": "a"},
        {"toolType": None, "name": "a"},
        {"toolType": "echo", "name": ""},
        {"toolType": "echo", "name": "no spaces"},
        {"toolType": "echo", "name": "zebra"},
        {"toolType": "echo", "name": "a", "handler": "rm -rf /"},
    ],
    ids=str,
)
async def test_what_cannot_be_registered_is_refused_and_nothing_changes(arguments: dict[str, Any]) -> None:
    async with open_server([zebra], switched()) as server:
        client = await server.client()
        before = await names(client)
        assert error_in(await client.call_tool(REGISTER, arguments))["code"] == "INVALID_ARGUMENT"
        assert await names(client) == before


@pytest.mark.requirement("FND-ADMIN-07", "FND-ADMIN-09")
@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("echo", {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}),
        ("health", {"type": "object", "properties": {}, "additionalProperties": False}),
    ],
)
async def test_registered_tool_has_the_canonical_schema_and_the_built_in_handler(
    kind: str, schema: dict[str, Any]
) -> None:
    async with open_server([zebra], switched(), ids=SequentialIds()) as server:
        client = await server.client()
        result = await client.call_tool(REGISTER, {"toolType": kind, "name": "m/mine", "description": "Mine."})
        assert result["content"] == [
            {"type": "text", "text": f'{{"success":true,"name":"m/mine","toolType":"{kind}"}}'}
        ]
        listed = await client.list_tools()
        assert [each["name"] for each in listed] == [REGISTER, UNREGISTER, "health", "m/mine", "zebra"]
        (mine,) = [each for each in listed if each["name"] == "m/mine"]
        assert mine["description"] == "Mine."
        assert {key: value for key, value in mine["inputSchema"].items() if key != "$schema"} == schema
        answered = await client.call_tool("m/mine", {"message": "hi"} if kind == "echo" else {})
        told = json.loads(answered["content"][0]["text"])
        assert (answered["isError"], told.get("message"), "status" in told) == (
            (False, "hi", False) if kind == "echo" else (False, None, True)
        )
        assert error_in(await client.call_tool("m/mine", {"message": 5}))["code"] == "INVALID_ARGUMENT"


@pytest.mark.requirement("FND-ADMIN-07")
async def test_agent_proxy_has_a_schema_and_cannot_be_registered_while_there_are_no_agents() -> None:
    assert CANONICAL_SCHEMAS["agentProxy"] == {
        "type": "object",
        "properties": {"targetAgentId": {"type": "string"}, "message": {"type": "object"}},
        "required": ["targetAgentId", "message"],
    }
    async with open_server([], switched()) as server:
        client = await server.client()
        error = error_in(await client.call_tool(REGISTER, {"toolType": "agentProxy", "name": "a"}))
        assert (error["code"], error["details"]["reason"]) == ("INVALID_ARGUMENT", "no_handler")


@pytest.mark.requirement("FND-ADMIN-08")
@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"required": ["message"], "properties": {"message": {"type": "string"}}, "type": "object"}, True),
        ({"type": "object", "properties": {"message": {"type": "string"}}}, False),
        (
            {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"], "title": ""},
            False,
        ),
        ({}, False),
    ],
)
async def test_schema_that_is_given_must_be_the_canonical_one(schema: dict[str, Any], fits: bool) -> None:
    async with open_server([], switched()) as server:
        client = await server.client()
        result = await client.call_tool(REGISTER, {"toolType": "echo", "name": "mine", "inputSchema": schema})
        assert result["isError"] is not fits
        if not fits:
            assert error_in(result)["code"] == "INVALID_ARGUMENT"
        assert ("mine" in await names(client)) is fits


@pytest.mark.requirement("FND-ADMIN-10", "FND-ADMIN-11", "FND-CORR-04", "FND-CORR-08")
async def test_changes_are_logged_as_warnings_under_the_ids_of_their_calls() -> None:
    async with open_server([], switched()) as server:
        client = await server.client()
        await client.call_tool(REGISTER, {"toolType": "echo", "name": "mine"}, {"correlationId": "my own"})
        assert (await client.call_tool(UNREGISTER, {"name": "mine"}))["isError"] is False
        warnings = [
            (entry["message"], entry["runId"], entry["correlationId"])
            for entry in server.log
            if entry["level"] == "warn"
        ]
        registered, removed = [(entry["runId"], entry["correlationId"]) for entry in server.records]
        assert registered[1] == "my own"
        assert warnings == [
            ("Dynamic tool registered: mine (type: echo)", *registered),
            ("Tool unregistered: mine", *removed),
        ]
        assert await names(client) == [REGISTER, UNREGISTER, "health"]


@pytest.mark.requirement("FND-ADMIN-11")
async def test_unregistering_what_is_not_there_is_not_found() -> None:
    async with open_server([], switched()) as server:
        client = await server.client()
        assert error_in(await client.call_tool(UNREGISTER, {"name": "nobody"}))["code"] == "NOT_FOUND"


async def test_every_client_hears_of_a_change_at_once() -> None:
    async with open_server([], switched()) as server:
        one, other = await server.client(), await server.client()
        await one.call_tool(REGISTER, {"toolType": "echo", "name": "mine"})
        await asyncio.sleep(0)
        for client in (one, other):
            heard = [message.get("method") for message in client.received()]
            assert heard.count("notifications/tools/list_changed") == 1
            assert "mine" in await names(client)
        assert (await other.call_tool("mine", {"message": "hi"}))["isError"] is False


# The server's own tools.

OWN = ["health", REGISTER, UNREGISTER, "memory_store", "result_continue"]
RESERVED = [*OWN, "admin/other", "agent/sendMessage", "memory_anything"]


def with_all(**more: Any) -> dict[str, Any]:
    settings = switched()
    settings["tools"] |= {"memory_enabled": True}
    return {**settings, "storage": {"engine": "memory"}, "response": {"dialect": "envelope"}, **more}


@pytest.mark.parametrize("name", OWN)
async def test_a_tool_of_the_server_cannot_be_removed(name: str) -> None:
    async with open_server([zebra], with_all()) as server:
        client = await server.client()
        before = await names(client)
        assert name in before
        assert (await client.call_tool(UNREGISTER, {"name": name}))["isError"] is True
        assert await names(client) == before
        assert (await client.call_tool(UNREGISTER, {"name": "zebra"}))["isError"] is False


@pytest.mark.parametrize("settings", [with_all(), switched()], ids=["served", "not served"])
@pytest.mark.parametrize("name", RESERVED)
async def test_a_name_of_the_server_cannot_be_taken(name: str, settings: dict[str, Any]) -> None:
    async with open_server([], settings) as server:
        client = await server.client()
        before = await names(client)
        assert (await client.call_tool(REGISTER, {"toolType": "echo", "name": name}))["isError"] is True
        assert await names(client) == before


@pytest.mark.parametrize("name", OWN)
async def test_another_process_cannot_remove_or_replace_a_tool_of_the_server(name: str) -> None:
    async with open_server([], with_all()) as server:
        before = server.runtime.catalogue.get(name)
        server.runtime.apply(ToolRemoved(name))
        with pytest.raises(DuplicateTool):
            server.runtime.apply(ToolRegistered("echo", name, "Not the real one."))
        assert server.runtime.catalogue.get(name) is before


@pytest.mark.requirement("FND-CORR-04", "FND-LIFE-08")
async def test_a_change_that_another_process_tells_of_is_logged_under_the_id_of_the_call_or_one_of_its_own() -> None:
    async with open_server([], switched(), ids=SequentialIds()) as server:
        for correlation_id in ("theirs", None):
            server.runtime.apply(ToolRegistered("echo", "mine", "Says it again.", None, correlation_id))
            server.runtime.apply(ToolRemoved("mine", correlation_id))
        logged = [(entry["message"], entry["correlationId"]) for entry in server.log]
    registered, removed = "Dynamic tool registered: mine (type: echo)", "Tool unregistered: mine"
    assert logged == [(registered, "theirs"), (removed, "theirs"), (registered, "corr-1"), (removed, "corr-2")]

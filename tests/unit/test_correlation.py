"""Which id stands where: the client's or a generated one per request, one per connection, one per run."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dragoman import ToolContext
from dragoman.edge.connection import Connection
from dragoman.ids import RandomIds
from dragoman.protocol.session import Request
from dragoman.testing import ManualClock, MemoryClient, SequentialIds, TestServer, open_server
from dragoman.tools.tool import Tool, ToolDefinition, define_tool
from tests.support.waiting import PATIENCE


class Probe:
    """A tool that keeps what its handler was given."""

    def __init__(self) -> None:
        self.arguments: list[dict[str, Any]] = []
        self.contexts: list[ToolContext] = []
        self.begun = asyncio.Event()
        definition = ToolDefinition(name="probe", description="Looks.", input_schema={"type": "object"})
        self.tool: Tool = define_tool(definition, self._run)

    async def _run(self, arguments: dict[str, Any], context: ToolContext) -> None:
        self.arguments.append(arguments)
        self.contexts.append(context)
        self.begun.set()
        context.logger.info("looked")
        if "fail" in arguments:
            raise RuntimeError("on purpose")
        if "wait" in arguments:
            await context.cancellation.wait()
            context.cancellation.raise_if_set()


def is_uuid4(text: str) -> bool:
    return str(uuid.UUID(text)) == text and uuid.UUID(text).version == 4 and uuid.UUID(text).variant == uuid.RFC_4122


def ids_of(result: dict[str, Any]) -> tuple[str, str]:
    """The run and correlation ids of a call's result."""
    return result["_meta"]["dragoman/runId"], result["_meta"]["dragoman/correlationId"]


# Per request


@pytest.mark.requirement("FND-CORR-01", "FND-CORR-03")
async def test_the_correlation_id_in_meta_is_used_and_one_in_the_arguments_is_only_an_argument() -> None:
    probe = Probe()
    async with open_server([probe.tool], ids=SequentialIds()) as server:
        client = await server.client()
        arguments = {"correlationId": "argument", "_meta": {"correlationId": "argument"}}
        given = await client.call_tool("probe", arguments, {"correlationId": "mine", "unknown": {"x": 1}})
        generated = await client.call_tool("probe", arguments)
        assert [ids_of(given), ids_of(generated)] == [("run-1", "mine"), ("run-2", "corr-1")]
        assert probe.arguments == [arguments, arguments]
        assert [context.correlation_id for context in probe.contexts] == ["mine", "corr-1"]


@pytest.mark.requirement("FND-CORR-03")
async def test_meta_never_reaches_the_handler_and_unknown_keys_have_no_effect() -> None:
    probe = Probe()
    async with open_server([probe.tool], ids=SequentialIds(), clock=ManualClock()) as server:
        client = await server.client()
        plain = await client.call_tool("probe", {"a": 1})
        unknown = {"runId": "forged", "admin": True, "": [], "deep": {"a": [1]}}
        decorated = await client.call_tool("probe", {"a": 1}, unknown)
        assert probe.arguments == [{"a": 1}, {"a": 1}]
        assert (decorated["content"], ids_of(decorated)) == (plain["content"], ("run-2", "corr-2"))


@pytest.mark.requirement("FND-CORR-01")
@pytest.mark.parametrize("given", ["x", "x" * 128, " ~!", "0f8fad5b-d9cb-469f-a165-70867728950e"])
async def test_up_to_128_printable_ascii_characters_are_a_correlation_id(given: str) -> None:
    async with open_server(ids=SequentialIds()) as server:
        client = await server.client()
        assert ids_of(await client.call_tool("health", meta={"correlationId": given})) == ("run-1", given)


@pytest.mark.requirement("FND-CORR-01")
@pytest.mark.parametrize(
    "given", ["", "x" * 129, "a\nb", "a\x00", "\x7f", "é", "😀", 5, 1.5, None, True, [], {}, ["x"]]
)
async def test_anything_else_is_replaced_by_a_generated_id(given: Any) -> None:
    async with open_server(ids=SequentialIds()) as server:
        client = await server.client()
        assert ids_of(await client.call_tool("health", meta={"correlationId": given})) == ("run-1", "corr-1")


@pytest.mark.requirement("FND-CORR-02", "FND-CORR-08")
async def test_without_one_each_call_gets_fresh_ids_that_are_uuids() -> None:
    async with open_server() as server:
        client = await server.client()
        ids = [ids_of(await client.call_tool("health")) for _ in range(3)]
        every = [id for pair in ids for id in pair]
        assert (len(set(every)), all(map(is_uuid4, every))) == (6, True)


# Per connection


@pytest.mark.requirement("FND-CORR-05")
async def test_a_connection_has_one_uuid_for_life_and_no_two_have_the_same() -> None:
    async with open_server() as server:
        client, other = server.connect(), server.connect()
        at_open = client.connection.correlation_id
        client.send(b"garbage\n")
        await client.handshake()
        client.send(b"garbage\n")
        seen = [message["error"]["data"]["correlationId"] for message in client.received() if "error" in message]
        assert seen == [at_open, at_open]
        client.disconnect()
        assert client.connection.correlation_id == at_open
        assert is_uuid4(at_open)
        assert other.connection.correlation_id != at_open


async def error_of(client: MemoryClient, line: bytes) -> dict[str, Any]:
    before = len(client.received())
    client.send(line + b"\n")
    while len(client.received()) == before:
        await client.wire.wait()
    error: dict[str, Any] = client.received()[before]["error"]
    return error


PROTOCOL_ERRORS = [
    (-32700, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"correlationId":"mine"}}', "conn-1"),
    (-32600, b'{"jsonrpc":"2.0","id":1,"params":{"_meta":{"correlationId":"mine"}}}', "mine"),
    (-32600, b'{"jsonrpc":"1.0","id":1,"method":"ping","params":{"_meta":{"correlationId":"mine"}}}', "mine"),
    (-32600, b'{"jsonrpc":"2.0","id":{},"method":"ping","params":{"_meta":{"correlationId":"mine"}}}', "mine"),
    (-32600, b'{"jsonrpc":"2.0","id":{},"method":"ping","params":{"_meta":{"correlationId":""}}}', "conn-1"),
    (-32600, b'{"jsonrpc":"2.0","id":{},"method":"ping","params":{"_meta":5}}', "conn-1"),
    (-32600, b'{"jsonrpc":"2.0","id":{},"method":"ping","params":[]}', "conn-1"),
    (-32600, b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', "conn-1"),
    (-32601, b'{"jsonrpc":"2.0","id":1,"method":"no/such","params":{"_meta":{"correlationId":"mine"}}}', "mine"),
    (-32601, b'{"jsonrpc":"2.0","id":1,"method":"no/such"}', "conn-1"),
    (-32602, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"correlationId":"mine"}}}', "mine"),
    (-32602, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}', "conn-1"),
    (
        -32602,
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x","_meta":{"correlationId":"mine"}}}',
        "mine",
    ),
    (-32601, b'{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"_meta":{"correlationId":"mine"}}}', "mine"),
]


@pytest.mark.requirement("FND-CORR-06", "FND-CORR-04", "FND-CORR-08")
@pytest.mark.parametrize(("code", "line", "correlation_id"), PROTOCOL_ERRORS)
async def test_a_protocol_error_is_under_the_requests_id_if_there_is_one_and_else_the_connections(
    code: int, line: bytes, correlation_id: str
) -> None:
    async with open_server(ids=SequentialIds()) as server:
        client = await server.client()
        error = await error_of(client, line)
        assert (error["code"], error["data"]) == (code, {"correlationId": correlation_id})
        logged = [entry for entry in server.log if entry["message"] == "message refused"]
        assert [(entry["correlationId"], entry["connectionCorrelationId"]) for entry in logged] == [
            (correlation_id, "conn-1")
        ]
        assert "runId" not in logged[0]


@pytest.mark.requirement("FND-CORR-07", "FND-CORR-08")
async def test_a_state_error_is_under_the_connections_id_even_when_the_request_brought_one() -> None:
    async with open_server(ids=SequentialIds()) as server:
        client = server.connect()
        for _ in range(2):
            answer = await client.request("tools/call", {"name": "health", "_meta": {"correlationId": "mine"}})
            assert answer["error"]["data"].keys() == {"code", "message", "correlationId"}
            assert answer["error"]["data"]["correlationId"] == "conn-1"
            if len(client.messages) == 1:
                await client.initialize()


# In the log and in tool errors


@pytest.mark.requirement("FND-CORR-04", "FND-CORR-08")
@pytest.mark.parametrize("arguments", [{}, {"fail": True}])
async def test_every_entry_about_a_call_has_both_of_its_ids(arguments: dict[str, Any]) -> None:
    probe = Probe()
    config = {"logging": {"level": "debug"}}
    async with open_server([probe.tool], config, ids=SequentialIds()) as server:
        client = await server.client()
        before = len(server.log)
        result = await client.call_tool("probe", arguments, {"correlationId": "mine"})
        await server.runtime.runner.drain(PATIENCE)
        entries = server.log[before:]
        assert len(entries) == 2 + len(arguments)
        assert {(entry["runId"], entry["correlationId"]) for entry in entries} == {("run-1", "mine")}
        assert ids_of(result) == ("run-1", "mine")


@pytest.mark.requirement("FND-CORR-04", "FND-CORR-08")
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("no-such-tool", {}, "NOT_FOUND"),
        ("probe", {"fail": True}, "INTERNAL"),
        ("health", {"unexpected": 1}, "INVALID_ARGUMENT"),
        ("probe", {"big": "x" * 2_000_000}, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_a_tool_error_has_both_ids(name: str, arguments: dict[str, Any], code: str) -> None:
    async with open_server([Probe().tool], ids=SequentialIds()) as server:
        client = await server.client()
        result = await client.call_tool(name, arguments, {"correlationId": "mine"})
        error = json.loads(result["content"][0]["text"])
        assert (error["code"], error["runId"], error["correlationId"]) == (code, "run-1", "mine")


def cancel(client: MemoryClient) -> None:
    client.notify("notifications/cancelled", {"requestId": "x", "reason": "changed my mind"})


@pytest.mark.requirement("FND-CORR-04")
@pytest.mark.parametrize("leave", [cancel, MemoryClient.disconnect])
async def test_a_cancelled_call_is_logged_under_its_ids(leave: Callable[[MemoryClient], None]) -> None:
    probe = Probe()
    async with open_server([probe.tool], ids=SequentialIds()) as server:
        client = await server.client()
        params = {"name": "probe", "arguments": {"wait": True}, "_meta": {"correlationId": "mine"}}
        client.begin("tools/call", params, id="x")
        await probe.begun.wait()
        leave(client)
        await server.runtime.runner.drain(PATIENCE)
        assert {(entry["runId"], entry["correlationId"]) for entry in server.log} == {("run-1", "mine")}
        assert server.records[0]["outcome"] == "aborted"


@pytest.mark.requirement("FND-CORR-04")
async def test_a_call_past_its_deadline_is_logged_under_its_ids() -> None:
    probe, clock = Probe(), ManualClock()
    async with open_server(
        [probe.tool], {"tools": {"default_timeout_ms": 1000}}, ids=SequentialIds(), clock=clock
    ) as server:
        client = await server.client()
        call = {"name": "probe", "arguments": {"wait": True}, "_meta": {"correlationId": "mine"}}
        client.begin("tools/call", call, id="x")
        await probe.begun.wait()
        clock.advance(1)
        result = (await client.answer("x"))["result"]
        await server.runtime.runner.drain(PATIENCE)
        assert ids_of(result) == ("run-1", "mine")
        assert [entry["level"] for entry in server.log] == ["info", "warn", "warn"]
        assert {(entry["runId"], entry["correlationId"]) for entry in server.log} == {("run-1", "mine")}


# Where ids come from, and who is told them


@pytest.mark.requirement("FND-CORR-09")
def test_generated_ids_are_distinct_uuids_version_4() -> None:
    ids = RandomIds()
    made = [make() for make in (ids.run_id, ids.correlation_id, ids.connection_correlation_id) for _ in range(300)]
    assert len(set(made)) == 900
    assert all(map(is_uuid4, made))


@pytest.mark.requirement("FND-CORR-09")
async def test_the_source_of_ids_can_be_replaced() -> None:
    class Fixed:
        def run_id(self) -> str:
            return "the-run"

        def correlation_id(self) -> str:
            return "the-request"

        def connection_correlation_id(self) -> str:
            return "the-connection"

    async with open_server(ids=Fixed()) as server:
        client = await server.client()
        assert ids_of(await client.call_tool("health")) == ("the-run", "the-request")
        assert client.connection.correlation_id == "the-connection"
        outcome_ids = [(record["runId"], record["correlationId"]) for record in server.records]
        assert outcome_ids == [("the-run", "the-request")]


@pytest.mark.requirement("FND-CORR-10", "FND-CORR-03")
async def test_a_handler_is_told_the_ids_of_its_call_and_given_a_logger_that_knows_them() -> None:
    probe = Probe()
    async with open_server([probe.tool], ids=SequentialIds(), clock=ManualClock()) as server:
        client = await server.client()
        await client.call_tool("probe", {}, {"correlationId": "mine"})
        (context,) = probe.contexts
        assert (context.run_id, context.correlation_id, context.caller.name) == ("run-1", "mine", "local")
        assert server.log[0] == {
            "timestamp": "2024-01-15T10:30:00.000Z",
            "level": "info",
            "message": "looked",
            "runId": "run-1",
            "correlationId": "mine",
        }


class Recorder:
    """A kernel that keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[Connection, Request]] = []

    async def handle(self, connection: Connection, request: Request) -> dict[str, Any]:
        self.given.append((connection, request))
        return {}


async def client_of(server: TestServer, kernel: Recorder) -> MemoryClient:
    """A client whose handshake is through, on a server whose kernel is another one."""
    client = server.connect("sse")
    client.connection = Connection(replace(client.connection._services, kernel=kernel), client.wire)
    return await client.handshake()


@pytest.mark.requirement("FND-CORR-10")
async def test_a_protocol_handler_is_told_the_request_the_connection_the_transport_and_no_run() -> None:
    kernel = Recorder()
    async with open_server(ids=SequentialIds()) as server:
        client = await client_of(server, kernel)
        await client.request("prompts/list", {"_meta": {"correlationId": "mine"}})
        ((connection, request),) = kernel.given
        assert (connection.correlation_id, connection.wire.type) == ("conn-2", "sse")
        assert request.meta == {"correlationId": "mine"}
        assert "run_id" not in msgspec.structs.asdict(request)
        connection.logger.info("asked")
        assert server.log[-1]["connectionCorrelationId"] == "conn-2"

"""The `agent/*` tools: what they answer, and who may reach whom."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.access.callers import LOCAL, Caller
from dragoman.agents.agent import agents_apart, make_agent
from dragoman.agents.coordinator import Coordinator
from dragoman.agents.ledger import EntryStatus
from dragoman.agents.senders import as_caller, client_source, kept_caller, may_reach
from dragoman.agents.settings import AacpConfig
from dragoman.config import make_config
from dragoman.errors import ConfigError, InternalFailure, InvalidArgument, ToolError
from dragoman.testing import open_server
from dragoman.tools.builtin.admin import CANONICAL_SCHEMAS
from tests.support.aacp import uuid
from tests.support.agents import AgentServer, Gate, agents_served
from tests.support.answers import error_in, value_in
from tests.support.waiting import PATIENCE

REQUEST_ID = "aaaaaaaa-1111-4111-8111-111111111111"
TOOLS = ["getState", "getStatus", "list", "listPending", "sendMessage", "sendRequest"]
ADA, BOB = Caller("ada"), Caller("bob")
LIMITED = ("agent/sendRequest", "agent/sendMessage")
EVERY_TOOL = frozenset(f"tool:agent/{name}" for name in TOOLS)


@agent("echo")
async def echo(message: AgentMessage, ctx: AgentContext) -> Any:
    return {"type": message.type, "payload": message.payload, "source": message.source_agent_id}


@agent("keeper")
async def keeper(message: AgentMessage, ctx: AgentContext) -> Any:
    if message.payload == "bad":
        raise InvalidArgument("not that", {"why": 1})
    ctx.state.update(message.payload)
    return ctx.caller.name


def to(target: str, payload: Any = None, **more: Any) -> dict[str, Any]:
    return {"targetAgentId": target, "message": {"type": "t", "payload": payload}, **more}


@pytest.mark.requirement("FND-AGENT-12")
async def test_the_tools_are_there_while_there_are_agents() -> None:
    coordinator = Coordinator()
    async with open_server(agents=coordinator) as server:
        client = await server.client()
        assert [each["name"] for each in await client.list_tools()] == ["health"]
        coordinator.register(_agent_of(echo))
        assert [each["name"] for each in await client.list_tools()] == [*(f"agent/{name}" for name in TOOLS), "health"]
        coordinator.unregister_agent("echo")
        assert [each["name"] for each in await client.list_tools()] == ["health"]


def _agent_of(function: Any) -> Any:
    return agents_apart([function])[1][0]


@pytest.mark.requirement("FND-AGENT-07", "FND-AGENT-12")
async def test_a_message_is_answered_with_what_the_agent_returns() -> None:
    async with agents_served(echo) as served:
        client = await served.server.client()
        answer = value_in(await client.call_tool("agent/sendMessage", to("echo", [1])))
        assert answer == {"type": "t", "payload": [1], "source": client_source(LOCAL)}
        error = error_in(await client.call_tool("agent/sendMessage", to("nobody")))
        assert (error["code"], error["details"]) == ("NOT_FOUND", {"reason": "unknown_agent"})
        for wrong in (
            {"targetAgentId": "echo"},
            {"targetAgentId": "echo", "message": {"payload": 1}},
            {"targetAgentId": "echo", "message": {"type": "t"}},
            {"targetAgentId": 5, "message": {"type": "t", "payload": 1}},
            to("echo", 1, sourceAgentId="echo"),
        ):
            assert error_in(await client.call_tool("agent/sendMessage", wrong))["code"] == "INVALID_ARGUMENT"
        assert value_in(await client.call_tool("agent/sendRequest", to("echo", 2)))["payload"] == 2
        records = [each for each in served.server.log if each["message"] == "agent message handled"]
        calls = [each for each in served.server.records if each["outcome"] == "success"]
        assert len(calls) == 2
        assert [each["correlationId"] for each in records] == [each["correlationId"] for each in calls]


@pytest.mark.requirement("FND-AGENT-08")
@pytest.mark.parametrize("name", ["agent/sendMessage", "agent/sendRequest"])
async def test_a_message_that_is_too_large_is_refused(name: str) -> None:
    async with agents_served(echo, config={"tools": {"max_payload_bytes": 1024}}) as served:
        client = await served.server.client()
        assert error_in(await client.call_tool(name, to("echo", "é" * 512)))["code"] == "RESOURCE_EXHAUSTED"
        assert value_in(await client.call_tool(name, to("echo", "é" * 400)))["payload"] == "é" * 400
        assert len(await served.page()) == (0 if name == "agent/sendMessage" else 2)


@pytest.mark.requirement("FND-AGENT-08")
@pytest.mark.parametrize("way", ["reliable message", "request", "sent by an agent", "asked by an agent", *LIMITED])
async def test_a_message_has_its_limit_however_it_is_sent(way: str) -> None:
    @agent("asker", effects="ledger")
    async def asker(message: AgentMessage, ctx: AgentContext) -> Any:
        if way == "sent by an agent":
            return await ctx.send("echo", message.payload["about"] * message.payload["count"], type="t")
        return await ctx.request("echo", message.payload["about"] * message.payload["count"], type="t")

    # The limit of the tool is another one, which an operator may raise; it leaves that of messages as it is.
    tool_limits = {name: {"max_payload_bytes": 100_000} for name in LIMITED}
    config = {"tools": {"max_payload_bytes": 1024}, "limits": {"tools": tool_limits}}
    async with agents_served(echo, asker, config=config) as served:
        client, coordinator = await served.server.client(), served.coordinator

        async def send(count: int) -> str | None:
            """The code of the refusal of a message with so many letters of two bytes each."""
            if way in LIMITED:
                raw = await client.call_tool(way, to("echo", "é" * count))
                return error_in(raw)["code"] if raw["isError"] else None
            try:
                if way == "request":
                    await coordinator.send_request("echo", "é" * count, type="t")
                elif way == "reliable message":
                    await coordinator.send_reliable_message("echo", "é" * count, type="t")
                else:
                    await coordinator.send_request("asker", {"about": "é", "count": count})
            except ToolError as error:
                return error.code
            return None

        frame = len('{"type":"t","payload":""}')
        fits = (1024 - frame) // 2
        assert await send(fits) is None
        assert await send(fits + 1) == "RESOURCE_EXHAUSTED"


@pytest.mark.requirement("FND-AGENT-09", "FND-AGENT-11", "FND-AGENT-13")
@pytest.mark.parametrize("most", [1_048_576, 16_384])
async def test_a_long_list_of_agents_is_cut_off_at_the_same_place_each_time(most: int) -> None:
    async with agents_served(echo, config={"response": {"max_response_bytes": most}}) as served:
        client = await served.server.client()
        assert value_in(await client.call_tool("agent/list")) == {"agentIds": ["echo"], "truncated": False}
        names = [f"{number:04}{'x' * 120}" for number in range(2000)]
        for name in reversed(names):
            served.coordinator.register(_named(name))
        answers = [value_in(await client.call_tool("agent/list")) for _ in range(2)]
        assert answers[0] == answers[1]
        found = answers[0]["agentIds"]
        assert answers[0]["truncated"] is True
        assert found == names[: len(found)]
        assert found
        (text,) = (await client.call_tool("agent/list"))["content"]
        assert len(text["text"]) <= min(most, 65_536)
        assert len(text["text"]) > min(most, 65_536) // 4


def _named(name: str) -> Any:
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        return None

    return make_agent(name, handle)


@pytest.mark.requirement("FND-AGENT-10")
async def test_a_state_is_read_without_its_secrets_and_within_its_limit() -> None:
    async with agents_served(keeper, config={"tools": {"max_state_bytes": 1024}}) as served:
        client = await served.server.client()
        await client.call_tool("agent/sendMessage", to("keeper", {"password": "p", "n": {"token": "t", "x": 1}}))
        assert value_in(await client.call_tool("agent/getState", {"agentId": "keeper"})) == {
            "password": "[REDACTED]",
            "n": {"token": "[REDACTED]", "x": 1},
        }
        await client.call_tool("agent/sendMessage", to("keeper", {f"k{n}": {"token": ""} for n in range(60)}))
        error = error_in(await client.call_tool("agent/getState", {"agentId": "keeper"}))
        assert (error["code"], error["details"]["reason"]) == ("RESOURCE_EXHAUSTED", "state_too_large")
        error = error_in(await client.call_tool("agent/getState", {"agentId": "nobody"}))
        assert error["code"] == "NOT_FOUND"


@pytest.mark.requirement("FND-AACP-12", "FND-AACP-34")
async def test_a_request_has_a_status_that_its_caller_can_read() -> None:
    async with agents_served(echo, keeper) as served:
        client = await served.server.client()
        asked = to("echo", 1, requestId=REQUEST_ID.upper())
        first = value_in(await client.call_tool("agent/sendRequest", asked))
        assert value_in(await client.call_tool("agent/sendRequest", asked)) == first
        status = value_in(await client.call_tool("agent/getStatus", {"requestId": REQUEST_ID}))
        assert {"outcome": "COMPLETED", "status": "completed", "requestId": REQUEST_ID}.items() <= status.items()
        assert (status["response"], status["targetAgentId"], status["seq"]) == (first, "echo", 1)
        assert "error" not in status
        conflict = error_in(await client.call_tool("agent/sendRequest", to("echo", 2, requestId=REQUEST_ID)))
        assert conflict["details"]["reason"] == "request_conflict"
        wrong = error_in(await client.call_tool("agent/sendRequest", to("echo", 2, requestId="1")))
        assert wrong["code"] == "INVALID_ARGUMENT"
        other = REQUEST_ID.replace("1", "2")
        failed = error_in(await client.call_tool("agent/sendRequest", to("keeper", "bad", requestId=other)))
        assert (failed["code"], failed["message"], failed["details"]) == ("INVALID_ARGUMENT", "not that", {"why": 1})
        status = value_in(await client.call_tool("agent/getStatus", {"requestId": other}))
        assert (status["outcome"], status["error"]["message"]) == ("FAILED", "not that")


async def test_a_request_is_unknown_to_everybody_but_its_caller() -> None:
    async with agents_served(echo) as served:
        ada, bob = await served.server.client(ADA), await served.server.client(BOB)
        await ada.call_tool("agent/sendRequest", to("echo", 1, requestId=REQUEST_ID))
        error = error_in(await bob.call_tool("agent/getStatus", {"requestId": REQUEST_ID}))
        assert (error["code"], error["details"]) == ("NOT_FOUND", {"reason": "unknown_request"})
        mine = value_in(await bob.call_tool("agent/sendRequest", to("echo", 2, requestId=REQUEST_ID)))
        assert (mine["payload"], mine["source"]) == (2, client_source(BOB))


@pytest.mark.requirement("FND-AGENT-11")
async def test_requests_that_are_under_way_are_listed_for_their_caller_the_oldest_first() -> None:
    gate = Gate()

    @agent("slow")
    async def slow(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()

    async with agents_served(slow, config={"resources": {"max_concurrent_executions": 200}}) as served:
        send = served.coordinator.send_request
        asked = [asyncio.ensure_future(send("slow", n, request_id=uuid(n), caller=ADA)) for n in range(101)]
        asked.append(asyncio.ensure_future(send("slow", 0, caller=BOB)))
        await gate.arrived.wait()
        ada, bob = await served.server.client(ADA), await served.server.client(BOB)
        listed = value_in(await ada.call_tool("agent/listPending"))
        assert [each["requestId"] for each in listed["requests"]] == [uuid(n) for n in range(100)]
        assert {each["outcome"] for each in listed["requests"]} == {"UNKNOWN"}
        assert listed["truncated"] is True
        assert len(value_in(await bob.call_tool("agent/listPending"))["requests"]) == 1
        gate.opened.set()
        await asyncio.gather(*asked)
        assert value_in(await ada.call_tool("agent/listPending")) == {"requests": [], "truncated": False}


@pytest.mark.requirement("FND-AGENT-11", "FND-AGENT-13")
async def test_a_list_of_pending_requests_is_cut_to_the_response_limit_and_says_so() -> None:
    gate, big = Gate(), "x" * 100_000

    @agent("slow")
    async def slow(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()

    @agent("failing", effects="ledger")
    async def failing(message: AgentMessage, ctx: AgentContext) -> Any:
        raise InternalFailure(big, {"retryable": True})

    limited = {"response": {"max_response_bytes": 8_192}, "resources": {"max_concurrent_executions": 200}}
    async with agents_served(slow, failing, config=limited) as served:
        send, client = served.coordinator.send_request, await served.server.client()
        retried = asyncio.ensure_future(send("failing", 0, request_id=uuid(0)))
        await until_retried(served)
        asked = [asyncio.ensure_future(send("slow", n, request_id=uuid(n))) for n in range(1, 30)]
        await gate.arrived.wait()
        raw = await client.call_tool("agent/listPending")
        listed = value_in(raw)
        assert len(json.dumps(raw)) <= 8_192
        assert (listed["requests"][0]["requestId"], listed["requests"][0]["status"]) == (uuid(0), "retrying")
        found = [each["requestId"] for each in listed["requests"]]
        assert found == [uuid(n) for n in range(len(found))]
        assert listed["truncated"] is True
        assert 1 < len(found) < 30
        assert value_in(await client.call_tool("agent/listPending")) == listed
        gate.opened.set()
        await asyncio.gather(*asked)
        retried.cancel()


async def until_retried(served: AgentServer) -> None:
    """Wait until a message is due to be tried again."""
    async with asyncio.timeout(PATIENCE):
        while not await served.page(statuses=(EntryStatus.RETRYING,)):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.002)


@pytest.mark.requirement("FND-AGENT-13")
async def test_no_agent_tool_answers_with_more_than_the_response_limit() -> None:
    @agent("big")
    async def big(message: AgentMessage, ctx: AgentContext) -> Any:
        if message.payload == "fail":
            raise InvalidArgument("m" * 20_000, {"why": "x" * 20_000})
        if message.payload == "fits":
            return "x" * 3_600
        ctx.state["a"] = "x" * 20_000
        return "x" * 20_000

    limited = {"response": {"max_response_bytes": 8_192}}
    async with agents_served(big, config=limited) as served:
        client = await served.server.client()
        for payload, request_id, code in ((1, uuid(1), "RESULT_TOO_LARGE"), ("fail", uuid(2), "INVALID_ARGUMENT")):
            for name, more in (("agent/sendMessage", {}), ("agent/sendRequest", {"requestId": request_id})):
                for _ in range(2):  # The same answer to a repeat.
                    raw = await client.call_tool(name, to("big", payload, **more))
                    assert len(json.dumps(raw)) <= 8_192
                    error = error_in(raw)
                    assert code in (error["code"], (error.get("details") or {}).get("reason", "").upper())
            raw = await client.call_tool("agent/getStatus", {"requestId": request_id})
            assert len(json.dumps(raw)) <= 8_192
            status = value_in(raw)
            assert status["requestId"] == request_id
            assert "response" not in status
        raw = await client.call_tool("agent/sendRequest", to("big", "fits", requestId=uuid(3)))
        assert value_in(raw) == "x" * 3_600
        raw = await client.call_tool("agent/getStatus", {"requestId": uuid(3)})  # With more around it, it does not fit.
        assert len(json.dumps(raw)) <= 8_192
        assert (value_in(raw)["truncated"], "response" in value_in(raw)) == (True, False)
        raw = await client.call_tool("agent/getState", {"agentId": "big"})
        assert error_in(raw)["details"]["reason"] == "state_too_large"


@pytest.mark.requirement("FND-AACP-11", "FND-AACP-16", "FND-AGENT-11")
async def test_a_request_whose_outcome_stays_unknown_is_listed_as_such_until_an_operator_redrives_it() -> None:
    runs: list[Any] = []

    @agent("worker")
    async def worker(message: AgentMessage, ctx: AgentContext) -> Any:
        runs.append(message.payload)
        if len(runs) == 1:
            raise asyncio.CancelledError
        return "done"

    asked = to("worker", 1, requestId=uuid(1))
    async with agents_served(worker) as served:
        failed: list[str] = []
        served.coordinator.on_message_failed = lambda id, error: failed.append(id)
        client = await served.server.client()
        for _ in range(2):  # The same request gets the same answer, and runs nothing.
            error = error_in(await client.call_tool("agent/sendRequest", asked))
            assert (error["code"], error["details"]["outcome"]) == ("TIMEOUT", "UNKNOWN")
            (listed,) = value_in(await client.call_tool("agent/listPending"))["requests"]
            assert (listed["requestId"], listed["status"], listed["outcome"]) == (uuid(1), "unknown", "UNKNOWN")
            status = value_in(await client.call_tool("agent/getStatus", {"requestId": uuid(1)}))
            assert (status["status"], status["outcome"]) == ("unknown", "UNKNOWN")
        assert (runs, failed) == ([1], [])
        (entry,) = await served.page(kinds=("REQUEST",))
        assert await served.coordinator.redrive(entry.number) is not None
        await served.settled()
        assert value_in(await client.call_tool("agent/listPending")) == {"requests": [], "truncated": False}
        assert value_in(await client.call_tool("agent/sendRequest", asked)) == "done"
        assert runs == [1, 1]


async def test_an_agent_out_of_scope_does_not_exist_for_a_caller() -> None:
    scoped = Caller("ada", scopes=EVERY_TOOL | {"agent:ec*"})
    async with agents_served(echo, keeper) as served:
        client = await served.server.client(scoped)
        assert value_in(await client.call_tool("agent/list")) == {"agentIds": ["echo"], "truncated": False}
        assert value_in(await client.call_tool("agent/sendMessage", to("echo", 1)))["payload"] == 1
        for name, arguments in (
            ("agent/sendMessage", to("keeper")),
            ("agent/sendRequest", to("keeper")),
            ("agent/getState", {"agentId": "keeper"}),
        ):
            error = error_in(await client.call_tool(name, arguments))
            assert (error["code"], error["message"]) == ("NOT_FOUND", "Unknown agent: keeper")


@pytest.mark.parametrize(
    ("scopes", "reached"),
    [
        (None, True),
        (frozenset(), False),
        (frozenset({"agent:a.b"}), True),
        (frozenset({"agent:a"}), False),
        (frozenset({"agent:a*"}), True),
        (frozenset({"agent:*"}), True),
        (frozenset({"*"}), False),
        (frozenset({"agent:b*", "a.b", "agent:a.b.c"}), False),
    ],
)
def test_scopes_name_agents_or_their_beginnings(scopes: frozenset[str] | None, reached: bool) -> None:
    assert may_reach(Caller("x", scopes=scopes), "a.b") is reached


def test_a_client_has_a_source_that_no_agent_can_have_as_its_id() -> None:
    sources = {client_source(each) for each in (LOCAL, ADA, BOB, Caller("ada", issuer="i"))}
    assert len(sources) == 4
    assert all(each.startswith("client:") for each in sources)


@pytest.mark.parametrize(
    "caller", [LOCAL, ADA, Caller("é", frozenset({"r"}), frozenset({"b", "a"}), "https://i", "program")]
)
def test_a_caller_comes_out_of_the_ledger_as_it_was(caller: Caller) -> None:
    found = as_caller(kept_caller(caller))
    assert (found.principal, found.roles, found.scopes, found.client_id) == (
        caller.principal,
        caller.roles,
        caller.scopes,
        caller.client_id,
    )


@pytest.mark.parametrize("name", ["agent/sendMessage", "agent/sendRequest"])
async def test_an_agent_knows_on_whose_behalf_it_was_told(name: str) -> None:
    async with agents_served(keeper) as served:
        client = await served.server.client(ADA)
        assert value_in(await client.call_tool(name, to("keeper", {}))) == "ada"


async def test_waiting_senders_do_not_take_the_slots_that_the_agent_needs() -> None:
    gate = Gate()

    @agent("slow")
    async def slow(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        return message.payload

    async with agents_served(slow, config={"resources": {"max_concurrent_executions": 2}}) as served:
        client = await served.server.client()
        asked = [client.begin("tools/call", {"name": "agent/sendMessage", "arguments": to("slow", n)}) for n in (1, 2)]
        await gate.arrived.wait()
        gate.opened.set()
        answers = [value_in((await client.answer(each))["result"]) for each in asked]
        assert answers == [1, 2]


ADMIN = {
    "tools": {"adminRegistrationEnabled": True, "adminPolicy": {"mode": "local_stdio_only"}},
    "security": {"dynamicRegistrationEnabled": True},
}


@pytest.mark.requirement("FND-ADMIN-06", "FND-ADMIN-07", "FND-ADMIN-09")
async def test_an_agent_proxy_sends_messages_to_agents_for_its_caller() -> None:
    async with agents_served(echo, keeper, config=ADMIN) as served:
        client = await served.server.client()
        for wrong in ({"name": "p"}, {"toolType": "other", "name": "p"}):
            assert error_in(await client.call_tool("admin/registerTool", wrong))["code"] == "INVALID_ARGUMENT"
        told = await client.call_tool("admin/registerTool", {"toolType": "agentProxy", "name": "b/proxy"})
        assert told["isError"] is False, told
        tools = await client.list_tools()
        names = [each["name"] for each in tools]
        assert "b/proxy" in names
        assert names == sorted(names)
        (proxy,) = [each for each in tools if each["name"] == "b/proxy"]
        assert CANONICAL_SCHEMAS["agentProxy"].items() <= proxy["inputSchema"].items()
        answer = value_in(await client.call_tool("b/proxy", to("echo", 1)))
        assert answer == {"type": "t", "payload": 1, "source": client_source(LOCAL)}
        assert error_in(await client.call_tool("b/proxy", to("nobody")))["code"] == "NOT_FOUND"
        wrong_message = {"targetAgentId": "echo", "message": {"payload": 1}}
        assert error_in(await client.call_tool("b/proxy", wrong_message))["code"] == "INVALID_ARGUMENT"
        scoped = await served.server.client(Caller("ada", scopes=frozenset({"tool:b/proxy", "agent:keeper"})))
        assert error_in(await scoped.call_tool("b/proxy", to("echo", 1)))["code"] == "NOT_FOUND"
        assert value_in(await scoped.call_tool("b/proxy", to("keeper", {}))) == "ada"


@pytest.mark.requirement("FND-LIFE-08")
async def test_a_server_uses_the_coordinator_that_it_is_given() -> None:
    @tool
    async def work() -> str:
        return "done"

    coordinator = Coordinator([_agent_of(keeper)])
    async with open_server([work, echo], agents=coordinator) as server:
        assert sorted(coordinator.agents) == ["echo", "keeper"]
        client = await server.client()
        assert value_in(await client.call_tool("agent/list"))["agentIds"] == ["echo", "keeper"]
        assert (await coordinator.send_message("echo", {"type": "t", "payload": 1}))["payload"] == 1
        assert value_in(await client.call_tool("work")) == "done"


@pytest.mark.requirement("FND-CONF-07")
def test_aacp_settings_are_optional_and_bad_ones_are_named() -> None:
    assert make_config({}).aacp == AacpConfig()
    assert (AacpConfig().default_ttl_ms, AacpConfig().max_attempts, AacpConfig().mailbox_size) == (86_400_000, 5, 1000)
    assert make_config({"aacp": {"defaultTtlMs": 5}}).aacp.default_ttl_ms == 5
    bad = {"maxAttempts": 0, "leaseMs": 5, "backoffMultiplier": 0.5, "other": 1, "baseDelayMs": -1}
    with pytest.raises(ConfigError) as refused:
        make_config({"aacp": bad})
    named = " ".join(where for where, _ in refused.value.problems)
    assert len(refused.value.problems) == 5, refused.value.problems
    assert "aacp" in named
    with pytest.raises(ConfigError, match="base_delay_ms"):
        make_config({"aacp": {"baseDelayMs": 20, "maxDelayMs": 10}})


@pytest.mark.requirement("FR-EXEC-007")
@pytest.mark.parametrize("details", [5, ["a"], {"a": object()}], ids=["number", "list", "object"])
async def test_an_error_with_details_that_cannot_be_kept_ends_its_request_all_the_same(details: Any) -> None:
    @agent("odd")
    async def odd(message: AgentMessage, ctx: AgentContext) -> Any:
        raise InvalidArgument("not so", details)

    async with agents_served(odd) as served:
        client = await served.server.client()
        for _ in range(2):
            raw = await client.call_tool("agent/sendRequest", to("odd", 1, requestId=uuid(1)))
            error = error_in(raw)
            assert (error["code"], error["message"]) == ("INVALID_ARGUMENT", "not so")
        status = value_in(await client.call_tool("agent/getStatus", {"requestId": uuid(1)}))
        assert (status["outcome"], status["error"]["message"]) == ("FAILED", "not so")

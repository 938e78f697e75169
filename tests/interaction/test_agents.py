"""Agents behind a real client, over every transport and in both eras, and agents in files that are edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.answers import error_in
from tests.support.processes import ServerProcess
from tests.support.sdk_client import Way, connected, error_of, every_way
from tests.support.served import agents_under_test

pytestmark = pytest.mark.slow

REQUEST_ID = "aaaaaaaa-1111-4111-8111-111111111111"
TOOLS = ["getState", "getStatus", "list", "listPending", "sendMessage", "sendRequest"]


def to(target: str, payload: Any, **more: Any) -> dict[str, Any]:
    return {"targetAgentId": target, "message": {"type": "add", "payload": payload}, **more}


def value(result: Any) -> Any:
    assert not result.is_error, result
    return msgspec.json.decode(result.content[0].text)


@every_way
@pytest.mark.requirement("FND-AGENT-07", "FND-AGENT-09", "FND-AGENT-10", "FND-AGENT-12")
async def test_a_client_talks_to_agents_by_their_tools(way: Way, tmp_path: Path) -> None:
    settings = {"storage.data_dir": str(tmp_path)}
    async with connected(way, agents_under_test, settings) as (client, _):
        listed = [each.name for each in (await client.list_tools()).tools]
        assert listed == [*(f"agent/{name}" for name in TOOLS), "health", "word"]
        agents = value(await client.call_tool("agent/list", {}))
        assert agents == {"agentIds": ["counter", "fails", "passes-on"], "truncated": False}
        assert value(await client.call_tool("agent/sendMessage", to("counter", 2))) == {"count": 2}
        asked = to("passes-on", 3, requestId=REQUEST_ID)
        assert value(await client.call_tool("agent/sendRequest", asked)) == {"count": 5}
        assert value(await client.call_tool("agent/sendRequest", asked)) == {"count": 5}
        assert value(await client.call_tool("agent/getState", {"agentId": "counter"})) == {"count": 5}
        status = value(await client.call_tool("agent/getStatus", {"requestId": REQUEST_ID}))
        assert (status["outcome"], status["response"]) == ("COMPLETED", {"count": 5})
        assert value(await client.call_tool("agent/listPending", {})) == {"requests": [], "truncated": False}
        failed = error_of(await client.call_tool("agent/sendRequest", to("fails", 1)))
        assert (failed["code"], failed["message"], failed["details"]) == ("NOT_FOUND", "nothing here", {"what": 1})
        assert error_of(await client.call_tool("agent/sendMessage", to("nobody", 1)))["code"] == "NOT_FOUND"


@pytest.mark.requirement("FND-AACP-15")
async def test_what_agents_did_is_there_in_the_next_process(tmp_path: Path) -> None:
    way, settings = Way("stdio", "auto"), {"storage.data_dir": str(tmp_path)}
    asked = to("counter", 3, requestId=REQUEST_ID)
    async with connected(way, agents_under_test, settings) as (client, _):
        assert value(await client.call_tool("agent/sendRequest", asked)) == {"count": 3}
    async with connected(way, agents_under_test, settings) as (client, _):
        assert value(await client.call_tool("agent/sendRequest", asked)) == {"count": 3}
        assert value(await client.call_tool("agent/getState", {"agentId": "counter"})) == {"count": 3}
        assert value(await client.call_tool("agent/sendMessage", to("counter", 4))) == {"count": 7}


async def test_two_servers_of_the_same_tools_share_their_agents(tmp_path: Path) -> None:
    way, settings = Way("stdio", "auto"), {"storage.data_dir": str(tmp_path)}
    async with (
        connected(way, agents_under_test, settings) as (one, _),
        connected(way, agents_under_test, settings) as (two, _),
    ):
        counts = [
            value(await each.call_tool("agent/sendMessage", to("counter", 1)))["count"] for each in (one, two) * 3
        ]
        assert counts == [1, 2, 3, 4, 5, 6]
        asked = to("counter", 1, requestId=REQUEST_ID)
        answers = [value(await each.call_tool("agent/sendRequest", asked)) for each in (one, two)]
        assert answers == [{"count": 7}] * 2


AGENT = """
import dragoman

@dragoman.tool
def word() -> str:
    return {word!r}

@dragoman.agent("counter", effects="ledger")
async def counter(message, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + {step}
    return ctx.state["count"]
"""


def test_an_edited_agent_goes_on_with_its_state(tmp_path: Path) -> None:
    file = tmp_path / "edited_agents.py"
    file.write_text(AGENT.format(word="first", step=1))
    settings = {"storage.data_dir": str(tmp_path / "data")}
    with ServerProcess(str(file), "--reload", settings=settings) as server:
        server.handshake()

        def count() -> Any:
            return msgspec.json.decode(server.call("agent/sendRequest", **to("counter", 0))["content"][0]["text"])

        assert (count(), count()) == (1, 2)
        file.write_text(AGENT.format(word="second", step=10))
        server.wait_for_log("tools reloaded")
        assert count() == 12
        file.write_text("import dragoman\n\n@dragoman.tool\ndef word() -> str:\n    return 'third'\n")
        server.wait_for_log("tools reloaded", times=2)
        assert [each["name"] for each in server.list_tools()] == ["health", "word"]
        assert error_in(server.call("agent/sendRequest", **to("counter", 0)))["code"] == "NOT_FOUND"
        assert server.leave() == 0

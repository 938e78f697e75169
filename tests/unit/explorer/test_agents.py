"""What the explorer answers about agents: who sees which message, in pages, and who may redrive a dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.agents.coordinator import Coordinator
from dragoman.errors import ResourceExhausted
from dragoman.explorer.agents import LONGEST_PAYLOAD, MOST_MESSAGES
from tests.support.explorer_page import Answer, Page, eventually, open_explorer

HOSTILE = "<img src=x onerror=alert(1)></script>"
AUTH = {
    "callers": {
        "ada": {"token": "a" * 32},
        "ben": {"token": "b" * 32, "scopes": ["tool:*", "agent:front"]},
        "cy": {"token": "c" * 32, "roles": ["operate", "owner"]},
        "dee": {"token": "d" * 32, "scopes": ["operate"]},
        "eve": {"token": "e" * 32, "scopes": ["tool:*", "agent:*", "metrics"]},
    }
}
ADA, BEN, CY, DEE, EVE = ({"authorization": f"Bearer {letter * 32}"} for letter in "abcde")


class Ways:
    """What the agents of a test are told to do, from outside."""

    def __init__(self) -> None:
        self.is_broken = True
        self.go_on = asyncio.Event()

    def agents(self) -> list[Any]:
        @agent("front", effects="ledger")
        async def front(message: AgentMessage, ctx: AgentContext) -> Any:
            await ctx.send("back", message.payload, type="pass on")
            return {"seen": message.payload}

        @agent("back", effects="ledger")
        async def back(message: AgentMessage, ctx: AgentContext) -> None:
            if self.is_broken and isinstance(message.payload, dict) and message.payload.get("fails"):
                raise ResourceExhausted(HOSTILE, {"retryable": True, "password": "hunter2"})

        @agent("slow", timeout_ms=1)
        async def slow(message: AgentMessage, ctx: AgentContext) -> None:
            await self.go_on.wait()

        @agent("weak", max_restarts=0)
        async def weak(message: AgentMessage, ctx: AgentContext) -> None:
            raise RuntimeError("it broke")

        return [front, back, slow, weak]


class Desk(NamedTuple):
    page: Page
    ways: Ways

    @property
    def coordinator(self) -> Coordinator:
        assert self.page.runtime.agents is not None
        return self.page.runtime.agents

    async def get(self, path: str, **headers: str) -> Any:
        return (await self.page.get(f"/explorer/{path}", **headers)).json

    async def ask(self, payload: Any, target: str = "front", **headers: str) -> Answer:
        arguments = {"targetAgentId": target, "message": {"type": "work", "payload": payload}}
        return await self.page.call("agent/sendRequest", arguments, **headers)

    async def redrive(self, body: Any, **headers: str) -> Answer:
        sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.page.request("POST", "/explorer/redrive", sent, {**self.page.credentials(), **headers})

    async def dead_letter(self, **headers: str) -> Any:
        """The dead letter of a request whose second agent fails."""
        await self.ask({"fails": True}, **headers)
        found = await eventually(lambda: self.get("dead", **headers), lambda seen: seen["messages"])
        return found["messages"][0]


@asynccontextmanager
async def desk(sections: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Desk]:
    ways = Ways()
    values = {"aacp": {"max_attempts": 1}, **(sections or {})}
    async with open_explorer(ways.agents(), values, **settings) as page:
        try:
            yield Desk(page, ways)
        finally:
            ways.go_on.set()


# Agents.


async def test_a_server_without_agents_has_nothing_of_this() -> None:
    @tool
    async def only() -> None:
        """The only tool."""

    async with open_explorer([only]) as page:
        assert (await page.get("/explorer/server")).json["hasAgents"] is False
        for path in ("agents", "messages", "messages/1", "dead"):
            assert (await page.get(f"/explorer/{path}")).status == 404
        body = msgspec.json.encode({"number": 1})
        assert (await page.request("POST", "/explorer/redrive", body, page.credentials())).status == 405


async def test_an_agent_is_shown_with_its_mailbox_its_holder_and_its_limits() -> None:
    async with desk() as at:
        found = await at.get("agents")
        assert (await at.get("server"))["hasAgents"] is True
    assert [each["id"] for each in found["agents"]] == ["back", "front", "slow", "weak"]
    assert found["next"] is None
    assert found["agents"][1] == {
        "id": "front",
        "state": "idle",
        "effects": "ledger",
        "idempotent": False,
        "waiting": 0,
        "oldestSeconds": None,
        "mailbox": 0,
        "mailboxSize": 1000,
        "restarts": 0,
        "maxRestarts": 5,
    }


async def test_an_agent_that_outlives_its_deadline_is_quarantined_and_one_that_fails_too_often_is_stopped() -> None:
    async with desk() as at:
        await at.coordinator.send_reliable_message("slow", 1)
        await at.coordinator.send_reliable_message("slow", 2)
        await at.coordinator.send_reliable_message("weak", 1)

        async def states() -> dict[str, Any]:
            return {each["id"]: each for each in (await at.get("agents"))["agents"]}

        found = await eventually(
            states, lambda seen: (seen["slow"]["state"], seen["weak"]["state"]) == ("quarantined", "stopped")
        )
        assert (found["slow"]["waiting"], found["slow"]["mailbox"]) == (2, 1)
        assert found["slow"]["oldestSeconds"] >= 0
        at.ways.go_on.set()
        await eventually(states, lambda seen: (seen["slow"]["state"], seen["slow"]["waiting"]) == ("idle", 0))


async def test_agents_come_in_pages() -> None:
    async def handle(message: AgentMessage, ctx: AgentContext) -> None:
        """Does nothing."""

    async with desk() as at:
        for number in range(120):
            at.coordinator.register_agent(f"a{number:03}", handle)
        first = await at.get("agents")
        second = await at.get(f"agents?after={first['next']}")
    assert [len(page["agents"]) for page in (first, second)] == [100, 24]
    assert (first["next"], second["next"], second["agents"][0]["id"]) == ("a099", None, "a100")


# Messages.


async def test_a_request_is_shown_with_everything_that_followed_from_it() -> None:
    async with desk() as at:
        assert (await at.ask({"what": HOSTILE, "password": "hunter2"})).status == 200
        listed = await eventually(
            lambda: at.get("messages"), lambda seen: [each["status"] for each in seen["messages"]] == ["completed"] * 2
        )
        request = listed["messages"][1]
        whole = await at.page.get(f"/explorer/messages/{request['number']}")
    assert [(each["messageType"], each["type"], each["targetAgentId"]) for each in listed["messages"]] == [
        ("EVENT", "pass on", "back"),
        ("REQUEST", "work", "front"),
    ]
    assert listed["next"] is None
    found = whole.json
    assert whole.headers["content-type"] == "application/json"
    assert (found["message"]["number"], found["truncated"]) == (request["number"], False)
    assert sorted((each["messageType"], each["sourceAgentId"][:7]) for each in found["timeline"]) == [
        ("EVENT", "front"),
        ("REQUEST", "client:"),
        ("RESPONSE", "front"),
    ]
    shown = {each["messageType"]: msgspec.json.decode(each["payload"]) for each in found["timeline"]}
    assert shown["REQUEST"] == shown["EVENT"] == {"what": HOSTILE, "password": "[REDACTED]"}
    assert shown["RESPONSE"] == {"seen": {"what": HOSTILE, "password": "[REDACTED]"}}


@pytest.mark.parametrize(("length", "shown"), [(10, 12), (LONGEST_PAYLOAD, LONGEST_PAYLOAD), (70_000, None)])
async def test_long_payloads_are_cut_and_longer_ones_are_not_shown(length: int, shown: int | None) -> None:
    async with desk() as at:
        await at.coordinator.send_reliable_message("back", "x" * length)
        message = (await at.get("messages/1"))["message"]
    assert message["payloadBytes"] > length
    assert (None if shown is None else len(message["payload"])) == shown
    assert message.get("isPayloadCut") is (None if shown is None else length >= LONGEST_PAYLOAD)


async def test_messages_come_in_pages_from_the_newest_and_can_be_chosen() -> None:
    async with desk() as at:
        for number in range(2 * MOST_MESSAGES + 5):
            await at.coordinator.send_reliable_message("back", {"fails": number == 3})
        await at.coordinator.send_reliable_message("front", "last")
        pages, more = [], "messages?agent=back"
        while more:
            page = await at.get(more)
            pages.append([each["number"] for each in page["messages"]])
            more = page["next"] and f"messages?agent=back&before={page['next']}"
        dead = await eventually(lambda: at.get("messages?status=dead&agent=back"), lambda seen: seen["messages"])
        assert (await at.page.get("/explorer/messages?status=lost")).status == 400
        odd = await at.get("messages?before=-1&agent=none")
    assert [len(page) for page in pages[:2]] == [MOST_MESSAGES, MOST_MESSAGES]
    numbers = [number for page in pages for number in page]
    assert numbers == sorted(set(numbers), reverse=True)
    assert set(range(1, 2 * MOST_MESSAGES + 6)) <= set(numbers)
    assert [each["number"] for each in dead["messages"]] == [4]
    assert odd == {"messages": [], "next": None}


@pytest.mark.parametrize("number", ["99", "0", "-1", "x", "1e3", "", "9" * 400, "1/2"])
async def test_a_number_that_no_message_has_leads_nowhere(number: str) -> None:
    async with desk() as at:
        await at.ask("x")
        found = await at.page.get(f"/explorer/messages/{number}")
    assert (found.status, found.json) == (404, {"error": "No such message is known, or not any longer"})


async def test_a_ledger_that_cannot_be_read_is_said_and_nothing_else(tmp_path: Path) -> None:
    async with desk({"storage": {"data_dir": str(tmp_path)}}) as at:
        await at.ask("x")
        await at.page.runtime.facilities.storage.close()
        answers = [await at.page.get(f"/explorer/{path}") for path in ("agents", "messages", "messages/1", "dead")]
        answers.append(await at.redrive({"number": 1}))
    assert {(each.status, each.body) for each in answers} == {(503, b'{"error":"The ledger cannot be used now"}')}


# Dead letters.


async def test_a_dead_letter_is_listed_with_its_error_and_handled_again_when_it_is_redriven() -> None:
    async with desk() as at:
        letter = await at.dead_letter()
        assert (letter["status"], letter["canBeRedriven"], letter["attempts"]) == ("dead", True, 1)
        assert letter["error"] == {"code": "RESOURCE_EXHAUSTED", "message": HOSTILE}
        whole = (await at.get(f"messages/{letter['number']}"))["message"]
        assert whole["error"]["details"] == {"retryable": True, "password": "[REDACTED]"}
        at.ways.is_broken = False
        redriven = await at.redrive({"number": letter["number"]})
        made = redriven.json["message"]
        assert (redriven.status, made["messageId"] != letter["messageId"]) == (200, True)
        assert made["number"] > letter["number"]
        again = await eventually(
            lambda: at.get(f"messages/{made['number']}"), lambda seen: seen["message"]["status"] == "completed"
        )
        assert again["message"]["seq"] == letter["seq"] + 1
        assert await at.get("dead") == {"messages": [], "next": None}
        assert (await at.redrive({"number": made["number"]})).status == 409
        assert (await at.redrive({"number": letter["number"]})).status == 404


async def test_dead_letters_come_in_pages_the_oldest_first() -> None:
    async with desk() as at:
        for _ in range(MOST_MESSAGES + 1):
            await at.coordinator.send_reliable_message("back", {"fails": True})

        async def last() -> Any:
            return await at.get(f"dead?after={MOST_MESSAGES}")

        second = await eventually(last, lambda seen: seen["messages"])
        first = await at.get("dead")
    assert [each["number"] for each in first["messages"]] == list(range(1, MOST_MESSAGES + 1))
    assert (first["next"], second["next"]) == (MOST_MESSAGES, None)


async def test_nothing_is_redriven_without_the_token_or_where_nothing_may_be_run() -> None:
    async with desk() as at:
        letter = await at.dead_letter()
        body = {"number": letter["number"]}
        plain = {"content-type": "application/json"}
        unsigned = await at.page.request("POST", "/explorer/redrive", msgspec.json.encode(body), plain)
        refused = [unsigned, await at.redrive(body, **{"x-explorer-token": "wrong"})]
        refused.append(await at.redrive(body, **{"content-type": "text/plain"}))
        assert [each.status for each in refused] == [403, 403, 415]
        assert len((await at.get("dead"))["messages"]) == 1
    async with desk(allow_execute=False) as at:
        await at.coordinator.send_reliable_message("back", {"fails": True})
        await eventually(lambda: at.get("dead"), lambda seen: seen["messages"])
        assert (await at.redrive({"number": 1})).status == 403


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"number":"1"}', b'{"number":1.5}', b"\xff", b'{"number":null}'])
async def test_a_body_that_names_no_message_is_refused(body: bytes) -> None:
    async with desk() as at:
        assert (await at.redrive(body)).status == 400


@pytest.mark.parametrize("number", [0, -1, 7, 2**63, 10**30])
async def test_a_dead_letter_that_there_is_not_cannot_be_redriven(number: int, tmp_path: Path) -> None:
    async with desk({"storage": {"data_dir": str(tmp_path)}}) as at:
        assert (await at.redrive({"number": number})).status == 404


# Who is asking.


async def test_where_callers_say_who_they_are_nobody_else_is_shown_anything() -> None:
    async with desk({"auth": AUTH}) as at:
        for path in ("agents", "messages", "messages/1", "dead"):
            assert (await at.page.get(f"/explorer/{path}")).status == 401
        assert (await at.redrive({"number": 1})).status == 401


async def test_a_caller_sees_its_own_messages_and_what_followed_from_them_and_no_others() -> None:
    async with desk({"auth": AUTH}) as at:
        letter = await at.dead_letter(**ADA)
        number = letter["number"]
        (own,) = (await at.get("messages", **ADA))["messages"]
        timeline = (await at.get(f"messages/{own['number']}", **ADA))["timeline"]
        assert sorted(each["messageType"] for each in timeline) == ["EVENT", "REQUEST", "RESPONSE"]
        for path in ("messages", "dead"):
            assert await at.get(path, **CY) == {"messages": [], "next": None}
        for each in (number, own["number"]):
            assert (await at.page.get(f"/explorer/messages/{each}", **CY)).status == 404
        assert (await at.redrive({"number": number}, **CY)).status == 404
        assert len((await at.get("dead", **ADA))["messages"]) == 1
        assert (await at.redrive({"number": number}, **ADA)).status == 200


async def test_an_operator_sees_the_messages_of_all_and_why_they_failed_and_redrives_them() -> None:
    async with desk({"auth": AUTH}) as at:
        number = (await at.dead_letter(**ADA))["number"]
        assert [each["number"] for each in (await at.get("messages", **DEE))["messages"]] == [number, 1]
        (seen,) = (await at.get("dead", **DEE))["messages"]
        (cause,) = (await at.get(f"messages/{number}", **DEE))["message"]["causes"]
        assert seen["causes"] == [cause]
        assert (cause["attempt"], cause["type"], cause["message"]) == (1, "ResourceExhausted", HOSTILE)
        assert cause["place"].endswith(" in back")
        # Neither its sender nor a caller with every other scope, or with a role of that name.
        (own,) = (await at.get("dead", **ADA))["messages"]
        assert "causes" not in own
        assert "causes" not in (await at.get(f"messages/{number}", **ADA))["message"]
        for other in (CY, EVE):
            assert (await at.get("dead", **other)) == {"messages": [], "next": None}
            assert (await at.page.get(f"/explorer/messages/{number}", **other)).status == 404
        assert (await at.redrive({"number": number}, **DEE)).status == 200


async def test_a_caller_that_borrows_a_correlation_id_sees_nothing_of_its_owner() -> None:
    async with desk({"auth": AUTH}) as at:
        await at.ask("of Ada", **ADA, **{"x-correlation-id": "shared"})
        await at.ask("of Cy", **CY, **{"x-correlation-id": "shared"})
        (own,) = (await at.get("messages", **CY))["messages"]
        timeline = (await at.get(f"messages/{own['number']}", **CY))["timeline"]
    assert {each["payload"] for each in timeline} == {'"of Cy"', '{"seen":"of Cy"}'}


async def test_agents_that_a_callers_scopes_do_not_name_do_not_exist_for_it() -> None:
    async with desk({"auth": AUTH}) as at:
        await at.ask({"fails": True}, **BEN)
        await eventually(lambda: at.get("messages", **BEN), lambda seen: seen["messages"][0]["status"] == "completed")
        assert [each["id"] for each in (await at.get("agents", **BEN))["agents"]] == ["front"]
        timeline = (await at.get("messages/1", **BEN))["timeline"]
        assert {each["targetAgentId"] for each in timeline if each["messageType"] != "RESPONSE"} == {"front"}
        figures = at.coordinator.deliveries.admin.figures
        await eventually(figures, lambda seen: seen["byStatus"].get("dead") == 1)
        assert (await at.get("dead", **BEN))["messages"] == []

"""The example tools do what they say."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import dragoman
from dragoman.agents.agent import Agent
from dragoman.agents.ledger import EntryStatus, Query
from dragoman.cli.target import load_tools
from dragoman.testing import MemoryClient, open_server
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
TEA = {"action": "accept", "content": {"kind": "mint", "sugar": 2}}
CALLS: dict[str, dict[str, Any]] = {
    "add": {"a": 1, "b": 2},
    "count_down": {"start": 1},
    "count_words": {"text": "one two two"},
    "divide": {"dividend": 1, "divisor": 2},
    "draw_mandala": {"petals": 5, "palette": "dusk"},
    "encipher": {"text": "Attack at dawn", "cipher": {"type": "vigenere", "key": "Lemon"}},
    "look_at_moon": {"day": "2000-01-06"},
    "oversleep": {"seconds": 0},
    "plan_journey": {"stops": [{"city": "Bursa"}, {"city": "Cairo", "nights": 2}], "travel": {"by": "ship"}},
    "pour_tea": {"guest": "Ada"},
    "roll_dice": {},
    "tap_morse": {"text": "sos"},
}


async def order_tea(client: MemoryClient) -> None:
    client.reply(await client.question(), TEA)


@pytest.mark.slow
async def test_every_example_tool_answers() -> None:
    tools = load_tools(str(ROOT / "examples/tools.py"))
    assert sorted(tool.definition.name for tool in tools) == sorted(CALLS)
    async with open_server(tools) as server:
        client = await server.client(capabilities={"elicitation": {"form": {}}})
        ordering = asyncio.create_task(order_tea(client))
        results = {name: await client.call_tool(name, arguments) for name, arguments in CALLS.items()}
        await ordering
    assert {name: result["content"] for name, result in results.items() if result["isError"]} == {}
    texts = {name: result["content"][0].get("text", "") for name, result in results.items()}
    assert results["draw_mandala"]["content"][0]["type"] == "image"
    assert [block["type"] for block in results["tap_morse"]["content"]] == ["text", "audio"]
    assert texts["tap_morse"] == "... --- ..."
    assert texts["encipher"] == "Lxfopv ef rnhr"
    assert "new moon" in texts["look_at_moon"]
    assert [day["place"] for day in json.loads(texts["plan_journey"])] == [
        "Bursa",
        "to Cairo",
        "to Cairo",
        "Cairo",
        "Cairo",
    ]
    assert "Mint tea for Ada, with 2 lumps of sugar" in texts["pour_tea"]


@pytest.mark.parametrize("travel", [{"by": "train", "travel_class": "first"}, {"by": "foot", "km_a_day": 40}])
async def test_every_way_to_travel_leads_somewhere(travel: dict[str, Any]) -> None:
    async with dragoman.open(load_tools(str(ROOT / "examples/tools.py"))) as runtime:
        arguments = {"stops": [{"city": "Bursa"}, {"city": "Cairo"}], "travel": travel, "traveller": {"likes": []}}
        days = (await runtime.call("plan_journey", arguments)).unwrap()
        assert (days[0].place, days[-1].place, days[0].plan) == ("Bursa", "Cairo", "see the sun")


@pytest.mark.parametrize(("cipher", "text"), [({"type": "caesar"}, "Khoor!"), ({"type": "atbash"}, "Svool!")])
async def test_the_ciphers_are_the_old_ones(cipher: dict[str, Any], text: str) -> None:
    async with dragoman.open(load_tools(str(ROOT / "examples/tools.py"))) as runtime:
        outcome = await runtime.call("encipher", {"text": "Hello!", "cipher": cipher})
        assert outcome.unwrap() == text


async def test_who_is_divided_by_zero_is_told_which_field_is_wrong() -> None:
    async with dragoman.open(load_tools(str(ROOT / "examples/tools.py"))) as runtime:
        outcome = await runtime.call("divide", {"dividend": 1, "divisor": 0})
        assert outcome.error is not None
        assert (outcome.error.message, getattr(outcome.error, "details", None)) == (
            "Nothing can be divided by zero",
            {"field": "divisor"},
        )


async def test_the_example_agents_finish_an_order_and_a_dead_letter_once_there_is_gold(tmp_path: Path) -> None:
    agents = load_tools(str(ROOT / "examples/agents.py"))
    module = sys.modules[next(each.handler for each in agents if isinstance(each, Agent)).__module__]
    module.SECONDS_A_PIECE, module.random = 0.0, Random(1)  # The first piece that can be made is dropped once.
    settings = {"storage": {"data_dir": str(tmp_path)}, "aacp": {"base_delay_ms": 1, "max_delay_ms": 5}}
    async with dragoman.open(agents, settings) as runtime:
        coordinator = runtime.agents
        assert coordinator is not None
        failed, shipped = asyncio.Event(), asyncio.Event()
        coordinator.on_message_failed = lambda message_id, error: failed.set()

        async def order(item: str, count: int, total: int) -> None:
            def look(agent_id: str, state: Any) -> None:
                if agent_id == "post" and state.get("shipped") == total:
                    shipped.set()

            coordinator.on_state_change = look
            await coordinator.send_request("shop", {"item": item, "count": count})

        async with asyncio.timeout(PATIENCE):
            await order("ring", 1, 1)
            await failed.wait()
            (letter,) = await coordinator.deliveries.admin.page(Query(statuses=(EntryStatus.DEAD,)))
            await coordinator.send_request("workshop", {"gold": 1}, type="restock")
            assert await coordinator.redrive(letter.number) is not None
            await shipped.wait()
            shipped.clear()
            await order("cup", 4, 5)
            await shipped.wait()
        last = (await coordinator.read_state("post"))["last"]
    assert last == ["ring 1 of order 1", *(f"cup {piece} of order 2" for piece in (1, 2, 3, 4))]


@pytest.mark.slow
def test_the_conversation_shows_each_call_and_its_record() -> None:
    shown = subprocess.run(
        [sys.executable, "examples/conversation.py"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    for words in ("← 42.0", "INVALID_ARGUMENT", "TIMEOUT", "NOT_FOUND", "late_completed", "progress 1 of 3"):
        assert words in shown.stdout

"""Whatever a client answers, in whatever portions and in whichever era, a tool that asks runs with the same answers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import Ask, tool
from dragoman.testing import MemoryClient, open_server

FORM = {"elicitation": {}}


class Choice(msgspec.Struct):
    size: Literal["S", "L"]
    gift: bool = False


@tool
async def order(
    item: str,
    choice: Annotated[Choice, Ask("Which size of {item}?")],
    card: Annotated[str | None, Ask(lambda choice: f"A card for {choice.size}?" if choice.gift else None)],
    sure: Annotated[bool, Ask("Sure about {choice.size} and {card}?")],
    colour: Annotated[str, Ask("Which colour?")] = "red",
) -> list[Any]:
    """Asks for four things, two of which depend on others."""
    return [item, choice.size, choice.gift, card, sure, colour]


def accepted(content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def maybe(name: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    no = st.sampled_from([{"action": "decline"}, {"action": "cancel"}])
    return no | value.map(lambda given: accepted({name: given}))


answers = st.fixed_dictionaries(
    {
        "choice": maybe("size", st.sampled_from(["S", "L"]))
        | st.fixed_dictionaries({"size": st.sampled_from(["S", "L"]), "gift": st.booleans()}).map(accepted),
        "card": maybe("card", st.text()),
        "sure": maybe("sure", st.booleans()),
        "colour": maybe("colour", st.text()),
    }
)
garbage = st.sampled_from([{}, {"action": "accept"}, {"action": 5}, accepted([]), accepted({"size": "M", "sure": 1})])
"""What fits no question."""


def result_of(message: dict[str, Any]) -> Any:
    result = message["result"]
    if not result["isError"]:
        return result["structuredContent"]["result"]
    told = msgspec.json.decode(result["content"][0]["text"])
    return told["code"], told["details"]


async def in_the_handshake_era(client: MemoryClient, given_answers: dict[str, Any]) -> Any:
    call = client.begin("tools/call", {"name": "order", "arguments": {"item": "hat"}})
    answering = asyncio.ensure_future(client.answer(call))
    while not answering.done():
        asking = asyncio.ensure_future(client.question())
        await asyncio.wait((answering, asking), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            (name,) = set(asking.result()["params"]["requestedSchema"]["properties"]) & {"size", *given_answers}
            client.reply(asking.result(), given_answers["choice" if name == "size" else name])
        asking.cancel()
    return result_of(answering.result())


async def in_the_modern_era(client: MemoryClient, given_answers: dict[str, Any], data: st.DataObject) -> Any:
    params: dict[str, Any] = {"name": "order", "arguments": {"item": "hat"}}
    for round_number in range(100):
        message = await client.request("tools/call", params)
        if message["result"]["resultType"] == "complete":
            return result_of(message)
        asked = message["result"]["inputRequests"]
        # At first only some are answered, and some with nonsense; in the end all are.
        some = data.draw(st.sets(st.sampled_from(sorted(asked)))) if round_number < 5 else set(asked)
        nonsense = data.draw(st.dictionaries(st.sampled_from([*sorted(asked), "other"]), garbage))
        brought = {**(nonsense if round_number < 5 else {}), **{name: given_answers[name] for name in some}}
        params |= {"inputResponses": brought, "requestState": message["result"]["requestState"]}
    raise AssertionError("it never ends")


@pytest.mark.slow
@given(given_answers=answers, data=st.data())
def test_both_eras_come_to_the_same_result(given_answers: dict[str, Any], data: st.DataObject) -> None:
    async def run() -> tuple[Any, Any]:
        async with open_server([order]) as server:
            handshake = await in_the_handshake_era(await server.client(capabilities=FORM), given_answers)
            modern_client = server.connect(modern=True, capabilities=FORM)
            modern = await in_the_modern_era(modern_client, given_answers, data)
            assert server.runtime.slots.in_use == 0
            return handshake, modern

    handshake, modern = asyncio.run(run())
    assert handshake == modern


@pytest.mark.slow
@given(
    rounds=st.lists(st.dictionaries(st.sampled_from(["choice", "card", "sure", "colour", "x"]), garbage), max_size=4)
)
def test_nonsense_never_gets_a_tool_to_run(rounds: list[dict[str, Any]]) -> None:
    async def run() -> None:
        async with open_server([order]) as server:
            client = server.connect(modern=True, capabilities=FORM)
            params: dict[str, Any] = {"name": "order", "arguments": {"item": "hat"}}
            for brought in rounds:
                message = await client.request("tools/call", {**params, "inputResponses": brought})
                assert set(message["result"]["inputRequests"]) == {"choice", "colour"}
                params["requestState"] = message["result"]["requestState"]

    asyncio.run(run())

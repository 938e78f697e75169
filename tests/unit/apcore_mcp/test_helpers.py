"""What modules can do over MCP while they run, and that it does no harm elsewhere."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from apcore import Context, Executor

import apcore_mcp
from apcore_mcp import MCP_ELICIT_KEY, MCP_PROGRESS_KEY, elicit, report_progress
from tests.support.modules import Does, registry_of, serving, text_of

FORM = {"elicitation": {"form": {}}}
CONFIRM = {"type": "object", "properties": {"confirmed": {"type": "boolean"}}}


@pytest.mark.requirement("FR-EXT-003", "SRS-API-14")
def test_the_keys_are_what_they_are_and_exported() -> None:
    assert (MCP_PROGRESS_KEY, MCP_ELICIT_KEY) == ("_mcp_progress", "_mcp_elicit")
    named = {"serve", "to_openai_tools", "report_progress", "elicit", "MCP_PROGRESS_KEY", "MCP_ELICIT_KEY"}
    assert named | {"__version__"} <= set(apcore_mcp.__all__)
    with pytest.raises(AttributeError, match="module 'apcore_mcp' has no attribute 'nonsense'"):
        apcore_mcp.nonsense  # noqa: B018


@pytest.mark.requirement("FR-EXT-001", "FR-EXT-002")
@pytest.mark.parametrize(
    "context",
    [None, object(), SimpleNamespace(data=None), SimpleNamespace(data={}), Context.create(), SimpleNamespace(data=[1])],
)
async def test_outside_of_mcp_nothing_happens(context: Any) -> None:
    await report_progress(context, 1)
    assert await elicit(context, "Sure?") is None


@pytest.mark.requirement("FR-EXT-001", "FR-EXT-002")
async def test_outside_of_a_server_a_module_runs_as_if_nobody_listened() -> None:
    async def work(inputs: Any, context: Context[Any]) -> dict[str, Any]:
        await report_progress(context, 1, 2)
        return {"answer": await elicit(context, "Sure?")}

    assert await Executor(registry_of(work=Does(work))).call_async("work", {}) == {"answer": None}


@pytest.mark.requirement("FR-EXT-001")
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_is_under_the_key_is_called(is_async: bool) -> None:
    said: list[Any] = []

    async def later(*facts: Any) -> None:
        said.append(facts)

    context = SimpleNamespace(data={MCP_PROGRESS_KEY: later if is_async else lambda *facts: said.append(facts)})
    await report_progress(context, 150, total=100, message="more than all")
    assert said == [(150, 100, "more than all")]


@pytest.mark.requirement("FR-EXT-001")
@pytest.mark.parametrize(
    ("facts", "sent"),
    [
        ((1,), {"progress": 1}),
        ((50, 100), {"progress": 50, "total": 100}),
        ((50, 100, "Half"), {"progress": 50, "total": 100, "message": "Half"}),
        ((150, 100), {"progress": 150, "total": 100}),
        ((-1, None, ""), {"progress": -1, "message": ""}),
    ],
)
async def test_progress_is_told_as_it_is(facts: tuple[Any, ...], sent: dict[str, Any]) -> None:
    async def work(inputs: Any, context: Context[Any]) -> dict[str, Any]:
        await report_progress(context, *facts)
        return {}

    async with serving(registry_of(work=Does(work))) as server:
        client = await server.client()
        await client.call_tool("work", {}, {"progressToken": 5})
        await client.call_tool("work", {})
        told = [each["params"] for each in client.received() if "params" in each]
        assert told == [{"progressToken": 5, **sent}]


async def asked(
    answer: dict[str, Any] | None, schema: Any = None, message: str = "Sure?", in_thread: bool = False
) -> tuple[Any, str]:
    """What the client was asked, and what the module gave for it."""

    async def work(inputs: Any, context: Context[Any]) -> dict[str, Any]:
        if in_thread:
            return {"answer": await asyncio.to_thread(lambda: asyncio.run(elicit(context, message, schema)))}
        return {"answer": await elicit(context, message, schema)}

    async with serving(registry_of(work=Does(work))) as server:
        client = await server.client(capabilities={} if answer is None else FORM)
        call = client.begin("tools/call", {"name": "work", "arguments": {}})
        question = None
        if answer is not None:
            question = await client.question()
            client.reply(question, answer)
        return question, text_of((await client.answer(call))["result"])


@pytest.mark.requirement("FR-EXT-002")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_person_is_asked_with_the_modules_own_form(in_thread: bool) -> None:
    yes = {"action": "accept", "content": {"confirmed": True}}
    question, text = await asked(yes, CONFIRM, "Please confirm", in_thread)
    assert question["params"] == {"message": "Please confirm", "requestedSchema": CONFIRM}
    assert text == '{"answer": {"confirmed": true}}'


@pytest.mark.requirement("FR-EXT-002")
async def test_without_a_form_there_is_a_line_to_write_on_and_the_message_may_be_empty() -> None:
    question, text = await asked({"action": "accept", "content": {"response": "well"}}, None, "")
    assert question["params"]["message"] == ""
    assert list(question["params"]["requestedSchema"]["properties"]) == ["response"]
    assert text == '{"answer": {"response": "well"}}'


@pytest.mark.requirement("FR-EXT-002")
@pytest.mark.parametrize(
    "answer",
    [{"action": "decline"}, {"action": "cancel"}, {"action": "accept", "content": {"confirmed": "maybe"}}, None],
)
async def test_no_answer_is_none(answer: dict[str, Any] | None) -> None:
    assert (await asked(answer, CONFIRM))[1] == '{"answer": null}'


@pytest.mark.requirement("FR-EXT-002")
async def test_a_form_that_is_none_is_asked_of_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def work(inputs: Any, context: Context[Any]) -> dict[str, Any]:
        return {"answer": await elicit(context, "?", {"properties": {"a": {"type": "strong"}}})}

    async with serving(registry_of(work=Does(work))) as server:
        client = await server.client(capabilities=FORM)
        assert text_of(await client.call_tool("work", {})) == '{"answer": null}'
    assert "A module's question has a form that cannot be used" in caplog.text

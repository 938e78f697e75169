"""Tools that talk back to the official SDK's client over HTTP: they ask, log and report, from the loop and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import msgspec
import pytest
from mcp import Client

from dragoman import Tool, ToolContext, ToolDefinition, tool
from dragoman.errors import ClientCannotBeAsked, ClientRefused
from tests.support.http_serving import Serving, open_session, serving
from tests.support.person import Person, text_of
from tests.support.sdk_client import both_eras
from tests.support.served import asking_tools

pytestmark = pytest.mark.slow

TOOLS = [
    asking_tools.delete,
    asking_tools.test_elicitation,
    asking_tools.test_input_required_result_multi_round,
    asking_tools.test_input_required_result_multiple_inputs,
    asking_tools.test_sampling,
    asking_tools.test_tool_with_logging,
]


@asynccontextmanager
async def connected(mode: str, *more: Any, **options: Any) -> AsyncIterator[tuple[Client, Serving]]:
    async with serving([*TOOLS, *more]) as server, Client(server.url, mode=mode, **options) as client:
        yield client, server


async def test_a_question_is_asked_again_on_the_stream_that_is_resumed() -> None:
    async with serving(TOOLS) as server:
        session = await open_session(server.port, capabilities={"elicitation": {}})
        reply = await (await session.call(7, "delete", path="a")).begin()
        priming = await reply.event()
        assert priming is not None
        reply.drop()
        resumed = await session.listen(priming.id)
        question = await resumed.event()
        assert question is not None
        assert question.message is not None
        assert question.message["params"]["message"] == "Really delete a?"
        result = {"action": "accept", "content": {"sure": True}}
        accepted = await session.post(
            msgspec.json.encode({"jsonrpc": "2.0", "id": question.message["id"], "result": result})
        )
        assert (await accepted.begin()).status == 202
        answer = await resumed.answer()
        assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "a: True")


@tool
def report_from_threads(ctx: ToolContext) -> str:
    """Reports from threads of its own, one after the other."""
    for step in range(1, 21):
        thread = threading.Thread(target=ctx.progress, args=(step, 20, threading.current_thread().name))
        thread.start()
        thread.join()
    return "reported"


@both_eras
async def test_what_threads_report_arrives_in_order_and_before_the_answer(mode: str) -> None:
    steps: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with connected(mode, report_from_threads) as (client, _):
        await client.call_tool("report_from_threads", {}, progress_callback=on_progress)
        assert steps == list(range(1, 21))


@tool
async def ask_anything(method: str, ctx: ToolContext) -> str:
    """Asks the client as the context itself does."""
    assert ctx._client is not None
    try:
        return str(await ctx._client.ask(method, {}))
    except ClientRefused as error:
        return f"refused: {error.code}"
    except ClientCannotBeAsked:
        return "cannot be asked"


async def test_a_client_answers_or_refuses_what_it_is_asked() -> None:
    async with connected("legacy", ask_anything, **Person().callbacks()) as (client, _):
        assert "file:///work" in await text_of(client, "ask_anything", {"method": "roots/list"})
        assert await text_of(client, "ask_anything", {"method": "no/such"}) == f"refused: {types.METHOD_NOT_FOUND}"
    async with connected("auto", ask_anything, **Person().callbacks()) as (client, _):
        assert await text_of(client, "ask_anything", {"method": "roots/list"}) == "cannot be asked"


async def test_many_clients_are_each_asked_their_own_questions() -> None:
    async with serving(TOOLS) as server:

        async def use(number: int) -> None:
            person = Person({"name": f"Person {number}"}, {"color": f"colour {number}"})
            async with Client(server.url, mode="legacy", **person.callbacks()) as client:
                said = await text_of(client, "test_input_required_result_multi_round")
                assert said == f"Person {number} likes colour {number}"
                assert person.asked[1].endswith(f"Person {number}?")

        await asyncio.gather(*(use(number) for number in range(10)))


async def test_a_tool_that_does_not_speak_needs_a_way_back_only_to_a_client_that_can_be_asked_or_wants_progress() -> (
    None
):
    async def said(arguments: dict[str, Any], ctx: ToolContext) -> str:
        ctx.progress(1)
        return "done"

    definition = ToolDefinition(
        name="quiet", description="Says nothing of its own accord", input_schema={"type": "object"}
    )
    quiet, talks = Tool(definition, said, speaks=False), Tool(msgspec.structs.replace(definition, name="talks"), said)
    json, stream = "application/json", "text/event-stream"
    async with serving([quiet, talks]) as server:

        async def answered_as(name: str, capabilities: dict[str, Any], token: int | None = None) -> str:
            session = await open_session(server.port, capabilities=capabilities)
            reply = await (await session.call(7, name, token)).begin()
            answer = await reply.answer()
            assert [block["text"] for block in answer["result"]["content"]] == ['"done"']
            return reply.headers["content-type"].partition(";")[0]

        assert await answered_as("quiet", {}) == json
        assert await answered_as("quiet", {"elicitation": {}}) == stream
        assert await answered_as("quiet", {"sampling": {}}) == stream
        assert await answered_as("quiet", {"roots": {}}) == stream
        assert await answered_as("quiet", {}, token=3) == stream
        assert await answered_as("talks", {}) == stream

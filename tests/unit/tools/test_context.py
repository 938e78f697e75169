"""What a handler is told, and how it learns that nobody waits any longer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman import Caller, Cancellation, ToolContext, ToolDefinition, define_tool, raise_if_cancelled, tool
from dragoman.access.callers import LOCAL
from dragoman.errors import Aborted
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock, SequentialIds, open_server


def context(entries: list[Entry] | None = None, **facts: Any) -> ToolContext:
    logger = StructuredLogger([].append if entries is None else entries.append, ManualClock())
    return ToolContext("run-1", "corr-1", logger, Cancellation(), LOCAL, **facts)


@pytest.mark.requirement("FND-REG-15")
async def test_a_handler_gets_its_ids_a_logger_bound_to_them_and_the_cancellation_token() -> None:
    seen: list[ToolContext] = []

    async def look(arguments: dict[str, Any], context: ToolContext) -> None:
        context.logger.info("looking", {"at": "you"})
        seen.append(context)

    definition = ToolDefinition(name="look", description="", input_schema={"type": "object"})
    async with open_server([define_tool(definition, look)], clock=ManualClock(), ids=SequentialIds()) as server:
        await server.runtime.call("look", correlation_id="mine", caller=Caller("ada"))
    (found,) = seen
    assert (found.run_id, found.correlation_id, found.caller) == ("run-1", "mine", Caller("ada"))
    assert isinstance(found.cancellation, Cancellation)
    assert not found.cancellation.is_set()
    assert server.log[0] == {
        "timestamp": "2024-01-15T10:30:00.000Z",
        "level": "info",
        "message": "looking",
        "runId": "run-1",
        "correlationId": "mine",
        "at": "you",
    }


@pytest.mark.requirement("FND-REG-15")
def test_facts_of_an_entry_do_not_leak_into_the_next() -> None:
    entries: list[Entry] = []
    logger = context(entries).logger
    logger.info("one", {"a": 1})
    logger.warn("two")
    assert [(entry["runId"], entry["correlationId"], entry.get("a")) for entry in entries] == [
        ("run-1", "corr-1", 1),
        ("run-1", "corr-1", None),
    ]


def test_progress_goes_to_whoever_asked_for_it() -> None:
    told: list[Any] = []
    context(progress=lambda *news: told.append(news)).progress(1, 2, "half")
    context(progress=lambda *news: told.append(news)).progress(0.5)
    assert told == [(1, 2, "half"), (0.5, None, None)]


def test_progress_that_nobody_asked_for_is_no_error() -> None:
    assert context().progress(1) is None


def test_a_token_that_is_not_set_lets_the_handler_go_on() -> None:
    token = Cancellation()
    assert not token.is_set()
    assert token.reason is None
    raise_if_cancelled(token)
    token.raise_if_set()


def test_a_token_that_is_set_raises_with_the_reason() -> None:
    token = Cancellation()
    token.set("deadline")
    assert token.is_set()
    for check in (token.raise_if_set, lambda: raise_if_cancelled(token)):
        with pytest.raises(Aborted) as aborted:
            check()
        assert (aborted.value.code, aborted.value.reason) == ("ABORTED", "deadline")


def test_the_first_reason_stays() -> None:
    token = Cancellation()
    token.set("deadline")
    token.set("disconnect")
    assert token.reason == "deadline"


async def test_everyone_who_waits_for_a_token_is_woken() -> None:
    token = Cancellation()
    waiters = [asyncio.create_task(token.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    token.set("client")
    await asyncio.wait_for(asyncio.gather(*waiters), 1)


async def test_waiting_for_a_token_that_is_set_already_returns_at_once() -> None:
    token = Cancellation()
    token.set("shutdown")
    await asyncio.wait_for(token.wait(), 1)


async def test_a_waiter_that_gave_up_does_not_trouble_the_others() -> None:
    token = Cancellation()
    quitter, patient = asyncio.create_task(token.wait()), asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    quitter.cancel()
    token.set("client")
    await asyncio.wait_for(patient, 1)
    assert (await asyncio.gather(quitter, return_exceptions=True))[0].__class__ is asyncio.CancelledError


def test_a_handler_can_ask_whether_anybody_wants_to_know_how_far_it_is() -> None:
    logger = StructuredLogger([].append)
    assert not ToolContext("r", "c", logger, Cancellation(), LOCAL).wants_progress
    assert ToolContext("r", "c", logger, Cancellation(), LOCAL, lambda *_: None).wants_progress


NAME = {"properties": {"name": {"type": "string", "minLength": 2}}, "required": ["name"]}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"action": "accept", "content": {"name": "Ada", "more": 1}}, {"name": "Ada"}),
        ({"action": "accept", "content": {"name": "A"}}, None),
        ({"action": "accept", "content": {}}, None),
        ({"action": "accept"}, None),
        ({"action": "decline"}, None),
        ({"action": "cancel"}, None),
    ],
)
async def test_a_form_may_be_a_schema_and_what_was_filled_in_fits_it(answer: dict[str, Any], expected: Any) -> None:
    @tool
    async def ask(ctx: ToolContext) -> Any:
        """Asks with a schema of its own."""
        return await ctx.elicit("Who?", NAME)

    async with open_server([ask]) as server:
        client = await server.client(capabilities={"elicitation": {"form": {}}})
        call = client.begin("tools/call", {"name": "ask", "arguments": {}})
        question = await client.question()
        assert question["params"] == {"message": "Who?", "requestedSchema": {"type": "object", **NAME}}
        client.reply(question, answer)
        assert json.loads((await client.answer(call))["result"]["content"][0]["text"]) == expected

"""Calls with an idempotency key: one effect, and one outcome for all that repeat them."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import mcp_types as types
import pytest

import dragoman
from dragoman import Ask, Image, Text, tool
from dragoman.access.callers import Caller
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    ProtocolError,
    ResourceExhausted,
    ToolError,
    Unauthorized,
)
from dragoman.testing import ManualClock, TestServer
from dragoman.tools.content import BlobResource, EmbeddedResource, ResourceLink, TextResource
from tests.support.agents import quiet
from tests.support.answers import error_in
from tests.support.calls import answers
from tests.support.keyed_calls import KEY, Effect, Kept, begin_keyed, call, is_repeat, with_key, without_ids
from tests.support.waiting import PATIENCE, until

OTHER = "another-key-of-22-chars"
DIALECTS = ["structured", "envelope", "plain"]


@pytest.fixture
def kept() -> Kept:
    return Kept(None)


def keys(server: TestServer, what: str) -> float:
    """How many calls have waited for the first one with their key, or were answered with an earlier outcome."""
    if server.runtime.metrics is None:
        server.runtime.http()
    assert server.runtime.metrics is not None
    ((_, (count,)),) = server.runtime.metrics.snapshot().gauges[f"dragoman_keys_{what}"].rows
    return count


async def under_way(server: TestServer, count: int) -> None:
    """Return when there are so many calls, and each has come as far as it can."""
    await until(lambda: server.runtime.runner.under_way == count)
    await quiet()


async def test_a_hundred_repeats_at_once_run_once_on_ten_slots(kept: Kept) -> None:
    pay = Effect()
    pay.gate.clear()
    ten = {"resources": {"max_concurrent_executions": 10}}
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool, config=ten) as server:
        client = await server.client()
        begun = [begin_keyed(client, amount=5) for _ in range(100)]
        await pay.begun.wait()
        assert (await client.call_tool("health"))["isError"] is False  # They leave slots for others.
        pay.gate.set()
        results = [(await client.answer(each))["result"] for each in begun]
        assert pay.count == 1
        assert [without_ids(each) for each in results] == [without_ids(results[0])] * 100
        assert [is_repeat(each) for each in results].count(False) == 1
        assert len({each["_meta"]["dragoman/runId"] for each in results}) == 100
        later = await call(client, amount=5)
        assert (is_repeat(later), without_ids(later)) == (True, without_ids(results[0]))
        assert pay.count == 1
        records = [each for each in server.records if each["toolName"] == "pay"]
        assert [each["outcome"] for each in records] == ["success"] * 101


async def test_python_code_repeats_a_call(kept: Kept) -> None:
    pay = Effect()
    async with dragoman.open([pay.tool], kept.settings()) as runtime:
        outcomes = [await runtime.call("pay", {"amount": 2}, idempotency_key=KEY) for _ in range(3)]
    assert [each.unwrap() for each in outcomes] == [{"amount": 2, "number": 1}] * 3


async def test_a_call_without_a_key_is_never_a_repeat(kept: Kept) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        await call(client)
        results = [await client.call_tool("pay", {}) for _ in range(2)]
        assert [is_repeat(each) for each in results] == [False, False]
        assert pay.count == 3


async def test_both_eras_share_a_key(kept: Kept) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        first = await call(await server.client())
        repeat = await call(server.connect(modern=True))
        assert (is_repeat(first), is_repeat(repeat), pay.count) == (False, True, 1)
        assert repeat.pop("resultType") == "complete"
        assert without_ids(repeat) == without_ids(first)


async def test_the_outcome_is_stored_before_it_is_answered(tmp_path: Path) -> None:
    pay = Effect()
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), Kept(tmp_path).serve(pay.tool) as server:
        client = await server.client()
        begun = begin_keyed(client)
        await pay.begun.wait()
        with closing(sqlite3.connect(tmp_path / "dragoman.db")) as other:
            other.execute("BEGIN IMMEDIATE")  # Nobody else can write now.
            pay.gate.set()
            await pay.ended.wait()
            await quiet()
            assert answers(client, begun) == []
            other.rollback()
            first = (await client.answer(begun))["result"]
            (count,) = other.execute("SELECT count(*) FROM ledger_entry WHERE status = 'completed'").fetchone()
        assert (first["isError"], is_repeat(first), count) == (False, False, 2)  # The request and its response.


async def test_a_key_with_other_arguments_is_refused_without_a_trace_of_the_first(kept: Kept) -> None:
    pay = Effect()
    pay.gate.clear()
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        first = begin_keyed(client, amount=4711_0815_4711_0815)  # No random id has so many of these digits.
        await pay.begun.wait()
        while_it_runs = await call(client, amount=2)
        pay.gate.set()
        await client.answer(first)
        afterwards = await call(client, amount=2)
        for refused in (while_it_runs, afterwards):
            error = error_in(refused)
            assert (error["code"], error["message"], error["details"]) == (
                "INVALID_ARGUMENT",
                "The idempotency key was used before, with other arguments",
                {"reason": "idempotency_conflict", "retryable": False},
            )
            assert "4711081547110815" not in str(refused)
            assert not is_repeat(refused)
        assert pay.count == 1


async def test_the_order_of_arguments_does_not_matter(kept: Kept) -> None:
    runs: list[dict[str, int]] = []

    @tool
    async def add(x: int, y: int) -> int:
        runs.append({"x": x, "y": y})
        return x + y

    async with kept.serve(add) as server:
        client = await server.client()
        results = [await call(client, "add", **each) for each in ({"x": 1, "y": 2}, {"y": 2, "x": 1})]
    assert [is_repeat(each) for each in results] == [False, True]
    assert runs == [{"x": 1, "y": 2}]


async def test_a_key_belongs_to_a_caller_and_a_tool(kept: Kept) -> None:
    pay, refund = Effect("pay"), Effect("refund")
    async with kept.serve(pay.tool, refund.tool) as server:
        ada, ben = [await server.client(caller=Caller(name)) for name in ("ada", "ben")]
        ada_elsewhere = await server.client(caller=Caller("ada", client_id="other program"))
        results = [
            await call(ada, "pay", amount=1),
            await call(ben, "pay", amount=2),
            await call(ada, "refund", amount=3),
            await call(ada, "pay", OTHER, amount=4),
        ]
        assert [is_repeat(each) for each in results] == [False] * 4
        assert (pay.count, refund.count) == (3, 1)
        assert is_repeat(await call(ada_elsewhere, "pay", amount=1))
        assert is_repeat(await call(ben, "pay", amount=2))


@dataclass
class Receipt:
    number: int
    paid: bool


VALUES: dict[str, Any] = {
    "none": None,
    "text": "plain text",
    "text that is JSON": '{"a": 1}',
    "number": 1.5,
    "zero": 0,
    "list": [1, "two", None, {"three": 3}],
    "dataclass": Receipt(7, True),
    "moment": datetime(2024, 1, 15, tzinfo=UTC),
    "image": Image(b"\x89PNG\r\n\x1a\n", "image/png"),
    "blocks": [Text("first"), Image(b"\x89PNG\r\n\x1a\n")],
    "link": ResourceLink("file:///a", "a", size=3, meta={"b": 1}),
    "resources": [
        EmbeddedResource(TextResource("file:///a", "", "text/plain")),
        EmbeddedResource(BlobResource("file:///b", b"bytes"), annotations={"priority": 1}),
    ],
    "blocks of the SDK": [
        types.ResourceLink(type="resource_link", uri="file:///a", name="a", icons=[types.Icon(src="file:///i")]),
        types.EmbeddedResource(
            type="resource", resource=types.TextResourceContents(uri="file:///a", text="t", _meta={"c": 2})
        ),
    ],
    "large": "x" * 300_000,
    "many": list(range(20_000)),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
async def test_every_result_is_given_again_as_it_was(kept: Kept, dialect: str, value: Any) -> None:
    runs = 0

    @tool
    async def make() -> Any:
        nonlocal runs
        runs += 1
        return value

    long = {"response": {"dialect": dialect, "max_list_items": 100_000, "max_string_length": 1_000_000}}
    async with kept.serve(make, config=long) as server:
        client = await server.client()
        plain = await client.call_tool("make", {})
        results = [await call(client, "make") for _ in range(2)]
        assert plain["isError"] is False
        assert [without_ids(each) for each in results] == [without_ids(plain)] * 2
        assert [is_repeat(each) for each in results] == [False, True]
        assert runs == 2


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_declared_results_are_given_again_as_they_were(kept: Kept, dialect: str) -> None:
    @tool
    async def receipt() -> Receipt:
        return Receipt(7, True)

    @tool
    async def word() -> str:
        return "said"

    async with kept.serve(receipt, word, config={"response": {"dialect": dialect}}) as server:
        client = await server.client()
        for name, content in (("receipt", {"number": 7, "paid": True}), ("word", {"result": "said"})):
            plain = await client.call_tool(name, {})
            results = [await call(client, name) for _ in range(2)]
            assert plain["structuredContent"] == content
            assert [without_ids(each) for each in results] == [without_ids(plain)] * 2
            assert is_repeat(results[1])


class OutOfStock(NotFound):
    """An application's own."""


def _worded(error: ToolError) -> ToolError:
    error.plain = "words of its own"
    return error


FAILURES: dict[str, Any] = {
    "tool error": ToolError("it broke"),
    "not found": NotFound("no such account", {"account": 12}),
    "conflict": Conflict("somebody else was faster"),
    "unauthorized": Unauthorized("not yours"),
    "exhausted for good": ResourceExhausted("too much", {"retryable": False}),
    "one of the application's": OutOfStock("sold out", {"left": 0}),
    "own words": _worded(ToolError("it broke")),
    "details without a JSON form": ToolError("it broke", {"what": object()}),
    "a message that is no text": ToolError("\ud800 broke"),
    "exception": ValueError("secret of the handler"),
    "exit": SystemExit(3),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_every_error_that_repeating_cannot_change_is_given_again(
    kept: Kept, dialect: str, failure: BaseException
) -> None:
    pay = Effect()
    pay.outcome = failure
    async with kept.serve(pay.tool, config={"response": {"dialect": dialect}}) as server:
        client = await server.client()
        plain = await client.call_tool("pay", {})
        pay.gate.clear()
        pay.begun.clear()
        first = begin_keyed(client)
        await pay.begun.wait()
        joined = begin_keyed(client)
        pay.gate.set()
        results = [(await client.answer(each))["result"] for each in (first, joined)] + [await call(client)]
        assert plain["isError"] is True
        assert [without_ids(each) for each in results] == [without_ids(plain)] * 3
        assert [is_repeat(each) for each in results] == [False, True, True]
        assert pay.count == 2
        assert "secret" not in str(results)


async def test_a_json_rpc_error_of_a_handler_is_given_again(kept: Kept) -> None:
    pay = Effect()
    pay.outcome = ProtocolError("not here", {"where": 1}, code=4711)
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        errors = [await call(client) for _ in range(3)]
        assert [(each["code"], each["message"]) for each in errors] == [(4711, "not here")] * 3
        assert [each["data"]["where"] for each in errors] == [1] * 3
        assert pay.count == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("value", [object(), "x" * 5_000_000], ids=["without a JSON form", "too large"])
async def test_a_result_that_cannot_be_sent_fails_once(kept: Kept, dialect: str, value: Any) -> None:
    pay = Effect()
    pay.outcome = value
    async with kept.serve(pay.tool, config={"response": {"dialect": dialect}}) as server:
        client = await server.client()
        plain = await client.call_tool("pay", {})
        results = [await call(client) for _ in range(2)]
        assert (plain["isError"], pay.count) == (True, 2)
        assert [without_ids(each) for each in results] == [without_ids(plain)] * 2
        assert [is_repeat(each) for each in results] == [False, True]


async def test_a_retryable_error_is_not_stored_and_a_retry_runs(kept: Kept) -> None:
    pay = Effect()
    pay.outcome = ResourceExhausted("later", {"retryable": True})
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        assert error_in(await call(client))["message"] == "later"
        pay.outcome = None
        results = [await call(client) for _ in range(2)]
        assert [is_repeat(each) for each in results] == [False, True]
        assert pay.count == 2


async def test_repeats_that_wait_run_one_after_the_other_while_the_outcome_is_retryable(kept: Kept) -> None:
    pay = Effect()
    pay.outcome = ResourceExhausted("later", {"retryable": True})
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as server:
        client = await server.client()
        begun = [begin_keyed(client) for _ in range(5)]
        await pay.begun.wait()
        pay.gate.set()
        results = [(await client.answer(each))["result"] for each in begun]
        assert [error_in(each)["message"] for each in results] == ["later"] * 5
        assert not any(is_repeat(each) for each in results)
        assert pay.count == 5


async def test_invalid_arguments_are_not_stored(kept: Kept) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        assert error_in(await call(client, amount="much"))["code"] == "INVALID_ARGUMENT"
        result = await call(client, amount=3)
        assert (result["isError"], is_repeat(result), pay.count) == (False, False, 1)


async def test_a_call_that_found_no_slot_is_not_stored(kept: Kept) -> None:
    pay, other = Effect(), Effect("other")
    other.gate.clear()
    one = {"resources": {"max_concurrent_executions": 1}}
    async with kept.serve(pay.tool, other.tool, config=one) as server:
        client = await server.client()
        busy = client.begin("tools/call", {"name": "other", "arguments": {}})
        await other.begun.wait()
        error = error_in(await call(client))
        assert (error["code"], error["details"]["reason"]) == ("RESOURCE_EXHAUSTED", "no_free_slot")
        other.gate.set()
        await client.answer(busy)
        await until(lambda: len(server.records) == 2)
        result = await call(client)
        assert (result["isError"], is_repeat(result), pay.count) == (False, False, 1)


async def test_a_repeat_is_answered_while_all_slots_are_taken(kept: Kept) -> None:
    pay, other = Effect(), Effect("other")
    other.gate.clear()
    one = {"resources": {"max_concurrent_executions": 1}}
    async with kept.serve(pay.tool, other.tool, config=one) as server:
        client = await server.client()
        first = await call(client, amount=5)
        busy = client.begin("tools/call", {"name": "other", "arguments": {}})
        await other.begun.wait()
        repeats = [await call(client, amount=5) for _ in range(2)]
        assert [(is_repeat(each), without_ids(each)) for each in repeats] == [(True, without_ids(first))] * 2
        assert error_in(await call(client, amount=6))["details"]["reason"] == "idempotency_conflict"
        assert pay.count == 1
        assert server.runtime.slots.in_use == 1
        other.gate.set()
        await client.answer(busy)


async def test_a_repeat_of_a_failure_is_counted_once_with_a_slot_and_without(kept: Kept) -> None:
    pay, other = Effect(), Effect("other")
    pay.outcome = NotFound("no such account")
    other.gate.clear()
    one = {"resources": {"max_concurrent_executions": 1}}
    async with kept.serve(pay.tool, other.tool, config=one) as server:
        client = await server.client()
        await call(client)
        results = [await call(client)]
        busy = client.begin("tools/call", {"name": "other", "arguments": {}})
        await other.begun.wait()
        results.append(await call(client))
        assert [(is_repeat(each), error_in(each)["message"]) for each in results] == [(True, "no such account")] * 2
        assert keys(server, "replayed") == 2
        other.gate.set()
        await client.answer(busy)


async def test_a_repeat_holds_no_slot_while_another_process_runs_the_first_call(tmp_path: Path) -> None:
    pay, kept = Effect(), Kept(tmp_path)
    pay.gate.clear()
    one = {"resources": {"max_concurrent_executions": 1}}
    async with (
        asyncio.timeout(PATIENCE),
        kept.serve(pay.tool) as elsewhere,
        kept.serve(pay.tool, config=one) as server,
    ):
        first = begin_keyed(there := await elsewhere.client())
        await pay.begun.wait()
        repeat = begin_keyed(client := await server.client())
        await until(lambda: keys(server, "joined") == 1)
        assert server.runtime.slots.in_use == 0
        pay.gate.set()
        results = [(await there.answer(first))["result"], (await client.answer(repeat))["result"]]
        assert [is_repeat(each) for each in results] == [False, True]
        assert pay.count == 1


async def test_nobody_is_asked_again_for_a_repeat(kept: Kept) -> None:
    given: list[str] = []

    @tool
    async def order(colour: Annotated[str, Ask("Which colour?")]) -> str:
        given.append(colour)
        return colour

    async with asyncio.timeout(PATIENCE), kept.serve(order) as server:
        client = await server.client(capabilities={"elicitation": {"form": {}}})
        first = begin_keyed(client, "order")
        client.reply(await client.question(), {"action": "accept", "content": {"colour": "blue"}})
        results = [(await client.answer(first))["result"], await call(client, "order")]
        assert [is_repeat(each) for each in results] == [False, True]
        assert without_ids(results[1]) == without_ids(results[0])
        assert given == ["blue"]


async def test_a_used_key_is_refused_even_with_arguments_that_are_wrong(kept: Kept) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        await call(client)
        assert error_in(await call(client, amount="much"))["details"]["reason"] == "idempotency_conflict"
        assert pay.count == 1


async def test_a_new_key_is_looked_up_by_the_statement_that_stores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    connect = sqlite3.connect

    def trace(statement: str) -> None:
        if statement.startswith("SELECT") and KEY in statement:
            looked.append(statement)

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(trace)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    pay = Effect()
    async with Kept(tmp_path).serve(pay.tool) as server:
        client = await server.client()
        assert not is_repeat(await call(client))
        assert looked == []
        assert is_repeat(await call(client))
        of_a_repeat = len(looked)
        assert of_a_repeat > 0
        for each in [begin_keyed(client) for _ in range(20)]:
            assert is_repeat((await client.answer(each))["result"])
        assert len(looked) == 2 * of_a_repeat  # Those that come at once share a look-up.


async def test_the_late_result_of_a_call_that_timed_out_is_what_a_repeat_gets(kept: Kept) -> None:
    pay = Effect(timeout_ms=1000)
    pay.gate.clear()
    clock = ManualClock()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool, clock=clock) as server:
        client = await server.client()
        first = begin_keyed(client, amount=5)
        await pay.begun.wait()
        clock.advance(0.5)
        joined = begin_keyed(client, amount=5)
        await under_way(server, 2)
        clock.advance(0.5)
        assert error_in((await client.answer(first))["result"])["code"] == "TIMEOUT"
        assert answers(client, joined) == []  # It has its own deadline.
        clock.advance(0.5)
        assert error_in((await client.answer(joined))["result"])["code"] == "TIMEOUT"
        waiting = begin_keyed(client, amount=5)
        await under_way(server, 2)
        pay.gate.set()
        results = [(await client.answer(waiting))["result"], await call(client, amount=5)]
        assert [is_repeat(each) for each in results] == [True, True]
        assert [each["content"][0]["text"] for each in results] == ['{"amount":5,"number":1}'] * 2
        assert pay.count == 1


async def test_a_handler_that_stops_at_its_deadline_leaves_nothing_to_repeat(kept: Kept) -> None:
    pay = Effect(timeout_ms=1000)
    pay.is_patient = False
    clock = ManualClock()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool, clock=clock) as server:
        client = await server.client()
        first = begin_keyed(client)
        await pay.begun.wait()
        clock.advance(1.0)
        assert error_in((await client.answer(first))["result"])["code"] == "TIMEOUT"
        pay.is_patient = True
        result = await call(client)
        assert (result["isError"], is_repeat(result), pay.count) == (False, False, 2)


@pytest.mark.parametrize("modern", [True, False])
async def test_the_key_of_a_task_is_refused_to_a_client_that_takes_none(kept: Kept, modern: bool) -> None:
    pay = Effect(task="optional")
    async with kept.serve(pay.tool) as server:
        created = await server.runtime.create_task("pay", idempotency_key=KEY)
        client = server.connect(modern=True) if modern else await server.client()
        refused = await call(client)
        assert error_in(refused)["details"]["reason"] == "idempotency_conflict"
        assert created not in str(refused)
        assert await server.runtime.create_task("pay", idempotency_key=KEY) == created
        assert keys(server, "replayed") == 2  # The refused call is one of them.
        await pay.ended.wait()
    assert pay.count == 1


async def test_a_withdrawn_call_lets_a_repeat_run_that_waits_for_it(kept: Kept) -> None:
    pay = Effect()
    pay.is_patient = False
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as server:
        client = await server.client()
        first = begin_keyed(client)
        await pay.begun.wait()
        waiting = begin_keyed(client)
        await under_way(server, 2)
        pay.is_patient = True
        client.notify("notifications/cancelled", {"requestId": first})
        result = (await client.answer(waiting))["result"]
        assert (result["isError"], is_repeat(result), pay.count) == (False, False, 2)
        assert answers(client, first) == []


async def test_a_withdrawn_repeat_leaves_the_first_call_alone(kept: Kept) -> None:
    pay = Effect()
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as server:
        client = await server.client()
        first = begin_keyed(client)
        await pay.begun.wait()
        waiting = begin_keyed(client)
        await under_way(server, 2)
        client.notify("notifications/cancelled", {"requestId": waiting})
        await under_way(server, 1)
        pay.gate.set()
        result = (await client.answer(first))["result"]
        assert (result["isError"], is_repeat(result), pay.count) == (False, False, 1)
        assert not pay.tokens[0].is_set()


async def test_the_result_of_a_client_that_has_left_is_what_a_repeat_gets(kept: Kept) -> None:
    pay = Effect()
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as server:
        gone, client = await server.client(), await server.client()
        begin_keyed(gone)
        await pay.begun.wait()
        gone.disconnect()
        waiting = begin_keyed(client)
        await under_way(server, 2)
        pay.gate.set()
        result = (await client.answer(waiting))["result"]
        assert (is_repeat(result), pay.count) == (True, 1)


async def test_read_only_tools_ignore_keys(tmp_path: Path) -> None:
    look = Effect("look", read_only=True)
    async with Kept(tmp_path).serve(look.tool) as server:
        client = await server.client()
        results = [await call(client, "look"), await call(client, "look"), await call(client, "look", amount=2)]
        assert [is_repeat(each) for each in results] == [False] * 3
        assert look.count == 3
        assert not (tmp_path / "dragoman.db").exists()


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
@pytest.mark.parametrize(
    "key",
    [
        "k" * 15,
        "k" * 129,
        "",
        1234567890123456,
        None,
        True,
        ["k" * 16],
        {"key": "k" * 16},
        "k" * 15 + "\n",
        "\x7f" * 16,
    ],
)
async def test_what_is_no_key_is_an_invalid_parameter(key: Any, modern: bool) -> None:
    pay, look = Effect(), Effect("look", read_only=True)
    async with Kept(None).serve(pay.tool, look.tool) as server:
        client = server.connect(modern=True) if modern else await server.client()
        for name in ("pay", "look"):
            error = await call(client, name, key)
            assert (error["code"], error["message"]) == (
                -32602,
                f"Invalid params: {IDEMPOTENCY_KEY} must be a string of 16 to 128 printable characters",
            )
        assert (pay.count, look.count) == (0, 0)


@pytest.mark.parametrize("key", ["k" * 16, "k" * 128, "with some spaces in it", "ключ-из-шестнадцати"])
async def test_keys_have_16_to_128_printable_characters(kept: Kept, key: str) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        assert [is_repeat(await call(client, key=key)) for _ in range(2)] == [False, True]
        assert pay.count == 1


async def test_a_key_is_not_in_the_log(kept: Kept) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        client = await server.client()
        for _ in range(2):
            await call(client)
        await call(client, amount=2)
    assert KEY.encode() not in server.stderr


async def test_a_storage_that_cannot_be_used_refuses_the_call_until_it_can(tmp_path: Path) -> None:
    pay = Effect()
    database = tmp_path / "dragoman.db"
    database.write_bytes(b"this is no database" * 1000)
    async with Kept(tmp_path).serve(pay.tool) as server:
        client = await server.client()
        error = error_in(await call(client))
        assert (error["code"], error["message"]) == ("RESOURCE_EXHAUSTED", "The call cannot be stored now")
        assert error["details"] == {"reason": "storage_failed", "retryable": True}
        assert pay.count == 0
        assert (await client.call_tool("pay", {}))["isError"] is False  # Without a key, nothing is stored.
        database.unlink()
        results = [await call(client) for _ in range(2)]
        assert [is_repeat(each) for each in results] == [False, True]
        assert pay.count == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files that are open")
async def test_a_call_whose_storage_is_lost_while_it_runs_is_unknown_and_gives_its_slot_back(tmp_path: Path) -> None:
    pay = Effect()
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), Kept(tmp_path).serve(pay.tool) as server:
        client = await server.client()
        first = begin_keyed(client)
        await pay.begun.wait()
        (tmp_path / "dragoman.db").unlink()
        pay.gate.set()
        error = error_in((await client.answer(first))["result"])
        assert (error["code"], error["details"]["outcome"]) == ("INTERNAL", "UNKNOWN")
        assert error_in(await call(client))["code"] == "RESOURCE_EXHAUSTED"  # Nothing waits for what nobody runs.
        assert (server.runtime.slots.in_use, pay.count) == (0, 1)


def test_the_meta_of_a_call_holds_its_key() -> None:
    assert with_key("x") == {"dragoman/idempotencyKey": "x"}


async def test_arguments_without_a_json_form_are_refused_with_a_key_as_without() -> None:
    @tool
    async def take(value: dict[str, int]) -> int:
        return len(value)

    async with dragoman.open([take]) as runtime:
        for key in (None, "a-key-for-this-call"):
            outcome = await runtime.call("take", {"value": {1: 2, "a": 3}}, idempotency_key=key)
            assert isinstance(outcome.error, InvalidArgument)

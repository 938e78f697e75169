"""Runs of tasks within one process: questions, progress, deadlines, interruptions, and what listeners are told."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any, cast

import pytest

import dragoman
from dragoman import ToolContext, tool
from dragoman.access.callers import LOCAL, Caller
from dragoman.calls.call import Call
from dragoman.errors import InvalidArgument, NotFound, ProtocolError
from dragoman.protocol.versions import TASKS_EXTENSION
from dragoman.tasks.client import TaskClient
from dragoman.testing import ManualClock, TestServer, open_server
from dragoman.testing.connection import MemoryClient
from tests.support.calls import Held
from tests.support.waiting import until

CAPABLE = {"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}}


def client_of(server: TestServer, caller: Caller | None = None) -> MemoryClient:
    who = {} if caller is None else {"caller": caller}
    return server.connect(modern=True, capabilities=CAPABLE, **who)


async def create(client: MemoryClient, name: str, **arguments: Any) -> str:
    created = await client.call_tool(name, arguments)
    assert created["resultType"] == "task", created
    return str(created["taskId"])


async def look(client: MemoryClient, task_id: str) -> dict[str, Any]:
    answer = await client.request("tasks/get", {"taskId": task_id})
    found: dict[str, Any] = answer.get("result") or answer["error"]
    return found


async def ended(client: MemoryClient, task_id: str) -> dict[str, Any]:
    while (task := await look(client, task_id))["status"] in ("working", "input_required"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    return task


async def asking(client: MemoryClient, task_id: str) -> dict[str, Any]:
    while not (task := await look(client, task_id)).get("inputRequests"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    found: dict[str, Any] = task["inputRequests"]
    return found


def accept(value: Any) -> dict[str, Any]:
    return {"action": "accept", "content": {"value": value}}


@tool(task="optional")
async def ask(ctx: ToolContext) -> str:
    """Ask for a name."""
    name = await ctx.elicit("Name?", str)
    return f"Hello, {name}"


@tool(task="optional", idempotent=True)
async def ask_twice(ctx: ToolContext) -> list[str | None]:
    """Ask the same thing twice."""
    return [await ctx.elicit("Again?", str), await ctx.elicit("Again?", str)]


async def test_task_is_recorded_as_two_calls_with_one_correlation_id() -> None:
    @tool(task="optional")
    async def job() -> str:
        return "done"

    async with open_server([job]) as server:
        client = client_of(server)
        task = await ended(client, await create(client, "job"))
        assert task["result"]["content"] == [{"type": "text", "text": "done"}]
        call, run = [entry for entry in server.log if entry["message"].endswith("completed")]
        assert (call["message"], call["toolName"]) == ("tool call completed", "job")
        assert (run["message"], run["toolName"]) == ("task run completed", "tasks/run job")
        assert call["correlationId"] == run["correlationId"] == task["result"]["_meta"]["dragoman/correlationId"]
        assert call["runId"] != run["runId"]


async def test_question_that_nobody_answers_in_time_is_no_longer_asked_and_the_tool_goes_on() -> None:
    clock = ManualClock()
    async with open_server([ask], {"timeouts": {"input_ms": 1_000}}, clock=clock) as server:
        client = client_of(server)
        task_id = await create(client, "ask")
        (key,) = await asking(client, task_id)
        clock.advance(1.5)
        task = await ended(client, task_id)
        assert task["result"]["content"][0]["text"] == "Hello, None"
        late = await client.request("tasks/update", {"taskId": task_id, "inputResponses": {key: accept("Ada")}})
        assert late["result"]["resultType"] == "complete"
        assert (await look(client, task_id))["result"] == task["result"]


async def test_same_words_in_another_place_are_another_question() -> None:
    async with open_server([ask_twice]) as server:
        client = client_of(server)
        task_id = await create(client, "ask_twice")
        (first,) = await asking(client, task_id)
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {first: accept("a")}})
        (second,) = await asking(client, task_id)
        assert first != second
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {first: accept("x")}})
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {second: accept("b")}})
        task = await ended(client, task_id)
        assert task["result"]["structuredContent"] == {"result": ["a", "b"]}


async def test_tool_that_asks_gives_its_slot_to_another_task() -> None:
    @tool(task="optional")
    async def quick() -> int:
        return 1

    async with open_server([ask, quick], {"tasks": {"max_concurrent": 1}}) as server:
        client = client_of(server)
        waiting = await create(client, "ask")
        (key,) = await asking(client, waiting)
        assert (await ended(client, await create(client, "quick")))["status"] == "completed"
        await client.request("tasks/update", {"taskId": waiting, "inputResponses": {key: accept("Ada")}})
        assert (await ended(client, waiting))["result"]["content"][0]["text"] == "Hello, Ada"


@tool(task="optional")
async def wait_for_nothing(ctx: ToolContext) -> str:
    """Run until it is cancelled."""
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()
    return "never"


ONE = {"tasks": {"max_concurrent": 1}}


def in_use(server: TestServer) -> tuple[int, int]:
    """The places in the queue and the slots that are taken."""
    runs = server.runtime.tasks.requests._tasks
    return runs._queue.running, runs._take_slot.slots.in_use


async def test_task_that_asks_is_cancelled_though_no_slot_is_free() -> None:
    async with open_server([ask, wait_for_nothing], ONE) as server:
        client = client_of(server)
        asks = await create(client, "ask")
        await asking(client, asks)
        runs = await create(client, "wait_for_nothing")
        await until(lambda: in_use(server) == (1, 1))
        await client.request("tasks/cancel", {"taskId": asks})
        assert (await ended(client, asks))["status"] == "cancelled"
        await client.request("tasks/cancel", {"taskId": runs})
        assert (await ended(client, runs))["status"] == "cancelled"
        await until(lambda: in_use(server) == (0, 0))


async def test_task_gets_its_slot_back_with_the_last_of_several_answers() -> None:
    @tool(task="optional")
    async def ask_both(ctx: ToolContext) -> list[str | None]:
        return list(await asyncio.gather(ctx.elicit("First?", str), ctx.elicit("Second?", str)))

    async with open_server([ask_both, ask, wait_for_nothing], ONE) as server:
        client = client_of(server)
        task_id = await create(client, "ask_both")
        while len(keys := list(await asking(client, task_id))) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {keys[0]: accept("a")}})
        other = await create(client, "wait_for_nothing")
        await until(lambda: in_use(server) == (1, 1))
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {keys[1]: accept("b")}})
        await client.request("tasks/cancel", {"taskId": other})
        assert (await ended(client, task_id))["result"]["structuredContent"] == {"result": ["a", "b"]}
        await until(lambda: in_use(server) == (0, 0))


async def test_time_in_which_an_answered_task_waits_for_a_slot_is_not_counted() -> None:
    @tool(task="optional", timeout_ms=1_000)
    async def ask_in_time(ctx: ToolContext) -> str | None:
        return await ctx.elicit("Name?", str)

    clock = ManualClock()
    async with open_server([ask_in_time, wait_for_nothing], ONE, clock=clock) as server:
        client = client_of(server)
        task_id = await create(client, "ask_in_time")
        (key,) = await asking(client, task_id)
        other = await create(client, "wait_for_nothing")
        await until(lambda: in_use(server) == (1, 1))
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {key: accept("Ada")}})
        clock.advance(2)
        await client.request("tasks/cancel", {"taskId": other})
        assert (await ended(client, task_id))["result"]["content"][0]["text"] == "Ada"


async def test_task_that_another_process_has_begun_waits_here_no_longer(tmp_path: Path) -> None:
    folder = {"storage": {"data_dir": str(tmp_path)}}
    few = {**folder, "tasks": {"max_concurrent": 1, "max_waiting": 1}}
    async with open_server([wait_for_nothing], few) as one, open_server([wait_for_nothing], folder) as two:
        client = client_of(one)
        for _ in range(3):
            await create(client, "wait_for_nothing")
            await until(lambda: not one.runtime.tasks.requests._tasks._queue._waiting)
        assert len(two.runtime.tasks.requests._tasks.running) == 2


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_handler_that_gives_a_question_up_takes_no_slot_that_it_does_not_give_back(is_awaited: bool) -> None:
    go_on = asyncio.Event()

    @tool(task="optional")
    async def lose_patience(ctx: ToolContext) -> str:
        question = asyncio.create_task(ctx.elicit("Name?", str))
        await go_on.wait()
        if is_awaited:
            question.cancel()
            await asyncio.sleep(0)
            question.cancel()
            await asyncio.wait([question])
        return "done"

    clock = ManualClock()
    async with open_server(
        [lose_patience, wait_for_nothing], {**ONE, "timeouts": {"input_ms": 1_000}}, clock=clock
    ) as server:
        client = client_of(server)
        task_id = await create(client, "lose_patience")
        await asking(client, task_id)
        other = await create(client, "wait_for_nothing")
        await until(lambda: in_use(server) == (1, 1))
        go_on.set()
        await ended(client, task_id)
        await client.request("tasks/cancel", {"taskId": other})
        await ended(client, other)
        clock.advance(2)  # Nobody has answered in time what is still asked.
        for _ in range(10):
            await asyncio.sleep(0)
        await until(lambda: in_use(server) == (0, 0))


async def test_task_that_was_cancelled_while_it_waited_makes_room_for_another() -> None:
    async with open_server([wait_for_nothing], {"tasks": {"max_concurrent": 1, "max_waiting": 1}}) as server:
        client = client_of(server)
        await create(client, "wait_for_nothing")
        waiting = await create(client, "wait_for_nothing")
        await client.request("tasks/cancel", {"taskId": waiting})
        await create(client, "wait_for_nothing")


async def test_tasks_that_ask_count_among_those_that_may_wait() -> None:
    async with open_server([ask], {"tasks": {"max_waiting": 2}}) as server:
        client = client_of(server)
        for _ in range(2):
            await asking(client, await create(client, "ask"))
        refused = await client.call_tool("ask", {})
        assert "RESOURCE_EXHAUSTED" in refused["content"][0]["text"]


async def test_task_beyond_the_room_is_working_until_it_begins_and_can_be_cancelled_before() -> None:
    held = Held()
    job = tool(task="optional", name="job")(hold_with(held))
    async with open_server([job], {"tasks": {"max_concurrent": 1}}) as server:
        client = client_of(server)
        first = await create(client, "job")
        await held.begun.wait()
        second, third = await create(client, "job"), await create(client, "job")
        assert (await look(client, second))["status"] == "working"
        assert "result" in await client.request("tasks/cancel", {"taskId": second})
        assert (await look(client, second))["status"] == "cancelled"
        held.release.set()
        assert [(await ended(client, each))["status"] for each in (first, third)] == ["completed", "completed"]


def hold_with(held: Held) -> Any:
    async def hold() -> str:
        """Hold."""
        held.begun.set()
        await held.release.wait()
        return "held"

    return hold


async def test_task_that_passes_its_deadline_is_completed_with_the_timeout_as_its_call_would_have_been() -> None:
    clock, held = ManualClock(), Held()
    job = tool(task="optional", name="job", timeout_ms=1_000)(hold_with(held))
    async with open_server([job], clock=clock) as server:
        client = client_of(server)
        task_id = await create(client, "job")
        await held.begun.wait()
        clock.advance(1.5)
        task = await ended(client, task_id)
        assert (task["status"], task["result"]["isError"]) == ("completed", True)
        assert '"TIMEOUT"' in task["result"]["content"][0]["text"]
        held.release.set()


@pytest.mark.parametrize("code", [1001, -32603, -32769, -31999])
async def test_protocol_error_on_purpose_fails_the_task_and_answers_the_plain_call(code: int) -> None:
    @tool(task="optional")
    async def job() -> None:
        raise ProtocolError("Out of paper", {"tray": 2}, code=code)

    async with open_server([job]) as server:
        client = client_of(server)
        task = await ended(client, await create(client, "job"))
        assert task["status"] == "failed"
        assert task["error"] == {"code": code, "message": "Out of paper", "data": {"tray": 2}}
        assert "result" not in task
        plain = await (await server.client()).call_tool("job")
        assert (plain["code"], plain["message"], plain["data"]["tray"]) == (code, "Out of paper", 2)
        assert [record["outcome"] for record in server.records][-1] == "protocol_error"


@pytest.mark.requirement("FND-ERR-01", "FND-CALL-14")
@pytest.mark.parametrize("code", [-32602, -32000, -32768, -32002])
async def test_protocol_error_with_a_reserved_code_stays_an_error_of_the_tool(code: int) -> None:
    @tool(task="optional")
    async def job() -> None:
        raise ProtocolError("Not mine to say", code=code)

    async with open_server([job]) as server:
        client = client_of(server)
        task = await ended(client, await create(client, "job"))
        assert (task["status"], task["result"]["isError"]) == ("completed", True)
        assert "Not mine to say" not in str(task)


async def test_tasks_that_run_when_the_server_stops_finish_and_nothing_more_begins(tmp_path: Path) -> None:
    held = Held()
    job = tool(task="optional", name="job", idempotent=True)(hold_with(held))
    config = {"storage": {"data_dir": str(tmp_path)}, "tasks": {"max_concurrent": 1}}
    async with open_server([job], config) as server:
        client = client_of(server)
        first, second = await create(client, "job"), await create(client, "job")
        await held.begun.wait()
        stopping = asyncio.ensure_future(server.runtime.stop(30))
        await asyncio.sleep(0)
        held.release.set()
        assert await stopping == 0
    async with open_server([job], config) as server:
        client = client_of(server)
        assert (await look(client, first))["status"] == "completed"
        assert (await ended(client, second))["status"] == "completed"
        assert len([entry for entry in server.log if entry["message"] == "task run completed"]) == 1


@pytest.mark.parametrize(("is_idempotent", "status"), [(True, "working"), (False, "failed")])
async def test_task_that_a_stop_interrupts_goes_on_later_or_is_unknown(
    tmp_path: Path, is_idempotent: bool, status: str
) -> None:
    held = Held()
    job = tool(task="optional", name="job", idempotent=is_idempotent)(hold_with(held))
    config = {"storage": {"data_dir": str(tmp_path)}}
    async with open_server([job], config) as server:
        task_id = await create(client_of(server), "job")
        await held.begun.wait()
        assert await server.runtime.stop(0) == (0 if is_idempotent else 1)
    async with open_server([job], {**config, "tasks": {"tools": {"job": "none"}}}, runs_tasks=False) as server:
        task = await look(client_of(server), task_id)
        assert task["status"] == status
        if not is_idempotent:
            assert (task["error"]["code"], task["error"]["data"]) == (-32603, {"outcome": "UNKNOWN"})
    held.release.set()
    async with open_server([job], config) as server:
        task = await ended(client_of(server), task_id)
        assert task["status"] == ("completed" if is_idempotent else "failed")


async def test_answer_from_before_a_stop_is_given_again_and_the_open_question_keeps_its_key(tmp_path: Path) -> None:
    config = {"storage": {"data_dir": str(tmp_path)}}
    async with open_server([ask_twice], config) as server:
        client = client_of(server)
        task_id = await create(client, "ask_twice")
        (first,) = await asking(client, task_id)
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {first: accept("a")}})
        (second,) = await asking(client, task_id)
        assert await server.runtime.stop(5) == 0
    async with open_server([ask_twice], config) as server:
        client = client_of(server)
        assert list(await asking(client, task_id)) == [second]
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {second: accept("b")}})
        assert (await ended(client, task_id))["result"]["structuredContent"] == {"result": ["a", "b"]}


async def test_task_of_a_tool_that_is_gone_fails_and_names_it(tmp_path: Path) -> None:
    held = Held()
    job = tool(task="optional", name="job", idempotent=True)(hold_with(held))
    config = {"storage": {"data_dir": str(tmp_path)}}
    async with open_server([job], config) as server:
        task_id = await create(client_of(server), "job")
        await held.begun.wait()
        await server.runtime.stop(0)
    async with open_server([ask], config) as server:
        task = await ended(client_of(server), task_id)
        assert (task["status"], task["error"]["message"]) == ("failed", "Unknown tool: job")


async def test_task_whose_schema_has_changed_is_completed_with_the_refusal(tmp_path: Path) -> None:
    held = Held()
    before = tool(task="optional", name="job", idempotent=True)(hold_with(held))

    @tool(task="optional", name="job", idempotent=True)
    async def after(count: int) -> int:
        return count

    config = {"storage": {"data_dir": str(tmp_path)}}
    async with open_server([before], config) as server:
        task_id = await create(client_of(server), "job")
        await held.begun.wait()
        await server.runtime.stop(0)
    async with open_server([after], config) as server:
        task = await ended(client_of(server), task_id)
        assert (task["status"], task["result"]["isError"]) == ("completed", True)
        assert "INVALID_ARGUMENT" in task["result"]["content"][0]["text"]


async def test_task_is_found_by_its_creator_alone_and_only_while_it_may_call_the_tool() -> None:
    ada, ben = Caller("ada", scopes=frozenset({"tool:ask"})), Caller("ben")
    async with open_server([ask]) as server:
        task_id = await create(client_of(server, ada), "ask")
        refused = [
            await look(client_of(server, ben), task_id),
            await look(client_of(server, Caller("ada", scopes=frozenset({"tool:other"}))), task_id),
            await look(client_of(server, ada), task_id[:-1]),
        ]
        assert {(each["code"], each["message"]) for each in refused} == {
            (-32602, "Invalid params: there is no such task")
        }
        assert (await look(client_of(server, ada), task_id))["taskId"] == task_id


async def test_listener_is_told_of_its_own_tasks_what_a_look_would_show() -> None:
    async with open_server([ask]) as server:
        client = client_of(server)
        task_id, other = await create(client, "ask"), await create(client_of(server, Caller("ben")), "ask")
        (key,) = await asking(client, task_id)
        told: list[Any] = []
        owner = server.runtime.tasks.feed
        ids, stop = await owner.listen(Caller("local"), [task_id, other, "none", task_id], told.append)
        assert ids == [task_id]
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {key: accept("Ada")}})
        await until(lambda: told and told[-1]["status"] == "completed")
        assert set(told[-1]) == set(await look(client, task_id)) - {"_meta", "resultType"}
        stop()


async def test_python_creates_a_task_and_finds_it() -> None:
    @tool
    async def plain() -> int:
        return 1

    async with dragoman.open([ask, plain]) as runtime:
        task_id = await runtime.create_task("ask", idempotency_key="the-same-task-again")
        assert await runtime.create_task("ask", idempotency_key="the-same-task-again") == task_id
        run = await runtime.tasks.requests.find(Caller("local"), task_id)
        assert run.tool == "ask"
        with pytest.raises(InvalidArgument, match="Calls of plain do not become tasks"):
            await runtime.create_task("plain")
        with pytest.raises(NotFound):
            await runtime.create_task("none")


async def test_listener_is_told_every_change_once_however_many_loops_look(tmp_path: Path) -> None:
    async with open_server([ask], {"storage": {"data_dir": str(tmp_path)}}) as server:
        client = client_of(server)
        done, task_id = await create(client, "ask"), await create(client, "ask")
        feed, told = server.runtime.tasks.feed, list[str]()
        await client.request("tasks/cancel", {"taskId": done})
        await ended(client, done)
        found, stop = await feed.listen(LOCAL, [done, task_id], lambda task: told.append(task["status"]))
        assert found == [done, task_id]
        for _ in range(3):
            await asyncio.gather(*(feed.look() for _ in range(5)))
        await asking(client, task_id)
        await asyncio.gather(*(feed.look() for _ in range(5)))
        assert told in ([], ["input_required"])  # It may have asked before.
        told.clear()
        await client.request("tasks/cancel", {"taskId": task_id})
        await ended(client, task_id)
        await asyncio.gather(*(feed.look() for _ in range(5)))
        assert told.count("cancelled") == 1
        assert told[-1] == "cancelled"
        stop()


@pytest.mark.parametrize("outcome", ["value", "error", "question", "cancelled"])
async def test_nothing_of_a_run_is_left_for_the_garbage_collector(outcome: str) -> None:
    @tool(task="optional")
    async def job(ctx: ToolContext) -> str | None:
        ctx.progress(1)
        if outcome == "question":
            return await ctx.elicit("Name?", str)
        if outcome == "cancelled":
            await ctx.cancellation.wait()
            ctx.cancellation.raise_if_set()
        if outcome == "error":
            raise NotFound("nothing")
        return outcome

    async with open_server([job], clock=ManualClock()) as server:
        client = client_of(server)
        gc.collect()
        gc.disable()
        try:
            task_id = await create(client, "job")
            if outcome == "question":
                (key,) = await asking(client, task_id)
                await client.request("tasks/update", {"taskId": task_id, "inputResponses": {key: accept("Ada")}})
            if outcome == "cancelled":
                await client.request("tasks/cancel", {"taskId": task_id})
            await ended(client, task_id)
            await until(lambda: in_use(server) == (0, 0))
            cast("ManualClock", server.runtime.clock).advance(1)  # A note about its progress may be due.
            assert [each for each in gc.get_objects() if isinstance(each, Call | TaskClient)] == []
        finally:
            gc.enable()

"""A COMMIT that fails with an I/O error, at every door: the answer is UNKNOWN, and repeating it has one effect.

The pages of the transaction are in the log all the same. Processes that run do not see them, and write over them; after
a crash, before anything else is written, the next process finds them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from typer.testing import CliRunner

import dragoman
from chaos.disk_errors import can_fail, failing_commits
from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.agents.aacp.records import AACPRecords
from dragoman.agents.ledger import EntryStatus
from dragoman.cli.commands import app
from dragoman.clock import SystemClock
from dragoman.errors import InternalFailure, OutcomeUnknown, StorageUncertain
from dragoman.messaging.bus import Bus, BusMessage, DeadLetters
from dragoman.protocol.versions import TASKS_EXTENSION
from tests.contract.engines import opened_storages, sqlite
from tests.support.aacp import Pair
from tests.support.agents import agents_served
from tests.support.answers import error_in
from tests.support.bus_messages import subscribed, taken_ids
from tests.support.dead_actions import DeadActions
from tests.support.gateway import create_args
from tests.support.gateway_serving import advance_until_finished, open_gateway
from tests.support.keyed_calls import Effect, Kept, call, is_repeat
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(not can_fail(), reason="SQLite is no library of its own here")

UNKNOWN = {"reason": "storage_uncertain", "outcome": "UNKNOWN", "retryable": False}
MARK = "mark-of-this-change"
CAPABLE = {"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}}


class Disk:
    """Fails, once, the commit of a transaction that has the mark in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.after_a_crash = folder.with_name(f"{folder.name}-after")
        self.mark = MARK
        self.left = 1
        self.failed = 0

    def fails(self, path: str, pages: bytes) -> bool | None:
        if not self.left or not path.startswith(str(self.folder)) or self.mark.encode() not in pages:
            return None
        self.left -= 1
        self.failed += 1
        return True

    def keep(self) -> None:
        """Keep the data directory as the next process finds it, if all others end now."""
        self.after_a_crash.mkdir()
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            shutil.copy(self.folder / name, self.after_a_crash / name)


@contextmanager
def failing_in(folder: Path) -> Iterator[Disk]:
    disk = Disk(folder)
    with failing_commits(disk.fails, disk.keep):
        yield disk
    assert disk.failed == 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "data"
    folder.mkdir()
    with failing_in(folder) as disk:
        yield disk


def settings(folder: Path) -> dict[str, Any]:
    return {"storage": {"data_dir": str(folder)}}


async def test_a_refused_change_may_be_there_after_a_crash_and_is_written_over_by_the_next(disk: Disk) -> None:
    storage = sqlite(disk.folder)
    assert await storage.port(DeadLetters).page(None, 1) == []  # The last connection to be closed removes the log.
    with pytest.raises(StorageUncertain, match="whether the change was stored is unknown: disk I/O error"):
        await storage.port(Bus).publish(BusMessage(subject="jobs.a", id="m1", body=MARK.encode()))
    after = sqlite(disk.after_a_crash)
    assert await taken_ids(subscribed(after.port(Bus), "jobs.a")) == ["m1"]
    await after.close()
    assert await storage.port(Bus).publish(BusMessage(subject="jobs.a", id="m1", body=MARK.encode()))
    assert not await storage.port(Bus).publish(BusMessage(subject="jobs.a", id="m1", body=MARK.encode()))
    assert await taken_ids(subscribed(storage.port(Bus), "jobs.a")) == ["m1"]
    await storage.close()


async def test_a_tool_that_stores_answers_that_the_outcome_is_unknown(disk: Disk) -> None:
    async with dragoman.open([], {**settings(disk.folder), "tools": {"memory_enabled": True}}) as server:
        error = (await server.call("memory_store", {"key": "k", "value": MARK})).error
        assert isinstance(error, InternalFailure)
        assert error.details == UNKNOWN


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_with_a_key_runs_once_though_its_beginning_was_uncertain(disk: Disk, idempotent: bool) -> None:
    pay = Effect(idempotent=idempotent)
    disk.mark = "pay key-of-16-letter"
    async with Kept(disk.folder).serve(pay.tool) as server:
        client = await server.client()
        assert error_in(await call(client))["details"] == UNKNOWN
        assert pay.count == 0
        assert [is_repeat(await call(client)) for _ in range(2)] == [False, True]
        assert pay.count == 1
    async with Kept(disk.after_a_crash).serve(pay.tool) as server:
        answer = await call(await server.client())
        if idempotent:
            assert (answer["isError"], pay.count) == (False, 2)
        else:  # It may have run.
            assert (error_in(answer)["details"]["outcome"], pay.count) == ("UNKNOWN", 1)


async def test_a_call_with_a_key_is_answered_once_its_result_is_stored(disk: Disk) -> None:
    pay = Effect()
    pay.outcome = MARK
    async with asyncio.timeout(PATIENCE), Kept(disk.folder).serve(pay.tool) as server:
        client = await server.client()
        begun = asyncio.ensure_future(call(client))
        await until(lambda: disk.failed == 1)
        await until_done(begun, server.runtime.clock)
        assert [is_repeat(each) for each in (await begun, await call(client))] == [False, True]
        assert pay.count == 1


async def until_done(task: asyncio.Future[Any], clock: Any) -> None:
    """Let time pass until it is done."""

    def is_done() -> bool:
        clock.advance(0.1)
        return task.done()

    await until(is_done)


async def test_a_task_whose_creation_was_uncertain_is_created_once_by_its_key(disk: Disk) -> None:
    pay = Effect(task="optional")
    disk.mark = "pay key-of-16-letter"
    async with asyncio.timeout(PATIENCE), Kept(disk.folder).serve(pay.tool) as server:
        runtime = server.runtime
        with pytest.raises(InternalFailure) as failed:
            await runtime.create_task("pay", {}, idempotency_key="key-of-16-letter")
        assert failed.value.details == UNKNOWN
        ids = [await runtime.create_task("pay", {}, idempotency_key="key-of-16-letter") for _ in range(2)]
        assert len(set(ids)) == 1
        await until(lambda: pay.ended.is_set())
    assert pay.count == 1


async def test_an_update_of_a_task_says_that_its_outcome_is_unknown(disk: Disk) -> None:
    @tool(task="required")
    async def ask(ctx: dragoman.ToolContext) -> Any:
        return await ctx.elicit("Name?", str)

    async with asyncio.timeout(PATIENCE), Kept(disk.folder).serve(ask) as server:
        client = server.connect(modern=True, capabilities=CAPABLE)
        task_id = (await client.call_tool("ask", {}))["taskId"]
        while not (task := (await client.request("tasks/get", {"taskId": task_id}))["result"]).get("inputRequests"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        (key,) = task["inputRequests"]
        answers = {key: {"action": "accept", "content": {"value": MARK}}}
        told = [await client.request("tasks/update", {"taskId": task_id, "inputResponses": answers}) for _ in range(2)]
        assert told[0]["error"]["data"]["outcome"] == "UNKNOWN"
        assert "result" in told[1]


@pytest.mark.parametrize("what", ["request", "outcome"])
async def test_a_request_to_an_agent_has_one_effect_though_its_acceptance_or_its_outcome_was_uncertain(
    disk: Disk, what: str
) -> None:
    handled: list[Any] = []

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        handled.append(message.payload)
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return "the outcome"

    disk.mark, id = "the outcome" if what == "outcome" else MARK, str(uuid4())
    async with asyncio.timeout(PATIENCE), agents_served(handle, folder=disk.folder) as served:

        def send() -> Any:
            message = {"targetAgentId": "a", "message": {"type": "work", "payload": MARK}, "requestId": id}
            return asyncio.ensure_future(served.server.runtime.call("agent/sendRequest", message))

        first = send()
        await until(lambda: disk.failed == 1)
        await until_done(first, served.clock)
        if what == "request":
            assert (await first).error.details == UNKNOWN
            await until_done(second := send(), served.clock)
            first = second
        assert (await first).unwrap() == "the outcome"
        assert await served.coordinator.read_state("a") == {"count": 1}
        assert [each.status for each in await served.settled()] == [EntryStatus.COMPLETED] * 2


async def test_a_handler_whose_request_was_uncertain_is_called_again_and_makes_it_once(disk: Disk) -> None:
    asked: list[Any] = []

    @agent("a", effects="ledger")
    async def relay(message: AgentMessage, ctx: AgentContext) -> Any:
        return await ctx.request("b", message.payload[::-1])

    @agent("b", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        asked.append(message.payload)
        return "done"

    disk.mark = MARK[::-1]
    async with asyncio.timeout(PATIENCE), agents_served(relay, handle, folder=disk.folder) as served:
        sending = asyncio.ensure_future(served.coordinator.send_request("a", MARK))
        await until_done(sending, served.clock)
        assert (await sending, asked) == ("done", [MARK[::-1]])
        assert sorted(each.attempts for each in await served.settled() if each.kind == "REQUEST") == [1, 2]


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
async def test_a_signed_action_has_one_effect_though_its_commit_was_uncertain(disk: Disk, is_later: bool) -> None:
    prefer = {"prefer": "respond-async"} if is_later else {}
    async with asyncio.timeout(PATIENCE), open_gateway(folder=disk.folder) as gateway:
        signer = await gateway.signer("owner")
        args = create_args(metadata={"title": MARK})
        envelope = gateway.envelope(signer, "knowledge.create_document", args)
        failed = await gateway.post(signer, envelope, **prefer)
        told = failed.json["error"]
        assert (failed.status, told["code"], told["details"]["outcome"]) == (500, "INTERNAL", "UNKNOWN")
        assert "same idempotency key" in told["details"]["hint"]
        for _ in range(2):
            again = await gateway.post(signer, envelope, **prefer)
            assert again.status == (202 if is_later else 200), again.json
        if is_later:
            await gateway.finished(signer, envelope["request_id"])
        assert [each.event for each in await gateway.events()] == ["document.created"]


async def test_an_accepted_action_is_tried_again_with_its_key_though_its_commit_was_uncertain(disk: Disk) -> None:
    disk.left = 0
    async with asyncio.timeout(PATIENCE), open_gateway(folder=disk.folder) as gateway:
        signer = await gateway.signer("owner")
        disk.mark, disk.left = "document.created", 1
        envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
        assert (await gateway.post(signer, envelope, prefer="respond-async")).status == 202
        await until(lambda: disk.failed == 1)
        kept = await advance_until_finished(gateway, signer, envelope["request_id"])
        assert (kept.http_status, msgspec.json.decode(kept.body or b"")["data"]["revision"]) == (200, 1)
        assert [each.event for each in await gateway.events()] == ["document.created"]
        assert await gateway.dead.page(None, 10) == []


async def test_a_request_of_an_endpoint_is_unknown_and_sent_once_with_its_id(disk: Disk) -> None:
    storage, id = sqlite(disk.folder), str(uuid4())
    pair = Pair(records=storage.port(AACPRecords))
    with pytest.raises(OutcomeUnknown) as unknown:
        await pair.a.endpoint.begin_request("b", MARK, id)
    assert unknown.value.request_id == id
    for _ in range(2):
        assert await pair.a.endpoint.begin_request("b", MARK, id) == id
        await pair.pass_time(1)
    assert [each.payload for each in pair.b.handled] == [MARK]
    assert (await pair.a.endpoint.wait_for_outcome(id, timeout_ms=1)).is_settled
    await storage.close()


def test_a_command_says_that_its_outcome_is_unknown(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(disk.folder))

    async def fail() -> None:
        async with opened_storages("sqlite", disk.folder, SystemClock()) as (storage,):
            await DeadActions(storage, SystemClock()).fail("acme")

    asyncio.run(fail())
    disk.mark = "redriven"
    told = [CliRunner().invoke(app, ["messages", "redrive", "a1"]) for _ in range(2)]
    assert [each.exit_code for each in told] == [1, 0]
    assert "whether the change was stored is unknown" in told[0].stderr

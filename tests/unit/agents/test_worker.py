"""One agent at work: failures, restarts, retries, deadlines, requests to others, and a storage that fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent
from dragoman.agents.ledger import EntryStatus, LedgerEntry, Settlement
from dragoman.errors import (
    InternalFailure,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    StorageBusy,
    StorageFull,
    StorageUncertain,
    TimedOut,
    ToolError,
)
from dragoman.telemetry.causes import causes_in
from tests.support.aacp import uuid
from tests.support.agents import FailingLedger, Gate, agents_served, quiet
from tests.support.waiting import PATIENCE, until

REQUEST = uuid(1)

pytestmark = pytest.mark.requirement("FND-TEST-06")


class Counter:
    """An agent that counts, and fails when it is told to."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    async def start(self, ctx: AgentContext) -> None:
        ctx.state.setdefault("starts", 0)
        ctx.state["starts"] += 1

    async def handle(self, message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        if message.payload == "crash":
            raise ValueError("crash")
        if message.payload == "refuse":
            raise InvalidArgument("refused")
        return ctx.state["count"]


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    Counter.made = 0


async def test_an_exception_restarts_the_agent_from_its_stored_state() -> None:
    async with agents_served(agent("a", max_restarts=3)(Counter)) as served:
        send = served.coordinator.send_message
        assert await send("a", {"type": "t", "payload": None}) == 1
        with pytest.raises(ToolError):
            await send("a", {"type": "t", "payload": "crash"})
        assert served.coordinator.get_agent_state("a") == {"starts": 1, "count": 1}
        again = asyncio.ensure_future(send("a", {"type": "t", "payload": None}))
        await quiet()
        assert not again.done()  # It is not restarted at once.
        served.clock.advance(0.1)
        assert await again == 2
        assert (Counter.made, served.coordinator.get_agent_state("a")) == (2, {"starts": 2, "count": 2})
        assert served.deliveries.workers["a"].restarts == 1


async def test_an_agent_that_fails_too_often_within_a_minute_is_stopped() -> None:
    async with agents_served(agent("a", max_restarts=1)(Counter)) as served:
        send = served.coordinator.send_message
        sent = [asyncio.ensure_future(send("a", {"type": "t", "payload": "crash"})) for _ in range(3)]
        await quiet()
        served.clock.advance(0.1)
        errors = await asyncio.gather(*sent, return_exceptions=True)
        assert getattr(errors[2], "details", None) == {"reason": "agent_stopped", "retryable": False}
        with pytest.raises(ResourceExhausted):
            await send("a", {"type": "t", "payload": None})
        assert Counter.made == 2
        served.coordinator.unregister_agent("a")
        served.coordinator.register_agent("a", Counter)
        assert await served.coordinator.send_request("a", None) == 1


async def test_failures_that_are_long_ago_are_forgiven() -> None:
    async with agents_served(agent("a", max_restarts=1)(Counter)) as served:
        for _ in range(4):
            with pytest.raises(ToolError):
                await served.coordinator.send_message("a", {"type": "t", "payload": "crash"})
            served.clock.advance(61)
        assert await served.coordinator.send_message("a", {"type": "t"}) == 1


async def test_a_tool_error_fails_the_message_and_restarts_nothing() -> None:
    async with agents_served(agent("a", effects="ledger")(Counter)) as served:
        assert await served.coordinator.send_request("a", None) == 1
        with pytest.raises(InvalidArgument, match="refused"):
            await served.coordinator.send_request("a", "refuse")
        assert await served.coordinator.send_request("a", None) == 2
        assert Counter.made == 1
        statuses = [each.status for each in await served.page(kinds=("REQUEST",))]
        assert statuses == ["completed", "failed", "completed"]


async def test_an_agent_starts_again_if_its_first_message_failed() -> None:
    async with agents_served(agent("a")(Counter)) as served:
        for _ in range(2):
            with pytest.raises(InvalidArgument):
                await served.coordinator.send_message("a", {"type": "t", "payload": "refuse"})
            assert served.coordinator.get_agent_state("a") == {}
        assert await served.coordinator.send_message("a", {"type": "t"}) == 1
        assert served.coordinator.get_agent_state("a") == {"starts": 1, "count": 1}


@pytest.mark.parametrize("raised", [SystemExit(3), BaseExceptionGroup("all", [SystemExit(3)])])
async def test_a_handler_that_exits_ends_its_message_and_not_the_agent(raised: BaseException) -> None:
    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        if message.payload == "exit":
            raise raised
        return "here"

    async with agents_served(handle) as served:
        with pytest.raises(InternalFailure):
            await served.coordinator.send_request("a", "exit")
        asked = asyncio.ensure_future(served.coordinator.send_request("a", "other"))
        await served.advance(0.2)
        assert await asked == "here"
        assert [each.status for each in await served.page(kinds=("REQUEST",))] == ["dead", "completed"]


@pytest.mark.requirement("FND-AACP-03", "FND-AACP-16", "FND-AACP-39", "FND-AACP-42")
@pytest.mark.parametrize("options", [{"effects": "ledger"}, {"idempotent": True}])
async def test_work_that_can_be_repeated_is_tried_again_with_growing_delays_and_then_a_dead_letter(
    options: Any,
) -> None:
    at: list[float] = []
    ids: list[Any] = []

    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        at.append(served.clock.monotonic())
        ids.append(ctx.request_id)
        raise TimedOut("the other side is silent")

    config = {"aacp": {"max_attempts": 4, "base_delay_ms": 1000, "max_delay_ms": 3000}}
    async with agents_served(agent("a", **options)(handle), config=config) as served:
        asked = asyncio.ensure_future(served.coordinator.send_request("a", 1, request_id=REQUEST, timeout_ms=60_000))
        await until(lambda: served.deliveries.retries)
        await served.rest()
        (first,) = await served.page()
        assert first.status is EntryStatus.RETRYING
        await served.advance(10)
        with pytest.raises(TimedOut, match="silent"):
            await asked
        (entry,) = await served.page()
        assert (entry.status, entry.attempts) == (EntryStatus.DEAD, 4)
        assert entry.error is not None
        assert b"silent" in entry.error
        causes = causes_in(entry.error)
        assert [(each.attempt, each.type, each.message) for each in causes] == [
            (number, "TimedOut", "the other side is silent") for number in (1, 2, 3, 4)
        ]
        assert [each.at for each in causes] == sorted({each.at for each in causes})
        assert entry.request_id == first.request_id == REQUEST
        assert entry.message_id != first.message_id
        assert set(ids) == {REQUEST}
        assert (served.deliveries.retries, served.deliveries.dead_letters) == (3, 1)
    assert len(at) == 4
    for delay, (least, most) in zip(
        [later - sooner for sooner, later in itertools.pairwise(at)],
        [(0.5, 1.0), (1.0, 2.0), (1.5, 3.0)],
        strict=True,
    ):
        assert least <= delay <= most + 0.1


@pytest.mark.requirement("FND-AACP-42")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TimedOut("silent"), EntryStatus.FAILED),
        (ResourceExhausted("later", {"retryable": True}), EntryStatus.FAILED),
        (ValueError("crash"), EntryStatus.DEAD),
    ],
)
async def test_work_with_effects_outside_of_the_ledger_is_not_tried_again(
    error: Exception, status: EntryStatus
) -> None:
    runs = 0

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal runs
        runs += 1
        raise error

    async with agents_served(handle) as served:
        with pytest.raises(ToolError):
            await served.coordinator.send_request("a", 1)
        await served.advance(60, step=1)
        (entry,) = await served.page()
        assert (runs, entry.status, entry.attempts) == (1, status, 1)
        (cause,) = causes_in(entry.error)
        assert (cause.type, cause.message) == (type(error).__name__, str(error))
        assert str(cause.place).endswith(" in handle")


@pytest.mark.requirement("FND-AACP-42")
async def test_a_message_that_has_had_its_attempts_is_not_begun_by_a_process_that_allows_no_more(
    tmp_path: Path,
) -> None:
    runs = 0

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal runs
        runs += 1
        raise TimedOut("not yet")

    async with agents_served(handle, folder=tmp_path) as served:
        await served.coordinator.send_reliable_message("a", 1)
        await until(lambda: served.deliveries.retries)
        await served.rest()
    async with agents_served(handle, folder=tmp_path, config={"aacp": {"max_attempts": 1}}) as served:
        await served.advance(1)
        (entry,) = await served.settled()
        assert (runs, entry.status, entry.attempts) == (1, EntryStatus.DEAD, 1)


@pytest.mark.requirement("FND-AGENT-02")
async def test_a_message_that_is_tried_again_holds_back_its_own_pair_and_no_other() -> None:
    order: list[tuple[str | None, Any]] = []
    failures = 2

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal failures
        if message.payload == "first" and failures:
            failures -= 1
            raise TimedOut("not yet")
        order.append((message.source_agent_id, message.payload))

    async with agents_served(handle) as served:
        send = served.coordinator.send_reliable_message
        for payload in ("first", "second", "third"):
            await send("a", payload, source="x")
            await send("a", payload + "!", source="y")
        await until(lambda: order == [("y", "first!"), ("y", "second!"), ("y", "third!")])
        await send("a", "fourth", source="x")
        await served.advance(3)
        assert order[3:] == [("x", "first"), ("x", "second"), ("x", "third"), ("x", "fourth")]


@pytest.mark.requirement("FND-AACP-19")
async def test_a_handler_that_goes_on_after_its_deadline_is_answered_for_and_what_it_does_is_stored() -> None:
    gate = Gate()
    runs = 0

    @agent("a", timeout_ms=1000)
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal runs
        runs += 1
        await gate()
        ctx.state["done"] = message.payload
        return "late"

    async with agents_served(handle) as served:
        ask = served.coordinator.send_request
        asked = asyncio.ensure_future(ask("a", 1, request_id=REQUEST, timeout_ms=60_000))
        await gate.arrived.wait()
        served.clock.advance(1)
        with pytest.raises(TimedOut):
            await asked
        worker = served.deliveries.workers["a"]
        assert worker.is_quarantined
        with pytest.raises(ResourceExhausted) as refused:
            await served.coordinator.send_message("a", {"type": "t"})
        assert refused.value.details == {"reason": "quarantined", "retryable": True}
        second = asyncio.ensure_future(ask("a", 2, timeout_ms=60_000))
        await quiet()
        assert runs == 1
        gate.opened.set()
        assert await second == "late"
        assert not worker.is_quarantined
        assert await ask("a", 1, request_id=REQUEST) == "late"
        assert (runs, served.coordinator.get_agent_state("a")) == (2, {"done": 2})


async def test_a_state_that_is_too_large_fails_the_message_and_changes_nothing() -> None:
    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.state["small"] = ctx.state.get("small", 0) + 1
        ctx.state["large"] = "x" * message.payload
        await ctx.send("b", "sent")

    @agent("b")
    async def other(message: AgentMessage, ctx: AgentContext) -> Any:
        return None

    async with agents_served(handle, other, config={"tools": {"max_state_bytes": 1024}}) as served:
        await served.coordinator.send_request("a", 10)
        with pytest.raises(ResourceExhausted) as refused:
            await served.coordinator.send_request("a", 1025)
        assert refused.value.details is not None
        assert (refused.value.details["reason"], refused.value.details["limit"]) == ("state_too_large", 1024)
        assert await served.coordinator.read_state("a") == {"small": 1, "large": "x" * 10}
        assert served.coordinator.get_agent_state("a") == {"small": 1, "large": "x" * 10}
        assert len(await served.page(target="b")) == 1
        await served.coordinator.send_request("a", 11)
        assert await served.coordinator.read_state("a") == {"small": 2, "large": "x" * 11}


async def test_messages_are_sent_only_if_the_handler_succeeds() -> None:
    got: list[Any] = []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.send("b", message.payload)  # It need not be awaited.
        if message.payload == "bad":
            raise InvalidArgument("no")
        assert got == []  # It is sent when it is stored, and not before.
        with pytest.raises(NotFound):
            await ctx.send("nobody", 1)

    @agent("b")
    async def other(message: AgentMessage, ctx: AgentContext) -> Any:
        got.append((message.payload, message.source_agent_id, message.type))

    async with agents_served(handle, other) as served:
        with pytest.raises(InvalidArgument):
            await served.coordinator.send_request("a", "bad")
        await served.coordinator.send_message("a", {"type": "t", "payload": "good"})
        await served.settled()
        assert got == [("good", "a", "message")]


@pytest.mark.requirement("FND-AACP-15")
async def test_a_request_of_a_handler_is_not_executed_again_when_the_handler_is() -> None:
    asked: list[Any] = []
    failures = 1

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal failures
        answers = [await ctx.request("b", number) for number in (1, 2)]
        if failures:
            failures -= 1
            raise ValueError("crash")
        return answers

    @agent("b")
    async def other(message: AgentMessage, ctx: AgentContext) -> Any:
        asked.append(message.payload)
        return message.payload * 10

    async with agents_served(handle, other) as served:
        answer = asyncio.ensure_future(served.coordinator.send_request("a", 1, timeout_ms=60_000))
        while not answer.done():
            await served.advance(0.05)
        assert await answer == [10, 20]
        assert asked == [1, 2]


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_a_request_that_would_wait_for_itself_is_refused_at_once(length: int) -> None:
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        return await ctx.request(f"a{(int(ctx.agent_id[1:]) + 1) % length}", message.payload)

    async with agents_served(*(agent(f"a{n}")(_copy(handle)) for n in range(length))) as served:
        for send in (
            served.coordinator.send_request("a0", 1),
            served.coordinator.send_message("a0", {"type": "t", "payload": 1}),
        ):
            with pytest.raises(InvalidArgument) as refused:
                await send
            assert refused.value.details == {"reason": "cycle"}


def _copy(handle: Any) -> Any:
    async def copied(message: AgentMessage, ctx: AgentContext) -> Any:
        return await handle(message, ctx)

    return copied


async def test_more_handlers_can_wait_for_others_than_there_are_slots() -> None:
    async def ask(message: AgentMessage, ctx: AgentContext) -> Any:
        return await ctx.request("last", message.payload)

    @agent("last")
    async def last(message: AgentMessage, ctx: AgentContext) -> Any:
        return message.payload

    askers = [agent(f"a{number}")(_copy(ask)) for number in range(10)]
    async with agents_served(*askers, last, config={"aacp": {"max_concurrent": 2}}) as served:
        send = served.coordinator.send_request
        assert await asyncio.gather(*(send(f"a{n}", n) for n in range(10))) == list(range(10))


async def test_no_more_handlers_run_at_once_than_there_are_slots() -> None:
    running = most = 0

    async def work(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await quiet()
        running -= 1

    workers = [agent(f"a{number}")(_copy(work)) for number in range(10)]
    async with agents_served(*workers, config={"aacp": {"max_concurrent": 3}}) as served:
        await asyncio.gather(*(served.coordinator.send_message(f"a{n}", {"type": "t"}) for n in range(10)))
    assert most == 3


async def test_a_message_that_was_not_handled_in_time_expires() -> None:
    gate = Gate()
    runs: list[Any] = []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        runs.append(message.payload)
        await gate()

    async with agents_served(handle, config={"aacp": {"default_ttl_ms": 5000}}) as served:
        await served.coordinator.send_reliable_message("a", 1)
        await gate.arrived.wait()
        await served.coordinator.send_reliable_message("a", 2)
        served.clock.advance(5)
        gate.opened.set()
        assert [each.status for each in await served.settled()] == ["completed", "expired"]
        assert runs == [1]


@pytest.mark.requirement("FND-AACP-13")
async def test_a_storage_that_is_full_for_a_while_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    done: list[Any] = []
    ended: list[str] = []

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        done.append(message.payload)
        ctx.state["sum"] = ctx.state.get("sum", 0) + message.payload
        await ctx.send("b", message.payload)

    @agent("b")
    async def other(message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.state["got"] = [*ctx.state.get("got", []), message.payload]

    async with agents_served(handle, other, folder=tmp_path) as served:
        served.coordinator.on_message_completed = ended.append
        ledger = FailingLedger(served.deliveries.ledger)
        served.deliveries.ledger = ledger  # type: ignore[assignment]
        ledger.settle_errors = [StorageFull("full")] * 7
        ledger.begin_errors = [StorageBusy("busy")] * 3
        for number in range(1, 6):
            await served.coordinator.send_reliable_message("a", number)
        await until(lambda: len(done) == 5)
        assert ended == []
        while not all(each.status is EntryStatus.COMPLETED for each in await served.page(limit=1000)) or (
            len(await served.page(target="b")) < 5
        ):
            served.clock.advance(0.5)
            await asyncio.sleep(0.005)
        assert done == [1, 2, 3, 4, 5]
        assert await served.coordinator.read_state("a") == {"sum": 15}
        assert await served.coordinator.read_state("b") == {"got": [1, 2, 3, 4, 5]}
        assert await served.deliveries.admin.verify() == []
        assert ledger.begin_errors == []


async def test_a_ledger_that_cannot_be_read_for_a_while_is_read_later() -> None:
    gate, done = Gate(), list[Any]()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        done.append(message.payload)

    async with agents_served(handle, config={"aacp": {"mailbox_size": 1}}) as served:
        ledger = FailingLedger(served.deliveries.ledger)
        served.deliveries.ledger = ledger  # type: ignore[assignment]
        ledger.waiting_errors = [StorageBusy("busy")] * 2
        for number in range(5):
            await served.coordinator.send_reliable_message("a", number)
        gate.opened.set()
        await served.advance(3)
        assert done == [0, 1, 2, 3, 4]


async def test_what_was_begun_after_a_refused_settlement_is_undone_with_it(tmp_path: Path) -> None:
    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        if message.type == "add":
            ctx.state["sum"] = ctx.state.get("sum", 0) + message.payload
            await ctx.send("b", message.payload)
        return ctx.state.get("sum", 0)

    @agent("b")
    async def other(message: AgentMessage, ctx: AgentContext) -> Any:
        return None

    async with agents_served(handle, other, folder=tmp_path) as served:
        send = served.coordinator.send_message
        assert await send("a", {"type": "add", "payload": 1}) == 1
        await served.deliveries.ledger.hold("a")  # As another process would that takes over.
        outcomes = await asyncio.gather(
            send("a", {"type": "add", "payload": 10}),
            send("a", {"type": "add", "payload": 100}),
            send("a", {"type": "look"}),  # It changes nothing, and would only tell of what was not stored.
            return_exceptions=True,
        )
        assert [getattr(each, "details", each) for each in outcomes] == [{"reason": "lease_lost"}] * 3
        assert all(isinstance(each, InternalFailure) for each in outcomes)
        assert await served.coordinator.read_state("a") == {"sum": 1}
        await until(lambda: "a" in served.deliveries.workers)  # Held again, with what is stored.
        assert await send("a", {"type": "add", "payload": 1000}) == 1001
        assert len(await served.page(target="b")) == 2


class Uncertain(FailingLedger):
    """A ledger whose next settlement is stored, and nobody knows."""

    left = 1

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        return self._settle(super().settle(settlement))

    async def _settle(self, storing: Awaitable[list[LedgerEntry]]) -> list[LedgerEntry]:
        sent = await storing
        self.left -= 1
        if self.left == 0:
            raise StorageUncertain("disk I/O error")
        return sent


@pytest.mark.parametrize("is_reliable", [True, False], ids=["request", "simple"])
async def test_what_an_agent_did_is_stored_once_though_nobody_knew_that_it_was(
    tmp_path: Path, is_reliable: bool
) -> None:
    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.state["sum"] = ctx.state.get("sum", 0) + message.payload
        return ctx.state["sum"]

    async with asyncio.timeout(PATIENCE), agents_served(handle, folder=tmp_path) as served:
        served.deliveries.ledger = Uncertain(served.deliveries.ledger)  # type: ignore[assignment]
        if is_reliable:
            asking = asyncio.ensure_future(served.coordinator.send_request("a", 1))
        else:
            asking = asyncio.ensure_future(served.coordinator.send_message("a", {"type": "add", "payload": 1}))
        while not asking.done():
            served.clock.advance(0.1)
            await asyncio.sleep(0.002)
        if is_reliable:
            assert await asking == 1
        else:
            with pytest.raises(InternalFailure) as failed:
                await asking
            assert (failed.value.details or {})["outcome"] == "UNKNOWN"
        assert await served.coordinator.read_state("a") == {"sum": 1}
        assert await served.deliveries.admin.verify() == []


async def test_messages_of_other_processes_are_not_queued_before_earlier_ones_of_their_pair() -> None:
    gate, done = Gate(), list[Any]()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        done.append(message.payload)

    async with agents_served(handle, config={"aacp": {"mailbox_size": 2}}) as served:
        for number in range(6):
            await served.coordinator.send_reliable_message("a", number)
        await gate.arrived.wait()
        news, _ = await served.deliveries.ledger.news(0)
        served.deliveries.workers["a"].mailbox.take()  # There is room again for one, and four are in the ledger only.
        done.append(1)
        served.deliveries.deliver(news[-1:])
        gate.opened.set()
        await until(lambda: len(done) == 6)
        assert sorted(done) == list(range(6))
        assert [each for each in done if each > 1] == [2, 3, 4, 5]


async def test_each_handling_leaves_a_record_of_its_own() -> None:
    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        return 1

    async with agents_served(handle) as served:
        await served.coordinator.send_request("a", 1, correlation_id="c-1")
        records = [each for each in served.server.log if each["message"] == "agent message handled"]
        assert [(each["toolName"], each["outcome"], each["correlationId"]) for each in records] == [
            ("agent/handle a", "success", "c-1")
        ]

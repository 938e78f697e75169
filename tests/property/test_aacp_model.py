"""What holds between two agents whatever their link does, and however often they restart."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dragoman.adapters.sqlite_aacp import SqliteAACPRecords
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.agents.aacp import AACPEnvelope, AACPMessageType, AACPOutcome, AACPRecords
from dragoman.agents.aacp.envelope import first_dead
from dragoman.agents.migrations import MIGRATIONS
from dragoman.testing import ManualClock
from tests.support.aacp import Agent, Faults, Pair, by_pair, uuid
from tests.support.examples import examples

sides = st.sampled_from("ab")
chances = st.sampled_from([0.0, 0.2, 0.5])


class TwoAgents(RuleBasedStateMachine):
    """Agents that send each other requests and events. Each execution of a handler returns another number."""

    def __init__(self) -> None:
        super().__init__()
        self.records: AACPRecords | None = None
        self.runner = asyncio.Runner()
        self.numbers = count()
        self.requests: list[tuple[Agent, str, int]] = []
        self.events: dict[str, int] = {}

    @initialize(seed=st.integers(0, 2**32), loss=chances, doubling=chances, delay=chances)
    def begin(self, seed: int, loss: float, doubling: float, delay: float) -> None:
        self.pair = Pair(Faults(loss, doubling, delay), seed, self.records)
        self.executions = count()
        for agent in (self.pair.a, self.pair.b):
            agent.answer = lambda envelope: next(self.executions)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def agent(self, side: str) -> Agent:
        return self.pair.a if side == "a" else self.pair.b

    def other(self, agent: Agent) -> str:
        return "b" if agent.name == "a" else "a"

    @rule(side=sides)
    def request(self, side: str) -> None:
        agent, number = self.agent(side), next(self.numbers)
        request_id = uuid(10_000 + number)
        self.run(agent.endpoint.begin_request(self.other(agent), number, request_id))
        self.requests.append((agent, request_id, number))

    @rule(side=sides)
    def event(self, side: str) -> None:
        agent, number = self.agent(side), next(self.numbers)
        self.events[self.run(agent.endpoint.send_event(self.other(agent), number))] = number

    @rule(choice=st.integers(0, 2**16))
    def ask_again(self, choice: int) -> None:
        if self.requests:
            agent, request_id, number = self.requests[choice % len(self.requests)]
            self.run(agent.endpoint.begin_request(self.other(agent), number, request_id))

    @rule()
    def deliver(self) -> None:
        self.run(self.pair.link.deliver())

    @rule(seconds=st.sampled_from([0.25, 1, 4, 16]))
    def pass_time(self, seconds: float) -> None:
        self.run(self.pair.pass_time(seconds))

    @rule(side=sides)
    def lose_everything_of_one_side_until_it_gives_up(self, side: str) -> None:
        self.pair.link.silenced.add(side)
        for _ in range(6):
            self.run(self.pair.pass_time(8))
        self.pair.link.silenced.clear()

    @rule(side=sides)
    def restart(self, side: str) -> None:
        self.agent(side).start()
        self.run(self.agent(side).endpoint.recover())

    @invariant()
    def message_ids_are_unique(self) -> None:
        ids = [each.message_id for each in self.pair.link.carried]
        assert len(ids) == len(set(ids))

    @invariant()
    def each_number_stands_for_one_message_and_numbers_grow(self) -> None:
        for sent in by_pair([each for each in self.pair.link.carried if first_dead(each) is None]).values():
            meaning: dict[int, tuple[Any, ...]] = {}
            for each in sent:
                same = (each.request_id, each.message_type, each.payload)
                assert each.seq in meaning or each.seq > max(meaning, default=0)
                assert meaning.setdefault(each.seq, same) == same

    @invariant()
    def responses_name_a_request_and_always_say_the_same(self) -> None:
        said: dict[str, Any] = {}
        made = {request_id for _, request_id, _ in self.requests}
        for each in self.pair.link.carried:
            if each.message_type is AACPMessageType.RESPONSE:
                assert each.request_id in made
                assert said.setdefault(each.request_id, each.payload) == each.payload

    @invariant()
    def acks_name_a_prefix_that_has_arrived(self) -> None:
        arrived = {pair: _numbers(delivered) for pair, delivered in by_pair(self.pair.link.delivered).items()}
        for each in (*self.pair.link.carried, *self.pair.link.receipts):
            if each.ack:
                assert set(range(1, each.ack + 1)) <= arrived[each.target_agent_id, each.source_agent_id]

    @invariant()
    def handlers_run_once_and_in_order(self) -> None:
        for agent in (self.pair.a, self.pair.b):
            numbers = [each.seq for each in agent.handled]
            assert numbers == sorted(set(numbers))
            payloads = [each.payload for each in agent.handled]
            assert len(payloads) == len(set(payloads))

    def teardown(self) -> None:
        try:
            if hasattr(self, "pair"):
                self.run(self.settle())
        finally:
            self.runner.close()

    async def settle(self) -> None:
        """Once the link is healed, everything has an outcome, and the same on both sides."""
        self.pair.link.heal()
        await self.quieten()
        for agent, request_id, number in self.requests:  # Those that were given up are sent again by asking again.
            await agent.endpoint.begin_request(self.other(agent), number, request_id)
        for agent in (self.pair.a, self.pair.b):
            await agent.endpoint.send_event(self.other(agent), f"last of {agent.name}")
        await self.quieten()
        results = {}
        for agent, request_id, number in self.requests:
            record = await agent.adapter.get_request_record(request_id, agent.name)
            assert record is not None
            assert record.status is AACPOutcome.COMPLETED
            results[number] = await agent.endpoint.send_request(self.other(agent), number, request_id=request_id)
        handled = [each for agent in (self.pair.a, self.pair.b) for each in agent.handled]
        asked = [each.payload for each in handled if each.message_type is AACPMessageType.REQUEST]
        assert sorted(asked) == sorted(results)
        assert len(set(results.values())) == len(results)
        await self.check_books(handled)

    async def check_books(self, handled: list[AACPEnvelope]) -> None:
        seen = {each.payload for each in handled if each.message_type is AACPMessageType.EVENT}
        for message_id, number in self.events.items():
            sender = self.pair.a if await self.pair.a.ledger.get_by_message_id(message_id) else self.pair.b
            status = await sender.endpoint.get_status(message_id)
            assert status is not None
            assert status.outcome in (AACPOutcome.COMPLETED, AACPOutcome.FAILED)
            assert number in seen or status.outcome is AACPOutcome.FAILED
        for source, target in ((self.pair.a, self.pair.b), (self.pair.b, self.pair.a)):
            last = await source.adapter.get_last_sequence(source.name, target.name)
            assert await target.adapter.get_last_ack(source.name, target.name) == last
            assert await source.adapter.get_last_ack(source.name, target.name) == last
            assert await source.ledger.get_unacknowledged(source.name, target.name) == []
            assert await source.adapter.list_messages_in_state(AACPOutcome.UNKNOWN) == []
            assert await source.adapter.list_pending_requests() == []

    async def quieten(self) -> None:
        for _ in range(12):
            await self.pair.pass_time(8)


class TwoAgentsWithADatabase(TwoAgents):
    """The same, with the records of both in one file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.open()

    def open(self) -> None:
        self.database = SqliteDatabase(Path(self.folder.name) / FILE_NAME, MIGRATIONS)
        self.records = SqliteAACPRecords(self.database, "tests", ManualClock())

    @rule()
    def restart_both_with_the_file_opened_anew(self) -> None:
        self.run(self.database.close())
        self.open()
        assert self.records is not None
        for agent in (self.pair.a, self.pair.b):
            agent.adapter = self.records.for_agent(agent.name)
            agent.start()
        for agent in (self.pair.a, self.pair.b):
            self.run(agent.endpoint.recover())

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            asyncio.run(self.database.close())
            self.folder.cleanup()


def _numbers(delivered: list[AACPEnvelope]) -> set[int]:
    found: defaultdict[int, bool] = defaultdict(bool)
    for each in delivered:
        for seq in range(first_dead(each) or each.seq, each.seq + 1):
            found[seq] = True
    return set(found)


pytestmark = pytest.mark.slow


@pytest.mark.requirement(
    "FND-AACP-03",
    "FND-AACP-04",
    "FND-AACP-05",
    "FND-AACP-06",
    "FND-AACP-07",
    "FND-AACP-09",
    "FND-AACP-14",
    "FND-AACP-15",
    "FND-AACP-32",
    "FND-AACP-34",
    "FND-AACP-38",
)
def test_whatever_the_link_does_requests_run_once_in_order_and_get_one_answer() -> None:
    run_state_machine_as_test(TwoAgents, settings=settings(max_examples=examples(1.5), stateful_step_count=40))


def test_whatever_the_link_does_it_is_the_same_with_a_database() -> None:
    run_state_machine_as_test(
        TwoAgentsWithADatabase, settings=settings(max_examples=examples(0.3), stateful_step_count=25)
    )

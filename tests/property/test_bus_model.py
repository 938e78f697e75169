"""A bus against a simple model of one, whatever is done to it in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from dragoman.messaging.bus import REMEMBERED_SECONDS, Bus, BusDelivery, DeadLetters, Subscription
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened_storages
from tests.support.bus_messages import ERROR, message, subscribed, taken
from tests.support.examples import examples

MOST = 2
PATTERN = "s.*"
subjects = st.sampled_from(["s.a", "s.b", "s.c"])
ids = st.sampled_from("123456")


@dataclass
class Kept:
    """What the model knows of a message."""

    number: int
    state: str = "waiting"
    at: float = 0.0
    expires_at: float | None = None
    attempts: int = 0
    errors: int = 0


@dataclass
class Model:
    """What should be kept, by subject and id, and which subject had the last turn."""

    now: float
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: count(1))
    last: str = ""

    def forget(self) -> None:
        for key, each in list(self.kept.items()):
            if each.state in ("waiting", "delayed") and (each.expires_at or 1e18) <= self.now:
                del self.kept[key]
            elif each.state == "delayed" and each.at <= self.now:
                each.state = "waiting"

    def next(self) -> tuple[str, str] | None:
        """What a subscription gets now."""
        self.forget()
        found = sorted({subject for (subject, _), each in self.kept.items() if each.state == "waiting"})
        for subject in [each for each in found if each > self.last] + [each for each in found if each <= self.last]:
            mine = [(each.number, key) for key, each in self.kept.items() if key[0] == subject]
            states = [each.state for key, each in self.kept.items() if key[0] == subject]
            if states.count("held") < MOST:
                self.last = subject
                return min((number, key) for number, key in mine if self.kept[key].state == "waiting")[1]
        return None


class BusMachine(RuleBasedStateMachine):
    """One subscription takes. Where an engine can be shared, another process publishes and settles."""

    engine: str
    folder: Path
    runs = count()

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.Runner()
        self.clock = ManualClock()
        self.model = Model(self.clock.now().timestamp())
        self.held: dict[tuple[str, str], BusDelivery] = {}
        self.late: list[BusDelivery] = []
        self.lost: dict[tuple[str, str], BusDelivery] = {}
        """Deliveries that were given back, and that nobody has taken since."""
        self.run(self.open_storages())

    async def open_storages(self) -> None:
        folder = self.folder / str(next(self.runs))
        self.opened = opened_storages(self.engine, folder, self.clock, 2)
        self.storages: list[Storage] = await self.opened.__aenter__()
        self.bus, self.other = self.storages[0].port(Bus), self.storages[-1].port(Bus)
        self.dead = self.storages[-1].port(DeadLetters)
        self.subscription: Subscription = subscribed(self.other, PATTERN, most=MOST)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    @rule(subject=subjects, id=ids, seconds=st.none() | st.sampled_from([5.0, 50.0]))
    def publish(self, subject: str, id: str, seconds: float | None) -> None:
        self.model.forget()
        expires_at = None if seconds is None else self.model.now + seconds
        is_new = self.run(self.published(message(id, subject, expires_at=expires_at)))
        assert is_new == ((subject, id) not in self.model.kept)
        if is_new:
            self.model.kept[subject, id] = Kept(next(self.model.numbers), expires_at=expires_at)

    async def published(self, each: Any) -> bool:
        return await self.bus.publish(each)

    @rule()
    def take(self) -> None:
        expected = self.model.next()
        if expected is None:
            return
        (delivery,) = self.run(taken(self.subscription))
        if expected in self.lost:
            self.late.append(self.lost.pop(expected))
        kept = self.model.kept[expected]
        kept.state, kept.attempts = "held", kept.attempts + 1
        assert (delivery.message.subject, delivery.message.id) == expected
        assert (delivery.attempt, len(delivery.errors)) == (kept.attempts, kept.errors)
        assert all(each.fence < delivery.fence for each in self.late if each.number == delivery.number)
        self.held[expected] = delivery

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["ack", "retry", "retry later", "give up"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        delivery, kept = self.held.pop(key), self.model.kept[key]
        self.late.append(delivery)
        if how == "ack":
            assert self.run(self.bus.ack(delivery))
            kept.state, kept.at = "done", self.model.now + REMEMBERED_SECONDS
        elif how == "give up":
            assert self.run(self.bus.give_up(delivery, ERROR))
            kept.state, kept.at, kept.errors = "dead", self.model.now, kept.errors + 1
        else:
            seconds = 0.0 if how == "retry" else 10.0
            assert self.run(self.bus.retry(delivery, seconds, ERROR))
            kept.state, kept.at, kept.errors = "delayed", self.model.now + seconds, kept.errors + 1

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def settle_late(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.late))
        assert not self.run(self.bus.ack(delivery))
        assert not self.run(self.other.retry(delivery, 0.0, ERROR))
        assert not self.run(self.bus.give_up(delivery, ERROR))

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def settle_what_was_given_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.lost)))
        self.model.forget()
        kept = self.model.kept.get(key)
        if kept is not None and kept.state == "waiting":
            delivery = self.lost.pop(key)
            assert self.run(self.bus.ack(delivery))
            kept.state, kept.at = "done", self.model.now + REMEMBERED_SECONDS
            self.late.append(delivery)

    @rule()
    def close_the_subscription(self) -> None:
        self.run(self.renewed())
        for key, delivery in self.held.items():
            self.model.kept[key].state = "waiting"
            self.model.kept[key].attempts -= 1
            self.lost[key] = delivery
        self.held.clear()
        self.model.last = ""

    async def renewed(self) -> None:
        await self.subscription.close()
        self.subscription = subscribed(self.other, PATTERN, most=MOST)

    @rule(subject=subjects, id=ids)
    def redrive(self, subject: str, id: str) -> None:
        kept = self.model.kept.get((subject, id))
        is_dead = kept is not None and kept.state == "dead"
        number = kept.number if kept is not None and is_dead else 10**6
        redriven = self.run(self.dead.redrive(number))
        assert (redriven is not None) == is_dead
        if is_dead:
            self.model.kept[subject, id] = Kept(next(self.model.numbers))

    @rule(seconds=st.sampled_from([1.0, 10.0, REMEMBERED_SECONDS / 2]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock.now().timestamp()

    @rule(age=st.sampled_from([0.0, 10.0]))
    def purge(self, age: float) -> None:
        """The ids of purged dead letters are remembered, and all ids are forgotten here alone."""
        before = self.model.now - age
        self.run(self.dead.purge(10**6, died_before=before))
        for key, each in list(self.model.kept.items()):
            if each.state == "dead" and each.at < before:
                each.state, each.at = "done", each.at + REMEMBERED_SECONDS
            if each.state == "done" and each.at <= self.model.now:
                del self.model.kept[key]

    @invariant()
    def dead_letters_are_those_of_the_model(self) -> None:
        letters = self.run(self.dead.page(PATTERN, 100))
        found = {(each.message.subject, each.message.id): (each.attempts, len(each.errors)) for each in letters}
        dead = {key: each for key, each in self.model.kept.items() if each.state == "dead"}
        assert found == {key: (each.attempts, each.errors) for key, each in dead.items()}

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.run(self.opened.__aexit__(None, None, None))
            self.loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bus_does_what_its_model_does(engine: str, tmp_path: Path) -> None:
    machine = type("Machine", (BusMachine,), {"engine": engine, "folder": tmp_path})
    run_machine(machine, settings=settings(max_examples=examples(0.6), stateful_step_count=40, deadline=None))

"""Histories of a ledger, taken by an engine and a model that must come to the same, whatever is asked for at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import strategies as st

from dragoman.agents.ledger import (
    EntryStatus,
    Ledger,
    LedgerAdmin,
    LedgerEntry,
    MessageKind,
    NewEntry,
    Query,
    Settlement,
)
from tests.contract.ledger_model import LedgerModel

AGENTS = ("a", "b")
statuses = st.sampled_from([each for each in EntryStatus if each not in (EntryStatus.WAITING, EntryStatus.RUNNING)])
agents = st.sampled_from(AGENTS)
places = st.integers(0, 5)
"""Which of the messages so far."""
steps = st.one_of(
    st.tuples(st.just("accept"), agents, agents, st.sampled_from([None, "r1", "r2"]), st.sampled_from([b"1", b"2"])),
    st.tuples(st.just("hold"), agents),
    st.tuples(st.just("release"), agents),
    st.tuples(st.just("begin"), agents, places, st.integers(-1, 0)),
    st.tuples(
        st.just("settle"),
        agents,
        st.none() | places,
        statuses,
        st.integers(-1, 0),  # How far its epoch is off.
        st.dictionaries(st.sampled_from("xyz"), st.none() | st.sampled_from([b"1", b"[2]"]), max_size=3),
        st.lists(agents, max_size=2),
    ),
    st.tuples(st.just("redrive"), places),
    st.tuples(st.just("purge"), st.sampled_from([5.0, 15.0, 25.0])),
)
ledger_histories = st.lists(st.lists(steps, min_size=1, max_size=5), max_size=10)


class Historian:
    """Takes steps, and knows what a holder would: epochs, versions and numbers."""

    def __init__(self, ledger: Ledger | LedgerModel, admin: LedgerAdmin | LedgerModel) -> None:
        self.ledger, self.admin = ledger, admin
        self.epochs = dict.fromkeys(AGENTS, 0)
        self.versions = dict.fromkeys(AGENTS, 0)
        self.known: list[LedgerEntry] = []
        self.count = 0

    def new_id(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def make(self, kind: MessageKind, source: str, target: str, request_id: str | None, payload: bytes) -> NewEntry:
        return NewEntry(
            message_id=self.new_id(),
            kind=kind,
            source=source,
            target=target,
            owner=target if kind == "RESPONSE" else source,
            payload=payload,
            accepted_at=float(self.count),
            expires_at=float(self.count % 30),
            request_id=request_id,
        )

    def entry(self, place: int) -> LedgerEntry | None:
        return self.known[place % len(self.known)] if self.known else None

    def begin_step(self, step: Any) -> Any:
        """What is to be awaited. It is asked for now, and may happen together with what is asked for next."""
        what, *told = step
        if what == "accept":
            source, target, request_id, payload = told
            kind: MessageKind = "EVENT" if request_id is None else "REQUEST"
            return self.ledger.accept(self.make(kind, source, target, request_id, payload))
        if what == "hold":
            return self.ledger.hold(told[0])
        if what == "release":
            return self.ledger.release(told)
        if what == "redrive":
            entry = self.entry(told[0])
            return self.admin.redrive(0 if entry is None else entry.number, self.new_id(), 1.0, 10.0)
        if what == "purge":
            return self.admin.purge(told[0], 100)
        if what == "begin":
            agent, place, off = told
            entry = self.entry(place)
            is_its = entry is not None and entry.target == agent
            return self.ledger.begin(entry.number if entry and is_its else 0, agent, self.epochs[agent] + off)
        return self._settle(*told)

    def _settle(
        self, agent: str, place: int | None, status: EntryStatus, off: int, state: dict[str, Any], sends: list[str]
    ) -> Any:
        entry = None if place is None else self.entry(place)
        if entry is not None and entry.target != agent:
            entry = None
        sent = [self.make("EVENT", agent, target, None, b"0") for target in sends]
        if entry is not None and entry.kind == "REQUEST" and status is EntryStatus.COMPLETED:
            sent.append(self.make("RESPONSE", agent, entry.source, entry.request_id, b"0"))
        made = Settlement(
            agent=agent,
            epoch=self.epochs[agent] + off,
            version=self.versions[agent],
            at=2.0,
            number=None if entry is None else entry.number,
            status=status,
            attempts=1,
            state=state,
            sends=sent,
        )
        self.versions[agent] += 1
        return self.ledger.settle(made)

    async def take(self, together: list[Any]) -> list[Any]:
        """Take steps at once; what came of each."""
        begun = [asyncio.ensure_future(_awaited(self.begin_step(step))) for step in together]
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        self.known = await self.admin.page(Query(limit=1000))
        figures = await self.admin.figures()
        for agent, facts in figures["agents"].items():
            self.epochs[agent], self.versions[agent] = facts["epoch"], facts["version"]
        return [type(each).__name__ if isinstance(each, Exception) else each for each in outcomes]

    async def everything(self) -> Any:
        states = {agent: dict(await self.ledger.state(agent)) for agent in AGENTS}
        waiting = {agent: await self.ledger.waiting(agent, 0, 100) for agent in AGENTS}
        results = [await self.ledger.result(each, r) for each in AGENTS for r in ("r1", "r2")]
        return self.known, states, waiting, results, (await self.ledger.news(0))[0], await self.admin.figures()


async def _awaited(what: Any) -> Any:
    return await what


async def compare_ledgers(one: Historian, other: Historian, history: list[Any]) -> None:
    """Take the same history twice, and compare every outcome and everything that is left."""
    for together in history:
        outcomes = [_without_numbers(await each.take(together)) for each in (one, other)]
        assert outcomes[0] == outcomes[1]
        kept = [_without_numbers(await each.everything()) for each in (one, other)]
        assert kept[0] == kept[1]
        assert [await each.admin.verify() for each in (one, other)] == [[], []]


def _without_numbers(value: Any) -> Any:
    """An engine may leave numbers out, as long as later messages have higher ones."""
    if isinstance(value, LedgerEntry):
        return msgspec.structs.replace(value, number=0)
    if isinstance(value, dict):
        return {key: _without_numbers(each) for key, each in value.items()}
    return [_without_numbers(each) for each in value] if isinstance(value, list | tuple) else value

"""A ledger in plain dictionaries, for one process: what a ledger is compared with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.agents.ledger import OPEN, EntryStatus, Hold, LedgerEntry, NewEntry, Query, Settlement
from dragoman.errors import LeaseLost, RequestConflict

T = TypeVar("T")


def told(do: Callable[[], T]) -> Awaitable[T]:
    """The outcome of something that happens at once, in the order of calls, and is awaited later."""
    outcome = asyncio.get_running_loop().create_future()
    try:
        outcome.set_result(do())
    except (LeaseLost, RequestConflict) as error:
        outcome.set_exception(error)
    return outcome


class _Agent(Struct):
    epoch: int = 0
    version: int = 0
    is_held: bool = False
    state: dict[str, bytes] = field(default_factory=dict)


class LedgerModel:
    """As much of `Ledger` and `LedgerAdmin` as histories ask for, with small results alone."""

    def __init__(self) -> None:
        self.entries: dict[int, LedgerEntry] = {}
        self.agents: dict[str, _Agent] = {}
        self.sequences = Counter[tuple[str, str]]()
        self.last = 0

    def accept(self, entry: NewEntry) -> Awaitable[LedgerEntry]:
        return told(lambda: self._add(entry))

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        return told(lambda: self._settle(settlement))

    async def hold(self, agent: str) -> Hold:
        kept = self.agents.setdefault(agent, _Agent())
        kept.epoch, kept.is_held = kept.epoch + 1, True
        return Hold(agent, kept.epoch, kept.version, dict(kept.state))

    async def release(self, agents: Sequence[str]) -> None:
        for agent in set(agents) & set(self.agents):
            self.agents[agent].is_held = False

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        entry, kept = self.entries.get(number), self.agents.get(agent)
        if entry is None or kept is None or (kept.is_held, kept.epoch) != (True, epoch):
            raise LeaseLost(agent)
        if entry.status not in (EntryStatus.WAITING, EntryStatus.RETRYING):
            raise LeaseLost(agent)
        self.entries[number] = replace(entry, status=EntryStatus.RUNNING, fence=epoch, attempts=entry.attempts + 1)

    async def waiting(self, agent: str, after: int, limit: int) -> list[LedgerEntry]:
        return [each for each in self._open() if each.target == agent and each.number > after][:limit]

    async def news(self, after: int) -> tuple[list[LedgerEntry], int]:
        return [each for each in self._open() if each.number > after], self.last

    async def state(self, agent: str) -> dict[str, bytes]:
        return self.agents.get(agent, _Agent()).state

    async def result(self, owner: str, request_id: str) -> bytes | None:
        entry = self._find(owner, request_id, "RESPONSE")
        return None if entry is None else entry.payload

    async def page(self, query: Query) -> list[LedgerEntry]:
        return list(self.entries.values())

    async def redrive(self, number: int, message_id: str, at: float, expires_at: float) -> LedgerEntry | None:
        entry = self.entries.get(number)
        if entry is None or not entry.can_be_redriven:
            return None
        self._forget(entry)
        return self._add(entry.again(message_id, at, expires_at))

    async def purge(self, now: float, limit: int) -> int:
        due = [each for each in self.entries.values() if each.expires_at <= now and each.kind != "RESPONSE"]
        free = [each for each in due if each.is_open and not self.agents.get(each.target, _Agent()).is_held]
        for each in free:
            self.entries[each.number] = replace(each, status=EntryStatus.EXPIRED, ended_at=now)
        return sum(self._forget(each) for each in due if not self.entries[each.number].is_open)

    async def figures(self) -> dict[str, Any]:
        waiting: dict[str, Any] = {}
        for entry in self._open():
            queue = waiting.setdefault(entry.target, {"depth": 0, "oldest": entry.accepted_at})
            queue["depth"] += 1
            queue["oldest"] = min(queue["oldest"], entry.accepted_at)  # Not always the first: one may be redriven.
        return {
            "byStatus": dict(Counter(each.status.value for each in self.entries.values())),
            "open": waiting,
            "agents": {
                name: {"isHeld": kept.is_held, "epoch": kept.epoch, "version": kept.version}
                for name, kept in self.agents.items()
            },
        }

    async def verify(self) -> list[str]:
        return []

    def _open(self) -> Iterable[LedgerEntry]:
        return (each for each in self.entries.values() if each.is_open)

    def _find(self, owner: str, request_id: str | None, kind: str) -> LedgerEntry | None:
        wanted = owner, request_id, kind
        found = (each for each in self.entries.values() if (each.owner, each.request_id, each.kind) == wanted)
        return None if request_id is None else next(found, None)

    def _add(self, new: NewEntry) -> LedgerEntry:
        known = self._find(new.owner, new.request_id, new.kind)
        if known is not None:
            if (known.target, known.payload) != (new.target, new.payload):
                raise RequestConflict(new.request_id or "", new.owner)
            return replace(known, is_new=False)
        self.last += 1
        self.sequences[new.source, new.target] += 1
        is_answer = new.kind == "RESPONSE"
        made = LedgerEntry(
            number=self.last,
            message_id=new.message_id,
            kind=new.kind,
            source=new.source,
            target=new.target,
            owner=new.owner,
            seq=self.sequences[new.source, new.target],
            payload=new.payload,
            accepted_at=new.accepted_at,
            expires_at=new.expires_at,
            status=EntryStatus.COMPLETED if is_answer else EntryStatus.WAITING,
            request_id=new.request_id,
            ended_at=new.accepted_at if is_answer else None,
        )
        self.entries[made.number] = made
        return made

    def _forget(self, entry: LedgerEntry) -> int:
        answer = self._find(entry.owner, entry.request_id, "RESPONSE")
        gone = [each for each in (entry, answer) if each is not None]
        for each in gone:
            del self.entries[each.number]
        return len(gone)

    def _settle(self, done: Settlement) -> list[LedgerEntry]:
        kept = self.agents.get(done.agent)
        entry = None if done.number is None else self.entries.get(done.number)
        is_known = done.number is None or (entry is not None and entry.is_open)
        if kept is None or not is_known or (kept.is_held, kept.epoch, kept.version) != (True, done.epoch, done.version):
            raise LeaseLost(done.agent)
        kept.version += 1
        if entry is not None:
            self.entries[entry.number] = replace(
                entry,
                status=done.status,
                attempts=done.attempts,
                fence=done.epoch,
                ended_at=None if done.status in OPEN else done.at,
            )
        changed = {**kept.state, **done.state}
        kept.state = {key: value for key, value in changed.items() if value is not None}
        return [self._add(each) for each in done.sends]

"""The ledger of a process that keeps nothing: dictionaries.

It tracks messages for the lifetime of one process, as best it can, and is not durable across restarts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.agents.ledger import (
    EXACT,
    LARGE_RESULT,
    OPEN,
    TOOL_TARGET,
    AgentQueue,
    EntryStatus,
    Hold,
    LedgerEntry,
    NewEntry,
    Query,
    Settlement,
)
from dragoman.errors import LeaseLost, RequestConflict


class _KeptAgent(Struct):
    epoch: int = 0
    version: int = 0
    is_held: bool = False
    state: dict[str, bytes] = msgspec.field(default_factory=dict)


class DictBooks:
    """The messages and agents that a `DictLedger` and its `DictLedgerAdmin` share. For one event loop."""

    def __init__(self) -> None:
        self.entries: dict[int, LedgerEntry] = {}
        self.open: dict[str, dict[int, None]] = {}
        """By agent, the numbers of its open messages, in order."""
        self.requests: dict[tuple[str, str | None, str], int] = {}
        """By owner, request id and kind."""
        self.sequences: dict[str, int] = {}
        """By `source:target`, the last sequence number."""
        self.agents: dict[str, _KeptAgent] = {}
        self.results: dict[str, bytes] = {}
        self.runs: dict[int, Any] = {}
        """What `DictRuns` knows of the messages that are runs of tools."""
        self.tasks: dict[str, int] = {}
        """The numbers of runs by task id."""
        self.last = 0
        """The highest number that was given out."""

    def add(self, entry: NewEntry) -> LedgerEntry:
        key = (entry.owner, entry.request_id, entry.kind)
        if entry.request_id is not None and key in self.requests:
            return self._same_request(entry, self.entries[self.requests[key]])
        is_answer = entry.kind == "RESPONSE"
        payload, ref = entry.payload, None
        if is_answer and len(payload) > LARGE_RESULT:
            payload, ref = b"", entry.message_id
            self.results[ref] = entry.payload
        pair = f"{entry.source}:{entry.target}"
        self.sequences[pair] = seq = self.sequences.get(pair, 0) + 1
        self.last = number = self.last + 1
        made = LedgerEntry(
            number=number,
            message_id=entry.message_id,
            kind=entry.kind,
            source=entry.source,
            target=entry.target,
            owner=entry.owner,
            seq=seq,
            payload=payload,
            accepted_at=entry.accepted_at,
            expires_at=entry.expires_at,
            status=EntryStatus.COMPLETED if is_answer else EntryStatus.WAITING,
            request_id=entry.request_id,
            correlation_id=entry.correlation_id,
            caller=entry.caller,
            chain=entry.chain,
            ended_at=entry.accepted_at if is_answer else None,
            completion_ref=ref,
        )
        self.entries[number] = made
        if entry.request_id is not None:
            self.requests[key] = number
        if not is_answer:
            self.open.setdefault(entry.target, {})[number] = None
        return made

    def _same_request(self, entry: NewEntry, known: LedgerEntry) -> LedgerEntry:
        if (known.target, known.payload) != (entry.target, entry.payload):
            raise RequestConflict(entry.request_id or "", entry.owner)
        return msgspec.structs.replace(known, is_new=False)

    def replace(self, entry: LedgerEntry, **changes: Any) -> None:
        """Change an open message."""
        made = msgspec.structs.replace(entry, **changes)
        self.entries[entry.number] = made
        if not made.is_open:
            self.open[entry.target].pop(entry.number, None)

    def forget(self, entry: LedgerEntry) -> int:
        """Delete a message that has ended, and the response to it; how many these are."""
        numbers = [entry.number]
        if entry.request_id is not None:
            self.requests.pop((entry.owner, entry.request_id, entry.kind), None)
            answer = self.requests.pop((entry.owner, entry.request_id, "RESPONSE"), None)
            numbers += [] if answer is None else [answer]
        for number in numbers:
            self.results.pop(self.entries.pop(number).completion_ref or "", None)
            if (run := self.runs.pop(number, None)) is not None:
                self.tasks.pop(run.task_id, None)
        return len(numbers)


class DictLedger:
    """Implements `Ledger` for one process."""

    def __init__(self, books: DictBooks) -> None:
        self._books = books

    def accept(self, entry: NewEntry) -> Awaitable[LedgerEntry]:
        return Done(lambda: self._books.add(entry))

    async def hold(self, agent: str) -> Hold | None:
        kept = self._books.agents.setdefault(agent, _KeptAgent())
        kept.epoch += 1
        kept.is_held = True
        return Hold(agent, kept.epoch, kept.version, dict(kept.state))

    async def release(self, agents: Sequence[str]) -> None:
        for agent in agents:
            if agent in self._books.agents:
                self._books.agents[agent].is_held = False

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        entry, kept = self._books.entries.get(number), self._books.agents.get(agent)
        can_begin = entry is not None and entry.status in (EntryStatus.WAITING, EntryStatus.RETRYING)
        if entry is None or kept is None or not can_begin or not kept.is_held or kept.epoch != epoch:
            raise LeaseLost(agent)
        self._books.replace(entry, status=EntryStatus.RUNNING, fence=epoch, attempts=entry.attempts + 1)

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        return Done(lambda: self._settle(settlement))

    async def waiting(self, agent: str, after: int, limit: int) -> list[LedgerEntry]:
        later = (number for number in self._books.open.get(agent, ()) if number > after)
        return [self._books.entries[number] for number in islice(later, limit)]

    async def news(self, after: int) -> tuple[list[LedgerEntry], int]:
        numbers = sorted(each for numbers in self._books.open.values() for each in numbers if each > after)
        return [self._books.entries[each] for each in numbers], self._books.last

    async def state(self, agent: str) -> dict[str, bytes]:
        return dict(self._books.agents.get(agent, _KeptAgent()).state)

    async def get(self, numbers: Sequence[int]) -> list[LedgerEntry]:
        return [self._books.entries[number] for number in numbers if number in self._books.entries]

    async def result(self, owner: str, request_id: str) -> bytes | None:
        number = self._books.requests.get((owner, request_id, "RESPONSE"))
        if number is None:
            return None
        entry = self._books.entries[number]
        return entry.payload if entry.completion_ref is None else self._books.results[entry.completion_ref]

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        """No other process can change it."""

    def look_often(self) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None:
        await self.release(tuple(self._books.agents))

    def _settle(self, done: Settlement) -> list[LedgerEntry]:
        books = self._books
        kept = books.agents.get(done.agent)
        entry = None if done.number is None else books.entries.get(done.number)
        is_known = done.number is None or (entry is not None and entry.is_open)
        if kept is None or not is_known or (kept.is_held, kept.epoch, kept.version) != (True, done.epoch, done.version):
            raise LeaseLost(done.agent)
        kept.version += 1
        if entry is not None:
            books.replace(
                entry,
                status=done.status,
                error=done.error,
                attempts=done.attempts,
                due_at=done.due_at,
                fence=done.epoch,
                ended_at=None if done.status in OPEN else done.at,
                message_id=done.message_id or entry.message_id,
            )
        for key, value in done.state.items():
            if value is None:
                kept.state.pop(key, None)
            else:
                kept.state[key] = value
        return [books.add(each) for each in done.sends]


class DictLedgerAdmin:
    """Implements `LedgerAdmin` for the books of a `DictLedger`."""

    def __init__(self, books: DictBooks) -> None:
        self._books = books

    async def page(self, query: Query) -> list[LedgerEntry]:
        entries = self._books.entries.values()
        ordered: Iterable[LedgerEntry] = reversed(entries) if query.newest_first else entries
        return list(islice((each for each in ordered if _is_wanted(each, query)), query.limit))

    async def redrive(self, number: int, message_id: str, at: float, expires_at: float) -> LedgerEntry | None:
        entry = self._books.entries.get(number)
        if entry is None or not entry.can_be_redriven:
            return None
        self._books.forget(entry)
        return self._books.add(entry.again(message_id, at, expires_at))

    async def purge(self, now: float, limit: int) -> int:
        books = self._books
        due = [each for each in books.entries.values() if each.expires_at <= now and each.kind != "RESPONSE"]
        for each in due:
            is_held = each.number in books.runs or books.agents.get(each.target, _KeptAgent()).is_held
            if each.is_open and not is_held:
                books.replace(each, status=EntryStatus.EXPIRED, ended_at=now)
        ended = [each for each in due if not books.entries[each.number].is_open]
        return sum(books.forget(each) for each in ended[:limit])

    async def queues(self, agents: Sequence[str], most: int) -> dict[str, AgentQueue]:
        waiting = {agent: numbers for agent in agents if (numbers := self._books.open.get(agent))}
        return {
            agent: AgentQueue(min(len(numbers), most), self._books.entries[next(iter(numbers))].accepted_at)
            for agent, numbers in waiting.items()
        }

    async def figures(self, *, by_status: bool = True) -> dict[str, Any]:
        books = self._books
        messages = (each for each in books.entries.values() if not each.is_of_run)
        counts = Counter(each.status.value for each in messages) if by_status else {}
        waiting = {
            agent: {"depth": len(numbers), "oldest": books.entries[next(iter(numbers))].accepted_at}
            for agent, numbers in books.open.items()
            if numbers and not agent.startswith(TOOL_TARGET)
        }
        agents = {
            name: {"isHeld": kept.is_held, "epoch": kept.epoch, "version": kept.version}
            for name, kept in books.agents.items()
        }
        return {"byStatus": dict(counts), "open": waiting, "agents": agents}

    async def verify(self) -> list[str]:
        return []  # Nothing outlives the process that could contradict itself.


class Done(Awaitable[Any]):
    """The result of something that happens at once, in the order of calls, and is awaited later."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._error: BaseException | None = None
        self._value: Any = None
        try:
            self._value = do()
        except (LeaseLost, RequestConflict) as error:
            self._error = error

    def __await__(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value
        yield  # type: ignore[unreachable]  # It makes this a generator, as a coroutine awaits one.


def _is_wanted(entry: LedgerEntry, query: Query) -> bool:
    exact = {name: getattr(query, name) for name in EXACT}
    return (
        query.after < entry.number
        and not entry.is_of_run
        and (query.before is None or entry.number < query.before)
        and all(value is None or getattr(entry, name) == value for name, value in exact.items())
        and (query.statuses is None or entry.status in query.statuses)
        and (query.kinds is None or entry.kind in query.kinds)
        and (query.accepted_before is None or entry.accepted_at < query.accepted_before)
    )

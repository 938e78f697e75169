"""The messages of a bus in dictionaries: what each step does to them. Not safe for threads: callers hold a lock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, count

import msgspec
from msgspec.structs import replace

from dragoman.adapters.dict_bus_waiting import WaitingMessages
from dragoman.errors import BusFull
from dragoman.messaging import bus
from dragoman.messaging.bus import BusDelivery, BusMessage, DeadLetter


@dataclass(slots=True, kw_only=True, eq=False)
class MessageRow:
    """A message that is kept. `state` is one of waiting, delayed, held, dead and done."""

    number: int
    message: BusMessage
    size: int
    published_at: float
    fence: int
    state: str = "waiting"
    attempts: int = 0
    at: float = 0.0
    """When a delayed one is due, a dead one died, or a done one is forgotten."""
    holder: object = None
    errors: tuple[bytes, ...] = ()

    def is_forgotten(self, now: float) -> bool:
        """Whether its time is over: as a settled message, or as one that nobody holds."""
        if self.state == "done":
            return self.at <= now
        expires_at = self.message.expires_at
        return self.state in ("waiting", "delayed") and expires_at is not None and expires_at <= now


class DictMessages:
    """All messages. The heaps may have entries of messages that have changed since; those are skipped."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._rows: dict[int, MessageRow] = {}
        self._ids: dict[tuple[str, str], MessageRow] = {}
        self._open: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._waiting = WaitingMessages()
        self._held: dict[str, dict[int, MessageRow]] = {}
        self._delayed: list[tuple[float, int]] = []
        self._forgotten: list[tuple[float, int]] = []
        """When messages expire, or settled ones are forgotten."""
        self._dead: list[int] = []

    def add(self, message: BusMessage, now: float) -> bool:
        """Publish a message; False if there is one with its subject and id. Raises `BusFull`."""
        self.forget(now, 2)  # Two out for one in keeps up with any number of them.
        known = self._ids.get((message.subject, message.id))
        if known is not None and not known.is_forgotten(now):
            return False
        if known is not None:
            self._remove(known)
        size = _size_of(message)
        self._check_room(message.subject, size, now)
        self._publish(message, size, now)
        return True

    def claim(self, pattern: str, last: str, most: int, holder: object, now: float) -> BusDelivery | None:
        """Hold the first message of the next subject behind `last`, going round, that has fewer than `most` held."""
        self.forget(now, len(self._forgotten))
        while (due_at := self.next_due()) is not None and due_at <= now:
            self._wait(self._rows[heappop(self._delayed)[1]])
        for subject in self._waiting.subjects_in_turn(pattern, last):
            if len(self._held.get(subject, ())) < most:
                return self._deliver(self._rows[self._waiting.pop(subject)], holder)
        return None

    def next_due(self) -> float | None:
        """When the next delayed message is due."""
        while self._delayed:
            due_at, number = self._delayed[0]
            row = self._rows.get(number)
            if row is not None and row.state == "delayed" and row.at == due_at:
                return due_at
            heappop(self._delayed)
        return None

    def give_back(self, holder: object, *, counts: bool) -> bool:
        """Let everything that `holder` holds wait again; whether there was anything.

        Its deliveries count unless it stops in order.
        """
        held = [row for rows in self._held.values() for row in rows.values() if row.holder is holder]
        for row in held:
            row.attempts -= not counts
            self._release(row)
            self._wait(row)
        return bool(held)

    def put_back(self, delivery: BusDelivery) -> None:
        """Undo a delivery that nobody has seen."""
        if (row := self._settle(delivery)) is not None:
            row.attempts -= 1
            self._wait(row)

    def ack(self, delivery: BusDelivery, now: float) -> bool:
        if (row := self._settle(delivery)) is None:
            return False
        self._uncount(row)
        self._remember(row, now + bus.REMEMBERED_SECONDS)
        return True

    def retry(self, delivery: BusDelivery, due_at: float | None, error: bytes) -> bool:
        """`due_at` is None for a message that is to be delivered at once."""
        if (row := self._settle(delivery)) is None:
            return False
        row.errors += (error,)
        if due_at is None:
            self._wait(row)
        else:
            row.state, row.at = "delayed", due_at
            heappush(self._delayed, (due_at, row.number))
            self._note_expiry(row)
        return True

    def give_up(self, delivery: BusDelivery, now: float, error: bytes) -> bool:
        if (row := self._settle(delivery)) is None:
            return False
        self._uncount(row)
        row.errors += (error,)
        row.state, row.at = "dead", now
        insort(self._dead, row.number)
        self._forget_old_dead(row.message.subject)
        return True

    def _forget_old_dead(self, subject: str) -> None:
        """Remove those of a subject that are too many, or too large together with all newer ones."""
        dead = [row for each in reversed(self._dead) if (row := self._rows[each]).message.subject == subject]
        sizes = accumulate(row.size for row in dead)
        for place, (row, size) in enumerate(zip(dead, sizes, strict=True)):
            if place >= bus.MOST_DEAD or size > bus.MOST_DEAD_BYTES:
                self._remove(row)

    def letters(self, after: int = 0) -> Iterator[DeadLetter]:
        """The dead letters from behind a number on, in order."""
        return (_letter_of(self._rows[number]) for number in self._dead[bisect_left(self._dead, after + 1) :])

    def letter(self, number: int) -> DeadLetter | None:
        row = self._rows.get(number)
        return None if row is None or row.state != "dead" else _letter_of(row)

    def redrive(self, letter: DeadLetter, headers: Mapping[str, str] | None, now: float) -> int:
        """The new number. The message does not expire any more: its time may be over long since. Raises `BusFull`."""
        row, message = self._rows[letter.number], replace(letter.message, expires_at=None)
        if headers is not None:
            message = replace(message, headers=headers)
        size = _size_of(message)
        self._check_room(message.subject, size, now)
        self._remove(row)
        return self._publish(message, size, row.published_at, row.fence)

    def purge(self, letter: DeadLetter, now: float) -> None:
        """Forget a dead letter, and its id when the time of that is over as well."""
        row, forget_at = self._rows[letter.number], letter.died_at + bus.REMEMBERED_SECONDS
        self._remove(row)
        if forget_at > now:
            self._rows[row.number] = self._ids[row.message.subject, row.message.id] = row
            self._remember(row, forget_at)

    def forget(self, now: float, limit: int) -> int:
        """Forget settled messages and expired ones whose time is over; how many."""
        forgotten = 0
        while self._forgotten and self._forgotten[0][0] <= now and forgotten < limit:
            row = self._rows.get(heappop(self._forgotten)[1])
            if row is not None and row.is_forgotten(now):
                self._remove(row)
                forgotten += 1
        return forgotten

    def _check_room(self, subject: str, size: int, now: float) -> None:
        if self._limit_reached(subject, size) is not None:
            self.forget(now, len(self._forgotten))
        if (limit := self._limit_reached(subject, size)) is not None:
            raise BusFull(*limit)

    def _limit_reached(self, subject: str, size: int) -> tuple[int, str] | None:
        if self._open[subject] >= bus.MOST_MESSAGES:
            return bus.MOST_MESSAGES, "messages"
        return (bus.MOST_BYTES, "bytes") if self._bytes[subject] + size > bus.MOST_BYTES else None

    def _publish(self, message: BusMessage, size: int, published_at: float, fence: int = 0) -> int:
        row = MessageRow(number=next(self._numbers), message=message, size=size, published_at=published_at, fence=fence)
        self._rows[row.number] = self._ids[message.subject, message.id] = row
        self._open[message.subject] += 1
        self._bytes[message.subject] += size
        self._wait(row)
        return row.number

    def _wait(self, row: MessageRow) -> None:
        row.state = "waiting"
        self._waiting.add(row.message.subject, row.number)
        self._note_expiry(row)

    def _note_expiry(self, row: MessageRow) -> None:
        if row.message.expires_at is not None:
            heappush(self._forgotten, (row.message.expires_at, row.number))

    def _deliver(self, row: MessageRow, holder: object) -> BusDelivery:
        row.state, row.holder = "held", holder
        row.attempts += 1
        row.fence += 1
        self._held.setdefault(row.message.subject, {})[row.number] = row
        return BusDelivery(
            message=row.message,
            number=row.number,
            published_at=row.published_at,
            attempt=row.attempts,
            fence=row.fence,
            errors=row.errors,
        )

    def is_held(self, delivery: BusDelivery) -> bool:
        """Whether it was neither settled nor delivered again nor given back."""
        row = self._rows.get(delivery.number)
        return row is not None and row.state == "held" and row.fence == delivery.fence

    def held_before(self, delivery: BusDelivery) -> list[BusMessage]:
        """The messages of its subject that are held and were published before it."""
        held = self._held.get(delivery.message.subject, {})
        return [row.message for number, row in held.items() if number < delivery.number]

    def _settle(self, delivery: BusDelivery) -> MessageRow | None:
        """The row of a delivery, which is held no longer; None if it is not held."""
        if not self.is_held(delivery):
            return None
        row = self._rows[delivery.number]
        self._release(row)
        return row

    def _release(self, row: MessageRow) -> None:
        row.holder = None
        held = self._held[row.message.subject]
        del held[row.number]
        if not held:
            del self._held[row.message.subject]

    def _uncount(self, row: MessageRow) -> None:
        subject = row.message.subject
        self._open[subject] -= 1
        self._bytes[subject] -= row.size
        if not self._open[subject]:
            del self._open[subject], self._bytes[subject]

    def _remember(self, row: MessageRow, forget_at: float) -> None:
        """Keep no more of a message than its id."""
        row.state, row.at, row.errors = "done", forget_at, ()
        row.message = BusMessage(subject=row.message.subject, id=row.message.id, body=b"")
        heappush(self._forgotten, (forget_at, row.number))

    def _remove(self, row: MessageRow) -> None:
        if row.state == "dead":
            del self._dead[bisect_left(self._dead, row.number)]
        elif row.state != "done":
            self._waiting.discard(row.message.subject, row.number)
            self._uncount(row)
        del self._rows[row.number], self._ids[row.message.subject, row.message.id]


def _size_of(message: BusMessage) -> int:
    return len(message.body) + len(msgspec.json.encode(dict(message.headers)))


def _letter_of(row: MessageRow) -> DeadLetter:
    return DeadLetter(
        number=row.number,
        message=row.message,
        published_at=row.published_at,
        died_at=row.at,
        attempts=row.attempts,
        errors=row.errors,
    )

"""The statements of one subscription. Everything here runs on the database's threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple
from uuid import uuid4

from dragoman.adapters.sqlite_bus_rows import (
    GIVE_BACK,
    MOST_AT_ONCE,
    PUT_BACK,
    become_due,
    deliver,
    next_in_turn,
    set_expired_aside,
)
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.clock import Clock
from dragoman.messaging.bus import BusDelivery

MOST_CLAIMED = 32
"""Messages that one transaction claims."""

_HAS_EXPIRED = (
    "SELECT EXISTS (SELECT 1 FROM bus_message WHERE expires_at IS NOT NULL AND state IN ('waiting', 'delayed') "
    "AND expires_at <= :now) OR EXISTS (SELECT 1 FROM bus_message WHERE state = 'expired' AND expires_at > :now)"
)
_FIRST_DUE = "SELECT min(due_at) FROM bus_message WHERE state = 'delayed'"
_IS_LATE = "state = 'held' AND until <= ? AND subscription != ?"
"""Not its own: a subscription that looks is alive."""
_HAS_LATE = f"SELECT EXISTS (SELECT 1 FROM bus_message WHERE {_IS_LATE})"
_IS_TIMED = (
    "SELECT EXISTS (SELECT 1 FROM bus_message WHERE state = 'held' AND subscription != ?) OR EXISTS (SELECT 1 "
    "FROM bus_message WHERE expires_at IS NOT NULL AND state IN ('waiting', 'delayed'))"
)
_HOLDERS = "SELECT DISTINCT holder FROM bus_message WHERE state = 'held'"
_RENEW = "UPDATE bus_message SET until = ? WHERE state = 'held' AND subscription = ?"
_PUT_BACK = f"{PUT_BACK} WHERE number = ? AND fence = ? AND state = 'held'"
_PUT_BACK_DOUBTFUL = f"{PUT_BACK} WHERE state = 'held' AND subscription = ? AND until = ?"


class Outlook(NamedTuple):
    """The messages that a subscription would find now."""

    is_ready: bool
    """Whether a transaction would find something to do."""
    has_lost: bool
    """Whether messages are held by processes or subscriptions that have ended, or have not renewed in time."""
    due_at: float | None
    """When the next delayed message is due."""
    is_timed: bool
    """Whether time alone may bring more: messages that others hold too long, or that expire."""


class SqliteClaims:
    """The messages that one subscription holds."""

    def __init__(
        self,
        process: SqliteProcess,
        clock: Clock,
        boot_clock: Callable[[], float],
        pattern: str,
        most_per_subject: int,
        ack_seconds: float,
    ) -> None:
        self._process = process
        self._clock = clock
        self._boot_clock = boot_clock
        self.pattern = pattern
        self._most_per_subject = most_per_subject
        self.ack_seconds = ack_seconds
        self._id = uuid4().hex
        self._last = ""
        """The subject that had the last turn."""
        self._until = 0.0
        """Until when the last claim holds its messages."""
        self.doubtful: list[float] = []
        """The same of claims that may be stored, and whose messages nobody has."""
        self.is_closed = False

    def look(self, connection: sqlite3.Connection) -> Outlook:
        """Changes nothing: subscriptions look again and again."""
        execute, now = connection.execute, self._now()
        (due_at,) = execute(_FIRST_DUE).fetchone()
        is_ready = (
            (due_at is not None and due_at <= now)
            or bool(execute(_HAS_EXPIRED, {"now": now}).fetchone()[0])
            or next_in_turn(execute, self.pattern, self._last, self._most_per_subject) is not None
        )
        (is_timed,) = execute(_IS_TIMED, (self._id,)).fetchone()
        return Outlook(is_ready, self._has_lost(connection), due_at, bool(is_timed))

    def free_lost(self, writing: Transaction) -> None:
        """Let messages wait again whose holders are gone."""
        writing.execute(f"{GIVE_BACK} WHERE {_IS_LATE}", (self._late(), self._id))
        for (holder,) in writing.execute(_HOLDERS).fetchall():
            if self._has_ended(holder):
                self._process.is_alive(holder, writing)  # Removes what is left of it.
                writing.execute(f"{GIVE_BACK} WHERE state = 'held' AND holder = ?", (holder,))

    def claim(self, count: int, writing: Transaction) -> tuple[list[BusDelivery], bool]:
        """Hold up to so many messages, one of each subject in turn; and whether there is more to do at once."""
        if self.is_closed:
            return [], False
        self._put_back_doubtful(writing)
        execute, now = writing.execute, self._now()
        self._until = self._boot_clock() + self.ack_seconds
        has_more = set_expired_aside(execute, now) == MOST_AT_ONCE
        if has_more:  # What is left may have expired as well.
            return [], True
        has_more = become_due(execute, now) == MOST_AT_ONCE
        claimed: list[BusDelivery] = []
        for _ in range(min(count, MOST_CLAIMED)):
            row = next_in_turn(execute, self.pattern, self._last, self._most_per_subject)
            if row is None:
                return claimed, has_more
            claimed.append(deliver(execute, row, self._process.member(writing), self._id, self._until))
            self._last = claimed[-1].message.subject
        return claimed, True

    def renew(self, writing: Transaction) -> int:
        """Hold for longer what is held; how many messages that is."""
        self._put_back_doubtful(writing)
        return writing.execute(_RENEW, (self._boot_clock() + self.ack_seconds, self._id)).rowcount

    def doubt(self) -> None:
        """It is unknown whether the last claim is stored: let its messages wait again before anything else is done."""
        self.doubtful.append(self._until)

    def _put_back_doubtful(self, writing: Transaction) -> None:
        if self.doubtful:
            for until in self.doubtful:
                writing.execute(_PUT_BACK_DOUBTFUL, (self._id, until))
            writing.on_commit.append(self.doubtful.clear)

    def put_back(self, deliveries: Sequence[BusDelivery], writing: Transaction) -> None:
        """Undo deliveries that nobody has seen."""
        for delivery in deliveries:
            writing.execute(_PUT_BACK, (delivery.number, delivery.fence))

    def give_back(self, writing: Transaction) -> None:
        """Let everything that is held wait again."""
        writing.execute(f"{PUT_BACK} WHERE state = 'held' AND subscription = ?", (self._id,))

    def _has_lost(self, connection: sqlite3.Connection) -> bool:
        if connection.execute(_HAS_LATE, (self._late(), self._id)).fetchone()[0]:
            return True
        return any(self._has_ended(holder) for (holder,) in connection.execute(_HOLDERS).fetchall())

    def _late(self) -> float:
        """The time until which messages must have been held that other subscriptions do not renew any longer."""
        return self._process.expiry(self.ack_seconds)

    def _has_ended(self, process: str) -> bool:
        """Its lock tells. Its lease does not matter here: each message has its own."""
        return process != self._process.id and not self._process.seems_alive(process, inf)

    def _now(self) -> float:
        return self._clock.now().timestamp()

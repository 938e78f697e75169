"""The `Bus` of a database that several processes may share."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial

from dragoman.adapters import sqlite_bus_rows as rows
from dragoman.adapters.process_locks import boot_clock
from dragoman.adapters.sqlite_bus_claims import SqliteClaims
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_subscription import SqliteSubscription
from dragoman.adapters.sqlite_watch import Watcher
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.clock import Clock
from dragoman.errors import StorageClosed
from dragoman.messaging.bus import BusDelivery, BusMessage, check_headers
from dragoman.messaging.subjects import ANY

_LEASE_SECONDS = 10.0
"""Of this process, for other ports, unless one of them has said so already. Each message has a lease of its own."""


class SqliteBus:
    """Implements `Bus`. Nothing is opened before the first use.

    The methods whose names end in `_in` do the same in a transaction of the caller, and take effect with its commit.
    """

    def __init__(
        self,
        database: SqliteDatabase,
        process: SqliteProcess,
        clock: Clock,
        *,
        boot_clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._database = database
        self._process = process
        self._clock = clock
        self._boot_clock = boot_clock
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[SqliteSubscription, ...]] = {}
        """By pattern. Changed under the lock, and read by other threads."""
        self._is_watching = False
        self._is_closed = False

    def publish(self, message: BusMessage) -> Awaitable[bool]:
        check_headers(message)
        return self._database.write(lambda writing: self.publish_in(writing, message))

    def subscribe(self, pattern: str, *, most_per_subject: int, ack_seconds: float) -> SqliteSubscription:
        claims = SqliteClaims(self._process, self._clock, self._boot_clock, pattern, most_per_subject, ack_seconds)
        subscription = SqliteSubscription(self._database, claims, self._clock, self._forget)
        with self._lock:
            if self._is_closed:
                raise StorageClosed("the storage is closed")
            self._subscriptions[pattern] = (*self._subscriptions.get(pattern, ()), subscription)
            if not self._is_watching:
                watcher = Watcher(
                    changed=self._changed, lost=self._changed, is_alive=lambda: True, lease_seconds=_LEASE_SECONDS
                )
                self._process.watch(self, watcher)
                self._is_watching = True
        return subscription

    async def ack(self, delivery: BusDelivery) -> bool:
        return await self._database.write(lambda writing: self.ack_in(writing, delivery))

    async def retry(self, delivery: BusDelivery, after_seconds: float, error: bytes) -> bool:
        return await self._database.write(lambda writing: self.retry_in(writing, delivery, after_seconds, error))

    async def give_up(self, delivery: BusDelivery, error: bytes) -> bool:
        return await self._database.write(lambda writing: self.give_up_in(writing, delivery, error))

    def publish_in(self, transaction: Transaction, message: BusMessage) -> bool:
        """As `publish`. Raises `BusFull`, and has changed nothing then."""
        is_new = rows.add(transaction.execute, message, self._now()) is not None
        return self._with_wake(transaction, message.subject, is_new)

    def ack_in(self, transaction: Transaction, delivery: BusDelivery) -> bool:
        is_settled = rows.ack(transaction.execute, delivery, self._now())
        return self._with_wake(transaction, delivery.message.subject, is_settled)

    def retry_in(self, transaction: Transaction, delivery: BusDelivery, after_seconds: float, error: bytes) -> bool:
        due_at = self._now() + after_seconds if after_seconds > 0 else None
        is_settled = rows.retry(transaction.execute, delivery, due_at, error)
        return self._with_wake(transaction, delivery.message.subject, is_settled)

    def give_up_in(self, transaction: Transaction, delivery: BusDelivery, error: bytes) -> bool:
        is_settled = rows.give_up(transaction.execute, delivery, self._now(), error)
        return self._with_wake(transaction, delivery.message.subject, is_settled)

    def wake_in(self, transaction: Transaction, subject: str) -> None:
        """Once it is committed, tell the subscriptions of this process that something of a subject has changed."""
        transaction.on_commit.append(partial(self._wake, subject))

    async def close(self) -> None:
        """Give back what all subscriptions of this process hold, and take no more."""
        with self._lock:
            is_watching, self._is_watching, self._is_closed = self._is_watching, False, True
            subscriptions = [each for every in self._subscriptions.values() for each in every]
            self._subscriptions = {}
        for subscription in subscriptions:
            subscription.end_soon()
        if is_watching:
            await self._process.leave(self, self._give_back)

    def _with_wake(self, transaction: Transaction, subject: str, has_changed: bool) -> bool:
        if has_changed:
            self.wake_in(transaction, subject)
        return has_changed

    def _wake(self, subject: str) -> None:
        """The subscriptions to a subject: to itself, and with a wildcard for its last word."""
        self._process.hurry()  # Other processes may answer it.
        for pattern in (subject, f"{subject.rpartition('.')[0]}.{ANY}"):
            for subscription in self._subscriptions.get(pattern, ()):
                subscription.wake_soon(is_likely=True)

    def _changed(self) -> None:
        """On the watching thread: something in the database has changed, perhaps by another process."""
        with self._lock:
            subscriptions = [each for every in self._subscriptions.values() for each in every]
        for subscription in subscriptions:
            subscription.wake_soon(is_likely=False)

    def _forget(self, subscription: SqliteSubscription) -> None:
        with self._lock:
            left = tuple(each for each in self._subscriptions.get(subscription.pattern, ()) if each is not subscription)
            if left:
                self._subscriptions[subscription.pattern] = left
            else:
                self._subscriptions.pop(subscription.pattern, None)
        self._changed()  # Others may have what it gave back.

    def _give_back(self, writing: Transaction) -> None:
        writing.execute(f"{rows.PUT_BACK} WHERE state = 'held' AND holder = ?", (self._process.id,))

    def _now(self) -> float:
        return self._clock.now().timestamp()

"""The `Bus` and the `DeadLetters` of a process that keeps nothing. Several event loops may use them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextvars import Context
from itertools import islice

from dragoman.adapters.dict_bus_rows import DictMessages
from dragoman.clock import Clock, Timer
from dragoman.errors import StorageClosed
from dragoman.messaging.bus import BusDelivery, BusMessage, DeadLetter, check_headers
from dragoman.messaging.subjects import matches
from dragoman.messaging.takers import Takers

_LOOK_SECONDS = 1.0
"""How often a subscription looks whether the event loop of another one has ended, which nothing else tells of."""


class DictBus:
    """Implements `Bus`. The methods whose names end in `_now` do the same at once, without an event loop.

    A message is held until its subscription, or the event loop of that, is closed. There is no lease to renew: nothing
    here outlives the process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lock = threading.Lock()
        self.messages = DictMessages()
        """Under the lock."""
        self._subscriptions: tuple[DictSubscription, ...] = ()
        self._is_closed = False

    async def publish(self, message: BusMessage) -> bool:
        check_headers(message)
        return self.publish_now(message)

    def subscribe(self, pattern: str, *, most_per_subject: int, ack_seconds: float) -> DictSubscription:
        subscription = DictSubscription(self, self._clock, pattern, most_per_subject)
        with self.lock:
            if self._is_closed:
                raise StorageClosed("the storage is closed")
            self._subscriptions += (subscription,)
        return subscription

    async def ack(self, delivery: BusDelivery) -> bool:
        return self.ack_now(delivery)

    async def retry(self, delivery: BusDelivery, after_seconds: float, error: bytes) -> bool:
        return self.retry_now(delivery, after_seconds, error)

    async def give_up(self, delivery: BusDelivery, error: bytes) -> bool:
        return self.give_up_now(delivery, error)

    def publish_now(self, message: BusMessage) -> bool:
        with self.lock:
            is_new = self.messages.add(message, self.now())
        return self._with_wake(message.subject, is_new)

    def ack_now(self, delivery: BusDelivery) -> bool:
        with self.lock:
            is_settled = self.messages.ack(delivery, self.now())
        return self._with_wake(delivery.message.subject, is_settled)

    def retry_now(self, delivery: BusDelivery, after_seconds: float, error: bytes) -> bool:
        with self.lock:
            due_at = self.now() + after_seconds if after_seconds > 0 else None
            is_settled = self.messages.retry(delivery, due_at, error)
        return self._with_wake(delivery.message.subject, is_settled)

    def give_up_now(self, delivery: BusDelivery, error: bytes) -> bool:
        with self.lock:
            is_settled = self.messages.give_up(delivery, self.now(), error)
        return self._with_wake(delivery.message.subject, is_settled)

    def is_held(self, delivery: BusDelivery) -> bool:
        """Whether a delivery can still be settled."""
        with self.lock:
            return self.messages.is_held(delivery)

    def close(self) -> None:
        """Give back what all subscriptions hold, and take no more."""
        with self.lock:
            self._is_closed = True
        for subscription in self._subscriptions:
            subscription.end_soon()
            self.leave(subscription)

    def leave(self, subscription: DictSubscription, *, has_ended: bool = False) -> None:
        """Give back what a subscription holds, which has ended or stops in order."""
        with self.lock:
            self._subscriptions = tuple(each for each in self._subscriptions if each is not subscription)
            has_given_back = self.messages.give_back(subscription, counts=has_ended)
        if has_given_back:
            self.wake(None)

    def leave_ended(self) -> None:
        """Give back what subscriptions hold whose event loops have ended."""
        for subscription in self._subscriptions:
            if subscription.is_abandoned:
                self.leave(subscription, has_ended=True)

    def wake(self, subject: str | None) -> None:
        """Tell the subscriptions to a subject, or all, that something has changed."""
        for subscription in self._subscriptions:
            if subject is None or matches(subscription.pattern, subject):
                subscription.wake_soon()

    def now(self) -> float:
        return self._clock.now().timestamp()

    def _with_wake(self, subject: str, has_changed: bool) -> bool:
        if has_changed:
            self.wake(subject)
        return has_changed


class DictSubscription:
    """Implements `Subscription`. Made on the event loop that it belongs to."""

    def __init__(self, bus: DictBus, clock: Clock, pattern: str, most_per_subject: int) -> None:
        self._bus = bus
        self._clock = clock
        self.pattern = pattern
        self._most_per_subject = most_per_subject
        self._loop = asyncio.get_running_loop()
        self._takers = Takers(self.wake_soon, self._put_back)
        self._last = ""
        """The subject that had the last turn."""
        self._timer: Timer | None = None
        self._is_wake_queued = False
        self._is_closed = False

    @property
    def is_abandoned(self) -> bool:
        """Whether its event loop has ended without closing it."""
        return self._loop.is_closed()

    async def take(self) -> BusDelivery:
        return await self._takers.take()

    async def close(self) -> None:
        self._is_closed = True
        self._end()
        self._bus.leave(self)

    def end_soon(self) -> None:
        """From any thread: hand out no more."""
        self._is_closed = True
        try:
            self._loop.call_soon_threadsafe(self._end, context=Context())
        except RuntimeError:
            pass  # The loop is closed, and nobody waits on it.

    def wake_soon(self) -> None:
        """From any thread: there may be something to take."""
        if self._is_wake_queued:
            return
        self._is_wake_queued = True
        try:
            self._loop.call_soon_threadsafe(self._fill, context=Context())
        except RuntimeError:
            pass  # The loop is closed: another subscription gives back what this one holds.

    def _fill(self) -> None:
        self._is_wake_queued = False
        self._bus.leave_ended()
        while self._takers and (delivery := self._claim()) is not None:
            for left in self._takers.hand_out([delivery]):
                self._put_back(left)
        if self._takers:
            self._look_later()

    def _claim(self) -> BusDelivery | None:
        with self._bus.lock:
            if self._is_closed:
                return None
            messages, now = self._bus.messages, self._bus.now()
            delivery = messages.claim(self.pattern, self._last, self._most_per_subject, self, now)
        if delivery is not None:
            self._last = delivery.message.subject
        return delivery

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._bus.lock:
            due_at = self._bus.messages.next_due()
        seconds = _LOOK_SECONDS if due_at is None else min(_LOOK_SECONDS, max(0.0, due_at - self._bus.now()))
        self._timer = self._clock.call_later(seconds, self.wake_soon)

    def _put_back(self, delivery: BusDelivery) -> None:
        with self._bus.lock:
            self._bus.messages.put_back(delivery)
        self._bus.wake(delivery.message.subject)

    def _end(self) -> None:
        self._takers.close()
        if self._timer is not None:
            self._timer.cancel()


class DictDeadLetters:
    """Implements `DeadLetters` for a bus."""

    def __init__(self, bus: DictBus) -> None:
        self._bus = bus

    async def page(
        self, pattern: str | None, limit: int, *, after: int = 0, died_before: float | None = None
    ) -> list[DeadLetter]:
        with self._bus.lock:
            letters = (
                letter
                for letter in self._bus.messages.letters(after)
                if (pattern is None or matches(pattern, letter.message.subject))
                and (died_before is None or letter.died_at < died_before)
            )
            return list(islice(letters, limit))

    async def get(self, number: int) -> DeadLetter | None:
        with self._bus.lock:
            return self._bus.messages.letter(number)

    async def redrive(self, number: int, headers: Mapping[str, str] | None = None) -> int | None:
        return self.redrive_now(number, headers)

    async def purge(self, limit: int, *, died_before: float) -> int:
        with self._bus.lock:
            messages, now = self._bus.messages, self._bus.now()
            count = messages.forget(now, limit)
            old = [letter for letter in messages.letters() if letter.died_at < died_before][: limit - count]
            for letter in old:
                messages.purge(letter, now)
        return count + len(old)

    def redrive_now(self, number: int, headers: Mapping[str, str] | None = None) -> int | None:
        """As `redrive`, at once. Raises `BusFull`."""
        with self._bus.lock:
            letter = self._bus.messages.letter(number)
            redriven = None if letter is None else self._bus.messages.redrive(letter, headers, self._bus.now())
        if letter is not None:
            self._bus.wake(letter.message.subject)
        return redriven

"""A `Subscription` to messages in a database: when it looks for them, claims them and renews what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial

from dragoman.adapters.sqlite_bus_claims import SqliteClaims
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.clock import Clock, Timer
from dragoman.errors import StorageError, StorageUncertain
from dragoman.messaging.bus import BusDelivery
from dragoman.messaging.takers import Takers

_LOOK_SECONDS = 1.0
"""How often it looks for messages that others hold too long, which nothing else tells of. Looking only reads."""
_QUIET_SECONDS = 10.0
"""The same while nobody holds any, and none expires."""


class SqliteSubscription:
    """Implements `Subscription`. Made on the event loop that it belongs to."""

    def __init__(
        self,
        database: SqliteDatabase,
        claims: SqliteClaims,
        clock: Clock,
        closed: Callable[[SqliteSubscription], None],
    ) -> None:
        self._database = database
        self._claims = claims
        self._clock = clock
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._takers = Takers(self._start, self._leave_over)
        self._unwanted: list[BusDelivery] = []
        """Claimed for calls of `take` that were cancelled."""
        self._filling: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._look_timer: Timer | None = None
        self._renew_timer: Timer | None = None
        self._look_seconds = min(_LOOK_SECONDS, claims.ack_seconds / 3)
        self._look_at = 0.0
        self._is_likely = False
        """Whether a transaction will probably find a message, so that it need not look first."""
        self._is_woken = False
        self._is_wake_queued = False
        self._has_claimed = False

    @property
    def pattern(self) -> str:
        return self._claims.pattern

    async def take(self) -> BusDelivery:
        return await self._takers.take()

    async def close(self) -> None:
        if self._claims.is_closed:
            return
        self._claims.is_closed = True
        self._end()
        try:
            if self._has_claimed:  # Behind a claim that is still under way: writes keep their order.
                await self._database.write(self._claims.give_back)
        finally:
            self._closed(self)

    def end_soon(self) -> None:
        """From any thread: hand out no more. The caller gives held messages back."""
        self._claims.is_closed = True
        self._call_soon(self._end)

    def wake_soon(self, *, is_likely: bool) -> None:
        """From any thread: there may be something to take. `is_likely` tells that something of this pattern changed."""
        if is_likely:
            self._is_likely = True
        if not self._is_wake_queued:
            self._is_wake_queued = True
            self._call_soon(self._wake)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, context=Context())
        except RuntimeError:
            pass  # The loop is closed. Nothing is renewed any longer, and what it holds is delivered to others.

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing left to hand out, or nobody to hand it to."""
        return self._claims.is_closed or self._loop.is_closed()

    def _wake(self) -> None:
        self._is_wake_queued = False
        self._start()

    def _start(self) -> None:
        self._is_woken = True
        if self._filling is None and not self._is_over and (self._takers or self._unwanted):
            # In a context of its own: this one may be that of a call.
            self._filling = self._loop.create_task(self._fill(), context=Context())

    def _leave_over(self, delivery: BusDelivery) -> None:
        self._unwanted.append(delivery)
        self._start()

    async def _fill(self) -> None:
        try:
            while not self._claims.is_closed and await self._step():
                pass
        except Exception as error:  # Whatever it was, those who wait must hear of it.
            self._takers.fail(error)
            if self._unwanted:
                self._look_later(None, self._look_seconds)
        finally:
            self._filling = None

    async def _step(self) -> bool:
        """Claim messages for those who wait; whether to go on at once."""
        self._is_woken = False
        self._unwanted = self._takers.hand_out(self._unwanted)
        if self._unwanted:
            unwanted = tuple(self._unwanted)
            await self._database.write(partial(self._claims.put_back, unwanted))
            del self._unwanted[: len(unwanted)]
        if not self._takers:
            return bool(self._unwanted)
        if self._claims.doubtful or (self._is_likely and self._clock.monotonic() < self._look_at):
            await self._claim()
            return True
        outlook = await self._database.read(self._claims.look)
        self._look_at = self._clock.monotonic() + self._look_seconds
        if outlook.has_lost:
            await self._database.write(self._claims.free_lost)
        elif outlook.is_ready:
            await self._claim()
        elif not self._is_woken:
            return self._look_later(outlook.due_at, self._look_seconds if outlook.is_timed else _QUIET_SECONDS)
        return True

    async def _claim(self) -> None:
        self._is_likely, self._has_claimed = False, True
        try:
            claimed, has_more = await self._database.write(partial(self._claims.claim, len(self._takers)))
        except StorageUncertain:
            self._claims.doubt()
            raise
        self._is_likely = self._is_likely or has_more
        self._unwanted += self._takers.hand_out(claimed)
        if claimed and self._renew_timer is None and not self._claims.is_closed:
            self._renew_later()

    def _look_later(self, due_at: float | None, seconds: float) -> bool:
        """Whether a message has become due meanwhile, and there is no need to wait."""
        if due_at is not None:
            seconds = min(seconds, due_at - self._clock.now().timestamp())
        if seconds <= 0:
            return True
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._look_timer = self._clock.call_later(seconds, self._start)
        return False

    def _renew_later(self) -> None:
        self._renew_timer = self._clock.call_later(self._claims.ack_seconds / 3, self._start_renewing)

    def _start_renewing(self) -> None:
        self._renew_timer = None
        if not self._is_over:
            self._renewing = self._loop.create_task(self._renew(), context=Context())

    async def _renew(self) -> None:
        try:
            is_needed = await self._database.write(self._claims.renew) > 0
        except StorageError:
            is_needed = True  # What can be renewed later is.
        if is_needed and self._renew_timer is None and not self._claims.is_closed:
            self._renew_later()

    def _end(self) -> None:
        self._takers.close()
        for timer in (self._look_timer, self._renew_timer):
            if timer is not None:
                timer.cancel()

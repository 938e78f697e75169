"""Deadlines: one timer in all, set for the earliest.

Most calls end long before their deadline, so next to nothing is done for them: a look at whether theirs is earlier than
the timer's. When the timer goes off, the calls under way (there are never many more than slots) show which of them have
expired, and which is next.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from dragoman.calls.call import Call
from dragoman.clock import Clock, Timer
from dragoman.errors import InternalError
from dragoman.telemetry.log import Logger, exception_facts

_ROUNDING = 1e-6
"""Seconds by which sums of moments and delays may be off: a timer that goes off so much too early is on time."""


class Deadlines:
    """Expires calls that are still under way when their tool's time is up, counted from their start."""

    def __init__(self, under_way: Collection[Call], clock: Clock, logger: Logger) -> None:
        self._under_way = under_way
        self._clock = clock
        self._logger = logger
        self._timer: Timer | None = None
        self.next = math.inf
        """When the timer will go off."""

    def set_timer(self, due: float) -> None:
        """Look at the calls under way at that moment, and not before."""
        if self._timer is not None:
            self._timer.cancel()
        self.next = due
        # At least a millisecond: a loop that counts in them would go off too early, and again, until it is time.
        self._timer = self._clock.call_later(max(0.001, due - self._clock.monotonic()), self._look)

    def stop(self) -> None:
        """Expire nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.next = None, math.inf

    def _look(self) -> None:
        self._timer, self.next = None, math.inf
        now = self._clock.monotonic() + _ROUNDING
        expired = [call for call in self._under_way if call.due <= now]
        for call in sorted(expired, key=_due):
            self._expire(call)
            call.due = math.inf
        following = min(map(_due, self._under_way), default=math.inf)
        if following < self.next:
            self.set_timer(following)

    def _expire(self, call: Call) -> None:
        ids = {"runId": call.run_id, "correlationId": call.correlation_id, "toolName": call.name}
        try:
            call.expire()
        except Exception as error:  # One answer that cannot be given must not cost the others their deadlines.
            self._logger.error("deadline failed", {**ids, **exception_facts(error, InternalError.code)})
        self._logger.warn("tool call passed its deadline", ids)


def _due(call: Call) -> float:
    return call.due

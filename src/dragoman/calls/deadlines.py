"""Deadlines by the hundred thousand: one timer in all, however many calls are under way.

Calls with the same timeout expire in the order in which they started, so each timeout has a queue of its own, and only
the heads of the queues are looked at. Watching and forgetting a call is one dictionary operation each.
"""

from __future__ import annotations

import math

from dragoman.calls.call import Call
from dragoman.clock import Clock, Timer
from dragoman.errors import InternalError
from dragoman.telemetry.log import Logger, exception_facts


class Deadlines:
    """Expires calls that are still being watched when their tool's time is up, counted from their start."""

    def __init__(self, clock: Clock, logger: Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._queues: dict[int, dict[Call, None]] = {}
        self._timer: Timer | None = None
        self._next = math.inf
        """When the timer will go off."""

    def watch(self, call: Call) -> None:
        """Expire the call at its deadline, unless it is forgotten before."""
        timeout_ms = call.tool.timeout_ms
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = {}
        queue[call] = None
        due = call.started + timeout_ms / 1000
        if due < self._next:
            self._arm(due)

    def forget(self, call: Call) -> None:
        """The call has ended."""
        self._queues[call.tool.timeout_ms].pop(call, None)

    def stop(self) -> None:
        """Expire nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = None, math.inf
        for queue in self._queues.values():
            queue.clear()

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer, self._next = None, math.inf
        now = self._clock.monotonic()
        heads: list[float] = []
        for timeout_ms, queue in self._queues.items():
            expired: list[Call] = []
            for call in queue:
                due = call.started + timeout_ms / 1000
                if due > now:
                    heads.append(due)
                    break
                expired.append(call)
            for call in expired:
                del queue[call]
                self._expire_one(call)
        if heads:
            self._arm(min(heads))

    def _expire_one(self, call: Call) -> None:
        ids = {"runId": call.run_id, "correlationId": call.correlation_id, "toolName": call.name}
        try:
            call.expire()
        except Exception as error:  # One answer that cannot be given must not cost the others their deadlines.
            self._logger.error("deadline failed", {**ids, **exception_facts(error, InternalError.code)})
        self._logger.warn("tool call passed its deadline", ids)

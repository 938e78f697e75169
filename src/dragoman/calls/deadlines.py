"""Deadlines by the hundred thousand: one timer in all, however many calls are under way.

Calls with the same timeout expire in the order in which they started, so each timeout has a queue of its own, and only
the heads of the queues are looked at. Watching and forgetting a call is one dictionary operation each.
"""

from __future__ import annotations

from collections import OrderedDict

from dragoman.calls.call import Call
from dragoman.clock import Clock, Timer
from dragoman.errors import InternalError
from dragoman.telemetry.log import Logger, exception_facts


class Deadlines:
    """Expires calls that are still being watched when their time is up."""

    def __init__(self, clock: Clock, logger: Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._queues: dict[int, OrderedDict[Call, float]] = {}
        self._timer: Timer | None = None
        self._due = 0.0

    def watch(self, call: Call, timeout_ms: int) -> OrderedDict[Call, float]:
        """Expire the call after so many milliseconds, unless it is taken out of the queue before."""
        due = self._clock.monotonic() + timeout_ms / 1000
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = OrderedDict()
        queue[call] = due
        if self._timer is None or due < self._due:
            self._arm(due)
        return queue

    def stop(self) -> None:
        """Expire nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queues.clear()

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        heads: list[float] = []
        for queue in self._queues.values():
            while queue:
                call, due = next(iter(queue.items()))
                if due > now:
                    heads.append(due)
                    break
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

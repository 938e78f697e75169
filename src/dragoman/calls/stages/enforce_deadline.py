"""Step 8, outer half: from here on the call is answered when its time is up, whatever its handler does."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.deadlines import Deadlines


@dataclass(frozen=True)
class EnforceDeadline:
    """Answers TIMEOUT at the deadline; the handler is asked to stop, and waited for all the same."""

    deadlines: Deadlines
    timeout_ms: int | None = None
    """In place of each tool's own."""

    def __call__(self, proceed: Service, /) -> Service:
        deadlines, timeout_ms = self.deadlines, self.timeout_ms

        def enforce(call: Call) -> Awaitable[Any]:
            call.due = due = call.started + (timeout_ms or call.tool.timeout_ms) / 1000
            if due < deadlines.next:
                deadlines.set_timer(due)
            return proceed(call)

        return enforce

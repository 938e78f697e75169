"""Step 8, outer half: the clock starts last, and stops when the handler has ended."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.calls.call import Call, Outcome, Service
from dragoman.calls.deadlines import Deadlines


@dataclass(frozen=True)
class EnforceDeadline:
    """Answers TIMEOUT at the deadline; the handler is asked to stop, and waited for all the same."""

    deadlines: Deadlines

    def __call__(self, proceed: Service, /) -> Service:
        watch = self.deadlines.watch

        async def enforce(call: Call) -> Outcome:
            assert call.tool is not None
            watched = watch(call, call.tool.timeout_ms)
            try:
                return await proceed(call)
            finally:
                watched.pop(call, None)

        return enforce

"""Step 8, outer half: the clock starts last, and stops when the handler has ended."""

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

    def __call__(self, proceed: Service, /) -> Service:
        watch, forget = self.deadlines.watch, self.deadlines.forget

        def enforce(call: Call) -> Awaitable[Any]:
            watch(call)
            call.undo.append(forget)
            return proceed(call)

        return enforce

"""Between steps 5 and 6: a call that is repeated waits without a slot, and gets the outcome even if no slot is free."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.repeats import IDEMPOTENCY_KEY, Repeats
from dragoman.calls.stages.enforce_deadline import EnforceDeadline


@dataclass(frozen=True)
class JoinRepeated:
    """For calls with an idempotency key, and for tools that may be tasks. All others pass by."""

    repeats: Repeats | None
    enforce: EnforceDeadline
    """Waiting for the first call is part of the time that the call may take."""

    def __call__(self, proceed: Service, /) -> Service:
        if self.repeats is None:
            return proceed
        repeats = self.repeats
        join_repeated = self.enforce(lambda call: repeats.join(call, proceed))

        def join(call: Call) -> Awaitable[Any]:
            if IDEMPOTENCY_KEY in call.meta or call.tool.task is not None:
                return join_repeated(call)
            return proceed(call)

        return join

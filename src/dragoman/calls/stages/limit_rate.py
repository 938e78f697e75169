"""Between steps 5 and 6: a caller that makes too many calls is told when to come back."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.rates import Rates
from dragoman.clock import Clock


@dataclass(frozen=True)
class LimitRate:
    """Calls a minute of one caller, in all and of one tool. Where no limit is set, it is not there."""

    rates: Rates
    clock: Clock

    def __call__(self, proceed: Service, /) -> Service:
        if not self.rates.are_set:
            return proceed
        take, monotonic = self.rates.take, self.clock.monotonic

        def limit(call: Call) -> Awaitable[Any]:
            if not (call.tool.is_reserved or call.origin.is_counted):
                take(call.origin.caller.principal, call.name, monotonic())
            return proceed(call)

        return limit

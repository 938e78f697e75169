"""Between steps 5 and 6: a caller that makes too many calls is told when to come back."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.rates import Rate
from dragoman.clock import Clock
from dragoman.config import LimitsConfig
from dragoman.errors import RateLimited


@dataclass(frozen=True)
class LimitRate:
    """Calls a minute of one caller, in all and of one tool. Where no limit is set, it is not there."""

    limits: LimitsConfig
    clock: Clock

    def __call__(self, proceed: Service, /) -> Service:
        of_all = self.limits.calls_per_minute_per_caller
        overall = Rate(of_all) if of_all is not None else None
        by_tool = {
            name: Rate(own.calls_per_minute)
            for name, own in self.limits.tools.items()
            if own.calls_per_minute is not None
        }
        if overall is None and not by_tool:
            return proceed
        monotonic = self.clock.monotonic

        def limit(call: Call) -> Awaitable[Any]:
            if not call.tool.is_reserved:
                now = monotonic()
                own = by_tool.get(call.name)
                if own is not None and (wait := own.take(call.caller, now)):
                    raise RateLimited(own.limit, wait, f" of {call.name}")
                if overall is not None and (wait := overall.take(call.caller, now)):
                    raise RateLimited(overall.limit, wait)
            return proceed(call)

        return limit

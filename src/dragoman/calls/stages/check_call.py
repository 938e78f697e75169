"""After the stages of parts and of an application: each passes on the call that it was given, while the call lasts."""

from __future__ import annotations

from collections.abc import Awaitable, Container
from dataclasses import dataclass, field
from typing import Any

from dragoman.calls.call import Call, Service


@dataclass(frozen=True)
class CheckCall:
    """Stops copies of a call, and calls that have ended: nothing would give their slots back, or end them in time."""

    under_way: Container[Call] = field(repr=False)

    def __call__(self, proceed: Service, /) -> Service:
        under_way = self.under_way

        def check(call: Call) -> Awaitable[Any]:
            if call not in under_way:
                raise RuntimeError("a stage passed on a copy of its call, or a call that has ended")
            return proceed(call)

        return check

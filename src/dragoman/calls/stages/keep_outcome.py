"""Between steps 7 and 8: what must have its effect once, or outlive its client, is stored before it begins."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.repeats import Repeats
from dragoman.calls.stages.take_slot import TakeSlot


@dataclass(frozen=True)
class KeepOutcome:
    """Stores the calls that `JoinRepeated` has marked, and their outcomes. All others pass by."""

    repeats: Repeats | None
    slot: TakeSlot

    def __call__(self, proceed: Service, /) -> Service:
        if self.repeats is None:
            return proceed
        keep_outcome, let_go, take_again = self.repeats.keep, self.slot.let_go, self.slot.taking_again()

        def keep(call: Call) -> Awaitable[Any]:
            return proceed(call) if call.kept_as is None else keep_outcome(call, proceed, let_go, take_again)

        return keep

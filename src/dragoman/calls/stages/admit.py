"""Step 1, for the server itself: once it is stopping, nothing new begins."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.errors import Stopping


@dataclass
class Admission:
    """Whether new calls are taken."""

    is_open: bool = False


@dataclass(frozen=True)
class Admit:
    """Refuses calls while the gate is closed; they may be repeated elsewhere, or later."""

    gate: Admission

    def __call__(self, proceed: Service, /) -> Service:
        gate = self.gate

        def admit(call: Call) -> Awaitable[Any]:
            if not gate.is_open:
                raise Stopping
            return proceed(call)

        return admit

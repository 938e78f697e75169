"""Between steps 5 and 6: what a repeated call of the modern era brings is opened before a slot is taken for it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from dragoman.calls.call import Call, Service
from dragoman.calls.slots import Slots
from dragoman.calls.states import States


@dataclass(frozen=True)
class OpenState:
    """Reads earlier answers from the call's sealed state. Tools without questions pass by."""

    states: States
    slots: Slots

    def __call__(self, proceed: Service, /) -> Service:
        def open_state(call: Call) -> Awaitable[Any]:
            if call.tool.questions and call.origin.is_modern:
                self._open(call)
            return proceed(call)

        return open_state

    def _open(self, call: Call) -> None:
        answers = self.states.open(call)
        brought = call.input_responses or {}
        new = {name: brought[name] for name in answers.asked or () if name in brought}
        self.slots.check_payload_size(new)
        call.answers = replace(answers, results={**new, **answers.results})

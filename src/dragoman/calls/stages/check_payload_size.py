"""Step 4: arguments that are too large are refused before anything is done with them."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.resources import Resources
from dragoman.errors import PayloadTooLarge


@dataclass(frozen=True)
class CheckPayloadSize:
    """Measures the arguments in bytes of JSON."""

    resources: Resources

    def __call__(self, proceed: Service, /) -> Service:
        resources = self.resources
        measure, limit = resources.measure, resources.max_payload_bytes

        def check(call: Call) -> Awaitable[Any]:
            call.payload_bytes = size = measure(call.arguments)
            if size > limit:
                raise PayloadTooLarge(size, limit)
            return proceed(call)

        return check

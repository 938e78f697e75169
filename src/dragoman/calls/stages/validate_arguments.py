"""Step 7: arguments are checked by the validator that was compiled when the tool was registered."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.schemas.schema import THOROUGHLY


@dataclass(frozen=True)
class ValidateArguments:
    """Passes on arguments that fit, converted to what the handler's type hints promise."""

    def __call__(self, proceed: Service, /) -> Service:
        def validate(call: Call) -> Awaitable[Any]:
            registered = call.tool
            registered.validator.check(call.arguments, call.payload_bytes <= THOROUGHLY)
            if registered.convert is not None:
                call.given = call.arguments
                call.arguments = registered.convert(call.arguments)
            return proceed(call)

        return validate

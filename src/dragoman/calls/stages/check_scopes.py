"""Between steps 5 and 6: a caller that was granted some tools cannot call the others."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.access.callers import scope_of
from dragoman.calls.call import Call, Service
from dragoman.errors import MissingScope


@dataclass(frozen=True)
class CheckScopes:
    """Refuses what `tools/list` does not show to the same caller. Reserved tools are no exception."""

    def __call__(self, proceed: Service, /) -> Service:
        def check(call: Call) -> Awaitable[Any]:
            caller = call.origin.caller
            if caller.scopes is not None and not caller.may_call(call.tool.definition.name):
                raise MissingScope(scope_of(call.tool.definition.name))
            return proceed(call)

        return check

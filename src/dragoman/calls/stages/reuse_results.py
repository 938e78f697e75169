"""Within step 8: a result that is known already, or being worked out, is not worked out again."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.results import Results


@dataclass(frozen=True)
class ReuseResults:
    """For tools that ask for it, and for those that make kept results untrue; all others pass by."""

    results: Results

    def __call__(self, proceed: Service, /) -> Service:
        get, changed = self.results.get, self.results.changed

        def reuse(call: Call) -> Awaitable[Any]:
            if not call.tool.touches_results:
                return proceed(call)
            if call.tool.definition.invalidates:
                call.undo.append(changed)
            if call.tool.definition.cache_ttl_ms is None:
                return proceed(call)
            return get(call, proceed)

        return reuse

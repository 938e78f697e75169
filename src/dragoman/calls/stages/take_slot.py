"""Steps 6 and 9: a slot is taken at once or the call is refused, and it is held until the handler has really ended."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.calls.call import Call, Outcome, Service
from dragoman.calls.resources import Resources
from dragoman.errors import ResourceExhausted


@dataclass(frozen=True)
class TakeSlot:
    """Never waits: a queue would only hide that the server is full."""

    resources: Resources

    def __call__(self, proceed: Service, /) -> Service:
        resources = self.resources

        async def take_slot(call: Call) -> Outcome:
            assert call.tool is not None
            reserved = call.tool.is_reserved
            release = resources.try_acquire_reserved_slot() if reserved else resources.try_acquire_slot()
            if release is None:
                raise ResourceExhausted(
                    f"All {resources.limit} slots are taken",
                    {"reason": "no_free_slot", "limit": resources.limit, "retryable": True},
                )
            try:
                return await proceed(call)
            finally:
                release()

        return take_slot

"""Calls whose outcome is kept: those with an idempotency key, and those that become tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from dragoman.calls.call import Call, Service

IDEMPOTENCY_KEY: Final = "dragoman/idempotencyKey"
"""The key in the `_meta` of a `tools/call`: a call that is repeated with the same value has its effect once."""


class Repeats(Protocol):
    """Decides what becomes of such calls. Calls without a key, of tools that are never tasks, are not shown to it."""

    def join(self, call: Call, proceed: Service) -> Awaitable[Any]:
        """Before a slot is taken: give the outcome of the same call again, or wait for it, or go on."""
        ...

    def keep(self, call: Call, proceed: Service, let_go: Callable[[Call], None], take_again: Service) -> Awaitable[Any]:
        """When nothing is left to be asked: store that the call begins, and then its outcome.

        `let_go` gives the call's slot back, and `take_again` waits for another.
        """
        ...

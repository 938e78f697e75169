"""Calls whose outcome is kept: those with an idempotency key, and those that become tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from dragoman.calls.call import Call, Service
from dragoman.errors import Conflict, InvalidParams

IDEMPOTENCY_KEY: Final = "dragoman/idempotencyKey"
"""The key in the `_meta` of a `tools/call`: a call that is repeated with the same value has its effect once."""
SHORTEST_KEY, LONGEST_KEY = 16, 128


class Repeats(Protocol):
    """Decides what becomes of such calls. Calls without a key, of tools that are never tasks, are not shown to it."""

    def join(self, call: Call, proceed: Service) -> Awaitable[Any]:
        """Before a slot is taken: go on, or wait for the same call. A refused repeat gets the stored outcome."""
        ...

    def keep(self, call: Call, proceed: Service, let_go: Callable[[Call], None], take_again: Service) -> Awaitable[Any]:
        """When nothing is left to be asked: store that the call begins, and then its outcome; or give an earlier one.

        `let_go` gives the call's slot back, and `take_again` waits for another.
        """
        ...


def is_key(key: Any) -> bool:
    """Whether a value can be an idempotency key."""
    return isinstance(key, str) and SHORTEST_KEY <= len(key) <= LONGEST_KEY and key.isprintable()


def check_key(key: Any) -> None:
    """Raise `InvalidParams` for a value that is no idempotency key."""
    if not is_key(key):
        said = f"{SHORTEST_KEY} to {LONGEST_KEY} printable characters"
        raise InvalidParams(f"Invalid params: {IDEMPOTENCY_KEY} must be a string of {said}")


def key_conflict(how: str = "with other arguments") -> Conflict:
    """The error for a key that was used for another call."""
    facts = {"reason": "idempotency_conflict", "retryable": False}
    return Conflict(f"The idempotency key was used before, {how}", facts)


async def until_told(call: Call, told: asyncio.Future[Any]) -> Any:
    """The result of a future. Raises `Aborted` when the call is cancelled, or its time is up."""
    cancelled = asyncio.ensure_future(call.cancellation.wait())
    try:
        await asyncio.wait((told, cancelled), return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancelled.cancel()
    if not told.done():
        call.cancellation.raise_if_set()
    return told.result()

"""Callers that wait for the outcome of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.clock import Clock


class AACPWaiting:
    """Wakes those who wait for a request, when it is settled or given up, or at their own timeout."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._futures: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def for_outcome(self, request_id: str, timeout_ms: float | None) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the request has something to tell, from now on, or at the timeout."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        futures = self._futures.setdefault(request_id, set())
        futures.add(future)
        timer = None if timeout_ms is None else self._clock.call_later(timeout_ms / 1000, lambda: _wake(future))
        try:
            yield future
        finally:
            if timer is not None:
                timer.cancel()
            futures.discard(future)
            if not futures:
                self._futures.pop(request_id, None)

    def tell(self, request_id: str) -> None:
        """Wake everybody who waits for a request."""
        for future in self._futures.get(request_id, ()):
            _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

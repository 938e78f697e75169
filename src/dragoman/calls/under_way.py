"""The calls that have not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dragoman.calls.call import Call


class CallsUnderWay:
    """A set of calls that can be waited for to become empty."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._idle: asyncio.Event | None = None
        self.add = self._calls.add

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls))

    def end(self, call: Call) -> None:
        """The call has ended: answered, recorded, and its slot given back."""
        self._calls.discard(call)
        if self._idle is not None and not self._calls:
            self._idle.set()

    async def wait_until_none(self, timeout: float) -> bool:
        """Wait for the last one to end; False when some have not by then."""
        if not self._calls:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

"""Outcomes of requests that are awaited in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Container

import msgspec

from dragoman.agents.ledger import EntryStatus, Ledger, LedgerEntry
from dragoman.agents.stored_errors import error_in
from dragoman.calls.call import Outcome
from dragoman.clock import Clock
from dragoman.errors import TimedOut


class AwaitedOutcomes:
    """Outcomes that somebody in this process waits for, by the numbers of the messages."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, list[asyncio.Future[Outcome]]] = {}
        self._targets: dict[int, str] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._waiting)

    def has(self, number: int) -> bool:
        """Whether anybody waits for a message."""
        return number in self._waiting

    def except_of(self, agents: Container[str]) -> list[int]:
        """The messages to other agents than these."""
        return [number for number, target in self._targets.items() if target not in agents]

    def expect(self, entry: LedgerEntry) -> asyncio.Future[Outcome]:
        """The outcome of a message, to be given to `wait`."""
        arrival: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(entry.number, []).append(arrival)
        self._targets[entry.number] = entry.target
        return arrival

    async def wait(self, entry: LedgerEntry, arrival: asyncio.Future[Outcome], timeout_ms: int) -> Outcome:
        """The outcome, or after so long that it is unknown."""

        def expire() -> None:
            if not arrival.done():
                facts = {"timeoutMs": timeout_ms, "requestId": entry.request_id, "outcome": "UNKNOWN"}
                arrival.set_result(Outcome(error=TimedOut(f"No response within {timeout_ms} ms", facts)))

        timer = self._clock.call_later(timeout_ms / 1000, expire)
        try:
            return await arrival
        finally:
            timer.cancel()
            waiting = self._waiting.get(entry.number)
            if waiting is not None and arrival in waiting:
                waiting.remove(arrival)
                if not waiting:
                    del self._waiting[entry.number], self._targets[entry.number]

    def tell(self, number: int, outcome: Outcome) -> None:
        """Tell everybody who waits for a message."""
        self._targets.pop(number, None)
        for arrival in self._waiting.pop(number, ()):
            if not arrival.done():
                arrival.set_result(outcome)

    def tell_all(self, outcome: Outcome) -> None:
        """Tell everybody who waits for anything."""
        for number in self.numbers:
            self.tell(number, outcome)


async def stored_outcome(ledger: Ledger, entry: LedgerEntry) -> Outcome:
    """The outcome of a message that has ended, as the ledger has it."""
    if entry.status is EntryStatus.COMPLETED:
        result = await ledger.result(entry.owner, entry.request_id or "")
        return Outcome(None if result is None else msgspec.json.decode(result))
    return Outcome(error=error_in(entry.error))

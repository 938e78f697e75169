"""The states of agents that other processes hold, for callers that cannot wait for the event loop.

A state is read by a thread with a loop of its own, and its copy serves for a second: whoever asks more often costs the
caller's loop nothing. A read that takes too long goes on, and the next callers wait for the same one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from dragoman.agents.ledger import Ledger
from dragoman.clock import Clock
from dragoman.errors import StorageBusy

COPY_SECONDS: Final = 1.0
MOST_COPIES: Final = 100
LONGEST_WAIT: Final = 0.25
"""Seconds that the event loop may stand still for a state."""


class _Copy(Struct, frozen=True):
    state: Mapping[str, Any]
    read_at: float


class _Read(Struct, frozen=True):
    found: Future[Mapping[str, bytes]]
    begun_at: float


class StatesElsewhere:
    """Reads states as they were last stored."""

    def __init__(self, ledger: Ledger, clock: Clock, longest_wait: float = LONGEST_WAIT) -> None:
        self._ledger = ledger
        self._clock = clock
        self._longest_wait = longest_wait
        self._reads: dict[str, _Read] = {}
        """Those that a caller did not wait for to the end."""
        self._copies: dict[str, _Copy] = {}

    def get(self, agent_id: str) -> Mapping[str, Any]:
        """A state that is at most a second old. Raises `StorageError`s."""
        now = self._clock.monotonic()
        copy = self._copies.get(agent_id)
        if copy is None or now - copy.read_at > COPY_SECONDS:
            stored, read_at = self._read(agent_id, now)
            state = MappingProxyType({key: msgspec.json.decode(value) for key, value in stored.items()})
            self._copies.pop(agent_id, None)
            copy = self._copies[agent_id] = _Copy(state, read_at)
            if len(self._copies) > MOST_COPIES:
                del self._copies[next(iter(self._copies))]
        return copy.state

    def _read(self, agent_id: str, now: float) -> tuple[Mapping[str, bytes], float]:
        read = self._reads.pop(agent_id, None)
        if read is None or (read.found.done() and now - read.begun_at > COPY_SECONDS):
            read = _Read(self._begin(agent_id), now)
        try:
            return read.found.result(self._longest_wait), read.begun_at
        except TimeoutError:
            self._reads[agent_id] = read
            raise StorageBusy(f"the state of {agent_id} could not be read") from None

    def _begin(self, agent_id: str) -> Future[Mapping[str, bytes]]:
        found: Future[Mapping[str, bytes]] = Future()

        def read() -> None:
            try:
                found.set_result(asyncio.run(self._ledger.state(agent_id)))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=read, name="dragoman-state", daemon=True).start()
        return found

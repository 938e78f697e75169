"""The calls that ended last, whoever made them, for people to look at: bounded in count and in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Completion
from dragoman.telemetry.log import CompletionRecord

MOST_CALLS = 500
MOST_BYTES = 512 * 1024
MOST_LISTED = 100
"""Of the calls that are asked for at once."""

V = TypeVar("V")
MaySee: TypeAlias = Callable[[Caller, str], bool]
"""Whether somebody is shown a call of a caller to a tool."""


class SeenCall(Struct, rename="camel"):
    """What is known about any call once it has ended; never its data."""

    number: int
    timestamp: str
    run_id: str
    correlation_id: str
    tool_name: str
    caller: str
    transport: str
    outcome: str
    duration_ms: float
    payload_bytes: int
    error_code: str | UnsetType = UNSET
    cached: bool | UnsetType = UNSET


class Ring(Generic[V]):
    """Keeps what came last, by key. The oldest leave when there are too many, or they weigh too much together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: str, value: V, size: int) -> None:
        """Keep a value, unless it is too heavy by itself."""
        if size > self._most_bytes:
            return
        self.bytes += size - self._kept.pop(key, (value, 0))[1]
        self._kept[key] = (value, size)
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self.bytes -= self._kept.popitem(last=False)[1][1]

    def get(self, key: str) -> V | None:
        found = self._kept.get(key)
        return found[0] if found is not None else None

    def newest_first(self) -> list[V]:
        return [value for value, _ in reversed(self._kept.values())]


class RecentCalls:
    """Watches a runtime."""

    def __init__(self, most: int = MOST_CALLS, most_bytes: int = MOST_BYTES) -> None:
        self.total = 0
        """How many calls ended since the beginning, and so the number of the last one."""
        self.failed = 0
        self._seen: Ring[tuple[Caller, SeenCall]] = Ring(most, most_bytes)

    def observe(self, record: CompletionRecord, call: Call) -> None:
        """A call has ended; called on the event loop for every one."""
        self.total += 1
        self.failed += record.outcome != Completion.SUCCESS
        seen = SeenCall(
            self.total,
            record.timestamp,
            record.run_id,
            record.correlation_id,
            record.tool_name,
            call.origin.caller.name,
            call.origin.transport,
            record.outcome,
            record.duration_ms,
            record.payload_bytes,
            record.error_code,
            record.cached,
        )
        self._seen.put(record.run_id, (call.origin.caller, seen), len(msgspec.json.encode(seen)))

    def since(self, number: int, may_see: MaySee) -> list[SeenCall]:
        """The newest of the calls after a number, newest first."""
        if number > self.total:
            number = 0  # It is from before a restart.
        found: list[SeenCall] = []
        for whose, seen in self._seen.newest_first():
            if seen.number <= number or len(found) == MOST_LISTED:
                break
            if may_see(whose, seen.tool_name):
                found.append(seen)
        return found

    def find(self, run_id: str, may_see: MaySee) -> SeenCall | None:
        """One call, if it is known still."""
        whose, seen = self._seen.get(run_id) or (None, None)
        return seen if whose is not None and seen is not None and may_see(whose, seen.tool_name) else None

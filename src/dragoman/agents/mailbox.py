"""The order in which an agent handles its messages. No I/O, no clock.

1. Messages are handled in the order in which they came.
2. A message that is to be tried again holds back the later ones of its own source, and no others.
3. Every message from the ledger is queued once: those of one source have increasing sequence numbers.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

_MOST_SOURCES = 10_000


class Queued(Protocol):
    """An item of a mailbox."""

    @property
    def source(self) -> str | None: ...


Q = TypeVar("Q", bound=Queued)


class Mailbox(Generic[Q]):
    """The messages that wait for one agent, at most `size` of them in memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ready: deque[Q] = deque()
        self._held: dict[str, deque[Q]] = {}
        """By source: the message that is to be tried again, and those behind it."""
        self._seen: dict[str, int] = {}
        """By source, the highest sequence number that was queued."""

    def __len__(self) -> int:
        ready = len(self._ready)
        return ready + sum(map(len, self._held.values())) if self._held else ready

    @property
    def is_full(self) -> bool:
        return len(self) >= self.size

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def is_next(self, source: str, seq: int) -> bool:
        """Whether a message follows directly on the last one that was queued of its source."""
        return self._seen.get(source, 0) + 1 == seq

    def is_known(self, source: str, seq: int) -> bool:
        """Whether a message was queued before."""
        return seq <= self._seen.get(source, 0)

    def note(self, source: str, seq: int) -> None:
        """Remember that a message is queued."""
        self._seen.pop(source, None)
        self._seen[source] = seq
        if len(self._seen) > _MOST_SOURCES + self.size:
            # Those that are forgotten are the ones that nothing waits of. The ledger knows them when they come again.
            del self._seen[next(each for each in self._seen if each not in self._held)]

    def add(self, item: Q) -> None:
        """Queue an item behind the others."""
        behind = self._held.get(item.source) if item.source is not None else None
        (self._ready if behind is None else behind).append(item)

    def hold(self, item: Q) -> None:
        """Hold back an item, and the later ones of its source, until `let_go`."""
        assert item.source is not None
        assert item.source not in self._held
        behind = [each for each in self._ready if each.source == item.source]
        self._ready = deque(each for each in self._ready if each.source != item.source)
        self._held[item.source] = deque((item, *behind))

    def let_go(self, source: str) -> None:
        """Queue the items of a source that were held back, before all others."""
        self._ready.extendleft(reversed(self._held.pop(source, deque())))

    def take(self) -> Q:
        """The next item."""
        return self._ready.popleft()

    def put_back(self, item: Q) -> None:
        """Queue an item before all others."""
        self._ready.appendleft(item)

    def clear(self) -> list[Q]:
        """Take out everything, and forget what was queued."""
        found = [*self._ready, *(each for held in self._held.values() for each in held)]
        self._ready.clear()
        self._held.clear()
        self._seen.clear()
        return found

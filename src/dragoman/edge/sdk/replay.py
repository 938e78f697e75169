"""What clients may still ask for again after their stream broke, bounded, the oldest forgotten first.

A stream is remembered for as long as something on it is held or still to come, so what is kept in all is bounded too.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

_OVERHEAD = 512
"""Bytes, about, that holding an event takes besides its text."""


class ReplayEvent(Struct, eq=False):
    """A message that was sent, or would have been, on a stream; without text it only marks where to resume."""

    stream: ReplayStream
    number: int
    text: str
    is_last: bool

    @property
    def id(self) -> str:
        """What the client names it by."""
        return f"{self.stream.number}-{self.number}"

    @property
    def size(self) -> int:
        return len(self.text) + _OVERHEAD


class ReplayStream:
    """The events of one stream that are still held, in order."""

    def __init__(self, session: SessionEvents, name: str, number: int) -> None:
        self.session = session
        self.name = name
        self.number = number
        self.events: dict[int, ReplayEvent] = {}
        self.count = 0
        self.has_ended = False


class ReplayBuffer:
    """The events of all sessions within one budget."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[ReplayEvent, None] = OrderedDict()
        self.size = 0

    def add(self, event: ReplayEvent) -> None:
        """Hold an event, and forget as many of the oldest, of whichever session, as it takes to stay within bounds."""
        self._held[event] = None
        self.size += event.size
        while self.size > self._most:
            oldest = next(iter(self._held))
            self.discard(oldest)
            oldest.stream.session.forget(oldest)

    def discard(self, event: ReplayEvent) -> None:
        """Nobody will ask for it."""
        del self._held[event]
        self.size -= event.size


class SessionEvents:
    """The streams of one session. An event's id says which stream it was on: `<stream>-<number>`."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._open: dict[str, ReplayStream] = {}
        self._by_number: dict[int, ReplayStream] = {}
        self._count = 0

    def store(self, name: str, text: str = "", *, is_last: bool = False) -> str:
        """Hold an event, and give its id. After its last one a stream is over: the name stands for another then."""
        stream = self._open.get(name)
        if stream is None:
            stream = self._open[name] = self._by_number[self._count] = ReplayStream(self, name, self._count)
            self._count += 1
        stream.count += 1
        event = stream.events[stream.count] = ReplayEvent(stream, stream.count, text, is_last)
        if is_last:
            stream.has_ended = True
            del self._open[name]
        self._buffer.add(event)
        return event.id

    def find(self, event_id: str) -> tuple[ReplayStream, int] | None:
        """The stream and the number of an event; None for an id that was never given out, or is forgotten."""
        stream_number, _, number = event_id.partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 12 for part in (stream_number, number)):
            return None
        stream = self._by_number.get(int(stream_number))
        return None if stream is None or not 0 < int(number) <= stream.count else (stream, int(number))

    def held(self, name: str) -> list[ReplayEvent]:
        """What is held of a stream that goes on."""
        stream = self._open.get(name)
        return [] if stream is None else list(stream.events.values())

    def forget(self, event: ReplayEvent) -> None:
        """The buffer has no room for it any longer."""
        stream = event.stream
        del stream.events[event.number]
        if stream.has_ended and not stream.events:
            del self._by_number[stream.number]

    def close(self) -> None:
        """Forget everything."""
        for stream in self._by_number.values():
            for event in stream.events.values():
                self._buffer.discard(event)
            stream.events.clear()  # Each leads back to it: without this, only the garbage collector would end them.
        self._by_number.clear()
        self._open.clear()

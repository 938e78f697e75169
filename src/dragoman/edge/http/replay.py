"""What clients may still ask for again after their stream broke, bounded, the oldest forgotten first."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct


class Event(Struct, eq=False):
    """A message that was sent, or would have been, on a stream."""

    number: int
    message: Any
    size: int


class Stream:
    """The events of one stream that are still held, in order."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.events: deque[Event] = deque()
        self.last = 0


class ReplayBuffer:
    """The events of all sessions within one budget."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._order: deque[Stream] = deque()
        self.size = 0

    def add(self, stream: Stream, message: Any, size: int) -> Event:
        """Hold an event, and forget as many of the oldest, of whichever session, as it takes to stay within bounds."""
        stream.last += 1
        event = Event(stream.last, message, size)
        stream.events.append(event)
        self._order.append(stream)
        self.size += size
        while self.size > self._most:
            self._forget_one()
        return event

    def forget(self, stream: Stream) -> None:
        """The stream's session is over."""
        self.size -= sum(event.size for event in stream.events)
        stream.events.clear()
        # Its places in the order stay until they are the oldest, and then stand for nothing.
        if len(self._order) > 1024 and len(self._order) > 4 * self._held():
            self._order = deque(each for each in self._order if each.events)

    def _forget_one(self) -> None:
        stream = self._order.popleft()
        if stream.events:
            self.size -= stream.events.popleft().size

    def _held(self) -> int:
        return sum(len(stream.events) for stream in set(self._order))


class SessionEvents:
    """The streams of one session. An event's id says which stream it was on: `<stream>-<number>`."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._streams: dict[str, Stream] = {}
        self._by_number: list[Stream] = []

    def store(self, name: str, message: Any, size: int) -> str:
        """Hold an event, and give its id."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Stream(name, len(self._by_number))
            self._by_number.append(stream)
        event = self._buffer.add(stream, message, size)
        return f"{stream.number}-{event.number}"

    def after(self, event_id: str) -> tuple[str, list[tuple[str, Any]]] | None:
        """The stream of the event, and what came on it afterwards; None for an id that was never given out."""
        number, _, position = event_id.partition("-")
        if not (number.isascii() and number.isdigit() and position.isascii() and position.isdigit()):
            return None
        if len(number) > 12 or len(position) > 12 or int(number) >= len(self._by_number):
            return None
        stream = self._by_number[int(number)]
        if int(position) > stream.last:
            return None
        missed = [event for event in stream.events if event.number > int(position)]
        return stream.name, [(f"{stream.number}-{event.number}", event.message) for event in missed]

    def close(self) -> None:
        """Forget everything."""
        for stream in self._by_number:
            self._buffer.forget(stream)
        self._streams.clear()
        self._by_number.clear()

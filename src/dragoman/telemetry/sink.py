"""Where log entries go: a file descriptor that may be slow, full or read by nobody.

Entries are queued, and written by a thread of their own, many at a time, so that a stalled reader of stderr never
stalls the event loop.

1. The queue is bounded in entries and in bytes. Entries beyond the bounds are dropped and counted, and one entry says
   how many they were once the reader has caught up.
2. Records have more room than other entries: they cannot be crowded out by what tools log.
3. A transport with one client need not lose records: `is_full` says when to stop taking work in, long before records
   are dropped.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dragoman.clock import SystemClock
from dragoman.files import open_or_create_file
from dragoman.forks import drop, in_forked_children
from dragoman.telemetry.log import Entry, EntryWriter

_HIGH_WATER = 10_000
MOST_ENTRIES = 20_000
"""Entries that may wait when one is added that is not a record."""
MOST_RECORDS = 25_000
"""Entries that may wait when a record is added. Each weighs about half a kilobyte."""
MOST_BYTES = 16 * 1024 * 1024
"""What entries that are not records may weigh together while they wait. One that is heavier is taken if it is alone."""
_MOST_AT_ONCE = 4096
_BYTES_AT_ONCE = 1024 * 1024
_FEW = 3
_GATHER_SECONDS = 0.01
_ITEM = 64
"""Bytes, about, that something in an entry takes besides itself."""


class DescriptorSink:
    """Writes entries to a file descriptor, in order, from one daemon thread; `put` is the sink.

    Processes that write to the same one take `turns`, by locking this file: a pipe would mix up long lines.
    """

    def __init__(self, descriptor: int, writer: EntryWriter, *, turns: Path | None = None) -> None:
        self._descriptor = descriptor
        self._turns = None if turns is None else open_or_create_file(turns)
        if self._turns is not None:
            # A lock lasts as long as a copy of the descriptor.
            in_forked_children(partial(drop, self._turns))
        self._writer = writer
        self._queue: SimpleQueue[Entry | tuple[int, Entry] | threading.Event] = SimpleQueue()
        self._writing = 0
        self._closing = False
        self._lost = 0
        self._held = 0
        """What the entries weigh that are not records, and that have not been written."""
        self._counting = threading.RLock()  # While it is held, a finalizer may log.
        threading.Thread(target=self._write_forever, name="dragoman-log", daemon=True).start()

    def put(self, entry: Entry) -> None:
        """Queue an entry, or drop it and count it. From any thread; never waits."""
        if type(entry) is dict:
            self._put_weighed(entry)
        elif self._queue.qsize() < MOST_RECORDS:  # As this is done for every call, a record is not weighed.
            self._queue.put(entry)
        else:
            with self._counting:
                self._lost += 1

    def _put_weighed(self, entry: dict[str, Any]) -> None:
        weight = _weight(entry)
        with self._counting:
            is_too_heavy = self._held and self._held + weight > MOST_BYTES
            if is_too_heavy or self._queue.qsize() >= MOST_ENTRIES:
                self._lost += 1
            else:
                self._held += weight
                self._queue.put((weight, entry))  # It may weigh more by the time that it is written.

    @property
    def is_full(self) -> bool:
        """Whether the reader is so far behind that no more work should be started."""
        return self._writing + self._queue.qsize() > _HIGH_WATER

    def close(self, timeout: float = 1.0) -> bool:
        """Wait until everything is written; False when the reader did not take it in time."""
        self._closing = True
        written = threading.Event()
        self._queue.put(written)
        return written.wait(timeout)

    def _write_forever(self) -> None:
        get = self._queue.get
        while True:
            items = [get()]
            is_light = self._held < _BYTES_AT_ONCE
            if is_light and not self._closing and self._queue.qsize() < _MOST_AT_ONCE:
                time.sleep(_GATHER_SECONDS)  # A wake-up per entry would cost more than the entry.
            # What is being written is held twice, as entries and as lines: not much of it at a time.
            most = _MOST_AT_ONCE if is_light and self._held < _BYTES_AT_ONCE else _FEW
            items += [get() for _ in range(min(self._queue.qsize(), most))]
            weight = sum(item[0] for item in items if type(item) is tuple) if self._held else 0
            if weight:
                items = [item[1] if type(item) is tuple else item for item in items]
            markers = [item for item in items if isinstance(item, threading.Event)] if self._closing else []
            entries = [item for item in items if item not in markers] if markers else items
            self._writing = len(entries)
            self._write(self._lines_of(entries))  # type: ignore[arg-type]
            self._writing = 0
            with self._counting:
                self._held -= weight
            if self._lost and (markers or not (self.is_full or self._held > MOST_BYTES // 2)):
                self._report_lost()
            for marker in markers:
                marker.set()

    def _report_lost(self) -> None:
        with self._counting:
            lost, self._lost = self._lost, 0
        facts = {"level": "warn", "message": "log entries dropped", "count": lost}
        self._write(self._lines_of([{"timestamp": SystemClock().timestamp(), **facts}]))

    def _lines_of(self, entries: list[Entry]) -> bytes:
        try:
            return self._writer(entries)
        except Exception as error:  # Whatever somebody logged, the next entry must still be written.
            return b'{"level":"error","message":"log entries lost","count":%d,"error":"%s"}\n' % (
                len(entries),
                type(error).__name__.encode(),
            )

    def _write(self, data: bytes) -> None:
        if self._turns is None:
            self._write_all(data)
            return
        from fcntl import LOCK_EX, LOCK_UN, flock

        flock(self._turns, LOCK_EX)
        try:
            self._write_all(data)
        finally:
            flock(self._turns, LOCK_UN)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                time.sleep(_GATHER_SECONDS)
            except OSError:
                return  # Nobody can be told that the log is gone; the calls go on.


def _weight(value: Any) -> int:
    """Bytes, about, that an entry takes."""
    if isinstance(value, dict):
        return _ITEM + sum(_ITEM + _weight(item) for item in value.values())
    if isinstance(value, list):
        return _ITEM + sum(map(_weight, value))
    return sys.getsizeof(value)

"""Where log entries go: a file descriptor that may be slow, full or read by nobody.

Entries are queued, and written by a thread of their own, many at a time, so that a stalled reader of stderr never
stalls the event loop. The queue is bounded by whoever feeds it: `is_full` says when to stop taking work in.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from dragoman.files import open_or_create_file
from dragoman.telemetry.log import Entry, EntryWriter

_HIGH_WATER = 10_000
_MOST_ENTRIES = 20_000
_GATHER_SECONDS = 0.01


class DescriptorSink:
    """Writes entries to a file descriptor, in order, from one daemon thread; `put` is the sink.

    Processes that write to the same one take `turns`, by locking this file: a pipe would mix up long lines.
    """

    def __init__(self, descriptor: int, writer: EntryWriter, *, turns: Path | None = None) -> None:
        self._descriptor = descriptor
        self._turns = None if turns is None else open_or_create_file(turns)
        self._writer = writer
        self._queue: SimpleQueue[Entry | threading.Event] = SimpleQueue()
        self._writing = 0
        self._closing = False
        self._lost = 0
        threading.Thread(target=self._write_forever, name="dragoman-log", daemon=True).start()

    def put(self, entry: Entry) -> None:
        """Queue an entry. Records are bounded by `is_full`; what tools log beyond reason is dropped, and counted."""
        if type(entry) is dict and self._queue.qsize() > _MOST_ENTRIES:
            self._lost += 1
        else:
            self._queue.put(entry)

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
            if not self._closing:
                time.sleep(_GATHER_SECONDS)  # A wake-up per entry would cost more than the entry.
            items += [get() for _ in range(self._queue.qsize())]
            markers = [item for item in items if isinstance(item, threading.Event)] if self._closing else []
            entries = [item for item in items if item not in markers] if markers else items
            self._writing = len(entries)
            self._write(self._lines_of(entries))  # type: ignore[arg-type]
            self._writing = 0
            self._report_lost()
            for marker in markers:
                marker.set()

    def _report_lost(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self._write(b'{"level":"warn","message":"log entries dropped","count":%d}\n' % lost)

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

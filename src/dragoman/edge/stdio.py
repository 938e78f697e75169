"""MCP over standard input and output.

1. Nothing but the protocol reaches stdout: the real descriptors are taken away before any tool is loaded, and what a
   `print`, a subprocess or a C library writes to descriptor 1 goes to stderr.
2. Reading stops while the peer is far behind with reading its answers, or the log, so what is held for it is bounded.
3. A pipe that ends is a client that left: its calls are cancelled. A file or a terminal that ends is the end of the
   questions: they are all answered first.
4. A signal starts an orderly stop; a second one, or a stop that takes too long, ends the process at once.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.edge.connection import TransportType
from dragoman.edge.served import Served
from dragoman.forks import drop, in_forked_children
from dragoman.process.signals import on_signals, start_or_stop

_CHUNK = 64 * 1024  # What a pipe holds; a larger buffer would be mapped and unmapped for every read.
_HIGH_WATER = 4 * 1024 * 1024
_PRESSURE_POLL = 0.01
_GRACE = 2.0


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Streams:
    """Descriptors that the protocol has for itself."""

    input: int
    output: int
    stop_dropping: Callable[[], None] = _nothing
    """Let forked children have them again."""


def take_standard_streams() -> Streams:
    """Keep stdin and stdout for the protocol, and give everybody else an empty input and the log's output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # Closed by whoever started us: the next descriptor to be opened must not take its place.
            os.open(os.devnull, os.O_RDWR)
    input, output = os.dup(0), os.dup(1)
    # A client waits for the end of the pipe, which comes when nobody can write to it any more.
    streams = Streams(input, output, in_forked_children(lambda: drop(input, output)))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return streams


def give_back(streams: Streams) -> None:
    """Undo `take_standard_streams`."""
    streams.stop_dropping()
    for private, standard in ((streams.input, 0), (streams.output, 1)):
        os.dup2(private, standard)
        os.close(private)


class PipeWire:
    """Lines to a descriptor, never waiting for its reader."""

    type: TransportType = "stdio"

    def __init__(self, descriptor: int, on_broken: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._rest = memoryview(b"")
        self._size = 0
        self._flush_due = False
        self._waiting = False
        self._was_blocking: bool | None = None
        if _can_poll(descriptor):
            self._was_blocking = os.get_blocking(descriptor)
            os.set_blocking(descriptor, False)

    @property
    def is_full(self) -> bool:
        return self._size > _HIGH_WATER

    @property
    def is_empty(self) -> bool:
        return self._size == 0

    def send(self, line: bytes, *, more: bool) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._waiting:
            return
        if not more:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_now)

    def flush(self) -> None:
        """Write what the reader will take."""
        if self._waiting:
            return
        if self._lines:
            self._rest = memoryview(b"".join((self._rest, *self._lines)))
            self._lines.clear()
        try:
            while self._rest:
                written = os.write(self._descriptor, self._rest)
                self._rest = self._rest[written:]
                self._size -= written
        except BlockingIOError:
            self._waiting = True
            self._loop.add_writer(self._descriptor, self._writable)
        except OSError:
            self._size = 0
            self._rest = memoryview(b"")
            self._on_broken()

    def close(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._descriptor)
        # Whoever shares the descriptor with us did not ask for it to be non-blocking.
        if self._was_blocking is not None:
            os.set_blocking(self._descriptor, self._was_blocking)

    def _flush_now(self) -> None:
        self._flush_due = False
        self.flush()

    def _writable(self) -> None:
        self._waiting = False
        self._loop.remove_writer(self._descriptor)
        self.flush()


def _can_poll(descriptor: int) -> bool:
    if not hasattr(select, "poll"):  # Windows can poll neither pipes nor files.
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class PolledReader:
    """Reads a pipe or socket on the event loop."""

    ends_with_peer = True

    def __init__(self, descriptor: int, receive: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self.resume()

    def pause(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        self._loop.add_reader(self._descriptor, self._readable)

    close = pause

    def peer_is_gone(self) -> bool:
        """Whether the other end is closed, whatever is still unread."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # Being hung up is always reported.
        return bool(poll.poll(0))

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._receive(data)


class ThreadedReader:
    """Reads what cannot be polled, a file or a terminal, on a thread of its own."""

    ends_with_peer = False

    def __init__(self, descriptor: int, receive: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()
        self._go.set()
        self._paused = False
        threading.Thread(target=self._read_forever, name="dragoman-stdin", daemon=True).start()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._go.set()

    close = pause

    def peer_is_gone(self) -> bool:
        """Never: a file has no other end, and a terminal that hangs up ends the process."""
        return False

    def _read_forever(self) -> None:
        data = b"-"
        while data:
            self._go.wait()
            self._go.clear()
            try:
                data = os.read(self._descriptor, _CHUNK)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._deliver, data)
            except RuntimeError:
                return  # The loop is closed.

    def _deliver(self, data: bytes) -> None:
        self._receive(data)
        if not self._paused:
            self._go.set()


class StdioSession:
    """One client on one pair of descriptors, from the first byte to the last."""

    def __init__(self, server: Served, streams: Streams, log_is_full: Callable[[], bool], ended: asyncio.Event) -> None:
        """Setting `ended` asks for an orderly stop."""
        self._server = server
        self._log_is_full = log_is_full
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._wire = PipeWire(streams.output, self._broken)
        self._connection = server.connect(self._wire)
        kind = PolledReader if _can_poll(streams.input) else ThreadedReader
        self._reader: PolledReader | ThreadedReader = kind(streams.input, self._receive)

    async def run(self) -> int:
        """Serve until the client leaves or somebody asks to stop; how many calls were abandoned."""
        await self._ended.wait()
        abandoned = await self._server.stop()
        await self._flushed()
        self._reader.close()
        self._wire.close()
        return abandoned

    def _receive(self, data: bytes) -> None:
        if not data:
            self._end_of_input()
            return
        self._connection.receive(data)
        if self._wire.is_full or self._log_is_full():
            self._reader.pause()
            self._loop.call_later(_PRESSURE_POLL, self._resume_when_drained)

    def _resume_when_drained(self) -> None:
        if self._wire.is_full or self._log_is_full():
            if not self._wire.is_full and self._reader.peer_is_gone():
                self._end_of_input()  # Nobody will read the log any more, so there is nothing to wait for.
            else:
                self._loop.call_later(_PRESSURE_POLL, self._resume_when_drained)
        elif not self._ended.is_set():
            self._reader.resume()

    def _end_of_input(self) -> None:
        self._reader.close()
        if self._reader.ends_with_peer:
            self._server.disconnect(self._connection)
        else:
            self._connection.receive(b"\n")  # The last line of a file may lack its end.
        self._end_when_answered()

    def _end_when_answered(self) -> None:
        if self._connection.is_idle:
            self._ended.set()
        else:
            self._loop.call_later(_PRESSURE_POLL, self._end_when_answered)

    def _broken(self) -> None:
        self._server.disconnect(self._connection)
        self._ended.set()

    async def _flushed(self) -> None:
        """Give the last answers a moment to be read."""
        for _ in range(int(_GRACE / _PRESSURE_POLL)):
            if self._wire.is_empty:
                return
            self._wire.flush()
            await asyncio.sleep(_PRESSURE_POLL)


def _never() -> bool:
    return False


async def start_server(
    server: Served,
    streams: Streams | None = None,
    *,
    log_is_full: Callable[[], bool] = _never,
    on_started: Callable[[], None] = lambda: None,
) -> int:
    """Serve one client on stdin and stdout until it leaves, or SIGTERM or SIGINT arrives.

    `on_started` is called when the lifespans are entered, before the client is heard.
    Returns how many calls had to be abandoned; when there are any, end the process without waiting for their threads.
    """
    taken = take_standard_streams() if streams is None else None
    streams = streams or taken
    assert streams is not None
    stopping = asyncio.Event()
    stopper = on_signals(stopping.set, server.shutdown_timeout + 2 * _GRACE)
    try:
        if not await start_or_stop(server.start(), stopping):
            return await server.stop()
        on_started()
        return await StdioSession(server, streams, log_is_full, stopping).run()
    finally:
        stopper.restore()
        if taken is not None:
            give_back(taken)

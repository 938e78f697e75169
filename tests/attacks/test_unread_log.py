"""A server whose log nobody reads."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from dragoman.telemetry.sink import MOST_BYTES
from tests.support.answers import text_in
from tests.support.cost import MEGABYTE, growth_of
from tests.support.forking import Process, start
from tests.support.http_wire import Wire, modern_call
from tests.support.processes import Lines, command, environment, free_port
from tests.support.served import path_of
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

TOOLS = path_of("process_tools.py")


@contextmanager
def served_unread(*options: str) -> Iterator[tuple[int, Process]]:
    """The port of a server whose log is read until it has started, and the process."""
    port = free_port()
    arguments = command(TOOLS, "--transport", "streamable-http", "--port", str(port), *options)
    with start(arguments, stderr=subprocess.PIPE, env=environment(), stdin=subprocess.DEVNULL, bufsize=0) as process:
        try:
            assert process.stderr is not None
            while b"server started" not in process.stderr.readline():
                assert process.poll() is None
            yield port, process
        finally:
            process.kill()


def test_a_log_that_nobody_reads_is_bounded_in_memory_and_says_afterwards_what_it_lost() -> None:
    entries, length = 40, 1000 * 1000
    with served_unread() as (port, process), Wire(port) as wire:
        assert text_in(wire.ask(modern_call("log_much", entries=1, length=length))) == 1  # Fills the pipe.
        with growth_of(process.pid) as growth:
            for _ in range(4):
                assert text_in(wire.ask(modern_call("log_much", entries=entries // 4, length=length))) == entries // 4
        assert growth.memory < MOST_BYTES + 10 * MEGABYTE
        assert process.stderr is not None
        lines = Lines(process.stderr.fileno())
        lines.start()
        lines.wait_until(lambda found: any(b"log entries dropped" in each for each in found) or None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        log = [msgspec.json.decode(each) for each in lines.all()]
        (dropped,) = [each["count"] for each in log if each["message"] == "log entries dropped"]
        assert [each["message"] for each in log].count("noise") + dropped == entries + 1
        assert [each["message"] for each in log].count("tool call completed") == 5

"""A server's process: its log, its records, and what it takes of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

RECORD = b'"message":"tool call completed"'
_LOG_LIMIT = 10.0
_SETTLE = 0.05


class BenchError(Exception):
    """The figures cannot be trusted: an answer or a record is missing, or wrong, or one too many."""


@dataclass(frozen=True)
class Command:
    """How a server is started. `records` says whether its log has one record per call, `every` in which rounds it
    takes part: 3 is every third."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    records: bool = False
    every: int = 1


class Process:
    """A running server. Its stderr goes to a file in `folder`."""

    def __init__(self, command: Command, folder: Path, *arguments: str, stream: int = subprocess.DEVNULL) -> None:
        self.name = command.name
        self._records = command.records
        self._log = folder / f"{command.name.replace(' ', '-')}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
        with open(self._log, "ab") as log:
            self.popen = subprocess.Popen(
                (*command.argv, *arguments),
                stdin=stream,
                stdout=stream,
                stderr=log,
                bufsize=0,
                cwd=folder,
                env=environment | command.environment,
            )
        self._usage = psutil.Process(self.popen.pid)

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(self._usage.memory_info().rss)

    @property
    def cpu(self) -> float:
        """Seconds of the processor's time so far, of the process and of those that it has started."""
        return sum(map(_cpu_of, (self._usage, *self._usage.children())))

    def last_words(self) -> str:
        """The end of its log."""
        return b"\n".join(self._log.read_bytes().splitlines()[-5:]).decode(errors="replace")

    def has_logged(self, message: bytes) -> bool:
        return b'"message":"%b"' % message in self._log.read_bytes()

    def check_records(self, calls: int) -> None:
        """Wait until the log has been written; it must have a record of each call, if this server keeps records."""
        time.sleep(_SETTLE)
        if not self._records:
            return
        deadline = time.monotonic() + _LOG_LIMIT
        while (found := self._count_records()) < calls and time.monotonic() < deadline:
            time.sleep(_SETTLE)
        if found != calls:
            raise BenchError(f"{self.name}: {found} records of {calls} calls in its log")
        os.truncate(self._log, 0)  # It is open for appending: the next run starts at the beginning.

    def end(self) -> None:
        """Wait for it to go, not for long, and throw its log away."""
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(5)
        self._surplus = self._count_records()
        self._log.unlink()

    def check_surplus(self) -> None:
        """No record may be in the log of a server that has ended, as all calls have been accounted for."""
        if self._records and self._surplus:
            raise BenchError(f"{self.name}: {self._surplus} records in its log that no call accounts for")

    def _count_records(self) -> int:
        return self._log.read_bytes().count(RECORD)


def _cpu_of(process: psutil.Process) -> float:
    """Of all its threads, those that have ended too."""
    if sys.platform == "linux":
        # The CPU-time clock of another process, whose id has clock_getcpuclockid's form: nanoseconds, not hundredths.
        return time.clock_gettime(~process.pid << 3 | 2)
    times = process.cpu_times()
    return float(times.user + times.system)

"""The servers under load: real processes with their shipped defaults, their logs in files, and what they take up."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from soak.ledger import Ledger, LogReader
from tests.support.processes import command, environment

_START_LIMIT, _STOP_LIMIT = 60.0, 60.0
_MOST_LINE = 2 << 20
MEMORY_ALLOWANCE = 24 << 20
"""Bytes. Scenes make a server hold lines of eleven megabytes and eight unread answers of one, and the allocator keeps
some of that for a while: a server over stdio moves between levels that are 20 MB apart. In an hour of a million calls
the allowance is a leak of 25 bytes a call."""
COUNT_ALLOWANCE = 60
"""Descriptors and threads: as many as the scenes of all lanes hold at once, since some lanes of a short run start after
its first quarter. A leak of fewer descriptors is found at rest, where none more may be open than before the load."""


@dataclass(frozen=True)
class Sample:
    """What a server took up at a time, in seconds from its start."""

    at: float
    calls: int
    memory: int
    descriptors: int
    threads: int


class Server:
    """A process that serves the tools of a file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, ledger: Ledger) -> None:
        self.name = name
        self.process = process
        self._usage = psutil.Process(process.pid)
        self._log = LogReader(log, ledger)
        self._ledger = ledger
        self._started = asyncio.get_running_loop().time()
        self.samples: list[Sample] = []

    @classmethod
    async def start(cls, name: str, folder: Path, ledger: Ledger, *arguments: str) -> Server:
        log = folder / f"{name}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *command(*arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                limit=_MOST_LINE,
                cwd=folder,
                env={key: value for key, value in environment().items() if not key.startswith("DRAGOMAN_")},
            )
        async with asyncio.timeout(_START_LIMIT):
            while b'"message":"server started"' not in log.read_bytes():
                if process.returncode is not None:
                    raise RuntimeError(f"{name} did not start: {log.read_text('utf-8')}")
                await asyncio.sleep(0.02)
        return cls(name, process, log, ledger)

    @property
    def cpu(self) -> float:
        """Seconds of the processor's time so far."""
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def read_log(self) -> None:
        self._log.read()

    def sample(self) -> Sample:
        with self._usage.oneshot():
            return Sample(
                round(asyncio.get_running_loop().time() - self._started, 1),
                self._ledger.calls,
                self._usage.memory_info().rss,
                self._usage.num_fds(),
                self._usage.num_threads(),
            )

    async def wait_for_end(self) -> None:
        """Until the process has ended, which must be in time and with exit code 0; then read the rest of its log."""
        try:
            async with asyncio.timeout(_STOP_LIMIT):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            code = await self.process.wait()
        if code != 0:
            self._ledger.complain(f"{self.name} ended with exit code {code}")
        self._log.close()

    def facts(self) -> dict[str, Any]:
        return {"growth": growth_of(self.samples), "samples": [asdict(sample) for sample in self.samples]}


def growth_of(samples: Sequence[Sample]) -> dict[str, float]:
    """By how much the median of the last quarter is above that of the first."""
    quarter = max(1, len(samples) // 4)
    found = {}
    for name in ("memory", "descriptors", "threads"):
        values = [getattr(sample, name) for sample in samples]
        found[name] = statistics.median(values[-quarter:]) - statistics.median(values[:quarter])
    return found


def complaints_about(name: str, samples: Sequence[Sample]) -> list[str]:
    """What has grown beyond its allowance."""
    allowances = {"memory": MEMORY_ALLOWANCE, "descriptors": COUNT_ALLOWANCE, "threads": COUNT_ALLOWANCE}
    return [
        f"{name}: {what} grew by {grown:,.0f} from the first quarter to the last; {allowances[what]:,} are allowed"
        for what, grown in growth_of(samples).items()
        if grown > allowances[what]
    ]

"""A server to which something happens. It is composed as `dragoman serve` is.

`python server.py TARGET [--point NAME [--times N] [--stops]] [--clock-file PATH] [--room-file PATH]
[--commit-errors N] [--transport NAME]`

It dies at a point, or is stopped there; the first file has the seconds by which its clock is set forward, and the
second the number of pages that its database may have. One of N commits fails with an I/O error, some of them whole.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from chaos.delivery_points import DeliveryStorage
from chaos.disk_errors import failing_commits
from chaos.points import PointDatabase, PointLedger, Trap, send_itself, stop_between_writes, with_points
from chaos.rounds import COMMIT_FAILED
from chaos.task_points import PointRuns
from dragoman.adapters import engines
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.agents.agent import Agent
from dragoman.agents.migrations import MIGRATIONS
from dragoman.app import ServerOptions, create_server
from dragoman.cli.target import load_tools
from dragoman.clock import SystemClock, iso_milliseconds
from dragoman.config import load_config
from dragoman.serving import serve_until_stopped
from dragoman.storage.migrations import migrations_for
from dragoman.telemetry.stderr import log_to_stderr
from dragoman.tools.tool import Tool

_FIRST_COMMITS = 12


class SetClock(SystemClock):
    """The machine's clock, set forward or back by as many seconds as a file says at the moment."""

    def __init__(self, file: Path | None) -> None:
        super().__init__()
        self._file = file

    def now(self) -> datetime:
        ahead = 0.0 if self._file is None else float(self._file.read_text("utf-8") or 0)
        return super().now() + timedelta(seconds=ahead)

    def timestamp(self) -> str:
        return iso_milliseconds(self.now())


class FailingDisk:
    """Fails at one of so many commits, and never at the first ones, with which a server starts."""

    def __init__(self, one_of: int) -> None:
        self._one_of = one_of
        self._commits = 0

    def fails(self, path: str, pages: bytes) -> bool | None:
        self._commits += 1
        if self._commits <= _FIRST_COMMITS or random.randrange(self._one_of):
            return None
        os.write(sys.stderr.fileno(), msgspec.json.encode({"message": COMMIT_FAILED}) + b"\n")
        return random.random() < 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--point", default="")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--stops", action="store_true")
    parser.add_argument("--clock-file", type=Path)
    parser.add_argument("--room-file", type=Path)
    parser.add_argument("--commit-errors", type=int)
    parser.add_argument("--transport", default="stdio")
    options = parser.parse_args()
    config = load_config()
    storage = config.storage
    assert storage.data_dir is not None
    assert storage.space is not None
    path, migrations = Path(storage.data_dir) / FILE_NAME, migrations_for("sqlite", MIGRATIONS)
    spring = partial(stop_between_writes, path) if options.stops else partial(send_itself, signal.SIGKILL)
    trap = Trap(options.point, options.times, spring)
    database = PointDatabase(path, migrations, trap, options.room_file)
    logger, sink = log_to_stderr(config.logging)
    admin = SqliteLedgerAdmin(database, storage.space)
    engines.ENGINES = {**engines.ENGINES, "sqlite": partial(DeliveryStorage, trap)}
    runtime = create_server(
        ServerOptions(
            config=config,
            clock=SetClock(options.clock_file),
            logger=logger,
            ledger=(PointLedger(database, storage.space, trap), admin),
            runs=(PointRuns(database, storage.space, trap), admin),
            tools=[with_points(each, trap) for each in load_tools(options.target) if isinstance(each, Agent | Tool)],
        )
    )
    disk = None if options.commit_errors is None else failing_commits(FailingDisk(options.commit_errors).fails)
    with disk or nullcontext():
        serve_until_stopped(runtime, options.transport)
    sink.close()


if __name__ == "__main__":
    main()

"""The points at which a server can be made to die, and what makes it die there.

Each operation of the ledger has four: it is asked for, its statements have run and are not committed, it is committed
and nobody knows, and the event loop knows. A handler has two: it begins, and it has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_jobs import Together
from dragoman.adapters.sqlite_ledger import SqliteLedger
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.agent import Agent
from dragoman.agents.ledger import EntryStatus, Hold, LedgerEntry, NewEntry, Settlement
from dragoman.storage.migrations import Migration
from dragoman.tools.tool import Tool

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
Pass = Callable[[str], None]
"""Told the name of each point that is passed."""

OPERATIONS = ("accept", "takeover", "begin", "settle", "retry")
STEPS = ("asked", "written", "committed", "known")
POINTS = (
    *(
        f"{operation} {step}"
        for operation in OPERATIONS
        for step in STEPS
        if (operation, step) != ("takeover", "asked")
    ),
    "handler begun",
    "handler ended",
)
"""Whether a hold is a takeover is known once its statements have run."""


class Trap:
    """Springs when a point is passed for the given time."""

    def __init__(self, point: str, times: int, spring: Callable[[], None]) -> None:
        self._point = point
        self._left = times
        self._spring = spring

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._spring()


def send_itself(number: int) -> None:
    """End this process, without a word."""
    os.kill(os.getpid(), number)


_STOP_PARENT = """
import sqlite3, sys, os, signal, psutil
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
parent = psutil.Process(os.getppid())
parent.send_signal(signal.SIGSTOP)
while parent.status() != psutil.STATUS_STOPPED:
    pass
"""


def stop_between_writes(database: Path) -> None:
    """Stop this process, on all its threads, while none of them writes: a stopped writer would keep all others out.

    A child holds the right to write until the process has stopped.
    """
    subprocess.run([sys.executable, "-c", _STOP_PARENT, database], check=True)


def operation_of(item: Any) -> str:
    """Operations on the ledger."""
    if isinstance(item, NewEntry):
        return "accept"
    if isinstance(item, Settlement):
        return "retry" if item.status is EntryStatus.RETRYING else "settle"
    return "begin"


class PointWorks:
    """Implements `Together`: tells which points the works of a group pass."""

    def __init__(self, works: Together, told: Pass) -> None:
        self._works = works
        self._told = told

    def one(self, item: Any, writing: Transaction) -> Any:
        value = self._works.one(item, writing)
        tell_written(operation_of(item), writing, self._told)
        return value

    def all(self, items: Sequence[Any], writing: Transaction) -> Sequence[Any] | None:
        values = self._works.all(items, writing)
        if values is not None:
            for item in items:
                tell_written(operation_of(item), writing, self._told)
        return values


def tell_written(operation: str, writing: Transaction, told: Pass) -> None:
    """Tell that statements have run, and later that they are committed."""
    told(f"{operation} written")
    writing.on_commit.append(lambda: told(f"{operation} committed"))


class PointDatabase(SqliteDatabase):
    """A database that tells which points its writes pass."""

    def __init__(self, path: Path, migrations: Sequence[Migration], told: Pass, most_pages: Path | None = None) -> None:
        super().__init__(path, migrations)
        self._told = told
        self._works: PointWorks | None = None
        self._most_pages = most_pages
        """A file with the number of pages for which there is room, as connections find it when they are made."""

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        if self._most_pages is not None:
            connection.execute(f"PRAGMA max_page_count = {int(self._most_pages.read_text('utf-8'))}")
        return connection

    def write(self, function: Callable[[Transaction], T], weight: int = 1) -> Awaitable[T]:
        def run(writing: Transaction) -> T:
            value = function(writing)
            if isinstance(value, Hold) and value.has_crashed:
                tell_written("takeover", writing, self._told)
            return value

        return super().write(run, weight)

    def write_together(self, together: Together, item: Any) -> Awaitable[Any]:
        if self._works is None:  # The same for all: only then are they done together.
            self._works = PointWorks(together, self._told)
        return super().write_together(self._works, item)


class PointLedger(SqliteLedger):
    """A ledger that tells what is asked of it, and when its caller knows that it is done."""

    def __init__(self, database: PointDatabase, space: str, told: Pass) -> None:
        super().__init__(database, space)
        self._told = told

    def accept(self, entry: NewEntry) -> Awaitable[LedgerEntry]:
        self._told("accept asked")
        return self._tell("accept known", super().accept(entry))

    async def hold(self, agent: str) -> Hold | None:
        hold = await super().hold(agent)
        if hold is not None and hold.has_crashed:
            self._told("takeover known")
        return hold

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        self._told("begin asked")
        await super().begin(number, agent, epoch)
        self._told("begin known")

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        operation = operation_of(settlement)
        self._told(f"{operation} asked")
        return self._tell(f"{operation} known", super().settle(settlement))

    async def _tell(self, point: str, storing: Awaitable[T]) -> T:
        value = await storing
        self._told(point)
        return value


def with_points(served: Agent | Tool, told: Pass) -> Agent | Tool:
    """An agent or a tool whose handler tells when it begins and when it has ended."""
    handler = served.handler

    async def handle(given: Any, ctx: Any) -> Any:
        told("handler begun")
        value = await handler(given, ctx)
        told("handler ended")
        return value

    if isinstance(served, Agent):
        return msgspec.structs.replace(served, handler=handle)
    served.handler = handle
    return served

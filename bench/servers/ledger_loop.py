"""The writes of requests in a bare loop: `ledger_loop.py KIND FOLDER`. 128 requests are committed at once.

`statements` executes for each of them what a ledger executes for a request that is alone; `rows` writes them as a
ledger writes 128 requests that wait for the same commit; `fdatasync` writes as many bytes to a file as such a commit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from at_work import orders, spent

from dragoman.access.callers import LOCAL
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger_rows import ADD, COUNT_SEQ, LAST_SEQ, SqliteSpace
from dragoman.adapters.sqlite_ledger_works import COUNT_VERSION, END, KEEP_STATE, LedgerWorks
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.drafts import Drafts
from dragoman.agents.ledger import LedgerEntry, NewEntry, Settlement
from dragoman.agents.migrations import MIGRATIONS
from dragoman.agents.senders import client_source
from dragoman.clock import SystemClock
from dragoman.ids import RandomIds

IN_A_COMMIT = 128
ME, CLIENT = "me", client_source(LOCAL)
PAYLOAD = b'{"type":"request","payload":{"number":1}}'
MOST_AGENTS = 64


class Requests:
    """Makes requests, and the settlements that answer them."""

    def __init__(self) -> None:
        self._drafts = Drafts(SystemClock(), RandomIds(), "bench", 86_400_000, 1_048_576)
        self._versions: dict[str, int] = {}

    def request(self, agent: str) -> NewEntry:
        drafts = self._drafts
        name, payload = drafts.message_id(), {"number": 1}
        return drafts.make("REQUEST", agent, payload, "request", CLIENT, LOCAL, None, name)

    def settled(self, entry: LedgerEntry) -> Settlement:
        version = self._versions.get(entry.target, 0)
        self._versions[entry.target] = version + 1
        counted = str(version + 1).encode()
        return Settlement(
            agent=entry.target,
            epoch=1,
            version=version,
            at=self._drafts.now(),
            number=entry.number,
            attempts=1,
            state={"count": counted},
            sends=(self._drafts.response_to(entry, counted),),
        )


class Loop:
    """A database, and nobody but this loop who writes to it."""

    def __init__(self, folder: Path) -> None:
        database = SqliteDatabase(folder / FILE_NAME, MIGRATIONS)
        self._log = folder / f"{FILE_NAME}-wal"
        self._connection = database.connect()
        self._works = LedgerWorks(SqliteSpace(database, "bench"), lambda: ME)
        self._requests = Requests()
        self._versions = [0] * MOST_AGENTS
        self._done = 0
        self.execute = self._connection.execute
        for number in range(MOST_AGENTS):
            self.execute("INSERT INTO ledger_agent VALUES (1, ?, ?, 1, 0)", (f"a-{number}", ME))

    def commit_statements(self, agents: int) -> None:
        self.execute("BEGIN IMMEDIATE")
        for number in range(IN_A_COMMIT):
            self._request(number % agents)
        self.execute("COMMIT")

    def _request(self, agent: int) -> None:
        execute, name, now = self.execute, f"a-{agent}", time.time()
        request_id = f"{self._done:036}"
        version = self._versions[agent] = self._versions[agent] + 1
        counted = str(version).encode()
        until = now + 86_400
        self._done += 1
        number = self._add("REQUEST", CLIENT, name, request_id, "waiting", now, until, None, PAYLOAD)
        execute(COUNT_VERSION, (1, name, ME, 1, version - 1))
        execute(END, ("completed", None, 1, 0.0, 1, now, None, number))
        execute(KEEP_STATE, (1, name, "count", counted))
        self._add("RESPONSE", name, CLIENT, request_id, "completed", now, until, now, counted)

    def _add(
        self,
        kind: str,
        source: str,
        target: str,
        request_id: str,
        status: str,
        now: float,
        until: float,
        ended_at: float | None,
        payload: bytes,
    ) -> int | None:
        pair = (1, source, target)
        last = self.execute(LAST_SEQ, pair).fetchone()
        seq = 1 if last is None else last[0] + 1
        message_id = f"{self._done:032}-{kind[:3]}"
        ids = (1, message_id, kind, source, target, CLIENT, request_id, seq)
        added = self.execute(ADD, (*ids, status, now, until, ended_at, request_id, "", None, None, payload))
        self.execute(COUNT_SEQ, (*pair, seq))
        return added.lastrowid

    def commit_rows(self, agents: int) -> None:
        writing = self._begin()
        new = [self._requests.request(f"a-{number % agents}") for number in range(IN_A_COMMIT)]
        accepted = self._works.all(new, writing)
        assert accepted is not None
        assert self._works.all([self._requests.settled(entry) for entry in accepted], writing) is not None
        self._commit(writing)

    def bytes_of_a_commit(self) -> int:
        for _ in range(4):
            self.commit_statements(MOST_AGENTS)
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.commit_statements(MOST_AGENTS)
        return self._log.stat().st_size

    def _begin(self) -> Transaction:
        self.execute("BEGIN IMMEDIATE")
        return Transaction(self._connection)

    def _commit(self, writing: Transaction) -> None:
        self.execute("COMMIT")
        for step in writing.on_commit:
            step()


def group_sync(path: Path, size: int) -> Callable[[int], None]:
    """Write so many bytes, and wait until they are on the disk."""
    file, content = os.open(path, os.O_WRONLY | os.O_CREAT), os.urandom(size)
    sync = getattr(os, "fdatasync", os.fsync)

    def write(_: int) -> None:
        if os.lseek(file, 0, os.SEEK_CUR) > 1 << 24:
            os.lseek(file, 0, os.SEEK_SET)  # As the log of a database, it is written over and over.
        os.write(file, content)
        sync(file)

    return write


def main(kind: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    loop = Loop(folder)
    if kind == "fdatasync":
        commit = group_sync(folder / "synced", loop.bytes_of_a_commit())
    else:
        commit = {"statements": loop.commit_statements, "rows": loop.commit_rows}[kind]
    for order in orders():

        def work(until: float, agents: int = order["agents"]) -> int:
            calls = 0
            while time.perf_counter() < until:
                commit(agents)
                calls += IN_A_COMMIT
            return calls

        spent(work, order["seconds"])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

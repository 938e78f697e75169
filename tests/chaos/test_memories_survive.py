"""A process that is killed right after its answer has lost nothing that it answered for."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.clock import SystemClock
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Space

ADA = Space("ada", "default")

STORES_UNTIL_KILLED = """
import asyncio, itertools, sys
from pathlib import Path
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.clock import SystemClock
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Space

async def store(memories, writer):
    for number in itertools.count():
        await memories.store(Space("ada", "default"), f"{writer}-{number}", f"word{number} by {writer}")
        print(writer, number, flush=True)
        if number % 3 == 2:
            await memories.delete(Space("ada", "default"), [f"{writer}-{number - 2}"])
            print(writer, -(number - 2) - 1, flush=True)

async def main():
    memories = SqliteMemories(SqliteDatabase(Path(sys.argv[1]), MIGRATIONS), 10**9, SystemClock())
    await asyncio.gather(*(store(memories, writer) for writer in range(8)))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("answers", [1, 40, 300])
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path, answers: int) -> None:
    path = tmp_path / FILE_NAME
    command = [sys.executable, "-c", STORES_UNTIL_KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(answers)]
        process.kill()
        lines += process.stdout.read().splitlines(keepends=True)
    assert process.returncode == -signal.SIGKILL
    acknowledged = [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]
    assert len(acknowledged) >= answers
    asyncio.run(check(path, acknowledged))


def count_indexed(connection: sqlite3.Connection) -> int:
    connection.execute("INSERT INTO memory_term (memory_term) VALUES ('integrity-check')")
    connection.execute("CREATE VIRTUAL TABLE temp.indexed USING fts5vocab(main, memory_term, instance)")
    (count,) = connection.execute("SELECT count(DISTINCT doc) FROM temp.indexed").fetchone()
    return int(count)


async def check(path: Path, acknowledged: list[tuple[int, ...]]) -> None:
    stored = {(writer, number) for writer, number in acknowledged if number >= 0}
    deleted = {(writer, -number - 1) for writer, number in acknowledged if number < 0}
    last = {writer: max(number for who, number in stored if who == writer) for writer, _ in stored}
    # A deletion that was under way may have been committed without its answer having come out.
    uncertain = {(writer, number - 2) for writer, number in last.items()}
    database = SqliteDatabase(path, MIGRATIONS)
    memories = SqliteMemories(database, 10**9, SystemClock())
    for writer, number in stored - uncertain:
        entry = await memories.retrieve(ADA, f"{writer}-{number}")
        assert (entry is None) == ((writer, number) in deleted), (writer, number)
    indexed = await database.write(count_indexed)
    counted, kept, used, summed = await database.read(
        lambda connection: [
            connection.execute(query).fetchone()[0]
            for query in (
                "SELECT sum(entries) FROM memory_space",
                "SELECT count(*) FROM memory_entry",
                "SELECT bytes FROM memory_owner",
                "SELECT sum(bytes) FROM memory_entry",
            )
        ]
    )
    assert (counted, used) == (kept, summed)
    assert indexed == kept
    await database.close()

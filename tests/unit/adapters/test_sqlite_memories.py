"""What SQLite does for memories: how much work it is, and what the index of words is like."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.adapters import sqlite_memories, sqlite_writer
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.adapters.sqlite_tidying import merge_memories
from dragoman.errors import OverQuota
from dragoman.memories.migrations import MIGRATIONS
from dragoman.search.words import FEWEST_LETTERS_OF_A_BEGINNING, MOST_LETTERS
from dragoman.testing import ManualClock
from tests.contract.histories import QUOTA, compare, histories
from tests.unit.adapters.memory_work import ADA, OPERATIONS, fill, grown


class CountingDatabase(SqliteDatabase):
    """Counts the steps of SQLite's virtual machine: the same every time, unlike seconds."""

    steps = 0

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.set_progress_handler(self._step, 1)
        return connection

    def _step(self) -> int:
        self.steps += 1
        return 0


def database_in(folder: Path, kind: type[SqliteDatabase] = SqliteDatabase) -> SqliteDatabase:
    return kind(folder / FILE_NAME, MIGRATIONS, tidying=(merge_memories,))


def memories_in(database: SqliteDatabase, quota: int = 10**9) -> SqliteMemories:
    return SqliteMemories(database, quota, ManualClock())


def tidy(database: SqliteDatabase) -> None:
    """As happens by itself when nothing is written for a moment."""
    with closing(database.connect()) as connection:
        while database.tidy(connection):
            pass


async def steps_of_each(folder: Path, entries: int) -> dict[str, int]:
    database = database_in(folder, CountingDatabase)
    assert isinstance(database, CountingDatabase)
    memories = memories_in(database)
    await fill(memories, entries)
    tidy(database)
    steps = {}
    for name, run in OPERATIONS.items():
        before = database.steps
        await run(memories)
        steps[name] = database.steps - before
    await database.close()
    return steps


@pytest.mark.slow
@pytest.mark.requirement("PRD-P5")
@pytest.mark.parametrize("entries", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_no_operation_does_more_work_among_many_entries_than_among_few(entries: int, tmp_path: Path) -> None:
    few = await steps_of_each(tmp_path / "few", 200)
    many = await steps_of_each(tmp_path / "many", entries)
    assert min(few.values()) > 0
    assert grown(few, many) == {}


async def test_the_index_of_a_word_begins_with_what_was_stored_last(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    memories = memories_in(database)
    for key in "abca":
        await memories.store(ADA, key, "word")
    await memories.delete(ADA, ["b"])
    await database.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        rows = connection.execute("SELECT rowid FROM memory_term WHERE memory_term MATCH '00000001word'").fetchall()
        ids = connection.execute("SELECT -id FROM memory_entry ORDER BY id DESC").fetchall()
        connection.execute("INSERT INTO memory_term (memory_term) VALUES ('integrity-check')")
    assert (len(rows), rows) == (2, ids)


def test_the_index_has_every_beginning_of_a_word_that_can_be_looked_for() -> None:
    lengths = " ".join(
        str(sqlite_memories.SPACE_DIGITS + letters) for letters in range(FEWEST_LETTERS_OF_A_BEGINNING, MOST_LETTERS)
    )
    assert all(f"prefix = '{lengths}'" in migration.script for migration in MIGRATIONS)


def check_index(database: SqliteDatabase) -> None:
    """That the index has the words of the entries, and nothing else."""
    with closing(database.connect()) as connection:
        connection.execute("CREATE VIRTUAL TABLE temp.indexed USING fts5vocab(main, memory_term, instance)")
        indexed = connection.execute("SELECT doc, term FROM temp.indexed").fetchall()
        entries = connection.execute("SELECT -id, terms FROM memory_entry").fetchall()
    assert sorted(indexed) == sorted((row, term) for row, terms in entries for term in terms.split())


@pytest.mark.slow
@given(histories, st.booleans())
def test_after_any_history_the_index_has_the_words_of_the_entries(history: list[Any], few_are_many: bool) -> None:
    async def run() -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            if few_are_many:  # As little as there is here is treated as what there is most of.
                patch.setattr(sqlite_memories, "_FEW", 1)
                patch.setattr(sqlite_writer, "MOST_FOR_LATER", 3)
            database = database_in(Path(folder))
            await compare(memories_in(database, QUOTA), history)
            check_index(database)
            await database.close()

    asyncio.run(run())


def pieces(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(DISTINCT segid) FROM memory_term_idx").fetchone()
    return int(count)


async def test_tidying_leaves_the_index_in_few_pieces_and_nothing_in_the_log(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    memories = memories_in(database)
    for number in range(12):
        await memories.store(ADA, f"k{number}", f"word {number}")
    with closing(database.connect()) as connection:
        assert pieces(connection) == 12
        tidy(database)
        assert pieces(connection) == 1
        (_, in_log, brought_over) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert in_log == brought_over
    assert len((await memories.search(ADA, ("word",), 20)).items) == 12
    await database.close()


async def test_what_was_stored_and_deleted_in_the_same_moment_is_not_found_in_the_tidied_index(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    memories = memories_in(database)
    for number in range(20):
        await asyncio.gather(
            memories.store(ADA, "k", f"red {number}"),
            memories.delete(ADA, ["k"]),
            memories.store(ADA, "other", f"blue {number}"),
            memories.store(ADA, "k", f"blue {number}"),
        )
    tidy(database)
    assert [item.key for item in (await memories.search(ADA, ("blue", "19"), 10)).items] == ["k", "other"]
    assert (await memories.search(ADA, ("blue", "18"), 10)).items == ()
    await database.close()


async def test_a_smaller_value_is_taken_even_when_the_quota_is_exceeded(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    await memories_in(database).store(ADA, "k", "x" * 100)
    memories = memories_in(database, quota=10)
    await memories.store(ADA, "k", "x" * 50)
    with pytest.raises(OverQuota):
        await memories.store(ADA, "k", "x" * 51)
    await database.close()

"""What the command line sees of ledgers beside their servers."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.adapters.process_locks import boot_clock
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.adapters.sqlite_ledger_admin import page_statement
from dragoman.adapters.sqlite_ledger_overview import agents_in, count_expired, spaces_in
from dragoman.agents.ledger import EntryStatus, Query
from dragoman.errors import StorageCorrupt
from tests.support.kept_messages import KeptMessages, kept_messages


def test_a_folder_without_a_database_has_no_spaces_and_stays_empty(tmp_path: Path) -> None:
    assert spaces_in(tmp_path) == []
    assert spaces_in(tmp_path / "gone") == []
    assert list(tmp_path.iterdir()) == []


async def test_spaces_are_found_in_a_folder_with_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "50% of? #1 é"
    for space in ("night", "day"):
        async with kept_messages(folder, space) as kept:
            await kept.hold("clerk")
    assert spaces_in(folder) == ["day", "night"]


async def test_looking_changes_nothing(tmp_path: Path) -> None:
    async with kept_messages(tmp_path, "day") as kept:
        await kept.hold("clerk")
    before = (tmp_path / FILE_NAME).read_bytes()
    spaces_in(tmp_path)
    agents_in(tmp_path, "day")
    count_expired(tmp_path, "day", 0.0)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_damaged_database_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(os.urandom(8192))
    with pytest.raises(StorageCorrupt):
        spaces_in(tmp_path)


async def test_a_holder_is_alive_while_its_file_is_locked_and_it_is_not_silent(tmp_path: Path) -> None:
    async with kept_messages(tmp_path, "day") as kept:
        await kept.hold("clerk")
        held = agents_in(tmp_path, "day")["clerk"]
        assert (held.epoch, held.version, held.is_alive) == (1, 0, True)
        assert not agents_in(tmp_path, "day", lambda: boot_clock() + 3600)["clerk"].is_alive
        assert agents_in(tmp_path, "night") == {}
        (tmp_path / "locks" / f"{held.process}.lock").rename(tmp_path / "lock")
        assert not agents_in(tmp_path, "day")["clerk"].is_alive
        (tmp_path / "lock").rename(tmp_path / "locks" / f"{held.process}.lock")
    given_back = agents_in(tmp_path, "day")["clerk"]
    assert (given_back.process, given_back.is_alive) == (None, False)


async def ended(kept: KeptMessages) -> None:
    """A request with its response, and an event that waits."""
    request = await kept.accept("clerk", 1, "REQUEST")
    await kept.accept("clerk", 2)
    hold = await kept.hold("clerk")
    await kept.end(hold, hold.version, request, EntryStatus.COMPLETED)


async def test_as_many_messages_are_said_to_have_expired_as_a_purge_deletes(tmp_path: Path) -> None:
    async with kept_messages(tmp_path, "day", ttl_ms=-1_000) as kept:
        await ended(kept)
        now = kept.drafts.now()
        assert count_expired(tmp_path, "day", now - 3600) == 0
        assert count_expired(tmp_path, "day", now) == 2  # What waits is its holder's.
        await kept.ledger.release(["clerk"])
        assert count_expired(tmp_path, "day", now) == 3
        assert count_expired(tmp_path, "night", now) == 0
        assert await kept.admin.purge(now, 500) == 3
        assert count_expired(tmp_path, "day", now) == 0


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(), "USING INTEGER PRIMARY KEY (rowid>?)"),
        (Query(source="a", target="b", statuses=(EntryStatus.FAILED,)), "USING INTEGER PRIMARY KEY (rowid>?)"),
        (Query(statuses=(EntryStatus.UNKNOWN, EntryStatus.DEAD)), "USING INDEX ledger_parked"),
        (
            Query(target="a", statuses=(EntryStatus.WAITING, EntryStatus.RETRYING, EntryStatus.RUNNING)),
            "USING INDEX ledger_open (space=? AND target=? AND number>?)",
        ),
        (Query(owner="a", request_id="b"), "(space=? AND owner=? AND request_id=?)"),
    ],
)
async def test_a_page_is_read_by_an_index_or_in_the_order_of_numbers(query: Query, index: str, tmp_path: Path) -> None:
    async with kept_messages(tmp_path, "day") as kept:
        assert await kept.admin.page(query) == []
    statement, values = page_statement(1, query)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert index in plan[0]

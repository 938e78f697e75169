"""Works of the ledger that are written together leave what they leave when each is written alone."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger import SqliteLedger
from dragoman.adapters.sqlite_ledger_works import LedgerWorks
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.ledger import LARGE_RESULT, EntryStatus, LedgerEntry, MessageKind, NewEntry, Settlement
from dragoman.agents.migrations import MIGRATIONS
from dragoman.errors import LeaseLost, RequestConflict
from tests.support.waiting import PATIENCE

_TABLES = {
    "ledger_entry": "*",
    "ledger_pair": "*",
    "ledger_state": "*",
    "ledger_agent": "space, id, epoch, version",
    "ledger_result": "*",
}


class Books:
    """A ledger in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.database = SqliteDatabase(self.path, MIGRATIONS)
        self.ledger = SqliteLedger(self.database, "tests")

    def rows(self) -> dict[str, list[Any]]:
        connection = sqlite3.connect(self.path)
        try:
            return {
                name: sorted(connection.execute(f"SELECT {columns} FROM {name}"), key=repr)
                for name, columns in _TABLES.items()
            }
        finally:
            connection.close()

    async def one_by_one(self, works: Sequence[NewEntry | Settlement]) -> list[Any]:
        return [(await asyncio.gather(self._write(work), return_exceptions=True))[0] for work in works]

    async def together(self, works: Sequence[NewEntry | Settlement]) -> list[Any]:
        return await asyncio.gather(*map(self._write, works), return_exceptions=True)

    async def _write(self, work: NewEntry | Settlement) -> Any:
        return await (self.ledger.accept(work) if isinstance(work, NewEntry) else self.ledger.settle(work))

    async def close(self) -> None:
        await self.ledger.close()
        await self.database.close()


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[Books, Books]]:
    """Two ledgers in which the same has happened: two agents are held, and five messages wait."""
    books = Books(tmp_path / "alone"), Books(tmp_path / "together")
    for each in books:
        for agent in ("one", "two"):
            await each.ledger.hold(agent)
        await each.one_by_one([message(f"first-{number}") for number in range(5)])
    yield books
    for each in books:
        await each.close()


def message(name: str, target: str = "one", kind: MessageKind = "REQUEST", payload: bytes = b"{}") -> NewEntry:
    return NewEntry(
        message_id=f"id-{name}-{kind}",
        kind=kind,
        source="one" if kind == "RESPONSE" else "client:a",
        target="client:a" if kind == "RESPONSE" else target,
        owner="client:a",
        payload=payload,
        accepted_at=1.0,
        expires_at=100.0,
        request_id=name,
        chain=("zero",),
    )


def settled(version: int, number: int | None, state: dict[str, bytes | None], *sends: NewEntry) -> Settlement:
    status = EntryStatus.COMPLETED if sends else EntryStatus.RETRYING
    return Settlement(
        agent="one",
        epoch=1,
        version=version,
        at=2.0,
        number=number,
        status=status,
        attempts=1,
        state=state,
        sends=sends,
    )


WORKS: tuple[NewEntry | Settlement, ...] = (
    message("second"),
    settled(0, 1, {"count": b"1", "gone": b"1"}, message("first-0", kind="RESPONSE")),
    message("third", target="two"),
    settled(
        1, 2, {"count": b"2", "gone": None}, message("first-1", kind="RESPONSE", payload=b"x" * (LARGE_RESULT + 1))
    ),
    settled(2, 3, {}),
    settled(3, None, {"count": b"3"}),
)


def comparable(results: Sequence[Any]) -> list[Any]:
    """Errors are equal by what they say."""
    return [str(each) if isinstance(each, Exception) else each for each in results]


async def compare(both: tuple[Books, Books], works: Sequence[NewEntry | Settlement]) -> list[Any]:
    """What comes of works, which is the same in both ways."""
    alone, together = both
    results = await alone.one_by_one(works), await together.together(works)
    assert comparable(results[0]) == comparable(results[1])
    assert alone.rows() == together.rows()
    return results[1]


async def test_works_that_are_written_together_leave_the_same_rows_as_one_by_one(both: tuple[Books, Books]) -> None:
    added, response, *_ = await compare(both, WORKS)
    assert isinstance(added, LedgerEntry)
    assert (added.number, added.seq, [each.seq for each in response]) == (6, 6, [1])


async def test_more_works_than_a_statement_has_rows_keep_their_order(both: tuple[Books, Books]) -> None:
    works = [message(f"many-{number}", target=("one", "two")[number % 2]) for number in range(300)]
    results = await compare(both, works)
    assert [each.number for each in results] == list(range(6, 306))
    assert [each.seq for each in results if each.target == "two"] == list(range(1, 151))


async def test_one_settlement_among_many_messages_counts_one_version(both: tuple[Books, Books]) -> None:
    """With several of an agent, a wrong count has them all written alone, and that hides it."""
    messages = [message(f"many-{number}") for number in range(40)]
    await compare(both, [*messages[:20], settled(0, 1, {"count": b"1"}), *messages[20:]])
    assert [row[3] for row in both[1].rows()["ledger_agent"] if row[1] == "one"] == [1]


async def test_state_of_an_earlier_settlement_is_forgotten_by_one_among_many_messages(
    both: tuple[Books, Books],
) -> None:
    for each in both:
        await each.one_by_one([settled(0, 1, {"gone": b"1", "kept": b"1"})])
    messages = [message(f"many-{number}") for number in range(40)]
    await compare(both, [*messages[:20], settled(1, 2, {"gone": None}), *messages[20:]])
    assert [row[2] for row in both[1].rows()["ledger_state"]] == ["kept"]


async def test_a_request_that_was_accepted_before_is_found_among_works_that_are_written_together(
    both: tuple[Books, Books],
) -> None:
    again, conflict = message("first-0"), message("first-1", payload=b"[]")
    results = await compare(both, [message("second"), again, conflict, *WORKS[1:]])
    assert (results[1].number, results[1].is_new) == (1, False)
    assert isinstance(results[2], RequestConflict)
    assert results[3][0].kind == "RESPONSE"


async def test_one_settlement_that_is_refused_does_not_take_other_agents_works_with_it(
    both: tuple[Books, Books],
) -> None:
    results = await compare(both, [message("second"), settled(7, 1, {"count": b"1"}), settled(0, 2, {"count": b"2"})])
    assert isinstance(results[1], LeaseLost)
    assert results[2] == []


async def test_a_message_that_has_ended_is_not_settled_again_among_others(both: tuple[Books, Books]) -> None:
    twice: list[NewEntry | Settlement] = [
        settled(0, 1, {}, message("first-0", kind="RESPONSE")),
        settled(1, 1, {"count": b"1"}),
        message("second"),
    ]
    results = await compare(both, twice)
    assert isinstance(results[1], LeaseLost)


async def test_works_of_one_group_are_written_at_once(
    both: tuple[Books, Books], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = LedgerWorks.all

    def count(self: LedgerWorks, items: Any, writing: Any, /) -> Any:
        sizes.append(len(items))
        return write(self, items, writing)

    monkeypatch.setattr(LedgerWorks, "all", count)
    begun, done = threading.Event(), threading.Event()

    def keep_busy(_: Transaction) -> None:
        begun.set()
        done.wait(PATIENCE)

    busy = asyncio.ensure_future(both[1].database.write(keep_busy))
    await asyncio.to_thread(begun.wait, PATIENCE)
    writing = asyncio.create_task(both[1].together([message(f"many-{number}") for number in range(100)]))
    for _ in range(10):  # All of them wait for the writer by then.
        await asyncio.sleep(0)
    done.set()
    await asyncio.gather(busy, writing)
    assert sizes == [100]

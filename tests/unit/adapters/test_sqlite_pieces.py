"""No transaction writes much for documents, so that nobody waits for long to write."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dragoman.adapters import sqlite_contents, sqlite_documents
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.errors import InvalidArgument, NotFound
from dragoman.knowledge import changing, indexing
from dragoman.knowledge.index import PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.migrations import MIGRATIONS
from dragoman.knowledge.part import catch_up, tidy
from dragoman.knowledge.passages import passages_of
from dragoman.knowledge.port import KEPT_DELETED_SECONDS, ROOT, Documents, UpdateDocument, Usage
from dragoman.knowledge.rows import MOST_BYTES, MOST_ROWS
from dragoman.search.words import all_words_in
from dragoman.storage.settings import StorageConfig
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, titled
from tests.support.large_texts import large_text
from tests.support.purge_clock import PromptPurgeClock
from tests.support.waiting import until

INDEXED = "INSERT INTO passage ("


class Counted(sqlite3.Connection):
    """Counts the rows of each transaction, those that the index of words writes for itself included."""

    begun = 0
    indexed = 0
    rows: ClassVar[list[int]] = []
    bytes: ClassVar[list[int]] = []

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        if statement.startswith("BEGIN"):
            self.begun, self.indexed = self.total_changes, 0
        elif statement.startswith(INDEXED):
            self.indexed += len(values[-1].encode())
        elif statement == "COMMIT" and self.total_changes > self.begun:
            self.rows.append(self.total_changes - self.begun)
            self.bytes.append(self.indexed)
        return super().execute(statement, values)


@pytest.mark.slow
async def test_no_transaction_writes_more_than_2000_rows_or_indexes_more_than_256_kilobytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    clock = ManualClock()
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), clock, MIGRATIONS)
    documents, index = storage.port(Documents), storage.port(PassageIndex)
    tree = Tree(documents)
    await storage.port(PassageVectors).wanted("model", 1)
    many_words = " ".join(f"w{number} " * (number % 9 + 1) for number in range(7_000))
    small_pieces = "\n".join(f"# Heading {number}\n\n{'text ' * 20}" for number in range(2_000))
    texts = large_text("first", 600), large_text("second", 600), many_words, small_pieces, large_text("small", 240)
    await tree.create("top")
    for number, text in enumerate(texts):
        await tree.create(f"d{number}", "top", body=text, mime_type="text/markdown")
        await catch_up(index)
    for number, text in enumerate(reversed(texts)):
        await tree.do(UpdateDocument(id=f"d{number}", fields={"content.body": text}))
        await catch_up(index)
    assert len(await storage.port(PassageVectors).wanted("another", 9_999)) > 2_000
    written = len(Counted.rows)
    for number in range(5):
        await tree.do(titled(f"d{number}", "Another title"))
        await tree.do(UpdateDocument(id=f"d{number}", fields={"metadata.tags": ("x", "y")}))
    assert (len(Counted.rows), sum(Counted.bytes[written:])) == (written + 10, 0), "no text is indexed again"
    assert max(Counted.rows[written:]) < 30
    assert await index.unindexed(ACME) == 0
    for number in range(250):
        await tree.create(f"e{number}", "top" if number % 2 else f"e{number - 1}" if number else ROOT)
    paragraphs = large_text("many", 50)
    await asyncio.gather(*(tree.create(f"m{number}", body=paragraphs) for number in range(20)))
    await asyncio.gather(*(tree.delete(f"m{number}") for number in range(20)))
    await tree.delete("top")
    await tidy(documents, PromptPurgeClock(clock))
    clock.advance(KEPT_DELETED_SECONDS)
    await tidy(documents, PromptPurgeClock(clock))
    await storage.close()
    assert len(Counted.rows) > 40
    assert max(Counted.rows) <= MOST_ROWS
    assert max(Counted.bytes) <= MOST_BYTES
    assert sum(Counted.bytes) > 3_000_000, "all has been indexed"


@pytest.mark.slow
async def test_no_purge_frees_more_than_2000_rows_of_revisions_and_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    monkeypatch.setattr(sqlite_contents, "PIECE_LENGTH", 64)  # As if texts were a thousand times as long.
    monkeypatch.setattr(Counted, "rows", [])
    clock = ManualClock()
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), clock, MIGRATIONS)
    documents = storage.port(Documents)
    tree = Tree(documents)
    await tree.create("revised", body="\0" * 60_000)
    changes = (UpdateDocument(id="revised", fields={"content.body": f"{number}"}) for number in range(700))
    await asyncio.gather(*map(tree.do, changes))
    for number in range(5):
        await tree.create(f"large{number}", body=f"{number}" + "\0" * 60_000)
        await tree.delete(f"large{number}")
    await tree.delete("revised")
    await tidy(documents, PromptPurgeClock(clock))
    clock.advance(KEPT_DELETED_SECONDS)
    Counted.rows.clear()
    await tidy(documents, PromptPurgeClock(clock))
    assert await documents.usage(tree.tenant) == Usage(0, 0)
    await storage.close()
    assert len(Counted.rows) > 4
    assert sum(Counted.rows) > 6 * 900 + 700
    assert max(Counted.rows) <= MOST_ROWS


@pytest.mark.slow
async def test_a_text_that_is_deleted_meanwhile_is_indexed_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one process could add passages for as long as another one removes them."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    monkeypatch.setattr(Counted, "bytes", [])
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    tree = Tree(storage.port(Documents))
    await tree.create("a", body=large_text("word", 1_500))
    indexing = asyncio.create_task(storage.port(PassageIndex).catch_up(1))
    await until(lambda: sum(Counted.bytes))
    await tree.delete("a")
    Counted.bytes.clear()
    await indexing
    assert sum(Counted.bytes) == 0
    await storage.close()


@pytest.mark.slow
async def test_no_place_among_thousands_of_siblings_writes_more_than_2000_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    monkeypatch.setattr(Counted, "rows", [])
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    tree = Tree(storage.port(Documents))
    order = [f"d{number}" for number in range(2_500)]
    await asyncio.gather(*map(tree.create, order))
    Counted.rows.clear()
    moved = order[:2_000:2]
    for id in moved:
        await tree.move(id, ROOT, order[-1])
    order = [*(id for id in order[:-1] if id not in moved), *moved, order[-1]]
    assert await tree.ids() == order
    await storage.close()
    assert max(Counted.rows) < MOST_ROWS
    assert sum(Counted.rows) < 100 * len(moved), "few are moved for each"


@pytest.mark.slow
async def test_a_sibling_in_front_of_which_thousands_were_put_gets_room_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    monkeypatch.setattr(sqlite_documents, "_SPREAD", (2, 8, 32))
    monkeypatch.setattr(Counted, "rows", [])
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    tree = Tree(storage.port(Documents))
    order = [f"d{number}" for number in range(700)]
    await asyncio.gather(*map(tree.create, order))
    Counted.rows.clear()
    moved = order[:600]
    for id in moved:
        await tree.move(id, ROOT, order[-1])
    assert await tree.ids() == [*order[600:-1], *moved, order[-1]]
    await storage.close()
    assert max(Counted.rows) < 50
    assert len(Counted.rows) > len(moved) + 10, "there was no room at times"


async def test_another_type_of_a_large_text_reads_nothing_of_it_while_others_wait_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counted))
    read, checked, is_json = list[bool](), list[bool](), changing.is_json

    def read_text(connection: Any, number: int, most: int | None = None) -> str:
        read.append(isinstance(connection, Transaction))
        return sqlite_contents.read_text(connection, number, most)

    def check(body: str) -> bool:
        checked.append(threading.current_thread() is threading.main_thread())
        return is_json(body)

    monkeypatch.setattr(sqlite_documents, "read_text", read_text)
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    tree = Tree(storage.port(Documents))
    lists = f"[{'[],' * 100_000}[]]"
    await tree.create("a", body=lists)
    await tree.create("b", body=f"{lists}]")
    monkeypatch.setattr(changing, "is_json", check)
    for mime_type in ("application/json", "text/markdown", "application/json"):
        assert (await tree.do(UpdateDocument(id="a", fields={"content.mime_type": mime_type}))).is_unfinished
    with pytest.raises(InvalidArgument):
        await tree.do(UpdateDocument(id="b", fields={"content.mime_type": "application/json"}))
    assert (read, checked) == ([False] * 3, [False] * 3)
    assert ((await tree.get("a")).mime_type, (await tree.get("b")).mime_type) == ("application/json", "text/plain")
    await catch_up(storage.port(PassageIndex))
    await storage.close()


async def test_no_more_of_a_text_is_read_than_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def read_text(connection: Any, number: int, most: int | None = None) -> str:
        text = sqlite_contents.read_text(connection, number, most)
        read.append(len(text))
        return text

    monkeypatch.setattr(sqlite_contents, "PIECE_LENGTH", 1_000)
    monkeypatch.setattr(sqlite_documents, "MOST_CHARACTERS", 20_001)
    monkeypatch.setattr(sqlite_documents, "read_text", read_text)
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    await Tree(storage.port(Documents)).create("a", body="word " * 60_000)
    await catch_up(storage.port(PassageIndex))
    await storage.close()
    assert read == [21_000]


async def test_passages_of_a_large_text_are_hashed_while_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_of, threads = indexing._hash_of, set[str]()

    def noted(parts: tuple[object, ...]) -> bytes:
        threads.add(threading.current_thread().name)
        return hash_of(parts)

    monkeypatch.setattr(indexing, "_hash_of", noted)
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    await Tree(storage.port(Documents)).create("a", body=large_text("word", 300))
    await catch_up(storage.port(PassageIndex))
    await storage.close()
    assert threads
    assert not any(each.startswith("dragoman-writer") for each in threads)


async def test_words_of_a_large_text_are_not_looked_for_while_others_wait_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: Counter[str] = Counter()

    def noted(text: str) -> list[str]:
        if len(text) > 100:  # Others are titles.
            threads[threading.current_thread().name] += 1
        return all_words_in(text)

    monkeypatch.setattr(indexing, "all_words_in", noted)
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    await Tree(storage.port(Documents)).create("a", body=large_text("word", 600))
    await catch_up(storage.port(PassageIndex))
    await storage.close()
    assert threads.pop("dragoman-writer", 0) == 0
    assert threads.total() > 500


class Planned(sqlite3.Connection):
    """Counts how often all passages of a document are looked at, and pieces of it are indexed."""

    plans = 0
    pieces = 0

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        Planned.plans += statement.startswith("SELECT number, hash, length FROM passage")
        Planned.pieces += statement.lstrip().startswith("INSERT OR REPLACE INTO passage_document")
        return super().execute(statement, values)


@pytest.mark.slow
async def test_passages_of_a_large_text_are_compared_once_and_not_for_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Planned))
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    tree, index = Tree(storage.port(Documents)), storage.port(PassageIndex)
    await tree.create("a", body=large_text("first", 600))
    await catch_up(index)
    Planned.plans = Planned.pieces = 0
    await tree.do(UpdateDocument(id="a", fields={"content.body": large_text("second", 600)}))
    await catch_up(index)
    await storage.close()
    assert Planned.plans == 1
    assert Planned.pieces > 10


@pytest.mark.slow
async def test_two_processes_that_index_the_same_text_have_each_passage_once(tmp_path: Path) -> None:
    config = StorageConfig(data_dir=str(tmp_path))
    storages = [SqliteStorage(config, ManualClock(), MIGRATIONS) for _ in range(2)]
    indexes = [storage.port(PassageIndex) for storage in storages]
    tree = Tree(storages[0].port(Documents))
    await tree.create("a", body=large_text("first", 600))
    await asyncio.gather(*(index.catch_up(1) for index in indexes))
    await tree.do(UpdateDocument(id="a", fields={"content.body": large_text("second", 600)}))
    await asyncio.gather(*(index.catch_up(1) for index in indexes))
    query = PassageQuery(tenant=ACME, limit=PLENTY)
    found = [len(await indexes[1].by_words(query, word)) for word in ("first", "second")]
    for storage in storages:
        await storage.close()
    assert found == [0, len(passages_of("text/plain", large_text("second", 600)))]


class CountedWrites:
    """A database that counts how many large changes wait to be written, and how many small ones."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.waiting = [0, 0]
        self.most = [0, 0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, function: Any, weight: int = 1) -> Any:
        kind = int(weight > 500)
        self.waiting[kind] += 1
        self.most[kind] = max(self.most[kind], self.waiting[kind])
        try:
            return await self._database.write(function, weight)
        finally:
            self.waiting[kind] -= 1


async def test_a_tenant_has_one_large_change_wait_to_be_written_at_a_time(tmp_path: Path) -> None:
    storage = SqliteStorage(StorageConfig(data_dir=str(tmp_path)), ManualClock(), MIGRATIONS)
    documents: Any = storage.port(Documents)
    documents._database = writes = CountedWrites(documents._database)
    one, other = Tree(documents, ACME), Tree(documents, OTHER)
    await asyncio.gather(*(one.create(f"a{number}", body="x" * 100_000) for number in range(5)))
    assert writes.most == [0, 1]
    await asyncio.gather(*(one.create(f"b{number}") for number in range(5)))
    assert writes.most == [5, 1]
    await asyncio.gather(
        *(tree.delete(f"a{n}") for tree, n in ((one, 0), (one, 1))), other.create("c", body="y" * 100_000)
    )
    assert writes.most[1] <= 2
    refused = await asyncio.gather(*(one.delete("unknown") for _ in range(3)), return_exceptions=True)
    assert {type(each) for each in refused} == {NotFound}
    assert not documents._large._turns
    await storage.close()

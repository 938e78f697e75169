"""What only a database can get wrong about passages: the rows of the index, old databases, vectors in memory."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from dragoman.adapters import sqlite_passage_rows, sqlite_passages
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.adapters.vector_cache import VectorCache, VectorRow, best
from dragoman.knowledge.index import PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.indexing import CountedWords, entries_of
from dragoman.knowledge.migrations import MIGRATIONS
from dragoman.knowledge.part import catch_up
from dragoman.knowledge.port import ROOT, Documents, UpdateDocument
from dragoman.search.ranking import posting
from dragoman.storage.settings import StorageConfig
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, Tree, titled
from tests.support.large_texts import large_text
from tests.support.passage_rows import problems_with_passages

MODEL = "test"
QUERY = PassageQuery(tenant=ACME, limit=10)


def storage_in(folder: Path, migrations: int = len(MIGRATIONS)) -> SqliteStorage:
    return SqliteStorage(StorageConfig(data_dir=str(folder)), ManualClock(), MIGRATIONS[:migrations])


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SqliteStorage]:
    storage = storage_in(tmp_path)
    yield storage
    await storage.close()


def problems_in(folder: Path) -> list[str]:
    connection = sqlite3.connect(folder / FILE_NAME)
    try:
        return problems_with_passages(connection)
    finally:
        connection.close()


# The rows.


async def _change_something(chance: random.Random, tree: Tree, ids: list[str]) -> None:
    kind = chance.choice(("create", "create", "body", "body", "title", "tags", "move", "delete"))
    words = " ".join(chance.choices(["alpha", "beta", "gamma", "delta", "epsilon"], k=chance.randint(0, 300)))
    body = f"{words}\n\n# {kind}\n\nend {chance.random()}"
    tags = tuple(chance.choices("xyz", k=chance.randint(0, 2)))
    if kind == "create" or not ids:
        ids.append(f"d{chance.random()}")
        await tree.create(ids[-1], chance.choice([ROOT, *ids[:-1]]), body=body, mime_type="text/markdown", tags=tags)
        return
    id = chance.choice(ids)
    if kind == "delete":
        await tree.delete(id)
        ids[:] = [each for each in ids if await tree.is_there(each)]
    elif kind == "move":
        await tree.move(id)
    elif kind == "title":
        await tree.do(titled(id, f"Title {chance.random()}"))
    else:
        value = {"body": ("content.body", body), "tags": ("metadata.tags", tags)}[kind]
        await tree.do(UpdateDocument(id=id, fields=dict([value])))


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_changes_the_rows_are_those_of_the_documents(
    storage: SqliteStorage, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    trees = {name: (Tree(storage.port(Documents), name), list[str]()) for name in (ACME, OTHER)}
    vectors = storage.port(PassageVectors)
    for number in range(80):
        await _change_something(chance, *trees[chance.choice((ACME, OTHER))])
        if number % 10 == 0:
            wanted = await vectors.wanted(MODEL, chance.randint(0, 20))
            await vectors.put(MODEL, {each.number: struct.pack("<2f", 1, 0) for each in wanted})
    assert problems_in(tmp_path) == []
    assert (await vectors.status(MODEL)).with_vector > 0
    for tree, ids in trees.values():
        for id in ids:
            if await tree.is_there(id):
                await tree.delete(id)
    assert problems_in(tmp_path) == []


async def test_numbers_start_over_when_a_document_has_used_them_all(
    storage: SqliteStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_passage_rows, "MOST_MADE", 7)
    tree, index = Tree(storage.port(Documents)), storage.port(PassageIndex)
    await tree.create("a", body="first")
    for number in range(20):
        paragraphs = ["stays " + "filler " * 105, f"edit{number} " + "filler " * 105]
        await tree.do(UpdateDocument(id="a", fields={"content.body": "\n\n".join(paragraphs)}))
        assert len(await index.by_words(QUERY, f"edit{number} stays")) == 2
        assert problems_in(tmp_path) == []


async def test_a_wrong_row_would_be_noticed(storage: SqliteStorage, tmp_path: Path) -> None:
    await Tree(storage.port(Documents)).create("a", body="words", tags=("x",))
    for statement in (
        "DELETE FROM passage",
        "INSERT INTO passage_term (rowid, terms) VALUES (9, '00000001more')",
        "UPDATE passage_tenant SET words = words + 1",
        "DELETE FROM passage_tag",
        "INSERT INTO passage_vector (model, tenant, passage, vector) VALUES (1, 1, 1, '')",
    ):
        connection = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        connection.execute("BEGIN")
        connection.execute(statement)
        assert len(problems_with_passages(connection)) >= 1, statement
        connection.close()


async def test_the_documents_of_an_older_database_are_indexed_step_by_step(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    storage = storage_in(tmp_path)
    await Tree(storage.port(Documents)).create("other")
    await storage.close()
    # As it was before: documents, and none of the tables of passages.
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'passage%'")]
    tables = [each for each in names if "_term_" not in each and not each.endswith("of_tenant")]
    for name in ("passage_term_count", *tables):
        connection.execute(f"DROP TABLE {name}")
    connection.execute("DELETE FROM migration WHERE part = 'knowledge' AND version IN (2, 4, 7, 8, 10)")
    row = "INSERT INTO document SELECT NULL, tenant, ?, parent, 0, 1, title, mime_type, '[\"x\"]', NULL, NULL, 1, 0, 0, NULL, ?, ?, NULL, 0 FROM document WHERE id = 'other'"  # noqa: E501
    for number in range(25):
        connection.execute(row, (f"d{number}", 1.0 if number == 7 else None, f"needle number{number}"))
    connection.commit()
    connection.close()
    storage = storage_in(tmp_path)
    index, tree = storage.port(PassageIndex), Tree(storage.port(Documents))
    assert await index.by_words(QUERY, "needle") == []
    await tree.do(UpdateDocument(id="d1", fields={"content.body": "needle changed"}))
    await tree.do(UpdateDocument(id="d2", fields={"metadata.tags": ()}))
    await tree.move("d3", "d4")
    await tree.delete("d5")
    assert (await index.by_words(QUERY, "needle"), await index.unindexed(ACME)) == ([], 24)
    assert await catch_up(index) == {"indexed": 24}
    assert await catch_up(index) == {"indexed": 0}
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    for number in range(3):
        connection.execute(row, (f"long{number}", None, "word " * 40_000))
    connection.execute("INSERT INTO passage_missing SELECT tenant, 0, number, 0 FROM document WHERE id LIKE 'long%'")
    connection.commit()
    connection.close()
    assert [await index.catch_up(10) for _ in range(3)] == [2, 1, 0], "others can write in between"
    assert len(await index.by_words(PassageQuery(tenant=ACME, limit=99, tags=frozenset("x")), "needle")) == 22
    assert len(await index.by_words(PassageQuery(tenant=ACME, limit=99), "number7")) == 0
    await storage.close()
    assert problems_in(tmp_path) == []


def index_with_titles(connection: sqlite3.Connection, number: int, title: str, body: str) -> None:
    """A document of tenant 1 with the passages of version 7, each of which has the words of the title."""
    times = number, ACME, f"d{number}", ROOT, number, 1, title, "text/plain", "[]", None, None, 1, 0.0, 0.0, None, None
    connection.execute(f"INSERT INTO document VALUES ({', '.join('?' * 18)})", (*times, body, None))
    entries = entries_of("text/plain", body)
    connection.execute("INSERT INTO passage_document VALUES (?, 1, ?)", (number, len(entries)))
    for place, entry in enumerate(entries, number << 25):
        words = CountedWords.of(f"{title}\n{entry.passage.text}")
        row = place, entry.hash_with(title), words.length, "[]", words.lines, entry.passage.text
        connection.execute("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?)", row)
        for count, line in enumerate(words.lines.split("\n"), 1):
            terms = " ".join(f"00000001{word}" for word in line.split())
            if terms:
                indexed = posting(place, count, words.length), terms
                connection.execute("INSERT INTO passage_term (rowid, terms) VALUES (?, ?)", indexed)
        vector = struct.pack("<2f", 1, 0)
        connection.execute("INSERT INTO passage_vector VALUES (NULL, 1, 1, ?, ?)", (place, vector))
        change = "UPDATE passage_tenant SET passages = passages + 1, words = words + ?"
        connection.execute(change, (words.length,))


@pytest.mark.slow
async def test_passages_with_their_titles_stay_found_and_keep_their_vectors_while_they_are_converted(
    tmp_path: Path,
) -> None:
    before = storage_in(tmp_path, 7)
    await before.port(Documents).get(ACME, "any")
    await before.close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("INSERT INTO passage_tenant VALUES (1, ?, 0, 0)", (ACME,))
    connection.execute("INSERT INTO passage_model (number, name) VALUES (1, ?)", (MODEL,))
    texts = ["needle", large_text("needle", 150), large_text("needle", 600), "needle changed", ""]
    for number, text in enumerate(texts, 1):
        index_with_titles(connection, number, f"Title number{number} alpha", text)
    connection.commit()
    connection.close()
    storage = storage_in(tmp_path)
    index, vectors, tree = storage.port(PassageIndex), storage.port(PassageVectors), Tree(storage.port(Documents))

    async def found(word: str) -> dict[int, float]:
        return {hit.number: hit.score for hit in await index.by_words(PassageQuery(tenant=ACME, limit=9_999), word)}

    earlier, texts_with_number = await found("alpha"), await found("needle")
    assert (len(earlier), await index.unindexed(ACME)) == (1 + 204 + 816 + 1 + 1, 0)
    await tree.do(titled("d4", "Beta"))
    assert (await index.unindexed(ACME), 4 << 25 in await found("alpha")) == (1, False)
    assert await catch_up(index) == {"indexed": 5}
    assert {*await found("alpha")} == {number for number in earlier if number >> 25 != 4}
    assert {number for number in await found("needle") if number >> 25 != 4} == {
        number for number in texts_with_number if number >> 25 != 4
    }
    assert len(await found("beta")) == 1
    assert (await vectors.status(MODEL)).with_vector == len(earlier) - 2
    assert (await vectors.status(MODEL)).passages == len(earlier)
    await tree.do(titled("d3", "Gamma"))
    assert (len(await found("gamma")), len(await found("alpha"))) == (816, 1 + 204 + 1)
    await storage.close()
    assert problems_in(tmp_path) == []


def test_what_wanted_vectors_wants_them_still_by_tenant() -> None:
    connection = sqlite3.connect(":memory:")
    for each in MIGRATIONS[:3]:
        connection.executescript(each.script)
    connection.execute("INSERT INTO passage_document VALUES (3, 7, 2), (4, 8, 1)")
    connection.executemany("INSERT INTO passage_wanted VALUES (?, ?)", [(1, 3 << 25), (1, 4 << 25), (2, 3 << 25 | 1)])
    connection.executescript(MIGRATIONS[3].script)
    rows = connection.execute("SELECT model, tenant, passage, put_off_until FROM passage_wanted").fetchall()
    assert rows == [(1, 7, 3 << 25, 0), (1, 8, 4 << 25, 0), (2, 7, 3 << 25 | 1, 0)]
    connection.close()


# Vectors in memory.

ROW_BYTES = 24


def rows_of(*numbers: int) -> list[VectorRow]:
    return [(number, number, struct.pack("<2f", number / 1000, 0)) for number in numbers]


class Table:
    """Rows, and how many of them were read."""

    def __init__(self, rows: Iterable[VectorRow]) -> None:
        self.rows = [*rows]
        self.read = 0

    def __call__(self, last: int) -> Iterable[VectorRow]:
        for row in self.rows:
            if row[0] > last:
                self.read += 1
                yield row

    def found(self, cache: VectorCache, tenant: int = 1, limit: int = 3) -> list[int]:
        scores = cache.scores((tenant, 1, 8), struct.pack("<2f", 1, 0), self, len(self.rows))
        return [number for number, _ in best(scores, limit, lambda _: slice(None), lambda numbers: numbers)]


def test_only_what_was_stored_since_is_read() -> None:
    cache, table = VectorCache(1 << 20), Table(rows_of(*range(1, 501)))
    assert table.found(cache) == [500, 499, 498]
    assert table.found(cache) == [500, 499, 498]
    assert table.read == 500
    for number in range(501, 1501):
        table.rows += rows_of(number)
        assert table.found(cache, limit=1) == [number]
    assert table.read == 1500
    assert cache.count((1, 1, 8)) == 1500


def test_the_bytes_are_bounded_and_what_does_not_fit_is_read_each_time() -> None:
    cache, table = VectorCache(100 * ROW_BYTES), Table(rows_of(*range(1, 9001)))
    assert table.found(cache) == [9000, 8999, 8998]
    assert cache.used_bytes == 100 * ROW_BYTES
    assert table.found(cache) == [9000, 8999, 8998]
    assert table.read == 9000 + 8900
    assert Table(rows_of(1, 2)).found(VectorCache(0)) == [2, 1]


def test_the_tenant_that_was_not_searched_for_the_longest_time_is_dropped() -> None:
    cache = VectorCache(250 * ROW_BYTES)
    tables = {tenant: Table(rows_of(*range(1, 101))) for tenant in (1, 2, 3)}
    for tenant in (1, 2, 1, 3, 1):
        assert tables[tenant].found(cache, tenant) == [100, 99, 98]
    assert [table.read for table in tables.values()] == [100, 100, 100]
    assert cache.used_bytes == 200 * ROW_BYTES
    assert tables[2].found(cache, 2) == [100, 99, 98]
    assert [table.read for table in tables.values()] == [100, 200, 100]
    cache.forget((1, 1, 8))
    cache.forget((1, 1, 8))
    assert cache.used_bytes == 100 * ROW_BYTES


def test_what_is_gone_is_passed_over_until_enough_is_found() -> None:
    cache, table = VectorCache(1 << 20), Table(rows_of(*range(1, 301)))
    scores = cache.scores((1, 1, 8), struct.pack("<2f", 1, 0), table)
    found = best(scores, 2, lambda _: slice(None), lambda numbers: {each for each in numbers if each < 100})
    assert found == [(99, 0.099), (98, 0.098)]


async def test_vectors_that_are_gone_do_not_stay_in_memory_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_passages, "_MORE_KEPT", 10)
    caches: list[VectorCache] = []
    monkeypatch.setattr(sqlite_passages, "VectorCache", lambda size: caches.append(VectorCache(size)) or caches[0])
    storage = storage_in(tmp_path)
    tree, index, vectors = Tree(storage.port(Documents)), storage.port(PassageIndex), storage.port(PassageVectors)
    await tree.create("a", title="t", body="first")
    for number in range(60):
        await tree.do(UpdateDocument(id="a", fields={"content.body": f"edit {number}"}))
        (wanted,) = await vectors.wanted(MODEL, 10)
        await vectors.put(MODEL, {wanted.number: struct.pack("<2f", 1, 0)})
        assert [hit.number for hit in await index.by_vector(QUERY, MODEL, struct.pack("<2f", 1, 0))] == [wanted.number]
        assert caches[0].count((1, 1, 8)) <= 13
    await storage.close()

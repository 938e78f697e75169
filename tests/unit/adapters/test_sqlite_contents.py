"""Documents of databases from before texts were kept once: they are read as before, and converted a few at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_documents import SqliteDocuments
from dragoman.knowledge.migrations import MIGRATIONS
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    PIECE_LENGTH,
    ROOT,
    CreateDocument,
    Document,
    Documents,
    UpdateDocument,
)
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, Tree, draft, titled

NEW = "acne"
"""As long as the other tenant's name: their documents weigh the same."""
LONG = "paragraph " * 20_000
TEXTS = {"a": [LONG, LONG, f"{LONG}x"], "b": [LONG], "c": ["", "é\0"], "gone": ["gone", LONG]}
_DOCUMENT = "INSERT INTO document VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, '[]', NULL, NULL, 1, ?, ?, NULL, ?, ?)"
_REVISION = "INSERT INTO document_revision VALUES (?, ?, ?, ?, 'knowledge.update_document', 'ada', ?)"


@contextmanager
def connected(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        yield connection


def states_of(id: str, tenant: str) -> list[Document]:
    """A document as it stood at each of its revisions."""
    return [
        replace(draft(id, tenant=tenant, body=text), revision=number, title=f"Title {number}", place=len(id))
        for number, text in enumerate(TEXTS[id], 1)
    ]


async def make_old(folder: Path, now: float) -> None:
    """A database as earlier versions made it."""
    database = SqliteDatabase(folder / FILE_NAME, MIGRATIONS[:4])
    await database.read(lambda connection: None)
    await database.close()
    with connected(folder) as connection:
        for place, id in enumerate(TEXTS):
            states = [replace(each, place=place) for each in states_of(id, ACME)]
            if id == "gone":
                states[-1] = replace(states[-1], deleted_at=now)
            last = states[-1]
            values = last.tenant, id, ROOT, place, last.revision, last.title, last.mime_type
            connection.execute(_DOCUMENT, (*values, 5.0, 5.0, last.deleted_at, last.body))
            for each in states:
                connection.execute(_REVISION, (ACME, id, each.revision, 5.0, msgspec.json.encode(each)))
        connection.commit()


def stored_bytes(folder: Path) -> int:
    """The texts in a database, wherever they are."""
    with connected(folder) as connection:
        (size,) = connection.execute(
            "SELECT (SELECT total(length(CAST(text AS BLOB))) FROM document_piece)"
            " + (SELECT total(length(document)) FROM document_revision)"
            " + (SELECT total(length(CAST(body AS BLOB))) FROM document)"
        ).fetchone()
    return int(size)


async def told(documents: Documents) -> dict[str, object]:
    """Everything that can be read of the documents."""
    found: dict[str, object] = {ROOT: await documents.children(ACME, ROOT, 99)}
    for id in TEXTS:
        history = await documents.history(ACME, id, 99)
        found[id] = (
            await documents.get(ACME, id),
            await documents.outline(ACME, id) if "\0" not in TEXTS[id][-1] else None,
            history,
            [await documents.revision(ACME, id, each.document.revision) for each in history],
        )
    return found


@pytest.mark.slow
async def test_documents_of_an_older_database_are_the_same_before_and_after_they_are_converted(tmp_path: Path) -> None:
    clock = ManualClock()
    await make_old(tmp_path, clock.now().timestamp())
    database = SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS)
    documents = SqliteDocuments(database, clock)
    before = await told(documents)
    assert [each.document.body for each in before["a"][3]] == TEXTS["a"][::-1]  # type: ignore[index]
    assert (await documents.usage(ACME)).documents == 3
    steps, large = [], stored_bytes(tmp_path)
    while step := await documents.convert(3):
        steps.append(step)
        assert await told(documents) == before
    assert steps == [3, 3, 3, 3, 1], "eight revisions, four documents, and a last look"
    assert large > 8 * len(LONG)
    assert stored_bytes(tmp_path) < 2.1 * len(LONG)
    usage = await documents.usage(ACME)
    assert usage.size == pytest.approx(await size_of_the_same(documents), abs=200)
    tree = Tree(documents)
    await tree.do(titled("b", "New"))
    for id in "abc":
        await tree.delete(id)
    clock.advance(KEPT_DELETED_SECONDS)
    while await documents.tidy(99):
        pass
    assert (await documents.usage(ACME)).size == 0
    await database.close()


async def test_a_revision_whose_text_is_read_in_pieces_is_converted_first(tmp_path: Path) -> None:
    clock = ManualClock()
    await make_old(tmp_path, clock.now().timestamp())
    database = SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS)
    documents = SqliteDocuments(database, clock)
    pieces = [await documents.piece(ACME, "a", 2, at) for at in range(5)]
    assert pieces == [LONG[at * PIECE_LENGTH :][:PIECE_LENGTH] for at in range(5)]
    size = (await documents.usage(ACME)).size
    assert len(LONG) < size < len(LONG) + 2_000
    assert await documents.piece(ACME, "c", 1, 0) == ""
    before = await told(documents)
    while await documents.convert(1):
        pass
    assert await told(documents) == before
    assert (await documents.usage(ACME)).size < 3 * len(LONG)
    await database.close()


async def size_of_the_same(documents: Documents) -> int:
    """What another tenant keeps that makes the same documents now."""
    tree = Tree(documents, NEW)
    for id in TEXTS:
        first, *rest = states_of(id, NEW)
        await tree.do(CreateDocument(document=first))
        for each in rest:
            fields = {"metadata.title": each.title, "content.body": each.body}
            await tree.do(UpdateDocument(id=id, fields=fields))
    return (await documents.usage(NEW)).size


@pytest.mark.slow
async def test_documents_can_be_changed_before_they_are_converted(tmp_path: Path) -> None:
    clock = ManualClock()
    await make_old(tmp_path, clock.now().timestamp())
    database = SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS)
    documents = SqliteDocuments(database, clock)
    tree = Tree(documents)
    await tree.do(titled("a", "New"))
    await tree.move("b", "a")
    await tree.do(UpdateDocument(id="c", fields={"content.mime_type": "text/markdown"}))
    await tree.do(UpdateDocument(id="c", fields={"content.body": ""}))
    for _ in range(2):
        assert [(await tree.get(id)).body for id in "abc"] == [TEXTS["a"][-1], LONG, ""]
        numbers = [(id, number) for id, count in (("a", 4), ("b", 2), ("c", 4)) for number in range(1, count + 1)]
        kept = [await documents.revision(ACME, *each) for each in numbers]
        texts = [each.document.body for each in kept if each]
        assert texts == [*TEXTS["a"], TEXTS["a"][-1], LONG, LONG, *TEXTS["c"], "é\0", ""]
        while await documents.convert(1):
            pass
    await database.close()


async def test_a_change_of_a_title_does_not_store_the_text_again(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS)
    tree = Tree(SqliteDocuments(database, ManualClock()))
    await tree.create("a", body=LONG)
    before = stored_bytes(tmp_path)
    for number in range(8):
        await tree.do(titled("a", f"Title {number}"))
    assert stored_bytes(tmp_path) < before + 8 * 1_000
    await database.close()

"""The contract of `Documents` and `PassageIndex`, for every engine: large trees go at once."""

from __future__ import annotations

import struct

import pytest

from dragoman.errors import NotFound
from dragoman.knowledge.index import PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    ROOT,
    Audit,
    CreateDocument,
    DeleteDocument,
    DocumentChange,
    Documents,
    MoveDocument,
)
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, draft, titled
from tests.support.large_texts import large_text

NOW = ManualClock().now().timestamp()
MODEL = "test-2"
VECTOR = struct.pack("<2f", 1.0, 0.0)
QUERY = PassageQuery(tenant=ACME, limit=10)
pytestmark = [pytest.mark.slow, pytest.mark.requirement("MC-DELETE-02")]


@pytest.fixture
def documents(storage: Storage) -> Documents:
    return storage.port(Documents)


@pytest.fixture
async def tree(documents: Documents) -> Tree:
    """With a document `a`, and below it more than one transaction deletes."""
    tree = Tree(documents)
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("d", "a")):
        await tree.create(id, parent, body=large_text("needle") if id in "bd" else "needle")
    await tree.create("stays", body="needle")
    return tree


async def finish(documents: Documents) -> None:
    while await documents.tidy(PLENTY):
        pass


async def deleted(audit: Audit) -> list[tuple[str, str, object]]:
    """The events about deletions, the oldest first, with the counts that they have."""
    events = (await audit.page(100))[::-1]
    kinds = "document.deleted", "document.removed"
    return [(each.event, each.subject, each.details.get("documents")) for each in events if each.event in kinds]


async def test_all_below_a_deleted_document_is_gone_for_every_door_before_its_rows_are(
    storage: Storage, tree: Tree, documents: Documents
) -> None:
    index, vectors = storage.port(PassageIndex), storage.port(PassageVectors)
    wanted = await vectors.wanted(MODEL, PLENTY)
    await vectors.put(MODEL, {each.number: VECTOR for each in wanted[:-1]})
    numbers = [each.number for each in wanted]
    applied = await tree.delete("a")
    assert (applied.data, applied.is_unfinished) == ({"id": "a", "revision": 2, "deleted": True}, True)
    assert [await tree.is_there(id) for id in "abcd"] == [False] * 4
    assert [await tree.ids(parent) for parent in (ROOT, "a", "b")] == [["stays"], [], []]
    found = await index.read(ACME, numbers)
    assert {each.document_id for each in found} == {"stays"}
    assert [hit.number for hit in await index.by_words(QUERY, "needle")] == [found[0].number]
    assert [hit.number for hit in await index.by_vector(QUERY, MODEL, VECTOR)] in ([], [found[0].number])
    assert len(await vectors.wanted("other", PLENTY)) == 1, "no text of what is gone is embedded"
    changes: list[DocumentChange] = [CreateDocument(document=draft("new", gone)) for gone in "abcd"]
    changes += [titled("c", "New"), DeleteDocument(id="c"), MoveDocument(id="c", parent=ROOT)]
    changes += [MoveDocument(id="stays", parent="c")]
    for change in changes:
        with pytest.raises(NotFound):
            await tree.do(change)


async def test_the_rows_follow_and_what_follows_is_counted(
    storage: Storage, tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    audit, vectors = storage.port(Audit), storage.port(PassageVectors)
    await tree.delete("a")
    assert await deleted(audit) == [("document.deleted", "a", None)]
    await finish(documents)
    assert await deleted(audit) == [("document.deleted", "a", None), ("document.removed", "a", 4)]
    assert (await vectors.status(MODEL, ACME)).passages == 1
    clock.advance(KEPT_DELETED_SECONDS)
    assert await documents.tidy(PLENTY) == 4
    await tree.create("c")


async def test_no_document_is_purged_while_rows_below_it_are_left(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    await tree.delete("a")
    clock.advance(KEPT_DELETED_SECONDS + 1)
    await documents.tidy(1)
    assert not await tree.is_there("d")
    await finish(documents)
    for id in "abcd":
        await tree.create(id)


async def test_what_was_due_before_the_document_above_was_deleted_keeps_its_time_and_its_event(
    storage: Storage, tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    await tree.delete("b", NOW + 10)
    clock.advance(20)
    await tree.delete("a")
    await finish(documents)
    assert sorted(await deleted(storage.port(Audit)), key=str) == [
        ("document.deleted", "a", None),
        ("document.deleted", "b", 2),
        ("document.removed", "a", 2),
    ]
    clock.advance(KEPT_DELETED_SECONDS - 10)
    assert await documents.tidy(PLENTY) == 2  # `a` and `d` were deleted ten seconds later.
    await tree.create("c")


async def test_a_tenant_with_much_to_delete_does_not_hold_up_another_one(
    storage: Storage, tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    other = Tree(documents, OTHER)
    await tree.create("e", "a", body=large_text("needle"))
    await tree.create("f", "a", body=large_text("needle"))
    await other.create("o")
    await other.delete("o", NOW + 10)
    await tree.delete("a")
    clock.advance(10)
    await documents.tidy(1)
    assert ("document.deleted", "o", 1) in await deleted(storage.port(Audit))
    assert ("document.removed", "a", 6) not in await deleted(storage.port(Audit))


async def test_no_read_writes(storage: Storage, tree: Tree, documents: Documents, clock: ManualClock) -> None:
    await tree.delete("a", NOW + 10)
    clock.advance(10)
    noted = await storage.port(Audit).page(100)
    await tree.ids()
    assert not await tree.is_there("c")
    assert len(await storage.port(PassageIndex).by_words(QUERY, "needle")) == 1
    assert await storage.port(Audit).page(100) == noted
    assert (await storage.port(PassageVectors).status(MODEL, ACME)).passages > 100
    await finish(documents)
    assert (await deleted(storage.port(Audit)))[-1] == ("document.deleted", "a", 4)

"""The limits of documents, for every engine: what one may have, how deep a tree may be, and what a tenant may keep."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import Conflict, InvalidArgument, QuotaExceeded
from dragoman.knowledge import changing
from dragoman.knowledge.changing import LONGEST_LINE, LONGEST_TAG, MOST_DEPTH, MOST_TAGS
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    ROOT,
    CreateDocument,
    DeleteDocument,
    DocumentChange,
    DocumentQuota,
    Documents,
    MoveDocument,
    UpdateDocument,
    Usage,
)
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, draft, titled

LONG, LONG_TAG = "é" * (LONGEST_LINE // 2), "é" * (LONGEST_TAG // 2)


@pytest.fixture
def documents(storage: Storage) -> Documents:
    return storage.port(Documents)


@pytest.fixture
def tree(documents: Documents) -> Tree:
    return Tree(documents)


async def chain(tree: Tree, name: str, length: int, parent: str = ROOT) -> None:
    """Documents `<name>1` to `<name><length>`, each below the one before."""
    for number in range(1, length + 1):
        await tree.create(f"{name}{number}", parent)
        parent = f"{name}{number}"


def refused_at(error: pytest.ExceptionInfo[InvalidArgument]) -> tuple[str, str]:
    details = error.value.details or {}
    return details["errors"][0]["path"], details["reason"]


@pytest.mark.parametrize(
    ("name", "most", "more"),
    [
        ("title", LONG, f"{LONG}x"),
        ("source", LONG, f"{LONG}x"),
        ("last_editor", LONG, f"{LONG}x"),
        ("tags", (LONG_TAG,) * MOST_TAGS, ("t",) * (MOST_TAGS + 1)),
        ("tags", (LONG_TAG,), (f"{LONG_TAG}x",)),
    ],
)
async def test_what_a_document_is_described_by_has_a_largest_size(tree: Tree, name: str, most: Any, more: Any) -> None:
    path, is_given = f"metadata.{name}", name != "last_editor"
    if is_given:
        with pytest.raises(InvalidArgument) as error:
            await tree.create("a", **{name: more})
        assert refused_at(error) == (path, "too_large")
    await tree.create("a", **({name: most} if is_given else {}))
    if name != "source":
        with pytest.raises(InvalidArgument) as error:
            await tree.do(UpdateDocument(id="a", fields={path: more}))
        assert refused_at(error) == (path, "too_large")
        await tree.do(UpdateDocument(id="a", fields={path: most}))
    assert getattr(await tree.get("a"), name) == most


async def test_a_description_from_before_the_limits_stays_until_it_is_changed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"title": f"{LONG}x", "tags": ("t",) * 200}
    with monkeypatch.context() as patch:
        patch.setattr(changing, "LONGEST_LINE", 10 * LONGEST_LINE)
        patch.setattr(changing, "MOST_TAGS", 10 * MOST_TAGS)
        await tree.create("a", **old)
    await tree.do(UpdateDocument(id="a", fields={"content.body": "New"}))
    kept = await tree.get("a")
    assert (kept.title, kept.tags, kept.body) == (old["title"], old["tags"], "New")
    with pytest.raises(InvalidArgument):
        await tree.do(UpdateDocument(id="a", fields={"metadata.title": f"{LONG}y"}))
    await tree.do(UpdateDocument(id="a", fields={"metadata.title": "Short", "metadata.tags": None}))


@pytest.mark.slow
async def test_a_list_of_large_descriptions_comes_a_few_at_a_time(
    tree: Tree, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "LONGEST_LINE", 1_000_000)  # As for documents from before there was a limit.
    for number in range(9):
        await tree.create(f"d{number}", source="s" * 999_999)
        editor = f"{number}" + "e" * 999_999
        await tree.do(UpdateDocument(id="d0", fields={"metadata.last_editor": editor[:1_000_000]}))
    found, after = [await documents.children(ACME, ROOT, PLENTY)], [await documents.history(ACME, "d0", PLENTY)]
    while page := await documents.children(ACME, ROOT, PLENTY, after=found[-1][-1].place):
        found.append(page)
    while kept := await documents.history(ACME, "d0", PLENTY, before=after[-1][-1].document.revision):
        after.append(kept)
    assert [each.id for page in found for each in page] == [f"d{number}" for number in range(9)]
    assert [each.document.revision for page in after for each in page] == [*range(10, 0, -1)]
    assert max(map(len, (*found, *after))) <= 5


async def test_a_tree_is_at_most_so_deep(tree: Tree) -> None:
    await chain(tree, "a", MOST_DEPTH)
    with pytest.raises(InvalidArgument) as error:
        await tree.create("lower", f"a{MOST_DEPTH}")
    assert refused_at(error) == ("parent_id", "too_deep")
    await chain(tree, "b", 3)
    await tree.create("b4", "b2")
    for parent, is_taken in ((MOST_DEPTH - 2, False), (MOST_DEPTH, False), (MOST_DEPTH - 3, True)):
        if is_taken:
            await tree.move("b1", f"a{parent}")
            continue
        with pytest.raises(InvalidArgument) as error:
            await tree.move("b1", f"a{parent}")
        assert refused_at(error) == ("new_parent_id", "too_deep")
    await tree.delete("b3")
    await tree.move("b4", f"a{MOST_DEPTH - 1}")
    assert await tree.way_up("b4") == ["b4", *(f"a{number}" for number in range(MOST_DEPTH - 1, 0, -1))]


async def test_the_depth_of_what_is_moved_is_that_of_what_is_below_it_by_then(tree: Tree) -> None:
    await chain(tree, "a", MOST_DEPTH - 3)
    lowest = f"a{MOST_DEPTH - 3}"
    await chain(tree, "b", 2)
    await chain(tree, "c", 3)

    async def is_movable() -> bool:
        try:
            await tree.move("b1", lowest)
        except InvalidArgument:
            return False
        await tree.move("b1")
        return True

    assert await is_movable()
    await tree.move("c1", "b1")
    assert not await is_movable()
    await tree.move("c2")
    assert await is_movable()
    await tree.move("c2", "b2")
    assert not await is_movable()
    await tree.delete("c3")
    assert await is_movable()


@pytest.mark.slow
async def test_a_deeper_tree_from_before_the_limit_can_be_read_and_moved_up(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(changing, "MOST_DEPTH", 10 * MOST_DEPTH)
        await chain(tree, "a", MOST_DEPTH + 20)
    lowest = f"a{MOST_DEPTH + 20}"
    assert len(await tree.way_up(lowest)) == MOST_DEPTH + 20
    await tree.do(UpdateDocument(id=lowest, fields={"metadata.title": "New"}))
    await chain(tree, "b", 20)
    with pytest.raises(InvalidArgument):
        await tree.move("a20", "b20")
    await tree.move("a3", "a1")  # One level up; it is still too deep.
    with pytest.raises(InvalidArgument):
        await tree.move("a3", "a2")
    await tree.move("a15", ROOT)
    await tree.delete(lowest)


# What a tenant may keep.


class Limited(Tree):
    """The documents of a tenant with a quota."""

    quota: DocumentQuota = DocumentQuota(3, 100_000)

    async def do(self, change: DocumentChange, **fields: Any) -> Any:
        return await super().do(change, quota=self.quota, **fields)


def quota_in(error: pytest.ExceptionInfo[QuotaExceeded]) -> tuple[str, int, int]:
    details = error.value.details or {}
    assert (details["reason"], details["retryable"]) == ("document_quota", False)
    assert details["setting"] == f"knowledge.{details['quota']}"
    return details["quota"], details["limit"], details["actual"]


async def test_a_tenant_has_at_most_so_many_documents_and_deleted_ones_do_not_count(documents: Documents) -> None:
    tree = Limited(documents)
    await chain(tree, "a", 3)
    before = await documents.usage(ACME)
    with pytest.raises(QuotaExceeded) as error:
        await tree.create("b")
    assert quota_in(error) == ("documents_per_tenant", 3, 4)
    assert await documents.usage(ACME) == before
    assert not await tree.is_there("b")
    await Limited(documents, OTHER).create("b")
    await tree.do(titled("a1", "New"))
    await tree.delete("a2")
    await chain(tree, "b", 2)
    with pytest.raises(QuotaExceeded):
        await tree.create("c")


async def test_beyond_its_bytes_a_tenant_can_delete_and_move_and_nothing_else(
    documents: Documents, clock: ManualClock
) -> None:
    tree = Limited(documents, quota=DocumentQuota(99, 100_000))
    for id in "ab":
        await tree.create(id, body=id * 45_000)
    before = await documents.usage(ACME)
    text = "c" * 20_000
    refused: list[DocumentChange] = [
        CreateDocument(document=draft("c", body=text)),
        UpdateDocument(id="a", fields={"content.body": text}),
    ]
    for change in refused:
        with pytest.raises(QuotaExceeded) as error:
            await tree.do(change)
        quota, limit, actual = quota_in(error)
        assert (quota, limit) == ("document_bytes_per_tenant", 100_000)
        assert before.size + 20_000 < actual < before.size + 22_000
    assert await documents.usage(ACME) == before
    await tree.create("c", body="b" * 45_000)  # The tenant has this text.
    with pytest.raises(Conflict):
        await tree.do(UpdateDocument(id="a", fields={"content.body": text}, last_known_revision=9))
    full = Limited(documents, quota=DocumentQuota(1, before.size - 1))
    for change in (titled("a", "New"), CreateDocument(document=draft("d"))):
        with pytest.raises(QuotaExceeded):
            await full.do(change)
    await full.move("b", "a")
    await full.delete("c", clock.now().timestamp() + 60)
    await full.delete("a")
    assert (await documents.usage(ACME)).documents == 1
    clock.advance(KEPT_DELETED_SECONDS)
    while await documents.tidy(PLENTY):
        pass
    await tree.create("e", body="e" * 45_000)


async def test_moves_and_deletions_put_off_do_not_go_on_without_end(documents: Documents, clock: ManualClock) -> None:
    tree = Tree(documents)
    await tree.create("a", body="x" * 20_000)
    await tree.create("b")
    later = clock.now().timestamp() + 60
    endless: tuple[DocumentChange, ...] = (MoveDocument(id="b", parent=ROOT), DeleteDocument(id="b", delete_at=later))
    for change in endless:
        full = Limited(documents, quota=DocumentQuota(2, (await documents.usage(ACME)).size))
        await full.do(change)
        with pytest.raises(QuotaExceeded):
            await asyncio.gather(*(full.do(change) for _ in range(20)))
    await full.delete("b")


async def test_reasons_of_deletions_count_until_they_are_purged(documents: Documents, clock: ManualClock) -> None:
    reason = "é" * 2_000
    await Tree(documents).create("a")
    tree = Limited(documents, quota=DocumentQuota(9, 40_000))
    later, before = clock.now().timestamp() + 60, (await documents.usage(ACME)).size
    await tree.do(DeleteDocument(id="a", delete_at=later, reason=reason))
    assert (await documents.usage(ACME)).size > before + 4_000
    with pytest.raises(QuotaExceeded) as error:
        await asyncio.gather(*(tree.do(DeleteDocument(id="a", delete_at=later, reason=reason)) for _ in range(20)))
    assert quota_in(error)[0] == "document_bytes_per_tenant"
    full = (await documents.usage(ACME)).size
    await tree.do(DeleteDocument(id="a", reason=reason))
    assert (await documents.usage(ACME)).size > full + 4_000
    clock.advance(KEPT_DELETED_SECONDS)
    while await documents.tidy(PLENTY):
        pass
    assert await documents.usage(ACME) == Usage(0, 0)

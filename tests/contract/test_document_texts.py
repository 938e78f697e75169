"""The texts of documents, for every engine: kept once for a tenant, read in pieces, freed with their last revision."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dragoman.knowledge.port import KEPT_DELETED_SECONDS, PIECE_LENGTH, Documents, Outline, UpdateDocument
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, titled

MEGABYTE = "0123456789abcde\n" * 65_536
SMALL = 2_000
"""More bytes than a revision of a small document counts without its text."""


@pytest.fixture
def documents(storage: Storage) -> Documents:
    return storage.port(Documents)


@pytest.fixture
def tree(documents: Documents) -> Tree:
    return Tree(documents)


def body(text: str, id: str = "a") -> UpdateDocument:
    return UpdateDocument(id=id, fields={"content.body": text})


async def test_a_text_is_kept_once_for_a_tenant_and_never_for_two(tree: Tree, documents: Documents) -> None:
    await tree.create("a", body=MEGABYTE)
    first = (await documents.usage(ACME)).size
    assert len(MEGABYTE) < first < len(MEGABYTE) + SMALL
    for number in range(8):
        await tree.do(titled("a", f"Title {number}"))
    await tree.create("b", "a", body=MEGABYTE)
    await tree.move("b")
    await tree.do(body("short", "b"))
    await tree.do(body(MEGABYTE, "b"))
    assert (await documents.usage(ACME)).size < first + 13 * SMALL
    await Tree(documents, OTHER).create("a", body=MEGABYTE)
    assert (await documents.usage(OTHER)).size > len(MEGABYTE)
    assert [(await documents.usage(tenant)).documents for tenant in (ACME, OTHER, "nobody")] == [2, 1, 0]
    assert [(await tree.get(id)).body == MEGABYTE for id in "ab"] == [True, True]


async def test_a_text_is_freed_with_the_last_revision_that_names_it(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    for id in "abc":
        await tree.create(id, body=MEGABYTE)
    await tree.create("kept", body="short")
    small = (await documents.usage(ACME)).size - len(MEGABYTE)
    await tree.do(body("other", "c"))
    await tree.delete("a")
    clock.advance(10)
    await tree.delete("c")
    clock.advance(KEPT_DELETED_SECONDS - 10)
    await tree.delete("b")
    usage = await documents.usage(ACME)
    assert (usage.documents, usage.size > len(MEGABYTE)) == (1, True)
    sizes = []
    for step in (0, 10, KEPT_DELETED_SECONDS - 10):
        clock.advance(step)
        while await documents.tidy(PLENTY):
            pass
        sizes.append((await documents.usage(ACME)).size)
    assert sizes[0] > sizes[1] > len(MEGABYTE), "the revisions of `b` name the text"
    assert sizes[2] < small
    assert (await tree.get("kept")).body == "short"
    await tree.delete("kept")
    clock.advance(KEPT_DELETED_SECONDS)
    while await documents.tidy(PLENTY):
        pass
    usage = await documents.usage(ACME)
    assert (usage.documents, usage.size) == (0, 0)


@pytest.mark.parametrize(
    "text",
    ["", "é", "x" * PIECE_LENGTH, "x" * PIECE_LENGTH + "\0\U0001f600é", "é\U0001f600\0" * PIECE_LENGTH],
    ids=["empty", "short", "one piece", "one more", "three"],
)
async def test_a_text_is_read_in_pieces_as_it_was_at_a_revision(tree: Tree, documents: Documents, text: str) -> None:
    await tree.create("a", body=text)
    await tree.do(body("another"))
    pieces = []
    while piece := await documents.piece(ACME, "a", 1, len(pieces)):
        pieces.append(piece)
    assert "".join(pieces) == text
    assert {len(each) for each in pieces[:-1]} <= {PIECE_LENGTH}
    assert await documents.piece(ACME, "a", 2, 0) == "another"
    for missing in ((ACME, "a", 3, 0), (ACME, "b", 1, 0), (OTHER, "a", 1, 0), (ACME, "a", 1, 2**40)):
        assert await documents.piece(*missing) == ""
    first = await documents.revision(ACME, "a", 1)
    assert first is not None
    assert first.document.body == text


async def test_an_outline_has_all_but_the_text(tree: Tree, documents: Documents) -> None:
    await tree.create("a", body="é\0\U0001f600", tags=("x",))
    whole = await tree.get("a")
    outline = await documents.outline(ACME, "a")
    assert outline == Outline(replace(whole, body=""), 3)
    await tree.do(body(""))
    outline = await documents.outline(ACME, "a")
    assert outline is not None
    assert outline.length == 0
    assert (await documents.outline(ACME, "b"), await documents.outline(OTHER, "a")) == (None, None)
    await tree.delete("a")
    assert await documents.outline(ACME, "a") is None


async def test_there_is_nothing_to_convert_in_a_new_database(tree: Tree, documents: Documents) -> None:
    await tree.create("a")
    assert await documents.convert(PLENTY) == 0

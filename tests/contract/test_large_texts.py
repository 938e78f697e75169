"""The contract of `PassageIndex`, for every engine: texts above 256 KB are indexed in pieces, and a search says so."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.knowledge.index import PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.port import Audit, Documents, UpdateDocument
from dragoman.knowledge.querying import KnowledgeQuery, Queries
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, asked, titled
from tests.support.large_texts import large_text

LARGE = 300
"""Kilobytes."""
pytestmark = [pytest.mark.slow, pytest.mark.requirement("MC-QUERY-01")]


@pytest.fixture
def tree(storage: Storage) -> Tree:
    return Tree(storage.port(Documents))


@pytest.fixture
def index(storage: Storage) -> PassageIndex:
    return storage.port(PassageIndex)


def rewritten(id: str, body: str) -> UpdateDocument:
    return UpdateDocument(id=id, fields={"content.body": body})


async def count(index: PassageIndex, word: str, tenant: str = ACME) -> int:
    """How many passages have a word."""
    hits = await index.by_words(PassageQuery(tenant=tenant, limit=PLENTY), word)
    assert len(await index.read(tenant, [hit.number for hit in hits])) == len(hits)
    return len(hits)


async def test_a_large_text_is_found_once_all_of_it_is_indexed(tree: Tree, index: PassageIndex) -> None:
    applied = await tree.create("a", title="Title", body=large_text("first", LARGE), tags=("x",))
    await tree.create("small", body="first")
    assert applied.is_unfinished
    assert (await count(index, "first"), await index.unindexed(ACME), await index.unindexed(OTHER)) == (1, 1, 0)
    assert await index.catch_up(10) == 1
    assert (await count(index, "first"), await index.unindexed(ACME), await index.catch_up(10)) == (409, 0, 0)
    assert len(await index.by_words(PassageQuery(tenant=ACME, limit=9, tags=frozenset("x")), "first")) == 9


async def test_no_earlier_text_is_found_while_a_large_one_is_missing(
    storage: Storage, tree: Tree, index: PassageIndex
) -> None:
    await tree.create("a", body="secret")
    [hit] = await index.by_words(PassageQuery(tenant=ACME, limit=9), "secret")
    await tree.do(rewritten("a", large_text("second", LARGE)))
    assert (await count(index, "secret"), await index.read(ACME, [hit.number])) == (0, [])
    assert await storage.port(PassageVectors).wanted("model", 9) == []
    assert await index.catch_up(10) == 1
    assert (await count(index, "secret"), await count(index, "second")) == (0, 408)
    small = await tree.do(rewritten("a", "third"))
    assert small.is_unfinished, "there is too much to forget for one transaction"
    assert (await count(index, "second"), await count(index, "third")) == (0, 0)
    await index.catch_up(10)
    assert (await count(index, "second"), await count(index, "third")) == (0, 1)


async def test_what_is_changed_while_it_is_indexed_is_indexed_as_it_is_in_the_end(
    tree: Tree, index: PassageIndex, clock: ManualClock
) -> None:
    await tree.create("a", body=large_text("first", LARGE))
    await tree.create("b", body=large_text("other", LARGE))
    await tree.do(rewritten("a", large_text("second", LARGE)))
    await tree.delete("b")
    await tree.do(titled("a", "New"))
    await tree.move("a")
    while await index.catch_up(1):
        pass
    assert [await count(index, word) for word in ("first", "other", "second")] == [0, 0, 408]
    assert await index.unindexed(ACME) == 0


async def test_tenants_take_turns(tree: Tree, index: PassageIndex) -> None:
    other = Tree(tree.documents, OTHER)
    for number in range(3):
        await tree.create(f"a{number}", body=large_text("word", LARGE))
    await other.create("b", body=large_text("word", LARGE))
    await index.catch_up(1)
    await index.catch_up(1)
    assert (await index.unindexed(ACME), await index.unindexed(OTHER)) == (2, 0)


async def test_a_search_says_that_documents_are_missing(
    storage: Storage, tree: Tree, index: PassageIndex, clock: ManualClock
) -> None:
    queries = Queries(tree.documents, index, clock)

    async def answered() -> dict[str, Any]:
        return (await queries.answer(KnowledgeQuery(query="first"), asked("query"))).data

    await tree.create("small", body="first")
    assert "partial" not in await answered()
    await tree.create("a", body=large_text("first", LARGE))
    data = await answered()
    assert (data["partial"], data["missing"]) == (True, ["documents"])
    assert data["notes"] == ["documents that are not indexed yet were not searched: 1"]
    assert [each["document_id"] for each in data["context"]] == ["small"]
    await index.catch_up(10)
    assert "partial" not in await answered()
    assert [each.event for each in await storage.port(Audit).page(9)] == ["document.created"] * 2


async def test_a_title_is_searched_before_any_text_of_the_tenant_is(tree: Tree, index: PassageIndex) -> None:
    await tree.create("a", title="Installation", body=large_text("word", LARGE))
    assert await index.by_words(PassageQuery(tenant=ACME, limit=10), "install") == []
    await index.catch_up(10)
    assert len(await index.by_words(PassageQuery(tenant=ACME, limit=10), "install")) == 10

"""The contract of `Documents`, for every engine: changes at the same time, also out of several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path
from random import Random

import pytest

from dragoman.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from dragoman.knowledge.port import ROOT, Audit, CreateDocument, Documents, MoveDocument
from dragoman.storage.port import Storage
from tests.contract.engines import SITES, opened_storages
from tests.support.document_entries import ACME, PLENTY, Tree, draft, titled

MANY = 50


@pytest.fixture(params=SITES, ids=str)
async def storages(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Storage]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, count=count) as storages:
        yield storages


@pytest.fixture
def trees(storages: list[Storage]) -> list[Tree]:
    """The same tree, as each process has it."""
    return [Tree(storage.port(Documents)) for storage in storages]


@pytest.mark.requirement("MC-RBAC-06", "MC-TEST-02")
async def test_of_fifty_writers_on_one_revision_one_wins(storages: list[Storage], trees: list[Tree]) -> None:
    await trees[0].create("a")
    writers = [tree.do(titled("a", f"By {n}", 1)) for n, tree in zip(range(MANY), cycle(trees), strict=False)]
    results = await asyncio.gather(*writers, return_exceptions=True)
    won = [n for n, each in enumerate(results) if not isinstance(each, BaseException)]
    refused = [each.details for each in results if isinstance(each, Conflict)]
    assert (len(won), len(refused)) == (1, MANY - 1)
    assert refused[0] == {"reason": "revision_conflict", "expected_revision": 1, "actual": 2}
    for tree in trees:
        document = await tree.get("a")
        assert (document.revision, document.title) == (2, f"By {won[0]}")
        assert len(await tree.documents.history(ACME, "a", PLENTY)) == 2
    assert len(await storages[0].port(Audit).page(PLENTY)) == 2


@pytest.mark.requirement("MC-UPDATE-02")
async def test_no_update_is_lost_among_writers_that_know_no_revision(trees: list[Tree]) -> None:
    await trees[0].create("a")
    writers = [tree.do(titled("a", f"By {n}")) for n, tree in zip(range(MANY), cycle(trees), strict=False)]
    revisions = [each.data["revision"] for each in await asyncio.gather(*writers)]
    assert sorted(revisions) == list(range(2, MANY + 2))
    kept = await trees[0].documents.history(ACME, "a", PLENTY)
    assert {each.document.title for each in kept} == {"Title of a", *(f"By {n}" for n in range(MANY))}


@pytest.mark.requirement("MC-CREATE-02")
async def test_of_fifty_documents_with_one_id_one_is_created(trees: list[Tree]) -> None:
    makers = [tree.create("a", title=f"By {n}") for n, tree in zip(range(MANY), cycle(trees), strict=False)]
    results = await asyncio.gather(*makers, return_exceptions=True)
    assert sum(isinstance(each, AlreadyExists) for each in results) == MANY - 1
    assert await trees[-1].ids() == ["a"]


@pytest.mark.requirement("MC-MOVE-02")
async def test_fifty_moves_that_together_would_be_a_cycle_are_none(trees: list[Tree]) -> None:
    names = [f"d{n}" for n in range(MANY)]
    await asyncio.gather(*(trees[0].create(name) for name in names))
    ring = zip(names, [*names[1:], names[0]], cycle(trees), strict=False)
    moves = [tree.move(name, parent) for name, parent, tree in ring]
    results = await asyncio.gather(*moves, return_exceptions=True)
    refused = [each for each in results if isinstance(each, BaseException)]
    assert [type(each) for each in refused] == [InvalidArgument]
    (top,) = await trees[0].ids()
    for name in names:
        assert (await trees[-1].way_up(name, MANY))[-1] == top


@pytest.mark.requirement("MC-MOVE-02")
async def test_whatever_is_moved_at_the_same_time_every_document_stays_below_the_root(trees: list[Tree]) -> None:
    names, random = [f"d{n}" for n in range(10)], Random(18)
    await asyncio.gather(*(trees[0].create(name) for name in names))
    pairs = [random.sample(names, 2) for _ in range(MANY * 4)]
    moves = [tree.move(*pair) for pair, tree in zip(pairs, cycle(trees), strict=False)]
    results = await asyncio.gather(*moves, return_exceptions=True)
    assert {type(each) for each in results if isinstance(each, BaseException)} == {InvalidArgument}
    below = [name for parent in (ROOT, *names) for name in await trees[0].ids(parent)]
    assert sorted(below) == names
    for name in names:
        await trees[-1].way_up(name, len(names))


@pytest.mark.requirement("MC-DELETE-02")
async def test_nothing_is_left_below_what_is_deleted_at_the_same_time(trees: list[Tree]) -> None:
    names = [f"d{n}" for n in range(MANY)]
    await trees[0].create("top")
    await asyncio.gather(*(trees[0].create(name) for name in names[: MANY // 2]))
    changes: list[CreateDocument | MoveDocument] = [MoveDocument(id=name, parent="top") for name in names[: MANY // 2]]
    changes += [CreateDocument(document=draft(name, "top")) for name in names[MANY // 2 :]]
    Random(18).shuffle(changes)
    works = [tree.do(change) for change, tree in zip(changes, cycle(trees), strict=False)]
    works.insert(MANY // 2, trees[-1].delete("top"))
    results = await asyncio.gather(*works, return_exceptions=True)
    assert {type(each) for each in results if isinstance(each, BaseException)} == {NotFound}
    assert await trees[0].ids("top") == []
    for name in await trees[0].ids():
        assert await trees[-1].way_up(name) == [name]
    assert not await trees[-1].is_there("top")

"""The trees of documents against a simple model of one, whatever is done to it in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dragoman.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, ToolError
from dragoman.knowledge import changing
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    ROOT,
    CreateDocument,
    DeleteDocument,
    DocumentChange,
    Documents,
    MoveDocument,
)
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened_storages
from tests.support.document_entries import PLENTY, Tree, draft, titled
from tests.support.examples import examples

ids = st.sampled_from("abcdefg")
parents = st.sampled_from([*"abcdefg", ROOT, ROOT])
siblings = st.none() | ids


@dataclass
class Node:
    """What the model knows of a document."""

    parent: str
    revision: int = 1
    title: str = ""
    delete_at: float | None = None
    deleted_at: float | None = None


@dataclass
class Model:
    """A tree as it should be. Every method returns the error that the change should be refused with, if any."""

    now: float
    nodes: dict[str, Node] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=dict)

    def is_there(self, id: str) -> bool:
        return id == ROOT or (id in self.nodes and self.nodes[id].deleted_at is None)

    def children(self, id: str) -> list[str]:
        return self.order.setdefault(id, [])

    def create(self, id: str, parent: str) -> type[ToolError] | None:
        if not self.is_there(parent):
            return NotFound
        if id in self.nodes:
            return AlreadyExists
        self.nodes[id] = Node(parent, title=f"Title of {id}")
        self.children(parent).append(id)
        return None

    def update(self, id: str, title: str, revision: int | None) -> type[ToolError] | None:
        if not self.is_there(id):
            return NotFound
        if revision not in (None, self.nodes[id].revision):
            return Conflict
        self.nodes[id].title = title
        self.nodes[id].revision += 1
        return None

    def move(self, id: str, parent: str, before: str | None) -> type[ToolError] | None:
        if not self.is_there(id) or not self.is_there(parent):
            return NotFound
        above = parent
        while above != ROOT:
            if above == id:
                return InvalidArgument
            above = self.nodes[above].parent
        if before not in (None, id, *self.children(parent)):
            return InvalidArgument
        self.children(self.nodes[id].parent).remove(id)
        siblings = self.children(parent)
        siblings.insert(len(siblings) if before in (None, id) else siblings.index(before), id)
        self.nodes[id].parent = parent
        self.nodes[id].revision += 1
        return None

    def delete(self, id: str, seconds: float) -> type[ToolError] | None:
        if not self.is_there(id):
            return NotFound
        self.nodes[id].revision += 1
        if seconds:
            self.nodes[id].delete_at = self.now + seconds
        else:
            self.take_away(id, self.now)
        return None

    def take_away(self, id: str, at: float) -> None:
        self.children(self.nodes[id].parent).remove(id)
        pending = [id]
        while pending:
            gone = pending.pop()
            self.nodes[gone].deleted_at = at
            pending += self.order.pop(gone, [])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [(node.delete_at, id) for id, node in self.nodes.items() if node.delete_at is not None]
        for moment, id in sorted(due):
            if moment <= self.now and self.is_there(id):
                self.take_away(id, moment)

    def purge(self) -> None:
        for id, node in list(self.nodes.items()):
            if node.deleted_at is not None and node.deleted_at <= self.now - KEPT_DELETED_SECONDS:
                del self.nodes[id]


class DocumentTree(RuleBasedStateMachine):
    """One tree, beside its model. Each example has a tenant of its own."""

    def __init__(self, documents: Documents, clock: ManualClock, runner: asyncio.Runner, tenant: str) -> None:
        super().__init__()
        self.tree = Tree(documents, tenant)
        self.clock = clock
        self.runner = runner
        self.model = Model(clock.now().timestamp())
        self.patch = pytest.MonkeyPatch()

    @initialize(gap=st.sampled_from([2, 8, changing.GAP]))
    def begin(self, gap: int) -> None:
        self.patch.setattr(changing, "GAP", gap)  # Room between siblings runs out all the time, or never.
        for id, parent in (("a", ROOT), ("b", ROOT), ("c", ROOT), ("d", "a"), ("e", "d")):
            self.create(id, parent)

    def teardown(self) -> None:
        self.patch.undo()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def check(self, change: DocumentChange, expected: type[ToolError] | None) -> None:
        refused: type[BaseException] | None = None
        try:
            self.run(self.tree.do(change))
        except ToolError as error:
            refused = type(error)
        assert refused is expected

    @rule(id=ids, parent=parents)
    def create(self, id: str, parent: str) -> None:
        change = CreateDocument(document=draft(id, parent, self.tree.tenant))
        self.check(change, self.model.create(id, parent))

    @rule(id=ids, title=st.text(max_size=3), revision=st.none() | st.integers(0, 3))
    def update(self, id: str, title: str, revision: int | None) -> None:
        self.check(titled(id, title, revision), self.model.update(id, title, revision))

    @rule(id=ids, parent=parents, before=siblings)
    def move(self, id: str, parent: str, before: str | None) -> None:
        self.check(MoveDocument(id=id, parent=parent, before=before), self.model.move(id, parent, before))

    @rule(choices=st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)))
    def rearrange(self, choices: tuple[int, int, int]) -> None:
        """Move a document before a sibling, or last: there is always one, unlike what `move` comes upon."""
        parents = [parent for parent, children in self.model.order.items() if children]
        if parents:
            parent = parents[choices[0] % len(parents)]
            siblings = self.model.order[parent]
            self.move(siblings[choices[1] % len(siblings)], parent, [*siblings, None][choices[2] % (len(siblings) + 1)])

    @rule(id=ids, seconds=st.sampled_from([0.0, 10.0, 20.0, 86_400.0]))
    def delete(self, id: str, seconds: float) -> None:
        moment = self.model.now + seconds if seconds else None
        self.check(DeleteDocument(id=id, delete_at=moment), self.model.delete(id, seconds))

    @rule(seconds=st.sampled_from([10.0, 15.0, KEPT_DELETED_SECONDS - 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.pass_time(seconds)

    @rule()
    def purge(self) -> None:
        while self.run(self.tree.documents.tidy(PLENTY)):
            pass
        self.model.purge()

    @invariant()
    def the_tree_is_the_model(self) -> None:
        self.run(self._compare())

    async def _compare(self) -> None:
        found: dict[str, Node] = {}
        pending = [ROOT]
        while pending:
            parent = pending.pop()
            children = await self.tree.documents.children(self.tree.tenant, parent, PLENTY)
            assert [each.id for each in children] == self.model.order.get(parent, [])
            for each in children:
                assert each.id not in found
                found[each.id] = Node(each.parent, each.revision, each.title, each.delete_at)
                pending.append(each.id)
        assert found == {id: node for id, node in self.model.nodes.items() if node.deleted_at is None}


@pytest.mark.slow
@pytest.mark.requirement("MC-MOVE-02", "MC-CREATE-02", "MC-UPDATE-02", "MC-DELETE-02")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_tree_is_as_the_model_whatever_is_done_to_it(engine: str, tmp_path: Path) -> None:
    clock, tenants = ManualClock(), count()
    with asyncio.Runner() as runner:
        storages = opened_storages(engine, tmp_path, clock)
        (storage,) = runner.run(storages.__aenter__())
        documents = storage.port(Documents)
        try:
            run_state_machine_as_test(
                lambda: DocumentTree(documents, clock, runner, f"t{next(tenants)}"),  # type: ignore[arg-type]
                settings=settings(max_examples=examples(0.6), stateful_step_count=15),
            )
        finally:
            runner.run(storages.__aexit__(None, None, None))

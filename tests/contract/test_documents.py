"""The contract of `Documents`, for every engine: trees, and how they change."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from dragoman.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, ToolError, Unauthorized
from dragoman.knowledge import changing
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    ROOT,
    CreateDocument,
    DeleteDocument,
    Documents,
    Revision,
    UpdateDocument,
)
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, draft, titled

NOW = ManualClock().now().timestamp()
DEEP = 2000


@pytest.fixture
def documents(storage: Storage) -> Documents:
    return storage.port(Documents)


@pytest.fixture
def tree(documents: Documents) -> Tree:
    return Tree(documents)


async def refusal(tree: Tree, change: CreateDocument | UpdateDocument | DeleteDocument) -> ToolError:
    with pytest.raises(ToolError) as refused:
        await tree.do(change)
    return refused.value


# Creating.


@pytest.mark.requirement("MC-CREATE-02", "MC-RBAC-07")
async def test_a_document_is_kept_as_it_was_given(tree: Tree) -> None:
    given = draft(
        "a",
        title="Títle \0 \U0010ffff",
        body="{}",
        mime_type="application/json",
        tags=("x", "", "é"),
        source="https://example.org/",
        is_human_readable=False,
        created_at=-1.5,
        updated_at=NOW,
    )
    applied = await tree.do(CreateDocument(document=given))
    assert applied.data == {"id": "a", "revision": 1}
    assert not applied.is_repeated
    assert await tree.get("a") == given


@pytest.mark.requirement("MC-CREATE-02", "MC-RBAC-07")
async def test_a_document_for_people_has_an_address(documents: Documents) -> None:
    tree = Tree(documents, "a/ü")
    applied = await tree.do(CreateDocument(document=draft("a", tenant="a/ü")), web_base="https://example.org")
    assert applied.data["web_uri"] == "https://example.org/knowledge/documents/a%2F%C3%BC/a"


@pytest.mark.requirement("MC-CREATE-02")
async def test_each_tenant_has_a_tree_of_its_own(documents: Documents) -> None:
    ours, theirs = Tree(documents, ACME), Tree(documents, OTHER)
    await ours.create("a", title="Ours")
    with pytest.raises(NotFound):
        await theirs.create("b", "a")
    await theirs.create("a", title="Theirs")
    await ours.create("b", "a")
    assert ((await ours.get("a")).title, (await theirs.get("a")).title) == ("Ours", "Theirs")
    assert (await ours.ids("a"), await theirs.ids("a")) == (["b"], [])
    with pytest.raises(NotFound):
        await theirs.do(titled("b", "Changed"))
    with pytest.raises(NotFound):
        await theirs.move("b")
    with pytest.raises(NotFound):
        await theirs.delete("b")
    await theirs.delete("a")
    assert await ours.is_there("b")
    assert [each.document.tenant for each in await documents.history(OTHER, "a", 10)] == [OTHER, OTHER]
    assert await documents.history(OTHER, "b", 10) == []


@pytest.mark.requirement("MC-CREATE-02")
async def test_the_parent_must_be_there(tree: Tree) -> None:
    error = await refusal(tree, CreateDocument(document=draft("a", "missing")))
    assert isinstance(error, NotFound)
    assert error.details == {"reason": "unknown_document", "argument": "parent_id"}
    assert isinstance(await refusal(tree, CreateDocument(document=draft("a", "a"))), NotFound)
    await tree.create("gone")
    await tree.delete("gone")
    assert isinstance(await refusal(tree, CreateDocument(document=draft("a", "gone"))), NotFound)
    assert await tree.ids() == []


@pytest.mark.requirement("MC-CREATE-02", "MC-DELETE-02")
async def test_an_id_is_taken_until_the_purge(tree: Tree, documents: Documents, clock: ManualClock) -> None:
    await tree.create("a", title="First")
    error = await refusal(tree, CreateDocument(document=draft("a")))
    assert isinstance(error, AlreadyExists)
    assert error.details == {"reason": "document_exists", "document_id": "a"}
    await tree.delete("a")
    clock.advance(KEPT_DELETED_SECONDS - 1)
    assert await documents.tidy(PLENTY) == 0
    assert isinstance(await refusal(tree, CreateDocument(document=draft("a"))), AlreadyExists)
    assert len(await documents.history(ACME, "a", 10)) == 2
    clock.advance(1)
    assert await documents.tidy(PLENTY) == 1
    assert await documents.history(ACME, "a", 10) == []
    assert (await tree.create("a", title="Second")).data["revision"] == 1
    assert [each.document.title for each in await documents.history(ACME, "a", 10)] == ["Second"]


@pytest.mark.requirement("MC-RBAC-02")
async def test_an_agent_creates_below_an_inbox_only(tree: Tree) -> None:
    await tree.create("inbox", tags=("agent-inbox",))
    await tree.create("below", "inbox")
    for parent in (ROOT, "below"):
        error = await refusal(tree, CreateDocument(document=draft("a", parent), into_inbox_only=True))
        assert isinstance(error, Unauthorized)
        assert error.details == {"reason": "no_inbox", "tag": "agent-inbox"}
    await tree.do(CreateDocument(document=draft("a", "inbox"), into_inbox_only=True))
    assert await tree.ids("inbox") == ["below", "a"]


# Revisions.


@pytest.mark.requirement("MC-UPDATE-02")
async def test_every_revision_is_kept_with_who_made_it_and_when(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    created = draft("a")
    await tree.do(CreateDocument(document=created), principal="ada")
    clock.advance(10)
    applied = await tree.do(titled("a", "Second", 1), principal="bob")
    assert applied.data["revision"] == 2
    second = await tree.get("a")
    await tree.create("b")
    clock.advance(10)
    await tree.move("a", "b")
    third = await tree.get("a")
    await tree.delete("a")
    assert (second.revision, second.title, second.updated_at) == (2, "Second", NOW + 10)
    assert (third.revision, third.parent, third.body) == (3, "b", created.body)
    kept = await documents.history(ACME, "a", 10)
    wanted = [
        Revision(third, "knowledge.move_document", "svc:writer", NOW + 20),
        Revision(second, "knowledge.update_document", "bob", NOW + 10),
        Revision(created, "knowledge.create_document", "ada", NOW),
    ]
    assert kept[1:] == [replace(each, document=replace(each.document, body="")) for each in wanted]
    assert [await documents.revision(ACME, "a", each.document.revision) for each in wanted] == wanted
    assert [await documents.revision(*key) for key in ((ACME, "a", 0), (ACME, "a", 5), (OTHER, "a", 1))] == [None] * 3
    assert (kept[0].document.revision, kept[0].document.deleted_at) == (4, NOW + 20)
    assert await documents.history(ACME, "a", 2, before=3) == kept[2:]
    assert await documents.history(ACME, "a", 1, before=4) == kept[1:2]
    assert await documents.history(ACME, "a", 9, before=1) == []


@pytest.mark.requirement("MC-RBAC-06", "MC-UPDATE-02")
@pytest.mark.parametrize("known", [0, 1, 3, 2**53])
async def test_a_writer_with_another_revision_is_turned_away(tree: Tree, documents: Documents, known: int) -> None:
    await tree.create("a")
    await tree.do(titled("a", "Second"))
    before = await tree.get("a"), await documents.history(ACME, "a", 10)
    error = await refusal(tree, titled("a", "Third", known))
    assert isinstance(error, Conflict)
    assert error.details == {"reason": "revision_conflict", "expected_revision": known, "actual": 2}
    assert (await tree.get("a"), await documents.history(ACME, "a", 10)) == before
    assert (await tree.do(titled("a", "Third", 2))).data["revision"] == 3


@pytest.mark.requirement("MC-UPDATE-02", "MC-RBAC-07")
async def test_a_patch_changes_the_fields_that_it_names_and_null_removes(tree: Tree) -> None:
    await tree.create("a", tags=("x",), source="s", is_human_readable=False)
    await tree.do(
        UpdateDocument(
            id="a", fields={"metadata.tags": ("y", "z"), "metadata.last_editor": "ada", "content.body": "New"}
        )
    )
    changed = await tree.get("a")
    assert (changed.tags, changed.last_editor, changed.body) == (("y", "z"), "ada", "New")
    assert (changed.title, changed.source, changed.is_human_readable) == ("Title of a", "s", False)
    assert changed.created_at == 5.0
    removed = {"metadata.tags": None, "metadata.last_editor": None, "is_human_readable": None}
    applied = await tree.do(UpdateDocument(id="a", fields=removed))
    changed = await tree.get("a")
    assert (changed.tags, changed.last_editor, changed.is_human_readable) == ((), None, True)
    assert (changed.body, changed.source, changed.revision) == ("New", "s", 3)
    assert applied.data == {"id": "a", "revision": 3, "web_uri": "/knowledge/documents/acme/a"}
    await tree.do(UpdateDocument(id="a", fields={"is_human_readable": False, "content.body": ""}))
    changed = await tree.get("a")
    assert (changed.is_human_readable, changed.body) == (False, "")  # Neither is null.


@pytest.mark.requirement("MC-UPDATE-02")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"metadata.title": None}, "metadata.title"),
        ({"content.body": None}, "content.body"),
        ({"content.mime_type": None}, "content.mime_type"),
        ({"content.mime_type": "image/png"}, "content.mime_type"),
        ({"content.mime_type": "application/json"}, "content.body"),
        ({"content.mime_type": "application/json", "content.body": "{"}, "content.body"),
    ],
)
async def test_a_patch_that_leaves_no_document_is_refused(tree: Tree, fields: dict[str, str | None], path: str) -> None:
    await tree.create("a", body="no JSON")
    before = await tree.get("a")
    error = await refusal(tree, UpdateDocument(id="a", fields={**fields, "metadata.tags": ("t",)}))
    assert isinstance(error, InvalidArgument)
    assert error.details is not None
    assert [each["path"] for each in error.details["errors"]] == [path]
    assert await tree.get("a") == before


async def test_a_body_that_is_json_by_now_can_be_called_json(tree: Tree) -> None:
    await tree.create("a", body="no JSON")
    await tree.do(UpdateDocument(id="a", fields={"content.mime_type": "application/json", "content.body": "[1]"}))
    error = await refusal(tree, UpdateDocument(id="a", fields={"content.body": "no JSON"}))
    assert isinstance(error, InvalidArgument)
    assert (await tree.get("a")).body == "[1]"


# Deleting.


@pytest.mark.requirement("MC-DELETE-02")
async def test_a_deleted_document_can_be_found_by_nobody(tree: Tree) -> None:
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("d", "a"), ("e", ROOT)):
        await tree.create(id, parent)
    assert (await tree.delete("b")).data == {"id": "b", "revision": 2, "deleted": True, "documents": 2}
    assert (await tree.ids(), await tree.ids("a"), await tree.ids("b")) == (["a", "e"], ["d"], [])
    assert [await tree.is_there(id) for id in "abcde"] == [True, False, False, True, True]
    for gone in "bc":
        for change in (titled(gone, "New"), DeleteDocument(id=gone), CreateDocument(document=draft("new", gone))):
            assert isinstance(await refusal(tree, change), NotFound)
        with pytest.raises(NotFound):
            await tree.move(gone)
        with pytest.raises(NotFound):
            await tree.move("d", gone)
    assert (await tree.delete("a")).data["documents"] == 2
    assert await tree.ids() == ["e"]


@pytest.mark.slow
@pytest.mark.requirement("MC-DELETE-02", "MC-MOVE-02")
async def test_a_tree_from_before_there_was_a_limit_may_be_deep(
    tree: Tree, documents: Documents, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "MOST_DEPTH", DEEP)
    parents = [ROOT, *(f"d{number}" for number in range(DEEP - 1))]
    await asyncio.gather(*(tree.create(f"d{number}", parent) for number, parent in enumerate(parents)))
    with pytest.raises(InvalidArgument):
        await tree.move("d0", f"d{DEEP - 1}")
    await tree.delete("d0")
    assert not await tree.is_there(f"d{DEEP - 1}")
    while await documents.tidy(PLENTY):
        pass
    clock.advance(KEPT_DELETED_SECONDS)
    assert await documents.tidy(DEEP // 8) == DEEP // 8
    while await documents.tidy(PLENTY):
        pass
    await tree.create(f"d{DEEP - 1}")


@pytest.mark.slow
@pytest.mark.requirement("MC-DELETE-02")
async def test_a_document_may_have_many_children(tree: Tree, documents: Documents) -> None:
    await tree.create("top")
    names = [f"c{number}" for number in range(DEEP)]
    await asyncio.gather(*(tree.create(name, "top", body="x" * 100) for name in names))
    assert await tree.ids("top") == names
    found: list[str] = []
    after = None
    while page := await documents.children(ACME, "top", 700, after=after):
        assert {each.body for each in page} == {""}
        found += [each.id for each in page]
        after = page[-1].place
    assert found == names
    await tree.move(names[-1], "top", names[0])
    assert await tree.ids("top") == [names[-1], *names[:-1]]
    await tree.delete("top")
    assert await tree.ids("top") == []


@pytest.mark.requirement("MC-DELETE-02")
async def test_a_deletion_can_be_scheduled_and_nobody_finds_what_is_due(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    for id, parent in (("a", ROOT), ("b", "a")):
        await tree.create(id, parent)
    applied = await tree.delete("a", NOW + 60)
    assert applied.data == {"id": "a", "revision": 2, "deleted": False, "delete_at": "2024-01-15T10:31:00Z"}
    clock.advance(59)
    assert (await tree.get("a")).delete_at == NOW + 60
    await tree.do(titled("b", "Changed"))
    clock.advance(1)
    assert await documents.children(ACME, "a", 10) == []
    assert not await tree.is_there("a")
    assert not await tree.is_there("b")
    assert await documents.tidy(PLENTY) == 2
    clock.advance(KEPT_DELETED_SECONDS - 1)
    assert await documents.tidy(PLENTY) == 0
    clock.advance(1)
    assert await documents.tidy(PLENTY, clock.now().timestamp() - 1) == 0
    assert await documents.tidy(PLENTY) == 2


@pytest.mark.requirement("MC-DELETE-02")
async def test_a_deleted_document_is_kept_for_ninety_days_and_purged_then(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    ninety_days = 7_776_000  # Of the contract, and not of the code.
    await tree.create("a")
    await tree.delete("a")
    clock.advance(ninety_days - 1)
    await documents.tidy(PLENTY)
    assert len(await documents.history(ACME, "a", 10)) == 2
    assert isinstance(await refusal(tree, CreateDocument(document=draft("a"))), AlreadyExists)
    clock.advance(1)
    await documents.tidy(PLENTY)
    assert await documents.history(ACME, "a", 10) == []
    await tree.create("a")


@pytest.mark.requirement("MC-DELETE-02")
async def test_a_change_comes_too_late_for_what_is_due(tree: Tree, clock: ManualClock) -> None:
    names = [f"c{number}" for number in range(250)]
    await asyncio.gather(*(tree.create(name) for name in names))
    await asyncio.gather(*(tree.delete(name, NOW + 60) for name in names))
    clock.advance(60)
    assert isinstance(await refusal(tree, titled(names[-1], "New")), NotFound)
    assert isinstance(await refusal(tree, CreateDocument(document=draft("new", names[-2]))), NotFound)
    assert await tree.ids() == []


@pytest.mark.requirement("MC-DELETE-02")
async def test_what_is_due_first_is_deleted_first(tree: Tree, documents: Documents, clock: ManualClock) -> None:
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b")):
        await tree.create(id, parent)
    await tree.delete("a", NOW + 20)
    await tree.delete("b", NOW + 10)
    clock.advance(KEPT_DELETED_SECONDS + 10)
    assert await tree.ids() == []
    await documents.tidy(PLENTY)
    await tree.create("b")  # It and `c` were deleted ten seconds before `a`.
    await tree.create("c")
    assert isinstance(await refusal(tree, CreateDocument(document=draft("a"))), AlreadyExists)


@pytest.mark.requirement("MC-DELETE-01")
async def test_a_time_that_has_passed_means_now(tree: Tree) -> None:
    for id, moment in (("a", NOW), ("b", NOW - 1e9)):
        await tree.create(id)
        assert (await tree.delete(id, moment)).data == {"id": id, "revision": 2, "deleted": True, "documents": 1}
        assert not await tree.is_there(id)


async def test_a_scheduled_deletion_can_be_put_off_or_brought_forward(tree: Tree, clock: ManualClock) -> None:
    for id in "abc":
        await tree.create(id)
        await tree.delete(id, NOW + 60)
    await tree.delete("a", NOW + 120)
    await tree.delete("b")
    clock.advance(60)
    assert await tree.ids() == ["a"]
    await tree.move("a")
    clock.advance(60)
    assert await tree.ids() == []


async def test_tidying_deletes_what_is_due_step_by_step(tree: Tree, documents: Documents, clock: ManualClock) -> None:
    for id in "abcde":
        await tree.create(id)
        await tree.delete(id, NOW + 60)
    assert await documents.tidy(2) == 0
    clock.advance(60)
    assert [await documents.tidy(2) for _ in range(4)] == [2, 2, 1, 0]


# Moving.


@pytest.mark.requirement("MC-MOVE-02")
async def test_a_document_is_moved_with_all_below_it(tree: Tree) -> None:
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("d", ROOT)):
        await tree.create(id, parent)
    assert (await tree.move("b", "d")).data == {"id": "b", "revision": 2, "parent_id": "d"}
    assert (await tree.ids("a"), await tree.ids("d"), await tree.ids("b")) == ([], ["b"], ["c"])
    assert await tree.way_up("c") == ["c", "b", "d"]
    await tree.move("c")
    assert await tree.ids() == ["a", "d", "c"]


@pytest.mark.requirement("MC-MOVE-02")
async def test_a_document_cannot_be_moved_below_itself(tree: Tree) -> None:
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b")):
        await tree.create(id, parent)
    for parent in "abc":
        with pytest.raises(InvalidArgument) as refused:
            await tree.move("a", parent)
        assert refused.value.details == {
            "reason": "cycle",
            "errors": [{"path": "new_parent_id", "message": "is the document itself, or below it"}],
        }
    assert await tree.way_up("c") == ["c", "b", "a"]
    assert (await tree.get("a")).revision == 1
    await tree.move("c", "a")
    await tree.move("b", "c")
    assert await tree.way_up("b") == ["b", "c", "a"]


@pytest.mark.requirement("MC-MOVE-02")
async def test_a_document_is_put_before_a_sibling_or_last(tree: Tree) -> None:
    for id in "abcd":
        await tree.create(id)
    for id, before, order in (
        ("d", "a", "dabc"),
        ("d", "c", "abdc"),
        ("a", None, "bdca"),
        ("b", "d", "bdca"),
        ("b", "b", "dcab"),
        ("c", "d", "cdab"),
    ):
        await tree.move(id, ROOT, before)
        assert await tree.ids() == list(order), (id, before)
    await tree.create("e", "a")
    await tree.create("f", "a")
    await tree.move("b", "a", "f")
    assert (await tree.ids("a"), await tree.ids()) == (["e", "b", "f"], ["c", "d", "a"])


@pytest.mark.requirement("MC-MOVE-02")
@pytest.mark.parametrize("before", ["missing", "gone", "elsewhere"])
async def test_the_sibling_must_be_below_the_new_parent(tree: Tree, before: str) -> None:
    for id, parent in (("a", ROOT), ("b", ROOT), ("elsewhere", "b"), ("gone", ROOT)):
        await tree.create(id, parent)
    await tree.delete("gone")
    state = await tree.get("a")
    with pytest.raises(InvalidArgument) as refused:
        await tree.move("a", ROOT, before)
    assert refused.value.details is not None
    assert refused.value.details["reason"] == "no_sibling"
    assert await tree.get("a") == state


@pytest.mark.requirement("MC-MOVE-02")
async def test_the_new_parent_must_be_there(tree: Tree) -> None:
    await tree.create("a")
    with pytest.raises(NotFound) as refused:
        await tree.move("a", "missing")
    assert refused.value.details == {"reason": "unknown_document", "argument": "new_parent_id"}
    assert await tree.ids() == ["a"]


@pytest.mark.requirement("MC-MOVE-02")
async def test_there_is_always_room_before_a_sibling(tree: Tree) -> None:
    for id in ("first", "sibling"):
        await tree.create(id)
    middle, end = [], []
    for number in range(50):
        await tree.create(f"m{number}", "first")
        await tree.move(f"m{number}", ROOT, "sibling")
        middle.append(f"m{number}")
        await tree.create(f"e{number}")
        end.append(f"e{number}")
    assert await tree.ids() == ["first", *middle, "sibling", *end]
    await tree.move("first")
    assert await tree.ids() == [*middle, "sibling", *end, "first"]


@pytest.mark.requirement("MC-MOVE-02")
async def test_siblings_can_change_places_without_end(tree: Tree) -> None:
    order = list("abcd")
    for id in order:
        await tree.create(id)
    for number in range(100):
        moved, before = order[number % 2], order[2]
        await tree.move(moved, ROOT, before)
        order.remove(moved)
        order.insert(order.index(before), moved)
        assert await tree.ids() == order
    for number in range(60):
        moved = order[1 + number % 3]
        await tree.move(moved, ROOT, order[0])
        order.remove(moved)
        order.insert(0, moved)
    assert await tree.ids() == order

"""The contract of `Documents` and `Audit`, for every engine: repeats, order, what is noted, and what refusals leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import Conflict, NotFound, QuotaExceeded, ToolError
from dragoman.knowledge.kept_answers import SMALLEST_CHARGE
from dragoman.knowledge.port import (
    KEPT_STREAM_SECONDS,
    ROOT,
    ActionRequest,
    ActionStream,
    Applied,
    Audit,
    AuditEvent,
    CreateDocument,
    DeleteDocument,
    DocumentChange,
    Documents,
    KeepAnswer,
    MoveDocument,
    UpdateDocument,
)
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, asked, draft, titled

NOW = ManualClock().now().timestamp()


@pytest.fixture
def documents(storage: Storage) -> Documents:
    return storage.port(Documents)


@pytest.fixture
def audit(storage: Storage) -> Audit:
    return storage.port(Audit)


@pytest.fixture
def tree(documents: Documents) -> Tree:
    return Tree(documents)


def happened(event: str = "role.deprecation", tenant: str = ACME, **fields: Any) -> AuditEvent:
    return AuditEvent(tenant=tenant, event=event, principal="svc:writer", at=NOW, **fields)


# Repeats.


@pytest.mark.requirement("MC-IDEM-02")
async def test_a_repeat_gets_the_first_result_and_has_no_effect(
    tree: Tree, documents: Documents, audit: Audit, clock: ManualClock
) -> None:
    await tree.create("a")
    request = asked(key="k", subject="a", fingerprint=b"f")
    assert await documents.recall(request) is None
    first = await documents.carry_out(titled("a", "Second"), request)
    assert not first.is_repeated
    clock.advance(60)
    await tree.do(titled("a", "Third"))
    noted = await audit.page(100)
    again = replace(request, correlation_id="another", principal="another", roles=frozenset(("agent",)))
    for repeated in (
        await documents.recall(again),
        await documents.carry_out(titled("a", "Second"), again),
        await documents.carry_out(DeleteDocument(id="a"), request),
    ):
        assert repeated == Applied(first.data, is_repeated=True)
    assert ((await tree.get("a")).title, (await tree.get("a")).revision) == ("Third", 3)
    assert await audit.page(100) == noted


@pytest.mark.requirement("MC-IDEM-02")
async def test_an_answer_is_kept_with_its_hits_and_nothing_else_changes(
    tree: Tree, documents: Documents, audit: Audit
) -> None:
    await tree.create("a")
    noted = await audit.page(100)
    request = asked("query", key="k", subject="svc:writer", fingerprint=b"f", seq=3)
    answer = {"response": "r", "context": [{"passage": "\U0001f989"}]}
    assert await documents.carry_out(KeepAnswer(data=answer, hits=7, most_kept=PLENTY), request) == Applied(
        answer, hits=7
    )
    for repeated in (
        await documents.recall(request),
        await documents.carry_out(KeepAnswer(data={}, hits=0, most_kept=PLENTY), request),
    ):
        assert repeated == Applied(answer, is_repeated=True, hits=7)
    late = replace(request, key=None, stream=ActionStream("", 2))
    assert await documents.recall(late) == Applied({"ignored": True, "last_seq": 3})
    assert ((await tree.get("a")).revision, await audit.page(100)) == (1, noted)


@pytest.mark.requirement("MC-IDEM-02")
async def test_a_repeat_of_something_else_is_a_conflict(tree: Tree, documents: Documents) -> None:
    await tree.create("a")
    request = asked(key="k", subject="a", fingerprint=b"f")
    await documents.carry_out(titled("a", "Second"), request)
    other = replace(request, fingerprint=b"g")
    with pytest.raises(Conflict) as refused:
        await documents.recall(other)
    assert refused.value.details == {"reason": "idempotency_conflict", "retryable": False}
    with pytest.raises(Conflict):
        await documents.carry_out(titled("a", "Third"), other)
    assert (await tree.get("a")).revision == 2


@pytest.mark.requirement("MC-IDEM-01")
@pytest.mark.parametrize("scope", [{"tenant": OTHER}, {"action": "knowledge.move_document"}, {"subject": "b"}])
async def test_a_key_belongs_to_a_tenant_an_action_and_a_subject(documents: Documents, scope: dict[str, str]) -> None:
    request = asked(key="k", subject="a", fingerprint=b"f")
    for tenant in (ACME, OTHER):
        await Tree(documents, tenant).create("a")
    await documents.carry_out(titled("a", "Second"), request)
    other = replace(request, fingerprint=b"g", **scope)
    assert await documents.recall(other) is None
    assert not (await documents.carry_out(titled("a", "Third"), other)).is_repeated


@pytest.mark.requirement("MC-IDEM-01")
async def test_a_result_is_kept_until_a_purge_after_as_long_as_was_asked(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    await tree.create("a")
    request = asked(key="k", subject="a", fingerprint=b"f", keep_seconds=86_400.0)
    await documents.carry_out(titled("a", "Second"), request)
    clock.advance(86_399)
    assert await documents.tidy(PLENTY) == 0
    assert (await documents.carry_out(titled("a", "Second"), request)).is_repeated
    clock.advance(1)
    assert await documents.tidy(PLENTY, clock.now().timestamp() - 1) == 0
    assert (
        await documents.carry_out(titled("a", "Third"), request)
    ).is_repeated  # A clock that is ahead changes nothing.
    assert await documents.tidy(PLENTY) == 1
    assert await documents.recall(replace(request, fingerprint=b"g")) is None
    assert (await documents.carry_out(titled("a", "Third"), request)).data["revision"] == 3
    clock.advance(86_400)
    assert await documents.tidy(PLENTY, clock.now().timestamp() - 1) == 0
    assert await documents.tidy(PLENTY) == 1
    assert await documents.tidy(PLENTY) == 0


@pytest.mark.requirement("MC-IDEM-02")
async def test_of_fifty_requests_with_one_key_at_the_same_time_one_has_an_effect(
    tree: Tree, documents: Documents
) -> None:
    await tree.create("a")
    request = asked(key="k", subject="a", fingerprint=b"f")
    results = await asyncio.gather(*(documents.carry_out(titled("a", f"By {n}"), request) for n in range(50)))
    assert sorted(each.is_repeated for each in results) == [False, *[True] * 49]
    assert len({str(each.data) for each in results}) == 1
    assert (await tree.get("a")).revision == 2


# Answers that are kept.

ROOM = 3 * SMALLEST_CHARGE


def an_answer(size: int = 10, most_kept: int = ROOM) -> KeepAnswer:
    """An answer that weighs so many bytes as it is kept."""
    return KeepAnswer(data={"r": "x" * (size - len(b'{"r":""}'))}, hits=0, most_kept=most_kept)


def query(key: str | None = None, **fields: Any) -> ActionRequest:
    return asked("query", key=key, subject="svc:reader", fingerprint=b"f", **fields)


async def test_answers_are_kept_up_to_a_quota_of_their_tenant(tree: Tree, documents: Documents) -> None:
    await tree.do(CreateDocument(document=draft("a")), key="k", subject="a")
    assert await documents.kept_answers(ACME) == 0  # Changes do not count.
    first = await documents.carry_out(an_answer(), query("k1"))
    await documents.carry_out(an_answer(2 * SMALLEST_CHARGE), query("k2"))
    assert await documents.kept_answers(ACME) == ROOM
    with pytest.raises(QuotaExceeded) as refused:
        await documents.carry_out(an_answer(), query("k3"))
    told = {
        "reason": "answer_quota",
        "quota": "answer_bytes_per_tenant",
        "setting": "knowledge.answer_bytes_per_tenant",
        "limit": ROOM,
        "actual": ROOM + SMALLEST_CHARGE,
        "retryable": False,
    }
    assert refused.value.details == told
    assert await documents.recall(query("k3")) is None
    assert await documents.carry_out(an_answer(), query("k1")) == replace(first, is_repeated=True)
    assert (await tree.do(titled("a", "Second"), key="k2", subject="a")).data["revision"] == 2
    assert not (await documents.carry_out(an_answer(), query())).is_repeated  # Nothing is kept of it.
    assert not (await documents.carry_out(an_answer(), query("k3", tenant=OTHER))).is_repeated
    assert (await documents.kept_answers(ACME), await documents.kept_answers(OTHER)) == (ROOM, SMALLEST_CHARGE)


@pytest.mark.requirement("MC-IDEM-01")
async def test_answers_make_room_when_they_have_expired_and_no_earlier(
    documents: Documents, clock: ManualClock
) -> None:
    for key in ("k1", "k2", "k3"):
        await documents.carry_out(an_answer(), query(key))
    clock.advance(86_399)
    assert await documents.tidy(PLENTY) == 0
    assert (await documents.carry_out(an_answer(), query("k1"))).is_repeated
    clock.advance(1)
    assert (await documents.carry_out(an_answer(), query("k1"))).is_repeated
    assert await documents.kept_answers(ACME) == ROOM
    assert await documents.tidy(PLENTY) == 3
    assert not (await documents.carry_out(an_answer(), query("k1"))).is_repeated
    assert await documents.kept_answers(ACME) == SMALLEST_CHARGE


async def test_streams_of_queries_count_as_answers_until_a_change_moves_them(
    tree: Tree, documents: Documents, clock: ManualClock
) -> None:
    await tree.create("a")
    await tree.do(titled("a", "Changed"), seq=1, context="changed")
    for context in ("changed", "one", "two", "three", "one"):
        await documents.carry_out(an_answer(), query(seq=2, context=context))
    assert await documents.kept_answers(ACME) == ROOM
    with pytest.raises(QuotaExceeded):
        await documents.carry_out(an_answer(), query(seq=2, context="four"))
    await tree.do(titled("a", "Changed again"), seq=3, context="one")
    assert await documents.kept_answers(ACME) == 2 * SMALLEST_CHARGE
    clock.advance(86_400)
    assert await documents.tidy(PLENTY) == 2
    assert await documents.kept_answers(ACME) == 0
    assert await documents.recall(query(seq=1, context="two")) is None
    assert await documents.recall(query(seq=2, context="one")) == Applied({"ignored": True, "last_seq": 3})


# Order.


@pytest.mark.requirement("MC-IDEM-04")
async def test_a_lower_seq_is_ignored_and_an_equal_one_is_not(tree: Tree, documents: Documents) -> None:
    await tree.create("a")
    assert (await tree.do(titled("a", "Five"), seq=5)).data["revision"] == 2
    assert await tree.do(titled("a", "Four"), seq=4) == Applied({"ignored": True, "last_seq": 5})
    assert await documents.recall(asked(seq=0)) == Applied({"ignored": True, "last_seq": 5})
    assert await documents.recall(asked(seq=5)) is None
    assert (await tree.get("a")).title == "Five"
    assert (await tree.do(titled("a", "Five again"), seq=5)).data["revision"] == 3
    assert (await tree.do(titled("a", "Nine"), seq=9)).data["revision"] == 4
    assert (await tree.do(titled("a", "Eight"), seq=8)).data == {"ignored": True, "last_seq": 9}


@pytest.mark.requirement("MC-IDEM-04")
async def test_a_stream_belongs_to_a_tenant_a_principal_and_a_context(tree: Tree, documents: Documents) -> None:
    await tree.create("a")
    await tree.do(titled("a", "Five"), seq=5)
    for other in ({"tenant": OTHER}, {"principal": "svc:other"}, {"context": "thread"}):
        assert await documents.recall(asked(seq=1, **other)) is None
    assert await documents.recall(asked("move", seq=1)) == Applied({"ignored": True, "last_seq": 5})


@pytest.mark.requirement("MC-IDEM-04")
async def test_a_refused_request_moves_no_seq_and_keeps_no_result(tree: Tree, documents: Documents) -> None:
    await tree.create("a")
    await tree.do(titled("a", "One"), seq=1)
    for change in (titled("a", "Nine", 7), titled("missing", "Nine"), MoveDocument(id="a", parent="a")):
        with pytest.raises(ToolError):
            await tree.do(change, seq=9, key="k", subject="a", fingerprint=b"f")
        assert await documents.recall(asked(seq=1)) is None
    assert (await tree.do(titled("a", "Two", 2), seq=2, key="k", subject="a", fingerprint=b"g")).data["revision"] == 3


@pytest.mark.requirement("MC-IDEM-02", "MC-IDEM-04")
async def test_a_repeat_gets_its_result_whatever_its_seq_and_an_ignored_request_keeps_none(
    tree: Tree, documents: Documents
) -> None:
    await tree.create("a")
    await tree.do(titled("a", "One"), seq=1, key="k1", fingerprint=b"f")
    await tree.do(titled("a", "Five"), seq=5)
    assert (await tree.do(titled("a", "One"), seq=1, key="k1", fingerprint=b"f")).is_repeated
    ignored = await tree.do(titled("a", "Two"), seq=2, key="k2", fingerprint=b"f")
    assert ignored.data == {"ignored": True, "last_seq": 5}
    assert await documents.recall(asked(key="k2", fingerprint=b"other")) is None


async def test_a_stream_that_nobody_uses_is_forgotten(tree: Tree, documents: Documents, clock: ManualClock) -> None:
    await tree.create("a")
    await tree.do(titled("a", "Five"), seq=5)
    clock.advance(KEPT_STREAM_SECONDS - 1)
    assert await documents.tidy(PLENTY) == 0
    assert await documents.recall(asked(seq=4)) is not None
    clock.advance(1)
    assert await documents.tidy(PLENTY) == 1
    assert await documents.recall(asked(seq=4)) is None


# Refusals.

REFUSED: dict[str, DocumentChange] = {
    "taken id": CreateDocument(document=draft("a")),
    "id of a deleted document": CreateDocument(document=draft("gone")),
    "unknown parent": CreateDocument(document=draft("new", "missing")),
    "no inbox": CreateDocument(document=draft("new", "a"), into_inbox_only=True),
    "unknown document": titled("missing", "New"),
    "deleted document": titled("gone", "New"),
    "other revision": titled("a", "New", 7),
    "null title": UpdateDocument(id="a", fields={"metadata.tags": ("t",), "metadata.title": None}),
    "no JSON": UpdateDocument(id="a", fields={"metadata.title": "New", "content.mime_type": "application/json"}),
    "nothing to delete": DeleteDocument(id="missing"),
    "already deleted": DeleteDocument(id="gone"),
    "nothing to move": MoveDocument(id="missing", parent=ROOT),
    "new parent unknown": MoveDocument(id="a", parent="missing"),
    "cycle": MoveDocument(id="a", parent="c"),
    "no sibling": MoveDocument(id="b", parent=ROOT, before="c"),
}


async def everything(tree: Tree, audit: Audit) -> list[Any]:
    """All that can be read."""
    ids = ("a", "b", "c", "gone", "new", "missing")
    kept: list[Any] = [await tree.documents.get(ACME, id) for id in ids]
    kept += [await tree.documents.children(ACME, id, PLENTY) for id in (ROOT, *ids)]
    kept += [await tree.documents.history(ACME, id, PLENTY) for id in ids]
    return [*kept, await audit.page(PLENTY)]


@pytest.mark.requirement("MC-RBAC-06", "MC-TEST-04")
@pytest.mark.parametrize("why", REFUSED)
async def test_a_refusal_changes_nothing(tree: Tree, documents: Documents, audit: Audit, why: str) -> None:
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("gone", ROOT)):
        await tree.create(id, parent)
    await tree.delete("gone")
    before = await everything(tree, audit)
    request = asked("any", key="k", subject="s", fingerprint=b"f", seq=7)
    others = [CreateDocument(document=draft(f"other{number}", tenant=OTHER)) for number in range(4)]
    theirs = Tree(documents, OTHER)
    results = await asyncio.gather(
        *(theirs.do(each) for each in others[:2]),
        documents.carry_out(REFUSED[why], request),
        *(theirs.do(each) for each in others[2:]),
        return_exceptions=True,
    )  # What is written at the same time is not undone with it.
    assert [isinstance(each, ToolError) for each in results] == [False, False, True, False, False]
    noted = await audit.page(PLENTY, tenant=ACME)
    assert [*(await everything(tree, audit))[:-1], noted] == before
    assert await documents.recall(replace(request, fingerprint=b"g")) is None
    assert await documents.recall(asked("any", seq=0)) is None
    assert await theirs.ids() == [f"other{number}" for number in range(4)]


# The audit.


@pytest.mark.requirement("MC-DELETE-02")
async def test_every_change_is_noted_with_who_what_and_when(
    tree: Tree, documents: Documents, audit: Audit, clock: ManualClock
) -> None:
    await tree.do(CreateDocument(document=draft("a")), correlation_id="c1", principal="ada")
    clock.advance(1)
    await tree.do(titled("a", "Second"), correlation_id="c2")
    await tree.create("b")
    await tree.move("a", "b")
    await tree.do(DeleteDocument(id="a", reason="Obsolete", delete_at=NOW + 60))
    await tree.do(DeleteDocument(id="a", reason="Now"))
    await tree.delete("b", NOW + 60)
    clock.advance(100)
    assert not await tree.is_there("b")
    await documents.tidy(PLENTY)
    events = (await audit.page(100))[::-1]
    assert [(each.event, each.subject, each.principal, each.at - NOW) for each in events] == [
        ("document.created", "a", "ada", 0),
        ("document.updated", "a", "svc:writer", 1),
        ("document.created", "b", "svc:writer", 1),
        ("document.moved", "a", "svc:writer", 1),
        ("document.scheduled", "a", "svc:writer", 1),
        ("document.deleted", "a", "svc:writer", 1),
        ("document.scheduled", "b", "svc:writer", 1),
        ("document.deleted", "b", "dragoman", 60),
    ]
    assert {each.tenant for each in events} == {ACME}
    moment = "2024-01-15T10:31:00Z"
    assert [each.details for each in events if each.subject == "a"] == [
        {"revision": 1, "correlation_id": "c1"},
        {"revision": 2, "correlation_id": "c2", "fields": ["metadata.title"]},
        {"revision": 3, "correlation_id": "c", "from": ROOT, "to": "b"},
        {"revision": 4, "correlation_id": "c", "reason": "Obsolete", "delete_at": moment},
        {"revision": 5, "correlation_id": "c", "reason": "Now", "documents": 1},
    ]
    assert events[-1].details == {"documents": 1, "scheduled": True}


async def test_what_is_deleted_with_a_document_above_it_is_not_noted_again(
    tree: Tree, documents: Documents, audit: Audit, clock: ManualClock
) -> None:
    for id, parent in (("a", ROOT), ("b", "a")):
        await tree.create(id, parent)
    await tree.delete("b", NOW + 60)
    await tree.delete("a", NOW + 30)
    clock.advance(60)
    assert await tree.ids() == []
    await documents.tidy(PLENTY)
    deleted = [each for each in await audit.page(100) if each.event == "document.deleted"]
    assert [(each.subject, each.details) for each in deleted] == [("a", {"documents": 2, "scheduled": True})]


@pytest.mark.requirement("MC-RBAC-04")
async def test_an_event_that_is_noted_once_stays_as_it_was(audit: Audit) -> None:
    assert await audit.note(happened(once="cursor 2024Q1", details={"n": 1}))
    assert not await audit.note(happened(once="cursor 2024Q1", details={"n": 2}))
    assert await audit.note(happened(once="cursor 2024Q2", details={"n": 3}))
    assert await audit.note(happened())
    assert await audit.note(happened())
    results = await asyncio.gather(*(audit.note(happened(once="codex")) for _ in range(50)))
    assert results.count(True) == 1
    events = await audit.page(100)
    assert [dict(each.details) for each in events[::-1]] == [{"n": 1}, {"n": 3}, {}, {}, {}]


async def test_events_that_are_noted_once_are_found_by_how_that_begins_the_oldest_first(audit: Audit) -> None:
    for once in ("end 1.0 b", "end 1.0 a", "end 1.00 a", "end", None, "end 1.0 \U0010fffe", "END 1.0 a"):
        await audit.note(happened(once=once))
    found = await audit.noted_once("end 1.0 ")
    assert [each.once for each in found] == ["end 1.0 b", "end 1.0 a", "end 1.0 \U0010fffe"]
    assert await audit.noted_once("none") == []


async def test_what_was_noted_cannot_be_changed_by_who_noted_it(audit: Audit) -> None:
    details = {"roles": ["cursor"]}
    await audit.note(happened(details=details))
    details["roles"].append("codex")
    (event,) = await audit.page(1)
    assert event.details == {"roles": ["cursor"]}


async def test_events_are_read_page_by_page_the_newest_first(audit: Audit) -> None:
    for number in range(10):
        await audit.note(happened(f"e{number}", tenant=ACME if number % 2 else OTHER))
    events = await audit.page(100)
    numbers = [each.number for each in events]
    assert [each.event for each in events] == [f"e{number}" for number in range(9, -1, -1)]
    assert numbers == sorted(set(numbers), reverse=True)
    assert await audit.page(3) == events[:3]
    assert await audit.page(3, before=events[2].number) == events[3:6]
    assert [each.event for each in await audit.page(2, tenant=ACME, before=events[2].number)] == ["e5", "e3"]
    assert await audit.page(5, before=events[-1].number) == []
    assert await audit.page(5, tenant="nobody") == []


async def test_events_outlive_the_documents(tree: Tree, documents: Documents, audit: Audit, clock: ManualClock) -> None:
    await tree.create("a")
    await tree.delete("a")
    events = await audit.page(100)
    clock.advance(1e8)
    assert await documents.tidy(PLENTY) == 1
    assert await audit.page(100) == events
    with pytest.raises(NotFound):
        await tree.move("a")
    assert await audit.page(100) == events

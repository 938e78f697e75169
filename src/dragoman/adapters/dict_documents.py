"""The `Documents` and the `Audit` of a process that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from dragoman.adapters.dict_bus import DictBus
from dragoman.adapters.dict_passage_rows import PassageShelves
from dragoman.clock import Clock
from dragoman.knowledge import changing
from dragoman.knowledge.indexing import CutAhead, is_found_otherwise
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    ActionRequest,
    Applied,
    AuditEvent,
    Document,
    DocumentChange,
    Revision,
)
from dragoman.knowledge.rows import Receipt
from dragoman.messaging.bus import BusMessage

_MOST_EVENTS = 100_000
"""Older ones are forgotten: there is no disk that could fill up instead of the memory."""


class DictAudit:
    """Implements `Audit`."""

    def __init__(self, bus: DictBus | None = None) -> None:
        self._bus = bus
        self._events: dict[int, AuditEvent] = {}
        self._once: set[str] = set()
        self._noted = 0

    async def note(self, event: AuditEvent, message: BusMessage | None = None) -> bool:
        is_noted = self.add(event)
        if is_noted and message is not None and self._bus is not None:
            self._bus.publish_now(message)
        return is_noted

    async def page(self, limit: int, *, tenant: str | None = None, before: int | None = None) -> list[AuditEvent]:
        found = (
            event
            for number, event in reversed(self._events.items())
            if (before is None or number < before) and tenant in (None, event.tenant)
        )
        return [event for _, event in zip(range(limit), found, strict=False)]

    def add(self, event: AuditEvent) -> bool:
        """As `note`, without waiting."""
        if event.once is not None:
            if event.once in self._once:
                return False
            self._once.add(event.once)
        self._noted += 1
        # As a database would keep it: nobody can change it afterwards.
        details = msgspec.json.decode(msgspec.json.encode(event.details))
        self._events[self._noted] = msgspec.structs.replace(event, number=self._noted, details=details)
        if len(self._events) > _MOST_EVENTS:
            del self._events[next(iter(self._events))]
        return True


class DictDocuments:
    """Implements `Documents`, and the rows that it changes."""

    def __init__(self, clock: Clock, audit: DictAudit) -> None:
        self._clock = clock
        self.rows = _Rows(audit, self._now)

    async def recall(self, request: ActionRequest) -> Applied | None:
        return changing.recall(self.rows, request)

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        self.rows.passages.cut = await CutAhead.of(change, request.tenant, self)
        return changing.carry_out(self.rows, change, request, self._now())

    async def get(self, tenant: str, id: str) -> Document | None:
        self.delete_due()
        document = self.rows.document(tenant, id)
        return None if document is None or document.deleted_at is not None else document

    async def children(self, tenant: str, parent: str, limit: int, *, after: int | None = None) -> list[Document]:
        self.delete_due()
        found = [each for each in self.rows.children(tenant, parent) if after is None or each.place > after]
        return [msgspec.structs.replace(each, body="") for each in found[:limit]]

    async def history(self, tenant: str, id: str, limit: int, *, before: int | None = None) -> list[Revision]:
        kept = reversed(self.rows.revisions.get((tenant, id), ()))
        return [each for each in kept if before is None or each.document.revision < before][:limit]

    async def tidy(self, limit: int) -> int:
        return self.delete_due(limit) + self.rows.purge(self._now(), limit)

    def delete_due(self, limit: int | None = None) -> int:
        """Delete what is due; how much that was."""
        due = self.rows.all_due(self._now())[:limit]
        for document in due:
            changing.delete_due(self.rows, document)
        return len(due)

    def _now(self) -> float:
        return self._clock.now().timestamp()


class _Trees:
    """The documents of all tenants, and what else is remembered."""

    def __init__(self, audit: DictAudit, now: Any) -> None:
        self._audit = audit
        self._now = now
        self._documents: dict[tuple[str, str], Document] = {}
        self._children: dict[tuple[str, str], dict[str, None]] = {}
        self._last_places: dict[tuple[str, str], int] = {}
        """By parent. It may be that of a child that is gone."""
        self._receipts: dict[tuple[Any, ...], tuple[float, Receipt]] = {}
        self._streams: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._scheduled: dict[tuple[str, str], None] = {}
        self.revisions: dict[tuple[str, str], list[Revision]] = {}
        self.passages = PassageShelves()

    def children(self, tenant: str, parent: str) -> list[Document]:
        """In order, and none that is deleted."""
        ids: Iterable[str] = self._children.get((tenant, parent), ())
        found = (self._documents[tenant, id] for id in ids)
        return sorted((each for each in found if each.deleted_at is None), key=attrgetter("place"))

    def all_due(self, now: float) -> list[Document]:
        """The documents of all tenants that are to be deleted by now, in the order in which they are due."""
        scheduled = [self._documents[key] for key in self._scheduled]
        due = [each for each in scheduled if each.deleted_at is None and (each.delete_at or 0.0) <= now]
        return sorted(due, key=lambda each: each.delete_at or 0.0)

    def purge(self, now: float, limit: int) -> int:
        """Forget documents that were deleted long ago, and receipts and streams that have expired."""
        oldest = now - KEPT_DELETED_SECONDS
        old = [
            key for key, each in self._documents.items() if each.deleted_at is not None and each.deleted_at <= oldest
        ]
        for key in old[:limit]:
            self._leave_parent(self._documents.pop(key))
            self.revisions.pop(key, None)
        count = len(old[:limit])
        for expiring in (self._receipts, self._streams):
            expired = [key for key, (until, _) in expiring.items() if until <= now][:limit]
            for gone in expired:
                del expiring[gone]
            count += len(expired)
        return count

    def _leave_parent(self, document: Document) -> None:
        siblings = self._children[document.tenant, document.parent]
        del siblings[document.id]
        if not siblings:
            del self._children[document.tenant, document.parent]
            del self._last_places[document.tenant, document.parent]


class _Rows(_Trees):
    """Implements `DocumentRows`. Nothing is undone: changes check everything before they store anything."""

    def receipt(self, request: ActionRequest) -> Receipt | None:
        until, receipt = self._receipts.get(_receipt_key(request), (0.0, None))
        return receipt if until > self._now() else None

    def keep_receipt(self, request: ActionRequest, applied: Applied, until: float) -> None:
        self._receipts[_receipt_key(request)] = until, Receipt(request.fingerprint, applied.data, applied.hits)

    def last_seq(self, request: ActionRequest) -> int | None:
        return self._streams.get(_stream_key(request), (0.0, None))[1]

    def set_seq(self, request: ActionRequest, until: float) -> None:
        assert request.stream is not None
        self._streams[_stream_key(request)] = until, request.stream.seq

    def document(self, tenant: str, id: str) -> Document | None:
        return self._documents.get((tenant, id))

    def add(self, document: Document) -> None:
        self._put(document)
        self.passages.index(document)

    def _put(self, document: Document) -> None:
        self._documents[document.tenant, document.id] = document
        parent = document.tenant, document.parent
        self._children.setdefault(parent, {})[document.id] = None
        self._last_places[parent] = max(document.place, self._last_places.get(parent, document.place))

    def replace(self, document: Document, before: Document) -> bool:
        stored = self._documents[document.tenant, document.id]
        if stored.revision != before.revision:
            return False
        self._leave_parent(stored)
        self._put(document)
        if is_found_otherwise(document, before):
            self.passages.index(document)
        if document.delete_at is not None:
            self._scheduled[document.tenant, document.id] = None
        return True

    def is_within(self, tenant: str, id: str, ancestor: str) -> bool:
        at: Document | None = self._documents.get((tenant, id))
        while at is not None and at.id != ancestor:
            at = self._documents.get((tenant, at.parent))
        return at is not None

    def last_place(self, tenant: str, parent: str) -> int | None:
        return self._last_places.get((tenant, parent))

    def place_before(self, tenant: str, parent: str, place: int) -> int | None:
        return max((each.place for each in self.children(tenant, parent) if each.place < place), default=None)

    def spread(self, tenant: str, parent: str) -> None:
        for number, each in enumerate(self.children(tenant, parent)):
            self._documents[tenant, each.id] = msgspec.structs.replace(each, place=number * changing.GAP)
            self._last_places[tenant, parent] = number * changing.GAP

    def due(self, tenant: str, now: float) -> list[Document]:
        return [each for each in self.all_due(now) if each.tenant == tenant]

    def delete(self, tenant: str, id: str, at: float) -> int:
        found, count = [self._documents[tenant, id]], 0
        while found:
            document = found.pop()
            if document.deleted_at is None:
                found += self.children(tenant, document.id)
                self._documents[tenant, document.id] = msgspec.structs.replace(document, deleted_at=at)
                self._scheduled.pop((tenant, document.id), None)
                self.passages.forget(tenant, document.id)
                count += 1
        return count

    def keep_revision(self, revision: Revision) -> None:
        document = revision.document
        self.revisions.setdefault((document.tenant, document.id), []).append(revision)

    def note(self, event: AuditEvent) -> bool:
        return self._audit.add(event)


def _receipt_key(request: ActionRequest) -> tuple[Any, ...]:
    return request.tenant, request.action, request.subject, request.key


def _stream_key(request: ActionRequest) -> tuple[str, str, str]:
    assert request.stream is not None
    return request.tenant, request.principal, request.stream.context_id

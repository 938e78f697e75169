"""What changes of documents are made of: single steps, all within one transaction of an engine."""

from __future__ import annotations

from typing import Any, Final, Protocol

from msgspec import Struct

from dragoman.knowledge.port import ActionRequest, Applied, AuditEvent, Document, Revision, Usage

MOST_ROWS: Final = 2_000
"""Rows that one transaction writes at most for documents that leave, or for passages."""
MOST_BYTES: Final = 262_144
"""Of texts that one transaction indexes at most, or takes out of the index."""


class Room(Struct):
    """How much one transaction may still write."""

    rows: int = MOST_ROWS - 100
    """Less than there may be: a change has rows of its own."""
    bytes: int = MOST_BYTES
    documents: int = MOST_ROWS
    """Documents that may be marked as deleted."""

    @classmethod
    def of_a_piece(cls, documents: int = MOST_ROWS) -> Room:
        """A quarter of it, for what nobody waits for: others wait for less, even if the index merges rows as well."""
        return cls(MOST_ROWS // 4, MOST_BYTES // 4, documents)

    @property
    def is_left(self) -> bool:
        return self.rows > 0 and self.bytes > 0

    def take(self, rows: int, bytes: int) -> bool:
        """Whether there is room for so much, which is taken then."""
        if rows > self.rows or bytes > self.bytes:
            return False
        self.rows -= rows
        self.bytes -= bytes
        return True


class Unmarked(Struct, frozen=True):
    """A document that is not marked as deleted."""

    number: int
    delete_at: float | None


class Leaving(Struct, frozen=True):
    """A document that is marked as deleted, while what is below it, or its passages, are there still."""

    turn: int
    """In ascending order: the highest comes first."""
    number: int
    """Of the document."""
    id: str
    top: int
    """The turn of the document that was deleted, and that this one leaves with: its own for that one itself."""
    at: float
    documents: int
    """How many have been marked with it so far, if it is the top."""
    is_scheduled: bool


class TreeLevels(Struct, frozen=True):
    """The position of a document in the tree."""

    depth: int
    """How many documents there are from the top of the tree down to it; none for the root."""
    below: int
    """How many levels there are below it, as far as that matters to where it may be moved; none for the root."""


class Receipt(Struct, frozen=True):
    """The result of a request that was carried out."""

    fingerprint: bytes
    data: dict[str, Any]
    hits: int = 0


class RequestRows(Protocol):
    """What is kept of requests, within a transaction."""

    def receipt(self, request: ActionRequest) -> Receipt | None:
        """It counts for as long as it is there: until it is purged."""
        ...

    def keep_receipt(
        self, request: ActionRequest, applied: Applied, until: float, most_kept: int | None = None
    ) -> None:
        """Raises `QuotaExceeded` if the answers of the tenant would weigh more than `most_kept` with it."""
        ...

    def last_seq(self, request: ActionRequest) -> int | None:
        """The newest of the request's stream."""
        ...

    def set_seq(self, request: ActionRequest, until: float, most_kept: int | None = None) -> None:
        """With `most_kept`, a stream that this request begins counts as an answer does: see `keep_receipt`."""
        ...


class DocumentRows(RequestRows, Protocol):
    """The tables of one engine, within a transaction. Deleted documents are rows like others, but nobody's child."""

    @property
    def is_unfinished(self) -> bool:
        """Whether something of the change is left to be done in further transactions."""
        ...

    def document(self, tenant: str, id: str) -> Document | None:
        """A document without its body."""
        ...

    def body(self, tenant: str, id: str) -> str:
        """The body of a document that there is."""
        ...

    def holds_json(self, tenant: str, id: str) -> bool:
        """Whether the body of a document that there is is JSON."""
        ...

    def usage_with(self, document: Document, before: Document | None, besides: int = 0) -> Usage:
        """What the tenant keeps, and what this state of a document would add: to none, or to the state before.

        `besides` as for `keep_revision`.
        """
        ...

    def add(self, document: Document) -> None:
        """Store a new document, and its passages."""
        ...

    def replace(self, document: Document, before: Document) -> bool:
        """Store another state of a document, if the stored one has the revision of `before`; whether it had.

        If both have the same body, the stored one stays: it may be left out of both.

        Passages that are the same as before keep their numbers.
        """
        ...

    def is_within(self, tenant: str, id: str, ancestor: str) -> bool:
        """Whether a document is `ancestor`, or somewhere below it."""
        ...

    def levels(self, tenant: str, id: str, most: int) -> TreeLevels:
        """Where a document, or the root, stands in the tree. Of the documents above it, at most `most` are counted."""
        ...

    def last_place(self, tenant: str, parent: str, before: int | None = None) -> int | None:
        """The place of the last child, or of the last one in front of a place; None if there is no child."""
        ...

    def spread(self, tenant: str, parent: str, before: int) -> None:
        """Make room in front of the child with a place: others get new places, in the same order, as few as may be."""
        ...

    def is_gone(self, document: Document) -> bool:
        """Whether a document, or one above it, is deleted, or is due by now."""
        ...

    @property
    def leaving(self) -> LeavingRows: ...

    def keep_revision(self, revision: Revision, besides: int = 0) -> None:
        """Keep a revision, of which the audit keeps so many bytes besides; they count until it is purged."""
        ...

    def note(self, event: AuditEvent) -> bool:
        """Whether it was noted: see `AuditEvent.once`."""
        ...


class LeavingRows(Protocol):
    """The documents that leave, within a transaction: they are marked as deleted, and a part of them is there still."""

    @property
    def is_unfinished(self) -> bool:
        """Whether a document that this transaction has marked is left."""
        ...

    def find(self, tenant: str, id: str) -> Unmarked:
        """A document that is there."""
        ...

    def first_due(self, tenant: str, now: float) -> Unmarked | None:
        """Of the documents that are to be deleted by now, and are not yet, the one that is due first."""
        ...

    def first_below(self, tenant: str, id: str) -> Unmarked | None: ...

    def begin(self, tenant: str, number: int, at: float, top: int | None, *, is_scheduled: bool) -> int:
        """Mark a document as deleted, and note that it is leaving; its turn. Without `top` it is one itself."""
        ...

    def last(self, tenant: str) -> Leaving | None:
        """The one with the highest turn."""
        ...

    def forget(self, leaving: Leaving, room: Room) -> bool:
        """Forget passages of a document, as many as there is room for; whether that was all."""
        ...

    def count(self, turn: int, documents: int) -> None:
        """Add to the documents that have been marked with a top."""
        ...

    def end(self, leaving: Leaving) -> None: ...

    def note(self, event: AuditEvent) -> bool:
        """As `DocumentRows.note`."""
        ...

"""What changes of documents are made of: single steps, all within one transaction of an engine."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from dragoman.knowledge.port import ActionRequest, Applied, AuditEvent, Document, Revision


class Receipt(Struct, frozen=True):
    """The result of a request that was carried out."""

    fingerprint: bytes
    data: dict[str, Any]
    hits: int = 0


class DocumentRows(Protocol):
    """The tables of one engine, within a transaction. Deleted documents are rows like others, but nobody's child."""

    def receipt(self, request: ActionRequest) -> Receipt | None: ...

    def keep_receipt(self, request: ActionRequest, applied: Applied, until: float) -> None: ...

    def last_seq(self, request: ActionRequest) -> int | None:
        """The newest of the request's stream."""
        ...

    def set_seq(self, request: ActionRequest, until: float) -> None: ...

    def document(self, tenant: str, id: str) -> Document | None:
        """A document without its body."""
        ...

    def body(self, tenant: str, id: str) -> str:
        """The body of a document that there is."""
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

    def depth(self, tenant: str, id: str, most: int) -> int:
        """How many documents there are from the top of the tree down to one, at most `most`; none for the root."""
        ...

    def reaches(self, tenant: str, id: str, levels: int) -> bool:
        """Whether there is a document so many levels below one; 0 is itself."""
        ...

    def last_place(self, tenant: str, parent: str) -> int | None:
        """The place of the last child; None if there is no child."""
        ...

    def place_before(self, tenant: str, parent: str, place: int) -> int | None:
        """The place of the child in front of the one at `place`; None if that is the first."""
        ...

    def spread(self, tenant: str, parent: str) -> None:
        """Give the children new places, in the same order, with room between them."""
        ...

    def due(self, tenant: str, now: float) -> list[Document]:
        """The documents that are to be deleted by now, and are not yet: some of them, those that are due first."""
        ...

    def delete(self, tenant: str, id: str, at: float) -> int:
        """Mark a document and all below it as deleted, and forget their passages; how many documents those were."""
        ...

    def keep_revision(self, revision: Revision) -> None: ...

    def note(self, event: AuditEvent) -> bool:
        """Whether it was noted: see `AuditEvent.once`."""
        ...

"""The port to the trees of documents, and the values that it speaks of.

1. Every tenant has a tree of its own. `root` is the parent of what stands at the top, and no document.
2. A change has all of its effects or none: the documents, their revisions, the audit, the sequence number of its stream
   and the receipt that a repeat of the same request gets.
3. A document can be found by nobody from the moment in which it, or one above it, is deleted or due. Its id stays taken
   until it is purged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from msgspec import Struct

from dragoman.calls.places import Holder
from dragoman.messaging.bus import BusMessage

ROOT: Final = "root"
KEPT_DELETED_SECONDS: Final = 90 * 86_400
"""How long deleted documents are kept before they are purged."""
KEPT_STREAM_SECONDS: Final = 90 * 86_400
"""How long the newest sequence number of a stream is remembered that nobody uses."""
PIECE_LENGTH: Final = 65_536
"""Characters of a piece of a text; the last one may have fewer."""


class Document(Struct, frozen=True, kw_only=True):
    """A document as it stands, or as it stood at one revision. Times are in seconds since 1970."""

    tenant: str
    id: str
    parent: str
    place: int
    """Where it stands among the children of its parent: in ascending order."""
    revision: int = 1
    title: str
    mime_type: str
    body: str
    tags: tuple[str, ...] = ()
    source: str | None = None
    last_editor: str | None = None
    is_human_readable: bool = True
    created_at: float
    updated_at: float
    delete_at: float | None = None
    """When it is going to be deleted."""
    deleted_at: float | None = None


class Outline(Struct, frozen=True):
    """A document whose body is left out."""

    document: Document
    length: int
    """The number of characters of the body."""


class Usage(Struct, frozen=True):
    """What a tenant keeps."""

    documents: int
    """Documents that are not deleted."""
    size: int
    """Bytes of texts, each counted once, and of revisions, until they are purged."""


class DocumentQuota(Struct, frozen=True):
    """The most that a tenant may keep: see `Usage`."""

    documents: int
    size: int


UNLIMITED: Final = DocumentQuota(2**63, 2**63)


class CreateDocument(Struct, frozen=True, kw_only=True):
    """Add a document behind the other children of its parent."""

    document: Document
    """Its place is not known yet."""
    into_inbox_only: bool = False
    """Whether the parent has to have the tag `agent-inbox`."""


class UpdateDocument(Struct, frozen=True, kw_only=True):
    """Change fields of a document; None removes a field."""

    id: str
    fields: Mapping[str, Any]
    """By the path that the action's `update_mask` has for them."""
    last_known_revision: int | None = None


class DeleteDocument(Struct, frozen=True, kw_only=True):
    """Delete a document and all below it, now or later."""

    id: str
    reason: str | None = None
    delete_at: float | None = None


class MoveDocument(Struct, frozen=True, kw_only=True):
    """Give a document another parent, or another place: before a sibling, or the last one."""

    id: str
    parent: str
    before: str | None = None


class KeepAnswer(Struct, frozen=True, kw_only=True):
    """Change no document, and keep what a request that only reads came to, for repeats of it."""

    data: dict[str, Any]
    hits: int
    most_kept: int
    """Bytes of answers that may be kept for the tenant."""


QueryStep: TypeAlias = Literal["words", "vectors", "answer"]
"""Words are searched always, vectors with an embedder, and an answer is written with a model."""
QUERY_STEPS: Final[tuple[QueryStep, ...]] = get_args(QueryStep)
DocumentChange: TypeAlias = CreateDocument | UpdateDocument | DeleteDocument | MoveDocument | KeepAnswer


class ActionStream(Struct, frozen=True):
    """Requests of one principal that belong together: an older one that comes late is ignored."""

    context_id: str
    seq: int


class ActionRequest(Struct, frozen=True, kw_only=True):
    """On whose behalf an action is carried out, and how a repeat of it is known."""

    tenant: str
    principal: str
    """Whose sequence numbers they are."""
    roles: frozenset[str]
    action: str
    correlation_id: str
    subject: str = ""
    """What the idempotency key is about: see `Action.subject`."""
    key: str | None = None
    """The idempotency key."""
    fingerprint: bytes = b""
    """Of action, version and arguments: the same for repeats of one request."""
    keep_seconds: float = 86_400.0
    """How long a repeat gets the first result."""
    stream: ActionStream | None = None
    web_base: str = ""
    """Before the path of a document's page."""
    passages_only: bool = False
    """Whether a query is to find passages, and no answer is to be made of them."""
    quota: DocumentQuota = UNLIMITED
    """The most that the tenant may keep after the change. Deletes are carried out beyond it, and so are moves."""
    known_as: str | None = None
    """What the principal is called in the history and in the audit, if that is another name."""
    verified_as: str | None = None
    """The part of the principal that was verified, if that is not all: the key of a signature, not the name in it."""

    @property
    def holder(self) -> Holder:
        """For whom it takes a share of what all tenants share."""
        return Holder(self.tenant, self.verified_as or self.principal)

    @property
    def author(self) -> str:
        return self.known_as or self.principal


class Applied(Struct, frozen=True):
    """What an action came to."""

    data: dict[str, Any]
    is_repeated: bool = False
    """Whether it is the result of an earlier request, and nothing was changed."""
    hits: int = 0
    """How many passages the index has found for it."""
    took_part: tuple[QueryStep, ...] | None = None
    """What a query was answered with, as far as that is known: of a repeat it is not."""
    is_unfinished: bool = False
    """Whether rows are left that `Documents.tidy` or `PassageIndex.catch_up` writes. Everybody sees the change."""


class Revision(Struct, frozen=True):
    """A document as it stood after one change, by whom and when."""

    document: Document
    action: str
    principal: str
    at: float


class AuditEvent(Struct, frozen=True, kw_only=True):
    """Something that has happened, for the audit. It is never changed."""

    tenant: str
    event: str
    """Such as `document.created`, or `role.deprecation`."""
    principal: str
    subject: str = ""
    at: float
    details: Mapping[str, Any] = {}
    once: str | None = None
    """An event is noted only if there is none with the same text here."""
    number: int = 0
    """Given when it is noted, in ascending order."""


class Documents(Protocol):
    """Keeps the trees. Every method raises `StorageError`s.

    Reading takes a share of what all tenants share: of the tenant's, and in it of the `Holder`'s `key`.
    """

    async def recall(self, request: ActionRequest) -> Applied | None:
        """What an earlier request with the same key came to, or that this one is too old for its stream.

        None if it has to be carried out. Raises `Conflict` for a key that was used for something else.
        """
        ...

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        """Make a change, unless `recall` has an answer by now. Raises `ToolError`s, and changes nothing then."""
        ...

    async def kept_answers(self, tenant: str) -> int:
        """Bytes of answers that are kept for a tenant."""
        ...

    async def get(self, tenant: str, id: str, *, key: str = "") -> Document | None: ...

    async def outline(self, tenant: str, id: str, *, key: str = "") -> Outline | None:
        """A document without its body, however large that is."""
        ...

    async def children(
        self, tenant: str, parent: str, limit: int, *, after: int | None = None, key: str = ""
    ) -> list[Document]:
        """The documents below one, in order, from behind the place `after`; their bodies are left out.

        Fewer than `limit`, but at least one, if they have much text in other fields.
        """
        ...

    async def history(
        self, tenant: str, id: str, limit: int, *, before: int | None = None, key: str = ""
    ) -> list[Revision]:
        """The revisions of a document, the newest first, those from before a revision if one is given.

        Those of a deleted document too, until it is purged. Bodies are left out. Fewer than `limit` as for `children`.
        """
        ...

    async def revision(self, tenant: str, id: str, number: int, *, key: str = "") -> Revision | None:
        """One of the revisions, with the body."""
        ...

    async def piece(self, tenant: str, id: str, revision: int, at: int, *, key: str = "") -> str:
        """A piece of the body at a revision: `PIECE_LENGTH` characters, from `at` times so many on.

        Empty behind the end, and for a revision that there is not.
        """
        ...

    async def usage(self, tenant: str) -> Usage:
        """What a tenant keeps. Documents from before there was a count are counted when they are converted."""
        ...

    async def convert(self, limit: int) -> int:
        """Give documents and revisions from earlier versions the form that they have now, at most `limit` of them.

        How many were looked at.
        """
        ...

    async def tidy(self, limit: int, until: float | None = None) -> int:
        """One piece of the work that nobody waits for; how much there was, 0 if nothing is left.

        Of each tenant, it deletes what is due and what is below deleted documents, at most `limit`. It purges at most
        `limit` documents that were deleted long ago, and forgets as many old receipts: what may go at `until`, which is
        now by default.
        """
        ...


class Audit(Protocol):
    """Events of all tenants. Changes of documents note theirs themselves, in their own transaction."""

    async def note(self, event: AuditEvent, message: BusMessage | None = None) -> bool:
        """Whether it was noted: see `AuditEvent.once`. If it was, the message is published with it."""
        ...

    async def page(self, limit: int, *, tenant: str | None = None, before: int | None = None) -> list[AuditEvent]:
        """The newest events first, those from before a number if one is given."""
        ...

    async def noted_once(self, beginning: str) -> list[AuditEvent]:
        """The events whose `once` begins with a text, the oldest first."""
        ...

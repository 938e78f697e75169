"""How documents are changed: the rules, for whatever engine the rows are of.

Every function checks everything before it stores anything, so that a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from dragoman.calls.repeats import key_conflict
from dragoman.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, QuotaExceeded, Unauthorized
from dragoman.knowledge.leaving import leave
from dragoman.knowledge.port import (
    KEPT_STREAM_SECONDS,
    ROOT,
    ActionRequest,
    Applied,
    AuditEvent,
    CreateDocument,
    DeleteDocument,
    Document,
    DocumentChange,
    KeepAnswer,
    MoveDocument,
    Revision,
    UpdateDocument,
)
from dragoman.knowledge.roles import INBOX_TAG
from dragoman.knowledge.rows import DocumentRows, Room

GAP = 1 << 20
"""Between the places of siblings that were added one after the other."""
JSON = "application/json"
MIME_TYPES = ("text/markdown", "text/plain", JSON)
MOST_DEPTH = 64
"""Documents from the top of the tree down to the lowest one."""
LONGEST_LINE = 2048
"""Bytes of a title, a source or a name of an editor."""
MOST_TAGS = 100
LONGEST_TAG = 256
"""Bytes of a tag."""
_SPARE = 10
"""Beyond its quota a tenant can move documents, and schedule deletions, until it keeps this part of it more."""
_LINES, _TAGS = ("metadata.title", "metadata.source", "metadata.last_editor"), "metadata.tags"
PAGES = "/knowledge/documents"
_check_syntax = msgspec.json.Decoder(msgspec.Raw).decode


def recall(rows: DocumentRows, request: ActionRequest) -> Applied | None:
    """See `Documents.recall`."""
    if request.key is not None:
        receipt = rows.receipt(request)
        if receipt is not None:
            if receipt.fingerprint != request.fingerprint:
                raise key_conflict()
            return Applied(receipt.data, is_repeated=True, hits=receipt.hits)
    if request.stream is not None:
        last = rows.last_seq(request)
        if last is not None and request.stream.seq < last:
            return Applied({"ignored": True, "last_seq": last})
    return None


def carry_out(rows: DocumentRows, change: DocumentChange, request: ActionRequest, now: float) -> Applied:
    """See `Documents.carry_out`."""
    earlier = recall(rows, request)
    if earlier is not None:
        return earlier
    data = _CHANGES[type(change)](rows, change, request, now)
    hits, most_kept = (change.hits, change.most_kept) if isinstance(change, KeepAnswer) else (0, None)
    applied = Applied(data, hits=hits, is_unfinished=rows.is_unfinished)
    if request.key is not None:
        rows.keep_receipt(request, applied, now + request.keep_seconds, most_kept)
    if request.stream is not None:
        kept_seconds = KEPT_STREAM_SECONDS if most_kept is None else request.keep_seconds
        rows.set_seq(request, now + kept_seconds, most_kept)
    return applied


def page_of(request: ActionRequest, id: str) -> str:
    """The address of a document's page."""
    return f"{request.web_base}{PAGES}/{quote(request.tenant, safe='')}/{id}"


def check_content(mime_type: str, body: str) -> None:
    """Raise `InvalidArgument` for content that cannot be what it says."""
    _check_type(mime_type)
    if mime_type == JSON and not is_json(body):
        raise _no_json()


def is_json(body: str) -> bool:
    """Whether a text is JSON. Nothing is made of it: a text of brackets would take a hundred times the memory."""
    try:
        _check_syntax(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def _check_type(mime_type: str) -> None:
    if mime_type not in MIME_TYPES:
        raise unfit("content.mime_type", f"must be one of {', '.join(MIME_TYPES)}")


def _no_json() -> InvalidArgument:
    return unfit("content.body", "is not JSON")


def check_lines(fields: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument` for a title, a source, an editor or tags that are larger than they may be.

    Documents from before there were limits keep theirs until these fields are changed.
    """
    for path in _LINES:
        if _is_longer(fields.get(path) or "", LONGEST_LINE):
            raise unfit(path, f"has more than {LONGEST_LINE} bytes", "too_large")
    tags = fields.get(_TAGS) or ()
    if len(tags) > MOST_TAGS:
        raise unfit(_TAGS, f"has more than {MOST_TAGS} tags", "too_large")
    if any(_is_longer(each, LONGEST_TAG) for each in tags):
        raise unfit(_TAGS, f"has a tag of more than {LONGEST_TAG} bytes", "too_large")


def _is_longer(text: str, most: int) -> bool:
    """Whether a text has more bytes than that, found out without encoding one of any size."""
    return len(text) > most or len(text.encode()) > most


def _create(rows: DocumentRows, change: CreateDocument, request: ActionRequest, now: float) -> dict[str, Any]:
    draft = change.document
    check_lines({"metadata.title": draft.title, "metadata.source": draft.source, _TAGS: draft.tags})
    if draft.parent == ROOT:
        if change.into_inbox_only:
            raise _not_inbox()
    else:
        parent = _standing(rows, request.tenant, draft.parent, "parent_id")
        if change.into_inbox_only and INBOX_TAG not in parent.tags:
            raise _not_inbox()
        if rows.levels(request.tenant, draft.parent, MOST_DEPTH).depth >= MOST_DEPTH:
            raise _too_deep("parent_id")
    taken = rows.document(request.tenant, draft.id)
    if taken is not None:
        gone = ", deleted and not purged yet" if rows.is_gone(taken) else ""
        facts = {"reason": "document_exists", "document_id": draft.id}
        raise AlreadyExists(f"There is a document with this id{gone}", facts)
    document = replace(draft, place=_behind_all(rows, request.tenant, draft.parent))
    _check_room(rows, request, document)
    rows.add(document)
    _record(rows, document, request, now, "document.created")
    return _told(document, request)


def _update(rows: DocumentRows, change: UpdateDocument, request: ActionRequest, now: float) -> dict[str, Any]:
    before = _standing(rows, request.tenant, change.id, "document_id")
    if "content.body" in change.fields:
        before = replace(before, body=rows.body(request.tenant, change.id))
    expected = before.revision if change.last_known_revision is None else change.last_known_revision
    after = replace(_patched(before, change.fields), revision=before.revision + 1, updated_at=now)
    becomes_json = after.mime_type == JSON != before.mime_type and "content.body" not in change.fields
    if becomes_json and not rows.holds_json(request.tenant, change.id):
        raise _no_json()
    if expected == before.revision:
        _check_room(rows, request, after, before)
    if expected != before.revision or not rows.replace(after, before):
        facts = {"reason": "revision_conflict", "expected_revision": expected, "actual": before.revision}
        raise Conflict(f"The document has revision {before.revision}", facts)
    _record(rows, after, request, now, "document.updated", {"fields": sorted(change.fields)})
    return _told(after, request)


def _delete(rows: DocumentRows, change: DeleteDocument, request: ActionRequest, now: float) -> dict[str, Any]:
    before = _standing(rows, request.tenant, change.id, "document_id")
    is_later = change.delete_at is not None and change.delete_at > now
    after = replace(
        before,
        revision=before.revision + 1,
        updated_at=now,
        delete_at=change.delete_at if is_later else before.delete_at,
    )
    details: dict[str, Any] = {} if change.reason is None else {"reason": change.reason}
    if is_later:  # Other than a deletion, it can be repeated without end.
        _check_room(rows, request, after, before, spare=request.quota.size // _SPARE, besides=_size_of(details))
    rows.replace(after, before)
    data: dict[str, Any] = {"id": after.id, "revision": after.revision, "deleted": not is_later}
    if is_later:
        details["delete_at"] = data["delete_at"] = _iso(after.delete_at)
    else:
        after = replace(after, deleted_at=now)
        if (documents := leave(rows.leaving, request.tenant, after.id, now, Room())) is not None:
            details["documents"] = data["documents"] = documents
    _record(rows, after, request, now, "document.scheduled" if is_later else "document.deleted", details)
    return data


def _move(rows: DocumentRows, change: MoveDocument, request: ActionRequest, now: float) -> dict[str, Any]:
    before = _standing(rows, request.tenant, change.id, "document_id")
    if change.parent != ROOT:
        _standing(rows, request.tenant, change.parent, "new_parent_id")
        if rows.is_within(request.tenant, change.parent, change.id):
            raise unfit("new_parent_id", "is the document itself, or below it", "cycle")
        _check_depth(rows, change, request.tenant)
    _check_room(rows, request, before, before, spare=request.quota.size // _SPARE)
    place = _place_for(rows, change, request.tenant)
    after = replace(before, parent=change.parent, place=place, revision=before.revision + 1, updated_at=now)
    rows.replace(after, before)
    details = {"from": before.parent, "to": after.parent}
    _record(rows, after, request, now, "document.moved", details)
    return {"id": after.id, "revision": after.revision, "parent_id": after.parent}


def _keep(rows: DocumentRows, change: KeepAnswer, request: ActionRequest, now: float) -> dict[str, Any]:
    return change.data


_CHANGES: Mapping[type, Callable[[DocumentRows, Any, ActionRequest, float], dict[str, Any]]] = {
    CreateDocument: _create,
    UpdateDocument: _update,
    DeleteDocument: _delete,
    MoveDocument: _move,
    KeepAnswer: _keep,
}


def _standing(rows: DocumentRows, tenant: str, id: str, argument: str) -> Document:
    """A document that is there, without its body; raises `NotFound`."""
    document = rows.document(tenant, id)
    if document is None or rows.is_gone(document):
        raise NotFound("There is no such document", {"reason": "unknown_document", "argument": argument})
    return document


def _check_room(
    rows: DocumentRows,
    request: ActionRequest,
    document: Document,
    before: Document | None = None,
    *,
    spare: int = 0,
    besides: int = 0,
) -> None:
    """Raise `QuotaExceeded` for a revision that its tenant may not keep: beyond its quota and `spare` bytes."""
    quota, usage = request.quota, rows.usage_with(document, before, besides)
    if before is None and usage.documents > quota.documents:
        raise _beyond(
            "knowledge.documents_per_tenant", f"{quota.documents} documents", quota.documents, usage.documents
        )
    if usage.size > quota.size + spare:
        raise _beyond("knowledge.document_bytes_per_tenant", f"{quota.size} bytes of documents", quota.size, usage.size)


def _beyond(setting: str, most: str, limit: int, actual: int) -> QuotaExceeded:
    return QuotaExceeded(f"At most {most} are kept for a tenant", "document_quota", setting, limit, actual)


def _check_depth(rows: DocumentRows, change: MoveDocument, tenant: str) -> None:
    """Raise `InvalidArgument` for a move that leads deeper, and too deep, with what is below the document.

    A tree from before there was a limit can be moved up.
    """
    depth = rows.levels(tenant, change.parent, MOST_DEPTH).depth + 1
    now = rows.levels(tenant, change.id, depth)
    if now.depth < depth and depth + now.below > MOST_DEPTH:
        raise _too_deep("new_parent_id")


def _behind_all(rows: DocumentRows, tenant: str, parent: str) -> int:
    last = rows.last_place(tenant, parent)
    return 0 if last is None else last + GAP


def _place_for(rows: DocumentRows, change: MoveDocument, tenant: str) -> int:
    if change.before is None or change.before == change.id:
        return _behind_all(rows, tenant, change.parent)
    sibling = rows.document(tenant, change.before)
    if sibling is None or sibling.parent != change.parent or rows.is_gone(sibling):
        raise unfit("position.before", "is no document below the new parent", "no_sibling")
    in_front = rows.last_place(tenant, change.parent, before=sibling.place)
    if in_front is None:
        return sibling.place - GAP
    if sibling.place - in_front > 1:
        return (sibling.place + in_front) // 2
    rows.spread(tenant, change.parent, sibling.place)
    return _place_for(rows, change, tenant)


def _patched(document: Document, fields: Mapping[str, Any]) -> Document:
    """A document with other fields, as JSON Merge Patch has it. Raises `InvalidArgument`."""
    changed: dict[str, Any] = {}
    for path, value in fields.items():
        name, empty = FIELDS[path]
        if value is None and empty is REQUIRED:
            raise unfit(path, "cannot be removed")
        changed[name] = empty if value is None else value
    check_lines(fields)
    document = replace(document, **changed)
    if "content.body" in fields:
        check_content(document.mime_type, document.body)
    _check_type(document.mime_type)
    return document


REQUIRED: Any = object()
FIELDS: Mapping[str, tuple[str, Any]] = {
    "content.mime_type": ("mime_type", REQUIRED),
    "content.body": ("body", REQUIRED),
    "metadata.title": ("title", REQUIRED),
    "metadata.tags": ("tags", ()),
    "metadata.last_editor": ("last_editor", None),
    "is_human_readable": ("is_human_readable", True),
}
"""The fields that can be changed, by path: the name that a `Document` has for each, and what it is when removed."""


def _record(
    rows: DocumentRows,
    document: Document,
    request: ActionRequest,
    now: float,
    event: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    besides = _size_of(details or {})
    rows.keep_revision(Revision(document, request.action, request.author, now), besides)
    facts = {"revision": document.revision, "correlation_id": request.correlation_id, **(details or {})}
    rows.note(
        AuditEvent(
            tenant=request.tenant,
            event=event,
            principal=request.author,
            subject=document.id,
            at=now,
            details=facts,
        )
    )


def _size_of(details: Mapping[str, Any]) -> int:
    """Bytes of the text in an event that a caller writes; half a kilobyte counts for the rest of it anyway."""
    return len(str(details.get("reason", "")).encode(errors="replace"))


def _told(document: Document, request: ActionRequest) -> dict[str, Any]:
    data: dict[str, Any] = {"id": document.id, "revision": document.revision}
    if document.is_human_readable:
        data["web_uri"] = page_of(request, document.id)
    return data


def unfit(path: str, message: str, reason: str = "invalid_value") -> InvalidArgument:
    """The error for an argument that fits the schema, and no document."""
    facts = {"reason": reason, "errors": [{"path": path, "message": message}]}
    return InvalidArgument(f"{path} {message}", facts)


def _too_deep(path: str) -> InvalidArgument:
    return unfit(path, f"leads to a tree that is more than {MOST_DEPTH} documents deep", "too_deep")


def _not_inbox() -> Unauthorized:
    facts = {"reason": "no_inbox", "tag": INBOX_TAG}
    return Unauthorized(f"An agent may create documents only directly below one with the tag {INBOX_TAG}", facts)


def _iso(moment: float | None) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment or 0.0, UTC).isoformat().replace("+00:00", "Z")

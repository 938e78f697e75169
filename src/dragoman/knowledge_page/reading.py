"""What the page shows of documents, as plain values. Every method raises `NotFound` and `StorageError`s."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dragoman.errors import NotFound
from dragoman.knowledge.port import ROOT, Document, Documents, Revision
from dragoman.knowledge_page.differences import difference
from dragoman.knowledge_page.rendering import render, visible

CHILDREN_AT_ONCE: Final = 100
REVISIONS_AT_ONCE: Final = 20
MOST_ABOVE: Final = 32
"""Documents above one that are named; the tree may be deeper."""
_THREADS: Final = 2
"""Texts that are rendered or compared at a time."""
_FIELDS: Final = ("title", "tags", "mime_type", "parent", "delete_at", "is_human_readable")
"""What a revision may change besides the text."""


class Reading:
    """Reads documents of a tenant that the caller has."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._turns = asyncio.Semaphore(_THREADS)

    async def children(self, tenant: str, parent: str, after: int | None) -> dict[str, Any]:
        """Some of the documents below one; `next` is the `after` of the following ones, or null."""
        found = await self._documents.children(tenant, parent, CHILDREN_AT_ONCE + 1, after=after)
        shown, rest = found[:CHILDREN_AT_ONCE], found[CHILDREN_AT_ONCE:]
        return {
            "children": [{**_listed(each), "hasChildren": await self._has_children(each)} for each in shown],
            "next": str(shown[-1].place) if rest else None,
        }

    async def document(self, tenant: str, id: str) -> dict[str, Any]:
        """A document without its text, and the documents above it, from the top of the tree on."""
        found = await self._find(tenant, id)
        above: list[dict[str, Any]] = []
        parent = found.parent
        while parent != ROOT and len(above) < MOST_ABOVE:
            each = await self._find(tenant, parent)
            above.append(_listed(each))
            parent = each.parent
        return {
            **_listed(found),
            "path": above[::-1],
            "isWhole": parent == ROOT,
            "hasChildren": await self._has_children(found),
            "tags": [*map(visible, found.tags)],
            "mimeType": found.mime_type,
            "length": len(found.body),
            "source": visible(found.source or ""),
            "lastEditor": visible(found.last_editor or ""),
            "createdAt": found.created_at,
            "updatedAt": found.updated_at,
            "deleteAt": found.delete_at,
        }

    async def rendered(self, tenant: str, id: str) -> str:
        """The text of a document as HTML."""
        found = await self._readable(tenant, id)
        async with self._turns:
            return await asyncio.to_thread(render, tenant, found.title, found.mime_type, found.body)

    async def history(self, tenant: str, id: str, before: int | None) -> dict[str, Any]:
        """Some of the revisions, the newest first; `next` is the `before` of the following ones, or null."""
        await self._readable(tenant, id)
        revisions: list[dict[str, Any]] = []
        while (left := REVISIONS_AT_ONCE - len(revisions)) > 0:
            found = await self._documents.history(tenant, id, left, before=before)
            if not found:
                return {"revisions": revisions, "next": None}
            before = found[-1].document.revision
            revisions += map(_worded, found)
        return {"revisions": revisions, "next": before if before is not None and before > 1 else None}

    async def compare(self, tenant: str, id: str, old: int | None, new: int | None) -> dict[str, Any]:
        """What has changed from one revision to another; the revision 0 is an empty one."""
        await self._readable(tenant, id)
        if old is None or new is None or not 0 <= old < new:
            raise _unknown()
        after = await self._revision(tenant, id, new)
        before = None if old == 0 else await self._revision(tenant, id, old)
        async with self._turns:
            text = "" if before is None else before.document.body
            found = await asyncio.to_thread(difference, text, after.document.body)
        return {"from": old, "to": _worded(after), "fields": _changed(before, after), **found}

    async def _find(self, tenant: str, id: str) -> Document:
        found = await self._documents.get(tenant, id)
        if found is None:
            raise _unknown()
        return found

    async def _readable(self, tenant: str, id: str) -> Document:
        found = await self._find(tenant, id)
        if not found.is_human_readable:
            raise _unknown()
        return found

    async def _revision(self, tenant: str, id: str, number: int) -> Revision:
        found = await self._documents.revision(tenant, id, number)
        if found is None:
            raise _unknown()
        return found

    async def _has_children(self, document: Document) -> bool:
        return bool(await self._documents.children(document.tenant, document.id, 1))


def _unknown() -> NotFound:
    return NotFound("There is no such document")


def _listed(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "title": visible(document.title),
        "revision": document.revision,
        "isReadable": document.is_human_readable,
    }


def _worded(revision: Revision) -> dict[str, Any]:
    return {
        "revision": revision.document.revision,
        "action": revision.action.removeprefix("knowledge.").removesuffix("_document"),
        "by": visible(revision.principal),
        "at": revision.at,
    }


def _changed(before: Revision | None, after: Revision) -> list[dict[str, Any]]:
    if before is None:
        return []
    pairs = ((name, getattr(before.document, name), getattr(after.document, name)) for name in _FIELDS)
    return [{"field": name, "before": _plain(old), "after": _plain(new)} for name, old, new in pairs if old != new]


def _plain(value: Any) -> Any:
    """A field for people: lists as text, and everything with its characters told apart."""
    text = ", ".join(value) if isinstance(value, tuple) else value
    return visible(text) if isinstance(text, str) else text

"""What the page shows of documents, as plain values. Every method raises `NotFound` and `StorageError`s."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any, Final

from dragoman.calls.places import Holder
from dragoman.errors import NotFound
from dragoman.knowledge.changing import MOST_TAGS
from dragoman.knowledge.port import PIECE_LENGTH, ROOT, Document, Documents, Outline, Revision
from dragoman.knowledge_page import differences, rendering
from dragoman.knowledge_page.differences import difference
from dragoman.knowledge_page.rendering import MOST_SHOWN, render, visible
from dragoman.knowledge_page.work import Work, Workshop

CHILDREN_AT_ONCE: Final = 100
REVISIONS_AT_ONCE: Final = 20
LONGEST_LINE: Final = 4_096
"""Characters of a title, a tag or another field that are shown: those of earlier versions have no limit."""
MOST_COMPARED: Final = 4_194_304
"""Characters of a text that is compared: of a longer one, the beginning."""
MOST_DIFFERENT: Final = 1_048_576
"""Characters of the rows that a comparison is answered with."""
MOST_ABOVE: Final = 32
"""Documents above one that are named; the tree may be deeper."""
_FIELDS: Final = ("title", "tags", "mime_type", "parent", "delete_at", "is_human_readable")
"""What a revision may change besides the text."""


class Reading:
    """Reads documents of the tenant that a holder names, in its share."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._workshop = Workshop()

    async def children(self, holder: Holder, parent: str, after: int | None) -> dict[str, Any]:
        """Some of the documents below one; `next` is the `after` of the following ones, or null."""
        tenant, key = holder
        found = await self._documents.children(tenant, parent, CHILDREN_AT_ONCE, after=after, key=key)
        last = found[-1].place if found else None
        rest = [] if last is None else await self._documents.children(tenant, parent, 1, after=last, key=key)
        return {
            "children": [{**_listed(each), "hasChildren": await self._has_children(holder, each.id)} for each in found],
            "next": str(last) if rest else None,
        }

    async def document(self, holder: Holder, id: str) -> dict[str, Any]:
        """A document without its text, and the documents above it, from the top of the tree on."""
        outline = await self._outline(holder, id)
        found = outline.document
        above: list[dict[str, Any]] = []
        parent = found.parent
        while parent != ROOT and len(above) < MOST_ABOVE:
            each = (await self._outline(holder, parent)).document
            above.append(_listed(each))
            parent = each.parent
        return {
            **_listed(found),
            "path": above[::-1],
            "isWhole": parent == ROOT,
            "hasChildren": await self._has_children(holder, id),
            "tags": [*map(_shown, found.tags[:MOST_TAGS])],
            "mimeType": found.mime_type,
            "length": outline.length,
            "source": _shown(found.source or ""),
            "lastEditor": _shown(found.last_editor or ""),
            "createdAt": found.created_at,
            "updatedAt": found.updated_at,
            "deleteAt": found.delete_at,
        }

    async def rendered(self, holder: Holder, id: str) -> bytes:
        """The text of a document as HTML."""
        async with self._workshop.turn(holder) as run:
            outline = await self._readable(holder, id)
            found, body = outline.document, await self._beginning(holder, outline.document, MOST_SHOWN)
            asked = holder.tenant, found.title[:LONGEST_LINE], found.mime_type, body
            return await run(rendering.MOST_STEPS, partial(_rendered, *asked, length=outline.length))

    async def history(self, holder: Holder, id: str, before: int | None) -> dict[str, Any]:
        """Some of the revisions, the newest first; `next` is the `before` of the following ones, or null."""
        tenant, key = holder
        await self._readable(holder, id)
        revisions: list[dict[str, Any]] = []
        while (left := REVISIONS_AT_ONCE - len(revisions)) > 0:
            found = await self._documents.history(tenant, id, left, before=before, key=key)
            if not found:
                return {"revisions": revisions, "next": None}
            before = found[-1].document.revision
            revisions += map(_worded, found)
        return {"revisions": revisions, "next": before if before is not None and before > 1 else None}

    async def compare(self, holder: Holder, id: str, old: int | None, new: int | None) -> dict[str, Any]:
        """What has changed from one revision to another; the revision 0 is an empty one."""
        async with self._workshop.turn(holder) as run:
            await self._readable(holder, id)
            if old is None or new is None or not 0 <= old < new:
                raise _unknown()
            after = await self._revision(holder, id, new)
            before = None if old == 0 else await self._revision(holder, id, old)
            old_text = "" if before is None else await self._beginning(holder, before.document, MOST_COMPARED)
            new_text = await self._beginning(holder, after.document, MOST_COMPARED)
            found = await run(differences.MOST_STEPS, partial(difference, old_text, new_text))
        found["isCut"] |= max(len(old_text), len(new_text)) >= MOST_COMPARED
        return {"from": old, "to": _worded(after), "fields": _changed(before, after), **_cut(found)}

    async def _beginning(self, holder: Holder, document: Document, most: int) -> str:
        """As much of the text of a document as is shown, or compared."""
        pieces: list[str] = []
        while len(pieces) * PIECE_LENGTH < most:
            place = document.tenant, document.id, document.revision, len(pieces)
            pieces.append(await self._documents.piece(*place, key=holder.key))
            if len(pieces[-1]) < PIECE_LENGTH:
                break
        return "".join(pieces)

    async def _outline(self, holder: Holder, id: str) -> Outline:
        found = await self._documents.outline(holder.tenant, id, key=holder.key)
        if found is None:
            raise _unknown()
        return found

    async def _readable(self, holder: Holder, id: str) -> Outline:
        found = await self._outline(holder, id)
        if not found.document.is_human_readable:
            raise _unknown()
        return found

    async def _revision(self, holder: Holder, id: str, number: int) -> Revision:
        found = await self._documents.history(holder.tenant, id, 1, before=number + 1, key=holder.key)
        if not found or found[0].document.revision != number:
            raise _unknown()
        return found[0]

    async def _has_children(self, holder: Holder, id: str) -> bool:
        return bool(await self._documents.children(holder.tenant, id, 1, key=holder.key))


def _rendered(tenant: str, title: str, mime_type: str, body: str, work: Work, *, length: int) -> bytes:
    return render(tenant, title, mime_type, body, work, length=length).encode(errors="replace")


def _unknown() -> NotFound:
    return NotFound("There is no such document")


def _listed(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "title": _shown(document.title),
        "revision": document.revision,
        "isReadable": document.is_human_readable,
    }


def _worded(revision: Revision) -> dict[str, Any]:
    return {
        "revision": revision.document.revision,
        "action": revision.action.removeprefix("knowledge.").removesuffix("_document"),
        "by": _shown(revision.principal),
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
    return _shown(text) if isinstance(text, str) else text


def _shown(text: str) -> str:
    return visible(text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…")


def _cut(found: dict[str, Any]) -> dict[str, Any]:
    """A difference with as many of its rows as are answered."""
    lengths = accumulate(len(row.get("text", "")) for row in found["rows"])
    count = sum(length <= MOST_DIFFERENT for length in lengths)
    return {**found, "rows": found["rows"][:count], "isCut": found["isCut"] or count < len(found["rows"])}

"""Changes of documents and the requests for them, with most of it filled in."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.errors import StorageFailed
from dragoman.knowledge.port import (
    ROOT,
    ActionRequest,
    ActionStream,
    Applied,
    CreateDocument,
    DeleteDocument,
    Document,
    DocumentChange,
    Documents,
    MoveDocument,
    Outline,
    UpdateDocument,
)

ACME, OTHER = "acme", "other"
PLENTY = 10_000
_ACTIONS = {CreateDocument: "create", UpdateDocument: "update", DeleteDocument: "delete", MoveDocument: "move"}


def asked(action: str = "update", *, seq: int | None = None, context: str = "", **fields: Any) -> ActionRequest:
    """A request, of tenant `acme` unless `fields` say otherwise."""
    given = {
        "tenant": ACME,
        "principal": "svc:writer",
        "roles": frozenset(("owner",)),
        "action": f"knowledge.{action}_document",
        "correlation_id": "c",
        "stream": None if seq is None else ActionStream(context, seq),
        **fields,
    }
    return ActionRequest(**given)


def draft(id: str, parent: str = ROOT, tenant: str = ACME, **fields: Any) -> Document:
    """A document that is to be created."""
    given = {
        "title": f"Title of {id}",
        "mime_type": "text/plain",
        "body": f"Body of {id}",
        "created_at": 5.0,
        "updated_at": 5.0,
        **fields,
    }
    return Document(tenant=tenant, id=id, parent=parent, place=0, **given)


def titled(id: str, title: str, last_known_revision: int | None = None) -> UpdateDocument:
    """A change of a title."""
    return UpdateDocument(id=id, fields={"metadata.title": title}, last_known_revision=last_known_revision)


class BrokenDocuments:
    """Documents that cannot be read."""

    async def get(self, tenant: str, id: str, *, key: str = "") -> Document | None:
        raise StorageFailed("/secret/path is broken")

    async def outline(self, tenant: str, id: str, *, key: str = "") -> Outline | None:
        raise StorageFailed("/secret/path is broken")


class Tree(Struct):
    """The documents of one tenant, and short ways to change them."""

    documents: Documents
    tenant: str = ACME

    async def do(self, change: DocumentChange, **fields: Any) -> Applied:
        """Make a change, for a request with these fields."""
        return await self.documents.carry_out(change, asked(_ACTIONS[type(change)], tenant=self.tenant, **fields))

    async def create(self, id: str, parent: str = ROOT, **fields: Any) -> Applied:
        return await self.do(CreateDocument(document=draft(id, parent, self.tenant, **fields)))

    async def move(self, id: str, parent: str = ROOT, before: str | None = None) -> Applied:
        return await self.do(MoveDocument(id=id, parent=parent, before=before))

    async def delete(self, id: str, delete_at: float | None = None) -> Applied:
        return await self.do(DeleteDocument(id=id, delete_at=delete_at))

    async def get(self, id: str) -> Document:
        """A document that is there."""
        document = await self.documents.get(self.tenant, id)
        assert document is not None
        return document

    async def is_there(self, id: str) -> bool:
        return await self.documents.get(self.tenant, id) is not None

    async def ids(self, parent: str = ROOT) -> list[str]:
        """The children of a document, in order."""
        children = await self.documents.children(self.tenant, parent, PLENTY)
        places = [each.place for each in children]
        assert places == sorted(set(places))
        return [each.id for each in children]

    async def way_up(self, id: str, longest: int = 100) -> list[str]:
        """The ids from a document up to the root. Fails for a cycle."""
        way = [id]
        while (parent := (await self.get(way[-1])).parent) != ROOT:
            way.append(parent)
            assert len(way) <= longest, "a cycle"
        return way

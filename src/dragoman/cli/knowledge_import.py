"""What `dragoman knowledge import` does: makes the documents of a tenant what the files in a folder say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.calls.limits import encode_arguments
from dragoman.cli.knowledge_files import (
    FOLDER_TYPE,
    SUFFIXES,
    DocumentList,
    FoundDocument,
    FoundTree,
    ListedDocument,
    id_for,
)
from dragoman.cli.storage_access import OPERATOR
from dragoman.errors import ToolError
from dragoman.files import read_regular_file
from dragoman.gateway.keeping import Objects
from dragoman.ids import RandomIds
from dragoman.knowledge.actions import ACTIONS, CHANGES
from dragoman.knowledge.changing import check_content
from dragoman.knowledge.port import ActionRequest, Document, DocumentQuota, Documents
from dragoman.knowledge.roles import OWNER

_AT_ONCE = 64
"""Writes that are committed together."""
_WEIGHT_AT_ONCE = 16 * 1024 * 1024
"""Bytes of files that are read at a time, or one file."""
_CREATE, _UPDATE = "knowledge.create_document", "knowledge.update_document"
_LARGEST_MESSAGE = ACTIONS[_CREATE].max_payload_bytes or 0
_FOLDER_CONTENT = {"mime_type": FOLDER_TYPE, "body": ""}


class Wanted(Struct, kw_only=True):
    """A document as its file has it."""

    found: FoundDocument
    id: str
    parent_id: str
    title: str
    content: dict[str, str] | None
    """None for a folder without text."""
    listed: ListedDocument | None


class Writing(Struct):
    """A change that a document needs."""

    found: FoundDocument
    arguments: dict[str, Any]
    encoded: bytes
    is_new: bool

    @property
    def is_large(self) -> bool:
        """Whether the arguments are too large for a message."""
        return len(self.encoded) > _LARGEST_MESSAGE


class Imported(Struct):
    """The figures of an import, and its problems."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[tuple[str, str]] = []


class Import:
    """One import. If it is interrupted, the same import goes on from there when it is run again."""

    def __init__(
        self,
        documents: Documents,
        objects: Objects,
        tenant: str,
        parent: str,
        listed: DocumentList,
        now: Callable[[], float],
        most_bytes: int,
        quota: DocumentQuota,
    ) -> None:
        """Arguments that are too large for a message pass through an artifact of at most `most_bytes`."""
        self.came_to = Imported()
        self._objects = objects
        self._most_bytes = max(most_bytes, _LARGEST_MESSAGE)
        self._quota = quota
        self._documents = documents
        self._tenant = tenant
        self._parent = parent
        self._listed = listed.documents
        self._now = now
        self._ids = RandomIds()
        self._missing: set[str] = set()

    async def run(self, tree: FoundTree, on_progress: Callable[[int], None]) -> None:
        """Import what was found, each folder before what is in it. Raises `StorageError`s."""
        self.came_to.problems += tree.problems
        for level in tree.levels:
            for batch in _batches(level):
                await self._take(batch)
                on_progress(len(batch))

    async def _take(self, batch: list[FoundDocument]) -> None:
        read = [wanted for each in batch if (wanted := self._read(each)) is not None]
        kept = await asyncio.gather(*(self._documents.get(self._tenant, each.id) for each in read))
        makers = await asyncio.gather(*map(self._maker, read, kept))
        # In one go: writes are carried out in the order in which they are asked for, and so get their places.
        # What passes through an artifact takes longer, and so goes alone.
        together: list[Writing] = []
        for each in map(self._prepare, read, kept, makers):
            if each is None:
                continue
            if each.is_large:
                await asyncio.gather(*map(self._store, together))
                together.clear()
                await self._store(each)
            else:
                together.append(each)
        await asyncio.gather(*map(self._store, together))

    def _read(self, found: FoundDocument) -> Wanted | None:
        """None for what cannot be a document."""
        try:
            if found.parent in self._missing:
                raise ValueError("its folder could not be imported")
            content = None if found.file is None else _content_of(found.file, self._most_bytes)
        except ValueError as error:
            self._refuse(found, str(error))
            return None
        listed = self._listed.get(found.path)
        return Wanted(
            found=found,
            id=self._id_of(found.path),
            parent_id=self._id_of(found.parent) if found.parent else self._parent,
            title=found.title if listed is None else listed.title,
            content=content,
            listed=listed,
        )

    def _id_of(self, path: str) -> str:
        listed = self._listed.get(path)
        return id_for(self._tenant, self._parent, path) if listed is None else listed.id

    def _refuse(self, found: FoundDocument, reason: str) -> None:
        self.came_to.problems.append((found.path, reason))
        self._missing.add(found.path)

    async def _maker(self, wanted: Wanted, kept: Document | None) -> str | None:
        """The author of a document that this import must not take for its own; None if it may.

        Ids are made of paths, so whoever may create documents can take one first, and would have what is imported below
        it where that document stands. An id that the list names is trusted if the document stands where the list says.
        """
        if kept is None or (wanted.listed is not None and kept.parent == wanted.parent_id):
            return None
        first = await self._documents.history(self._tenant, kept.id, 1, before=2)
        maker = first[0].principal if first else "somebody"
        return None if maker == OPERATOR else maker

    def _prepare(self, wanted: Wanted, kept: Document | None, maker: str | None) -> Writing | None:
        """None if there is nothing to write."""
        if kept is not None and maker is not None:
            said = f"the document {kept.id} has its id, and was made by {maker}, not by an import: use another --parent"
            self._refuse(wanted.found, said)
            return None
        arguments = _creation(wanted) if kept is None else _update(wanted, kept)
        if arguments is None:
            self.came_to.unchanged += 1
            return None
        encoded = encode_arguments(arguments)
        if len(encoded) > self._most_bytes:
            said = f"it is too large: {len(encoded)} bytes of arguments, and {self._most_bytes} are the most"
            self._refuse(wanted.found, said)
            return None
        return Writing(wanted.found, arguments, encoded, is_new=kept is None)

    async def _store(self, writing: Writing) -> None:
        action, arguments = _CREATE if writing.is_new else _UPDATE, writing.arguments
        request = ActionRequest(
            tenant=self._tenant,
            principal=OPERATOR,
            roles=frozenset((OWNER,)),
            action=action,
            correlation_id=self._ids.correlation_id(),
            quota=self._quota,
        )
        try:
            if writing.is_large:
                arguments = await self._objects.pass_through(self._tenant, writing.encoded)
            await self._documents.carry_out(CHANGES[action](arguments, request, self._now()), request)
        except ToolError as error:
            is_taken = (error.details or {}).get("reason") == "document_exists"
            reason = "its document was deleted, and the id is free only 90 days later" if is_taken else error.message
            self._refuse(writing.found, reason)
            return
        if writing.is_new:
            self.came_to.created += 1
        else:
            self.came_to.updated += 1


def _batches(level: list[FoundDocument]) -> Iterator[list[FoundDocument]]:
    """Documents in order, as many as are held in memory at a time."""
    batch: list[FoundDocument] = []
    weight = 0
    for each in level:
        size = _weight_of(each)
        if batch and (len(batch) == _AT_ONCE or weight + size > _WEIGHT_AT_ONCE):
            yield batch
            batch, weight = [], 0
        batch.append(each)
        weight += size
    if batch:
        yield batch


def _weight_of(found: FoundDocument) -> int:
    try:
        return 0 if found.file is None else found.file.stat().st_size
    except OSError:
        return 0


def _content_of(file: Path, most_bytes: int) -> dict[str, str]:
    """Raises `ValueError` with the reason why it is the content of no document."""
    try:
        read = read_regular_file(file, most_bytes)
        if read is None:
            raise ValueError("it is gone")
        mime_type, body = SUFFIXES[file.suffix.lower()], read.decode()
        check_content(mime_type, body)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except OSError as error:
        raise ValueError(error.strerror or "it cannot be read") from None
    except ToolError:  # A file may end in `.json` and be none.
        mime_type = "text/plain"
    return {"mime_type": mime_type, "body": body}


def _creation(wanted: Wanted) -> dict[str, Any]:
    """The arguments of `knowledge.create_document`."""
    metadata: dict[str, Any] = {"title": wanted.title}
    arguments: dict[str, Any] = {
        "document_id": wanted.id,
        "parent_id": wanted.parent_id,
        "content": wanted.content or _FOLDER_CONTENT,
        "metadata": metadata,
    }
    if wanted.listed is not None:
        metadata["tags"] = list(wanted.listed.tags)
        if wanted.listed.source is not None:
            metadata["source"] = wanted.listed.source
        arguments["is_human_readable"] = wanted.listed.is_human_readable
    return arguments


def _update(wanted: Wanted, kept: Document) -> dict[str, Any] | None:
    """The arguments of `knowledge.update_document`; None if nothing has changed."""
    held: dict[str, tuple[Any, Any]] = {"metadata.title": (wanted.title, kept.title)}
    if wanted.content is not None:
        held["content.mime_type"] = wanted.content["mime_type"], kept.mime_type
        held["content.body"] = wanted.content["body"], kept.body
    if wanted.listed is not None:
        held["metadata.tags"] = list(wanted.listed.tags), list(kept.tags)
        held["is_human_readable"] = wanted.listed.is_human_readable, kept.is_human_readable
    changed = {path: new for path, (new, old) in held.items() if new != old}
    if not changed:
        return None
    return {
        "document_id": wanted.id,
        "patch": _nested(changed),
        "update_mask": list(changed),
        "last_known_revision": kept.revision,
    }


def _nested(changed: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for path, value in changed.items():
        group, _, name = path.rpartition(".")
        (patch.setdefault(group, {}) if group else patch)[name] = value
    return patch

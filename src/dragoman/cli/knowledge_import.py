"""What `dragoman knowledge import` does: makes the documents of a tenant what the files in a folder say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
from dragoman.ids import RandomIds
from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.changing import check_content
from dragoman.knowledge.port import ActionRequest, Document, Documents
from dragoman.knowledge.roles import OWNER

_AT_ONCE = 64
"""Writes that are committed together."""
_CREATE, _UPDATE = "knowledge.create_document", "knowledge.update_document"
_MOST_BYTES = ACTIONS[_CREATE].max_payload_bytes or 0
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


class Imported(Struct):
    """The figures of an import, and its problems."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[tuple[str, str]] = []


class Import:
    """One import. If it is interrupted, the same import goes on from there when it is run again."""

    def __init__(
        self, documents: Documents, tenant: str, parent: str, listed: DocumentList, now: Callable[[], float]
    ) -> None:
        self.came_to = Imported()
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
            for start in range(0, len(level), _AT_ONCE):
                batch = level[start : start + _AT_ONCE]
                await self._take(batch)
                on_progress(len(batch))

    async def _take(self, batch: list[FoundDocument]) -> None:
        read = [wanted for each in batch if (wanted := self._read(each)) is not None]
        kept = await asyncio.gather(*(self._documents.get(self._tenant, each.id) for each in read))
        # In one go: writes are carried out in the order in which they are asked for, and so get their places.
        await asyncio.gather(*map(self._store, read, kept))

    def _read(self, found: FoundDocument) -> Wanted | None:
        """None for what cannot be a document."""
        try:
            if found.parent in self._missing:
                raise ValueError("its folder could not be imported")
            content = None if found.file is None else _content_of(found.file)
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

    async def _store(self, wanted: Wanted, kept: Document | None) -> None:
        came_to = self.came_to
        arguments = _creation(wanted) if kept is None else _update(wanted, kept)
        if arguments is None:
            came_to.unchanged += 1
            return
        action = ACTIONS[_CREATE if kept is None else _UPDATE]
        size = len(encode_arguments(arguments))
        if size > _MOST_BYTES:
            self._refuse(wanted.found, f"it is too large: {size} bytes of arguments, and {_MOST_BYTES} are the most")
            return
        request = ActionRequest(
            tenant=self._tenant,
            principal=OPERATOR,
            roles=frozenset((OWNER,)),
            action=action.name,
            correlation_id=self._ids.correlation_id(),
        )
        try:
            await self._documents.carry_out(action.make(arguments, request, self._now()), request)
        except ToolError as error:
            is_taken = (error.details or {}).get("reason") == "document_exists"
            reason = "its document was deleted, and the id is free only 90 days later" if is_taken else error.message
            self._refuse(wanted.found, reason)
            return
        if kept is None:
            came_to.created += 1
        else:
            came_to.updated += 1


def _content_of(file: Path) -> dict[str, str]:
    """Raises `ValueError` with the reason why it is the content of no document."""
    try:
        read = read_regular_file(file, _MOST_BYTES)
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

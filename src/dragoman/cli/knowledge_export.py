"""What `dragoman knowledge export` does: writes documents as files, from which `import` makes the same tree again."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.cli.knowledge_files import (
    FOLDER_TYPE,
    INDEX,
    LIST_NAME,
    SUFFIXES,
    DocumentList,
    ListedDocument,
    file_name,
)
from dragoman.files import create_file, read_regular_file, refuse_links
from dragoman.knowledge.port import Document, Documents

Children = Mapping[str, list[Document]]
"""Documents without their texts, in order, by their parent's id."""

_AT_ONCE = 64
_PAGE = 1000
_SUFFIX_OF = {mime_type: suffix for suffix, mime_type in SUFFIXES.items()}
_MOST_BYTES = 1 << 30


class PlannedFile(Struct, frozen=True):
    """A file that is going to be written."""

    path: Path
    """Within the folder."""
    document: Document


class Exported(Struct):
    """The figures of an export, and its problems."""

    written: int = 0
    unchanged: int = 0
    in_the_way: list[str] = []
    """Files that are there and have another content. Nothing was written then."""
    problems: list[tuple[str, str]] = []


async def load_tree(documents: Documents, tenant: str, top: str) -> Children:
    """All documents below one."""
    tree: dict[str, list[Document]] = {}
    seen, parents = {top}, [top]

    async def load(parent: str) -> None:
        found: list[Document] = []
        after = None
        while page := await documents.children(tenant, parent, _PAGE, after=after):
            found += page
            after = page[-1].place
        tree[parent] = [each for each in found if each.id not in seen]  # Somebody may be moving them.
        seen.update(each.id for each in found)

    while parents:
        for start in range(0, len(parents), _AT_ONCE):
            await asyncio.gather(*map(load, parents[start : start + _AT_ONCE]))
        parents = [each.id for parent in parents for each in tree[parent]]
    return tree


def plan_files(tree: Children, top: str) -> tuple[list[PlannedFile], DocumentList]:
    """The files for the documents of a tree, and the list that goes with them."""
    files: list[PlannedFile] = []
    listed: dict[str, ListedDocument] = {}
    folders = [(top, Path())]
    for parent, folder in folders:
        taken = {f"{INDEX}{suffix}" for suffix in SUFFIXES}
        for document in tree[parent]:
            is_folder = bool(tree[document.id])
            suffix = _SUFFIX_OF[document.mime_type]
            path = folder / _free_name(document, "" if is_folder else suffix, taken)
            listed[path.as_posix()] = ListedDocument(
                id=document.id,
                title=document.title,
                tags=document.tags,
                source=document.source,
                is_human_readable=document.is_human_readable,
            )
            if is_folder:
                folders.append((document.id, path))
            files.append(PlannedFile(path / f"{INDEX}{suffix}" if is_folder else path, document))
    return files, DocumentList(documents=listed)


def _free_name(document: Document, suffix: str, taken: set[str]) -> str:
    """A name that no sibling has, on systems that do not tell capitals from small letters either."""
    stem = file_name(document.title)
    name = f"{stem}{suffix}"
    while name.casefold() in taken:
        stem = f"{stem}~{document.id}"
        name = f"{stem}{suffix}"
    taken.add(name.casefold())
    return name


class Export:
    """One export into a folder."""

    def __init__(self, documents: Documents, tenant: str, folder: Path, *, is_forced: bool) -> None:
        self.came_to = Exported()
        self._documents = documents
        self._tenant = tenant
        self._folder = folder
        self._is_forced = is_forced

    async def run(self, tree: Children, top: str, on_progress: Callable[[int], None]) -> None:
        """Write the files, unless one is in the way and the export is not forced. Raises `StorageError`s."""
        files, listed = plan_files(tree, top)
        last = msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n"
        if not self._is_forced:
            await self._look_for_others(files, last)
            if self.came_to.in_the_way:
                return
        for start in range(0, len(files), _AT_ONCE):
            batch = files[start : start + _AT_ONCE]
            for file, content in zip(batch, await self._contents(batch), strict=True):
                if content is not None and (content or not self._is_needless(file)):
                    self._write(file.path, content)
            on_progress(len(batch))
        self._write(Path(LIST_NAME), last)

    async def _contents(self, files: list[PlannedFile]) -> list[bytes | None]:
        """The texts of documents; None for one that is gone."""
        found = await asyncio.gather(*(self._documents.get(self._tenant, each.document.id) for each in files))
        return [None if each is None else each.body.encode() for each in found]

    def _is_needless(self, file: PlannedFile) -> bool:
        """Whether a document without text need not be written: a folder is one by itself."""
        is_plain_folder = file.path.name == f"{INDEX}{_SUFFIX_OF[FOLDER_TYPE]}"
        return is_plain_folder and not self._is_there(file.path)

    async def _look_for_others(self, files: list[PlannedFile], last: bytes) -> None:
        for file in filter(lambda each: self._is_there(each.path), files):
            (content,) = await self._contents([file])
            self._compare(file.path, content)
        if self._is_there(Path(LIST_NAME)):
            self._compare(Path(LIST_NAME), last)

    def _is_there(self, path: Path) -> bool:
        return os.path.lexists(self._folder / path)

    def _compare(self, path: Path, content: bytes | None) -> None:
        if content is None or not self._holds(path, content):
            self.came_to.in_the_way.append(path.as_posix())

    def _holds(self, path: Path, content: bytes) -> bool:
        """Whether a file is there already as it is going to be."""
        try:
            refuse_links(path, self._folder)
            return read_regular_file(self._folder / path, _MOST_BYTES) == content
        except OSError:
            return False

    def _write(self, path: Path, content: bytes) -> None:
        try:
            if self._holds(path, content):
                self.came_to.unchanged += 1
                return
            refuse_links(path, self._folder)
            self._create(self._folder / path, content)
        except OSError as error:
            self.came_to.problems.append((path.as_posix(), error.strerror or "it cannot be written"))
            return
        self.came_to.written += 1

    def _create(self, target: Path, content: bytes) -> None:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = target.with_name(f".dragoman-{secrets.token_hex(8)}.tmp") if self._is_forced else target
        try:
            with open(create_file(made), "wb") as file:
                file.write(content)
            if made != target:
                os.replace(made, target)
        except FileExistsError:
            raise
        except BaseException:
            made.unlink(missing_ok=True)  # A part of a document is worse than none.
            raise

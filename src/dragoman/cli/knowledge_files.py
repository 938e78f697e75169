"""Documents as files: how each is named, and what a folder holds that can be documents.

1. `.md`, `.json` and `.txt` are documents, and so are folders; `_index.md` holds the text of the folder that it is in.
2. `export` writes a hidden file beside them, the list, with what names of files cannot say: ids, titles, tags, order.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal
from unicodedata import normalize
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from dragoman.files import read_regular_file

LIST_NAME: Final = ".dragoman-tree.json"
INDEX: Final = "_index"
SUFFIXES: Final = {".md": "text/markdown", ".json": "application/json", ".txt": "text/plain"}
FOLDER_TYPE: Final = "text/markdown"
"""Of a folder without text."""
_NAMESPACE = UUID("6f6a3a52-5c0e-5d0b-9a52-2b6d7c1f3e90")
_MOST_LIST_BYTES = 1 << 28
_MOST_NAME_BYTES = 120
_UNSAFE = re.compile(r'[/\\:*?"<>|]')
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
"""Names that are no files on Windows, whatever follows the dot."""


class ListedDocument(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A document in the list that an export writes."""

    id: str
    title: str
    tags: tuple[str, ...] = ()
    source: str | None = None
    is_human_readable: bool = True


class DocumentList(Struct, frozen=True, forbid_unknown_fields=True):
    """The documents in a folder that `export` wrote, in order, by path."""

    version: Literal[1] = 1
    documents: dict[str, ListedDocument] = {}


class FoundDocument(Struct, kw_only=True):
    """A file or a folder that is a document."""

    path: str
    """From the imported folder on, with slashes, in normal form C."""
    parent: str
    """The same of the folder that it is in; empty for the imported folder."""
    title: str
    file: Path | None = None
    """None for a folder without text."""


class FoundTree(Struct):
    """The documents in a folder."""

    levels: list[list[FoundDocument]] = []
    """Documents in order, those that are directly in the folder first."""
    skipped: list[tuple[str, str]] = []
    """Files that are no documents, and why."""
    problems: list[tuple[str, str]] = []
    """Files that would be documents, and cannot be read."""


def read_list(folder: Path) -> DocumentList:
    """What `export` wrote about the documents in a folder; empty if it did not. Raises `OSError` and `ValueError`."""
    content = read_regular_file(folder / LIST_NAME, _MOST_LIST_BYTES)
    if content is None:
        return DocumentList()
    found = msgspec.json.decode(content, type=DocumentList)
    ids = [str(UUID(each.id)) for each in found.documents.values()]
    if ids != [each.id for each in found.documents.values()] or len(set(ids)) < len(ids):
        raise ValueError("an id is no UUID in lower case, or is there twice")
    return found


def id_for(tenant: str, parent: str, path: str) -> str:
    """The id of a document that has none yet: the same whenever the same path is imported below the same parent."""
    return str(uuid5(uuid5(_NAMESPACE, tenant), path if parent == "root" else f"{parent}/{path}"))


def find_documents(folder: Path, listed: DocumentList) -> FoundTree:
    """Find the documents in a folder, however deep. Hidden files are left out; links are not followed."""
    tree = FoundTree()
    order = {path: place for place, path in enumerate(listed.documents)}
    folders = [(folder, FoundDocument(path="", parent="", title=""))]
    while folders:
        below: list[tuple[Path, FoundDocument]] = []
        level: list[FoundDocument] = []
        for place, document in folders:
            found = _found_in(place, document, tree, below)
            level += sorted(found, key=lambda each: (order.get(each.path, len(order)), each.path))
        if level:
            tree.levels.append(level)
        folders = below
    return tree


def _found_in(
    place: Path, folder: FoundDocument, tree: FoundTree, below: list[tuple[Path, FoundDocument]]
) -> list[FoundDocument]:
    found: dict[str, FoundDocument] = {}
    try:
        with os.scandir(place) as entered:
            entries = sorted(entered, key=lambda entry: entry.name)
    except OSError as error:
        tree.problems.append((folder.path or ".", error.strerror or "it cannot be read"))
        return []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{folder.path}/{normalize('NFC', entry.name)}".lstrip("/")
        stem, suffix = os.path.splitext(path.rpartition("/")[2])
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.is_symlink():
            tree.skipped.append((path, "a link"))
        elif not is_folder and (suffix.lower() not in SUFFIXES or not entry.is_file(follow_symlinks=False)):
            tree.skipped.append((path, f"neither a folder nor one of {', '.join(SUFFIXES)}"))
        elif not _is_unicode(path):
            tree.problems.append((path, "its name is not UTF-8"))
        elif stem == INDEX and not is_folder and folder.path:
            if folder.file is None:
                folder.file = Path(entry.path)
            else:
                tree.problems.append((path, f"the folder has {folder.file.name} already"))
        elif path in found:
            tree.problems.append((path, "another file has the same name, in another normal form of Unicode"))
        else:
            title = f"{stem}{suffix}" if is_folder else stem
            file = None if is_folder else Path(entry.path)
            found[path] = FoundDocument(path=path, parent=folder.path, title=title, file=file)
            if is_folder:
                below.append((Path(entry.path), found[path]))
    return [*found.values()]


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


def file_name(title: str) -> str:
    """A name for the file of a document, without a suffix, that is one on every system and leads nowhere else."""
    name = _UNSAFE.sub("_", normalize("NFC", title))
    name = "".join(each if each.isprintable() else "_" for each in name).strip()
    name = name.encode()[:_MOST_NAME_BYTES].decode(errors="ignore").rstrip(". ")
    if not name or name.startswith(".") or _DEVICE.match(name):
        return f"_{name.lstrip('.')}"
    return name

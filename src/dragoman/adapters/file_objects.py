"""Artifacts as files: `objects/<tenant's hash>/<content's hash>`, and `drafts/` for what is being written.

1. Nothing is opened through a link, at any level, and nothing but a regular file is read.
2. A draft is synced before it is renamed, and its folder afterwards. A name in `objects` has its whole content, always.
3. Everything is for this user alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, ParamSpec, TypeVar
from uuid import uuid4

from dragoman.adapters.sqlite_errors import storage_error
from dragoman.errors import StorageUnavailable
from dragoman.files import create_file, refuse_links
from dragoman.gateway.objects import check_key

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound="FileDraft")

PIECE: Final = 262_144
_OBJECTS, _DRAFTS = Path("objects"), Path("drafts")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class FileDraft:
    """Implements `ObjectDraft`: a file in `drafts`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = _DRAFTS / uuid4().hex
        self._hash = hashlib.sha256()
        self._descriptor: int | None = None
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def path(self) -> Path:
        """The file that it is in."""
        return self._folder / self._name

    def begin(self) -> None:
        """Make the file."""
        _make_folder(self._folder, _DRAFTS)
        self._descriptor = create_file(self.path)

    def add(self, piece: bytes) -> None:
        """Write what comes next."""
        assert self._descriptor is not None
        left = memoryview(piece)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._hash.update(piece)
        self.size += len(piece)

    def end(self) -> None:
        """Nothing comes any more; it is synced."""
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        self._close()

    async def inspect(self, look: Callable[[memoryview], None]) -> None:
        await in_thread(self._inspect, look)

    async def commit(self, key: str) -> None:
        check_key(key)
        await in_thread(self.move_to, key)

    def discard(self) -> None:
        self._close()
        with suppress(OSError):  # It was committed, or was never made; what stays is swept.
            self.path.unlink()

    def _inspect(self, look: Callable[[memoryview], None]) -> None:
        if not self.size:
            look(memoryview(b""))
            return
        file = _OpenFile(self._folder, self._name)
        try:
            file.open()
            with file.mapped() as mapped, memoryview(mapped) as view:
                look(view)
        finally:
            file.close()

    def move_to(self, key: str) -> None:
        """Give the file the place that the key has."""
        place = _OBJECTS / key
        _make_folder(self._folder, place.parent)
        refuse_links(place.parent, self._folder)
        os.replace(self.path, self._folder / place)  # A link that lies in its place is replaced, not followed.
        _sync_folder((self._folder / place).parent)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileObjects:
    """Implements `ObjectStore`. Nothing is created before the first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def write(self, pieces: AsyncIterator[bytes]) -> FileDraft:
        return await self.write_into(FileDraft(self._folder), pieces)

    async def write_into(self, draft: D, pieces: AsyncIterator[bytes]) -> D:
        """The same for a draft that is committed in its own way."""
        try:
            await in_thread(draft.begin)
            async for piece in pieces:
                await in_thread(draft.add, piece)
            await in_thread(draft.end)
        except BaseException:
            draft.discard()
            raise
        return draft

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        check_key(key)
        file = _OpenFile(self._folder, _OBJECTS / key)
        try:
            await in_thread(file.open)
            place = start
            while end is None or place < end:
                piece = await in_thread(file.read_at, place, PIECE if end is None else min(PIECE, end - place))
                if not piece:
                    return
                yield piece
                place += len(piece)
        finally:
            file.close()

    async def size(self, key: str) -> int | None:
        check_key(key)

        def look() -> int | None:
            file = _OpenFile(self._folder, _OBJECTS / key)
            try:
                return file.open()
            except FileNotFoundError:
                return None
            finally:
                file.close()

        return await in_thread(look)

    async def delete(self, key: str) -> None:
        check_key(key)

        def remove() -> None:
            refuse_links((_OBJECTS / key).parent, self._folder)
            with suppress(FileNotFoundError):
                (self._folder / _OBJECTS / key).unlink()

        await in_thread(remove)

    async def sweep(self, written_before: float, drafts_before: float) -> list[str]:
        return await in_thread(self._sweep, written_before, drafts_before)

    def _sweep(self, written_before: float, drafts_before: float) -> list[str]:
        refuse_links(_DRAFTS, self._folder)
        refuse_links(_OBJECTS, self._folder)
        for entry in _files_before(self._folder / _DRAFTS, drafts_before):
            with suppress(FileNotFoundError):
                os.unlink(entry)
        found: list[str] = []
        for tenant in _names_in(self._folder / _OBJECTS):
            if tenant.is_dir(follow_symlinks=False):
                found += (f"{tenant.name}/{Path(each).name}" for each in _files_before(tenant, written_before))
        return [key for key in found if _is_key(key)]


class _OpenFile:
    """A regular file below a folder, opened through no link."""

    def __init__(self, folder: Path, name: Path) -> None:
        self._folder = folder
        self._name = name
        self._descriptor: int | None = None

    def open(self) -> int:
        """Its size. Raises `OSError`."""
        refuse_links(self._name, self._folder)
        self._descriptor = os.open(self._folder / self._name, _READ)
        facts = os.fstat(self._descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise StorageUnavailable("an artifact is no regular file")
        return facts.st_size

    def read_at(self, place: int, most: int) -> bytes:
        assert self._descriptor is not None
        os.lseek(self._descriptor, place, os.SEEK_SET)  # Windows has no `pread`, and nobody else reads this one.
        return os.read(self._descriptor, most)

    def mapped(self) -> mmap.mmap:
        """All of it."""
        assert self._descriptor is not None
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def copy_object(key: str, source: Path, target: Path) -> bool:
    """Copy an object from one folder of artifacts to another; False if it is missing, or is not what its key says.

    Raises `OSError`.
    """
    check_key(key)
    file, draft, place = _OpenFile(source, _OBJECTS / key), FileDraft(target), 0
    try:
        file.open()
        draft.begin()
        while piece := file.read_at(place, PIECE):
            draft.add(piece)
            place += len(piece)
        draft.end()
        if not key.endswith(f"/{draft.sha256}"):
            return False
        draft.move_to(key)
        return True
    except FileNotFoundError:
        return False
    finally:
        file.close()
        draft.discard()


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `work` returns, off the event loop. A cancelled wait ends with it: it uses what is then closed.

    Raises `StorageError`s instead of `OSError`s.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        task.exception()
        raise
    except OSError as error:
        raise storage_error(error) from error


def _make_folder(base: Path, folder: Path) -> None:
    """Make a folder below `base`, with those above it, and sync each that is new."""
    refuse_links(folder, base)
    base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in (base, *(base / part for part in (*reversed(folder.parents), folder) if part != Path())):
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            continue
        _sync_folder(place.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # Windows has no such thing.
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names_in(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from entries


def _files_before(folder: Path | os.DirEntry[str], moment: float) -> Iterator[str]:
    """The entries of a folder that were written before a time; links are listed, and not followed."""
    for entry in _names_in(Path(folder)):
        with suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_mtime < moment:
                yield entry.path


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except ValueError:
        return False
    return True

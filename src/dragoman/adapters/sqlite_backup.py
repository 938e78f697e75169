"""Backups of a data directory: made while servers use it, and put in its place while none does.

1. A backup is a folder with the names of a data directory: `dragoman.db`, `artifacts`, and `keys` if they were asked
   for. It gets its own name last: one that was interrupted is not there. A folder that exists may be a mount point, or
   in a folder that cannot be written, and stays: it gets `dragoman.db` last.
2. The database is copied by SQLite's online backup, within one read transaction. In WAL mode writers do not wait for a
   reader, and a reader sees one moment: without the transaction the copy would begin anew after each commit of others.
   `VACUUM INTO` sees one moment as well, but writes all tables and indexes anew, and gives rows other numbers.
3. The copy has no log beside it, and is checked before it counts.
4. The artifacts that the copy names follow. One that was deleted meanwhile has expired meanwhile.
5. To restore is to make such a copy of the backup within the data directory, and then to rename. A process that has the
   database open blocks the restore, and no process can open the database during it. The replaced files are kept. In the
   moment without a database a process may make one. It will find that this was replaced; its log must not stay.
6. If one of the renames fails, the earlier ones are undone, the latest first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec import Struct

from dragoman.adapters.file_objects import copy_object
from dragoman.adapters.process_locks import ProcessLocks
from dragoman.adapters.sqlite_database import BUSY_SECONDS, FILE_NAME
from dragoman.adapters.sqlite_errors import storage_error
from dragoman.errors import StorageBusy, StorageCorrupt, StorageUnavailable
from dragoman.files import create_file, refuse_links, renames_undone_if_one_fails

if TYPE_CHECKING:
    import sqlite3

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows renames no file that is open.
    fcntl = None

ARTIFACTS: Final = "artifacts"
KEYS: Final = "keys"
_PAGES_AT_ONCE: Final = 4096
_LOCKED: Final = 0x40000002, 510
"""The bytes that each connection in WAL mode has a lock on: SQLite's `SHARED_FIRST` and `SHARED_SIZE`."""


class Copied(Struct, frozen=True, kw_only=True):
    """What a backup has, or what was restored."""

    database_bytes: int
    artifacts: int
    missing_artifacts: int
    """Those that the database names, and that have no file with their content."""
    keys: int
    kept: Path | None = None
    """Where the data directory's own files are, if restoring has replaced any."""


TellLeft = Callable[[int, int], None]
"""Is told how many bytes of the database there are left to copy, and how many there are."""


def back_up(folder: Path, into: Path, *, with_artifacts: bool, with_keys: bool, tell: TellLeft) -> Copied:
    """Copy a data directory into a folder, which must be missing or empty. Raises `StorageError`."""
    with _neutral_errors():
        into = Path(os.path.realpath(into))
        is_there = into.exists()
        if is_there and any(into.iterdir()):
            raise StorageUnavailable(f"{into} is there already, and is not empty")
        into.parent.mkdir(parents=True, exist_ok=True)
        with _draft_beside(into / FILE_NAME if is_there else into) as draft:
            copied = _copy(folder, draft, with_artifacts, with_keys, tell)
            if is_there:
                with renames_undone_if_one_fails() as move:
                    for name in (ARTIFACTS, KEYS, FILE_NAME):
                        move(draft / name, into / name)
            else:
                draft.rename(into)
        return copied


def restore(backup: Path, folder: Path, *, with_artifacts: bool, with_keys: bool, tell: TellLeft) -> Copied:
    """Put a backup in the place of what a data directory has. Raises `StorageBusy` while anybody uses that."""
    with _neutral_errors():
        if with_keys and not _key_files(backup):
            raise StorageUnavailable(f"the backup has no keys: {backup}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone_in(folder):  # Before the work, and for its end again: the copy may take long.
            pass
        with _draft_beside(folder / FILE_NAME) as draft:
            copied = _copy(backup, draft, with_artifacts, with_keys, tell)
            with _alone_in(folder), _alone_in(draft):
                kept = _exchange(draft, folder, [ARTIFACTS] if with_artifacts else [])
        return Copied(**{name: getattr(copied, name) for name in copied.__struct_fields__ if name != "kept"}, kept=kept)


def _copy(source: Path, target: Path, with_artifacts: bool, with_keys: bool, tell: TellLeft) -> Copied:
    named = _copy_database(source, target, tell)
    there = [copy_object(key, source / ARTIFACTS, target / ARTIFACTS) for key in named] if with_artifacts else []
    keys = _key_files(source) if with_keys else []
    _copy_keys(keys, target)
    return Copied(
        database_bytes=(target / FILE_NAME).stat().st_size,
        artifacts=sum(there),
        missing_artifacts=len(there) - sum(there),
        keys=len(keys),
    )


def _copy_database(source: Path, target: Path, tell: TellLeft) -> list[str]:
    """Copy the database, and return the keys of the artifacts that it names."""
    import sqlite3

    if not (source / FILE_NAME).exists():
        raise StorageUnavailable(f"{source} has no {FILE_NAME}")
    refuse_links(Path(FILE_NAME), source)
    os.close(create_file(target / FILE_NAME))
    try:
        with closing(_connect(source)) as taken, closing(_connect(target)) as copy:
            taken.execute("BEGIN")
            taken.execute("SELECT 1 FROM sqlite_master").fetchone()  # The moment that is copied.
            (size,) = taken.execute("PRAGMA page_size").fetchone()
            taken.backup(copy, pages=_PAGES_AT_ONCE, progress=lambda _, left, all: tell(left * size, all * size))
            copy.execute("PRAGMA journal_mode = DELETE")
            found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
            named = [key for (key,) in copy.execute(_NAMED)] if copy.execute(_HAS_ARTIFACTS).fetchone() else []
    except sqlite3.DatabaseError as error:
        if not isinstance(storage_error(error), StorageCorrupt):
            raise
        found = str(error)
    if found != "ok":
        raise StorageCorrupt(f"{source / FILE_NAME} is damaged: {found}")
    _sync(target / FILE_NAME)
    return named


_HAS_ARTIFACTS = "SELECT 1 FROM sqlite_master WHERE name = 'artifact'"
_NAMED = "SELECT key FROM artifact WHERE state = 1 ORDER BY key"


def _connect(folder: Path) -> sqlite3.Connection:
    import sqlite3

    # Not opened to read alone: such a connection leaves the files of the log behind that it made.
    address = f"{(folder / FILE_NAME).absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, timeout=BUSY_SECONDS, uri=True, isolation_level=None)


def _key_files(source: Path) -> list[Path]:
    refuse_links(Path(KEYS), source)
    return sorted(file for file in (source / KEYS).glob("*") if file.is_file() and not file.is_symlink())


def _copy_keys(keys: list[Path], target: Path) -> None:
    if keys:
        (target / KEYS).mkdir(mode=0o700)
    for file in keys:
        with open(create_file(target / KEYS / file.name), "wb") as copy:
            copy.write(file.read_bytes())
        _sync(target / KEYS / file.name)


def _exchange(draft: Path, folder: Path, replaced: list[str]) -> Path | None:
    """Move what is there out of the way, and the draft into its place; where the former is now."""
    kept = folder / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    kept.mkdir(mode=0o700)
    folders = {*replaced, *(each for each in (ARTIFACTS, KEYS) if (draft / each).exists())}
    try:
        with renames_undone_if_one_fails() as move:
            # The log goes with its database, and last: one without the other is never beside the new database.
            for name in (*sorted(folders), FILE_NAME, f"{FILE_NAME}-wal"):
                move(folder / name, kept / name)
            (folder / f"{FILE_NAME}-shm").unlink(missing_ok=True)
            for name in (*sorted(folders), FILE_NAME):  # A database that is there has its artifacts.
                move(draft / name, folder / name)
            for end in ("-wal", "-shm"):
                (folder / f"{FILE_NAME}{end}").unlink(missing_ok=True)
            for each in (kept, folder):
                _sync(each)
    except BaseException as error:
        if not any(kept.iterdir()):
            kept.rmdir()
            raise
        left = f"previous files are in {kept}: move them back, or restore again, before you start a server"
        raise StorageUnavailable(f"{error}; {left}") from error
    if any(kept.iterdir()):
        return kept
    kept.rmdir()
    return None


@contextmanager
def _draft_beside(place: Path) -> Iterator[Path]:
    """A new folder in that of `place`, which is removed unless it was renamed."""
    draft = place.with_name(f".{place.name}-{uuid4().hex}")
    draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Have the database to itself, whatever is in the file. Raises `StorageBusy` if anybody has it open."""
    if held := ProcessLocks(folder / "locks").held():
        raise StorageBusy(f"{len(held)} locks in {folder / 'locks'} are held: stop the servers that use the directory")
    file = folder / FILE_NAME
    if fcntl is None or not file.exists():
        yield
        return
    refuse_links(Path(FILE_NAME), folder)
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED[1], _LOCKED[0])
        except (BlockingIOError, PermissionError):
            raise StorageBusy(f"{file} is open in another process: stop what uses it") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _neutral_errors() -> Iterator[None]:
    """Raises `StorageError`s instead of those of the database and the system."""
    import sqlite3

    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise storage_error(error) from error


def _sync(path: Path) -> None:
    if os.name != "posix" and path.is_dir():
        return  # Windows has no such thing.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

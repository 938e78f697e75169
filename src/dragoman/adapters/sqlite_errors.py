"""SQLite's errors as `StorageError`s."""

from __future__ import annotations

import errno

from dragoman.errors import (
    StorageBusy,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    StorageUnavailable,
    StorageUncertain,
    StorageUnsupported,
)

_KINDS = {
    "SQLITE_BUSY": StorageBusy,
    "SQLITE_LOCKED": StorageBusy,
    "SQLITE_FULL": StorageFull,
    "SQLITE_CORRUPT": StorageCorrupt,
    "SQLITE_NOTADB": StorageCorrupt,
    "SQLITE_READONLY": StorageUnavailable,
    "SQLITE_CANTOPEN": StorageUnavailable,
    "SQLITE_IOERR": StorageUnavailable,
    "SQLITE_PERM": StorageUnavailable,
    "SQLITE_AUTH": StorageUnavailable,
}


def storage_error(error: BaseException) -> BaseException:
    """`error` as a `StorageFailed` that it is the cause of, if it is the database's.

    What a function raised on purpose stays as it is, and so does what only a defect of ours can cause.
    """
    import sqlite3

    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return error
    if isinstance(error, sqlite3.Error):
        default = StorageUnsupported if isinstance(error, sqlite3.NotSupportedError) else StorageFailed
        return _caused_by(error, _KINDS.get(_name_of(error), default))
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _caused_by(error, StorageFull if is_full else StorageUnavailable)
    return error


def commit_error(error: BaseException) -> BaseException:
    """The same, of a COMMIT.

    After an I/O error the transaction is undone for the processes that run, and may all the same be whole in the log,
    where the process that recovers it finds it. Of one for which there is no room, the last page is missing.
    """
    known = storage_error(error)
    is_io = isinstance(known, StorageFailed) and _name_of(error) in ("SQLITE_IOERR", "")
    if not is_io:
        return known
    uncertain = StorageUncertain(f"whether the change was stored is unknown: {error}")
    uncertain.__cause__ = error
    return uncertain


def _name_of(error: BaseException) -> str:
    """Without what extended codes say besides: SQLITE_IOERR_FSYNC is a SQLITE_IOERR."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


def _caused_by(cause: BaseException, kind: type[StorageFailed]) -> StorageFailed:
    made = kind(str(cause))
    made.__cause__ = cause
    return made

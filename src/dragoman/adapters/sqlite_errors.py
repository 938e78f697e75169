"""What clients are told when the database fails: a reason from a short list; never a path, a statement or a row."""

from __future__ import annotations

import errno

from dragoman.errors import InternalFailure

_MESSAGE = "The server's storage failed"
_REASONS = {
    "SQLITE_BUSY": "storage_busy",
    "SQLITE_LOCKED": "storage_busy",
    "SQLITE_FULL": "storage_full",
    "SQLITE_CORRUPT": "storage_corrupt",
    "SQLITE_NOTADB": "storage_corrupt",
    "SQLITE_READONLY": "storage_unavailable",
    "SQLITE_CANTOPEN": "storage_unavailable",
    "SQLITE_IOERR": "storage_unavailable",
    "SQLITE_PERM": "storage_unavailable",
    "SQLITE_AUTH": "storage_unavailable",
}


def storage_failure(error: BaseException) -> BaseException:
    """`error` as a client may see it, if it is the database's; the particulars are its cause, for the log.

    What a function raised on purpose stays as it is, and so does what only a defect of ours can cause.
    """
    import sqlite3

    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return error
    if isinstance(error, sqlite3.NotSupportedError):
        return _failure("storage_unsupported", error)
    if isinstance(error, sqlite3.Error):
        # Extended codes say more than anybody needs to know here: SQLITE_IOERR_FSYNC is a SQLITE_IOERR.
        name = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
        return _failure(_REASONS.get(name, "storage_failed"), error)
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _failure("storage_full" if is_full else "storage_unavailable", error)
    return error


def closed() -> InternalFailure:
    """For who comes when the server has let go of its storage."""
    return InternalFailure(_MESSAGE, {"reason": "storage_closed"})


def _failure(reason: str, cause: BaseException) -> InternalFailure:
    failure = InternalFailure(_MESSAGE, {"reason": reason})
    failure.__cause__ = cause
    return failure

"""A read-only overview of a data directory, for the command line: its ledgers, and whether it has actions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from msgspec import Struct

from dragoman.adapters.process_locks import ProcessLocks, boot_clock
from dragoman.adapters.sqlite_database import BUSY_SECONDS, FILE_NAME
from dragoman.adapters.sqlite_errors import storage_error
from dragoman.adapters.sqlite_ledger_rows import IS_OPEN, LOST_CALL
from dragoman.agents.ledger import TOOL_TARGET

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_SPACES = "SELECT name FROM ledger_space ORDER BY name"
_AGENTS = (
    "SELECT a.id, a.epoch, a.version, a.process, p.until FROM ledger_agent a JOIN ledger_space s ON s.id = a.space "
    "LEFT JOIN ledger_process p ON p.id = a.process WHERE s.name = ? ORDER BY a.id"
)
_EXPIRED = (
    "SELECT owner, request_id FROM ledger_entry JOIN ledger_space s ON s.id = space "
    f"WHERE s.name = :name AND kind != 'RESPONSE' AND expires_at <= :now AND (NOT {IS_OPEN} OR "
    f"(target NOT GLOB '{TOOL_TARGET}*' AND NOT EXISTS (SELECT 1 FROM ledger_agent a "
    "WHERE a.space = ledger_entry.space AND a.id = target AND a.process IS NOT NULL)) OR {})"
)
_HAS_RUNS = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'ledger_run')"
_COUNT_EXPIRED = (
    "WITH expired AS ({}) SELECT (SELECT count(*) FROM expired) + (SELECT count(*) FROM expired x "
    "JOIN ledger_space s ON s.name = :name JOIN ledger_entry r ON r.space = s.id AND r.owner = x.owner "
    "AND r.request_id = x.request_id AND r.kind = 'RESPONSE')"
)


class SeenAgent(Struct, frozen=True):
    """An agent that some process has held."""

    epoch: int
    version: int
    process: str | None
    """The process that holds it, by the word that it has for itself in the ledger."""
    is_alive: bool
    """False if that process has ended, or has been silent for too long: another may take over."""


def spaces_in(folder: Path) -> list[str]:
    """The spaces of a data directory, by name; none if it has no ledger. Raises `StorageError`."""

    def read(connection: sqlite3.Connection) -> list[str]:
        tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger_space'").fetchall()
        return [name for (name,) in connection.execute(_SPACES)] if tables else []

    return _read(folder, read) if (folder / FILE_NAME).exists() else []


def has_actions(folder: Path) -> bool:
    """Whether a data directory has the tables of requests that are carried out later. Raises `StorageError`."""

    def read(connection: sqlite3.Connection) -> bool:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'action_request'").fetchall())

    return (folder / FILE_NAME).exists() and _read(folder, read)


def agents_in(folder: Path, space: str, now: Callable[[], float] = boot_clock) -> dict[str, SeenAgent]:
    """The agents of a space, by their ids. Raises `StorageError`."""
    locks = ProcessLocks(folder / "locks")
    rows = _read(folder, lambda connection: connection.execute(_AGENTS, (space,)).fetchall())
    return {
        agent: SeenAgent(epoch, version, process, until is not None and now() < until and not locks.is_free(process))
        for agent, epoch, version, process, until in rows
    }


def count_expired(folder: Path, space: str, now: float) -> int:
    """How many messages a purge would delete. Raises `StorageError`."""

    def read(connection: sqlite3.Connection) -> int:
        (has_runs,) = connection.execute(_HAS_RUNS).fetchone()
        statement = _COUNT_EXPIRED.format(_EXPIRED.format(LOST_CALL if has_runs else "FALSE"))
        return int(connection.execute(statement, {"name": space, "now": now}).fetchone()[0])

    return _read(folder, read)


def _read(folder: Path, function: Callable[[sqlite3.Connection], T]) -> T:
    import sqlite3

    address = f"file:{quote(str((folder / FILE_NAME).absolute()))}?mode=rw"
    try:
        # Not opened to read alone: such a connection leaves the files of the log behind that it made.
        with closing(sqlite3.connect(address, timeout=BUSY_SECONDS, uri=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return function(connection)
    except (sqlite3.Error, OSError) as error:
        raise storage_error(error) from error

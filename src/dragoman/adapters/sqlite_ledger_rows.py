"""How messages are kept as rows of a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.ledger import LARGE_RESULT, TOOL_TARGET, EntryStatus, LedgerEntry, NewEntry
from dragoman.errors import RequestConflict

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

COLUMNS = (
    "number, message_id, kind, source, target, owner, request_id, seq, status, accepted_at, expires_at, attempts, "
    "due_at, fence, ended_at, correlation_id, chain, caller, completion_ref, error, payload"
)
IS_OPEN = "status IN ('waiting', 'running', 'retrying')"
IS_OPEN_RUN = f"{IS_OPEN} AND target >= '{TOOL_TARGET}' AND target < 'tool;'"
"""In the words of the index on what is open: most runs have ended."""
LOST_CALL = (
    "status = 'waiting' AND EXISTS (SELECT 1 FROM ledger_run r WHERE r.number = ledger_entry.number "
    "AND r.task_id IS NULL)"
)
"""A call with a key whose process was lost and that nobody has repeated: it is kept no longer than its key."""
LAST_SEQ = "SELECT last_seq FROM ledger_pair WHERE space = ? AND source = ? AND target = ?"
COUNT_SEQ = (
    "INSERT INTO ledger_pair (space, source, target, last_seq) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (space, source, target) DO UPDATE SET last_seq = excluded.last_seq"
)
ADDED_COLUMNS = (
    "space, message_id, kind, source, target, owner, request_id, seq, status, accepted_at, expires_at, ended_at, "
    "correlation_id, chain, caller, completion_ref, payload"
)
ADD = (
    f"INSERT INTO ledger_entry ({ADDED_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
KEEP_RESULT = "INSERT INTO ledger_result (ref, value) VALUES (?, ?)"
_SAME_REQUEST = (
    f"SELECT {COLUMNS} FROM ledger_entry WHERE space = ? AND owner = ? AND request_id = ? AND kind = 'REQUEST'"
)


class SqliteSpace:
    """One space of a database, whose number is looked up once."""

    def __init__(self, database: SqliteDatabase, name: str) -> None:
        self.database = database
        self._name = name
        self._number: int | None = None

    def of(self, writing: Transaction) -> int:
        """Its number. It is given one when something is first written."""
        if self._number is not None:
            return self._number
        writing.execute("INSERT INTO ledger_space (name) VALUES (?) ON CONFLICT DO NOTHING", (self._name,))
        (number,) = writing.execute("SELECT id FROM ledger_space WHERE name = ?", (self._name,)).fetchone()
        # Kept only once it is committed: a transaction may fail, and the row with it.
        writing.on_commit.append(partial(setattr, self, "_number", number))
        return int(number)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` with a connection and the number, and return its result."""

        def read(connection: sqlite3.Connection) -> T:
            number = self._number
            if number is None:
                row = connection.execute("SELECT id FROM ledger_space WHERE name = ?", (self._name,)).fetchone()
                number = row[0] if row else 0
            return function(connection, number, *arguments)

        return await self.database.read(read)


def add(entry: NewEntry, space: int, writing: Transaction) -> LedgerEntry:
    """Add a message behind those of its pair, or find the request that was accepted before."""
    pair = (space, entry.source, entry.target)
    last = writing.execute(LAST_SEQ, pair).fetchone()
    seq = 1 if last is None else last[0] + 1
    added = writing.execute(ADD, row_of(entry, space, seq))
    if added.rowcount != 1:
        return _same_request(entry, space, writing)
    if is_kept_apart(entry):
        writing.execute(KEEP_RESULT, (entry.message_id, entry.payload))
    writing.execute(COUNT_SEQ, (*pair, seq))
    assert added.lastrowid is not None
    return added_entry(entry, added.lastrowid, seq)


def is_kept_apart(entry: NewEntry) -> bool:
    """Whether the payload is a row of its own."""
    return entry.kind == "RESPONSE" and len(entry.payload) > LARGE_RESULT


def row_of(entry: NewEntry, space: int, seq: int) -> tuple[Any, ...]:
    """A new message as the values of `ADDED_COLUMNS`."""
    is_answer, is_apart = entry.kind == "RESPONSE", is_kept_apart(entry)
    return (
        space,
        entry.message_id,
        entry.kind,
        entry.source,
        entry.target,
        entry.owner,
        entry.request_id,
        seq,
        "completed" if is_answer else "waiting",
        entry.accepted_at,
        entry.expires_at,
        entry.accepted_at if is_answer else None,
        entry.correlation_id,
        " ".join(entry.chain),
        entry.caller,
        entry.message_id if is_apart else None,
        b"" if is_apart else entry.payload,
    )


def added_entry(entry: NewEntry, number: int, seq: int) -> LedgerEntry:
    """A new message as it is in the ledger."""
    is_apart = is_kept_apart(entry)
    return LedgerEntry(
        number=number,
        message_id=entry.message_id,
        kind=entry.kind,
        source=entry.source,
        target=entry.target,
        owner=entry.owner,
        seq=seq,
        payload=b"" if is_apart else entry.payload,
        accepted_at=entry.accepted_at,
        expires_at=entry.expires_at,
        status=EntryStatus.COMPLETED if entry.kind == "RESPONSE" else EntryStatus.WAITING,
        request_id=entry.request_id,
        correlation_id=entry.correlation_id,
        caller=entry.caller,
        chain=entry.chain,
        ended_at=entry.accepted_at if entry.kind == "RESPONSE" else None,
        completion_ref=entry.message_id if is_apart else None,
    )


def _same_request(entry: NewEntry, space: int, writing: Transaction) -> LedgerEntry:
    row = writing.execute(_SAME_REQUEST, (space, entry.owner, entry.request_id)).fetchone()
    if row is None:
        raise ValueError(f"the message id {entry.message_id} is in use")
    found = entry_of(row, is_new=False)
    if (found.target, found.payload) != (entry.target, entry.payload):
        raise RequestConflict(entry.request_id or "", entry.owner)
    return found


def entry_of(row: Sequence[Any], *, is_new: bool = True) -> LedgerEntry:
    """A message from a row of `COLUMNS`."""
    return LedgerEntry(
        number=row[0],
        message_id=row[1],
        kind=row[2],
        source=row[3],
        target=row[4],
        owner=row[5],
        request_id=row[6],
        seq=row[7],
        status=EntryStatus(row[8]),
        accepted_at=row[9],
        expires_at=row[10],
        attempts=row[11],
        due_at=row[12],
        fence=row[13],
        ended_at=row[14],
        correlation_id=row[15],
        chain=tuple(row[16].split()),
        caller=row[17],
        completion_ref=row[18],
        error=row[19],
        payload=row[20],
        is_new=is_new,
    )

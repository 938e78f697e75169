"""Documents that are gone while their rows are there still: who reads leaves them out, and the rows follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.adapters.sqlite_contents import count
from dragoman.adapters.sqlite_heights import measure_up
from dragoman.adapters.sqlite_passage_rows import forget_passages
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.knowledge.port import ROOT
from dragoman.knowledge.rows import Leaving, Room, Unmarked

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from dragoman.knowledge.port import AuditEvent

_HAS_GONE = """
    SELECT EXISTS (SELECT 1 FROM document_leaving WHERE tenant = ?)
      OR EXISTS (SELECT 1 FROM document INDEXED BY document_due_of_tenant
                 WHERE tenant = ? AND delete_at <= ? AND delete_at IS NOT NULL AND deleted_at IS NULL)
    """
_IS_GONE = "deleted_at IS NOT NULL OR ifnull(delete_at <= ?, 0)"
_BY_NUMBER = f"SELECT {_IS_GONE}, parent FROM document WHERE number = ?"
_BY_ID = f"SELECT {_IS_GONE}, parent FROM document WHERE tenant = ? AND id = ?"
_NEXT_TENANT = "SELECT min(tenant) FROM document_leaving WHERE tenant > ?"
_DUE_TENANTS = """
    SELECT tenant FROM document INDEXED BY document_due
    WHERE delete_at <= ? AND delete_at IS NOT NULL AND deleted_at IS NULL ORDER BY delete_at LIMIT 1000
    """
_FIND = "SELECT number, delete_at FROM document WHERE tenant = ? AND id = ?"
_FIRST_DUE = """
    SELECT number, delete_at FROM document INDEXED BY document_due_of_tenant
    WHERE tenant = ? AND delete_at <= ? AND delete_at IS NOT NULL AND deleted_at IS NULL ORDER BY delete_at LIMIT 1
    """
_FIRST_BELOW = """
    SELECT number, delete_at FROM document
    WHERE tenant = ? AND parent = ? AND deleted_at IS NULL ORDER BY place LIMIT 1
    """
_INDEX_NO_MORE = "DELETE FROM passage_missing WHERE document = ?"
"""Whoever has read its text already would go on adding passages while others remove them."""
_MARK = "UPDATE document SET deleted_at = ? WHERE number = ?"
_ABOVE = "SELECT parent FROM document WHERE number = ?"
_BEGIN = """
    INSERT INTO document_leaving (tenant, document, top, at, documents, is_scheduled)
    SELECT tenant, number, ?, ?, 0, ? FROM document WHERE number = ?
    """
_LAST = """
    SELECT turn, document, (SELECT id FROM document WHERE number = document_leaving.document), ifnull(top, turn), at,
      documents, is_scheduled
    FROM document_leaving WHERE tenant = ? ORDER BY turn DESC LIMIT 1
    """
_COUNT = "UPDATE document_leaving SET documents = documents + ? WHERE turn = ?"
_END = "DELETE FROM document_leaving WHERE turn = ?"


class Gone:
    """Which documents of a tenant are gone at a moment: those above them are asked for once."""

    def __init__(self, connection: sqlite3.Connection | Transaction, tenant: str, now: float) -> None:
        self._execute = connection.execute
        self._tenant = tenant
        self._now = now
        self._are_gone: dict[str, bool] = {ROOT: False}
        self._is_any = bool(self._execute(_HAS_GONE, (tenant, tenant, now)).fetchone()[0])

    def has(self, number: int) -> bool:
        """Whether a document is gone, by its number."""
        if not self._is_any:
            return False
        row = self._execute(_BY_NUMBER, (self._now, number)).fetchone()
        return row is None or bool(row[0]) or self.is_below(row[1])

    def is_below(self, parent: str) -> bool:
        """Whether what is below a document is gone."""
        if not self._is_any:
            return False
        way = []
        while parent not in self._are_gone:
            row = self._execute(_BY_ID, (self._now, self._tenant, parent)).fetchone()
            if row is None or row[0]:
                self._are_gone[parent] = True
                break
            way.append(parent)
            parent = row[1]
        is_gone = self._are_gone[parent]
        self._are_gone.update(dict.fromkeys(way, is_gone))
        return is_gone


def tenants_with_work(connection: sqlite3.Connection, now: float) -> list[str]:
    """Those with documents that leave, or are among the thousand that have been due for the longest time."""
    found: set[str] = {tenant for (tenant,) in connection.execute(_DUE_TENANTS, (now,))}
    (tenant,) = connection.execute(_NEXT_TENANT, ("",)).fetchone()
    while tenant is not None:
        found.add(tenant)
        (tenant,) = connection.execute(_NEXT_TENANT, (tenant,)).fetchone()
    return sorted(found)


class SqliteLeavingRows:
    """Implements `LeavingRows`."""

    def __init__(self, connection: Transaction | sqlite3.Connection, note: Callable[[AuditEvent], bool]) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._unfinished: set[int] = set()
        self.note = note

    @property
    def is_unfinished(self) -> bool:
        return bool(self._unfinished)

    def find(self, tenant: str, id: str) -> Unmarked:
        return Unmarked(*self._execute(_FIND, (tenant, id)).fetchone())

    def first_due(self, tenant: str, now: float) -> Unmarked | None:
        return self._first(_FIRST_DUE, tenant, now)

    def first_below(self, tenant: str, id: str) -> Unmarked | None:
        return self._first(_FIRST_BELOW, tenant, id)

    def begin(self, tenant: str, number: int, at: float, top: int | None, *, is_scheduled: bool) -> int:
        self._execute(_MARK, (at, number))
        self._execute(_INDEX_NO_MORE, (number,))
        turn = self._execute(_BEGIN, (top, at, is_scheduled, number)).lastrowid
        assert turn is not None
        assert isinstance(self._connection, Transaction)
        count(self._connection, tenant, documents=-1)
        if top is None:  # What is above the others leaves as well.
            measure_up(self._connection, tenant, self._execute(_ABOVE, (number,)).fetchone()[0])
        self._unfinished.add(turn)
        return turn

    def last(self, tenant: str) -> Leaving | None:
        row = self._execute(_LAST, (tenant,)).fetchone()
        if row is None:
            return None
        turn, number, id, top, at, documents, is_scheduled = row
        return Leaving(turn, number, id, top, at, documents, bool(is_scheduled))

    def forget(self, leaving: Leaving, room: Room) -> bool:
        assert isinstance(self._connection, Transaction)
        return forget_passages(self._connection, leaving.number, room)

    def count(self, turn: int, documents: int) -> None:
        self._execute(_COUNT, (documents, turn))

    def end(self, leaving: Leaving) -> None:
        self._execute(_END, (leaving.turn,))
        self._unfinished.discard(leaving.turn)

    def _first(self, statement: str, *values: object) -> Unmarked | None:
        row = self._execute(statement, values).fetchone()
        return None if row is None else Unmarked(*row)

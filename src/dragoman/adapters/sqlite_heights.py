"""How many levels there are below each document: kept, so that nobody has to look through a tree to move it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.knowledge.port import ROOT

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

MOST_LEVELS = 64
"""More are not counted: a tree that may be moved has no more."""
_LEVELS = "SELECT below FROM document WHERE tenant = ? AND id = ?"
_COUNTED = "SELECT parent, below FROM document WHERE tenant = ? AND id = ?"
# A `max` and nothing else: so SQLite looks at one row of the index, however many children there are.
_DEEPEST = (
    "SELECT max(below) FROM document INDEXED BY document_height WHERE tenant = ? AND parent = ? AND deleted_at IS NULL"
)
_SET_LEVELS = "UPDATE document SET below = ? WHERE tenant = ? AND id = ?"


def levels_below(connection: Transaction | sqlite3.Connection, tenant: str, id: str) -> int:
    """How many levels of documents there are below one, at most `MOST_LEVELS`; none for the root."""
    row = connection.execute(_LEVELS, (tenant, id)).fetchone()
    return 0 if row is None else int(row[0])


def measure_up(transaction: Transaction, tenant: str, id: str) -> None:
    """Count the levels below a document whose children are others now, and below those above it, if that changes it."""
    while id != ROOT and (row := transaction.execute(_COUNTED, (tenant, id)).fetchone()) is not None:
        parent, counted = row
        (deepest,) = transaction.execute(_DEEPEST, (tenant, id)).fetchone()
        levels = 0 if deepest is None else min(deepest + 1, MOST_LEVELS)
        if levels == counted:
            return
        transaction.execute(_SET_LEVELS, (levels, tenant, id))
        id = parent

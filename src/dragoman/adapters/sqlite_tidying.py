"""What is done to the database when nothing is written: indexes of words are merged, so that searches are quicker.

An index comes to be in many pieces, each of which a search looks into: two of about the same size are made one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

_PAGES_AT_ONCE = 64
_HAS_PASSAGES = "SELECT 1 FROM sqlite_master WHERE name = 'passage_term'"  # Servers without documents have none.


def merge_memories(connection: sqlite3.Connection) -> bool:
    """Merge a few pages of the index of memories; whether there are more."""
    return _merge(connection, "memory_term")


def merge_passages(connection: sqlite3.Connection) -> bool:
    """Merge a few pages of the index of passages, if there is one; whether there are more."""
    return connection.execute(_HAS_PASSAGES).fetchone() is not None and _merge(connection, "passage_term")


def _merge(connection: sqlite3.Connection, index: str) -> bool:
    before = connection.total_changes
    connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', {_PAGES_AT_ONCE})")
    return connection.total_changes - before > 1  # One is this statement itself.

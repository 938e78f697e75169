"""The tables of the storage itself, engine by engine. A released migration is never changed."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "storage"

_PURGE_CLOCK = """
CREATE TABLE purge_clock (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  looked_at REAL NOT NULL,
  earliest REAL NOT NULL,
  agreed REAL NOT NULL
);
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _PURGE_CLOCK),)

"""The table of service levels, engine by engine. A released migration is never changed: its checksum is recorded."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "slo"

_TABLE = """
CREATE TABLE service_level (
  minute INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  action TEXT NOT NULL,
  caller TEXT NOT NULL,
  figure TEXT NOT NULL,
  bucket INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (minute, tenant, action, caller, figure, bucket)
) WITHOUT ROWID;
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLE),)

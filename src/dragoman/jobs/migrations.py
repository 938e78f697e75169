"""The tables of jobs, engine by engine. A released migration is never changed: its checksum is recorded."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "jobs"

_TABLES = """
CREATE TABLE job_run (
  job TEXT NOT NULL,
  process TEXT NOT NULL,
  started_at REAL NOT NULL,
  duration_ms REAL NOT NULL,
  outcome TEXT NOT NULL,
  error TEXT,
  error_type TEXT,
  facts BLOB NOT NULL,
  next_due_at REAL NOT NULL,
  PRIMARY KEY (job, process)
) WITHOUT ROWID;

CREATE TABLE registry_entry (
  space TEXT NOT NULL,
  tenant TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  last_seen_at REAL NOT NULL,
  revision INTEGER NOT NULL,
  details BLOB NOT NULL,
  PRIMARY KEY (space, tenant, kind, name)
) WITHOUT ROWID;

CREATE INDEX registry_entry_of_tenant ON registry_entry (tenant);
CREATE INDEX registry_entry_seen ON registry_entry (last_seen_at);
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLES),)

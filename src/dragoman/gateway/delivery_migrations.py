"""The table of accepted requests, engine by engine. A released migration is never changed: its checksum is recorded."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "deliveries"

_TABLES = """
CREATE TABLE action_request (
  tenant TEXT NOT NULL,
  principal TEXT NOT NULL,
  request_id TEXT NOT NULL,
  fingerprint BLOB NOT NULL,
  status TEXT NOT NULL,
  http_status INTEGER,
  body BLOB,
  forget_at REAL,
  UNIQUE (tenant, principal, request_id)
);

CREATE INDEX action_request_forgotten ON action_request (forget_at) WHERE forget_at IS NOT NULL;
"""

_CHARGES = """
-- The bytes that it counts among the answers of its tenant.
ALTER TABLE action_request ADD COLUMN charge INTEGER NOT NULL DEFAULT 0;
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLES), Migration(PART, 2, "sqlite", _CHARGES))

"""The tables of the gateway, engine by engine. A released migration is never changed: its checksum is recorded."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "gateway"

_TABLES = """
CREATE TABLE signing_key (
  kid TEXT PRIMARY KEY,
  public TEXT NOT NULL,
  tenant TEXT NOT NULL,
  roles TEXT NOT NULL,
  created_at REAL NOT NULL,
  revoked_at REAL
) WITHOUT ROWID;

CREATE TABLE signing_nonce (
  kid TEXT NOT NULL,
  nonce TEXT NOT NULL,
  until REAL NOT NULL,
  PRIMARY KEY (kid, nonce)
) WITHOUT ROWID;

CREATE INDEX signing_nonce_until ON signing_nonce (until);

CREATE TABLE gateway_quota (
  bucket TEXT NOT NULL,
  minute INTEGER NOT NULL,
  taken INTEGER NOT NULL,
  PRIMARY KEY (bucket, minute)
) WITHOUT ROWID;

CREATE INDEX gateway_quota_minute ON gateway_quota (minute);
"""

_ARTIFACTS = """
CREATE TABLE artifact (
  key TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  mime TEXT NOT NULL,
  size INTEGER NOT NULL,
  charge INTEGER NOT NULL,
  state INTEGER NOT NULL,
  uploaded_at REAL NOT NULL,
  expires_at REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX artifact_expires_at ON artifact (expires_at);

CREATE TABLE artifact_total (
  tenant TEXT PRIMARY KEY,
  charge INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE artifact_link_key (
  kid TEXT PRIMARY KEY,
  secret BLOB NOT NULL,
  created_at REAL NOT NULL
) WITHOUT ROWID;
"""

_LINES = """
-- The first of the keys that were rotated into this one.
ALTER TABLE signing_key ADD COLUMN line TEXT NOT NULL DEFAULT '';

UPDATE signing_key SET line = kid;
"""

_ANSWERS = """
-- Those that were made of results count among the answers of their tenant.
ALTER TABLE artifact ADD COLUMN is_answer INTEGER NOT NULL DEFAULT 0;
"""

MIGRATIONS = (
    Migration(PART, 1, "sqlite", _TABLES),
    Migration(PART, 2, "sqlite", _ARTIFACTS),
    Migration(PART, 3, "sqlite", _LINES),
    Migration(PART, 4, "sqlite", _ANSWERS),
)

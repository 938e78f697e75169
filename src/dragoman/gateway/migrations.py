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

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLES),)

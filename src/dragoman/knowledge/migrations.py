"""The tables of documents, engine by engine. A released migration is never changed: its checksum is recorded."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "knowledge"

_TABLES = """
-- `body` comes last, so that lists need not read it.
CREATE TABLE document (
  number INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  parent TEXT NOT NULL,
  place INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  title TEXT NOT NULL,
  mime_type TEXT NOT NULL,
  tags TEXT NOT NULL,
  source TEXT,
  last_editor TEXT,
  is_human_readable INTEGER NOT NULL,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  delete_at REAL,
  deleted_at REAL,
  body TEXT NOT NULL,
  UNIQUE (tenant, id)
);

CREATE INDEX document_child ON document (tenant, parent, place) WHERE deleted_at IS NULL;
CREATE INDEX document_due ON document (delete_at) WHERE delete_at IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX document_deleted ON document (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE document_revision (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  revision INTEGER NOT NULL,
  at REAL NOT NULL,
  action TEXT NOT NULL,
  principal TEXT NOT NULL,
  document BLOB NOT NULL,
  UNIQUE (tenant, id, revision)
);

CREATE TABLE document_receipt (
  tenant TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  key TEXT NOT NULL,
  until REAL NOT NULL,
  fingerprint BLOB NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (tenant, action, subject, key)
) WITHOUT ROWID;

CREATE INDEX document_receipt_until ON document_receipt (until);

CREATE TABLE document_stream (
  tenant TEXT NOT NULL,
  principal TEXT NOT NULL,
  context_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  until REAL NOT NULL,
  PRIMARY KEY (tenant, principal, context_id)
) WITHOUT ROWID;

CREATE INDEX document_stream_until ON document_stream (until);

CREATE TABLE audit_event (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL,
  event TEXT NOT NULL,
  principal TEXT NOT NULL,
  subject TEXT NOT NULL,
  at REAL NOT NULL,
  details BLOB NOT NULL,
  once TEXT UNIQUE
);

CREATE INDEX audit_event_of_tenant ON audit_event (tenant, number);

CREATE TRIGGER audit_event_stays BEFORE UPDATE ON audit_event
BEGIN SELECT raise(ABORT, 'the audit is only added to'); END;

CREATE TRIGGER audit_event_is_kept BEFORE DELETE ON audit_event
BEGIN SELECT raise(ABORT, 'the audit is only added to'); END;
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLES),)

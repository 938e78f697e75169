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

TENANT_DIGITS = 8
"""Each word is indexed behind the number of its tenant, in so many hexadecimal digits."""

_PASSAGES = """
-- How many passages a tenant has, and how many words these have together.
CREATE TABLE passage_tenant (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  passages INTEGER NOT NULL,
  words INTEGER NOT NULL
);

-- A document that is in the index, and how many passages it has had: no number is used again.
CREATE TABLE passage_document (
  document INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  made INTEGER NOT NULL
);

-- Documents from before there was an index.
CREATE TABLE passage_missing (
  document INTEGER PRIMARY KEY
);

INSERT INTO passage_missing SELECT number FROM document WHERE deleted_at IS NULL;

CREATE TABLE passage_tag (
  tenant INTEGER NOT NULL,
  tag TEXT NOT NULL,
  document INTEGER NOT NULL,
  PRIMARY KEY (tenant, tag, document)
) WITHOUT ROWID;

-- The number is the document's and below it, in 25 bits, how many passages the document had before. The first line of
-- `words` has those that occur once, the second those that occur twice, and so on.
CREATE TABLE passage (
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL,
  length INTEGER NOT NULL,
  heading TEXT NOT NULL,
  words TEXT NOT NULL,
  text TEXT NOT NULL
);

-- A passage has a row for each line of its `words`; the rowid is the posting that `search.ranking` makes.
CREATE VIRTUAL TABLE passage_term USING fts5 (
  terms,
  content = '',
  tokenize = 'ascii',
  columnsize = 0,
  detail = none
);

INSERT INTO passage_term (passage_term, rank) VALUES ('usermerge', 2);

CREATE VIRTUAL TABLE passage_term_count USING fts5vocab (passage_term, row);

CREATE TABLE passage_model (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE
);

-- Passages that have no vector of a model that is used.
CREATE TABLE passage_wanted (
  model INTEGER NOT NULL,
  passage INTEGER NOT NULL,
  PRIMARY KEY (model, passage)
) WITHOUT ROWID;

-- In the order in which they were stored, so that a process can read what it does not have yet.
CREATE TABLE passage_vector (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  model INTEGER NOT NULL,
  tenant INTEGER NOT NULL,
  passage INTEGER NOT NULL,
  vector BLOB NOT NULL,
  UNIQUE (passage, model)
);

CREATE INDEX passage_vector_of_tenant ON passage_vector (model, tenant, number);
"""

_HITS = """
-- How many passages a query had found.
ALTER TABLE document_receipt ADD COLUMN hits INTEGER NOT NULL DEFAULT 0;
"""

_TURNS = """
-- By tenant, so that none has to wait until all passages of another have their vectors; and a passage that its model
-- refuses is put off.
CREATE TABLE passage_turn (
  model INTEGER NOT NULL,
  tenant INTEGER NOT NULL,
  passage INTEGER NOT NULL,
  put_off_until REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (model, tenant, passage)
) WITHOUT ROWID;

INSERT INTO passage_turn (model, tenant, passage)
SELECT passage_wanted.model, passage_document.tenant, passage_wanted.passage
FROM passage_wanted JOIN passage_document ON passage_document.document = passage_wanted.passage >> 25;

DROP TABLE passage_wanted;

ALTER TABLE passage_turn RENAME TO passage_wanted;
"""

_CONTENTS = """
-- A text that revisions of documents of one tenant have: once, however many of them name it. `size` is in bytes,
-- `length` in characters.
CREATE TABLE document_content (
  number INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  hash BLOB NOT NULL,
  size INTEGER NOT NULL,
  length INTEGER NOT NULL,
  named INTEGER NOT NULL,
  UNIQUE (tenant, hash)
);

-- The number is the content's and below it, in 16 bits, how many pieces come before.
CREATE TABLE document_piece (
  number INTEGER PRIMARY KEY,
  text TEXT NOT NULL
);

-- NULL in a row of the earlier form, which has its text itself.
ALTER TABLE document ADD COLUMN content INTEGER;
ALTER TABLE document_revision ADD COLUMN content INTEGER;

-- Documents that are not deleted, and bytes of contents and revisions. Those of the earlier form are not counted yet.
CREATE TABLE document_usage (
  tenant TEXT PRIMARY KEY,
  documents INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO document_usage SELECT tenant, count(*), 0 FROM document WHERE deleted_at IS NULL GROUP BY tenant;

-- Documents up to a number, and revisions of that one below a number, may be of the earlier form.
CREATE TABLE document_conversion (
  document INTEGER NOT NULL,
  revision INTEGER NOT NULL
);

INSERT INTO document_conversion SELECT number, 9223372036854775807 FROM document ORDER BY number DESC LIMIT 1;
"""

_LEAVING = """
-- Documents that are marked as deleted, while what is below them, or their passages, are there still.
CREATE TABLE document_leaving (
  turn INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL,
  document INTEGER NOT NULL UNIQUE,
  top INTEGER,
  at REAL NOT NULL,
  documents INTEGER NOT NULL,
  is_scheduled INTEGER NOT NULL
);

CREATE INDEX document_leaving_of_tenant ON document_leaving (tenant, turn);

CREATE INDEX document_due_of_tenant ON document (tenant, delete_at)
WHERE delete_at IS NOT NULL AND deleted_at IS NULL;
"""

_UNINDEXED = """
-- Documents whose passages are not those of their texts yet. The revision is that of the change which has left them
-- so, 0 for documents from before there was an index. What passages there are is found only if `is_found`.
CREATE TABLE passage_unindexed (
  tenant TEXT NOT NULL,
  is_found INTEGER NOT NULL,
  document INTEGER NOT NULL UNIQUE,
  revision INTEGER NOT NULL,
  PRIMARY KEY (tenant, is_found, document)
) WITHOUT ROWID;

INSERT INTO passage_unindexed SELECT document.tenant, 0, document.number, 0
FROM passage_missing JOIN document ON document.number = passage_missing.document;

DROP TABLE passage_missing;

ALTER TABLE passage_unindexed RENAME TO passage_missing;
"""

_TITLES = """
-- The words of a title are kept once: their length is NULL where they are part of each passage still, as they were
-- before. The outline has the numbers and the lengths of the passages, as `search.titles` makes it.
ALTER TABLE passage_document ADD COLUMN title_length INTEGER;
ALTER TABLE passage_document ADD COLUMN title_words TEXT NOT NULL DEFAULT '';
ALTER TABLE passage_document ADD COLUMN outline BLOB NOT NULL DEFAULT x'';

INSERT OR IGNORE INTO passage_missing SELECT document.tenant, 1, document.number, 0
FROM passage_document JOIN document ON document.number = passage_document.document
WHERE document.deleted_at IS NULL;
"""

_KEPT_ANSWERS = """
-- The bytes of answers that are kept for a tenant, in whichever tables. Those from before are not counted.
CREATE TABLE kept_answer_total (
  tenant TEXT PRIMARY KEY,
  charge INTEGER NOT NULL
) WITHOUT ROWID;

ALTER TABLE document_receipt ADD COLUMN charge INTEGER NOT NULL DEFAULT 0;

-- Not 0 for a stream that consists of queries.
ALTER TABLE document_stream ADD COLUMN charge INTEGER NOT NULL DEFAULT 0;
"""

_NOTED = """
-- Up to which number it is noted that passages want vectors of a model; NULL when that is done for all.
ALTER TABLE passage_model ADD COLUMN noted INTEGER;
"""

_HEIGHTS = """
-- How many levels of documents there are below one, those that are deleted left out; 64 are the most that are counted.
ALTER TABLE document ADD COLUMN below INTEGER NOT NULL DEFAULT 0;

UPDATE document SET below = (
  WITH RECURSIVE lower (level, id) AS (
    SELECT 0, document.id
    UNION ALL
    SELECT lower.level + 1, child.id FROM lower
    JOIN document AS child ON child.tenant = document.tenant AND child.parent = lower.id AND child.deleted_at IS NULL
    WHERE lower.level < 64
  )
  SELECT max(level) FROM lower
);

CREATE INDEX document_height ON document (tenant, parent, below) WHERE deleted_at IS NULL;
"""

_BESIDES = """
-- Bytes that the audit keeps of a revision, which count for the tenant while the revision is there.
ALTER TABLE document_revision ADD COLUMN besides INTEGER NOT NULL DEFAULT 0;
"""

MIGRATIONS = (
    Migration(PART, 1, "sqlite", _TABLES),
    Migration(PART, 2, "sqlite", _PASSAGES),
    Migration(PART, 3, "sqlite", _HITS),
    Migration(PART, 4, "sqlite", _TURNS),
    Migration(PART, 5, "sqlite", _CONTENTS),
    Migration(PART, 6, "sqlite", _LEAVING),
    Migration(PART, 7, "sqlite", _UNINDEXED),
    Migration(PART, 8, "sqlite", _TITLES),
    Migration(PART, 9, "sqlite", _KEPT_ANSWERS),
    Migration(PART, 10, "sqlite", _NOTED),
    Migration(PART, 11, "sqlite", _HEIGHTS),
    Migration(PART, 12, "sqlite", _BESIDES),
)

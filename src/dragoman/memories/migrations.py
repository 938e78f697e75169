"""The tables of memories, engine by engine. A released migration is never changed: its checksum is recorded."""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "memories"

SPACE_DIGITS = 8
"""Each word is indexed behind the number of its space, in so many hexadecimal digits. `prefix` below counts them, and
the letters by which `search.words` finds longer words."""

_TABLES = """
CREATE TABLE memory_owner (
  name TEXT PRIMARY KEY,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE memory_space (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  namespace TEXT NOT NULL,
  entries INTEGER NOT NULL,
  stored INTEGER NOT NULL,
  UNIQUE (owner, namespace)
);

-- A new value is a new row: the id is the space's and below it, in 32 bits, how many it had stored. `value` comes last,
-- so that lists need not read it.
CREATE TABLE memory_entry (
  id INTEGER PRIMARY KEY,
  space INTEGER NOT NULL,
  key TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  updated_at TEXT NOT NULL,
  preview TEXT NOT NULL,
  value BLOB NOT NULL,
  UNIQUE (space, key)
);

-- Words as `search.words` has them: all that is ASCII here is a digit, a letter or a space. The row of an entry
-- has its id below zero: the last stored are found first, and where the index of a common word begins.
CREATE VIRTUAL TABLE memory_word USING fts5 (
  words,
  tokenize = 'ascii',
  columnsize = 0,
  prefix = '11 12 13 14 15 16 17 18 19 20 21 22 23'
);
"""

# The words are kept with the entry, whose row is read and written anyway.
_TERMS = """
CREATE TABLE memory_entry_with_terms (
  id INTEGER PRIMARY KEY,
  space INTEGER NOT NULL,
  key TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  updated_at TEXT NOT NULL,
  preview TEXT NOT NULL,
  terms TEXT NOT NULL,
  value BLOB NOT NULL,
  UNIQUE (space, key)
);

INSERT INTO memory_entry_with_terms
SELECT id, space, key, bytes, updated_at, preview, words, value
FROM memory_entry CROSS JOIN memory_word ON memory_word.rowid = -id;

DROP TABLE memory_word;
DROP TABLE memory_entry;
ALTER TABLE memory_entry_with_terms RENAME TO memory_entry;

CREATE VIRTUAL TABLE memory_term USING fts5 (
  terms,
  content = '',
  tokenize = 'ascii',
  columnsize = 0,
  prefix = '11 12 13 14 15 16 17 18 19 20 21 22 23'
);

INSERT INTO memory_term (rowid, terms) SELECT -id, terms FROM memory_entry ORDER BY id DESC;
INSERT INTO memory_term (memory_term, rank) VALUES ('usermerge', 2);
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLES), Migration(PART, 2, "sqlite", _TERMS))

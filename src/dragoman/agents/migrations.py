"""The tables of the ledger, of the runs of tools in it, and of AACP endpoints, engine by engine.

A released migration is never changed: its checksum is recorded.
"""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "aacp"

_TABLES = """
CREATE TABLE ledger_space (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
);

-- A process is alive while its lock file is locked and the clock since the machine's start is before `until`.
CREATE TABLE ledger_process (
  id TEXT PRIMARY KEY,
  until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE ledger_agent (
  space INTEGER NOT NULL,
  id TEXT NOT NULL,
  process TEXT,
  epoch INTEGER NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (space, id)
) WITHOUT ROWID;

CREATE TABLE ledger_state (
  space INTEGER NOT NULL,
  agent TEXT NOT NULL,
  key TEXT NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (space, agent, key)
) WITHOUT ROWID;

CREATE TABLE ledger_pair (
  space INTEGER NOT NULL,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  last_seq INTEGER NOT NULL,
  purged INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (space, source, target)
) WITHOUT ROWID;

CREATE TABLE ledger_entry (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  space INTEGER NOT NULL,
  message_id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  owner TEXT NOT NULL,
  request_id TEXT,
  seq INTEGER NOT NULL,
  status TEXT NOT NULL,
  accepted_at REAL NOT NULL,
  expires_at REAL NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  due_at REAL NOT NULL DEFAULT 0,
  fence INTEGER NOT NULL DEFAULT 0,
  ended_at REAL,
  correlation_id TEXT NOT NULL,
  chain TEXT NOT NULL DEFAULT '',
  caller BLOB,
  completion_ref TEXT,
  error BLOB,
  payload BLOB NOT NULL,
  UNIQUE (space, owner, request_id, kind)
);

CREATE INDEX ledger_open ON ledger_entry (space, target, number)
  WHERE status IN ('waiting', 'running', 'retrying');
CREATE INDEX ledger_ended ON ledger_entry (space, expires_at)
  WHERE status NOT IN ('waiting', 'running', 'retrying');
CREATE INDEX ledger_parked ON ledger_entry (space, number)
  WHERE status IN ('dead', 'unknown');

CREATE TABLE ledger_result (
  ref TEXT PRIMARY KEY,
  value BLOB NOT NULL
) WITHOUT ROWID;

-- What endpoints know, each about its own side of a link. `recorded` and `expires` are the moments of `timestamp` and
-- `expires_at`, in microseconds of the epoch.
CREATE TABLE aacp_request (
  number INTEGER PRIMARY KEY,
  space INTEGER NOT NULL,
  side TEXT NOT NULL,
  owner TEXT NOT NULL,
  request_id TEXT NOT NULL,
  message_type TEXT NOT NULL,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  status TEXT NOT NULL,
  timestamp TEXT NOT NULL,
  recorded INTEGER NOT NULL,
  expires_at TEXT NOT NULL,
  expires INTEGER NOT NULL,
  completion_ref TEXT,
  error BLOB,
  payload BLOB NOT NULL,
  UNIQUE (space, side, request_id, message_type, owner)
);

CREATE INDEX aacp_request_status ON aacp_request (space, side, status);
CREATE INDEX aacp_request_expiry ON aacp_request (space, side, expires);

CREATE TABLE aacp_message (
  number INTEGER PRIMARY KEY,
  space INTEGER NOT NULL,
  side TEXT NOT NULL,
  message_id TEXT NOT NULL,
  request_id TEXT,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  seq INTEGER NOT NULL,
  status TEXT NOT NULL,
  timestamp TEXT NOT NULL,
  recorded INTEGER NOT NULL,
  expires_at TEXT NOT NULL,
  expires INTEGER NOT NULL,
  retry_count INTEGER NOT NULL,
  next_retry_at TEXT,
  envelope BLOB NOT NULL,
  UNIQUE (space, side, message_id)
);

CREATE INDEX aacp_message_status ON aacp_message (space, side, status);
CREATE INDEX aacp_message_expiry ON aacp_message (space, side, expires);

CREATE TABLE aacp_pair (
  space INTEGER NOT NULL,
  side TEXT NOT NULL,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  last_seq INTEGER NOT NULL DEFAULT 0,
  last_ack INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (space, side, source, target)
) WITHOUT ROWID;
"""

_RUNS = """
-- A request of the ledger that is a run of a tool.
CREATE TABLE ledger_run (
  number INTEGER PRIMARY KEY,
  task_id TEXT UNIQUE,
  process TEXT,
  fence INTEGER NOT NULL DEFAULT 0,
  is_repeatable INTEGER NOT NULL,
  is_cancelled INTEGER NOT NULL DEFAULT 0,
  updated_at REAL NOT NULL,
  capabilities BLOB NOT NULL,
  message TEXT,
  progress BLOB
);

CREATE INDEX ledger_run_held ON ledger_run (process) WHERE process IS NOT NULL;

CREATE TABLE ledger_question (
  number INTEGER NOT NULL,
  asked INTEGER NOT NULL,
  key TEXT NOT NULL,
  digest TEXT NOT NULL,
  place INTEGER NOT NULL,
  request BLOB NOT NULL,
  fence INTEGER NOT NULL,
  answer BLOB,
  PRIMARY KEY (number, asked)
) WITHOUT ROWID;
"""

MIGRATIONS = (Migration(PART, 1, "sqlite", _TABLES), Migration(PART, 2, "sqlite", _RUNS))

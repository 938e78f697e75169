"""The tables of a message bus, engine by engine. A released migration is never changed: its checksum is recorded.

`holder` names a process in the ledger's table of processes, so a bus needs the tables of agents beside its own.
"""

from __future__ import annotations

from dragoman.storage.migrations import Migration

PART = "bus"

_TABLES = """
-- state: waiting, delayed (until due_at), held (until `until`, by the clock since the machine's start), dead, or done.
CREATE TABLE bus_message (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  subject TEXT NOT NULL,
  id TEXT NOT NULL,
  state TEXT NOT NULL,
  size INTEGER NOT NULL,
  published_at REAL NOT NULL,
  due_at REAL,
  expires_at REAL,
  attempts INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  holder TEXT,
  subscription TEXT,
  until REAL,
  errors BLOB NOT NULL,
  died_at REAL,
  forget_at REAL,
  UNIQUE (subject, id)
);

CREATE INDEX bus_waiting ON bus_message (subject) WHERE state = 'waiting';
CREATE INDEX bus_delayed ON bus_message (due_at) WHERE state = 'delayed';
CREATE INDEX bus_held ON bus_message (subject, holder, subscription, until) WHERE state = 'held';
CREATE INDEX bus_dead ON bus_message (number, subject, died_at) WHERE state = 'dead';
CREATE INDEX bus_dead_of_subject ON bus_message (subject, number) WHERE state = 'dead';
CREATE INDEX bus_died ON bus_message (died_at) WHERE state = 'dead';
CREATE INDEX bus_done ON bus_message (forget_at) WHERE state = 'done';
CREATE INDEX bus_expires ON bus_message (expires_at) WHERE expires_at IS NOT NULL AND state IN ('waiting', 'delayed');

-- Apart from the rows above, which change several times: SQLite writes the whole row each time.
CREATE TABLE bus_body (
  number INTEGER PRIMARY KEY,
  headers BLOB NOT NULL,
  body BLOB NOT NULL
);

-- The messages of each subject that wait, are delayed or held. A subject without any has no row.
CREATE TABLE bus_subject (
  subject TEXT PRIMARY KEY,
  messages INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;

-- The counts and the bodies follow the messages by themselves: one statement costs less than three.
CREATE TRIGGER bus_added AFTER INSERT ON bus_message BEGIN
  INSERT INTO bus_subject (subject, messages, bytes) VALUES (NEW.subject, 1, NEW.size)
  ON CONFLICT (subject) DO UPDATE SET messages = messages + 1, bytes = bytes + NEW.size;
END;

CREATE TRIGGER bus_settled AFTER UPDATE OF state ON bus_message WHEN NEW.state IN ('done', 'dead') BEGIN
  UPDATE bus_subject SET messages = messages - 1, bytes = bytes - OLD.size
  WHERE subject = OLD.subject AND OLD.state NOT IN ('done', 'dead');
  DELETE FROM bus_subject WHERE subject = OLD.subject AND messages = 0;
  DELETE FROM bus_body WHERE number = OLD.number AND NEW.state = 'done';
END;

CREATE TRIGGER bus_removed AFTER DELETE ON bus_message BEGIN
  UPDATE bus_subject SET messages = messages - 1, bytes = bytes - OLD.size
  WHERE subject = OLD.subject AND OLD.state NOT IN ('done', 'dead');
  DELETE FROM bus_subject WHERE subject = OLD.subject AND messages = 0;
  DELETE FROM bus_body WHERE number = OLD.number;
END;
"""

_DEAD_SIZES = """
-- With their sizes, so that the dead letters of a subject can be added up without reading their rows.
DROP INDEX bus_dead_of_subject;
CREATE INDEX bus_dead_of_subject ON bus_message (subject, number, size) WHERE state = 'dead';
"""

_SET_ASIDE = """
-- Another state, `expired`: nobody takes such a message, and it waits again if the clock was wrong.
CREATE INDEX bus_expired ON bus_message (expires_at) WHERE state = 'expired';
"""

MIGRATIONS = (
    Migration(PART, 1, "sqlite", _TABLES),
    Migration(PART, 2, "sqlite", _DEAD_SIZES),
    Migration(PART, 3, "sqlite", _SET_ASIDE),
)

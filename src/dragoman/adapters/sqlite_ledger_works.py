"""The writes of the message traffic: accepted messages, beginnings of handlings, and settlements.

1. Each can be written alone. The statements check what must be so, and an exception leaves nothing of it.
2. Most of the time many wait for the same commit, and are written together by statements for many rows: each statement
   gives up the interpreter's lock and has to get it back, which costs more than what SQLite does for a row.
3. Within a transaction nobody else writes. So agents and sequence numbers are read once for all, and what several works
   change one after the other is written once, as the last one leaves it.
4. If any of them cannot be written as it should be, nothing of them is, and each is then written alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.adapters.sqlite_ledger_rows import (
    ADDED_COLUMNS,
    IS_OPEN,
    KEEP_RESULT,
    SqliteSpace,
    add,
    added_entry,
    is_kept_apart,
    row_of,
)
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.ledger import OPEN, LedgerEntry, NewEntry, Settlement
from dragoman.errors import LeaseLost

_BEGIN = (
    "UPDATE ledger_entry SET status = 'running', fence = ?, attempts = attempts + 1 WHERE number = ? "
    "AND status IN ('waiting', 'retrying') "
    "AND EXISTS (SELECT 1 FROM ledger_agent WHERE space = ? AND id = ? AND process = ? AND epoch = ?)"
)
COUNT_VERSION = (
    "UPDATE ledger_agent SET version = version + 1 "
    "WHERE space = ? AND id = ? AND process = ? AND epoch = ? AND version = ?"
)
END = (
    "UPDATE ledger_entry SET status = ?, error = ?, attempts = ?, due_at = ?, fence = ?, ended_at = ?, "
    f"message_id = coalesce(?, message_id) WHERE number = ? AND {IS_OPEN}"
)
KEEP_STATE = (
    "INSERT INTO ledger_state (space, agent, key, value) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (space, agent, key) DO UPDATE SET value = excluded.value"
)
_FORGET_STATE = "DELETE FROM ledger_state WHERE space = ? AND agent = ? AND key = ?"

# The same for many rows, in place of `{}`.
_AGENTS = "SELECT id, process, epoch, version FROM ledger_agent WHERE (space, id) IN (VALUES {})"
_LAST_SEQS = "SELECT source, target, last_seq FROM ledger_pair WHERE (space, source, target) IN (VALUES {})"
_ADD_ALL = f"INSERT INTO ledger_entry ({ADDED_COLUMNS}) VALUES {{}} ON CONFLICT DO NOTHING"
_END_ALL = (
    "UPDATE ledger_entry SET status = done.column1, error = done.column2, attempts = done.column3, "
    "due_at = done.column4, fence = done.column5, ended_at = done.column6, "
    "message_id = coalesce(done.column7, message_id) "
    f"FROM (VALUES {{}}) AS done WHERE number = done.column8 AND {IS_OPEN}"
)
_KEEP_VERSIONS = (
    "INSERT INTO ledger_agent (space, id, process, epoch, version) VALUES {} "
    "ON CONFLICT (space, id) DO UPDATE SET version = excluded.version"
)
_KEEP_STATES = (
    "INSERT INTO ledger_state (space, agent, key, value) VALUES {} "
    "ON CONFLICT (space, agent, key) DO UPDATE SET value = excluded.value"
)
_COUNT_SEQS = (
    "INSERT INTO ledger_pair (space, source, target, last_seq) VALUES {} "
    "ON CONFLICT (space, source, target) DO UPDATE SET last_seq = excluded.last_seq"
)
_MOST_ROWS = 128


class Beginning(Struct, frozen=True):
    """The handling of a message begins."""

    number: int
    agent: str
    epoch: int


LedgerWork: TypeAlias = NewEntry | Settlement | Beginning
SqlValues: TypeAlias = Sequence[Any]


class LedgerWorks:
    """Implements `Together` for one space; `process` tells who this process is among the holders of agents."""

    def __init__(self, space: SqliteSpace, process: Callable[[], str | None]) -> None:
        self._space = space
        self._process = process

    def one(self, item: LedgerWork, writing: Transaction, /) -> Any:
        """A message that was added or found, or those that a settlement sends. Raises `LeaseLost`."""
        space = self._space.of(writing)
        if isinstance(item, NewEntry):
            return add(item, space, writing)
        if isinstance(item, Settlement):
            return self._settle(item, space, writing)
        return self._begin(item, space, writing)

    def all(self, items: Sequence[LedgerWork], writing: Transaction, /) -> list[Any] | None:
        """The same for each of them."""
        space, process = self._space.of(writing), self._process()
        settlements = [item for item in items if isinstance(item, Settlement)]
        begun = {item.number for item in items if isinstance(item, Beginning)}
        if begun and any(done.number in begun for done in settlements):
            return None  # Their order matters.
        if not _keep_versions(settlements, space, process, writing):
            return None
        for item in items:
            if isinstance(item, Beginning):
                self._begin(item, space, writing)
        ends = [_end_of(done) for done in settlements if done.number is not None]
        if _write(_END_ALL, ends, writing) != len(ends):
            return None
        _keep_states(settlements, space, writing)
        added = _add_all(_new_entries(items), space, writing)
        return None if added is None else _results(items, iter(added))

    def _begin(self, item: Beginning, space: int, writing: Transaction) -> None:
        values = (item.epoch, item.number, space, item.agent, self._process(), item.epoch)
        if writing.execute(_BEGIN, values).rowcount != 1:
            raise LeaseLost(item.agent)

    def _settle(self, done: Settlement, space: int, writing: Transaction) -> list[LedgerEntry]:
        counted = writing.execute(COUNT_VERSION, (space, done.agent, self._process(), done.epoch, done.version))
        if counted.rowcount != 1:
            raise LeaseLost(done.agent)
        if done.number is not None and writing.execute(END, _end_of(done)).rowcount != 1:
            raise LeaseLost(done.agent)
        for key, value in done.state.items():
            if value is None:
                writing.execute(_FORGET_STATE, (space, done.agent, key))
            else:
                writing.execute(KEEP_STATE, (space, done.agent, key, value))
        return [add(entry, space, writing) for entry in done.sends]


def _end_of(done: Settlement) -> SqlValues:
    ended_at = None if done.status in OPEN else done.at
    status = done.status._value_
    return (
        status,
        done.error,
        done.attempts,
        done.due_at,
        done.epoch,
        ended_at,
        done.message_id,
        done.number,
    )


def _keep_versions(settlements: Sequence[Settlement], space: int, process: str | None, writing: Transaction) -> bool:
    """Count a version for each settlement; False if one is of another holder, or not the next."""
    names = dict.fromkeys(done.agent for done in settlements)
    found = {row[0]: row[1:] for row in _read(_AGENTS, [(space, name) for name in names], writing)}
    versions = {name: version for name, (_, _, version) in found.items()}
    for done in settlements:
        holder, epoch, _ = found.get(done.agent, (None, 0, 0))
        if (holder, epoch, versions.get(done.agent)) != (process, done.epoch, done.version) or holder is None:
            return False
        versions[done.agent] = done.version + 1
    rows = [(space, name, process, found[name][1], version) for name, version in versions.items()]
    _write(_KEEP_VERSIONS, rows, writing)
    return True


def _keep_states(settlements: Sequence[Settlement], space: int, writing: Transaction) -> None:
    state = {(done.agent, key): value for done in settlements for key, value in done.state.items()}
    kept = [(space, agent, key, value) for (agent, key), value in state.items() if value is not None]
    _write(_KEEP_STATES, kept, writing)
    for (agent, key), value in state.items():
        if value is None:
            writing.execute(_FORGET_STATE, (space, agent, key))


def _new_entries(items: Iterable[LedgerWork]) -> list[NewEntry]:
    """The messages that are accepted or sent, in order."""
    new: list[NewEntry] = []
    for item in items:
        if isinstance(item, NewEntry):
            new.append(item)
        elif isinstance(item, Settlement):
            new += item.sends
    return new


def _add_all(new: Sequence[NewEntry], space: int, writing: Transaction) -> list[LedgerEntry] | None:
    """Add messages behind those of their pairs; None if one of them is there already."""
    pairs = dict.fromkeys((space, entry.source, entry.target) for entry in new)
    last = {(space, source, target): seq for source, target, seq in _read(_LAST_SEQS, list(pairs), writing)}
    rows, sequences = [], []
    for entry in new:
        pair = (space, entry.source, entry.target)
        last[pair] = seq = last.get(pair, 0) + 1
        sequences.append(seq)
        rows.append(row_of(entry, space, seq))
    numbers: list[int] = []
    for statement, values, count in _in_portions(_ADD_ALL, rows):
        added = writing.execute(statement, values)
        if added.rowcount != count:
            return None
        assert added.lastrowid is not None
        numbers += range(added.lastrowid - count + 1, added.lastrowid + 1)
    for entry in new:
        if is_kept_apart(entry):
            writing.execute(KEEP_RESULT, (entry.message_id, entry.payload))
    _write(_COUNT_SEQS, [(*pair, seq) for pair, seq in last.items()], writing)
    return list(map(added_entry, new, numbers, sequences))


def _results(items: Iterable[LedgerWork], added: Iterator[LedgerEntry]) -> list[Any]:
    return [
        next(added)
        if isinstance(item, NewEntry)
        else [next(added) for _ in item.sends]
        if isinstance(item, Settlement)
        else None
        for item in items
    ]


def _write(form: str, rows: Sequence[SqlValues], writing: Transaction) -> int:
    """How many rows were written."""
    return sum(writing.execute(statement, values).rowcount for statement, values, _ in _in_portions(form, rows))


def _read(form: str, rows: Sequence[SqlValues], writing: Transaction) -> Iterator[SqlValues]:
    for statement, values, _ in _in_portions(form, rows):
        yield from writing.execute(statement, values).fetchall()


def _in_portions(form: str, rows: Sequence[SqlValues]) -> Iterator[tuple[str, list[Any], int]]:
    """Statements for all rows, with their values and numbers of rows: powers of two, so that there are few of them."""
    start = 0
    while start < len(rows):
        count = min(_MOST_ROWS, 1 << ((len(rows) - start).bit_length() - 1))
        portion = rows[start : start + count]
        yield _statement(form, len(portion[0]), count), list(chain.from_iterable(portion)), count
        start += count


@cache
def _statement(form: str, width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return form.format(", ".join([row] * count))

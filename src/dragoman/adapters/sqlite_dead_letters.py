"""The `DeadLetters` of a database that several processes may share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from dragoman.adapters.sqlite_bus_rows import (
    NO_ERRORS,
    ExecuteSql,
    add,
    check_room,
    errors_of,
    message_of,
    remove,
    remove_expired,
)
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.clock import Clock
from dragoman.messaging.bus import REMEMBERED_SECONDS, DeadLetter
from dragoman.messaging.subjects import matches
from dragoman.messaging.turns import bounds_of

_LETTER = (
    "SELECT m.number, m.subject, m.id, b.body, b.headers, m.expires_at, m.published_at, m.died_at, m.attempts, "
    "m.errors FROM bus_message m JOIN bus_body b ON b.number = m.number WHERE m.state = 'dead'"
)
_NUMBERS = "SELECT number, subject FROM bus_message WHERE state = 'dead' AND number > ?"
_FORGOTTEN = "SELECT number FROM bus_message WHERE state = 'done' AND forget_at <= ? LIMIT ?"
_DIED = "SELECT number, died_at FROM bus_message WHERE state = 'dead' AND died_at < ? LIMIT ?"
_REMEMBER = "UPDATE bus_message SET state = 'done', forget_at = ?, errors = ?, died_at = NULL WHERE number = ?"


class SqliteDeadLetters:
    """Implements `DeadLetters`."""

    def __init__(self, database: SqliteDatabase, clock: Clock, wake: Callable[[Transaction, str], None]) -> None:
        self._database = database
        self._clock = clock
        self._wake = wake

    async def page(
        self, pattern: str | None, limit: int, *, after: int = 0, died_before: float | None = None
    ) -> list[DeadLetter]:
        return await self._database.read(partial(_page, pattern, limit, after, died_before))

    async def get(self, number: int) -> DeadLetter | None:
        return await self._database.read(lambda connection: _letter(connection.execute, number))

    async def redrive(self, number: int, headers: Mapping[str, str] | None = None) -> int | None:
        return await self._database.write(lambda writing: self.redrive_in(writing, number, headers))

    async def purge(self, limit: int, *, died_before: float, until: float | None = None) -> int:
        now = self._clock.now().timestamp() if until is None else until
        return await self._database.write(partial(_purge, limit, died_before, now))

    def redrive_in(self, transaction: Transaction, number: int, headers: Mapping[str, str] | None = None) -> int | None:
        """As `redrive`, in a transaction of the caller. Raises `BusFull`, and has changed nothing then.

        The message does not expire any more: its time may be over long since.
        """
        execute, now = transaction.execute, self._clock.now().timestamp()
        letter = _letter(execute, number)
        if letter is None:
            return None
        message = replace(letter.message, expires_at=None)
        if headers is not None:
            message = replace(message, headers=headers)
        check_room(execute, message, now)
        (fence,) = execute("SELECT fence FROM bus_message WHERE number = ?", (number,)).fetchone()
        remove(execute, number)
        redriven = add(execute, message, now, published_at=letter.published_at, fence=fence)
        self._wake(transaction, message.subject)
        return redriven


def _page(
    pattern: str | None, limit: int, after: int, died_before: float | None, connection: sqlite3.Connection
) -> list[DeadLetter]:
    statement, values = _NUMBERS, list[Any]((after,))
    if died_before is not None:
        statement += " AND died_at < ?"
        values.append(died_before)
    if pattern is not None:
        statement += " AND subject >= ? AND subject < ?"
        values += bounds_of(pattern)
    found: list[int] = []
    rows = connection.execute(f"{statement} ORDER BY number", values)
    while len(found) < limit and (row := rows.fetchone()) is not None:
        if pattern is None or matches(pattern, row[1]):
            found.append(row[0])
    return [letter for each in found if (letter := _letter(connection.execute, each)) is not None]


def _purge(limit: int, died_before: float, now: float, writing: Transaction) -> int:
    execute = writing.execute
    forgotten = execute(_FORGOTTEN, (now, limit)).fetchall()
    for (number,) in forgotten:
        remove(execute, number)
    count = len(forgotten)
    count += remove_expired(execute, now, limit - count)
    died = execute(_DIED, (died_before, limit - count)).fetchall()
    for number, died_at in died:
        _purge_letter(execute, number, died_at, now)
    return count + len(died)


def _purge_letter(execute: ExecuteSql, number: int, died_at: float, now: float) -> None:
    forget_at = died_at + REMEMBERED_SECONDS
    if forget_at <= now:
        remove(execute, number)
    else:  # Its id is settled, and remembered as any other's.
        execute(_REMEMBER, (forget_at, NO_ERRORS, number))


def _letter(execute: ExecuteSql, number: int) -> DeadLetter | None:
    row = execute(f"{_LETTER} AND m.number = ?", (number,)).fetchone()
    return None if row is None else _letter_of(row)


def _letter_of(row: tuple[Any, ...]) -> DeadLetter:
    number, subject, id, body, headers, expires_at, published_at, died_at, attempts, errors = row
    return DeadLetter(
        number=number,
        message=message_of(subject, id, body, headers, expires_at),
        published_at=published_at,
        died_at=died_at,
        attempts=attempts,
        errors=errors_of(errors),
    )

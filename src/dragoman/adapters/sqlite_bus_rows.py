"""The messages of a bus in a database: what each step does to them, inside a transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from dragoman.errors import BusFull
from dragoman.messaging import bus
from dragoman.messaging.bus import BusDelivery, BusMessage
from dragoman.messaging.turns import subjects_in_turn

if TYPE_CHECKING:
    import sqlite3

ExecuteSql: TypeAlias = "Callable[..., sqlite3.Cursor]"

MOST_AT_ONCE = 500
"""Messages that expire or become due in one transaction."""
NO_ERRORS = msgspec.json.encode(())

_FIND = "SELECT number, state, expires_at FROM bus_message WHERE subject = ? AND id = ?"
_ADD = (
    "INSERT INTO bus_message (subject, id, state, size, published_at, expires_at, attempts, fence, errors) "
    "SELECT :subject, :id, 'waiting', :size, :published_at, :expires_at, 0, :fence, :errors "
    "WHERE :size <= :most_bytes AND NOT EXISTS (SELECT 1 FROM bus_subject WHERE subject = :subject "
    "AND (messages >= :most_messages OR bytes + :size > :most_bytes)) ON CONFLICT (subject, id) DO NOTHING"
)
_ADD_BODY = "INSERT INTO bus_body (number, headers, body) VALUES (?, ?, ?)"
_OPEN = "SELECT messages, bytes FROM bus_subject WHERE subject = ?"
_REMOVE = "DELETE FROM bus_message WHERE number = ?"
_OVER = (
    "SELECT number FROM bus_message WHERE expires_at IS NOT NULL AND state IN ('waiting', 'delayed') "
    "AND expires_at <= :now LIMIT :limit"
)
_SET_ASIDE = f"UPDATE bus_message SET state = 'expired' WHERE number IN ({_OVER})"
_BRING_BACK = (
    "UPDATE bus_message SET state = CASE WHEN due_at IS NULL THEN 'waiting' ELSE 'delayed' END WHERE number IN "
    "(SELECT number FROM bus_message WHERE state = 'expired' AND expires_at > ? LIMIT ?)"
)
_EXPIRED = "SELECT number FROM bus_message WHERE state = 'expired' AND expires_at <= :now LIMIT :limit"
_BECOME_DUE = (
    "UPDATE bus_message SET state = 'waiting', due_at = NULL WHERE number IN "
    "(SELECT number FROM bus_message WHERE state = 'delayed' AND due_at <= ? ORDER BY due_at LIMIT ?)"
)
_NEXT = (
    "SELECT (SELECT count(*) FROM bus_message h WHERE h.state = 'held' AND h.subject = m.subject), m.subject, "
    "m.number, m.id, b.body, b.headers, m.expires_at, m.published_at, m.attempts, m.fence, m.errors "
    "FROM bus_message m JOIN bus_body b ON b.number = m.number "
    "WHERE m.state = 'waiting' AND m.subject >= ? AND m.subject < ? ORDER BY m.subject, m.number LIMIT 1"
)
"""The first message of the next subject, and how many of that subject are held."""
_HOLD = (
    "UPDATE bus_message SET state = 'held', attempts = attempts + 1, fence = fence + 1, holder = ?, subscription = ?, "
    "until = ? WHERE number = ?"
)
_SETTLED = (
    "holder = NULL, subscription = NULL, until = NULL WHERE number = ? AND fence = ? AND state IN ('held', 'waiting')"
)
"""Also where its holder was silent for too long, and nobody has taken it since: whoever takes it raises the fence."""
_ACK = f"UPDATE bus_message SET state = 'done', errors = ?, forget_at = ?, {_SETTLED}"
_RETRY = f"UPDATE bus_message SET state = ?, fence = fence + 1, due_at = ?, errors = ?, {_SETTLED}"
_GIVE_UP = f"UPDATE bus_message SET state = 'dead', died_at = ?, errors = ?, {_SETTLED}"
_DEAD = "SELECT count(*), sum(size) FROM bus_message WHERE state = 'dead' AND subject = ?"
_OLDEST_DEAD = "SELECT number, size FROM bus_message WHERE state = 'dead' AND subject = ? ORDER BY number LIMIT 1"
GIVE_BACK = "UPDATE bus_message SET state = 'waiting', holder = NULL, subscription = NULL, until = NULL"
PUT_BACK = f"{GIVE_BACK}, attempts = attempts - 1"
"""For holders that stop in order: the delivery does not count."""


def add(
    execute: ExecuteSql, message: BusMessage, now: float, *, published_at: float | None = None, fence: int = 0
) -> int | None:
    """Publish a message: its number, or None if there is one with its subject and id. Raises `BusFull`."""
    headers = _encoded(message.headers)
    values = {
        "subject": message.subject,
        "id": message.id,
        "size": len(message.body) + len(headers),
        "published_at": now if published_at is None else published_at,
        "expires_at": message.expires_at,
        "fence": fence,
        "errors": NO_ERRORS,
        "most_messages": bus.MOST_MESSAGES,
        "most_bytes": bus.MOST_BYTES,
    }
    added = execute(_ADD, values)
    if added.rowcount == 0:
        row = execute(_FIND, (message.subject, message.id)).fetchone()
        if row is not None and not _is_expired(row[1:], now):
            return None
        if row is not None:
            remove(execute, row[0])
        check_room(execute, message, now)
        added = execute(_ADD, values)
    number = added.lastrowid
    assert number is not None
    execute(_ADD_BODY, (number, headers, message.body))
    return number


def _is_expired(row: tuple[str, float | None], now: float) -> bool:
    """Whether another may take the place of a message. The id of a settled one counts until it is purged."""
    state, expires_at = row
    return state in ("waiting", "delayed", "expired") and expires_at is not None and expires_at <= now


def check_room(execute: ExecuteSql, message: BusMessage, now: float) -> None:
    """Raises `BusFull` unless there may be one more message like this."""
    subject, size = message.subject, _size_of(message)
    limit = _limit_reached(execute, subject, size)
    if limit is not None and remove_expired(execute, now, MOST_AT_ONCE):
        limit = _limit_reached(execute, subject, size)
    if limit is not None:
        raise BusFull(*limit)


def _limit_reached(execute: ExecuteSql, subject: str, size: int) -> tuple[int, str] | None:
    messages, stored = execute(_OPEN, (subject,)).fetchone() or (0, 0)
    if messages >= bus.MOST_MESSAGES:
        return bus.MOST_MESSAGES, "messages"
    return (bus.MOST_BYTES, "bytes") if stored + size > bus.MOST_BYTES else None


def remove(execute: ExecuteSql, number: int) -> None:
    """Forget a message."""
    execute(_REMOVE, (number,))


def remove_expired(execute: ExecuteSql, now: float, limit: int) -> int:
    """Forget messages that have expired and that nobody holds; how many."""
    count = 0
    for statement in (_EXPIRED, _OVER):
        rows = execute(statement, {"now": now, "limit": limit - count}).fetchall()
        for (number,) in rows:
            remove(execute, number)
        count += len(rows)
    return count


def set_expired_aside(execute: ExecuteSql, now: float) -> int:
    """Have nobody take messages that have expired by a clock that may be wrong, and others that have not; how many."""
    execute(_BRING_BACK, (now, MOST_AT_ONCE))
    return execute(_SET_ASIDE, {"now": now, "limit": MOST_AT_ONCE}).rowcount


def become_due(execute: ExecuteSql, now: float) -> int:
    """Let delayed messages wait whose time has come; how many."""
    return execute(_BECOME_DUE, (now, MOST_AT_ONCE)).rowcount


def next_in_turn(execute: ExecuteSql, pattern: str, after: str, most_held: int) -> Sequence[Any] | None:
    """The row of the message whose turn it is, for `deliver`.

    It is the first that waits of the next subject behind `after`, going round, with fewer than `most_held` held ones.
    """
    held = 0
    row: Sequence[Any] = ()

    def find(low: str, high: str) -> str | None:
        nonlocal held, row
        held, *row = execute(_NEXT, (low, high)).fetchone() or (0, None)
        return cast(str | None, row[0])

    return next((row for _ in subjects_in_turn(find, pattern, after) if held < most_held), None)


def deliver(execute: ExecuteSql, row: Sequence[Any], holder: str, subscription: str, until: float) -> BusDelivery:
    """Hold a message that `next_in_turn` has found."""
    subject, number, id, body, headers, expires_at, published_at, attempts, fence, errors = row
    execute(_HOLD, (holder, subscription, until, number))
    return BusDelivery(
        message=message_of(subject, id, body, headers, expires_at),
        number=number,
        published_at=published_at,
        attempt=attempts + 1,
        fence=fence + 1,
        errors=errors_of(errors),
    )


def ack(execute: ExecuteSql, delivery: BusDelivery, now: float) -> bool:
    """Keep no more of a message than its id; False if this fence is not its last."""
    values = NO_ERRORS, now + bus.REMEMBERED_SECONDS, delivery.number, delivery.fence
    return execute(_ACK, values).rowcount == 1


def retry(execute: ExecuteSql, delivery: BusDelivery, due_at: float | None, error: bytes) -> bool:
    """As `ack`, for one that is delivered again when it is due, or at once where `due_at` is None."""
    state = "waiting" if due_at is None else "delayed"
    values = (state, due_at, _with_error(delivery.errors, error), delivery.number, delivery.fence)
    return execute(_RETRY, values).rowcount == 1


def give_up(execute: ExecuteSql, delivery: BusDelivery, now: float, error: bytes) -> bool:
    """As `ack`, for one that becomes a dead letter."""
    values = (now, _with_error(delivery.errors, error), delivery.number, delivery.fence)
    if execute(_GIVE_UP, values).rowcount != 1:
        return False
    subject = delivery.message.subject
    letters, total = execute(_DEAD, (subject,)).fetchone()
    while letters > bus.MOST_DEAD or total > bus.MOST_DEAD_BYTES:
        number, size = execute(_OLDEST_DEAD, (subject,)).fetchone()
        remove(execute, number)
        letters, total = letters - 1, total - size
    return True


def _size_of(message: BusMessage) -> int:
    return len(message.body) + len(_encoded(message.headers))


def _encoded(headers: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(dict(headers))


def _with_error(errors: Sequence[bytes], error: bytes) -> bytes:
    return msgspec.json.encode((*errors, error))


def errors_of(stored: bytes) -> tuple[bytes, ...]:
    """The errors of a message from its row."""
    return msgspec.json.decode(stored, type=tuple[bytes, ...])


def message_of(subject: str, id: str, body: bytes, headers: bytes, expires_at: float | None) -> BusMessage:
    """A message from its rows."""
    decoded: dict[str, Any] = msgspec.json.decode(headers)
    return BusMessage(subject=subject, id=id, body=body, headers=decoded, expires_at=expires_at)

"""How many bytes of answers are kept for each tenant: counted by the transactions that keep and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.knowledge.kept_answers import answers_full

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_TOTAL = "SELECT charge FROM kept_answer_total WHERE tenant = ?"
_ADD = (
    "INSERT INTO kept_answer_total (tenant, charge) VALUES (?, ?) "
    "ON CONFLICT (tenant) DO UPDATE SET charge = charge + excluded.charge"
)
_FORGET = "DELETE FROM kept_answer_total WHERE tenant = ? AND charge <= 0"


def kept_bytes(connection: Transaction | sqlite3.Connection, tenant: str) -> int:
    """Bytes that are kept for a tenant."""
    row = connection.execute(_TOTAL, (tenant,)).fetchone()
    return 0 if row is None else int(row[0])


def keep_more(transaction: Transaction, tenant: str, charge: int, most: int) -> None:
    """Count more bytes for a tenant. Raises `QuotaExceeded` where that would be more than `most`."""
    total = charge + kept_bytes(transaction, tenant)
    if charge > 0 and total > most:
        raise answers_full(most, total)
    transaction.execute(_ADD, (tenant, charge))


def keep_less(transaction: Transaction, tenant: str, charge: int) -> None:
    """Count less, for what was forgotten."""
    if charge:
        transaction.execute(_ADD, (tenant, -charge))
        transaction.execute(_FORGET, (tenant,))

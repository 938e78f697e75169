"""The texts of documents, once for each tenant however many revisions have them, and what a tenant keeps.

1. A text is known by its tenant and its hash, and is stored in pieces, so that none has to be read whole.
2. Each revision names one. A text goes with the last revision that names it.
3. Rows of the earlier form have their texts themselves. They are converted a few at a time, and counted then.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.knowledge.port import PIECE_LENGTH, CreateDocument, Document, DocumentChange, Usage
from dragoman.knowledge.rows import MOST_ROWS

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

REVISION_BYTES = 512
"""What a revision counts besides the fields of its document: its keys, its author, its event in the audit."""
_ROWS_OF_A_REVISION = 4
"""Itself, its text, how often that is named, what its tenant keeps."""
_PIECE_BITS = 16
_LARGE = 32_768
_HIGHEST = 2**63 - 1
_CONVERTED_AT_ONCE = 1_048_576
"""Characters of texts that are converted in one transaction; a longer text is converted alone."""

_FIND = "SELECT number FROM document_content WHERE tenant = ? AND hash = ?"
_KEEP = "INSERT INTO document_content (tenant, hash, size, length, named) VALUES (?, ?, ?, ?, 0)"
_KEEP_PIECE = "INSERT INTO document_piece (number, text) VALUES (?, ?)"
_PIECES = "SELECT text FROM document_piece WHERE number BETWEEN ? AND ? ORDER BY number"
_DROP_PIECES = "DELETE FROM document_piece WHERE number BETWEEN ? AND ?"
_NAME = "UPDATE document_content SET named = named + ? WHERE number = ?"
_DROP = "DELETE FROM document_content WHERE number = ?"
_OLDEST_REVISION = """
    SELECT document_revision.rowid, length(document), number, size, length, named, besides
    FROM document_revision LEFT JOIN document_content ON number = content
    WHERE document_revision.tenant = ? AND id = ? ORDER BY revision LIMIT 1
    """
_DROP_REVISION = "DELETE FROM document_revision WHERE rowid = ?"
_COUNT = (
    "INSERT INTO document_usage (tenant, documents, bytes) VALUES (?, ?, ?) ON CONFLICT (tenant) "
    "DO UPDATE SET documents = documents + excluded.documents, bytes = bytes + excluded.bytes"
)
_USAGE = "SELECT documents, bytes FROM document_usage WHERE tenant = ?"
_NEXT = "SELECT document, revision FROM document_conversion"
_GO_ON = "UPDATE document_conversion SET document = ?, revision = ?"
_OLD_DOCUMENT = "SELECT number, tenant, id, content, body FROM document WHERE number <= ? ORDER BY number DESC LIMIT 1"
_OLD_REVISION = (
    "SELECT revision, document FROM document_revision WHERE tenant = ? AND id = ? AND revision < ? AND content IS NULL "
    "ORDER BY revision DESC LIMIT 1"
)
_CONVERT_DOCUMENT = "UPDATE document SET content = ?, body = '' WHERE number = ?"
_CONVERT_REVISION = (
    "UPDATE document_revision SET content = ?, document = ? WHERE tenant = ? AND id = ? AND revision = ?"
)

_decode_document = msgspec.json.Decoder(Document).decode


class NewText(NamedTuple):
    """A text that may be kept, and what it is known by."""

    text: str
    hash: bytes
    size: int

    @classmethod
    def of(cls, text: str) -> NewText:
        encoded = text.encode()
        return cls(text, sha256(encoded).digest(), len(encoded))

    @classmethod
    async def ahead(cls, change: DocumentChange) -> NewText:
        """The text that a change brings, or an empty one; hashed before the transaction that needs it."""
        text = change.document.body if isinstance(change, CreateDocument) else None
        text = getattr(change, "fields", {}).get("content.body") if text is None else text
        if not isinstance(text, str):
            return cls.of("")
        return cls.of(text) if len(text) < _LARGE else await asyncio.to_thread(cls.of, text)


def find_text(connection: Transaction | sqlite3.Connection, tenant: str, new: NewText) -> int | None:
    """The number of a text that a tenant has."""
    found = connection.execute(_FIND, (tenant, new.hash)).fetchone()
    return None if found is None else int(found[0])


def keep_text(transaction: Transaction, tenant: str, new: NewText) -> int:
    """The number of a text, which its tenant has from now on. It stays only if a revision is going to name it."""
    number = find_text(transaction, tenant, new)
    if number is None:
        values = tenant, new.hash, new.size, len(new.text)
        number = transaction.execute(_KEEP, values).lastrowid
        assert number is not None
        first, _ = _range_of(number)
        for at, start in enumerate(range(0, len(new.text), PIECE_LENGTH)):
            transaction.execute(_KEEP_PIECE, (first + at, new.text[start : start + PIECE_LENGTH]))
        count(transaction, tenant, size=new.size)
    return number


def read_text(connection: Transaction | sqlite3.Connection, number: int, most: int | None = None) -> str:
    """The whole text of a number, or as many pieces as have `most` characters."""
    first, last = _range_of(number)
    if most is not None:
        last = min(last, first + (most - 1) // PIECE_LENGTH)
    return "".join([piece for (piece,) in connection.execute(_PIECES, (first, last))])


def read_piece(connection: sqlite3.Connection, number: int, at: int) -> str:
    """One piece of a text; empty behind the last one."""
    first, last = _range_of(number)
    row = connection.execute(_PIECES, (first + at, first + at)).fetchone() if first + at <= last else None
    return "" if row is None else str(row[0])


def name_text(transaction: Transaction, tenant: str, number: int, encoded: bytes, besides: int = 0) -> None:
    """Count a revision that names a text: what it stores, and bytes that are kept of it elsewhere `besides`."""
    transaction.execute(_NAME, (1, number))
    count(transaction, tenant, size=len(encoded) + REVISION_BYTES + besides)


def forget_revisions(transaction: Transaction, tenant: str, id: str, room: int) -> tuple[int, bool]:
    """Delete revisions of a document, and texts that only they name, as many as there is room for.

    How many rows that has written, and whether no revision is left.
    """
    written = freed = 0
    while (row := transaction.execute(_OLDEST_REVISION, (tenant, id)).fetchone()) is not None:
        rowid, described, number, size, length, named, besides = row
        is_last = named == 1
        # One of the earlier form has its text itself.
        own = described if number is None else length if is_last else 0
        rows = _ROWS_OF_A_REVISION + -(-own // PIECE_LENGTH)
        if min(rows, MOST_ROWS // 2) > room - written:
            break
        transaction.execute(_DROP_REVISION, (rowid,))
        if number is not None:
            freed += described + REVISION_BYTES + besides
            transaction.execute(_NAME, (-1, number))
        if is_last:
            transaction.execute(_DROP_PIECES, _range_of(number))
            transaction.execute(_DROP, (number,))
            freed += size
        written += rows
    count(transaction, tenant, size=-freed)
    return written, row is None


def count(transaction: Transaction, tenant: str, documents: int = 0, size: int = 0) -> None:
    """Count what a tenant keeps from now on, or keeps no longer."""
    transaction.execute(_COUNT, (tenant, documents, size))


def usage_of(connection: Transaction | sqlite3.Connection, tenant: str) -> Usage:
    """What a tenant keeps."""
    row = connection.execute(_USAGE, (tenant,)).fetchone()
    return Usage(*(row or (0, 0)))


def convert(limit: int, transaction: Transaction) -> int:
    """Convert at most so many rows of the earlier form; how many documents and revisions were looked at."""
    looked_at = length = 0
    while looked_at < limit and length < _CONVERTED_AT_ONCE:
        place = transaction.execute(_NEXT).fetchone()
        if place is None:
            break
        looked_at += 1
        length += _convert_one(transaction, *place)
    return looked_at


def _convert_one(transaction: Transaction, document: int, below: int) -> int:
    """Convert a revision, or the document if none of its revisions is left; how long its text is."""
    row = transaction.execute(_OLD_DOCUMENT, (document,)).fetchone()
    if row is None:
        transaction.execute("DELETE FROM document_conversion")
        return 0
    document, tenant, id, content, body = row
    old = transaction.execute(_OLD_REVISION, (tenant, id, below)).fetchone()
    if old is None:
        transaction.execute(_GO_ON, (document - 1, _HIGHEST))
        if not is_converted(content, body):
            transaction.execute(_CONVERT_DOCUMENT, (keep_text(transaction, tenant, NewText.of(body)), document))
        return len(body)
    revision, _ = old
    transaction.execute(_GO_ON, (document, revision))
    return convert_revision(tenant, id, revision, transaction)


def convert_revision(tenant: str, id: str, revision: int, transaction: Transaction) -> int:
    """Convert a revision, if it is of the earlier form; how long its text is then."""
    old = transaction.execute(_OLD_REVISION, (tenant, id, revision + 1)).fetchone()
    if old is None or old[0] != revision:
        return 0
    whole = _decode_document(old[1])
    number, encoded = keep_text(transaction, tenant, NewText.of(whole.body)), encode_bare(whole)
    transaction.execute(_CONVERT_REVISION, (number, encoded, tenant, id, revision))
    name_text(transaction, tenant, number, encoded)
    return len(whole.body)


def is_converted(content: Any, body: str) -> bool:
    """Whether a document's row is of the present form. A process of an earlier version writes texts into the row."""
    return content is not None and not body


def encode_bare(document: Document) -> bytes:
    """A document without its text, as revisions store it."""
    return msgspec.json.encode(replace(document, body=""))


def _range_of(number: int) -> tuple[int, int]:
    return number << _PIECE_BITS, (number << _PIECE_BITS) + (1 << _PIECE_BITS) - 1

"""The `Documents` and the `Audit` of a database that several processes may share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman.adapters.sqlite_bus import SqliteBus
from dragoman.adapters.sqlite_contents import (
    REVISION_BYTES,
    NewText,
    convert,
    convert_revision,
    count,
    encode_bare,
    find_text,
    forget_revisions,
    is_converted,
    keep_text,
    name_text,
    read_piece,
    read_text,
    usage_of,
)
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_heights import levels_below, measure_up
from dragoman.adapters.sqlite_kept_answers import keep_less, keep_more, kept_bytes
from dragoman.adapters.sqlite_leaving import Gone, SqliteLeavingRows, tenants_with_work
from dragoman.adapters.sqlite_passage_rows import Missing, index_changed, index_missing, index_new
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.calls.places import Holder
from dragoman.clock import Clock
from dragoman.knowledge import changing, leaving
from dragoman.knowledge.indexing import CutAhead, entries_ahead, has_other_text, is_found_otherwise
from dragoman.knowledge.kept_answers import SMALLEST_CHARGE, charge_of
from dragoman.knowledge.passages import MOST_CHARACTERS
from dragoman.knowledge.port import (
    KEPT_DELETED_SECONDS,
    ROOT,
    ActionRequest,
    Applied,
    AuditEvent,
    DeleteDocument,
    Document,
    DocumentChange,
    Outline,
    Revision,
    UpdateDocument,
    Usage,
)
from dragoman.knowledge.rows import MOST_BYTES, MOST_ROWS, Receipt, Room, TreeLevels
from dragoman.messaging.bus import BusMessage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

_LISTED = (
    "tenant, id, parent, place, revision, title, mime_type, tags, source, last_editor, is_human_readable, created_at, "
    "updated_at, delete_at, deleted_at"
)
_ONE = f"SELECT {_LISTED} FROM document WHERE tenant = ? AND id = ?"
_TEXT = "SELECT content, body FROM document WHERE tenant = ? AND id = ?"
_SIZE = """
    SELECT document_content.size FROM document JOIN document_content ON document_content.number = document.content
    WHERE document.tenant = ? AND id = ?
    """
_LENGTH = """
    SELECT coalesce(document_content.length, length(body))
    FROM document LEFT JOIN document_content ON document_content.number = document.content
    WHERE document.tenant = ? AND id = ?
    """
_ADD = f"INSERT INTO document ({_LISTED}, body, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?)"
_SET_TEXT = "UPDATE document SET content = ?, body = '' WHERE tenant = ? AND id = ?"
_REPLACE = (
    "UPDATE document SET parent = ?, place = ?, revision = ?, title = ?, mime_type = ?, tags = ?, source = ?, "
    "last_editor = ?, is_human_readable = ?, created_at = ?, updated_at = ?, delete_at = ?, deleted_at = ? "
    "WHERE tenant = ? AND id = ? AND revision = ?"
)
_IS_WITHIN = """
    WITH RECURSIVE above (id) AS (
      SELECT ?
      UNION SELECT document.parent FROM above JOIN document ON document.tenant = ? AND document.id = above.id
    )
    SELECT EXISTS (SELECT 1 FROM above WHERE id = ?)
    """
_DEPTH = """
    WITH RECURSIVE above (level, id) AS (
      SELECT 0, ?
      UNION ALL
      SELECT above.level + 1, document.parent FROM above JOIN document ON document.tenant = ? AND document.id = above.id
      WHERE above.level < ?
    )
    SELECT max(level) FROM above
    """
_LAST_PLACE = "SELECT max(place) FROM document WHERE tenant = ? AND parent = ? AND deleted_at IS NULL"
_PLACE_BEFORE = f"{_LAST_PLACE} AND place < ?"
_IN_FRONT = (
    "SELECT id, place FROM document WHERE tenant = ? AND parent = ? AND deleted_at IS NULL AND place < ? "
    "ORDER BY place DESC LIMIT ?"
)
_COUNT_IN_FRONT = (
    "SELECT count(*), min(place) FROM document WHERE tenant = ? AND parent = ? AND deleted_at IS NULL AND place < ?"
)
_BETWEEN = (
    "SELECT id, place FROM document WHERE tenant = ? AND parent = ? AND deleted_at IS NULL AND place < ? "
    "AND place > ? ORDER BY place LIMIT ?"
)
_SET_PLACE = "UPDATE document SET place = ? WHERE tenant = ? AND id = ?"
_NEXT_MISSING = "SELECT min(tenant) FROM passage_missing WHERE tenant > ?"
_MISSING = """
    SELECT document.id, document.number, passage_missing.revision
    FROM passage_missing JOIN document ON document.number = passage_missing.document
    WHERE passage_missing.tenant = ? ORDER BY is_found, passage_missing.document LIMIT ?
    """
_CHILDREN = (
    f"SELECT {_LISTED} FROM document WHERE tenant = ? AND parent = ? AND deleted_at IS NULL AND place > ? "
    "AND ifnull(delete_at > ?, 1) ORDER BY place LIMIT ?"
)
_RECEIPT = (
    "SELECT fingerprint, data, hits FROM document_receipt WHERE tenant = ? AND action = ? AND subject = ? AND key = ?"
)
_KEEP_RECEIPT = (
    "INSERT INTO document_receipt (tenant, action, subject, key, until, fingerprint, data, hits, charge) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OLD_RECEIPTS = "SELECT tenant, action, subject, key, charge FROM document_receipt WHERE until <= ? LIMIT ?"
_FORGET_RECEIPT = "DELETE FROM document_receipt WHERE tenant = ? AND action = ? AND subject = ? AND key = ?"
_SEQ = "SELECT seq FROM document_stream WHERE tenant = ? AND principal = ? AND context_id = ?"
_STREAM_CHARGE = "SELECT charge FROM document_stream WHERE tenant = ? AND principal = ? AND context_id = ?"
_MOVE_SEQ = (
    "UPDATE document_stream SET seq = ?, until = max(until, ?) WHERE tenant = ? AND principal = ? AND context_id = ?"
)
_BEGIN_BY_QUERY = (
    "INSERT INTO document_stream (tenant, principal, context_id, seq, until, charge) VALUES (?, ?, ?, ?, ?, ?)"
)
_SET_SEQ = "INSERT OR REPLACE INTO document_stream (tenant, principal, context_id, seq, until) VALUES (?, ?, ?, ?, ?)"
_KEEP_REVISION = (
    "INSERT INTO document_revision (tenant, id, revision, at, action, principal, document, content, besides) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_HISTORY = (
    "SELECT document, action, principal, at FROM document_revision WHERE tenant = ? AND id = ? AND revision < ? "
    "ORDER BY revision DESC LIMIT ?"
)
_REVISION = (
    "SELECT document, action, principal, at, content FROM document_revision "
    "WHERE tenant = ? AND id = ? AND revision = ?"
)
_CONTENT = "SELECT content FROM document_revision WHERE tenant = ? AND id = ? AND revision = ?"
_NOTE = (
    "INSERT INTO audit_event (tenant, event, principal, subject, at, details, once) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (once) DO NOTHING"
)
_EVENTS = "SELECT tenant, event, principal, subject, at, details, once, number FROM audit_event WHERE number < ? "
_OLD = """
    SELECT tenant, id FROM document
    WHERE deleted_at <= ? AND NOT EXISTS (SELECT 1 FROM document_leaving WHERE document = document.number)
    ORDER BY deleted_at LIMIT ?
    """
_OLD_STREAMS = "SELECT tenant, principal, context_id, charge FROM document_stream WHERE until <= ? LIMIT ?"
_FORGET_STREAM = "DELETE FROM document_stream WHERE tenant = ? AND principal = ? AND context_id = ?"
_HIGHEST = 2**63 - 1
_ROWS = 10
"""About as many are written by a change, besides those for its text."""
_BYTES_OF_A_ROW = 128
_LARGE = MOST_ROWS // 4
"""The weight of a change that others notice."""
_SPREAD = 16, 128, 1_024
"""How many children get other places for one that is put in front of another: the fewest that have room."""
_ENOUGH_ROOM = 256
"""Between the places of two, so that eight more can be put between them."""
_MOST_LISTED = 4_194_304
"""Bytes of what a page of a list is read from."""

_decode_document = msgspec.json.Decoder(Document).decode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode
_NO_TEXT = NewText.of("")


class SqliteDocuments:
    """Implements `Documents`. Nothing is opened before the first use."""

    def __init__(self, database: SqliteDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._last = ""
        """The last tenant whose documents were indexed."""
        self._large = _OneOfEach()

    async def recall(self, request: ActionRequest) -> Applied | None:
        def read(connection: sqlite3.Connection) -> Applied | None:
            return changing.recall(self._rows(connection), request)

        return await self._database.read(read, request.holder)

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        cut, text = await CutAhead.of(change, request.tenant, self), await NewText.ahead(change)
        json = await self._json_ahead(change, request)

        def write(transaction: Transaction) -> Applied:
            rows = self._rows(transaction, cut, text, json)
            return changing.carry_out(rows, change, request, rows.now)

        weight = _weight_of(change, text)
        async with self._large.turn(request.tenant) if weight > _LARGE else nullcontext():
            while True:
                try:
                    return await self._database.write(write, weight)
                except _NoRoom as error:
                    await self._make_room(*error.place)

    async def _json_ahead(self, change: DocumentChange, request: ActionRequest) -> tuple[int, bool] | None:
        """The number of a text that is to be JSON from now on, and whether it is: found out before the transaction."""
        if not isinstance(change, UpdateDocument) or "content.body" in change.fields:
            return None
        if change.fields.get("content.mime_type") != changing.JSON:
            return None
        key = request.tenant, change.id

        def read(connection: sqlite3.Connection) -> tuple[int, str] | None:
            row = connection.execute(_TEXT, key).fetchone()
            return (row[0], read_text(connection, row[0])) if row is not None and is_converted(*row) else None

        found = await self._database.read(read, request.holder)
        return None if found is None else (found[0], await asyncio.to_thread(changing.is_json, found[1]))

    async def _make_room(self, tenant: str, parent: str, before: int) -> None:
        """Give all children in front of a place lower ones, in pieces that keep their order: there may be many."""
        last: int | None = None
        while True:
            last, is_all = await self._database.write(partial(_lower, tenant, parent, before, last), _SPREAD[-1])
            if is_all:
                return

    async def kept_answers(self, tenant: str) -> int:
        return await self._database.read(lambda connection: kept_bytes(connection, tenant))

    async def get(self, tenant: str, id: str, *, key: str = "") -> Document | None:
        def read(connection: sqlite3.Connection) -> Document | None:
            return self._rows(connection).standing(tenant, id)

        return await self._database.read(read, Holder(tenant, key))

    async def outline(self, tenant: str, id: str, *, key: str = "") -> Outline | None:
        def read(connection: sqlite3.Connection) -> Outline | None:
            rows = self._rows(connection)
            document = rows.document(tenant, id)
            if document is None or rows.is_gone(document):
                return None
            return Outline(document, connection.execute(_LENGTH, (tenant, id)).fetchone()[0])

        return await self._database.read(read, Holder(tenant, key))

    async def children(
        self, tenant: str, parent: str, limit: int, *, after: int | None = None, key: str = ""
    ) -> list[Document]:
        start = -_HIGHEST if after is None else after

        def read(connection: sqlite3.Connection) -> list[Document]:
            now = self._clock.now().timestamp()
            if Gone(connection, tenant, now).is_below(parent):
                return []
            rows = connection.execute(_CHILDREN, (tenant, parent, start, now, limit))
            return [_document(row) for row in _as_many(rows, lambda row: sum(len(each or "") for each in row[5:10]))]

        return await self._database.read(read, Holder(tenant, key))

    async def history(
        self, tenant: str, id: str, limit: int, *, before: int | None = None, key: str = ""
    ) -> list[Revision]:
        values = tenant, id, _HIGHEST if before is None else before, limit

        def read(connection: sqlite3.Connection) -> list[Revision]:
            rows = _as_many(connection.execute(_HISTORY, values), lambda row: len(row[0]))
            return [Revision(replace(_decode_document(document), body=""), *rest) for document, *rest in rows]

        return await self._database.read(read, Holder(tenant, key))

    async def revision(self, tenant: str, id: str, number: int, *, key: str = "") -> Revision | None:
        def read(connection: sqlite3.Connection) -> Revision | None:
            row = connection.execute(_REVISION, (tenant, id, number)).fetchone()
            if row is None:
                return None
            encoded, *rest, content = row
            document = _decode_document(encoded)
            if content is not None:
                document = replace(document, body=read_text(connection, content))
            return Revision(document, *rest)

        return await self._database.read(read, Holder(tenant, key))

    async def piece(self, tenant: str, id: str, revision: int, at: int, *, key: str = "") -> str:
        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(_CONTENT, (tenant, id, revision)).fetchone()
            if row is None:
                return ""
            return None if row[0] is None else read_piece(connection, row[0], at)

        found = await self._database.read(read, Holder(tenant, key))
        if found is None:  # Of the earlier form: to decode it for each piece would take a whole text each time.
            await self._database.write(partial(convert_revision, tenant, id, revision))
            found = await self._database.read(read, Holder(tenant, key))
        return found or ""

    async def usage(self, tenant: str) -> Usage:
        return await self._database.read(lambda connection: usage_of(connection, tenant), Holder(tenant))

    async def convert(self, limit: int) -> int:
        return await self._database.write(partial(convert, limit))

    async def tidy(self, limit: int, until: float | None = None) -> int:
        now = self._clock.now().timestamp()
        tidied = 0
        for tenant in await self._database.read(lambda connection: tenants_with_work(connection, now)):
            tidied += await self._database.write(partial(self._go_on, tenant, limit), MOST_ROWS)
        return tidied + await self._database.write(partial(self._purge, limit, until), MOST_ROWS)

    async def catch_up(self, limit: int) -> int:
        """See `PassageIndex.catch_up`."""
        found = await self._database.read(partial(self._missing, limit))
        waiting: Sequence[Missing] = await asyncio.to_thread(_entries_of, found) if found else ()
        while waiting:
            waiting = await self._database.write(partial(_index_some, waiting), MOST_ROWS)
        return len(found)

    def _missing(self, limit: int, connection: sqlite3.Connection) -> list[tuple[int, int, Document]]:
        """Documents of the tenant whose turn it is, with their texts, a transaction's worth at most or a single one."""
        (tenant,) = connection.execute(_NEXT_MISSING, (self._last,)).fetchone()
        if tenant is None:
            (tenant,) = connection.execute(_NEXT_MISSING, ("",)).fetchone()
        self._last = tenant or ""
        rows, found, size = self._rows(connection), list[tuple[int, int, Document]](), 0
        for id, number, revision in connection.execute(_MISSING, (tenant, limit)):
            document = rows.document(tenant, id)
            assert document is not None
            found.append((number, revision, replace(document, body=rows.body(tenant, id, MOST_CHARACTERS))))
            size += len(found[-1][-1].body)
            if size >= MOST_BYTES:
                break
        return found

    def _go_on(self, tenant: str, limit: int, transaction: Transaction) -> int:
        rows = self._rows(transaction)
        # A piece of a document with many passages may come to no more than these.
        return leaving.go_on(rows.leaving, tenant, rows.now, Room.of_a_piece(limit)) or 1

    def _purge(self, limit: int, until: float | None, transaction: Transaction) -> int:
        purged, room, until = 0, MOST_ROWS, self._rows(transaction).now if until is None else until
        for tenant, id in transaction.execute(_OLD, (until - KEPT_DELETED_SECONDS, limit)).fetchall():
            written, is_all = forget_revisions(transaction, tenant, id, room)
            room -= written
            if not is_all or room <= 0:
                return purged + 1
            transaction.execute("DELETE FROM document WHERE tenant = ? AND id = ?", (tenant, id))
            purged, room = purged + 1, room - 2
        purged += _forget(transaction, _OLD_RECEIPTS, _FORGET_RECEIPT, until, limit)
        return purged + _forget(transaction, _OLD_STREAMS, _FORGET_STREAM, until, limit)

    def _rows(
        self,
        connection: Transaction | sqlite3.Connection,
        cut: CutAhead | None = None,
        text: NewText = _NO_TEXT,
        json: tuple[int, bool] | None = None,
    ) -> _Rows:
        return _Rows(connection, self._clock.now().timestamp(), cut or CutAhead(), text, json)


class _NoRoom(Exception):
    """Undoes a transaction that would have to give very many children other places."""

    def __init__(self, tenant: str, parent: str, before: int) -> None:
        super().__init__("There is no room for another child")
        self.place = tenant, parent, before


def _lower(tenant: str, parent: str, before: int, last: int | None, transaction: Transaction) -> tuple[int, bool]:
    """Give the next children in front of a place others, behind the `last` of these; the last, and whether it was all.

    The first one gets a place that is low enough for all.
    """
    values = tenant, parent, before
    if last is None:
        count, lowest = transaction.execute(_COUNT_IN_FRONT, values).fetchone()
        last = (before if lowest is None else lowest) - 2 * (count + 1) * changing.GAP
    found = transaction.execute(_BETWEEN, (*values, last, _SPREAD[-1])).fetchall()
    for id, place in found:
        last = min(last + changing.GAP, place)
        transaction.execute(_SET_PLACE, (last, tenant, id))
    return last, len(found) < _SPREAD[-1]


class _OneOfEach:
    """Lets the tenants write one large change each at a time: nobody waits behind many of another tenant."""

    def __init__(self) -> None:
        self._turns: dict[tuple[int, str], tuple[asyncio.Lock, int]] = {}
        """By event loop and tenant: the turn, and how many have it or wait for it."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait until no other change of the tenant has the turn, and have it until the block has ended."""
        place = id(asyncio.get_running_loop()), tenant
        lock, count = self._turns.get(place) or (asyncio.Lock(), 0)
        self._turns[place] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            lock, count = self._turns.pop(place)
            if count > 1:
                self._turns[place] = lock, count - 1


def _weight_of(change: DocumentChange, text: NewText) -> int:
    """About how many rows a change writes, as far as that is known before."""
    return MOST_ROWS if isinstance(change, DeleteDocument) else _ROWS + text.size // _BYTES_OF_A_ROW


def _entries_of(found: Iterable[tuple[int, int, Document]]) -> list[Missing]:
    """What is to be in the index of each document: cutting a large one takes a second or two."""
    missing = []
    for number, revision, document in found:
        is_there = document.deleted_at is None
        entries = entries_ahead(document.mime_type, document.body) if is_there else None
        missing.append(Missing(number, document.tenant, revision, document.title, entries, []))
    return missing


def _index_some(waiting: Sequence[Missing], transaction: Transaction) -> Sequence[Missing]:
    """Index as much as one transaction may; the documents of which something is left."""
    room = Room.of_a_piece()
    for place, each in enumerate(waiting):
        if not index_missing(transaction, each, room):
            return waiting[place:]
    return ()


class SqliteAudit:
    """Implements `Audit`."""

    def __init__(self, database: SqliteDatabase, bus: SqliteBus) -> None:
        self._database = database
        self._bus = bus

    async def note(self, event: AuditEvent, message: BusMessage | None = None) -> bool:
        def write(transaction: Transaction) -> bool:
            is_noted = note_event(transaction, event)
            if is_noted and message is not None:
                self._bus.publish_in(transaction, message)
            return is_noted

        return await self._database.write(write)

    async def page(self, limit: int, *, tenant: str | None = None, before: int | None = None) -> list[AuditEvent]:
        statement = _EVENTS
        values: tuple[Any, ...] = (_HIGHEST if before is None else before,)
        if tenant is not None:
            statement, values = f"{_EVENTS} AND tenant = ?", (*values, tenant)

        return await self._events(f"{statement} ORDER BY number DESC LIMIT ?", *values, limit)

    async def noted_once(self, beginning: str) -> list[AuditEvent]:
        statement = f"{_EVENTS} AND once >= ? AND once < ? ORDER BY number"
        return await self._events(statement, _HIGHEST, beginning, beginning + chr(0x10FFFF))

    async def _events(self, statement: str, *values: Any) -> list[AuditEvent]:
        def read(connection: sqlite3.Connection) -> list[AuditEvent]:
            names = "tenant", "event", "principal", "subject", "at", "details", "once", "number"
            return [_event(dict(zip(names, row, strict=True))) for row in connection.execute(statement, values)]

        return await self._database.read(read)


class _RequestRows:
    """Implements `RequestRows`."""

    def __init__(self, connection: Transaction | sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self._execute = connection.execute
        self.now = now

    @property
    def _writing(self) -> Transaction:
        assert isinstance(self.connection, Transaction)
        return self.connection

    def receipt(self, request: ActionRequest) -> Receipt | None:
        row = self._execute(_RECEIPT, _receipt_key(request)).fetchone()
        return None if row is None else Receipt(row[0], msgspec.json.decode(row[1]), row[2])

    def keep_receipt(
        self, request: ActionRequest, applied: Applied, until: float, most_kept: int | None = None
    ) -> None:
        key, encoded = _receipt_key(request), msgspec.json.encode(applied.data)
        charge = 0
        if most_kept is not None:
            charge = charge_of(len(encoded))
            keep_more(self._writing, request.tenant, charge, most_kept)
        self._execute(_KEEP_RECEIPT, (*key, until, request.fingerprint, encoded, applied.hits, charge))

    def last_seq(self, request: ActionRequest) -> int | None:
        row = self._execute(_SEQ, _stream_key(request)).fetchone()
        return None if row is None else int(row[0])

    def set_seq(self, request: ActionRequest, until: float, most_kept: int | None = None) -> None:
        assert request.stream is not None
        key, seq = _stream_key(request), request.stream.seq
        if most_kept is None:
            for (charge,) in self._execute(_STREAM_CHARGE, key).fetchall():
                keep_less(self._writing, request.tenant, charge)
            self._execute(_SET_SEQ, (*key, seq, until))
        elif self._execute(_MOVE_SEQ, (seq, until, *key)).rowcount == 0:
            keep_more(self._writing, request.tenant, SMALLEST_CHARGE, most_kept)
            self._execute(_BEGIN_BY_QUERY, (*key, seq, until, SMALLEST_CHARGE))


class _Rows(_RequestRows):
    """Implements `DocumentRows`."""

    def __init__(
        self,
        connection: Transaction | sqlite3.Connection,
        now: float,
        cut: CutAhead,
        ahead: NewText,
        json: tuple[int, bool] | None = None,
    ) -> None:
        """`json` is the number of a text, and whether that is known to be JSON."""
        super().__init__(connection, now)
        self._ahead = ahead
        self._json = dict((json,) if json else ())
        self._lacks_passages = False
        self.leaving = SqliteLeavingRows(connection, self.note)
        self._cut = cut

    @property
    def is_unfinished(self) -> bool:
        return self._lacks_passages or self.leaving.is_unfinished

    def document(self, tenant: str, id: str) -> Document | None:
        return next(_documents(self.connection, _ONE, tenant, id), None)

    def body(self, tenant: str, id: str, most: int | None = None) -> str:
        """With `most`, at least so many characters of it, as far as it has them."""
        content, body = self._execute(_TEXT, (tenant, id)).fetchone()
        return read_text(self.connection, content, most) if is_converted(content, body) else str(body)

    def holds_json(self, tenant: str, id: str) -> bool:
        content, _ = self._execute(_TEXT, (tenant, id)).fetchone()
        return self._json[content] if content in self._json else changing.is_json(self.body(tenant, id))

    def standing(self, tenant: str, id: str) -> Document | None:
        """A document with its body, unless it is deleted."""
        found = self.document(tenant, id)
        if found is None or self.is_gone(found):
            return None
        return replace(found, body=self.body(tenant, id))

    def usage_with(self, document: Document, before: Document | None, besides: int = 0) -> Usage:
        usage = usage_of(self.connection, document.tenant)
        size = usage.size + len(encode_bare(document)) + REVISION_BYTES + besides
        if before is None or document.body != before.body:
            new = self._new(document.body)
            size += new.size if find_text(self.connection, document.tenant, new) is None else 0
        return Usage(usage.documents + (before is None), size)

    def add(self, document: Document) -> None:
        content = keep_text(self._writing, document.tenant, self._new(document.body))
        number = self._execute(_ADD, (document.tenant, document.id, *_changing(document), content)).lastrowid
        assert number is not None
        count(self._writing, document.tenant, documents=1)
        measure_up(self._writing, document.tenant, document.parent)
        self._lacks_passages = not index_new(self._writing, number, document, self._cut)

    def replace(self, document: Document, before: Document) -> bool:
        values = (*_changing(document), document.tenant, document.id, before.revision)
        if self._execute(_REPLACE, values).rowcount != 1:
            return False
        if document.parent != before.parent:
            for each in (before.parent, document.parent):
                measure_up(self._writing, document.tenant, each)
        self._replace_text(document, before)
        cut: CutAhead | None = self._cut
        if has_other_text(document, before) and not document.body:
            if self._execute(_SIZE, (document.tenant, document.id)).fetchone()[0] > MOST_BYTES:
                cut = None
            else:
                document = replace(document, body=self.body(document.tenant, document.id))
        if is_found_otherwise(document, before):
            self._lacks_passages = not index_changed(self._writing, document, before, cut)
        return True

    def _replace_text(self, document: Document, before: Document) -> None:
        key = document.tenant, document.id
        content, body = self._execute(_TEXT, key).fetchone()
        if document.body != before.body:
            content, body = None, document.body
        if not is_converted(content, body):
            content = keep_text(self._writing, document.tenant, self._new(body))
            self._execute(_SET_TEXT, (content, *key))

    def _new(self, text: str) -> NewText:
        return self._ahead if self._ahead.text == text else NewText.of(text)

    def is_within(self, tenant: str, id: str, ancestor: str) -> bool:
        return bool(self._execute(_IS_WITHIN, (id, tenant, ancestor)).fetchone()[0])

    def levels(self, tenant: str, id: str, most: int) -> TreeLevels:
        depth = int(self._execute(_DEPTH, (id, tenant, most)).fetchone()[0])
        return TreeLevels(depth, levels_below(self.connection, tenant, id))

    def last_place(self, tenant: str, parent: str, before: int | None = None) -> int | None:
        if before is None:
            return self._number(_LAST_PLACE, tenant, parent)
        return self._number(_PLACE_BEFORE, tenant, parent, before)

    def spread(self, tenant: str, parent: str, before: int) -> None:
        in_front = self._execute(_IN_FRONT, (tenant, parent, before, _SPREAD[-1] + 1)).fetchall()
        for most in _SPREAD:
            moved, room = in_front[:most], changing.GAP
            if len(in_front) > most:
                room = (before - in_front[most][1]) // (most + 1)
            if room >= min(_ENOUGH_ROOM, changing.GAP):
                break
        else:
            raise _NoRoom(tenant, parent, before)
        for number, (id, _) in enumerate(moved, 1):
            self._execute(_SET_PLACE, (before - number * room, tenant, id))

    def is_gone(self, document: Document) -> bool:
        if document.deleted_at is not None or (document.delete_at is not None and document.delete_at <= self.now):
            return True
        return document.parent != ROOT and Gone(self.connection, document.tenant, self.now).is_below(document.parent)

    def keep_revision(self, revision: Revision, besides: int = 0) -> None:
        document, encoded = revision.document, encode_bare(revision.document)
        content, _ = self._execute(_TEXT, (document.tenant, document.id)).fetchone()
        values = revision.at, revision.action, revision.principal, encoded, content, besides
        self._execute(_KEEP_REVISION, (document.tenant, document.id, document.revision, *values))
        name_text(self._writing, document.tenant, content, encoded, besides)

    def note(self, event: AuditEvent) -> bool:
        return note_event(self.connection, event)

    def _number(self, statement: str, *values: Any) -> int | None:
        (number,) = self._execute(statement, values).fetchone()
        return None if number is None else int(number)


def _forget(transaction: Transaction, find: str, forget: str, now: float, limit: int) -> int:
    """Forget rows that have expired, and what they count among the answers of a tenant; how many."""
    old = transaction.execute(find, (now, limit)).fetchall()
    for *key, charge in old:
        transaction.execute(forget, key)
        keep_less(transaction, key[0], charge)
    return len(old)


def _stream_key(request: ActionRequest) -> tuple[str, str, str]:
    assert request.stream is not None
    return request.tenant, request.principal, request.stream.context_id


def _receipt_key(request: ActionRequest) -> tuple[str, str, str, str | None]:
    return request.tenant, request.action, request.subject, request.key


def _as_many(rows: Iterable[tuple[Any, ...]], weigh: Callable[[tuple[Any, ...]], int]) -> Iterator[tuple[Any, ...]]:
    """The first of the rows, and those after it for as long as they weigh little together."""
    weight = 0
    for row in rows:
        yield row
        weight += weigh(row)
        if weight > _MOST_LISTED:
            return


def _documents(connection: Transaction | sqlite3.Connection, statement: str, *values: Any) -> Iterator[Document]:
    """The documents that a statement finds, without their bodies."""
    return map(_document, connection.execute(statement, values))


def _document(row: tuple[Any, ...]) -> Document:
    tenant, id, parent, place, revision, title, mime_type, tags, source, last_editor, is_readable, *times = row
    created_at, updated_at, delete_at, deleted_at = times
    return Document(
        tenant=tenant,
        id=id,
        parent=parent,
        place=place,
        revision=revision,
        title=title,
        mime_type=mime_type,
        body="",
        tags=_decode_tags(tags),
        source=source,
        last_editor=last_editor,
        is_human_readable=bool(is_readable),
        created_at=created_at,
        updated_at=updated_at,
        delete_at=delete_at,
        deleted_at=deleted_at,
    )


def _changing(document: Document) -> tuple[Any, ...]:
    """The columns of a document behind its id, in order."""
    return (
        document.parent,
        document.place,
        document.revision,
        document.title,
        document.mime_type,
        msgspec.json.encode(document.tags).decode(),
        document.source,
        document.last_editor,
        document.is_human_readable,
        document.created_at,
        document.updated_at,
        document.delete_at,
        document.deleted_at,
    )


def note_event(connection: Transaction | sqlite3.Connection, event: AuditEvent) -> bool:
    """Note an event within a transaction; whether it was noted."""
    details = msgspec.json.encode(event.details)
    values = event.tenant, event.event, event.principal, event.subject, event.at, details, event.once
    return connection.execute(_NOTE, values).rowcount == 1


def _event(row: dict[str, Any]) -> AuditEvent:
    return AuditEvent(**{**row, "details": msgspec.json.decode(row["details"])})

"""What SQLite does for documents, keys and quotas: an audit that stays, and statements with an index."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dragoman.adapters.sqlite_bus import SqliteBus
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_documents import SqliteAudit, SqliteDocuments
from dragoman.adapters.sqlite_gateway import SqliteQuotas, SqliteSigningKeys
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY
from dragoman.gateway.port import Nonce, SigningKey
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE
from dragoman.knowledge.port import KEPT_DELETED_SECONDS, ROOT, AuditEvent, CreateDocument
from dragoman.testing import ManualClock
from tests.support.document_entries import ACME, Tree, asked, draft, titled

TABLES = ("document", "document_revision", "document_receipt", "document_stream", "audit_event", "signing_", "gateway_")


class TracedDatabase(SqliteDatabase):
    """Keeps the statements that are executed, and counts the steps of SQLite's virtual machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE_NAME, (*KNOWLEDGE, *GATEWAY))
        self.statements: set[str] = set()
        self.steps = 0

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.set_trace_callback(self.statements.add)
        connection.set_progress_handler(self._step, 1)
        return connection

    def _step(self) -> int:
        self.steps += 1
        return 0


@contextmanager
def connected(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        yield connection


async def test_the_audit_can_only_be_added_to(tmp_path: Path) -> None:
    database = TracedDatabase(tmp_path)
    audit = SqliteAudit(database, SqliteBus(database, SqliteProcess(database), ManualClock()))
    for number in range(3):
        await audit.note(AuditEvent(tenant=ACME, event="e", principal="p", at=1.0, once=str(number)))
    events = await audit.page(10)
    with connected(tmp_path) as connection:
        for statement in (
            "UPDATE audit_event SET principal = 'mallory'",
            "UPDATE audit_event SET number = number + 10",
            "DELETE FROM audit_event",
            "DELETE FROM audit_event WHERE number = 2",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="only added to"):
                connection.execute(statement)
        connection.rollback()
    assert await audit.page(10) == events
    await database.close()


async def use_everything(database: SqliteDatabase, clock: ManualClock) -> None:
    """Have every statement executed."""
    documents, audit = (
        SqliteDocuments(database, clock),
        SqliteAudit(database, SqliteBus(database, SqliteProcess(database), ManualClock())),
    )
    keys, quotas = SqliteSigningKeys(database), SqliteQuotas(database)
    tree, now = Tree(documents), clock.now().timestamp()
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("d", ROOT), ("e", ROOT)):
        await tree.create(id, parent)
    await tree.do(titled("a", "New", 1), key="k", seq=1, subject="a", fingerprint=b"f")
    await documents.recall(asked(key="k", seq=1, subject="a", fingerprint=b"f"))
    await tree.move("b", "d")
    for number in range(25):
        await tree.move("ad"[number % 2], ROOT, "e")
    await tree.delete("b")
    await tree.delete("e", now + 10)
    clock.advance(10)
    await tree.create("f")
    await tree.delete("f", now + 20)
    clock.advance(10)
    assert sorted(await tree.ids()) == ["a", "d"]
    await documents.children(ACME, ROOT, 10, after=5)
    await documents.history(ACME, "a", 10, before=2)
    await documents.outline(ACME, "a")
    await documents.revision(ACME, "a", 1)
    await documents.piece(ACME, "a", 1, 0)
    await documents.usage(ACME)
    await audit.note(AuditEvent(tenant=ACME, event="e", principal="p", at=1.0, once="x"))
    for tenant in (None, ACME):
        await audit.page(10, tenant=tenant, before=10)
    clock.advance(KEPT_DELETED_SECONDS)
    await documents.tidy(100)
    key = SigningKey(kid="k", public="x", tenant=ACME, roles=(), created_at=now)
    await keys.add(key)
    await keys.find("k")
    for moment in (now, now + 10):
        await keys.spend(Nonce("k", "nonce", moment + 10, moment))
    await keys.revoke("k", now)
    for window in (1, 2):
        await quotas.take("b", window, 1, 10)


async def test_every_statement_is_answered_from_an_index(tmp_path: Path) -> None:
    database = TracedDatabase(tmp_path)
    await use_everything(database, ManualClock())
    await database.close()
    with connected(tmp_path) as connection:
        plans = {
            statement: [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            for statement in database.statements
            if statement.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "INSERT", "WITH"))
            and any(f" {table}" in statement for table in TABLES)
        }
    assert len(plans) > 30
    found = {step for plan in plans.values() for step in plan}
    of_tables = {step for step in found if step.startswith("SCAN") and any(table in step for table in TABLES)}
    assert of_tables == set()
    assert {step for step in found if "TEMP B-TREE" in step} == set()
    for index in ("document_child", "document_due", "document_deleted", "document_receipt_until"):
        assert any(index in step for step in found), index


async def steps_of_each(folder: Path, count: int) -> dict[str, int]:
    """How much work each change is among so many siblings, as deep and with as much history."""
    database, clock = TracedDatabase(folder), ManualClock()
    documents = SqliteDocuments(database, clock)
    tree = Tree(documents)
    await asyncio.gather(*(tree.create(f"s{n}") for n in range(count)))
    await asyncio.gather(*(tree.do(titled("s0", f"T{n}"), key=f"k{n}") for n in range(count)))
    # The index of words merges what many transactions have written, which falls to one change or another.
    await database.write(lambda writing: writing.execute("INSERT INTO passage_term (passage_term) VALUES ('optimize')"))
    steps = {}
    for name, work in (
        ("create", lambda: tree.do(CreateDocument(document=draft("new")), key="k", seq=1)),
        ("update", lambda: tree.do(titled("s1", "New"), key="k", seq=1)),
        ("move", lambda: tree.move("s2", ROOT, "s9")),
        ("delete", lambda: tree.delete("s3")),
        ("get", lambda: documents.get(ACME, "s1")),
        ("children", lambda: documents.children(ACME, ROOT, 10, after=9 << 20)),
        ("history", lambda: documents.history(ACME, "s0", 10)),
    ):
        before = database.steps
        await work()
        steps[name] = database.steps - before
    await database.close()
    return steps


@pytest.mark.slow
async def test_no_change_is_more_work_among_many_documents_than_among_few(tmp_path: Path) -> None:
    few = await steps_of_each(tmp_path / "few", 100)
    many = await steps_of_each(tmp_path / "many", 1500)
    assert min(few.values()) > 0
    assert {name: (few[name], many[name]) for name in few if many[name] > few[name] * 1.5} == {}


async def test_a_move_costs_the_same_however_much_is_below_the_document(tmp_path: Path) -> None:
    database = TracedDatabase(tmp_path)
    tree = Tree(SqliteDocuments(database, ManualClock()))
    steps = []
    for top, count in (("few", 2), ("many", 300)):
        for id in (f"{top}-folder", top):
            await tree.create(id)
        await asyncio.gather(*(tree.create(f"{top}{number}", top) for number in range(count)))
        database.steps = 0
        await tree.move(top, f"{top}-folder")
        steps.append(database.steps)
    await database.close()
    assert steps[1] < 1.5 * steps[0], steps


async def test_the_levels_below_documents_of_an_earlier_version_are_counted(tmp_path: Path) -> None:
    database = TracedDatabase(tmp_path)
    tree = Tree(SqliteDocuments(database, ManualClock()))
    for id, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("d", "b"), ("e", "a"), ("f", "d"), ("g", "f")):
        await tree.create(id, parent)
    await tree.delete("g")
    await database.close()
    with connected(tmp_path) as connection:
        counted = connection.execute("SELECT id, below FROM document").fetchall()
        assert dict(counted) == {"a": 3, "b": 2, "c": 0, "d": 1, "e": 0, "f": 0, "g": 0}
        connection.executescript("DROP INDEX document_height; ALTER TABLE document DROP COLUMN below")
        connection.executescript(KNOWLEDGE[10].script)
        assert connection.execute("SELECT id, below FROM document").fetchall() == counted

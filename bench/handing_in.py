"""Clients that hand requests in which are carried out later, and the messages that such servers leave in a database."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.actions import check
from bench.http_load import Answer, Load, Script, drive
from bench.measure import ARGUMENTS
from bench.over_http import Site
from bench.process import BenchError
from dragoman.access.callers import Caller
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.agents.migrations import MIGRATIONS as LEDGER_MIGRATIONS
from dragoman.agents.senders import kept_caller
from dragoman.clock import SystemClock
from dragoman.gateway.accepting import ACCEPTANCE, Acceptance
from dragoman.gateway.delivery_migrations import MIGRATIONS as DELIVERY_MIGRATIONS
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from dragoman.gateway.port import SigningKeys
from dragoman.gateway.requests import ActionRequests, KeptRequest, RequestKey
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE_MIGRATIONS
from dragoman.messaging.bus import BusMessage
from dragoman.messaging.migrations import MIGRATIONS as BUS_MIGRATIONS
from dragoman.messaging.subjects import accepted_subject, replies_subject
from dragoman.storage.settings import StorageConfig
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args

CREATE = "knowledge.create_document"
_MIGRATIONS = (
    *LEDGER_MIGRATIONS,
    *KNOWLEDGE_MIGRATIONS,
    *GATEWAY_MIGRATIONS,
    *BUS_MIGRATIONS,
    *DELIVERY_MIGRATIONS,
)
_OPEN = "SELECT coalesce(sum(messages), 0) FROM bus_subject WHERE subject >= ? AND subject < ?"
_REPLY = "SELECT 1 FROM bus_message WHERE subject = ?"
_COMPLETED = "SELECT count(*) FROM action_request WHERE status = 'completed'"
_LOOK_SECONDS = 0.001
_FINISH_LIMIT = 60.0
_HOUR = 3600.0


def site_of(name: str, folder: Path, settings: dict[str, str], *, records: bool) -> Site:
    """A server with a gateway, whose database is in a folder."""
    serve = (sys.executable, "-m", "dragoman", "serve", "--gateway", "--transport", "streamable-http")
    kept = {"DRAGOMAN_STORAGE__DATA_DIR": str(folder), "DRAGOMAN_SERVER__SHUTDOWN_TIMEOUT_MS": "100"}
    return Site(name, (*serve, "--host", "127.0.0.1", "--port"), settings | kept, records=records)


class Sender:
    """One tenant: what it has signed, and what it has waiting."""

    def __init__(self, tenant: str) -> None:
        self.signer = Signer(tenant)

    def envelope(self, request_id: str) -> bytes:
        """Asks for a document of 1 KB at the top of the tree."""
        content = {"mime_type": "text/plain", "body": ARGUMENTS["1 KB"]}
        args = create_args(content=content)
        return as_body(self.signer.envelope(CREATE, args, request_id=request_id, ttl_sec=int(_HOUR)))

    def signed(self, port: int, request_id: str | None = None, *, later: bool) -> bytes:
        """The bytes of a request."""
        body = self.envelope(request_id or str(uuid.uuid4()))
        token = self.signer.token(body, f"http://127.0.0.1:{port}{ACTIONS_PATH}")
        prefer = "Prefer: respond-async\r\n" if later else ""
        head = (
            f"POST {ACTIONS_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"{prefer}Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def waiting(self, now: float) -> tuple[KeptRequest, BusMessage]:
        """A request that was accepted, and the message that stands for it."""
        signer, request_id = self.signer, str(uuid.uuid4())
        tenants = frozenset((signer.tenant,))
        caller = Caller(signer.sub, frozenset(signer.roles), issuer=f"key of {signer.tenant}", tenants=tenants)
        kept = kept_caller(caller)
        assert kept is not None
        key = RequestKey(signer.tenant, caller.principal, request_id)
        acceptance = Acceptance(
            request=key,
            caller=msgspec.Raw(kept),
            author=signer.sub,
            roles=tuple(signer.roles),
            key=request_id,
            accepted_at=now,
            expires_at=now + _HOUR,
            kid=signer.kid,
        )
        message = BusMessage(
            subject=accepted_subject(signer.tenant),
            id=request_id,
            body=self.envelope(request_id),
            headers={ACCEPTANCE: msgspec.json.encode(acceptance).decode()},
        )
        return KeptRequest(key=key, fingerprint=request_id.encode()), message


def keep_keys(folder: Path, senders: Sequence[Sender]) -> None:
    """Let the servers of a folder know the keys."""

    async def keep(storage: SqliteStorage) -> None:
        for sender in senders:
            await storage.port(SigningKeys).add(sender.signer.key())

    folder.mkdir()
    with_storage(folder, keep)


def flood(folder: Path, sender: Sender, number: int) -> None:
    """Have so many accepted requests wait, beside what waits already."""
    now = time.time()
    made = [sender.waiting(now) for _ in range(number)]

    async def accept(storage: SqliteStorage) -> None:
        requests = storage.port(ActionRequests)
        await asyncio.gather(*(requests.accept(request, message) for request, message in made))

    with_storage(folder, accept)


def with_storage(folder: Path, work: Callable[[SqliteStorage], Coroutine[Any, Any, None]]) -> None:
    """Work with the storage of a folder, as a server does."""

    async def run() -> None:
        storage = SqliteStorage(StorageConfig(data_dir=str(folder)), SystemClock(), _MIGRATIONS)
        try:
            await work(storage)
        finally:
            await storage.close()

    asyncio.run(run())


class Seen:
    """A database, as another process sees it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def waiting(self, tenant: str | None = None) -> int:
        """How many accepted requests wait or are carried out, of all tenants or of one."""
        first = accepted_subject(tenant) if tenant is not None else "dragoman.accepted."
        return self._number(_OPEN, (first, first + "\0" if tenant is not None else "dragoman.accepted/"))

    def completed(self) -> int:
        return self._number(_COMPLETED, ())

    def until_quiet(self) -> None:
        """Return when no accepted request waits."""
        self._until(lambda: self.waiting() == 0)

    def until_replied(self, tenant: str, request_id: str) -> None:
        subject = replies_subject(tenant, request_id)
        self._until(lambda: self._connection.execute(_REPLY, (subject,)).fetchone() is not None)

    def _number(self, statement: str, values: tuple[str, ...]) -> int:
        return int(self._connection.execute(statement, values).fetchone()[0])

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _FINISH_LIMIT
        while not is_so():
            if time.monotonic() > deadline:
                raise BenchError(f"{self.waiting():,} accepted requests are left after {_FINISH_LIMIT:.0f} s")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def seen(folder: Path) -> Iterator[Seen]:
    connection = sqlite3.connect(f"file:{folder / FILE_NAME}?mode=ro", uri=True, isolation_level=None)
    try:
        yield Seen(connection)
    finally:
        connection.close()


def check_accepted(data: bytes) -> None:
    """Raise `BenchError` unless a request was accepted."""
    answer = Answer.read(data)
    if answer.status != 202:
        raise BenchError(f"a request was answered with {answer.status}: {answer.body[:300]!r}")


def hand_in(port: int, batches: Sequence[Sequence[bytes]], *, later: bool) -> Load:
    """Send requests, those of each batch one after the other on a connection of its own."""
    latencies: list[float] = []
    answers: list[bytes] = []

    def script(requests: Sequence[bytes]) -> Script:
        for request in requests:
            began = time.perf_counter()
            answers.append((yield request))
            latencies.append(time.perf_counter() - began)

    load = drive(port, map(script, batches))
    for answer in answers:
        (check_accepted if later else check)(answer)
    return Load(*load, latencies)

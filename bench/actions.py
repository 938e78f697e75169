"""Signed actions on documents, beside a bare handler that executes the same statements: `python -m bench actions`.

1. Requests are signed before the clock runs. Each has a nonce, an idempotency key, a sequence number and 1 KB of text.
2. Clients are connections that send one request after the other. Updates name the revision that they expect.
3. At 200 requests a second the latency of a request is from the moment at which it was due.
4. The limits that would refuse such a load are raised by settings: requests a minute, and actions at a time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from bench.http_load import Answer, Load, Script, drive, is_whole
from bench.measure import ARGUMENTS, DRAGOMAN, SERVERS
from bench.over_http import HttpServer, Site, started
from bench.process import BenchError
from bench.rounds import Figures, Plan, Rounds, Way, compared, rate_of, ratio_of, spread_of, take_turns
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.gateway.migrations import MIGRATIONS
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args

BARE_HANDLER = "bare ASGI handler"
CREATE, UPDATE = "create", "update"
CLIENTS = {1: 96, 16: 384, 64: 768}
"""How many requests a run has, by the number of clients."""
PER_SECOND = 200
DOCUMENTS = 10_000
_PACED_CONNECTIONS = 64
_BATCH = 640
_MOST_ANSWER = 1 << 20
_MB = 1 << 20
LIMITS = {
    "DRAGOMAN_GATEWAY__REQUESTS_PER_MINUTE_PER_TENANT": "10000000",
    "DRAGOMAN_GATEWAY__REQUESTS_PER_MINUTE_PER_PRINCIPAL": "10000000",
    "DRAGOMAN_KNOWLEDGE__MAX_CONCURRENT": str(2 * max(CLIENTS)),  # One caller has two thirds of them at most.
}
SITE = Site(
    DRAGOMAN,
    (
        *(sys.executable, "-m", "dragoman", "serve", "--gateway", "--transport", "streamable-http"),
        *("--host", "127.0.0.1", "--port"),
    ),
    LIMITS | {"DRAGOMAN_SERVER__SHUTDOWN_TIMEOUT_MS": "100"},
    records=True,
)
"""Dragoman with the gateway; where it keeps its data is still to be said."""

Make = Callable[[int], bytes]
"""The next request of a client, by its number."""


class ActionClient:
    """Signs requests of one server, and checks the answers."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._seqs = count(1)
        self._port = 0
        self._folder = str(uuid.uuid4())
        self._updated = [str(uuid.uuid4()) for _ in range(max(CLIENTS))]
        self._revisions = [1] * max(CLIENTS)

    def make_documents(self, port: int) -> Load:
        """Create the documents that others are put below, and those that are updated."""
        self._port = port
        first = [self._create(0, self._folder, "root")]
        documents = [self._create(number, id, self._folder) for number, id in enumerate(self._updated)]
        loads = [_closed(port, [requests]) for requests in (first, documents)]
        return Load(0.0, 0.0, [latency for load in loads for latency in load.latencies])

    def make(self, kind: str) -> Make:
        return self.create if kind == CREATE else self.update

    def create(self, client: int) -> bytes:
        return self._create(client, str(uuid.uuid4()), self._folder)

    def update(self, client: int) -> bytes:
        known = self._revisions[client]
        self._revisions[client] += 1
        args = {
            "document_id": self._updated[client],
            "patch": {"metadata": {"title": f"Revision {known + 1}"}},
            "update_mask": ["metadata.title"],
            "last_known_revision": known,
        }
        return self._signed(client, "knowledge.update_document", args)

    def repeat(self, make: Make, clients: int, number: int, port: int) -> Load:
        """Send so many requests, each client one after the other."""
        return _closed(port, [[make(client) for _ in range(number // clients)] for client in range(clients)])

    def pace(self, seconds: float, port: int) -> Load:
        """Send creates at a steady rate."""
        number = int(PER_SECOND * seconds)
        requests = [self.create(place % _PACED_CONNECTIONS) for place in range(number)]
        return asyncio.run(_paced(port, requests))

    def _create(self, client: int, id: str, parent: str) -> bytes:
        content = {"mime_type": "text/plain", "body": ARGUMENTS["1 KB"]}
        return self._signed(client, "knowledge.create_document", create_args(id, parent, content=content))

    def _signed(self, client: int, action: str, args: dict[str, Any]) -> bytes:
        order = {"seq": next(self._seqs), "context_id": f"client {client}"}
        body = as_body(self._signer.envelope(action, args, **order))
        token = self._signer.token(body, f"http://127.0.0.1:{self._port}{ACTIONS_PATH}")
        head = (
            f"POST {ACTIONS_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _closed(port: int, batches: Sequence[Sequence[bytes]]) -> Load:
    latencies: list[float] = []
    answers: list[bytes] = []

    def script(requests: Sequence[bytes]) -> Script:
        for request in requests:
            began = time.perf_counter()
            answers.append((yield request))
            latencies.append(time.perf_counter() - began)

    load = drive(port, map(script, batches))
    for answer in answers:
        check(answer)
    return Load(*load, latencies)


async def _paced(port: int, requests: Sequence[bytes]) -> Load:
    latencies: list[float] = []
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(_PACED_CONNECTIONS):
        idle.put_nowait(await asyncio.open_connection("127.0.0.1", port, limit=_MOST_ANSWER))
    began, cpu = time.perf_counter(), time.process_time()

    async def send(request: bytes, due: float) -> None:
        connection = reader, writer = await idle.get()
        writer.write(request)
        answer = b""
        while not is_whole(answer):
            piece = await reader.read(_MOST_ANSWER)
            if not piece:
                raise BenchError(f"the server closed a connection, after {answer[:100]!r}")
            answer += piece
        latencies.append(time.perf_counter() - due)
        idle.put_nowait(connection)
        check(answer)

    async with asyncio.TaskGroup() as group:
        for place, request in enumerate(requests):
            due = began + place / PER_SECOND
            await asyncio.sleep(due - time.perf_counter())
            group.create_task(send(request, due))
    load = Load(time.perf_counter() - began, time.process_time() - cpu, latencies)
    while not idle.empty():
        idle.get_nowait()[1].close()
    return load


class _Told(msgspec.Struct):
    ok: bool
    data: dict[str, Any]


_decode = msgspec.json.Decoder(_Told).decode


def check(data: bytes) -> None:
    """Raise `BenchError` unless an action has had its effect."""
    answer = Answer.read(data)
    try:
        told = _decode(answer.body)
    except msgspec.DecodeError:
        raise BenchError(f"an action was answered with {answer.status}: {answer.body[:300]!r}") from None
    if not told.ok or "revision" not in told.data:
        raise BenchError(f"an action came to {told}")


def _sites(plan: Plan, name: str, signer: Signer) -> list[Site]:
    """Dragoman and the bare handler, each with a database that has the key."""
    ours, bare = (plan.folder / f"{name}-{kind}" for kind in ("ours", "bare"))
    for folder in (ours, bare):
        folder.mkdir()
        asyncio.run(_keep_key(folder, signer))
    return [
        replace(SITE, environment=SITE.environment | {"DRAGOMAN_STORAGE__DATA_DIR": str(ours)}),
        Site(BARE_HANDLER, (sys.executable, str(SERVERS / "http_actions_bare.py"), str(bare))),
    ]


async def _keep_key(folder: Path, signer: Signer) -> None:
    database = SqliteDatabase(folder / FILE_NAME, MIGRATIONS)
    try:
        await SqliteSigningKeys(database).add(signer.key())
    finally:
        await database.close()


def path_of(kind: str, clients: int) -> str:
    return f"actions, {kind}, {clients} client{'s' * (clients > 1)}"


PACED = f"actions, create, {PER_SECOND} requests/s"


def actions(plan: Plan) -> Figures:
    """Creates and updates by the number of clients, at a steady rate, the memory that many leave, and an import."""
    signer = Signer()
    works: dict[str, Rounds] = {}
    with started(plan, _sites(plan, "actions", signer)) as servers:
        clients = {server.name: ActionClient(signer) for server in servers}
        for server in servers:
            server.under(clients[server.name].make_documents)
        for number, requests in CLIENTS.items():
            for kind in (CREATE, UPDATE):
                ways = [
                    way(server, clients[server.name], kind, number, requests // (4 if plan.is_short else 1))
                    for server in servers
                ]
                works[path_of(kind, number)] = take_turns(plan, ways, path_of(kind, number))
        seconds = min(1.0, plan.seconds * 4)
        paced = [
            Way(server.name, partial(server.under, partial(clients[server.name].pace, seconds))) for server in servers
        ]
        works[PACED] = take_turns(plan, paced, PACED)
    return {
        "works": {path: compared(rounds, DRAGOMAN) for path, rounds in works.items()},
        "rate_ratios": {
            path: ratio_of(rounds[DRAGOMAN], rounds[BARE_HANDLER], rate_of)
            for path, rounds in works.items()
            if path != PACED
        },
        "growth": _growth(plan),
        "imports": _imports(plan),
    }


def way(server: HttpServer, client: ActionClient, kind: str, clients: int, requests: int) -> Way:
    """So many requests of one kind, by clients that each send one after the other."""
    return Way(server.name, lambda: server.under(partial(client.repeat, client.make(kind), clients, requests)))


def _growth(plan: Plan) -> Figures:
    """Resident megabytes before and after many documents were created, as many of which were there before."""
    number, signer = _BATCH if plan.is_short else DOCUMENTS, Signer()
    (site, _) = _sites(plan, "growth", signer)
    sizes = []
    with started(plan, [site]) as (server,):
        client = ActionClient(signer)
        server.under(client.make_documents)
        for _ in range(2):
            for _ in range(-(-number // _BATCH)):
                server.under(partial(client.repeat, client.create, max(CLIENTS), _BATCH))
            sizes.append(server.memory / _MB)
            plan.say(f"actions, {number:,} documents: {sizes[-1]:.1f} MB")
    before, after = sizes
    return {"documents": number, "before_mb": before, "after_mb": after}


def _imports(plan: Plan) -> Figures:
    """Documents a second of the command that imports a folder, with the start of its process."""
    number = 200 if plan.is_short else 2_000
    folder = plan.folder / "import"
    for place in range(number):
        file = folder / f"folder {place % 20}" / f"file {place}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ARGUMENTS["1 KB"])
    rates = []
    for turn in range(min(plan.rounds, 3)):
        argv = (sys.executable, "-m", "dragoman", "knowledge", "import", str(folder), "--json")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
        kept = {"DRAGOMAN_STORAGE__DATA_DIR": str(plan.folder / f"imported-{turn}")}
        began = time.perf_counter()
        done = subprocess.run(argv, env=clean | kept, cwd=plan.folder, capture_output=True, text=True, check=False)
        rates.append((number + 20) / (time.perf_counter() - began))
        if done.returncode or msgspec.json.decode(done.stdout)["created"] != number + 20:
            raise BenchError(f"the import came to {done.returncode}: {done.stdout[:300]} {done.stderr[-300:]}")
    plan.say(f"actions, import of {number:,} files: {max(rates):,.0f} documents/s")
    return {"documents": number + 20, "per_second": spread_of(rates)}

"""What strangers and greedy callers of the gateway cost, and what is left of requests that end early."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sqlite3
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.clock import boot_clock
from dragoman.errors import RateLimited
from dragoman.gateway.rates import MOST_BUCKETS, GatewayRates
from dragoman.testing import ManualClock
from tests.support.cost import MEGABYTE, counting, growth_of, work_of
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args
from tests.support.gateway_process import CREATE, GatewayProcess, add_keys, code_of
from tests.support.gateway_serving import BASE, open_gateway
from tests.support.http_wire import Wire, request
from tests.support.model_server import model_on_a_thread
from tests.support.plain_quotas import PlainQuotas
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ACME, BETA = Signer("acme"), Signer("beta")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add_keys(tmp_path, ACME, BETA)
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    add_keys(folder, ACME, BETA)
    with GatewayProcess(folder) as server:
        assert server.act(ACME, CREATE, create_args()).status == 200  # Everything is imported and opened.
        yield server


def a_body(signer: Signer = ACME) -> bytes:
    return as_body(signer.envelope(CREATE, create_args()))


# Before there is trust.

LARGE = as_body(ACME.envelope(CREATE, {"x": "@"})).replace(b'"@"', b"[" + b"[]," * 90_000 + b"[]]")
STRANGERS: dict[str, Callable[[Signer, str], str]] = {
    "no token": lambda known, url: "x",
    "an unknown key": lambda known, url: Signer().token(LARGE, url),
    "a forged signature": lambda known, url: Signer(kid=known.kid).token(LARGE, url),
    "another body": lambda known, url: known.token(b"{}", url),
}


@pytest.mark.parametrize("case", STRANGERS)
async def test_a_large_body_of_a_stranger_costs_far_less_than_to_decode_it(case: str) -> None:
    async with open_gateway() as gateway:
        token = STRANGERS[case](await gateway.signer(), BASE + ACTIONS_PATH)
        assert (await gateway.send(LARGE, token)).status == 401
        with counting() as work:
            await gateway.send(LARGE, token)
    assert work.lines <= 5_000
    assert work.allocated <= work_of(lambda: msgspec.json.decode(LARGE)).allocated / 2


@pytest.mark.parametrize("case", STRANGERS)
def test_a_large_body_of_a_stranger_leaves_nothing_behind(server: GatewayProcess, case: str) -> None:
    before = server.rows()
    with server.wire() as wire:
        try:
            wire.send(server.data_of(LARGE, STRANGERS[case](ACME, server.url())))
            assert wire.read().status == 401
        except ConnectionError:
            pass  # It did not want to hear the rest.
    assert server.rows() == before


def test_many_keys_that_there_are_not_leave_nothing_behind(server: GatewayProcess) -> None:
    before = server.rows()
    strangers = Signer()
    body = a_body()

    def flood(count: int) -> None:
        with server.wire() as wire:
            for _ in range(count):
                strangers.kid = uuid.uuid4().hex * 4
                assert wire.ask(server.data_of(body, strangers.token(body, server.url()))).status == 401

    flood(200)
    with growth_of(server.pid) as growth:
        flood(1000)
    assert growth.memory < 8 * MEGABYTE
    assert server.rows() == before


# Rates.


@pytest.mark.requirement("MC-TRANS-05")
def test_beyond_the_rate_nothing_is_written(folder: Path) -> None:
    limits = {"gateway.requests_per_minute_per_principal": 3}
    with GatewayProcess(folder, settings=limits) as server:
        wait_for_a_new_minute()
        answers = [server.submit(ACME, a_body()) for _ in range(3)]
        assert {each.status for each in answers} == {200}
        before = server.rows()
        refused = [server.submit(ACME, a_body()) for _ in range(20)]
        assert {(each.status, code_of(each)) for each in refused} == {(429, "RATE_LIMIT_EXCEEDED")}
        assert {each.headers["x-ratelimit-remaining"] for each in refused} == {"0"}
        assert all(1 <= int(each.headers["retry-after"]) <= 60 for each in refused)
        assert server.rows() == before
        assert server.submit(BETA, a_body(BETA)).status == 200  # Others do not notice.


def test_many_names_of_one_key_share_the_rate_of_their_tenant(folder: Path) -> None:
    limits = {"gateway.requests_per_minute_per_principal": 4, "gateway.requests_per_minute_per_tenant": 10}
    with GatewayProcess(folder, settings=limits) as server:
        wait_for_a_new_minute()
        statuses: Counter[int] = Counter()
        for number in range(30):
            many = Signer("acme", sub=f"svc:{number}", kid=ACME.kid)
            many.private = ACME.private
            statuses[server.submit(many, a_body(many)).status] += 1
        assert statuses == {200: 10, 429: 20}
        assert server.count("gateway_quota") <= 11
        assert server.submit(BETA, a_body(BETA)).status == 200


def test_workers_share_the_rates_and_the_idempotency_keys(folder: Path) -> None:
    limits = {"gateway.requests_per_minute_per_principal": 24}
    with GatewayProcess(folder, "--workers", "2", settings=limits) as server, ThreadPoolExecutor(12) as pool:
        body = a_body()
        wait_for_a_new_minute()
        answers = list(pool.map(lambda _: server.submit(ACME, body), range(60)))  # Each is a connection of its own.
        statuses = Counter(each.status for each in answers)
        assert statuses.keys() == {200, 429}
        assert statuses[200] <= 24
        assert len({each.json["data"]["id"] for each in answers if each.status == 200}) == 1
        rows = server.rows()
        assert (rows["document"], rows["document_revision"], rows["audit_event"]) == (1, 1, 1)
        assert rows["signing_nonce"] == statuses[200]


@pytest.mark.requirement("MC-CAP-02", "MC-CAP-04")
def test_workers_carry_out_no_more_queries_at_once_than_the_server_advertises(folder: Path) -> None:
    args = {"query": "owls", "routing": {"max_latency_ms": 10_000}}
    with model_on_a_thread() as model:
        settings = {f"knowledge.{name}": value for name, value in model.settings.items()}
        with GatewayProcess(folder, "--workers", "3", settings=settings) as server, ThreadPoolExecutor(30) as pool:
            server.create(ACME, content={"mime_type": "text/plain", "body": "owls hunt"})
            model.gate.clear()
            asked = [pool.submit(server.act, ACME, "knowledge.query_knowledge", args) for _ in range(30)]
            wait_until(lambda: len(model.requests) + sum(each.done() for each in asked) == 30)
            assert len(model.requests) <= 10
            model.gate.set()
            statuses = Counter(each.result().status for each in asked)
            assert statuses == {200: 7, 429: 23}  # Of ten, one caller has seven.


def wait_for_a_new_minute() -> None:
    """Not in the last seconds of one: the test is to see a single window."""
    if time.time() % 60 > 50:
        wait_until(lambda: time.time() % 60 < 50)


async def test_more_buckets_than_are_remembered_do_not_raise_a_limit() -> None:
    rates = GatewayRates(PlainQuotas(), ManualClock())
    taken = 0
    for _ in range(3):
        for _ in range(10):
            try:
                await rates.take(("tenant acme", 12))
                taken += 1
            except RateLimited:
                pass
        for number in range(MOST_BUCKETS + 1):
            await rates.take((f"principal {number}", 1_000_000))
    assert taken <= 12


def test_nonces_are_forgotten_when_their_tokens_have_expired(server: GatewayProcess) -> None:
    with closing(sqlite3.connect(server.folder / FILE_NAME)) as connection, connection:
        old = [(ACME.kid, uuid.uuid4().hex, time.time() - 1) for _ in range(40)]
        connection.executemany("INSERT INTO signing_nonce (kid, nonce, until) VALUES (?, ?, ?)", old)
        # As if the clock had been looked at an hour ago.
        look = "INSERT OR REPLACE INTO purge_clock (one, looked_at, earliest, agreed) VALUES (1, ?, ?, 0)"
        connection.execute(look, (boot_clock() - 3600, time.time()))

    def is_forgotten() -> bool:
        assert server.submit(ACME, a_body()).status == 200
        return server.count("signing_nonce", f"until < {time.time()}") == 0

    wait_until(is_forgotten)


# Clients that leave.


def leave(wire: Wire) -> None:
    """Without a farewell."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def send_and_leave(wire: Wire, data: bytes) -> None:
    wire.send(data)
    leave(wire)


def test_a_client_that_leaves_has_had_its_effect_once_or_not_at_all(server: GatewayProcess) -> None:
    bodies = [a_body() for _ in range(30)]
    before = server.rows()

    with ThreadPoolExecutor(10) as pool:
        data = [server.data_of(body, ACME.token(body, server.url())) for body in bodies]
        list(pool.map(lambda each: send_and_leave(server.wire(), each), data))
        # The slots may be taken by those that left, and are free in the end.
        list(pool.map(lambda body: wait_until(lambda: server.submit(ACME, body).status == 200), bodies))
    after = server.rows()
    for table in ("document", "document_revision", "document_receipt", "audit_event"):
        assert after[table] - before[table] == len(bodies)


def test_a_client_that_leaves_within_its_body_has_had_no_effect(server: GatewayProcess) -> None:
    before = server.rows()
    for _ in range(20):
        body = a_body()
        wire = server.wire()
        wire.send(server.data_of(body, ACME.token(body, server.url()))[:-20])
        wire.wait_until_read()
        leave(wire)
    assert server.rows() == before
    server.check_health()


def test_more_clients_that_leave_than_there_are_slots_leave_them_free(folder: Path) -> None:
    with GatewayProcess(folder, settings={"knowledge.max_concurrent": 2}) as server:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                wires = [server.wire() for _ in range(8)]
                bodies = [a_body() for _ in wires]
                data = [server.data_of(body, ACME.token(body, server.url())) for body in bodies]
                list(pool.map(send_and_leave, wires, data))
        # Those that left may still be under way, each with a slot until it has ended.
        wait_until(lambda: [server.submit(ACME, a_body()).status for _ in range(5)] == [200] * 5)


# Storage that does not answer.


def test_a_locked_database_is_answered_with_unavailable(folder: Path) -> None:
    with GatewayProcess(folder) as server:
        assert server.submit(ACME, a_body()).status == 200
        bodies = [a_body() for _ in range(8)]
        with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda body: server.submit(ACME, body), bodies))
            other.execute("ROLLBACK")
        assert {(each.status, code_of(each)) for each in answers} == {(503, "UNAVAILABLE")}
        assert {"retry-after" in each.headers for each in answers} == {True}
        before = server.count("document")
        assert {server.submit(ACME, body).status for body in bodies} == {200}
        assert server.count("document") == before + len(bodies)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_commit_that_the_disk_refuses_is_answered_as_unknown_and_its_repeat_has_one_effect(folder: Path) -> None:
    """Beyond a limit of file sizes SQLite reports an I/O error, not a full disk. A repeat has its effect once."""
    with GatewayProcess(folder) as server:
        assert server.submit(ACME, a_body()).status == 200
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (os.stat(folder / f"{FILE_NAME}-shm").st_size, limits[1]))
        bodies = [a_body() for _ in range(4)]
        for body in bodies:
            answered = server.submit(ACME, body)
            assert (answered.status, code_of(answered)) == (500, "INTERNAL")
            assert answered.json["error"]["details"]["outcome"] == "UNKNOWN"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        assert {server.submit(ACME, body).status for body in bodies} == {200}


def test_what_there_is_to_read_is_behind_the_same_door(server: GatewayProcess) -> None:
    before = server.rows()
    for path in ("/mcp/capabilities", "/mcp/openapi.json", "/schemas/mcp/knowledge.create_document.json", ACTIONS_PATH):
        for method in ("GET", "HEAD", "POST"):
            data = request(b"{}" if method == "POST" else None, {"host": server.host}, method=method, path=path)
            assert server.ask(data, is_head=method == "HEAD").status in (401, 405)
    assert server.rows() == before


def test_the_flood_of_one_loop_is_bounded_in_its_waiting_requests() -> None:
    """Requests for one bucket share one look at the store, however many wait for it."""

    class Slow(PlainQuotas):
        looks = 0

        async def take(self, bucket: str, window: int, wanted: int, limit: int) -> tuple[int, int]:
            self.looks += 1
            await asyncio.sleep(0)
            return await super().take(bucket, window, wanted, limit)

    async def flood() -> int:
        quotas = Slow()
        rates = GatewayRates(quotas, ManualClock())
        results = await asyncio.gather(*(rates.take(("tenant acme", 60)) for _ in range(500)), return_exceptions=True)
        assert Counter(map(type, results))[RateLimited] == 440
        return quotas.looks

    assert asyncio.run(flood()) <= 60

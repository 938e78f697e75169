"""Requests for actions in the metrics and in the service levels: each is counted once, however it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from dragoman.adapters.engines import ENGINES
from dragoman.cli.slo import deadlines_of
from dragoman.gateway.accepting import accepted_again
from dragoman.knowledge.port import AuditEvent
from dragoman.slo.meter import ACK, DEAD, DONE, LATENCY, RETRIES
from dragoman.slo.objectives import read_report
from dragoman.slo.port import ServiceLevels
from dragoman.telemetry.figures import MOST_SERIES
from dragoman.telemetry.metrics import SNAPSHOT
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import (
    NOBODY,
    TOKEN,
    WAYS,
    FailingDocuments,
    FailingStorage,
    GatewayApp,
    HeldDocuments,
    HeldStorage,
    OverBus,
    OverMcp,
    advance_until_finished,
    answered,
    keep_keys,
    open_gateway,
    open_way,
)
from tests.support.http_wire import request
from tests.support.waiting import PATIENCE, until
from tests.support.waits import waits_recorded

CREATE = "knowledge.create_document"
LATER = "respond-async"
Labels = tuple[str, ...]


def shown(gateway: GatewayApp, name: str, *labels: str) -> dict[Labels, float]:
    """The values of a metric by some of its labels."""
    assert gateway.runtime.metrics is not None
    page = gateway.runtime.metrics.snapshot().page()[0].decode()
    found: dict[Labels, float] = {}
    for family in parse(page):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                found[key] = found.get(key, 0) + sample.value
    return found


def requests(gateway: GatewayApp) -> dict[Labels, float]:
    return shown(gateway, "a2a_requests_total", "action", "tenant", "principal", "status", "error_code")


async def stored(gateway: GatewayApp, requests: int) -> dict[str, int]:
    """The figures that are stored, by their names, once that many requests are."""
    levels = gateway.runtime.facilities.storage.port(ServiceLevels)
    async with asyncio.timeout(PATIENCE):
        while True:
            found: dict[str, int] = {}
            for key, count in (await levels.read(0)).items():
                found[key.figure] = found.get(key.figure, 0) + count
            if found.get(LATENCY, 0) >= requests:
                return found
            gateway.clock.advance(60)
            await asyncio.sleep(0.002)


PRINCIPALS = {"signed": "svc:writer", "later": "svc:writer", "bus": "svc:writer"}


@pytest.mark.requirement("MC-METRIC-01")
@pytest.mark.parametrize("name", WAYS)
async def test_each_request_is_counted_once_however_it_was_asked_for(name: str, tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        way = await open_way(gateway, name)
        args = create_args()
        assert (await way.do("create_document", args)).code is None
        assert (await way.do("create_document", args)).code is not None
        principal = PRINCIPALS.get(name, "svc:internal")
        expected = {
            (CREATE, "acme", principal, "SUCCESS", ""): 1,
            (CREATE, "acme", principal, "REFUSED", "CONFLICT"): 1,
        }
        await until(lambda: sum(requests(gateway).values()) == 2)
        assert requests(gateway) == expected
        assert shown(gateway, "a2a_latency_ms_count", "status", "error_code") == {
            ("SUCCESS", ""): 1,
            ("REFUSED", "CONFLICT"): 1,
        }
        is_later = name in ("later", "bus")
        acks = {(CREATE, "external"): 2.0} if is_later else {}
        assert shown(gateway, "a2a_ack_ms_count", "action", "caller") == acks
        assert shown(gateway, "a2a_job_done_ms_count", "action") == ({(CREATE,): 2.0} if is_later else {})
        dead = {("REFUSED", "CONFLICT"): 1.0} if is_later else {}
        assert shown(gateway, "a2a_dlq_total", "status", "error_code") == dead


@pytest.mark.requirement("MC-METRIC-03")
async def test_the_latency_has_buckets_at_the_bounds_of_the_objectives() -> None:
    async with open_gateway() as gateway:
        way = await open_way(gateway, "signed")
        await way.do("create_document", create_args())
        bounds = shown(gateway, "a2a_latency_ms_bucket", "le")
        assert {("1000.0",), ("2000.0",), ("4000.0",), ("10000.0",), ("+Inf",)} <= bounds.keys()


async def test_a_stranger_can_put_nothing_into_a_label() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner", tenant="acme")
        stranger = type(signer)("made-up", "owner", sub="made-up")
        body = as_body(gateway.envelope(stranger, CREATE, create_args()))
        for headers in ({}, {"prefer": LATER}):
            assert (await answered(gateway.begin(body, gateway.token(stranger, body), **headers))).status == 401
            assert (await answered(gateway.begin(body, "no token", **headers))).status == 401
        assert (await OverBus(gateway, stranger).send(body)).code == "UNAUTHORIZED"
        assert requests(gateway) == {("", "", "", "REFUSED", "UNAUTHORIZED"): 5}
        assert shown(gateway, "a2a_dlq_total", "tenant", "error_code") == {("", "UNAUTHORIZED"): 1}


async def test_a_stranger_is_shown_sums_without_the_names_of_tenants_and_principals(tmp_path: Path) -> None:
    signers = [Signer(tenant, sub=f"svc:of-{tenant}") for tenant in ("acme", "globex")]
    await keep_keys(tmp_path, *signers)
    async with open_gateway(NOBODY, tmp_path) as gateway:
        for signer in signers:
            assert (await gateway.act(signer, "create_document", create_args())).status == 200
        told = {}
        for token in (None, "no-secret-0123456789", gateway.local_secret):
            named = {"authorization": f"Bearer {token}"} if token else {}
            for accept in ("*/*", SNAPSHOT):
                asked = request(None, {**named, "accept": accept}, method="GET", path="/metrics")
                told[token, accept] = (await gateway.driver.ask(asked)).body
    for (token, accept), body in told.items():
        is_known = token == gateway.local_secret
        assert [name in body for name in (b"acme", b"globex", b"svc:of-")] == [is_known] * 3
        if accept != SNAPSHOT:
            samples = [each for family in parse(body.decode()) for each in family.samples]
            counts = dict.fromkeys(("a2a_requests_total", "a2a_latency_ms_count"), 0.0)
            for each in samples:
                if each.name in counts:
                    assert ({"tenant", "principal"} <= each.labels.keys()) is is_known
                    counts[each.name] += each.value
            assert set(counts.values()) == {2.0}


async def test_a_known_sender_cannot_put_an_action_or_a_tenant_that_there_is_not_into_a_label() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        for fields in ({"action": "made.up"}, {"tenant_id": "made-up"}, {"envelope_version": "9"}):
            envelope = {**gateway.envelope(signer, CREATE, create_args()), **fields}
            assert (await gateway.post(signer, envelope)).status in (400, 403)
        assert {labels[:3] for labels in requests(gateway)} == {("", "acme", "svc:writer")}
        assert sum(requests(gateway).values()) == 3


@pytest.mark.slow
async def test_principals_that_a_key_holder_makes_up_do_not_exceed_the_most_series() -> None:
    config = {
        "gateway": {
            "enabled": True,
            "requests_per_minute_per_principal": 10**6,
            "requests_per_minute_per_tenant": 10**6,
        }
    }
    async with open_gateway(config) as gateway:
        signer = await gateway.signer("owner")
        for number in range(MOST_SERIES + 50):
            signer.sub = f"svc:{number}"
            body = b"{}"
            assert (await answered(gateway.begin(body, gateway.token(signer, body)))).status == 400
        counted = requests(gateway)
        assert len(counted) <= MOST_SERIES
        assert sum(counted.values()) == MOST_SERIES + 50
        assert counted["", "acme", "other", "REFUSED", "INVALID_ARGUMENT"] > 0


async def test_a_repeat_of_an_accepted_request_is_the_same_request() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args())
        for _ in range(3):
            response = await gateway.post(signer, envelope, prefer=LATER)
            assert response.status == 202
        await gateway.finished(signer, envelope["request_id"])
        await until(lambda: sum(requests(gateway).values()) == 1)
        assert shown(gateway, "a2a_ack_ms_count", "caller") == {("external",): 1}


@pytest.mark.requirement("MC-METRIC-01")
@pytest.mark.requirement("MC-METRIC-04")
async def test_retries_dead_letters_and_redriven_requests_are_counted_and_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)
    async with open_gateway({"gateway": {"enabled": True, "max_attempts": 3}}) as gateway:
        assert isinstance(gateway.documents, FailingDocuments)
        gateway.documents.failures = 3
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args())
        assert (await gateway.post(signer, envelope, prefer=LATER)).status == 202
        await advance_until_finished(gateway, signer, envelope["request_id"])
        failed = CREATE, "acme", "svc:writer", "FAILED", "UNAVAILABLE"
        await until(lambda: requests(gateway) == {failed: 1})
        assert shown(gateway, "a2a_retries_total", "action", "status", "error_code") == {
            (CREATE, "RETRYING", "UNAVAILABLE"): 2
        }
        assert shown(gateway, "a2a_dlq_total", "action", "tenant", "principal", "status", "error_code") == {failed: 1}
        (letter,) = await gateway.dead.page(None, 10)
        headers, key = accepted_again(letter.message, gateway.clock.now().timestamp())
        event = AuditEvent(tenant="acme", event="message.redriven", principal="operator", at=1.0)
        assert await gateway.requests.redrive(letter.number, headers, key, event) is not None
        await until(lambda: sum(requests(gateway).values()) == 2)
        assert requests(gateway) == {failed: 1, (CREATE, "acme", "svc:writer", "SUCCESS", ""): 1}
        assert await stored(gateway, 2) == {
            "SUCCESS": 1,
            "FAILED": 1,
            LATENCY: 2,
            ACK: 1,
            DONE: 2,
            DEAD: 1,
            RETRIES: 2,
        }


async def objectives_broken(gateway: GatewayApp, requests: int) -> list[tuple[str, str]]:
    """The objectives that do not hold, and over which time, once that many requests are stored."""
    await stored(gateway, requests)
    levels = gateway.runtime.facilities.storage.port(ServiceLevels)
    found = await read_report(levels, gateway.clock.now().timestamp(), deadlines_of(gateway.runtime.config))
    return [(each.name, each.window) for each in found.objectives if not each.holds]


@pytest.mark.requirement("MC-METRIC-02", "MC-TRANS-04")
@pytest.mark.parametrize(
    ("failures", "wait_seconds", "broken"),
    [
        (0, 1.0, []),
        (1, 40.0, []),
        (1, 190.0, [(f"job done P95, {CREATE}", "week")]),
        (2, 1.0, [("dead letters", "day"), ("error budget", "week"), ("error budget", "quarter")]),
    ],
)
async def test_requests_for_later_that_take_too_long_or_fail_break_the_objectives(
    monkeypatch: pytest.MonkeyPatch, failures: int, wait_seconds: float, broken: list[tuple[str, str]]
) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)
    delay = int(wait_seconds * 1000)
    settings = {"enabled": True, "max_attempts": 2, "retry_delay_ms": delay, "max_retry_delay_ms": delay}
    async with open_gateway({"gateway": settings}) as gateway:
        assert isinstance(gateway.documents, FailingDocuments)
        assert deadlines_of(gateway.runtime.config)(CREATE) == 30_000  # The ETA.
        gateway.documents.failures = failures
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args(), ttl_sec=3600)
        assert (await gateway.post(signer, envelope, prefer=LATER)).status == 202
        await advance_until_finished(gateway, signer, envelope["request_id"])
        assert sorted(await objectives_broken(gateway, 1)) == sorted(broken)


@pytest.mark.slow
@pytest.mark.requirement("MC-METRIC-02")
async def test_a_single_refusal_in_a_hundred_leaves_the_error_budget_and_a_second_one_does_not() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        for _ in range(98):
            await gateway.act(signer, "create_document", create_args())
        await gateway.act(signer, "create_document", create_args(parent_id=str(uuid4())))
        await gateway.act(signer, "create_document", create_args())
        assert await objectives_broken(gateway, 100) == []
        await gateway.act(signer, "create_document", create_args(parent_id=str(uuid4())))
        assert await objectives_broken(gateway, 101) == [("error budget", "week"), ("error budget", "quarter")]


@pytest.mark.requirement("MC-IDEM-03")
@pytest.mark.parametrize(
    ("caller", "seconds", "broken"),
    [("internal", 1.0, False), ("internal", 1.5, True), ("external", 2.0, False), ("external", 2.5, True)],
)
async def test_what_it_takes_to_accept_a_request_is_held_to_the_bound_of_its_caller(
    monkeypatch: pytest.MonkeyPatch, caller: str, seconds: float, broken: bool
) -> None:
    async with open_gateway() as gateway:
        accept = gateway.requests.accept

        async def accept_late(*given: Any) -> Any:
            gateway.clock.advance(seconds)
            return await accept(*given)

        monkeypatch.setattr(gateway.requests, "accept", accept_late)
        internal = caller == "internal"
        signer = Signer("acme", "owner", sub="svc:internal") if internal else await gateway.signer("owner")
        body = as_body(gateway.envelope(signer, CREATE, create_args()))
        token = TOKEN if internal else gateway.token(signer, body)
        response = await answered(gateway.begin(body, token, prefer=LATER))
        assert (response.status, response.json["usage"]["latency_ms"]) == (202, seconds * 1000)
        found = [each for each in await objectives_broken(gateway, 1) if each[0].startswith("ACK")]
        assert found == ([(f"ACK P95, {caller}", "week")] if broken else [])


@pytest.mark.requirement("MC-IDEM-03")
@pytest.mark.parametrize(("caller", "most_seconds"), [("internal", 1.0), ("external", 2.0)])
async def test_accepting_requests_waits_for_no_longer_than_95_of_100_may_take(caller: str, most_seconds: float) -> None:
    async with asyncio.timeout(PATIENCE), open_gateway() as gateway:  # What waits for the gateway's clock never ends.
        internal = caller == "internal"
        signer = Signer("acme", "owner", sub="svc:internal") if internal else await gateway.signer("owner")
        waited = []
        for _ in range(20):
            body = as_body(gateway.envelope(signer, CREATE, create_args()))
            token = TOKEN if internal else gateway.token(signer, body)
            with waits_recorded() as waits:
                assert (await answered(gateway.begin(body, token, prefer=LATER))).status == 202
            waited.append(sum(waits))
        assert sorted(waited)[18] <= most_seconds


async def test_an_accepted_request_that_expires_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)
    async with open_gateway({"gateway": {"enabled": True, "max_attempts": 100, "retry_delay_ms": 60_000}}) as gateway:
        assert isinstance(gateway.documents, FailingDocuments)
        gateway.documents.failures = 10**6
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args(), ttl_sec=1)
        assert (await gateway.post(signer, envelope, prefer=LATER)).status == 202
        await advance_until_finished(gateway, signer, envelope["request_id"])
        await until(lambda: sum(requests(gateway).values()) == 1)
        assert requests(gateway) == {(CREATE, "acme", "svc:writer", "FAILED", "EXPIRED"): 1}
        late = await gateway.act(signer, "create_document", create_args(), ttl_sec=1, timestamp="2020-01-01T00:00:00Z")
        assert late.status == 440
        assert requests(gateway)[CREATE, "acme", "svc:writer", "REFUSED", "EXPIRED"] == 1


async def test_a_client_that_leaves_has_aborted_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway() as gateway:
        assert isinstance(gateway.documents, HeldDocuments)
        documents = gateway.documents
        documents.gate.clear()
        signer = await gateway.signer("owner")
        body = as_body(gateway.envelope(signer, CREATE, create_args()))
        asked = gateway.begin(body, gateway.token(signer, body))
        await until(lambda: documents.waiting == 1)
        asked.task.cancel()
        await until(lambda: sum(requests(gateway).values()) == 1)
        assert requests(gateway) == {(CREATE, "acme", "svc:writer", "ABORTED", "ABORTED"): 1}
        documents.gate.set()


async def test_an_action_that_is_called_as_a_tool_by_a_caller_without_a_tenant_is_counted_for_nobody() -> None:
    callers: Mapping[str, Any] = {"outsider": {"token": "a-token-of-an-internal-caller", "tenants": []}}
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        await gateway.signer("owner")
        assert (await OverMcp(gateway).do("create_document", create_args())).code == "NOT_FOUND"
        assert requests(gateway) == {(CREATE, "", "outsider", "REFUSED", "NOT_FOUND"): 1}


async def test_a_tool_call_that_is_answered_at_its_deadline_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway() as gateway:
        assert isinstance(gateway.documents, HeldDocuments)
        documents = gateway.documents
        documents.gate.clear()
        await gateway.signer("owner")
        asking = asyncio.create_task(OverMcp(gateway).do("create_document", create_args()))
        await until(lambda: documents.waiting == 1)
        gateway.clock.advance(31)
        assert (await asking).code == "TIMEOUT"
        documents.gate.set()
        await until(lambda: requests(gateway))
        assert requests(gateway) == {(CREATE, "acme", "svc:internal", "FAILED", "UNAVAILABLE"): 1}
        assert shown(gateway, "a2a_latency_ms_sum") == {(): 30_000}


async def test_other_tools_are_not_counted() -> None:
    async with open_gateway() as gateway:
        await gateway.runtime.call("health", {})
        assert requests(gateway) == {}


async def test_what_is_counted_is_stored_when_the_server_stops(tmp_path: Path) -> None:
    for _ in range(2):
        async with open_gateway(folder=tmp_path) as gateway:
            way = await open_way(gateway, "signed")
            assert (await way.do("create_document", create_args(str(uuid4())))).code is None
    async with open_gateway(folder=tmp_path) as gateway:
        read = await gateway.runtime.facilities.storage.port(ServiceLevels).read(0)
        assert {key: count for key, count in read.items() if key.figure == "SUCCESS"} == {
            ("acme", CREATE, "external", "SUCCESS", 0): 2
        }

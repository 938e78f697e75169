"""Requests that are carried out later: accepted over HTTP or from the bus, answered when somebody asks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest

from dragoman.adapters.engines import ENGINES
from dragoman.errors import PartFailed
from dragoman.gateway.accepting import accepted_again
from dragoman.gateway.answers import ActionAnswers
from dragoman.gateway.credentials import Credentials
from dragoman.gateway.delivering import Deliverer
from dragoman.gateway.exchanges import Exchanges
from dragoman.gateway.keeping import open_objects
from dragoman.gateway.port import Nonce, Quotas, SigningKey
from dragoman.gateway.rates import GatewayRates
from dragoman.gateway.requests import ActionRequests, RequestStatus, Settled
from dragoman.knowledge.port import ActionRequest, Applied, AuditEvent, DocumentChange
from dragoman.messaging.bus import Bus, BusDelivery, BusMessage, Subscription
from dragoman.messaging.subjects import (
    ALL_ACCEPTED,
    ALL_ACTIONS,
    accepted_subject,
    actions_subject,
    replies_subject,
)
from dragoman.slo.meter import ActionMeter
from tests.support.bus_messages import let_others_run
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import (
    TRANSPORTS,
    FailingDocuments,
    FailingStorage,
    GatewayApp,
    HeldDocuments,
    HeldStorage,
    OverBus,
    advance_until_finished,
    answered,
    open_gateway,
)
from tests.support.http_wire import Response, request
from tests.support.waiting import until

CREATE = "knowledge.create_document"
LATER = "respond-async"


async def accepted(gateway: GatewayApp, signer: Signer, args: dict[str, Any], **fields: Any) -> str:
    """The address of a request that was accepted."""
    response = await gateway.post(signer, gateway.envelope(signer, CREATE, args, **fields), prefer=LATER)
    assert response.status == 202, response.json
    return str(response.headers["location"])


@pytest.mark.requirement("MC-TRANS-04")
async def test_an_accepted_request_is_answered_later(tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        signer = await gateway.signer("owner")
        args = create_args()
        envelope = gateway.envelope(signer, CREATE, args)
        response = await gateway.post(signer, envelope, prefer="handling=lenient, Respond-Async; wait=5")
        assert (response.status, response.json["ok"], response.json["data"]) == (202, True, {"status": "accepted"})
        assert response.headers["location"] == f"/mcp/requests/{envelope['request_id']}"
        assert response.headers["preference-applied"] == LATER
        await gateway.finished(signer, envelope["request_id"])
        final = await gateway.get(response.headers["location"], signer)
        assert (final.status, final.json["ok"]) == (200, True)
        assert (final.json["data"]["id"], final.json["data"]["revision"]) == (args["document_id"], 1)
        assert await gateway.documents.get("acme", args["document_id"]) is not None


async def test_a_request_that_is_not_carried_out_yet_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway() as gateway:
        assert isinstance(gateway.documents, HeldDocuments)
        gateway.documents.gate.clear()
        signer = await gateway.signer("owner")
        place = await accepted(gateway, signer, create_args())
        shown = await gateway.get(place, signer)
        assert (shown.status, shown.json["data"]) == (200, {"status": "accepted"})
        gateway.documents.gate.set()
        await gateway.finished(signer, place.rpartition("/")[2])
        assert (await gateway.get(place, signer)).json["data"]["revision"] == 1


@pytest.mark.parametrize("who", ["another principal", "another tenant", "nobody"])
async def test_a_request_is_shown_to_its_sender_only(who: str) -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        place = await accepted(gateway, signer, create_args())
        await gateway.finished(signer, place.rpartition("/")[2])
        other = {
            "another principal": await gateway.signer("owner", sub="svc:other"),
            "another tenant": await gateway.signer("owner", tenant="globex"),
        }.get(who)
        response = await gateway.get(place, other)
        assert response.status == (401 if other is None else 404)
        assert (await gateway.get(f"/mcp/requests/{uuid4()}", signer)).status == 404
        assert (await gateway.get(place.upper().replace("/MCP/REQUESTS", "/mcp/requests"), signer)).status == 200


@pytest.mark.requirement("MC-IDEM-01")
async def test_a_repeated_request_is_the_first_one_and_another_one_with_its_id_is_a_conflict() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        args, id = create_args(), str(uuid4())
        first = await accepted(gateway, signer, args, request_id=id)
        await gateway.finished(signer, id)
        assert await accepted(gateway, signer, args, request_id=id.upper()) == first
        other = gateway.envelope(signer, CREATE, create_args(), request_id=id)
        response = await gateway.post(signer, other, prefer=LATER)
        assert (response.status, response.json["error"]["details"]["reason"]) == (409, "request_conflict")
        assert [each.event for each in await gateway.events()] == ["document.created"]


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_refusal_that_cannot_change_is_a_dead_letter_and_the_answer() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        place = await accepted(gateway, signer, create_args(parent_id=str(uuid4())))
        kept = await gateway.finished(signer, place.rpartition("/")[2])
        assert kept.status is RequestStatus.FAILED
        shown = await gateway.get(place, signer)
        assert (shown.status, shown.json["error"]["code"]) == (404, "NOT_FOUND")
        (letter,) = await gateway.dead.page(None, 10)
        (error,) = map(msgspec.json.decode, letter.errors)
        assert (error["code"], error["attempt"], letter.attempts) == ("NOT_FOUND", 1, 1)


@pytest.mark.requirement("MC-TRANS-04", "MC-SEC-04")
async def test_a_key_that_is_revoked_before_a_request_runs_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway({"knowledge": {"max_concurrent": 2}}) as gateway:  # One message at a time.
        documents = gateway.documents
        assert isinstance(documents, HeldDocuments)
        documents.gate.clear()
        blocker, signer = await gateway.signer("owner", sub="svc:other"), await gateway.signer("owner")
        await accepted(gateway, blocker, create_args())
        await until(lambda: documents.waiting == 1)
        place = await accepted(gateway, signer, create_args())
        await gateway.keys.revoke(signer.kid, gateway.clock.now().timestamp())
        documents.gate.set()
        kept = await gateway.finished(signer, place.rpartition("/")[2])
        assert (kept.status, kept.http_status) == (RequestStatus.FAILED, 401)
        assert [each.event for each in await gateway.events()] == ["document.created"]


@pytest.mark.requirement("MC-TEST-05")
async def test_a_reply_is_an_envelope_with_the_ids_of_its_request(tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args())
        subject = replies_subject("acme", envelope["request_id"])
        subscription = gateway.bus.subscribe(subject, most_per_subject=1, ack_seconds=60)
        await gateway.post(signer, envelope, prefer=LATER)
        reply = msgspec.json.decode((await subscription.take()).message.body)
        await subscription.close()
        same = ("request_id", "correlation_id", "trace_id", "tenant_id", "action", "action_version")
        assert {name: reply[name] for name in same} == {name: envelope[name] for name in same}
        assert (reply["envelope_version"], reply["payload"]["ok"]) == ("2.2", True)
        assert reply["payload"]["data"]["revision"] == 1


async def test_a_message_that_cannot_be_read_is_a_dead_letter_with_its_bytes() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        subject = actions_subject("acme")
        for body in (b"", b"\xff\xfe", b"{", b"[]"):
            token = gateway.bus_token(signer, body, subject)
            headers = {"Authorization": f"Bearer {token}"}
            await gateway.bus.publish(BusMessage(subject=subject, id=str(uuid4()), body=body, headers=headers))
        letters = await gateway.dead_letters(4)
        assert [each.message.body for each in letters] == [b"", b"\xff\xfe", b"{", b"[]"]
        assert {msgspec.json.decode(each.errors[-1])["code"] for each in letters} == {"INVALID_ARGUMENT"}


async def test_a_message_is_for_the_tenant_of_its_subject() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args())
        body, subject = as_body(envelope), actions_subject("globex")
        token = gateway.bus_token(signer, body, subject)
        answer = await OverBus(gateway, signer).send(body, token, subject)
        assert (answer.code, answer.details["reason"]) == ("FORBIDDEN", "other_tenant")


async def test_a_published_message_is_accepted_once_however_often_it_is_published() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args())
        first, second = [await OverBus(gateway, signer).send(envelope) for _ in range(2)]
        assert first == second
        assert first.data is not None
        body = as_body(envelope)
        token = gateway.bus_token(signer, body, actions_subject("acme"))
        assert (await OverBus(gateway, signer).send(body, token)).data == first.data
        replayed = await OverBus(gateway, signer).send(body, token)
        assert replayed.code == "UNAUTHORIZED"
        assert [each.event for each in await gateway.events()] == ["document.created"]


@pytest.mark.requirement("MC-SEC-02")
async def test_a_nonce_that_was_used_refuses_a_request_whatever_else_is_wrong_with_it() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        body = as_body(gateway.envelope(signer, CREATE, create_args()))
        token = gateway.token(signer, body, nonce="a-nonce-of-sixteen")
        assert (await answered(gateway.begin(body, token, prefer=LATER))).status == 202
        assert (await answered(gateway.begin(body, token, prefer=LATER))).status == 401
        bad = as_body({**gateway.envelope(signer, CREATE, create_args()), "priority": 1})
        token = gateway.token(signer, bad, nonce="a-nonce-of-sixteen")
        assert (await answered(gateway.begin(bad, token, prefer=LATER))).status == 401
        token = gateway.token(signer, bad, nonce="another-of-sixteen")
        assert (await answered(gateway.begin(bad, token, prefer=LATER))).status == 400
        assert (await answered(gateway.begin(bad, token, prefer=LATER))).status == 401


@pytest.mark.requirement("MC-TRANS-04")
@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_what_may_pass_is_retried_and_after_the_last_attempt_is_a_dead_letter_with_every_error(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)
    async with open_gateway({"gateway": {"max_attempts": 3}}) as gateway:
        assert isinstance(gateway.documents, FailingDocuments)
        gateway.documents.failures = failures
        signer = await gateway.signer("owner")
        place = await accepted(gateway, signer, create_args())
        kept = await advance_until_finished(gateway, signer, place.rpartition("/")[2])
        letters = await gateway.dead.page(None, 10)
        if failures < 3:
            assert (kept.status, letters) == (RequestStatus.COMPLETED, [])
            return
        assert (kept.status, kept.http_status) == (RequestStatus.FAILED, 503)
        errors = [msgspec.json.decode(each) for each in letters[0].errors]
        assert [(each["code"], each["attempt"]) for each in errors] == [("UNAVAILABLE", n) for n in (1, 2, 3)]
        assert await gateway.documents.get("acme", "x") is None


@pytest.mark.requirement("MC-TRANS-04")
@pytest.mark.slow
async def test_delays_between_attempts_double_up_to_the_longest_less_up_to_half_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)
    settings = {"enabled": True, "max_attempts": 5, "retry_delay_ms": 10_000, "max_retry_delay_ms": 40_000}
    async with open_gateway({"gateway": settings}) as gateway:
        assert isinstance(gateway.documents, FailingDocuments)
        settle, delays = gateway.requests.settle, list[float]()

        async def settle_noted(delivery: BusDelivery, settled: Settled, nonce: Nonce | None = None) -> bool:
            if settled.status is RequestStatus.RETRYING:
                delays.append(settled.after_seconds)
            return await settle(delivery, settled, nonce)

        monkeypatch.setattr(gateway.requests, "settle", settle_noted)
        signer = await gateway.signer("owner")
        for _ in range(3):
            gateway.documents.failures = 5
            place = await accepted(gateway, signer, create_args(), ttl_sec=3600)
            await advance_until_finished(gateway, signer, place.rpartition("/")[2])
        assert len(delays) == 12
        assert all(most / 2 <= each <= most for each, most in zip(delays, (10, 20, 40, 40) * 3, strict=True))
        assert len(set(delays)) == 12  # At random, so that those that failed together do not come again together.


class WatchedBus:
    """A bus that notes how it is subscribed to."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.subscriptions: dict[str, tuple[int, float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def subscribe(self, pattern: str, *, most_per_subject: int, ack_seconds: float) -> Subscription:
        self.subscriptions[pattern] = most_per_subject, ack_seconds
        return self._bus.subscribe(pattern, most_per_subject=most_per_subject, ack_seconds=ack_seconds)


class WatchedStorage(HeldStorage):
    def _make_ports(self) -> dict[type, Any]:
        ports = super()._make_ports()
        return {**ports, Bus: WatchedBus(ports[Bus])}


@pytest.mark.requirement("MC-TRANS-04")
async def test_no_more_requests_of_a_tenant_are_under_way_than_may_be_and_each_for_the_time_to_acknowledge_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENGINES, "memory", WatchedStorage)
    settings = {"enabled": True, "max_in_flight_per_tenant": 2, "ack_deadline_ms": 45_000}
    async with open_gateway({"gateway": settings}) as gateway:
        documents = gateway.documents
        assert isinstance(documents, HeldDocuments)
        documents.gate.clear()
        signer, other = await gateway.signer("owner"), await gateway.signer("owner", tenant="globex")
        places = [await accepted(gateway, signer, create_args()) for _ in range(4)]
        theirs = await accepted(gateway, other, create_args())  # Behind all of those.
        await until(lambda: documents.waiting == 3)
        await let_others_run()
        assert documents.waiting == 3
        assert isinstance(gateway.bus, WatchedBus)
        assert gateway.bus.subscriptions == {ALL_ACCEPTED: (2, 45.0), ALL_ACTIONS: (1, 45.0)}
        documents.gate.set()
        for sender, place in ((other, theirs), *((signer, each) for each in places)):
            assert (await gateway.finished(sender, place.rpartition("/")[2])).http_status == 200


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_redriven_request_has_its_time_to_live_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)
    async with open_gateway({"gateway": {"max_attempts": 1}}) as gateway:
        assert isinstance(gateway.documents, FailingDocuments)
        gateway.documents.failures = 1
        signer = await gateway.signer("owner")
        place = await accepted(gateway, signer, create_args(), ttl_sec=60)
        await gateway.finished(signer, place.rpartition("/")[2])
        gateway.clock.skip(3600)
        (letter,) = await gateway.dead.page(None, 10)
        headers, key = accepted_again(letter.message, gateway.clock.now().timestamp())
        event = AuditEvent(tenant="acme", event="message.redriven", principal="operator", at=1.0)
        assert await gateway.requests.redrive(letter.number, headers, key, event) is not None
        kept = await gateway.finished(signer, place.rpartition("/")[2])
        assert kept.status is RequestStatus.COMPLETED


async def test_a_request_that_is_too_late_is_refused_when_it_is_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway({"knowledge": {"max_concurrent": 2}}) as gateway:
        documents = gateway.documents
        assert isinstance(documents, HeldDocuments)
        documents.gate.clear()
        signer = await gateway.signer("owner")
        await accepted(gateway, signer, create_args())
        await until(lambda: documents.waiting == 1)
        place = await accepted(gateway, signer, create_args(), ttl_sec=60)
        gateway.clock.advance(61)
        documents.gate.set()
        kept = await gateway.finished(signer, place.rpartition("/")[2])
        assert kept.http_status == 440


class AcmeHeldDocuments(HeldDocuments):
    """Changes of one tenant wait for the gate, and those of others do not."""

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        if request.tenant == "acme":
            return await super().carry_out(change, request)
        return await self._documents.carry_out(change, request)


class AcmeHeldStorage(HeldStorage):
    documents = AcmeHeldDocuments


@pytest.mark.requirement("MC-TRANS-04")
async def test_requests_that_take_long_leave_places_to_other_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", AcmeHeldStorage)
    async with open_gateway() as gateway:
        documents, signer = gateway.documents, await gateway.signer("owner")
        assert isinstance(documents, AcmeHeldDocuments)
        documents.gate.clear()
        places = [await accepted(gateway, signer, create_args()) for _ in range(12)]
        await until(lambda: documents.waiting == 3)
        for tenant in ("globex", "initech"):
            other = await gateway.signer("owner", tenant=tenant)
            place = await accepted(gateway, other, create_args())
            assert (await gateway.finished(other, place.rpartition("/")[2])).http_status == 200
        assert documents.waiting == 3
        documents.gate.set()
        for place in places:
            assert (await gateway.finished(signer, place.rpartition("/")[2])).http_status == 200


class FirstHeldDocuments(HeldDocuments):
    """The first change waits for the gate, and no other does."""

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        if self.gate.is_set():
            return await super().carry_out(change, request)
        waiting, self.gate = self.gate, asyncio.Event()
        self.gate.set()
        await waiting.wait()
        return await super().carry_out(change, request)


class FirstHeldStorage(HeldStorage):
    documents = FirstHeldDocuments


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_request_is_not_overtaken_by_the_next_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", FirstHeldStorage)
    async with open_gateway() as gateway:
        documents, signer = gateway.documents, await gateway.signer("owner")
        assert isinstance(documents, FirstHeldDocuments)
        gate = documents.gate
        gate.clear()
        numbered = [await accepted(gateway, signer, create_args(), seq=n, context_id="a thread") for n in (1, 2)]
        other = await accepted(gateway, signer, create_args(), seq=1, context_id="another")
        assert (await gateway.finished(signer, other.rpartition("/")[2])).http_status == 200
        gate.set()
        kept = [await gateway.finished(signer, each.rpartition("/")[2]) for each in numbered]
        assert [msgspec.json.decode(each.body or b"")["data"].get("ignored") for each in kept] == [None, None]


async def test_messages_of_a_tenant_are_accepted_in_the_order_of_their_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_gateway() as gateway:
        signer, other = await gateway.signer("owner"), await gateway.signer("owner", tenant="globex")
        find, gate, looked_up = gateway.keys.find, asyncio.Event(), list[str]()

        async def find_late(kid: str) -> SigningKey | None:
            looked_up.append(kid)
            if looked_up == [signer.kid]:
                await gate.wait()
            return await find(kid)

        monkeypatch.setattr(gateway.keys, "find", find_late)
        ids = []
        for sender, seq in ((signer, 1), (signer, 2), (other, 1)):
            envelope = gateway.envelope(sender, CREATE, create_args(), seq=seq, context_id="a thread")
            body, subject = as_body(envelope), actions_subject(sender.tenant)
            headers = {"Authorization": f"Bearer {gateway.bus_token(sender, body, subject)}"}
            ids.append(envelope["request_id"])
            await gateway.bus.publish(BusMessage(subject=subject, id=ids[-1], body=body, headers=headers))
        for tenant, id in (("globex", ids[2]), ("acme", ids[0]), ("acme", ids[1])):
            replies = gateway.bus.subscribe(replies_subject(tenant, id), most_per_subject=1, ack_seconds=60)
            reply = msgspec.json.decode((await replies.take()).message.body)
            assert "ignored" not in reply["payload"]["data"]
            gate.set()


@pytest.mark.slow
@pytest.mark.requirement("MC-TRANS-04")
async def test_a_tenant_with_many_messages_delays_nobody_else(tmp_path: Path) -> None:
    async with open_gateway(
        {"gateway": {"requests_per_minute_per_tenant": 10_000, "requests_per_minute_per_principal": 10_000}},
        tmp_path,
    ) as gateway:
        flooding, small = await gateway.signer("owner"), await gateway.signer("owner", tenant="globex")
        many = [gateway.envelope(flooding, CREATE, create_args()) for _ in range(200)]
        await asyncio.gather(*(gateway.post(flooding, each, prefer=LATER) for each in many))
        place = await accepted(gateway, small, create_args())
        await gateway.finished(small, place.rpartition("/")[2])
        created = [each.tenant for each in await gateway.events() if each.event == "document.created"]
        for each in many:
            await gateway.finished(flooding, each["request_id"])
        assert created.count("globex") == 1
        assert created.count("acme") < 200


@pytest.mark.requirement("MC-VER-01")
async def test_the_end_of_a_version_is_announced_once_to_every_tenant() -> None:
    moment = "2099-01-01T00:00:00Z"
    settings = {"gateway": {"enabled": True, "deprecations": [f"knowledge.move_document@1.0.0 {moment}"]}}
    async with open_gateway(settings) as gateway:
        await gateway.signer("owner", tenant="globex")
        subscription = gateway.bus.subscribe("dragoman.events.*", most_per_subject=10, ack_seconds=60)
        taking = [asyncio.create_task(subscription.take()) for _ in range(2)]
        while not all(each.done() for each in taking):
            gateway.clock.skip(3600)
            await asyncio.sleep(0.001)
        events = [msgspec.json.decode(each.result().message.body) for each in taking]
        assert {each["tenant_id"] for each in events} == {"acme", "globex"}
        assert {each["event"] for each in events} == {"knowledge.move_document.deprecation"}
        assert {each["details"]["end_of_life"] for each in events} == {moment}
        for _ in range(48):
            gateway.clock.skip(3600)
            await asyncio.sleep(0.001)
        noted = [each for each in await gateway.events() if each.event.endswith(".deprecation")]
        assert sorted(each.tenant for each in noted) == ["", "acme", "globex"]
        await subscription.close()


@pytest.mark.requirement("MC-VER-01")
async def test_a_server_does_not_start_with_an_end_of_a_version_that_comes_too_soon() -> None:
    soon = (datetime.now(UTC) + timedelta(days=29)).isoformat()
    settings = {"gateway": {"enabled": True, "deprecations": [f"knowledge.move_document@1.0.0 {soon}"]}}
    with pytest.raises(PartFailed, match=r"gateway\.deprecations: knowledge\.move_document@1\.0\.0 ends less"):
        async with open_gateway(settings):
            pass


@pytest.mark.requirement("MC-RBAC-04")
async def test_the_use_of_an_old_name_of_a_role_is_published() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("codex")
        subscription = gateway.bus.subscribe("dragoman.events.acme", most_per_subject=10, ack_seconds=60)
        for _ in range(2):
            assert (await gateway.act(signer, "create_document", create_args())).status == 200
        event = msgspec.json.decode((await subscription.take()).message.body)
        assert (event["event"], event["details"]["end_of_life"]) == ("role.deprecation", None)
        assert [each.event for each in await gateway.events()].count("role.deprecation") == 1
        await subscription.close()


@pytest.mark.requirement("MC-HB-01")
async def test_agents_of_others_send_heartbeats_that_their_tenant_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_gateway() as gateway:
        signer, other = await gateway.signer("agent", sub="cursor"), await gateway.signer("owner", tenant="globex")

        async def beat(body: bytes) -> Response:
            token = gateway.token(signer, body, "/mcp/registry")
            named = {"authorization": f"Bearer {token}"}
            return await gateway.driver.ask(request(body, named, path="/mcp/registry"))

        for revision in (1, 2):
            (own,) = (await beat(b'{"status":"degraded"}')).json["data"]["entries"]
            assert own["tenant_id"] == "acme"
            assert (own["name"], own["status"], own["revision"]) == (f"cursor ({signer.kid})", "degraded", revision)
        assert (await beat(b'{"status":"fine"}')).status == 422
        seen = (await gateway.get("/mcp/registry", other)).json["data"]["entries"]
        assert all(each["tenant_id"] is None for each in seen)
        assert (await gateway.get("/mcp/registry")).status == 401
        monkeypatch.setattr("dragoman.gateway.registry.MOST_AGENTS", 1)
        assert (await beat(b'{"status":"healthy"}')).status == 200
        signer.sub = "another"
        assert (await beat(b'{"status":"healthy"}')).status == 429


@pytest.mark.requirement("MC-TEST-05")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_rules_of_the_protocol_hold_over_every_transport(transport: str) -> None:
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args(), seq=5, context_id="a thread", ttl_sec=60)
        first = await gateway.post(signer, envelope)
        assert (first.status, first.json["data"]["revision"]) == (200, 1)
        # A version that is not there is answered with those that are.
        for field, version in (("envelope_version", "2.1"), ("action_version", "2.0.0")):
            refused = await gateway.post(signer, {**envelope, "request_id": str(uuid4()), field: version})
            assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_ARGUMENT")
            assert refused.json["error"]["details"]["supported_versions"]
        # A repeat under the same key has no effect of its own, and another request under it is refused.
        keyed = {**envelope, "idempotency_key": envelope["request_id"]}
        again = await gateway.post(signer, {**keyed, "request_id": str(uuid4()), "seq": 9})
        assert again.json["data"] == first.json["data"]
        other = {"schema_version": "1.0", "args": {**envelope["payload"]["args"], "is_human_readable": False}}
        conflict = await gateway.post(signer, {**keyed, "request_id": str(uuid4()), "payload": other})
        assert (conflict.status, conflict.json["error"]["code"]) == (409, "CONFLICT")
        # What comes late in its stream is ignored, and what comes later than its TTL is refused.
        late = gateway.envelope(signer, CREATE, create_args(), seq=4, context_id="a thread")
        assert (await gateway.post(signer, late)).json["data"] == {"ignored": True, "last_seq": 5}
        gateway.clock.advance(61)
        expired = await gateway.post(signer, {**envelope, "request_id": str(uuid4())})
        assert (expired.status, expired.json["error"]["code"]) == (440, "EXPIRED")
        assert [each.event for each in await gateway.events()] == ["document.created"]


@pytest.mark.requirement("MC-SEC-02")
async def test_a_message_whose_body_is_not_the_one_that_was_signed_is_refused() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args())
        token = gateway.bus_token(signer, as_body(envelope), actions_subject("acme"))
        answer = await OverBus(gateway, signer).send({**envelope, "seq": 1}, token)
        assert answer.code == "UNAUTHORIZED"
        assert await gateway.events() == []


async def test_a_message_beyond_the_rate_waits_for_the_next_minute() -> None:
    async with open_gateway({"gateway": {"requests_per_minute_per_principal": 1}}) as gateway:
        signer = await gateway.signer("owner")
        way = OverBus(gateway, signer)
        assert (await way.do("create_document", create_args())).data is not None
        doing = asyncio.create_task(way.do("create_document", create_args()))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(await gateway.events()) == 1
        while not doing.done():
            gateway.clock.advance(1)
            await asyncio.sleep(0.001)
        assert (await doing).data is not None
        assert await gateway.dead.page(None, 10) == []


@pytest.mark.slow
async def test_waiting_for_the_rate_is_no_attempt() -> None:
    async with open_gateway({"gateway": {"requests_per_minute_per_principal": 1}}) as gateway:
        signer, subject = await gateway.signer("owner"), actions_subject("acme")
        for _ in range(30):
            body = as_body(gateway.envelope(signer, CREATE, create_args(), ttl_sec=86_400))
            headers = {"authorization": f"Bearer {gateway.bus_token(signer, body, subject)}"}
            await gateway.bus.publish(BusMessage(subject=subject, id=str(uuid4()), body=body, headers=headers))
        async with asyncio.timeout(60):
            while len(await gateway.events()) < 30:
                gateway.clock.advance(20)
                await asyncio.sleep(0.001)
        assert await gateway.dead.page(None, 10) == []


async def test_requests_of_the_gateway_are_not_counted_against_the_limits_of_mcp_calls() -> None:
    async with open_gateway({"limits": {"calls_per_minute_per_caller": 1}}) as gateway:
        signer = await gateway.signer("owner")
        for _ in range(3):
            assert (await gateway.act(signer, "create_document", create_args())).status == 200


@pytest.mark.parametrize("transport", ["now", "later", "bus"])
async def test_arguments_that_are_too_large_are_refused_before_they_are_accepted(transport: str) -> None:
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        content = {"mime_type": "text/plain", "body": "x" * 131_072}
        refused = await gateway.act(signer, "create_document", create_args(content=content))
        assert (refused.status, refused.json["error"]["details"]["limit"]) == (400, 131_072)


async def test_an_unforeseen_failure_is_the_answer_to_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RecursionError

    monkeypatch.setattr("dragoman.gateway.delivering.call_for", broken)
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        place = await accepted(gateway, signer, create_args())
        kept = await gateway.finished(signer, place.rpartition("/")[2])
        assert (kept.status, kept.http_status) == (RequestStatus.FAILED, 500)
        assert len(await gateway.dead.page(None, 10)) == 1


class SettledOnly:
    """Notes what becomes of deliveries."""

    def __init__(self) -> None:
        self.settled: list[Settled] = []

    async def settle(self, delivery: BusDelivery, settled: Settled, nonce: Nonce | None = None) -> bool:
        self.settled.append(settled)
        return True


async def test_a_message_that_was_delivered_too_often_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway() as gateway:
        assert isinstance(gateway.documents, HeldDocuments)
        gateway.documents.gate.clear()
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, CREATE, create_args(parent_id=str(uuid4())))
        await gateway.post(signer, envelope, prefer=LATER)
        gateway.documents.gate.set()
        (letter,) = await gateway.dead_letters(1)
        config, clock, logger = gateway.runtime.config.gateway, gateway.clock, gateway.runtime.logger
        credentials = Credentials(gateway.keys, None, clock, logger, "dragoman")
        rates, ids = GatewayRates(gateway.runtime.facilities.storage.port(Quotas), clock), gateway.runtime.ids
        exchanges, requests = Exchanges(credentials, rates, config, ids, logger, 1000, ActionMeter()), SettledOnly()
        objects = open_objects(gateway.runtime.facilities.storage, config, clock).objects
        deliverer = Deliverer(
            cast(ActionRequests, requests),
            exchanges,
            lambda: gateway.runtime.intake,
            objects,
            ActionAnswers(objects, 1000, 1000),
            config,
            gateway.runtime.config.knowledge,
            clock,
            lambda: 0.5,
            logger,
            gateway.runtime.facilities.take_slot,
        )
        facts = {"message": letter.message, "number": 1, "published_at": 0.0, "fence": 1}
        for attempt in (config.max_attempts, config.max_attempts + 1):
            await deliverer.handle(BusDelivery(**facts, attempt=attempt))
        codes = [msgspec.json.decode(each.body or b"{}")["error"]["code"] for each in requests.settled]
        assert codes == ["NOT_FOUND", "INTERNAL"]


async def test_an_accepted_message_that_cannot_be_handled_is_a_dead_letter_and_others_go_on() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        subject = accepted_subject("acme")
        for headers in ({}, {"acceptance": "{"}, {"acceptance": "{}"}):
            await gateway.bus.publish(BusMessage(subject=subject, id=str(uuid4()), body=b"{}", headers=headers))
        letters = await gateway.dead_letters(3)
        assert {msgspec.json.decode(each.errors[-1])["code"] for each in letters} == {"INTERNAL"}
        place = await accepted(gateway, signer, create_args())
        assert (await gateway.finished(signer, place.rpartition("/")[2])).http_status == 200

"""The contract of `ActionRequests`, over every engine: what is stored together, and what a repeat gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import BusFull, Conflict, QuotaExceeded
from dragoman.gateway.port import Nonce, SigningKey, SigningKeys
from dragoman.gateway.requests import (
    KEPT_DEAD_SECONDS,
    KEPT_SECONDS,
    STREAM,
    ActionRequests,
    KeptRequest,
    RequestKey,
    RequestStatus,
    Settled,
)
from dragoman.knowledge.kept_answers import SMALLEST_CHARGE
from dragoman.knowledge.port import Audit, AuditEvent, Documents
from dragoman.messaging.bus import Bus, BusDelivery, BusMessage, DeadLetters
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened_storages

KEY = RequestKey("acme", "svc:writer", "11111111-1111-4111-8111-111111111111")
REQUEST = KeptRequest(key=KEY, fingerprint=b"a")
SUBJECT = "dragoman.accepted.acme"


class Desk:
    """Requests, and the ports that they share their transactions with."""

    def __init__(self, storage: Storage, clock: ManualClock) -> None:
        self.clock = clock
        self.requests = storage.port(ActionRequests)
        self.bus = storage.port(Bus)
        self.dead = storage.port(DeadLetters)
        self.keys = storage.port(SigningKeys)
        self.audit = storage.port(Audit)
        self.documents = storage.port(Documents)

    async def kept_answers(self) -> int:
        return await self.documents.kept_answers("acme")

    def message(self, id: str = "m1", subject: str = SUBJECT) -> BusMessage:
        return BusMessage(subject=subject, id=id, body=b"{}", headers={"acceptance": "{}"})

    def nonce(self, nonce: str = "n1") -> Nonce:
        now = self.clock.now().timestamp()
        return Nonce("k1", nonce, now + 60, now)

    async def add_key(self) -> None:
        now = self.clock.now().timestamp()
        await self.keys.add(SigningKey(kid="k1", public="x", tenant="acme", roles=("owner",), created_at=now))

    async def taken(self, subject: str = SUBJECT) -> BusDelivery:
        subscription = self.bus.subscribe(subject, most_per_subject=10, ack_seconds=60)
        return await subscription.take()

    async def find(self) -> KeptRequest | None:
        return await self.requests.find({"acme"}, KEY.principal, KEY.request_id)


@pytest.fixture(params=ENGINES)
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with opened_storages(request.param, tmp_path, clock) as (storage,):
        yield Desk(storage, clock)


async def test_an_accepted_request_is_found_by_its_tenant_principal_and_id(desk: Desk) -> None:
    assert await desk.requests.accept(REQUEST, desk.message()) == REQUEST
    assert await desk.find() == replace(REQUEST, is_new=False)
    assert await desk.requests.find({"globex"}, KEY.principal, KEY.request_id) is None
    assert await desk.requests.find({"acme", "globex"}, "svc:other", KEY.request_id) is None
    assert await desk.requests.find({"globex", "acme"}, KEY.principal, KEY.request_id) is not None
    assert (await desk.taken()).message == desk.message()


async def test_a_repeat_publishes_nothing_and_another_request_with_its_id_is_a_conflict(desk: Desk) -> None:
    await desk.requests.accept(REQUEST, desk.message())
    again = await desk.requests.accept(REQUEST, desk.message("m2"))
    assert again == replace(REQUEST, is_new=False)
    with pytest.raises(Conflict):
        await desk.requests.accept(replace(REQUEST, fingerprint=b"b"), desk.message("m3"))
    assert await desk.bus.publish(desk.message("m2"))
    assert await desk.bus.publish(desk.message("m3"))


async def test_a_nonce_is_used_with_the_acceptance_or_not_at_all(desk: Desk) -> None:
    assert await desk.requests.accept(REQUEST, desk.message(), nonce=desk.nonce()) is None  # There is no such key.
    assert await desk.find() is None
    await desk.add_key()
    assert await desk.requests.accept(REQUEST, desk.message(), nonce=desk.nonce()) == REQUEST
    assert not await desk.keys.spend(desk.nonce())
    with pytest.raises(Conflict):
        await desk.requests.accept(replace(REQUEST, fingerprint=b"b"), desk.message(), nonce=desk.nonce("n2"))
    assert await desk.keys.spend(desk.nonce("n2"))
    assert await desk.requests.accept(REQUEST, desk.message(), nonce=desk.nonce("n2")) is None


async def test_the_message_that_a_request_came_in_is_acknowledged_with_it(desk: Desk) -> None:
    raw = desk.message("raw", "dragoman.actions.acme")
    await desk.bus.publish(raw)
    delivery = await desk.taken(raw.subject)
    assert await desk.requests.accept(REQUEST, desk.message(), came_in=delivery) == REQUEST
    assert not await desk.bus.ack(delivery)
    late = await desk.requests.accept(
        replace(REQUEST, key=KEY._replace(request_id="x")), desk.message("m2"), came_in=delivery
    )
    assert late is not None
    assert not late.is_new
    assert await desk.requests.find({"acme"}, KEY.principal, "x") is None


@pytest.mark.parametrize("status", [RequestStatus.COMPLETED, RequestStatus.FAILED])
async def test_an_answer_its_reply_and_the_end_of_the_delivery_are_stored_together(
    desk: Desk, status: RequestStatus
) -> None:
    await desk.requests.accept(REQUEST, desk.message())
    delivery = await desk.taken()
    reply = desk.message("reply", "dragoman.replies.acme.x")
    settled = Settled(status=status, request=KEY, http_status=200, body=b"{}", reply=reply, error=b'{"a":1}')
    assert await desk.requests.settle(delivery, settled)
    kept = await desk.find()
    assert kept is not None
    assert (kept.status, kept.http_status, kept.body) == (status, 200, b"{}")
    assert (await desk.taken(reply.subject)).message == reply
    letters = await desk.dead.page(None, 10)
    assert [each.errors for each in letters] == ([] if status is RequestStatus.COMPLETED else [(b'{"a":1}',)])
    assert not await desk.requests.settle(delivery, replace(settled, body=b"late"))
    assert await desk.find() == kept


async def test_a_settlement_of_somebody_who_lost_the_delivery_has_no_effect(desk: Desk) -> None:
    await desk.add_key()
    await desk.requests.accept(REQUEST, desk.message())
    delivery = await desk.taken()
    assert await desk.requests.settle(delivery, Settled(status=RequestStatus.RETRYING, request=KEY, error=b"{}"))
    reply = desk.message("reply", "dragoman.replies.acme.x")
    settled = Settled(status=RequestStatus.COMPLETED, request=KEY, http_status=200, body=b"{}", reply=reply)
    assert not await desk.requests.settle(delivery, settled, None)
    kept = await desk.find()
    assert kept is not None
    assert (kept.status, kept.body) == (RequestStatus.RETRYING, None)
    assert await desk.bus.publish(reply)


async def test_a_redriven_request_waits_anew_and_the_event_is_noted(desk: Desk) -> None:
    await desk.requests.accept(REQUEST, desk.message())
    failed = Settled(status=RequestStatus.FAILED, request=KEY, http_status=404, body=b"{}", error=b"{}")
    assert await desk.requests.settle(await desk.taken(), failed)
    (letter,) = await desk.dead.page(None, 10)
    event = AuditEvent(tenant="acme", event="message.redriven", principal="operator", at=1.0)
    assert await desk.requests.redrive(letter.number + 1, None, None, event) is None
    assert await desk.audit.page(10) == []
    assert await desk.requests.redrive(letter.number, {"acceptance": "new"}, KEY, event) is not None
    kept = await desk.find()
    assert kept is not None
    assert (kept.status, kept.http_status, kept.body) == (RequestStatus.ACCEPTED, None, None)
    again = await desk.taken()
    assert (again.message.headers, again.attempt, again.errors) == ({"acceptance": "new"}, 1, ())
    assert [each.event for each in await desk.audit.page(10)] == ["message.redriven"]


@pytest.mark.parametrize(
    ("status", "seconds"), [(RequestStatus.COMPLETED, KEPT_SECONDS), (RequestStatus.FAILED, KEPT_DEAD_SECONDS)]
)
async def test_answers_are_forgotten_when_they_were_kept_long_enough(
    desk: Desk, status: RequestStatus, seconds: float
) -> None:
    await desk.requests.accept(REQUEST, desk.message())
    assert await desk.requests.forget(10) == 0
    settled = Settled(status=status, request=KEY, http_status=200, body=b"{}", error=b"{}")
    assert await desk.requests.settle(await desk.taken(), settled)
    desk.clock.advance(seconds - 1)
    assert await desk.requests.forget(10) == 0
    desk.clock.advance(1)
    assert await desk.requests.forget(10, desk.clock.now().timestamp() - 1) == 0
    assert await desk.requests.forget(10) == 1
    assert await desk.find() is None


async def test_an_event_that_is_noted_once_is_published_once(desk: Desk) -> None:
    event = AuditEvent(tenant="acme", event="role.deprecation", principal="x", at=1.0, once="q1")
    message = desk.message("e1", "dragoman.events.acme")
    assert await desk.audit.note(event, message)
    assert not await desk.audit.note(event, replace(message, id="e2"))
    assert (await desk.taken(message.subject)).message.id == "e1"
    assert await desk.bus.publish(replace(message, id="e2"))


async def test_a_repeat_that_came_in_as_a_message_is_answered_with_the_reply_again(desk: Desk) -> None:
    def reply_again(body: bytes) -> BusMessage:
        return replace(desk.message("again", "dragoman.replies.acme.x"), body=body)

    await desk.requests.accept(REQUEST, desk.message())
    done = Settled(status=RequestStatus.COMPLETED, request=KEY, http_status=200, body=b"{1}")
    assert await desk.requests.settle(await desk.taken(), done)
    raw = desk.message("raw", "dragoman.actions.acme")
    await desk.bus.publish(raw)
    delivery = await desk.taken(raw.subject)
    assert await desk.requests.accept(REQUEST, desk.message("m2"), reply_again, came_in=delivery) is not None
    assert (await desk.taken("dragoman.replies.acme.x")).message.body == b"{1}"


async def test_a_full_bus_leaves_a_request_the_nonce_and_the_message_it_came_in_as_they_were(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.add_key()
    raw = desk.message("raw", "dragoman.actions.acme")
    await desk.bus.publish(raw)
    delivery = await desk.taken(raw.subject)
    await desk.bus.publish(desk.message("other"))
    monkeypatch.setattr("dragoman.messaging.bus.MOST_MESSAGES", 1)
    with pytest.raises(BusFull):
        await desk.requests.accept(REQUEST, desk.message(), None, desk.nonce(), delivery)
    assert await desk.find() is None
    assert await desk.keys.spend(desk.nonce())
    assert await desk.bus.ack(delivery)


async def test_a_request_is_behind_those_of_its_stream_that_are_held_and_were_accepted_before(desk: Desk) -> None:
    held = []
    for number, stream in enumerate(("a", "b", None, None, "a")):
        headers = {} if stream is None else {STREAM: stream}
        await desk.bus.publish(replace(desk.message(str(number)), headers=headers))
        held.append(await desk.taken())
    assert [await desk.requests.is_behind(each) for each in held] == [False, False, False, False, True]
    other = replace(held[4].message, subject="dragoman.accepted.globex")
    assert not await desk.requests.is_behind(replace(held[4], message=other))
    await desk.bus.retry(held[0], 60, b"{}")
    assert not await desk.requests.is_behind(held[4])


# Answers that are kept.

ROOM = 3 * SMALLEST_CHARGE
QUERY = replace(REQUEST, most_kept=ROOM)


def of(number: int) -> KeptRequest:
    return replace(QUERY, key=KEY._replace(request_id=str(number)))


def answered(request: KeptRequest, size: int, **fields: Any) -> Settled:
    return Settled(
        status=RequestStatus.COMPLETED,
        request=request.key,
        http_status=200,
        body=b"x" * size,
        most_kept=ROOM,
        **fields,
    )


async def test_an_accepted_query_counts_among_the_answers_of_its_tenant(desk: Desk) -> None:
    reply = BusMessage(subject="dragoman.replies.acme.1", id="r", body=b"x" * SMALLEST_CHARGE)
    await desk.requests.accept(of(1), desk.message("m1"))
    await desk.requests.accept(of(1), desk.message("m1"))
    assert await desk.kept_answers() == SMALLEST_CHARGE
    assert await desk.requests.settle(await desk.taken(), answered(of(1), SMALLEST_CHARGE, reply=reply))
    assert await desk.kept_answers() == 2 * SMALLEST_CHARGE  # With its reply.
    await desk.requests.accept(of(2), desk.message("m2"))
    with pytest.raises(QuotaExceeded):
        await desk.requests.accept(of(3), desk.message("m3"))
    assert await desk.requests.find({"acme"}, KEY.principal, "3") is None
    delivery = await desk.taken()
    with pytest.raises(QuotaExceeded):
        await desk.requests.settle(delivery, answered(of(2), SMALLEST_CHARGE + 1))
    assert await desk.requests.settle(delivery, answered(of(2), 10))
    await desk.requests.accept(REQUEST, desk.message("m4"))  # A change.
    assert await desk.kept_answers() == ROOM
    desk.clock.advance(KEPT_SECONDS)
    assert await desk.requests.forget(10) == 2
    assert await desk.kept_answers() == 0

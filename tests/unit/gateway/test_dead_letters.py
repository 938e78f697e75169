"""Dead letters of the bus as operators see them: listed by tenant, shown, and accepted again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from dragoman.errors import Conflict
from dragoman.gateway.accepting import acceptance_in
from dragoman.gateway.dead_letters import ActionLetters, content_of, described, errors_of
from dragoman.gateway.requests import ActionRequests, RequestStatus
from dragoman.knowledge.port import Audit, AuditEvent
from dragoman.messaging.bus import Bus, BusDelivery, BusMessage, DeadLetter, DeadLetters
from dragoman.messaging.subjects import ALL_ACCEPTED, ALL_ACTIONS
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened_storages
from tests.support.dead_actions import AUTHOR, CREATE, DeadActions, error
from tests.support.waiting import PATIENCE

ID = "0d2f8d7c-3b1f-4a53-9a0a-1f0c6d1b9a01"
PRINCIPAL = '["key of acme", "svc:writer"]'


class Desk:
    """The dead letters of one storage, and what fills it."""

    def __init__(self, storage: Storage, clock: ManualClock) -> None:
        self.clock = clock
        self.storage = storage
        self.made = DeadActions(storage, clock)
        self.requests = storage.port(ActionRequests)
        self.letters = ActionLetters(storage.port(DeadLetters), self.requests, clock)

    async def get(self, number: int) -> DeadLetter:
        letter = await self.letters.find(number)
        assert letter is not None
        return letter

    async def take(self, pattern: str) -> BusDelivery:
        subscription = self.storage.port(Bus).subscribe(pattern, most_per_subject=9, ack_seconds=60)
        async with asyncio.timeout(PATIENCE):
            return await subscription.take()

    async def events(self) -> list[AuditEvent]:
        return await self.storage.port(Audit).page(10)


@pytest.fixture(params=[*ENGINES])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with opened_storages(request.param, tmp_path, clock) as (storage,):
        yield Desk(storage, clock)


async def test_a_letter_is_listed_with_its_caller_its_tenant_and_its_last_error(desk: Desk) -> None:
    number = await desk.made.fail(errors=3, request_id=ID)
    (letter,) = await desk.letters.page(10)
    assert (letter.name, letter.tenant, letter.action, letter.author) == (f"a{number}", "acme", CREATE, AUTHOR)
    assert (letter.request_id, letter.attempts, letter.is_accepted) == (ID, 3, True)
    assert (letter.error["code"], letter.error["attempt"]) == ("NOT_FOUND", 3)
    whole = await desk.get(number)
    assert [each["code"] for each in errors_of(whole)] == ["UNAVAILABLE", "UNAVAILABLE", "NOT_FOUND"]
    assert content_of(whole.message)["envelope"]["request_id"] == ID


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b'"text"', b"[" * 100_000, b'{"tenant_id":"\\ud800"}'])
async def test_a_body_that_is_no_envelope_is_shown_as_base64_and_its_tenant_is_that_of_the_subject(
    desk: Desk, body: bytes
) -> None:
    number = await desk.made.refuse("Größe", body)
    (letter,) = await desk.letters.page(10)
    assert (letter.tenant, letter.action, letter.author, letter.is_accepted) == ("Größe", "", None, False)
    content = content_of((await desk.get(number)).message)
    assert content.keys() == {"body"}
    assert msgspec.json.decode(msgspec.json.encode(content["body"]), type=bytes) == body


async def test_an_envelope_cannot_claim_another_tenant(desk: Desk) -> None:
    body = msgspec.json.encode({"tenant_id": "globex", "action": ["x"], "request_id": 7})
    await desk.made.refuse("acme", body)
    await desk.made.refuse("acme", b'{"tenant_id":"globex","action":"x","request_id":"y"}')
    letters = await desk.letters.page(10)
    assert [(each.tenant, each.action) for each in letters] == [("acme", ""), ("acme", "x")]
    assert await desk.letters.page(10, tenants={"globex"}) == []


async def test_letters_are_those_of_the_tenants_that_are_asked_for(desk: Desk) -> None:
    names = ["acme", "globex", "a.b", "*", ">", "Ünïcode"]
    numbers = {name: [await desk.made.fail(name), await desk.made.refuse(name)] for name in names}
    for name in names:
        page = await desk.letters.page(10, tenants={name})
        assert [each.number for each in page] == numbers[name]
        assert {each.tenant for each in page} == {name}
        assert await desk.letters.find(numbers[name][0], {name}) is not None
        assert await desk.letters.find(numbers[name][0], set(names) - {name}) is None
    both = await desk.letters.page(10, tenants={"acme", ">"})
    assert [each.number for each in both] == sorted(numbers["acme"] + numbers[">"])
    assert await desk.letters.page(10, tenants=set()) == []


async def test_letters_of_both_subjects_come_in_pages_in_the_order_of_their_numbers(desk: Desk) -> None:
    expected = []
    for each in range(25):
        expected += [await desk.made.fail(f"t{each % 3}"), await desk.made.refuse(f"t{each % 2}")]
    pages, after = list[list[int]](), 0
    while page := await desk.letters.page(22, after=after):
        pages.append([each.number for each in page])
        after = pages[-1][-1]
    assert [len(page) for page in pages] == [22, 22, 6]
    assert [number for page in pages for number in page] == expected


async def test_letters_are_chosen_by_when_they_died(desk: Desk) -> None:
    old = await desk.made.fail()
    desk.clock.advance(100)
    await desk.made.fail()
    before = desk.clock.now().timestamp() - 50
    assert [each.number for each in await desk.letters.page(10, died_before=before)] == [old]


async def test_dead_letters_of_other_subjects_are_none_of_these(desk: Desk) -> None:
    bus = desk.storage.port(Bus)
    await bus.publish(BusMessage(subject="dragoman.replies.acme.x", id="1", body=b"{}"))
    other = await desk.take("dragoman.replies.acme.x")
    await bus.give_up(other, error())
    assert await desk.letters.page(10) == []
    assert await desk.letters.find(other.number) is None


async def test_an_error_that_cannot_be_read_does_not_hide_the_letter(desk: Desk) -> None:
    await desk.made.refuse(record=b'"just text"')
    (letter,) = await desk.letters.page(10)
    assert letter.error == {"message": "The error cannot be read"}


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_redrive_is_a_new_acceptance_by_an_operator(desk: Desk) -> None:
    number = await desk.made.fail(request_id=ID, ttl_sec=60)
    desk.clock.advance(3600)
    now = desk.clock.now().timestamp()
    made = await desk.letters.redrive(await desk.get(number), "operator")
    assert made is not None
    assert (made.number, made.tenant, made.request_id, made.new_number > number) == (number, "acme", ID, True)
    delivery = await desk.take(ALL_ACCEPTED)
    accepted = acceptance_in(delivery.message)
    assert (delivery.number, delivery.attempt, delivery.errors) == (made.new_number, 1, ())
    assert (accepted.accepted_at, accepted.expires_at, accepted.author) == (now, now + 60, AUTHOR)
    kept = await desk.requests.find({"acme"}, PRINCIPAL, ID)
    assert kept is not None
    assert (kept.status, kept.http_status, kept.body) == (RequestStatus.ACCEPTED, None, None)
    (event,) = await desk.events()
    assert (event.tenant, event.event, event.principal, event.subject) == ("acme", "message.redriven", "operator", ID)
    assert (event.at, event.details) == (now, {"number": f"a{number}", "action": CREATE, "attempts": 1})
    assert await desk.letters.page(10) == []


async def test_a_message_that_was_never_accepted_is_delivered_as_it_is(desk: Desk) -> None:
    number = await desk.made.refuse()
    letter = await desk.get(number)
    made = await desk.letters.redrive(letter, "operator")
    assert made is not None
    delivery = await desk.take(ALL_ACTIONS)
    assert delivery.message == letter.message
    (event,) = await desk.events()
    assert (event.tenant, event.subject) == ("acme", f"a{number}")


async def test_a_letter_is_redriven_once(desk: Desk) -> None:
    letter = await desk.get(await desk.made.fail())
    assert await desk.letters.redrive(letter, "operator") is not None
    assert await desk.letters.redrive(letter, "operator") is None
    assert len(await desk.events()) == 1


@pytest.mark.parametrize("header", ["", "{}", "nonsense", '{"caller":1,"author":"x","roles":[],"key":"k"}'])
async def test_a_letter_whose_acceptance_cannot_be_read_stays_with_a_reason(desk: Desk, header: str) -> None:
    letter = await desk.get(await desk.made.fail(acceptance=header))
    with pytest.raises(Conflict, match="acceptance cannot be read"):
        await desk.letters.redrive(letter, "operator")
    with pytest.raises(Conflict, match="acceptance cannot be read"):
        desk.letters.check(letter)
    assert described(letter).author is None
    assert len(await desk.letters.page(10)) == 1
    assert await desk.events() == []


async def test_a_letter_with_an_envelope_of_another_tenant_is_not_redriven(desk: Desk) -> None:
    letter = await desk.get(await desk.made.fail("acme", tenant_id="globex"))
    assert described(letter).tenant == "acme"
    with pytest.raises(Conflict, match="another tenant"):
        await desk.letters.redrive(letter, "operator")

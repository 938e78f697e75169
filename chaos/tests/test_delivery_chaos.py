"""The checks of accepted requests pass for a healthy database, and fail for each fault that they are there for."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from chaos.deliveries import CREATE, FORBIDDEN, FORGED, GOOD, ORPHAN, DeliveryLoad, Handed
from chaos.delivery_checks import DeliveriesFound, Reply, problems_with_deliveries
from chaos.delivery_points import DELIVERY_POINTS, DeliveryStorage
from chaos.http_served import HttpServed
from chaos.publishing import publishing
from chaos.rounds import Run
from chaos.run_actions import keep_key
from chaos.run_deliveries import ALL_MIGRATIONS, DeliveryRound, deliveries_found_in, until_quiet
from chaos.servers import Served
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.clock import SystemClock
from dragoman.gateway.requests import ActionRequests, KeptRequest, RequestKey, RequestStatus, Settled
from dragoman.knowledge.actions import CHANGES
from dragoman.knowledge.port import ActionRequest, AuditEvent, Documents
from dragoman.messaging.bus import Bus, BusMessage, Subscription
from dragoman.storage.settings import StorageConfig
from tests.support.gateway import create_args
from tests.support.waiting import PATIENCE

DONE, OTHER = b'{"ok":true,"data":{"revision":1}}', b'{"ok":true,"data":{"revision":2}}'
FAILED = b'{"ok":false,"error":{"code":"NOT_FOUND"}}'


def event(correlation_id: str, revision: int = 1, subject: str = "a") -> AuditEvent:
    details = {"revision": revision, "correlation_id": correlation_id}
    return AuditEvent(tenant="acme", event="x", principal="me", subject=subject, at=1.0, details=details)


def reply(id: str, answer: bytes) -> Reply:
    return Reply(id, msgspec.json.decode(answer))


def healthy() -> DeliveriesFound:
    return DeliveriesFound(
        handed=[
            Handed(GOOD, CREATE, {}, "1", "for 1", accepted=2, published=1, answers=[DONE, DONE]),
            Handed(ORPHAN, CREATE, {}, "2", "for 2", published=1, answers=[FAILED]),
            Handed(FORBIDDEN, CREATE, {}, "3", "for 3", published=1),
            Handed(FORGED, CREATE, {}, "4", "for 4", published=1),
        ],
        events=[event("for 1")],
        documents={"a": 1},
        revisions={"a": [1]},
        kept={"1": DONE, "2": FAILED},
        replies={
            "1": [reply("reply-1", DONE), reply("again-4", DONE)],
            "2": [reply("reply-2", FAILED)],
            "3": [reply("refused-3", FAILED)],
        },
        dead={"2": ["accepted"], "3": ["actions"], "4": ["actions"]},
    )


def with_facts(**facts: Any) -> Callable[[DeliveriesFound], DeliveriesFound]:
    return lambda found: replace(found, **facts)


def with_handed(place: int, **facts: Any) -> Callable[[DeliveriesFound], DeliveriesFound]:
    def change(found: DeliveriesFound) -> DeliveriesFound:
        handed = list(found.handed)
        handed[place] = replace(handed[place], **facts)
        return replace(found, handed=handed)

    return change


def with_replies(id: str, *replies: Reply) -> Callable[[DeliveriesFound], DeliveriesFound]:
    return lambda found: replace(found, replies={**found.replies, id: replies})


def with_dead(**dead: list[str]) -> Callable[[DeliveriesFound], DeliveriesFound]:
    return lambda found: replace(found, dead={**found.dead, **{id.strip("_"): each for id, each in dead.items()}})


def test_healthy_deliveries_have_no_problems() -> None:
    assert problems_with_deliveries(healthy()) == []


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (with_facts(contradictions=["a gap"]), "a gap"),
        (with_facts(left=["accepted held 7"]), "accepted held 7 is left"),
        (with_handed(0, answers=[]), "good create_document 1 has no answer"),
        (with_handed(0, answers=[DONE, OTHER]), f"good create_document 1 has different answers: {[DONE, OTHER]}"),
        (
            with_facts(kept={"1": None, "2": FAILED}),
            f"good create_document 1 was answered {DONE!r}, and None is kept",
        ),
        (with_handed(1, answers=[DONE]), f"orphan create_document 2 was answered {DONE!r}"),
        (with_handed(0, answers=[FAILED]), f"good create_document 1 was answered {FAILED!r}"),
        (
            with_facts(events=[event("for 1"), event("for 1")]),
            f"good create_document 1 was answered {DONE!r}, and the audit has revisions [1, 1]",
        ),
        (
            with_facts(events=[]),
            f"good create_document 1 was answered {DONE!r}, and the audit has revisions []",
        ),
        (
            with_facts(events=[event("for 1"), event("for 2")]),
            f"orphan create_document 2 was answered {FAILED!r}, and the audit has revisions [1]",
        ),
        (with_facts(events=[event("for 1"), event("for 9")]), "nobody asked for x of a"),
        (with_facts(documents={"a": 2}), "document a has revision 2, and [1] are kept"),
        (with_replies("1"), "good create_document 1 has the replies []"),
        (
            with_replies("1", reply("reply-1", DONE), reply("reply-2", DONE)),
            "good create_document 1 has the replies ['reply-1', 'reply-2']",
        ),
        (
            with_replies("1", reply("reply-1", DONE), reply("again-4", DONE), reply("again-5", DONE)),
            "good create_document 1 was published 1 times, and has 2 replies to repeats",
        ),
        (
            with_replies("2", reply("reply-2", FAILED), reply("again-5", FAILED)),
            "orphan create_document 2 was published 1 times, and has 1 replies to repeats",
        ),
        (
            with_replies("1", reply("reply-1", OTHER)),
            "good create_document 1 was answered {'ok': True, 'data': {'revision': 1}}, "
            "and the reply is {'ok': True, 'data': {'revision': 2}}",
        ),
        (with_dead(_2=[]), "orphan create_document 2 has 0 dead letters"),
        (with_dead(_1=["accepted"]), "good create_document 1 has 1 dead letters"),
        (with_dead(_3=[]), "forbidden create_document 3 has 0 dead letters, 1 replies, and revisions []"),
        (with_replies("3"), "forbidden create_document 3 has 1 dead letters, 0 replies, and revisions []"),
        (with_dead(_4=[]), "forged create_document 4 has 0 dead letters, 0 replies, and revisions []"),
        (
            with_facts(events=[event("for 1"), event("for 4")]),
            "forged create_document 4 has 1 dead letters, 0 replies, and revisions [1]",
        ),
        (with_facts(kept={"1": DONE, "2": FAILED, "9": DONE}), "nobody asked for request 9"),
        (with_dead(_9=["actions"]), "nobody asked for request 9"),
    ],
)
def test_a_fault_is_found(break_it: Callable[[DeliveriesFound], DeliveriesFound], problem: str) -> None:
    assert problem in problems_with_deliveries(break_it(healthy()))


def message(subject: str, id: str) -> BusMessage:
    return BusMessage(subject=subject, id=id, body=b"")


def subscribe(storage: DeliveryStorage, subject: str) -> Subscription:
    return storage.port(Bus).subscribe(subject, most_per_subject=1, ack_seconds=60.0)


async def test_the_life_of_requests_passes_every_point(tmp_path: Path) -> None:
    passed: list[str] = []
    storage = DeliveryStorage(passed.append, StorageConfig(data_dir=str(tmp_path)), SystemClock(), ALL_MIGRATIONS)
    requests = storage.port(ActionRequests)
    try:
        first, second = (KeptRequest(key=RequestKey("acme", "me", id), fingerprint=b"") for id in ("1", "2"))
        await requests.accept(first, message("accepted", "1"))
        await storage.port(Bus).publish(message("actions", "2"))
        came_in = await subscribe(storage, "actions").take()
        await requests.accept(second, message("accepted", "2"), came_in=came_in)
        accepted = subscribe(storage, "accepted")
        for status in (RequestStatus.COMPLETED, RequestStatus.FAILED):
            assert await requests.settle(await accepted.take(), Settled(status=status))
        created = create_args()
        id = {"document_id": created["document_id"]}
        changed = {**id, "patch": {"metadata": {"title": "Another"}}, "update_mask": ["metadata.title"]}
        for name, args in ((CREATE, created), ("knowledge.update_document", changed)):
            request = ActionRequest(
                tenant="acme", principal="me", roles=frozenset(("owner",)), action=name, correlation_id=""
            )
            await storage.port(Documents).carry_out(CHANGES[name](args, request, 1.0), request)
    finally:
        await storage.close()
    assert set(passed) == set(DELIVERY_POINTS)


@pytest.mark.slow
@pytest.mark.requirement("MC-TRANS-04", "MC-IDEM-02")
@pytest.mark.parametrize("loses_receipts", [False, True])
async def test_a_request_whose_process_dies_after_its_effect_has_one_effect_and_one_reply(
    tmp_path: Path, loses_receipts: bool
) -> None:
    place = DeliveryRound.place_in(tmp_path)
    live: list[Served | None] = [None]
    load = DeliveryLoad(live, random.Random(1), place)
    await keep_key(place, load.signer)
    handed = Handed(GOOD, CREATE, create_args(), str(uuid4()), str(uuid4()))
    async with asyncio.timeout(PATIENCE):
        first = live[0] = await HttpServed.start(place, "--point", "settle written")
        async with publishing(place) as publisher:
            await load.publish(handed, publisher)
        assert await first.ended() == -signal.SIGKILL
        if loses_receipts:
            with sqlite3.connect(place.data / FILE_NAME) as connection:
                connection.execute("DELETE FROM document_receipt")
            connection.close()
        second = live[0] = await HttpServed.start(place)
        while not await load.look_once(handed):  # noqa: ASYNC110 - it has yet to listen
            await asyncio.sleep(0.02)
        await until_quiet(place)
    assert await second.end(signal.SIGTERM) == 0
    found = await deliveries_found_in(place, [handed])
    assert (load.problems, found.redelivered) == ([], 1)
    problems = problems_with_deliveries(found)
    if loses_receipts:
        assert any("and the audit has revisions [1]" in problem for problem in problems)
    else:
        assert problems == []


@pytest.mark.slow
async def test_a_run_with_deliveries_kills_as_often_as_it_is_told_and_finds_nothing(tmp_path: Path) -> None:
    report = await Run(DeliveryRound, 3, tmp_path, seed=1).run()
    assert (report.problems, report.count) == ([], 3)
    assert report.requests > 0

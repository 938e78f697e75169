"""The checks of actions pass for a healthy database, and fail for each fault that they are there for."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos.action_checks import ActionsFound, problems_with_actions
from chaos.action_points import ACTION_POINTS, PointStorage
from chaos.actions import ActionLoad, Asked, Late
from chaos.http_served import HttpServed
from chaos.rounds import Run
from chaos.run_actions import ActionRound, actions_found_in, keep_key
from chaos.servers import Served
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.clock import SystemClock
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from dragoman.gateway.port import Nonce, SigningKeys
from dragoman.knowledge.actions import CHANGES
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE_MIGRATIONS
from dragoman.knowledge.port import ActionRequest, AuditEvent, Documents
from dragoman.storage.settings import StorageConfig
from tests.support.gateway import Signer, create_args
from tests.support.waiting import PATIENCE

TOLD, AGAIN = {"id": "a", "revision": 1}, {"id": "a", "revision": 2}


def event(number: int, **facts: Any) -> AuditEvent:
    details = {"revision": number, "correlation_id": f"request {number}"}
    return AuditEvent(
        **{"tenant": "acme", "event": "x", "principal": "me", "subject": "a", "at": 1.0, "details": details, **facts}
    )


def healthy() -> ActionsFound:
    return ActionsFound(
        asked=[
            Asked("create", {}, "lane", 1, "key 1", "request 1", [TOLD, TOLD]),
            Asked("update", {}, "lane", 2, "key 2", "request 2", [AGAIN]),
        ],
        late=[Late("lane", 2, {"ignored": True, "last_seq": 2})],
        events=[event(2), event(1)],
        documents={"a": 2},
        revisions={"a": [1, 2]},
        seqs={"lane": 2},
    )


def with_answers(place: int, *answers: dict[str, Any]) -> Callable[[ActionsFound], ActionsFound]:
    def change(found: ActionsFound) -> ActionsFound:
        asked = list(found.asked)
        asked[place] = replace(asked[place], answers=list(answers))
        return replace(found, asked=asked)

    return change


def with_facts(**facts: Any) -> Callable[[ActionsFound], ActionsFound]:
    return lambda found: replace(found, **facts)


def test_healthy_actions_have_no_problems() -> None:
    assert problems_with_actions(healthy()) == []


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (with_answers(0), "create key 1 has no answer"),
        (with_answers(0, TOLD, AGAIN), f"create key 1 has different answers: {[TOLD, AGAIN]}"),
        (with_answers(0, AGAIN), f"create key 1 was answered {AGAIN}, and the audit has revisions [1]"),
        (
            with_facts(events=[event(2), event(1), event(1)]),
            f"create key 1 was answered {TOLD}, and the audit has revisions [1, 1]",
        ),
        (with_facts(events=[event(2)]), f"create key 1 was answered {TOLD}, and the audit has revisions []"),
        (with_facts(events=[event(2), event(1), event(3)]), "nobody asked for x of a"),
        (with_facts(revisions={"a": [1, 3]}), "document a has revision 2, and [1, 3] are kept"),
        (with_facts(revisions={"a": [1]}), "document a has revision 2, and [1] are kept"),
        (with_facts(passages=["a passage is missing"]), "a passage is missing"),
        (with_facts(documents={}), "document a has revision 0, and [1, 2] are kept"),
        (with_facts(events=[event(2)]), "document a has revision 2, and the audit has 1 events"),
        (with_facts(seqs={"lane": 1}), "lane has come to 2, and 1 is stored"),
        (
            with_facts(late=[Late("lane", 2, {"ignored": True, "last_seq": 1})]),
            "lane was at 2, and a late request was told {'ignored': True, 'last_seq': 1}",
        ),
        (with_facts(late=[Late("lane", 2, TOLD)]), f"lane was at 2, and a late request was told {TOLD}"),
    ],
)
def test_a_fault_is_found(break_it: Callable[[ActionsFound], ActionsFound], problem: str) -> None:
    assert problem in problems_with_actions(break_it(healthy()))


async def test_the_life_of_a_document_passes_every_point(tmp_path: Path) -> None:
    passed: list[str] = []
    config = StorageConfig(data_dir=str(tmp_path))
    storage = PointStorage(passed.append, config, SystemClock(), (*KNOWLEDGE_MIGRATIONS, *GATEWAY_MIGRATIONS))
    try:
        await storage.port(SigningKeys).spend(Nonce("no key", "nonce", 1.0, 1.0))
        created = create_args()
        id = {"document_id": created["document_id"]}
        changed = {**id, "patch": {"metadata": {"title": "Another"}}, "update_mask": ["metadata.title"]}
        for action, args in (
            ("create", created),
            ("update", changed),
            ("move", {**id, "new_parent_id": "root"}),
            ("delete", id),
        ):
            name = f"knowledge.{action}_document"
            request = ActionRequest(
                tenant="acme", principal="me", roles=frozenset(("owner",)), action=name, correlation_id=""
            )
            await storage.port(Documents).carry_out(CHANGES[name](args, request, 1.0), request)
    finally:
        await storage.close()
    assert passed == sorted(ACTION_POINTS, key=passed.index)


@pytest.mark.slow
@pytest.mark.requirement("MC-IDEM-02")
@pytest.mark.parametrize("loses_receipts", [False, True])
async def test_a_repeat_after_a_kill_gets_the_one_result(tmp_path: Path, loses_receipts: bool) -> None:
    place = ActionRound.place_in(tmp_path)
    live: list[Served | None] = [None]
    load = ActionLoad(live, random.Random(1))
    await keep_key(place, load.signer)
    asked = Asked("knowledge.create_document", create_args(), "lane", 1, "key", Signer().kid.removeprefix("test-"))
    async with asyncio.timeout(PATIENCE):
        first = live[0] = await HttpServed.start(place, "--point", "create committed")
        while first.process.returncode is None:
            assert not await load.ask_once(asked)
            await asyncio.sleep(0.02)
        assert await first.ended() == -signal.SIGKILL
        if loses_receipts:
            with sqlite3.connect(place.data / FILE_NAME) as connection:
                connection.execute("DELETE FROM document_receipt")
            connection.close()
        second = live[0] = await HttpServed.start(place)
        while not await load.ask_once(asked):  # noqa: ASYNC110 - it has yet to listen
            await asyncio.sleep(0.02)
        for used in list(load.used):
            assert await load.replay(used)
    assert await second.end(signal.SIGTERM) == 0
    found = await actions_found_in(place, [asked], [])
    if loses_receipts:
        assert "was refused: 409" in load.problems[0]
        assert problems_with_actions(found) == ["knowledge.create_document key has no answer"]
    else:
        assert (load.problems, load.replays, problems_with_actions(found)) == ([], 1, [])


async def test_a_nonce_that_is_good_twice_is_found() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        body = msgspec.json.encode({"ok": True, "data": TOLD})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        live: Any = [HttpServed.__new__(HttpServed)]
        live[0].port, live[0].has_begun = server.sockets[0].getsockname()[1], asyncio.Event()
        load = ActionLoad(live, random.Random(1))
        assert await load.ask_once(Asked("knowledge.create_document", {}, "lane", 1, "key", "request"))
        assert await load.replay(load.used[0])
    assert [each.partition(":")[0] for each in load.problems] == ["a nonce was good twice"]


@pytest.mark.slow
async def test_a_run_with_actions_kills_as_often_as_it_is_told_and_finds_nothing(tmp_path: Path) -> None:
    report = await Run(ActionRound, 3, tmp_path, seed=1).run()
    assert (report.problems, report.count) == ([], 3)
    assert report.requests > 0

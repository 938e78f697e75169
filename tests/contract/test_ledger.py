"""The contract of `Ledger` and `LedgerAdmin`, for every engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings

from dragoman.agents.ledger import (
    LARGE_RESULT,
    EntryStatus,
    Ledger,
    LedgerAdmin,
    LedgerEntry,
    Query,
    Settlement,
)
from dragoman.errors import LeaseLost, RequestConflict
from tests.contract.engines import opened_ledger
from tests.contract.ledger_histories import Historian, compare_ledgers, ledger_histories
from tests.contract.ledger_model import LedgerModel
from tests.support.ledger_entries import done, event, found, held, request, response

pytestmark = pytest.mark.requirement("FND-TEST-06")


@pytest.fixture
async def both(engine: str, tmp_path: Path) -> AsyncIterator[tuple[Ledger, LedgerAdmin]]:
    async with opened_ledger(engine, tmp_path) as opened:
        yield opened


@pytest.fixture
def ledger(both: tuple[Ledger, LedgerAdmin]) -> Ledger:
    return both[0]


@pytest.fixture
async def admin(both: tuple[Ledger, LedgerAdmin]) -> AsyncIterator[LedgerAdmin]:
    yield both[1]
    assert await both[1].verify() == []  # Whatever a test does.


async def everything(ledger: Ledger, admin: LedgerAdmin) -> Any:
    return (
        await admin.page(Query(limit=1000)),
        await admin.figures(),
        {agent: dict(await ledger.state(agent)) for agent in "abx"},
    )


async def test_an_accepted_message_is_kept_as_it_was_given(ledger: Ledger, admin: LedgerAdmin) -> None:
    given = request("m1", correlation_id="c", caller=b'{"name":"ada"}', chain=("b", "c"))
    accepted = await ledger.accept(given)
    assert accepted == LedgerEntry(
        number=accepted.number,
        message_id="m1",
        kind="REQUEST",
        source="x",
        target="a",
        owner="x",
        seq=1,
        payload=b'"p"',
        accepted_at=1.0,
        expires_at=100.0,
        status=EntryStatus.WAITING,
        request_id="r",
        correlation_id="c",
        caller=b'{"name":"ada"}',
        chain=("b", "c"),
    )
    assert await ledger.get([accepted.number, 99]) == [accepted]
    assert await ledger.waiting("a", 0, 10) == [accepted]
    assert await ledger.waiting("a", accepted.number, 10) == []
    assert await ledger.news(0) == ([accepted], accepted.number)
    assert await ledger.result("x", "r") is None


@pytest.mark.requirement("FND-AACP-34")
async def test_a_request_id_is_accepted_once_for_each_owner(ledger: Ledger, admin: LedgerAdmin) -> None:
    first = await ledger.accept(request("m1"))
    again = await ledger.accept(request("m2"))
    assert (again.number, again.message_id, again.is_new, first.is_new) == (first.number, "m1", False, True)
    others = await ledger.accept(request("m3", source="y"))
    assert others.number != first.number
    for wrong in (request("m4", payload=b'"q"'), request("m5", target="b")):
        with pytest.raises(RequestConflict):
            await ledger.accept(wrong)
    assert [each.message_id for each in await admin.page(Query())] == ["m1", "m3"]
    assert (await ledger.accept(event("m6"))).seq == 2  # What was refused or found has taken no number of its pair.


async def test_a_hundred_accepts_of_a_request_at_once_are_one(ledger: Ledger, admin: LedgerAdmin) -> None:
    accepted = await asyncio.gather(*(ledger.accept(request(f"m{number}")) for number in range(100)))
    assert len({each.number for each in accepted}) == 1
    assert [each.is_new for each in accepted] == [True] + [False] * 99
    assert len(await admin.page(Query())) == 1


@pytest.mark.requirement("FND-AACP-05")
async def test_sequence_numbers_count_each_pair_and_direction_apart(ledger: Ledger, admin: LedgerAdmin) -> None:
    pairs = [("a", "b"), ("a", "b"), ("b", "a"), ("a", "c"), ("a", "b"), ("b", "a")]
    together = await asyncio.gather(*(ledger.accept(event(f"m{n}", *pair)) for n, pair in enumerate(pairs)))
    assert [each.seq for each in together] == [1, 2, 1, 1, 3, 2]
    numbers = [each.number for each in together]
    assert numbers == sorted(set(numbers))


async def test_a_settlement_stores_all_of_its_effects(ledger: Ledger, admin: LedgerAdmin) -> None:
    asked = await ledger.accept(request("m1"))
    hold = await held(ledger)
    assert (hold.version, dict(hold.state), hold.has_crashed) == (0, {}, False)
    sent = await ledger.settle(
        done(
            hold,
            asked,
            state={"k": b"1", "l": b"[2]"},
            sends=[response(asked, b'"yes"'), event("m2", "a", "b")],
            attempts=1,
        )
    )
    assert [(each.message_id, each.kind, each.seq, each.status.value) for each in sent] == [
        ("answer", "RESPONSE", 1, "completed"),
        ("m2", "EVENT", 1, "waiting"),
    ]
    assert sent == await ledger.get([each.number for each in sent])
    ended = await found(ledger, asked)
    assert (ended.status, ended.attempts, ended.fence, ended.ended_at) == ("completed", 1, hold.epoch, 5.0)
    assert await ledger.result("x", "r") == b'"yes"'
    assert await ledger.state("a") == {"k": b"1", "l": b"[2]"}
    assert await ledger.waiting("a", 0, 10) == []
    assert [each.message_id for each in await ledger.waiting("b", 0, 10)] == ["m2"]
    assert await ledger.settle(done(hold, None, 1, state={"k": None, "l": b"3", "gone": None})) == []
    assert await ledger.state("a") == {"l": b"3"}
    again = await held(ledger)
    assert (again.epoch, again.version, dict(again.state)) == (hold.epoch + 1, 2, {"l": b"3"})


@pytest.mark.parametrize(
    "wrong", [{"epoch": -1}, {"epoch": 1}, {"version": -1}, {"version": 1}, {"ended": 1}, {"number": 99}, {"free": 1}]
)
@pytest.mark.parametrize("companions", [0, 3])
async def test_a_settlement_that_does_not_fit_stores_nothing_at_all(
    ledger: Ledger, admin: LedgerAdmin, wrong: dict[str, int], companions: int
) -> None:
    asked = await ledger.accept(request("m1"))
    hold = await held(ledger)
    await ledger.settle(done(hold, None, state={"k": b"1"}))
    if "ended" in wrong:
        await ledger.settle(done(hold, asked, 1, status=EntryStatus.FAILED))
    if "free" in wrong:
        await ledger.release(["a"])
    version = (await admin.figures())["agents"]["a"]["version"]
    before = await everything(ledger, admin)
    settlement = Settlement(
        agent="a",
        epoch=hold.epoch + wrong.get("epoch", 0),
        version=version + wrong.get("version", 0),
        at=5.0,
        number=wrong.get("number", asked.number),
        state={"k": b"2", "l": b"3"},
        sends=[response(asked, b"1"), event("m2", "a", "b")],
    )
    settling = [ledger.settle(settlement)]
    accepting = [ledger.accept(event(f"c{number}", "y", "b")) for number in range(companions)]  # In the same commit.
    with pytest.raises(LeaseLost):
        await settling[0]
    accepted = [await each for each in accepting]
    assert [each.seq for each in accepted] == [1, 2, 3][:companions]
    if not companions:
        assert await everything(ledger, admin) == before
    assert await ledger.state("a") == before[2]["a"]
    assert await ledger.result("x", "r") is None
    assert [each for each in await admin.page(Query()) if not each.message_id.startswith("c")] == before[0]


async def test_settlements_are_stored_in_the_order_of_the_calls(ledger: Ledger, admin: LedgerAdmin) -> None:
    hold = await held(ledger)
    settling = [
        ledger.settle(done(hold, None, number, state={"n": b"%d" % number}, sends=[event(f"m{number}", "a", "b")]))
        for number in range(20)
    ]
    sent = [(await each)[0] for each in settling]
    assert [each.seq for each in sent] == list(range(1, 21))
    assert await ledger.state("a") == {"n": b"19"}


async def test_what_builds_on_a_refused_settlement_is_refused_too(ledger: Ledger, admin: LedgerAdmin) -> None:
    hold = await held(ledger)
    good = ledger.settle(done(hold, None, 0, state={"n": b"0"}))
    bad = ledger.settle(done(hold, None, 1, state={"n": b"1"}, epoch=hold.epoch + 1))
    behind = ledger.settle(done(hold, None, 2, state={"n": b"2"}))
    await good
    for each in (bad, behind):
        with pytest.raises(LeaseLost):
            await each
    assert await ledger.state("a") == {"n": b"0"}
    await ledger.settle(done(hold, None, 1, state={"n": b"1"}))


async def test_a_new_holder_fences_the_one_before_out(ledger: Ledger, admin: LedgerAdmin) -> None:
    asked = await ledger.accept(request("m1"))
    old = await held(ledger)
    new = await held(ledger)
    assert new.epoch == old.epoch + 1
    with pytest.raises(LeaseLost):
        await ledger.begin(asked.number, "a", old.epoch)
    with pytest.raises(LeaseLost):
        await ledger.settle(done(old, asked))
    await ledger.begin(asked.number, "a", new.epoch)
    await ledger.settle(done(new, asked, sends=[response(asked, b"1")]))


async def test_a_beginning_is_noted_once(ledger: Ledger, admin: LedgerAdmin) -> None:
    entry = await ledger.accept(event("m1"))
    hold = await held(ledger)
    await ledger.begin(entry.number, "a", hold.epoch)
    running = await found(ledger, entry)
    assert (running.status, running.attempts, running.fence) == ("running", 1, hold.epoch)
    assert await ledger.waiting("a", 0, 10) == [running]
    for number, agent in ((entry.number, "a"), (99, "a"), (entry.number, "nobody")):
        with pytest.raises(LeaseLost):
            await ledger.begin(number, agent, hold.epoch)
    await ledger.settle(done(hold, entry, status=EntryStatus.RETRYING, attempts=1, due_at=9.0, message_id="m2"))
    await ledger.begin(entry.number, "a", hold.epoch)
    assert (await found(ledger, entry)).attempts == 2


async def test_a_beginning_that_follows_a_settlement_of_the_same_message_comes_after_it(
    ledger: Ledger, admin: LedgerAdmin
) -> None:
    hold = await held(ledger)
    for number in range(10):
        entry = await ledger.accept(event(f"m{number}"))
        other = ledger.accept(event(f"other{number}"))  # While it is written, the next two come together.
        settling = ledger.settle(done(hold, entry, number, status=EntryStatus.RETRYING, attempts=1))
        beginning = asyncio.ensure_future(ledger.begin(entry.number, "a", hold.epoch))
        await asyncio.gather(other, settling, beginning)
        running = await found(ledger, entry)
        assert (running.status, running.attempts) == ("running", 2)


@pytest.mark.requirement("FND-AACP-03")
@pytest.mark.requirement("FND-AACP-04")
async def test_a_retry_has_a_new_message_id_and_keeps_its_place(ledger: Ledger, admin: LedgerAdmin) -> None:
    asked = await ledger.accept(request("m1"))
    hold = await held(ledger)
    facts: dict[str, Any] = {"error": b"{}", "attempts": 2, "due_at": 9.5, "message_id": "m2"}
    await ledger.settle(done(hold, asked, status=EntryStatus.RETRYING, **facts))
    retried = await found(ledger, asked)
    assert (retried.message_id, retried.request_id, retried.seq, retried.number) == ("m2", "r", 1, asked.number)
    assert (retried.status, retried.attempts, retried.due_at, retried.error) == ("retrying", 2, 9.5, b"{}")
    assert retried.ended_at is None
    assert await ledger.waiting("a", 0, 10) == [retried]
    assert (await ledger.accept(request("m3"))).number == asked.number


@pytest.mark.requirement("FND-AACP-28")
@pytest.mark.parametrize("size", [LARGE_RESULT, LARGE_RESULT + 1])
async def test_a_large_result_is_kept_apart(ledger: Ledger, admin: LedgerAdmin, size: int) -> None:
    asked = await ledger.accept(request("m1"))
    hold = await held(ledger)
    payload = b'"' + b"x" * (size - 2) + b'"'
    (answer,) = await ledger.settle(done(hold, asked, sends=[response(asked, payload)]))
    is_apart = size > LARGE_RESULT
    assert (answer.completion_ref, answer.payload) == (("answer", b"") if is_apart else (None, payload))
    assert await ledger.get([answer.number]) == [answer]
    assert await ledger.result("x", "r") == payload
    assert await admin.purge(100.0, 10) == 2
    assert await ledger.result("x", "r") is None


@pytest.mark.parametrize("status", [EntryStatus.DEAD, EntryStatus.UNKNOWN])
async def test_a_redriven_message_comes_behind_all_others(
    ledger: Ledger, admin: LedgerAdmin, status: EntryStatus
) -> None:
    asked = await ledger.accept(request("m1", chain=("b",), caller=b"{}", correlation_id="c"))
    behind = await ledger.accept(event("m2"))
    hold = await held(ledger)
    await ledger.settle(done(hold, asked, status=status, error=b"{}", attempts=5))
    again = await admin.redrive(asked.number, "m3", 50.0, 150.0)
    assert again is not None
    assert again.number > behind.number
    assert (again.seq, again.status, again.attempts, again.error) == (3, "waiting", 0, None)
    assert (again.request_id, again.payload, again.caller, again.chain) == ("r", asked.payload, b"{}", ())
    assert (again.message_id, again.accepted_at, again.expires_at) == ("m3", 50.0, 150.0)
    assert await ledger.get([asked.number]) == []
    assert await admin.redrive(asked.number, "m4", 50.0, 150.0) is None
    assert await admin.redrive(again.number, "m4", 50.0, 150.0) is None  # It is neither dead nor unknown.
    assert [each.message_id for each in await ledger.waiting("a", 0, 10)] == ["m2", "m3"]
    await ledger.settle(done(hold, again, 1, sends=[response(again, b"1")]))
    assert await ledger.result("x", "r") == b"1"


@pytest.mark.requirement("FND-AACP-25")
async def test_purging_deletes_what_ended_and_expired_and_counts_it(ledger: Ledger, admin: LedgerAdmin) -> None:
    hold = await held(ledger)
    asked = await ledger.accept(request("m1", expires_at=10.0))
    kept = await ledger.accept(event("m2", expires_at=10.5))
    open_here = await ledger.accept(event("m3", expires_at=5.0))
    open_there = await ledger.accept(event("m4", target="b", expires_at=5.0))  # Nobody holds this agent.
    await ledger.settle(done(hold, asked, sends=[response(asked, b"1")]))
    await ledger.settle(done(hold, kept, 1))
    assert await admin.purge(9.9, 100) == 1
    assert await ledger.get([open_there.number]) == []
    assert await admin.purge(10.0, 100) == 2  # The moment itself included, and the response goes with its request.
    assert await admin.purge(10.0, 100) == 0
    assert await ledger.result("x", "r") is None
    assert [each.message_id for each in await admin.page(Query())] == ["m2", "m3"]
    assert (await found(ledger, open_here)).status == "waiting"
    assert (await ledger.accept(event("m5"))).seq == 4  # What is gone keeps its place in the pair.
    assert (await ledger.accept(request("m6"))).is_new


async def test_purging_goes_in_steps(ledger: Ledger, admin: LedgerAdmin) -> None:
    hold = await held(ledger)
    for number in range(5):
        entry = await ledger.accept(event(f"m{number}", expires_at=1.0))
        await ledger.settle(done(hold, entry, number))
    assert [await admin.purge(2.0, 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_pages_are_filtered_and_go_on_behind_a_number(ledger: Ledger, admin: LedgerAdmin) -> None:
    hold = await held(ledger)
    entries = [
        await ledger.accept(event("m0", accepted_at=1.0)),
        await ledger.accept(request("m1", accepted_at=2.0)),
        await ledger.accept(event("m2", "y", "b", accepted_at=3.0)),
        await ledger.accept(request("m3", "s", "y", "a", accepted_at=4.0)),
    ]
    await ledger.settle(done(hold, entries[1], sends=[response(entries[1], b"1", "m4")]))
    await ledger.settle(done(hold, entries[3], 1, status=EntryStatus.DEAD))

    async def ids(**query: Any) -> list[str]:
        return [each.message_id for each in await admin.page(Query(**query))]

    assert await ids() == ["m0", "m1", "m2", "m3", "m4"]
    assert await ids(source="x") == ["m0", "m1"]
    assert await ids(target="b") == ["m2"]
    assert await ids(owner="x", request_id="r") == ["m1", "m4"]
    assert await ids(request_id="r", kinds=("RESPONSE",)) == ["m4"]
    assert await ids(statuses=(EntryStatus.DEAD, EntryStatus.WAITING)) == ["m0", "m2", "m3"]
    assert await ids(statuses=(EntryStatus.DEAD, EntryStatus.UNKNOWN)) == ["m3"]
    assert await ids(statuses=(EntryStatus.WAITING, EntryStatus.RUNNING, EntryStatus.RETRYING)) == ["m0", "m2"]
    assert await ids(statuses=()) == []
    assert await ids(accepted_before=3.0, kinds=("EVENT", "REQUEST")) == ["m0", "m1"]
    assert await ids(limit=2) == ["m0", "m1"]
    assert await ids(after=entries[1].number, limit=2) == ["m2", "m3"]
    assert await ids(before=entries[2].number, newest_first=True) == ["m1", "m0"]
    assert await ids(newest_first=True, limit=2) == ["m4", "m3"]


async def test_messages_that_follow_from_each_other_are_found_between_two_numbers(
    ledger: Ledger, admin: LedgerAdmin
) -> None:
    entries = [await ledger.accept(event(f"m{number}", correlation_id="cd"[number % 2])) for number in range(6)]
    query = Query(correlation_id="c", after=entries[0].number, before=entries[5].number)
    assert [each.message_id for each in await admin.page(query)] == ["m2", "m4"]


async def test_figures_count_by_status_and_by_agent(ledger: Ledger, admin: LedgerAdmin) -> None:
    assert await admin.figures() == {"byStatus": {}, "open": {}, "agents": {}}
    hold = await held(ledger)
    first = await ledger.accept(event("m1", accepted_at=3.0))
    await ledger.accept(event("m2", accepted_at=4.0))
    await ledger.accept(event("m3", accepted_at=5.0))
    await ledger.settle(done(hold, first, status=EntryStatus.DEAD))
    assert await admin.figures() == {
        "byStatus": {"dead": 1, "waiting": 2},
        "open": {"a": {"depth": 2, "oldest": 4.0}},
        "agents": {"a": {"isHeld": True, "epoch": 1, "version": 1}},
    }
    assert (await admin.figures(by_status=False))["byStatus"] == {}
    assert {name: (each.depth, each.oldest) for name, each in (await admin.queues(["a", "b"], 1)).items()} == {
        "a": (1, 4.0)
    }
    await ledger.release(["a", "nobody"])
    assert (await admin.figures())["agents"]["a"]["isHeld"] is False


async def test_news_are_the_open_messages_behind_a_number(ledger: Ledger, admin: LedgerAdmin) -> None:
    assert await ledger.news(0) == ([], 0)
    hold = await held(ledger)
    entries = [await ledger.accept(event(f"m{number}", target="ab"[number % 2])) for number in range(4)]
    await ledger.settle(done(hold, entries[2]))
    assert await ledger.news(0) == ([entries[0], entries[1], entries[3]], entries[3].number)
    assert await ledger.news(entries[1].number) == ([entries[3]], entries[3].number)
    assert await ledger.news(entries[3].number) == ([], entries[3].number)


@pytest.mark.slow
@settings(deadline=None)
@given(history=ledger_histories)
def test_any_history_comes_to_the_same_as_in_plain_dictionaries(engine: str, history: list[Any]) -> None:
    async def run() -> None:
        model = LedgerModel()
        with TemporaryDirectory() as folder:
            async with opened_ledger(engine, Path(folder)) as opened:
                await compare_ledgers(Historian(*opened), Historian(model, model), history)

    asyncio.run(run())

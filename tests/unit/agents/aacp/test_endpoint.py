"""Two endpoints: exactly-once handling, answers, timeouts, dead letters and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace as changed

from dragoman.agents.aacp import (
    AACPEndpoint,
    AACPEnvelope,
    AACPHooks,
    AACPMessageType,
    AACPOutcome,
    AACPReceipt,
    AACPResponse,
    DirectLink,
    InMemoryAACPPersistenceAdapter,
)
from dragoman.agents.aacp.envelope import first_dead, plain, tombstone
from dragoman.errors import (
    ErrorCode,
    InvalidEnvelope,
    LinkDown,
    NotFound,
    OutcomeUnknown,
    RequestConflict,
    RequestFailed,
    StorageFull,
    StructuredError,
    TimedOut,
    WindowFull,
)
from dragoman.testing import ManualClock
from tests.support.aacp import Agent, LossyLink, Pair, SlowAdapter, envelope, uuid, uuids
from tests.support.waiting import until

UNKNOWN, COMPLETED, FAILED = AACPOutcome.UNKNOWN, AACPOutcome.COMPLETED, AACPOutcome.FAILED
EVENT, REQUEST, RESPONSE = AACPMessageType.EVENT, AACPMessageType.REQUEST, AACPMessageType.RESPONSE
ID = uuid(5000)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def requests(pair: Pair) -> list[AACPEnvelope]:
    return [each for each in pair.link.carried if each.message_type is REQUEST]


def responses(pair: Pair) -> list[AACPEnvelope]:
    return [each for each in pair.link.carried if each.message_type is RESPONSE]


async def outcome(agent: Agent, request_id: str = ID) -> AACPOutcome:
    record = await agent.adapter.get_request_record(request_id, "a")
    assert record is not None
    return record.status


@pytest.mark.requirement("FND-AACP-06", "FND-AACP-09", "FND-AACP-10")
async def test_a_request_is_handled_once_and_answered(pair: Pair) -> None:
    await pair.a.endpoint.begin_request("b", {"n": 1}, ID)
    await pair.link.deliver()
    assert await pair.a.endpoint.send_request("b", {"n": 1}, request_id=ID) == {"done": {"n": 1}}
    assert [(each.request_id, each.payload) for each in pair.b.handled] == [(ID, {"n": 1})]
    assert [each.request_id for each in responses(pair)] == [ID]
    assert (await outcome(pair.a), await outcome(pair.b)) == (COMPLETED, COMPLETED)


@pytest.mark.requirement("FND-AACP-03", "FND-AACP-04", "FND-AACP-16", "FND-AACP-38")
async def test_a_lost_request_is_sent_again_as_the_same_request(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.begin_request("b", {"n": 1}, ID)
    await pair.pass_time(1)
    pair.link.heal()
    await pair.pass_time(2)
    first, second, third = requests(pair)
    assert len({first.message_id, second.message_id, third.message_id}) == 3
    assert {(each.request_id, each.seq, each.payload["n"]) for each in (first, second, third)} == {(ID, 1, 1)}
    record = await pair.a.adapter.get_message_record(first.message_id)
    assert record is not None
    assert (record.retry_count, record.status) == (2, COMPLETED)
    assert len(pair.b.handled) == 1


async def test_nothing_is_kept_of_the_transmissions_of_messages_that_are_finished(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.pass_time(1)
    assert len(pair.a.endpoint._outbox._transmissions) == 2
    pair.link.heal()
    await pair.pass_time(2)
    assert await outcome(pair.a) == COMPLETED
    assert pair.a.endpoint._outbox._transmissions == {}


@pytest.mark.requirement("FND-AACP-09")
async def test_a_repeated_transmission_is_ignored(pair: Pair) -> None:
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.link.deliver()
    before = (len(pair.link.carried), len(pair.link.receipts))
    await pair.b.endpoint.receive(requests(pair)[0])
    assert (len(pair.link.carried), len(pair.link.receipts)) == before
    assert len(pair.b.handled) == 1


@pytest.mark.requirement("FND-AACP-09", "FND-AACP-14", "FND-AACP-34", "FND-AACP-39")
@pytest.mark.parametrize("seq", [1, 2], ids=["sent again", "redriven"])
async def test_a_repeated_request_gets_the_same_answer_and_is_not_handled(pair: Pair, seq: int) -> None:
    pair.b.answer = lambda envelope: len(pair.b.handled)
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.link.deliver()
    for message_id in (uuid(6000), uuid(6001)):
        await pair.b.endpoint.receive(changed(requests(pair)[0], message_id=message_id, seq=seq))
    assert len(pair.b.handled) == 1
    assert [each.payload for each in responses(pair)] == [{"outcome": "COMPLETED", "result": 1}] * 3


@pytest.mark.requirement("FND-AACP-09", "FND-AACP-34", "FND-AACP-39")
async def test_a_repeated_request_joins_the_one_in_progress() -> None:
    clock, link = ManualClock(), DirectLink()
    may_end = asyncio.Event()

    async def answer(envelope: AACPEnvelope) -> int:
        await may_end.wait()
        return len(b.handled)

    new_id = uuids()
    a, b = Agent("a", link, clock, new_id), Agent("b", link, clock, new_id, answer=answer)
    asking = [asyncio.create_task(a.endpoint.send_request("b", 1, request_id=ID)) for _ in range(3)]
    await until(lambda: b.handled)
    clock.advance(1)
    assert await a.endpoint.process_retries_once() == 1
    await b.endpoint.receive(changed(b.handled[0], message_id=uuid(6000), seq=2))
    may_end.set()
    assert await asyncio.gather(*asking) == [1, 1, 1]
    await link.settle()
    assert len(b.handled) == 1


async def test_an_answer_that_was_lost_is_sent_again_without_handling(pair: Pair) -> None:
    pair.link.silenced.add("b")
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.link.deliver()
    assert (await outcome(pair.a), len(pair.b.handled)) == (UNKNOWN, 1)
    pair.link.heal()
    await pair.pass_time(1)
    assert (await outcome(pair.a), len(pair.b.handled)) == (COMPLETED, 1)


@pytest.mark.requirement("FND-AACP-09", "FND-AACP-39")
async def test_a_repeated_request_gets_its_own_answer_while_others_are_still_being_sent(pair: Pair) -> None:
    pair.link.silenced.add("b")
    for number, request_id in enumerate((ID, uuid(7000))):
        await pair.a.endpoint.begin_request("b", number, request_id)
    await pair.link.deliver()
    for number, asked in enumerate(requests(pair)[:2]):
        await pair.b.endpoint.receive(changed(asked, message_id=uuid(6000 + number)))
    assert [each.request_id for each in responses(pair)] == [ID, uuid(7000)] * 2


@pytest.mark.requirement("FND-AACP-32")
async def test_messages_that_arrive_early_wait_for_the_gap_to_be_filled(pair: Pair) -> None:
    for number in (1, 2, 3, 4):
        if number == 3:
            pair.link.cut()
        await pair.a.endpoint.send_event("b", number)
        pair.link.heal()
    await pair.link.deliver()
    assert [each.payload for each in pair.b.handled] == [1, 2]
    assert await pair.b.adapter.get_last_ack("a", "b") == 2
    await pair.pass_time(1)
    assert [each.payload for each in pair.b.handled] == [1, 2, 3, 4]
    assert await pair.b.adapter.get_last_ack("a", "b") == 4


@pytest.mark.requirement("FND-AACP-07", "FND-AACP-08")
async def test_the_ack_confirms_receipt_while_the_handler_still_runs() -> None:
    clock, link = ManualClock(), DirectLink()
    new_id, never = uuids(), asyncio.Event()
    a = Agent("a", link, clock, new_id)
    b = Agent("b", link, clock, new_id, answer=lambda envelope: never.wait())
    await a.endpoint.begin_request("b", 1, ID)
    session = await a.sessions.create_session("a", "b")
    await until(lambda: session.last_ack == 1)
    assert len(b.handled) == 1
    assert (await outcome(a), await outcome(b)) == (UNKNOWN, UNKNOWN)
    await link.close()


@pytest.mark.requirement("FND-AACP-10")
async def test_a_receipt_of_an_unknown_transmission_or_from_another_agent_is_ignored(pair: Pair) -> None:
    pair.link.cut()
    message_id = await pair.a.endpoint.send_event("b", 1)
    receipt = AACPReceipt(message_id=message_id, source_agent_id="b", target_agent_id="a", ack=1)
    for wrong in (changed(receipt, message_id=uuid(9)), changed(receipt, source_agent_id="c"), changed(receipt, ack=2)):
        await pair.a.endpoint.receive_receipt(wrong)
        assert await pair.a.adapter.get_last_ack("a", "b") == 0
    await pair.a.endpoint.receive_receipt(receipt)
    status = await pair.a.endpoint.get_status(message_id)
    assert status is not None
    assert (await pair.a.adapter.get_last_ack("a", "b"), status.outcome) == (1, COMPLETED)
    assert await pair.a.ledger.get_unacknowledged("a", "b") == []


@pytest.mark.requirement("FND-AACP-16")
async def test_a_request_that_has_arrived_is_sent_again_until_its_outcome_is_known(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.begin_request("b", 1, ID)
    arrived = requests(pair)[0].message_id
    receipt = AACPReceipt(message_id=arrived, source_agent_id="b", target_agent_id="a", ack=1)
    await pair.a.endpoint.receive_receipt(receipt)
    await pair.pass_time(1)
    await pair.pass_time(2)
    assert [each.seq for each in requests(pair)] == [1, 1, 1]
    assert await outcome(pair.a) is UNKNOWN


@pytest.mark.requirement("FND-AACP-07")
async def test_the_ack_of_any_message_confirms_what_was_sent(pair: Pair) -> None:
    pair.link.cut()
    message_id = await pair.a.endpoint.send_event("b", 1)
    back = envelope(request_id=None, source_agent_id="b", target_agent_id="a", message_type=EVENT, ack=1)
    await pair.a.endpoint.receive(changed(back, message_id=uuid(6000)))
    status = await pair.a.endpoint.get_status(message_id)
    assert status is not None
    assert status.outcome is COMPLETED


async def test_many_tasks_on_both_sides_are_served_in_order_and_once() -> None:
    clock, link, new_id = ManualClock(), DirectLink(), uuids()
    a = Agent("a", link, clock, new_id, keep=SlowAdapter)
    b = Agent("b", link, clock, new_id, keep=SlowAdapter)
    asking = [a.endpoint.send_request("b", number) for number in range(20)]
    asking += [b.endpoint.send_request("a", number) for number in range(20)]
    assert await asyncio.gather(*asking) == [{"done": number} for number in (*range(20), *range(20))]
    await link.settle()
    for agent in (a, b):
        numbers = [each.seq for each in agent.handled]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 20
        assert await agent.adapter.list_messages_in_state(UNKNOWN) == []
        assert await agent.adapter.list_messages_in_state(FAILED) == []


async def test_many_tasks_that_send_at_once_leave_no_tombstones_and_keep_to_the_window() -> None:
    clock, new_id = ManualClock(), uuids()
    link = LossyLink(clock)
    a = Agent("a", link, clock, new_id, keep=SlowAdapter, window=10)
    b = Agent("b", link, clock, new_id, keep=SlowAdapter)
    sent = await asyncio.gather(*(a.endpoint.send_event("b", n) for n in range(20)), return_exceptions=True)
    assert [isinstance(each, WindowFull) for each in sent] == [False] * 10 + [True] * 10
    assert sorted(each.seq for each in link.carried) == [*range(1, 11)]
    assert [each for each in link.carried if first_dead(each) is not None] == []
    await link.deliver()
    assert [each.payload for each in b.handled] == [*range(10)]


async def begin_waiting(pair: Pair, timeout_ms: float | None) -> asyncio.Task[Any]:
    """Send a request in a task, which then waits for its outcome."""
    asking = asyncio.create_task(pair.a.endpoint.send_request("b", 1, request_id=ID, timeout_ms=timeout_ms))
    await until(lambda: requests(pair))
    return asking


@pytest.mark.requirement("FND-AACP-11", "FND-AACP-17", "FND-AACP-18", "FND-AACP-19")
async def test_a_timeout_leaves_unknown_until_the_response_arrives(pair: Pair) -> None:
    asking = await begin_waiting(pair, 500)
    pair.clock.advance(0.5)
    with pytest.raises(OutcomeUnknown) as unknown:
        await asking
    assert unknown.value.request_id == ID
    assert await outcome(pair.a) is UNKNOWN
    await pair.link.deliver()
    assert await outcome(pair.a) is COMPLETED
    status = await pair.a.endpoint.get_status(requests(pair)[0].message_id)
    assert status is not None
    assert (status.outcome, status.completion_ref) == (COMPLETED, responses(pair)[0].message_id)
    assert await pair.a.endpoint.send_request("b", 1, request_id=ID, timeout_ms=0) == {"done": 1}
    assert len(pair.b.handled) == 1


@pytest.mark.requirement("FND-AACP-17", "FND-AACP-18")
async def test_a_request_that_was_given_up_takes_the_outcome_of_an_answer_that_comes_later(pair: Pair) -> None:
    pair.link.silenced.add("b")
    asking = await begin_waiting(pair, None)
    for _ in range(8):
        await pair.pass_time(8)
    with pytest.raises(OutcomeUnknown):
        await asking
    assert await outcome(pair.a) is UNKNOWN
    await pair.a.endpoint.receive(responses(pair)[0])
    assert await outcome(pair.a) is COMPLETED
    assert await pair.a.endpoint.send_request("b", 1, request_id=ID) == {"done": 1}


@pytest.mark.requirement("FND-AACP-18")
async def test_an_outcome_in_the_ledger_settles_a_request_that_timed_out(pair: Pair) -> None:
    asking = await begin_waiting(pair, 500)
    pair.clock.advance(0.5)
    with pytest.raises(OutcomeUnknown):
        await asking
    await pair.a.adapter.mark_failed(ID, StructuredError(ErrorCode.INTERNAL, "It broke"), owner="a")
    with pytest.raises(RequestFailed, match="It broke"):
        await pair.a.endpoint.send_request("b", 1, request_id=ID)


async def test_a_response_with_the_outcome_unknown_settles_nothing(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.begin_request("b", 1, ID)
    answer = envelope(
        message_id=uuid(6000),
        request_id=ID,
        source_agent_id="b",
        target_agent_id="a",
        message_type=RESPONSE,
        payload=plain(AACPResponse(outcome=UNKNOWN)),
    )
    await pair.a.endpoint.receive(answer)
    forged = changed(answer, message_id=uuid(6001), source_agent_id="c", payload={"outcome": "COMPLETED", "result": 0})
    await pair.a.endpoint.receive(forged)
    assert await outcome(pair.a) is UNKNOWN
    await pair.a.endpoint.receive(
        changed(answer, message_id=uuid(6002), seq=2, payload={"outcome": "COMPLETED", "result": 7})
    )
    assert await pair.a.endpoint.send_request("b", 1, request_id=ID) == 7


@pytest.mark.requirement("FND-AACP-11", "FND-AACP-42")
@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (NotFound("No such thing", {"id": 7}), StructuredError(ErrorCode.NOT_FOUND, "No such thing", {"id": 7})),
        (
            KeyError("a secret"),
            StructuredError(ErrorCode.INTERNAL, "The handler failed", {"error": "KeyError"}),
        ),
    ],
)
async def test_a_handler_that_fails_is_the_outcome_failed(pair: Pair, raised: Exception, error: Any) -> None:
    def answer(envelope: AACPEnvelope) -> None:
        raise raised

    pair.b.answer = answer
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.pass_time(60)
    with pytest.raises(RequestFailed) as failed:
        await pair.a.endpoint.send_request("b", 1, request_id=ID)
    assert failed.value.error == error
    assert len(pair.b.handled) == 1
    assert (await outcome(pair.a), await outcome(pair.b)) == (FAILED, FAILED)


async def test_a_result_that_is_not_json_is_a_failure(pair: Pair) -> None:
    pair.b.answer = lambda envelope: object()
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.link.deliver()
    assert await outcome(pair.a) is FAILED


@pytest.mark.requirement("FND-AACP-39", "FND-AACP-42", "FND-AACP-47")
async def test_a_transient_failure_is_handled_again_with_growing_delays(pair: Pair) -> None:
    times: list[float] = []

    def answer(envelope: AACPEnvelope) -> str:
        times.append(pair.clock.monotonic())
        if len(times) < 3:
            raise TimedOut("too slow")
        return "done"

    pair.b.answer = answer
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.link.deliver()
    assert (await outcome(pair.b), responses(pair)) == (UNKNOWN, [])
    for _ in range(10):
        await pair.pass_time(1)
    assert times == [0, 1, 3]
    assert await pair.a.endpoint.send_request("b", 1, request_id=ID) == "done"


async def test_a_transient_failure_of_the_last_attempt_is_final(pair: Pair) -> None:
    def answer(envelope: AACPEnvelope) -> None:
        raise TimedOut("too slow")

    pair.b.answer = answer
    await pair.a.endpoint.begin_request("b", 1, ID)
    for _ in range(40):
        await pair.pass_time(1)
    assert (len(pair.b.handled), await outcome(pair.a)) == (5, FAILED)


@pytest.mark.requirement("FND-AACP-13")
async def test_outcomes_are_stored_before_anybody_learns_of_them() -> None:
    pair = Pair()
    seen: list[tuple[str, AACPOutcome, AACPOutcome]] = []

    async def completed(message_id: str) -> None:
        record = await pair.a.adapter.get_message_record(message_id)
        assert record is not None
        seen.append(("hook", await outcome(pair.a), record.status))

    pair.a.hooks = AACPHooks(on_message_completed=completed)
    pair.a.start()
    asking = await begin_waiting(pair, None)
    carry = pair.link.carry

    async def watched(envelope: AACPEnvelope) -> None:
        if envelope.message_type is RESPONSE:
            record = await pair.b.adapter.get_message_record(requests(pair)[0].message_id)
            assert record is not None
            seen.append(("response", await outcome(pair.b), record.status))
        await carry(envelope)

    pair.link.carry = watched  # type: ignore[method-assign]
    await pair.link.deliver()
    assert await asking == {"done": 1}
    assert seen == [("response", COMPLETED, COMPLETED), ("hook", COMPLETED, COMPLETED)]
    await pair.a.endpoint.send_event("b", 2)
    await pair.link.deliver()
    assert seen[2:] == [("hook", COMPLETED, COMPLETED)]


@pytest.mark.requirement("FND-AACP-13")
@pytest.mark.parametrize("why", ["refused", "given up"])
async def test_a_failure_is_stored_before_the_hook_learns_of_it(why: str) -> None:
    pair = Pair()
    seen: list[tuple[str, AACPOutcome, AACPOutcome]] = []

    async def failed(message_id: str, error: StructuredError) -> None:
        record = await pair.a.adapter.get_message_record(message_id)
        assert record is not None
        seen.append((error.code, record.status, await outcome(pair.a)))

    def refuse(envelope: AACPEnvelope) -> None:
        raise NotFound("nothing there")

    pair.a.hooks = AACPHooks(on_message_failed=failed)
    pair.a.start()
    pair.b.answer = refuse
    if why == "given up":
        pair.link.cut()
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.link.deliver()
    for _ in range(6):
        await pair.pass_time(8)
    # A request that was given up may have been handled: its outcome stays unknown.
    assert seen == [("NOT_FOUND", FAILED, FAILED) if why == "refused" else ("TIMEOUT", FAILED, UNKNOWN)]


@pytest.mark.requirement("FND-AACP-07", "FND-AACP-13", "FND-AACP-35")
@pytest.mark.parametrize("operation", ["put_message_record", "put_request_record", "update_last_ack"])
async def test_what_could_not_be_recorded_is_not_acknowledged(operation: str) -> None:
    class Failing(InMemoryAACPPersistenceAdapter):
        fails = False

        def __getattribute__(self, name: str) -> Any:
            if name == operation and self.fails:
                raise StorageFull("no room")
            return super().__getattribute__(name)

    clock, new_id = ManualClock(), uuids()
    link = LossyLink(clock)
    a, b = Agent("a", link, clock, new_id), Agent("b", link, clock, new_id, keep=Failing)
    assert isinstance(b.adapter, Failing)
    b.adapter.fails = True
    await a.endpoint.begin_request("b", 1, ID)
    with pytest.raises(StorageFull):
        await link.deliver()
    assert link.receipts == []
    assert await b.adapter.get_last_ack("a", "b") == 0
    assert (await a.sessions.create_session("a", "b")).last_ack == 0
    assert b.handled == []
    b.adapter.fails = False
    b.start()  # As after a restart: nothing is left but what was recorded.
    await b.endpoint.recover()
    clock.advance(1)
    await a.endpoint.process_retries_once()
    await link.deliver()
    assert await a.endpoint.send_request("b", 1, request_id=ID) == {"done": 1}
    assert len(b.handled) == 1


async def test_hooks_learn_of_messages_received_completed_and_failed(pair: Pair) -> None:
    told: list[tuple[str, str]] = []

    async def received(envelope: AACPEnvelope) -> None:
        told.append(("received", envelope.message_id))

    async def completed(message_id: str) -> None:
        told.append(("completed", message_id))

    async def failed(message_id: str, error: StructuredError) -> None:
        told.append((error.code, message_id))

    pair.a.hooks = pair.b.hooks = AACPHooks(
        on_message_received=received, on_message_completed=completed, on_message_failed=failed
    )
    pair.a.start()
    pair.b.start()
    event = await pair.a.endpoint.send_event("b", 1)
    await pair.link.deliver()
    pair.link.cut()
    lost = await pair.a.endpoint.send_event("b", 2)
    for _ in range(6):
        await pair.pass_time(8)
    assert told == [("received", event), ("completed", event), ("TIMEOUT", lost)]


@pytest.mark.requirement("FND-AACP-42")
async def test_the_last_attempt_makes_a_dead_letter_and_later_messages_pass(pair: Pair) -> None:
    pair.link.cut()
    asking = await begin_waiting(pair, None)
    for _ in range(8):
        await pair.pass_time(8)
    with pytest.raises(OutcomeUnknown):
        await asking
    assert len(requests(pair)) == 5
    status = await pair.a.endpoint.get_status(requests(pair)[0].message_id)
    assert status is not None
    assert status.outcome is UNKNOWN
    pair.link.heal()
    await pair.a.endpoint.send_event("b", "next")
    await pair.link.deliver()
    assert [each.payload for each in pair.b.handled] == ["next"]
    assert await pair.a.adapter.get_last_ack("a", "b") == 2
    late = changed(requests(pair)[0], message_id=uuid(6000))
    await pair.b.endpoint.receive(late)
    assert [each.payload for each in pair.b.handled] == ["next"]
    again = await pair.a.endpoint.redrive(requests(pair)[0].message_id)
    await pair.link.deliver()
    assert (requests(pair)[-1].message_id, requests(pair)[-1].seq) == (again, 3)
    assert await outcome(pair.a) is COMPLETED
    assert await pair.a.endpoint.redrive(requests(pair)[0].message_id) is None


async def test_an_expired_message_leaves_a_tombstone(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.send_event("b", "lost")
    pair.clock.advance(86_400)
    assert await pair.a.adapter.purge_expired(pair.clock.now()) == 1
    await pair.a.endpoint.process_retries_once()
    pair.link.heal()
    await pair.a.endpoint.send_event("b", "next")
    await pair.link.deliver()
    assert [first_dead(each) for each in pair.link.delivered] == [1, None]
    assert [each.payload for each in pair.b.handled] == ["next"]


async def test_a_tombstone_of_many_numbers_spares_what_has_arrived(pair: Pair) -> None:
    event = envelope(request_id=None, message_type=EVENT)
    for seq in (9, 4):
        await pair.b.endpoint.receive(changed(event, message_id=uuid(seq), seq=seq, payload=seq))
    dead = changed(event, message_id=uuid(100), seq=10**12, payload=tombstone(1))
    await pair.b.endpoint.receive(dead)
    assert [each.payload for each in pair.b.handled] == [4, 9]
    assert await pair.b.adapter.get_last_ack("a", "b") == 10**12


@pytest.mark.parametrize("payload", [{"first": 2}, {"first": 0}, {"first": True}, {}, None])
async def test_a_tombstone_that_makes_no_sense_is_an_event(pair: Pair, payload: Any) -> None:
    event = envelope(request_id=None, message_type=EVENT, payload={"aacp/tombstone": payload})
    await pair.b.endpoint.receive(event)
    assert [each.payload for each in pair.b.handled] == [event.payload]
    with pytest.raises(InvalidEnvelope):
        await pair.a.endpoint.send_event("b", event.payload)


async def test_what_waits_for_a_gap_is_bounded_and_the_lowest_numbers_stay(pair: Pair) -> None:
    pair.b.window = 3
    pair.b.start()
    event = envelope(request_id=None, message_type=EVENT)
    for seq in (9, 8, 7, 6, 10, 2):
        await pair.b.endpoint.receive(changed(event, message_id=uuid(seq), seq=seq, payload=seq))
    await pair.b.endpoint.receive(changed(event, message_id=uuid(1), payload=1))
    dead = changed(event, message_id=uuid(100), seq=20, payload=tombstone(3))
    await pair.b.endpoint.receive(dead)
    assert [each.payload for each in pair.b.handled] == [1, 2, 6]


async def test_a_sender_is_refused_when_too_much_is_unacknowledged(pair: Pair) -> None:
    pair.a.window = 2
    pair.a.start()
    pair.link.cut()
    for number in (1, 2):
        await pair.a.endpoint.send_event("b", number)
    with pytest.raises(WindowFull) as full:
        await pair.a.endpoint.begin_request("b", 3, ID)
    assert (full.value.target, full.value.limit) == ("b", 2)
    pair.link.heal()
    await pair.pass_time(1)
    await pair.a.endpoint.begin_request("b", 3, ID)
    await pair.link.deliver()
    assert [each.payload for each in pair.b.handled] == [1, 2, 3]


async def test_another_request_of_the_same_id_is_refused_on_both_sides(pair: Pair) -> None:
    failures: list[str] = []

    async def failed(message_id: str, error: StructuredError) -> None:
        failures.append(error.code)

    pair.b.hooks = AACPHooks(on_message_failed=failed)
    pair.b.start()
    await pair.a.endpoint.begin_request("b", 1, ID)
    with pytest.raises(RequestConflict):
        await pair.a.endpoint.begin_request("b", 2, ID)
    await pair.link.deliver()
    other = changed(requests(pair)[0], message_id=uuid(6000), payload=2)
    await pair.b.endpoint.receive(other)
    await pair.b.endpoint.receive(changed(other, message_id=uuid(6001), seq=2))
    assert failures == ["INVALID_ARGUMENT"] * 2
    assert (len(pair.b.handled), len(responses(pair))) == (1, 1)


@pytest.mark.parametrize("target", ["a", "b:c", ""])
async def test_a_message_to_nobody_else_is_refused(pair: Pair, target: str) -> None:
    for sending in (pair.a.endpoint.send_event(target, 1), pair.a.endpoint.begin_request(target, 1)):
        with pytest.raises(InvalidEnvelope) as refused:
            await sending
        assert refused.value.field == "targetAgentId"
    with pytest.raises(InvalidEnvelope):
        await pair.a.endpoint.receive(envelope())


@pytest.mark.requirement("FND-AACP-15")
async def test_a_restarted_sender_goes_on_sending(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.begin_request("b", 1, ID)
    await pair.a.endpoint.send_event("b", 2)
    pair.link.heal()
    pair.a.start()
    await pair.a.endpoint.recover()
    await pair.pass_time(1)
    assert [each.payload for each in pair.b.handled] == [1, 2]
    assert await pair.a.endpoint.send_request("b", 1, request_id=ID) == {"done": 1}
    for _ in range(6):
        await pair.pass_time(8)
    assert await pair.a.adapter.list_messages_in_state(UNKNOWN) == []
    assert await pair.a.adapter.list_messages_in_state(FAILED) == []


@pytest.mark.requirement("FND-AACP-15")
async def test_a_restarted_sender_still_wants_the_outcome_of_a_request_that_had_arrived(pair: Pair) -> None:
    pair.link.cut()
    await pair.a.endpoint.begin_request("b", 1, ID)
    arrived = requests(pair)[0].message_id
    receipt = AACPReceipt(message_id=arrived, source_agent_id="b", target_agent_id="a", ack=1)
    await pair.a.endpoint.receive_receipt(receipt)
    pair.link.heal()
    pair.a.start()
    await pair.a.endpoint.recover()
    await pair.pass_time(1)
    assert [each.seq for each in requests(pair)] == [1, 1]
    assert (len(pair.b.handled), await outcome(pair.a)) == (1, COMPLETED)


@pytest.mark.requirement("FND-AACP-15")
async def test_a_restarted_receiver_handles_what_was_interrupted_and_nothing_else() -> None:
    clock, link = ManualClock(), DirectLink()
    new_id = uuids()
    a, b = Agent("a", link, clock, new_id), Agent("b", link, clock, new_id)
    assert await a.endpoint.send_request("b", "before") == {"done": "before"}
    never = asyncio.Event()
    b.answer = lambda envelope: never.wait()
    await a.endpoint.begin_request("b", "interrupted", ID)
    await a.endpoint.send_event("b", "waiting")
    await until(lambda: len(b.handled) == 2)
    await link.close()
    b.answer, b.handled = lambda envelope: {"done": envelope.payload}, []
    for agent in (a, b):
        agent.start()
        await agent.endpoint.recover()
    assert [each.payload for each in b.handled] == ["interrupted", "waiting"]
    assert await a.endpoint.send_request("b", "interrupted", request_id=ID) == {"done": "interrupted"}
    await link.settle()


@pytest.mark.requirement("FND-AACP-15")
async def test_a_receiver_that_ended_before_it_answered_does_not_handle_again(pair: Pair) -> None:
    await pair.a.endpoint.begin_request("b", 1, ID)
    sent = requests(pair)[0]
    await pair.b.ledger.append(sent)
    await pair.b.adapter.update_last_ack("a", "b", 1)
    session = await pair.b.sessions.create_session("b", "a")
    await session.record_message(AACPResponse(outcome=COMPLETED, result="stored"), RESPONSE, ID)
    pair.b.start()
    await pair.b.endpoint.recover()
    await pair.pass_time(1)
    assert pair.b.handled == []
    assert await pair.a.endpoint.send_request("b", 1, request_id=ID) == "stored"
    assert await outcome(pair.b) is COMPLETED


async def test_an_event_that_was_recorded_and_not_acknowledged_is_handled_once(pair: Pair) -> None:
    message_id = await pair.a.endpoint.send_event("b", 1)
    await pair.b.ledger.append(pair.link.carried[0])
    pair.b.start()
    await pair.b.endpoint.recover()
    await pair.pass_time(1)
    assert [each.message_id for each in pair.b.handled] == [message_id]


async def test_a_link_that_is_down_fails_no_sender() -> None:
    clock, link = ManualClock(), DirectLink()
    new_id = uuids()
    a = Agent("a", link, clock, new_id)
    with pytest.raises(LinkDown):
        await link.carry(envelope())
    await a.endpoint.begin_request("b", 1, ID)
    b = Agent("b", link, clock, new_id)
    clock.advance(1)
    await a.endpoint.process_retries_once()
    await link.settle()
    assert (len(b.handled), await outcome(a)) == (1, COMPLETED)


async def test_a_handler_cannot_change_what_is_recorded(pair: Pair) -> None:
    pair.b.answer = lambda envelope: envelope.payload.clear()
    await pair.a.endpoint.begin_request("b", {"n": 1}, ID)
    await pair.link.deliver()
    record = await pair.b.adapter.get_request_record(ID, "a")
    assert record is not None
    assert record.payload == {"n": 1}


async def test_the_outcome_of_a_request_that_was_never_made_is_unknown(pair: Pair) -> None:
    with pytest.raises(OutcomeUnknown):
        await pair.a.endpoint.wait_for_outcome(ID)


@pytest.mark.requirement("FND-AACP-41")
async def test_an_endpoint_starts_no_task(pair: Pair) -> None:
    before = asyncio.all_tasks()
    pair.a.start()
    await pair.a.endpoint.recover()
    await pair.a.endpoint.send_event("b", 1)
    assert asyncio.all_tasks() == before
    assert isinstance(pair.a.endpoint, AACPEndpoint)

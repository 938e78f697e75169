"""Sessions: numbers, acknowledgements and gaps."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.agents.aacp import AACPMessageType, AACPSession, AACPSessionManager
from dragoman.agents.aacp import sessions as sessions_module
from dragoman.errors import InvalidEnvelope
from dragoman.testing import ManualClock
from tests.support.aacp import LossyLink, SlowAdapter, session_manager

EVENT, REQUEST, RESPONSE = AACPMessageType.EVENT, AACPMessageType.REQUEST, AACPMessageType.RESPONSE


@pytest.fixture
def link() -> LossyLink:
    return LossyLink(ManualClock())


@pytest.fixture
def manager(link: LossyLink) -> AACPSessionManager:
    return session_manager(ManualClock(), link)


@pytest.fixture
async def session(manager: AACPSessionManager) -> AACPSession:
    return await manager.create_session("a", "b")


@pytest.mark.requirement("FND-AACP-30")
async def test_sessions_are_opened_found_and_closed_for_each_direction(manager: AACPSessionManager) -> None:
    assert await manager.get_session("a", "b") is None
    opened = await manager.create_session("a", "b")
    assert await manager.get_session("a", "b") is opened
    assert await manager.create_session("a", "b") is opened
    assert await manager.get_session("b", "a") is None
    reverse = await manager.create_session("b", "a")
    await manager.close_session("a", "b")
    assert await manager.get_session("a", "b") is None
    assert await manager.get_session("b", "a") is reverse


@pytest.mark.requirement("FND-AACP-03", "FND-AACP-31")
async def test_a_session_numbers_what_it_sends(session: AACPSession, link: LossyLink) -> None:
    assert (session.source_agent_id, session.target_agent_id) == ("a", "b")
    assert (session.next_seq, session.last_ack) == (1, 0)
    ids = [await session.send_message({"n": n}, EVENT) for n in range(3)]
    assert session.next_seq == 4
    assert [(each.message_id, each.seq, each.payload) for each in link.carried] == [
        (message_id, n + 1, {"n": n}) for n, message_id in enumerate(ids)
    ]
    assert len(set(ids)) == 3


async def test_a_request_without_an_id_gets_one_and_a_response_needs_one(session: AACPSession, link: LossyLink) -> None:
    await session.send_message(1, REQUEST)
    assert link.carried[0].request_id is not None
    with pytest.raises(InvalidEnvelope):
        await session.send_message(1, RESPONSE)
    assert session.next_seq == 2


@pytest.mark.requirement("FND-AACP-05")
async def test_numbers_are_given_once_however_many_send(manager: AACPSessionManager, link: LossyLink) -> None:
    forth, back = await manager.create_session("a", "b"), await manager.create_session("b", "a")
    await asyncio.gather(*(each.send_message(0, EVENT) for each in (forth, forth, back, forth, back)))
    assert sorted(each.seq for each in link.carried if each.source_agent_id == "a") == [1, 2, 3]
    assert sorted(each.seq for each in link.carried if each.source_agent_id == "b") == [1, 2]


@pytest.mark.requirement("FND-AACP-07", "FND-AACP-31", "FND-AACP-32")
async def test_the_ack_never_skips_a_gap(session: AACPSession) -> None:
    for seq, ack, gaps in [
        (1, 1, []),
        (2, 2, []),
        (4, 2, [range(3, 4)]),
        (8, 2, [range(3, 4), range(5, 8)]),
        (4, 2, [range(3, 4), range(5, 8)]),
        (3, 4, [range(5, 8)]),
        (1, 4, [range(5, 8)]),
    ]:
        await session.acknowledge_message(seq)
        assert (session.last_ack, session.gaps) == (ack, gaps)


@pytest.mark.requirement("FND-AACP-07")
async def test_an_ack_that_is_stored_later_than_a_higher_one_does_not_lower_it() -> None:
    manager = session_manager(ManualClock(), keep=SlowAdapter)
    session = await manager.create_session("a", "b")
    await asyncio.gather(session.acknowledge_through(5), session.acknowledge_through(3))
    assert session.last_ack == 5
    assert await manager.ledger.adapter.get_last_ack("a", "b") == 5


@pytest.mark.requirement("FND-AACP-33")
async def test_numbers_outlive_the_session(session: AACPSession, manager: AACPSessionManager) -> None:
    await session.send_message(1, EVENT)
    await session.send_message(2, EVENT)
    await session.acknowledge_message(1)
    await manager.close_session("a", "b")
    assert await manager.ledger.adapter.get_last_sequence("a", "b") == 2
    assert await manager.ledger.adapter.get_last_ack("a", "b") == 1
    again = await manager.create_session("a", "b")
    assert again is not session
    assert (again.next_seq, again.last_ack) == (3, 1)


@pytest.mark.requirement("FND-AACP-07")
async def test_the_ack_of_the_other_direction_goes_along(manager: AACPSessionManager, link: LossyLink) -> None:
    forth, back = await manager.create_session("a", "b"), await manager.create_session("b", "a")
    await back.send_message(0, EVENT)
    for seq in (1, 2, 4):
        await forth.acknowledge_message(seq)
    await back.send_message(0, EVENT)
    assert [each.ack for each in link.carried] == [None, 2]


async def test_what_is_recorded_does_not_change_with_what_was_sent(session: AACPSession, link: LossyLink) -> None:
    payload = {"list": [1]}
    await session.send_message(payload, EVENT)
    payload["list"].append(2)
    assert link.carried[0].payload == {"list": [1]}


@pytest.mark.requirement("FND-AACP-08", "FND-AACP-33")
def test_the_docs_say_that_ack_means_receipt() -> None:
    assert "`ack` means receipt, not commitment" in (sessions_module.__doc__ or "")

"""What is kept of streams for those who resume them."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCRequest

from dragoman.edge.sdk.replay import ReplayBuffer, SessionEvents
from dragoman.edge.sdk.transport import ResumableTransport

LARGE = 1_000_000


def missed(session: SessionEvents, event_id: str) -> list[str]:
    found = session.find(event_id)
    assert found is not None
    stream, number = found
    return [event.text for event in stream.events.values() if event.number > number]


def test_an_event_is_found_by_its_id_and_so_is_what_came_after_it() -> None:
    session = SessionEvents(ReplayBuffer(LARGE))
    first = session.store("a")
    session.store("b", "other")
    second = session.store("a", "one")
    session.store("a", "two", is_last=True)
    assert missed(session, first) == ["one", "two"]
    assert missed(session, second) == ["two"]


def test_ids_that_were_not_given_out_are_not_found() -> None:
    session = SessionEvents(ReplayBuffer(LARGE))
    assert session.store("a") == "0-1"
    for event_id in (
        "",
        "0",
        "-",
        "0-",
        "-1",
        "0-2",
        "1-1",
        "0-1-1",
        "+0-1",
        " 0-1",
        "0-1 ",
        "٠-1",
        "0" * 13 + "-1",
        "a-1",
    ):
        assert session.find(event_id) is None, event_id


def test_the_oldest_of_all_sessions_is_forgotten_first() -> None:
    buffer = ReplayBuffer(3 * 1100)
    old, new = SessionEvents(buffer), SessionEvents(buffer)
    first, mark = old.store("a", "x" * 500), old.store("b", "x" * 500)
    marks = [new.store("a", "x" * 500), new.store("a", "x" * 500)]
    assert buffer.size <= 3 * 1100
    assert missed(old, first) == []
    assert old.find(mark) is not None
    assert missed(new, marks[0]) == ["x" * 500]


def test_a_stream_that_has_ended_is_forgotten_with_its_last_event() -> None:
    buffer = ReplayBuffer(2000)
    session = SessionEvents(buffer)
    ids = [session.store(str(number), "x" * 1000, is_last=True) for number in range(10)]
    assert [session.find(each) is not None for each in ids] == [False] * 9 + [True]
    assert len(session._by_number) == 1


def test_a_stream_that_goes_on_is_known_although_nothing_of_it_is_held() -> None:
    session = SessionEvents(ReplayBuffer(1024))
    mark = session.store("slow")
    for number in range(10):
        session.store(str(number), "x", is_last=True)
    assert missed(session, mark) == []
    session.store("slow", "answer", is_last=True)
    assert missed(session, mark) == ["answer"]


def test_an_answer_larger_than_the_buffer_is_not_held_and_not_waited_for() -> None:
    buffer = ReplayBuffer(1024)
    session = SessionEvents(buffer)
    mark = session.store("a")
    session.store("a", "x" * 2000, is_last=True)
    assert buffer.size == 0
    assert session.find(mark) is None


def test_a_name_that_is_used_again_stands_for_another_stream() -> None:
    session = SessionEvents(ReplayBuffer(LARGE))
    before = session.store("1")
    session.store("1", "first", is_last=True)
    after = session.store("1")
    session.store("1", "second", is_last=True)
    assert (missed(session, before), missed(session, after)) == (["first"], ["second"])


def test_a_session_that_is_over_leaves_room_for_others() -> None:
    buffer = ReplayBuffer(LARGE)
    session, other = SessionEvents(buffer), SessionEvents(buffer)
    kept = other.store("a", "kept")
    size = buffer.size
    mark = session.store("a", "x" * 1000)
    session.close()
    assert buffer.size == size
    assert session.find(mark) is None
    assert other.find(kept) is not None


async def test_a_stream_is_not_forgotten_because_a_message_finds_its_first_connection_closed() -> None:
    transport: Any = ResumableTransport("a-session")
    transport._request_streams["1"] = anyio.create_memory_object_stream[EventMessage](1)
    message = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call")
    transport._create_session_message(message, None, "1", "2025-11-25")
    sending = asyncio.create_task(transport._request_streams["1"][0].send(None))
    await asyncio.sleep(0)
    transport.close_sse_stream("1")  # As a client does that resumes it.
    await sending  # On an error the SDK would forget the stream that has taken its place.

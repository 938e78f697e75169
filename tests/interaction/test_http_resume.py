"""Streams that break, seen from the wire: what is resumed, what is not, and whom a dropped connection cancels."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from typing import Any

import pytest

from dragoman import ToolContext, tool
from tests.support.answers import value_in
from tests.support.http_serving import RawSession, Reply, SseEvent, modern_call, open_session, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow


class Gates:
    """What the tools below wait for, and what they saw."""

    def __init__(self) -> None:
        self.under_way = asyncio.Event()
        self.open = asyncio.Event()
        self.steps = asyncio.Semaphore(0)
        self.reasons: list[str | None] = []

    def tools(self) -> list[Any]:
        @tool
        async def wait(answer: str) -> str:
            """Takes its time, and tells nobody how far it is."""
            self.under_way.set()
            await self.open.wait()
            return answer

        @tool
        async def steps(count: int, ctx: ToolContext) -> str:
            """Takes a step whenever it is let, and says so."""
            for step in range(1, count + 1):
                await self.steps.acquire()
                ctx.progress(step, count)
            await self.open.wait()
            return f"{count} steps"

        @tool
        async def listen(ctx: ToolContext) -> str:
            """Ends when it is cancelled, or allowed to."""
            ctx.progress(0)
            self.under_way.set()
            waits = [asyncio.create_task(each.wait()) for each in (self.open, ctx.cancellation)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for waiting in waits:
                waiting.cancel()
            self.reasons.append(ctx.cancellation.reason)
            ctx.cancellation.raise_if_set()
            return "allowed"

        @tool
        async def say(size: int, ctx: ToolContext) -> str:
            """Says much."""
            return "x" * size

        return [wait, steps, listen, say]


@pytest.fixture
def gates() -> Gates:
    return Gates()


def texts(events: list[SseEvent]) -> list[Any]:
    """How far it was, by each event, and the answer."""
    found: list[Any] = []
    for event in events:
        if event.message is not None and "method" in event.message:
            found.append(event.message["params"]["progress"])
        elif event.message is not None:
            found.append(value_in(event.message["result"]))
    return found


async def next_event(reply: Reply) -> SseEvent:
    event = await reply.event()
    assert event is not None
    return event


async def started_stream(session: RawSession, name: str, request_id: int = 7, **arguments: Any) -> tuple[Reply, str]:
    """A call that has become a stream, and the id to resume it from."""
    reply = await (await session.call(request_id, name, **arguments)).begin()
    assert reply.is_stream
    assert reply.headers["mcp-session-id"] == session.id
    priming = await next_event(reply)
    assert priming.message is None
    assert priming.id is not None
    return reply, priming.id


async def test_a_call_that_takes_its_time_becomes_a_stream_that_ends_with_its_answer(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        reply, _ = await started_stream(await open_session(server.port), "wait", answer="here")
        gates.open.set()
        assert texts(await reply.events()) == ["here"]


async def test_an_answer_that_comes_while_the_client_reconnects_arrives_once(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        reply, last = await started_stream(session, "wait", answer="here")
        reply.drop()
        resumed = await session.listen(last)
        gates.open.set()
        assert texts(await resumed.events()) == ["here"]
        await server.recorded(("wait", "success"))


async def test_an_answer_that_came_while_nobody_listened_arrives_once(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        reply, last = await started_stream(session, "wait", answer="here")
        reply.drop()
        gates.open.set()
        await server.recorded(("wait", "success"))
        (answer,) = await (await session.listen(last)).events()
        assert answer.message is not None
        assert answer.message["id"] == 7
        assert texts([answer]) == ["here"]
        assert answer.id is not None
        assert await (await session.listen(answer.id)).events() == []


async def test_what_was_missed_of_a_stream_arrives_in_order_and_once(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        reply = await (await session.call(7, "steps", token="t", count=6)).begin()
        for _ in range(2):
            gates.steps.release()
        _, first, second = [await next_event(reply) for _ in range(3)]
        assert texts([first, second]) == [1, 2]
        reply.drop()
        for _ in range(2):
            gates.steps.release()
        resumed = await session.listen(second.id)
        third, fourth = await next_event(resumed), await next_event(resumed)
        resumed.drop()
        assert texts([third, fourth]) == [3, 4]
        again = await session.listen(third.id)
        for _ in range(2):
            gates.steps.release()
        gates.open.set()
        assert texts(await again.events()) == [4, 5, 6, "6 steps"]
        assert texts(await (await session.listen(first.id)).events()) == [2, 3, 4, 5, 6, "6 steps"]


async def test_who_resumes_takes_over_from_a_connection_that_still_looks_alive(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        old = await (await session.call(7, "steps", token="t", count=3)).begin()
        gates.steps.release()
        priming, first = await next_event(old), await next_event(old)
        older = [old, await session.listen(first.id), await session.listen(priming.id)]
        assert texts([await next_event(older[2])]) == [1]
        newest = await session.listen(first.id)
        for _ in range(2):
            gates.steps.release()
        gates.open.set()
        assert texts(await newest.events()) == [2, 3, "3 steps"]
        assert [await reply.events() for reply in older] == [[], [], []]
        await server.recorded(("steps", "success"))


async def test_a_call_of_the_lane_is_taken_over_too(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        old, last = await started_stream(session, "wait", answer="here")
        newest = await session.listen(last)
        assert await old.events() == []
        gates.open.set()
        assert texts(await newest.events()) == ["here"]


async def test_who_resumes_takes_over_from_one_that_has_stopped_reading() -> None:
    count = 200

    @tool
    async def flood(ctx: ToolContext) -> str:
        """Says more than the socket of anybody who does not read takes."""
        assert ctx._client is not None
        for number in range(count):
            ctx._client.notify("notifications/message", {"level": "info", "data": f"{number} " + "x" * 100_000})
            await asyncio.sleep(0)
        return "said"

    async with serving([flood]) as server:
        session = await open_session(server.port)
        deaf = await (await session.call(7, "flood")).begin()
        priming = await next_event(deaf)
        await server.recorded(("flood", "success"))  # Nothing more goes in.
        resumed = await session.listen(priming.id)
        messages = [event.message for event in await resumed.events() if event.message is not None]
        numbers = [int(each["params"]["data"].split()[0]) for each in messages[:-1]]
        assert numbers[:8] == list(range(8))
        assert numbers == sorted(set(numbers))  # In between some are dropped: what waits for a client is bounded.
        assert messages[-1]["result"]["content"][0]["text"] == "said"
        deaf.drop()


async def test_reconnecting_at_any_moment_neither_loses_nor_doubles_an_event() -> None:
    chance, count = random.Random(20260728), 200

    @tool
    async def stream(ctx: ToolContext) -> str:
        """Says how far it is, now and then."""
        for step in range(count):
            ctx.progress(step)
            if step % 7 == 0:
                await asyncio.sleep(0.002)
        return "done"

    async with serving([stream]) as server:
        session = await open_session(server.port)

        async def hammer(request_id: int) -> list[SseEvent]:
            reply = await (await session.call(request_id, "stream", token=request_id)).begin()
            got, last = [], (await next_event(reply)).id
            while not got or got[-1].message is None or "method" in got[-1].message:
                for _ in range(chance.randrange(12)):
                    event = await reply.event()
                    if event is None:
                        break
                    got.append(event)
                    last = event.id
                else:
                    if chance.random() < 0.5:
                        reply.drop()
                    reply = await session.listen(last)
            return got

        for got in await asyncio.gather(*(hammer(request_id) for request_id in range(1, 9))):
            assert texts(got) == [*range(count), "done"]


async def test_events_of_others_and_events_that_never_were_are_refused(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        mine, theirs = await open_session(server.port), await open_session(server.port)
        for request_id in range(1, 4):
            answered = await (await mine.call(request_id, "say", size=1)).begin()
            event = await next_event(answered)
            await answered.events()
        assert event.id is not None
        assert (await mine.listen(event.id)).status == 200
        for event_id in (event.id, "0-99", "99-0", "-", "0-", "-1", "x", "0-0-0", "²-1", "9" * 5000, f"{event.id}\t1"):
            refused = await theirs.listen(event_id.encode().decode("latin-1"))
            assert (refused.status, (await refused.json())["error"]["code"]) == (400, -32600), event_id


async def test_a_session_id_of_nobody_resumes_nothing(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        _, last = await started_stream(session, "wait", answer="here")
        stranger = RawSession(server.port, "2025-11-25", "0" * 32)
        assert (await stranger.listen(last)).status == 404


async def test_what_is_kept_is_bounded_and_the_newest_is_kept(gates: Gates) -> None:
    size, most = 10_000, 200_000
    async with serving(gates.tools(), {"http": {"max_replay_bytes": most}}) as server:
        session = await open_session(server.port)
        primings = []
        for request_id in range(30):
            reply = await (await session.call(request_id, "say", size=size)).begin()
            primings.append((await next_event(reply)).id)
            await reply.events()
        assert server.runtime.sessions is not None
        buffer = server.runtime.sessions.open._buffer
        assert most / 2 < buffer.size <= most
        assert texts(await (await session.listen(primings[-1])).events()) == ["x" * size]
        assert (await session.listen(primings[0])).status == 400
        await session.end()
        assert buffer.size == 0


async def test_a_session_that_calls_for_long_holds_no_more_than_one_that_does_not(gates: Gates) -> None:
    async with serving(gates.tools(), {"http": {"max_replay_bytes": 20_000}}) as server:
        session = await open_session(server.port)

        async def call_often(times: int) -> int:
            for request_id in range(times):
                await (await (await session.call(request_id, "say", size=10)).begin()).answer()
            server.log.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            before = await call_often(150)
            assert await call_often(300) - before < 300 * 150
        finally:
            tracemalloc.stop()


async def test_the_answer_to_a_running_call_is_there_although_its_first_events_are_forgotten(gates: Gates) -> None:
    async with serving(gates.tools(), {"http": {"max_replay_bytes": 2048}}) as server:
        session = await open_session(server.port)
        reply, last = await started_stream(session, "wait", answer="here")
        reply.drop()
        for request_id in range(20, 30):
            await (await (await session.call(request_id, "say", size=100)).begin()).answer()
        resumed = await session.listen(last)
        gates.open.set()
        assert texts(await resumed.events()) == ["here"]


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18"])
async def test_clients_that_cannot_take_an_empty_event_get_none(gates: Gates, version: str) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port, version)
        waiting = await (await session.call(1, "wait", answer="here")).begin()
        stepping = await (await session.call(2, "steps", token=2, count=2)).begin()
        gates.steps.release()
        first = await next_event(stepping)
        assert texts([first]) == [1]
        stepping.drop()
        gates.steps.release()
        gates.open.set()
        assert texts(await waiting.events()) == ["here"]
        assert texts(await (await session.listen(first.id)).events()) == [2, "2 steps"]


async def test_the_stream_of_a_session_is_resumed_too(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        extra = Gates().tools()
        server.runtime.catalogue.unregister("say")
        listening = await session.listen()
        told = await next_event(listening)
        assert told.message == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        priming = await next_event(listening)
        assert priming.message is None
        listening.drop()
        server.runtime.catalogue.register(extra[3])
        resumed = await session.listen(priming.id)
        assert (await next_event(resumed)).message == told.message


# Whom a dropped connection cancels.


async def test_a_dropped_stream_of_a_session_cancels_nothing(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        reply = await (await session.call(7, "listen", token=1)).begin()
        priming = await next_event(reply)
        reply.drop()
        await gates.under_way.wait()
        await until(lambda: not server.connections)
        gates.open.set()
        assert texts(await (await session.listen(priming.id)).events()) == [0, "allowed"]
        assert gates.reasons == [None]
        await server.recorded(("listen", "success"))


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"], ids=["json", "stream"])
async def test_a_dropped_request_of_the_modern_era_is_cancelled(gates: Gates, accept: str) -> None:
    async with serving(gates.tools()) as server:
        reply = await modern_call(server.port, 7, "listen", accept=accept)
        await gates.under_way.wait()
        reply.drop()
        await server.recorded(("listen", "aborted"))
        assert gates.reasons == ["disconnect"]


async def test_a_handler_that_ends_all_the_same_after_its_client_left_is_recorded_as_that(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        reply = await modern_call(server.port, 7, "wait", answer="for nobody")
        await gates.under_way.wait()
        reply.drop()
        await until(lambda: not server.connections)
        gates.open.set()
        await server.recorded(("wait", "disconnected_completed"))


@pytest.mark.parametrize("name", ["listen", "wait"], ids=["by the SDK", "by the lane"])
async def test_the_end_of_a_session_cancels_what_runs_in_it(gates: Gates, name: str) -> None:
    arguments = {"answer": "for nobody"} if name == "wait" else {}
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        reply = await (await session.call(7, name, **arguments)).begin()
        await gates.under_way.wait()
        assert await session.end() == 200
        await reply.events()
        gates.open.set()
        await server.recorded((name, "aborted" if name == "listen" else "disconnected_completed"))
        assert gates.reasons == (["disconnect"] if name == "listen" else [])
        assert (await (await session.call(8, "wait", answer="nobody")).begin()).status == 404


@pytest.mark.parametrize("name", ["listen", "wait"], ids=["by the SDK", "by the lane"])
async def test_a_call_that_is_cancelled_is_answered_as_such_on_its_stream(gates: Gates, name: str) -> None:
    arguments = {"answer": "for nobody"} if name == "wait" else {}
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        reply = await (await session.call(7, name, **arguments)).begin()
        await gates.under_way.wait()
        await session.notify("notifications/cancelled", {"requestId": 7})
        answer = await reply.answer()
        assert (answer["id"], answer["error"]["code"]) == (7, -32800)
        gates.open.set()
        if name == "listen":
            await server.recorded(("listen", "aborted"))
            assert gates.reasons == ["client"]


async def test_a_session_in_which_only_the_lane_answers_runs_out_when_it_should(gates: Gates) -> None:
    async with serving(gates.tools(), {"http": {"session_idle_ms": 2000}}) as server:
        waiting = await open_session(server.port)
        reply, _ = await started_stream(waiting, "wait", answer="slow")
        calling = await open_session(server.port)
        for request_id in range(12):  # For longer than a session may be idle, with pauses that are far shorter.
            assert "result" in await (await (await calling.call(request_id, "no-such-tool")).begin()).json()
            await asyncio.sleep(0.2)
        gates.open.set()
        assert texts(await reply.events()) == ["slow"]
        sessions = server.runtime.sessions
        assert sessions is not None
        assert sessions.count == 2
        await until(lambda: sessions.count == 0)
        for session in (waiting, calling):
            assert (await (await session.call(9, "wait", answer="nobody")).begin()).status == 404


async def test_streams_that_are_over_leave_nothing_behind(gates: Gates) -> None:
    gates.open.set()
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        for request_id in range(10):
            reply = await (await session.call(request_id, "listen", token=1)).begin()
            priming = await next_event(reply)
            resumed = await session.listen(priming.id)
            await resumed.events()
            reply.drop()
        assert server.runtime.sessions is not None
        (entered,) = server.runtime.sessions.open._index.values()
        transport = entered.transport
        await until(lambda: not transport._request_streams and not transport._requests_in_flight)
        assert not transport._sse_stream_writers


async def test_calls_that_a_stop_cuts_short_are_answered_before_their_streams_end(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        standing = await session.listen()
        by_lane, _ = await started_stream(session, "wait", answer="too late")
        by_sdk = await (await session.call(8, "steps", token=1, count=1)).begin()
        stopping = asyncio.create_task(server.runtime.stop(0.05))
        for reply, request_id in ((by_lane, 7), (by_sdk, 8)):
            answer = await reply.answer()
            assert (answer["id"], answer["result"]["isError"]) == (request_id, True)
            assert "The server is shutting down" in answer["result"]["content"][0]["text"]
        (priming,) = await standing.events()
        assert priming.message is None
        assert await stopping == 2


# Ids.


async def test_any_id_can_be_streamed_and_resumed(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        dropped: list[int | str] = []

        async def resume(request_id: int | str) -> None:
            reply = await (await session.call(request_id, "wait", answer=f"{request_id!r}")).begin()
            priming = await next_event(reply)
            reply.drop()
            dropped.append(request_id)
            (event,) = await (await session.listen(priming.id)).events()
            assert event.message is not None
            assert event.message["id"] == request_id
            assert texts([event]) == [f"{request_id!r}"]

        ids = [0, -1, 2**53, 2**63 - 1, "", "7", "a\nb", "ü" * 50, "_GET_stream"]
        resuming = [asyncio.create_task(resume(request_id)) for request_id in ids]
        await until(lambda: len(dropped) == len(ids))
        gates.open.set()
        await asyncio.gather(*resuming)


async def test_only_the_session_that_made_a_call_cancels_it(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        mine, theirs = await open_session(server.port), await open_session(server.port)
        replies = [await (await mine.call(7, "wait", answer="here")).begin()]
        replies.append(await (await mine.call(8, "listen")).begin())
        for request_id in (7, 8):
            await theirs.notify("notifications/cancelled", {"requestId": request_id})
        for unknown in ("7", 9, None, [7]):
            await mine.notify("notifications/cancelled", {"requestId": unknown})
        await asyncio.sleep(0.05)
        gates.open.set()
        answers = [texts(await reply.events()) for reply in replies]
        assert answers == [["here"], ["allowed"]]
        assert gates.reasons == [None]


async def test_an_id_that_is_under_way_cannot_be_used_twice_in_a_session(gates: Gates) -> None:
    async with serving(gates.tools()) as server:
        session = await open_session(server.port)
        first, _ = await started_stream(session, "wait", answer="first")
        again = await (await session.call(7, "wait", answer="second")).begin()
        assert (again.status, (await again.json())["error"]["code"]) == (400, -32600)
        similar = await session.call("7", "wait", answer="third")
        await asyncio.sleep(0.3)  # Until it would be a stream.
        gates.open.set()
        assert texts(await first.events()) == ["first"]
        answer = await (await similar.begin()).json()
        assert (answer["id"], answer["result"]["content"][0]["text"]) == ("7", "third")
        reused = await (await session.call(7, "wait", answer="fourth")).begin()
        assert (await reused.json())["result"]["content"][0]["text"] == "fourth"

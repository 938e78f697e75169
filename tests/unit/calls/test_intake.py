"""The one place that makes calls: what they carry, how they tell progress, and when they are withdrawn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from dragoman import tool
from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Outcome, Withdrawal
from dragoman.calls.origin import Origin
from dragoman.errors import InternalError
from dragoman.protocol.session import ToolCall
from dragoman.testing import SequentialIds, open_server
from tests.support.calls import Held
from tests.support.waiting import PATIENCE, until


class Told:
    """A client that keeps what it is told."""

    capabilities: ClassVar[Mapping[str, Any]] = {}
    log_level = None
    can_be_asked = False

    def __init__(self) -> None:
        self.heard: list[Mapping[str, Any]] = []

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        assert method == "notifications/progress"
        self.heard.append(params)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError(method)


def asking(**meta: Any) -> ToolCall:
    return ToolCall(7, "hold", {"a": 1}, meta, True, {"name": {}}, "sealed")


async def test_a_call_has_what_its_request_brought_and_ids_of_its_own() -> None:
    async with open_server(ids=SequentialIds()) as server:
        origin = Origin(Caller("ada"), "http", is_modern=True)
        call = server.runtime.intake.make(asking(correlationId="mine"), origin)
        other = server.runtime.intake.make(asking(correlationId="\n"), origin)
    assert (call.name, call.arguments, call.request_id, call.method) == ("hold", {"a": 1}, 7, "tools/call")
    assert (call.run_id, call.correlation_id, call.meta) == ("run-1", "mine", {"correlationId": "mine"})
    assert (call.input_responses, call.request_state) == ({"name": {}}, "sealed")
    assert (call.origin, call.progress, call.is_found) == (origin, None, False)
    assert (other.run_id, other.correlation_id) == ("run-2", "corr-1")


async def test_calls_that_start_later_are_all_submitted_before_the_first_is_answered() -> None:
    happened: list[str] = []

    @tool
    async def act() -> None:
        """."""
        happened.append("ran")

    async with open_server([act]) as server:
        intake = server.runtime.intake
        for _ in range(2):
            call = intake.make(ToolCall(1, "act", {}, {}, False), Origin(), lambda *_: happened.append("answered"))
            intake.submit_later(call)
            happened.append("submitted")
        await until(lambda: len(happened) == 6)
    assert happened == ["submitted", "submitted", "ran", "answered", "ran", "answered"]


async def test_progress_reaches_the_client_from_the_loop_and_from_a_thread() -> None:
    client = Told()
    async with open_server() as server:
        call = server.runtime.intake.make(asking(progressToken="t"), Origin(client=client))
        assert call.progress is not None
        call.progress(1, None, None)
        assert client.heard == [{"progressToken": "t", "progress": 1}]
        await asyncio.to_thread(call.progress, 2, 3, "nearly")
        await asyncio.sleep(0)
    assert client.heard[1:] == [{"progressToken": "t", "progress": 2, "total": 3, "message": "nearly"}]


async def test_progress_that_a_thread_tells_just_before_the_answer_does_not_follow_it() -> None:
    client = Told()
    async with open_server() as server:
        call = server.runtime.intake.make(asking(progressToken="t"), Origin(client=client))
        assert call.progress is not None
        telling = threading.Thread(target=call.progress, args=(1, None, None))
        telling.start()
        telling.join(PATIENCE)  # The loop stands still meanwhile.
        call.answer(Outcome("done"))
        await asyncio.sleep(0)
    assert client.heard == []


async def test_progress_without_a_json_form_fails_in_the_handler_and_is_not_told() -> None:
    client = Told()
    async with open_server() as server:
        call = server.runtime.intake.make(asking(progressToken="t"), Origin(client=client))
        assert call.progress is not None
        with pytest.raises(TypeError):
            await asyncio.to_thread(call.progress, 1, None, object())
        await asyncio.sleep(0)
    assert client.heard == []


async def test_without_a_way_back_there_is_no_progress() -> None:
    async with open_server() as server:
        call = server.runtime.intake.make(asking(progressToken="t"), Origin())
    assert call.progress is None


@pytest.mark.parametrize("reason", ["client", "disconnect"])
async def test_a_call_is_withdrawn_when_the_waiting_for_its_answer_is_cancelled(reason: Withdrawal) -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        intake = server.runtime.intake
        call = intake.make(ToolCall(1, "hold", {}, {}, False), Origin())
        waiting = asyncio.create_task(intake.answer(call, lambda call, outcome: outcome, lambda: reason))
        await held.begun.wait()
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=PATIENCE)
        assert waiting.cancelled()
        assert (held.tokens[0].reason, call.disconnected) == (reason, reason == "disconnect")
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)


async def test_an_answer_that_comes_just_after_the_waiting_was_cancelled_is_not_worded() -> None:
    held = Held()
    worded: list[Outcome] = []
    async with open_server([held.tool]) as server:
        intake = server.runtime.intake
        call = intake.make(ToolCall(1, "hold", {}, {}, False), Origin())
        waiting = asyncio.create_task(intake.answer(call, lambda call, outcome: worded.append(outcome)))
        await held.begun.wait()
        held.release.set()  # First: the handler goes on before the waiting task does.
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=PATIENCE)
        assert (waiting.cancelled(), worded) == (True, [])
    assert [record["outcome"] for record in server.records] == ["success"]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_answer_is_returned_whether_or_not_it_had_to_be_waited_for(waits: bool) -> None:
    async def once() -> str:
        if waits:
            await asyncio.sleep(0)
        return "done"

    async with open_server([tool(once)]) as server:
        outcome = await server.runtime.call("once")
    assert outcome.unwrap() == "done"


async def test_an_error_that_an_outcome_is_worded_as_is_raised() -> None:
    def word(call: Call, outcome: Outcome) -> InternalError:
        return InternalError(call.name)

    async with open_server() as server:
        intake = server.runtime.intake
        with pytest.raises(InternalError, match="hold"):
            await intake.answer(intake.make(asking(), Origin()), word)

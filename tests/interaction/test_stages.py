"""Stages of an embedding application: the same over stdio and through both eras of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import date
from functools import partial
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from dragoman import Call, Caller, Runtime, ServerOptions, Stage, create_server, resource, tool
from dragoman.calls.call import Service
from dragoman.calls.tracing import Span
from dragoman.config import make_config
from dragoman.errors import Unauthorized
from dragoman.testing import open_server
from tests.support.asgi import Driver
from tests.support.http_serving import modern_call, open_session, serving
from tests.support.waiting import PATIENCE

ran: list[str] = []


@tool
def shout(word: str) -> str:
    """Says a word loudly."""
    ran.append(word)
    return word.upper()


@resource("data://word")
def word() -> str:
    """A word to read."""
    ran.append("read")
    return "word"


class Door(NamedTuple):
    """A server, and a way to call its tool `shout`: gives the JSON-RPC answer."""

    runtime: Runtime
    shout: Callable[[Any], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def stdio(stages: Sequence[Stage]) -> AsyncIterator[Door]:
    async with open_server([shout, word], stages=stages) as server:
        client = await server.client()
        params = {"name": "shout", "arguments": {}}
        yield Door(server.runtime, lambda said: client.request("tools/call", {**params, "arguments": {"word": said}}))


@asynccontextmanager
async def modern_http(stages: Sequence[Stage]) -> AsyncIterator[Door]:
    async with serving([shout, word], stages=stages) as server:

        async def call(said: Any) -> dict[str, Any]:
            return await (await (await modern_call(server.port, 1, "shout", word=said)).begin()).answer()

        yield Door(server.runtime, call)


@asynccontextmanager
async def http_session(stages: Sequence[Stage]) -> AsyncIterator[Door]:
    async with serving([shout, word], stages=stages) as server:
        session = await open_session(server.port)

        async def call(said: Any) -> dict[str, Any]:
            return await (await (await session.call(1, "shout", word=said)).begin()).answer()

        yield Door(server.runtime, call)


DOORS = {"stdio": stdio, "modern HTTP": modern_http, "HTTP session": http_session}
each_door = pytest.mark.parametrize("door", DOORS)


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


def text_in(answer: dict[str, Any]) -> str:
    (block,) = answer["result"]["content"]
    text: str = block["text"]
    return text


class Refuse:
    """Refuses calls about one word."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __call__(self, proceed: Service, /) -> Service:
        def refuse(call: Call) -> Awaitable[Any]:
            if call.arguments.get("word") == self._word:
                raise Unauthorized("Not this word", {"word": self._word})
            return proceed(call)

        return refuse


@each_door
async def test_a_stage_can_refuse_a_call(door: str) -> None:
    async with asyncio.timeout(PATIENCE), DOORS[door]([Refuse("no")]) as opened:
        answer = await opened.shout("no")
        assert answer["result"]["isError"] is True
        assert '"code":"UNAUTHORIZED","message":"Not this word"' in text_in(answer)
        assert text_in(await opened.shout("yes")) == "YES"
        assert ran == ["yes"]
        assert opened.runtime.slots.in_use == 0


@each_door
async def test_a_stage_can_observe_calls_and_their_results(door: str) -> None:
    seen: list[tuple[str, str, Any]] = []

    def observe(proceed: Service) -> Service:
        async def watch(call: Call) -> Any:
            value = await proceed(call)
            seen.append((call.name, call.origin.transport, value))
            return value

        return watch

    async with asyncio.timeout(PATIENCE), DOORS[door]([observe]) as opened:
        assert text_in(await opened.shout("yes")) == "YES"
        assert seen == [("shout", "stdio" if door == "stdio" else "http", "YES")]


@each_door
async def test_a_stage_can_rewrite_arguments_and_results(door: str) -> None:
    def rewrite(proceed: Service) -> Service:
        async def change(call: Call) -> Any:
            call.arguments = {"word": f"{call.arguments['word']}!"}
            return f"{await proceed(call)}?"

        return change

    async with asyncio.timeout(PATIENCE), DOORS[door]([rewrite]) as opened:
        assert text_in(await opened.shout("yes")) == "YES!?"
        answer = await opened.shout(5)
        assert text_in(answer) == "5!?", "it is validated as rewritten"


def cancelled() -> BaseException:
    return asyncio.CancelledError("another task's")


@each_door
@pytest.mark.parametrize("make", [ValueError, cancelled, SystemExit, GeneratorExit])
async def test_an_exception_before_the_tool_runs_ends_its_call_and_not_the_server(
    door: str, make: Callable[[], BaseException]
) -> None:
    def fail(proceed: Service) -> Service:
        async def raise_once(call: Call) -> Any:
            if call.arguments["word"] == "no":
                raise make()
            return await proceed(call)

        return raise_once

    async with asyncio.timeout(PATIENCE), DOORS[door]([fail]) as opened:
        error = (await opened.shout("no"))["error"]
        assert (error["code"], error["message"]) == (-32603, "Internal error")
        assert text_in(await opened.shout("yes")) == "YES"
        assert ran == ["yes"]
        assert (opened.runtime.slots.in_use, opened.runtime.runner.under_way) == (0, 0)


@each_door
async def test_an_exception_after_the_tool_ran_is_a_tool_error(door: str) -> None:
    def fail(proceed: Service) -> Service:
        async def raise_after(call: Call) -> Any:
            await proceed(call)
            raise ValueError("stays in the log")

        return raise_after

    async with asyncio.timeout(PATIENCE), DOORS[door]([fail]) as opened:
        text = text_in(await opened.shout("yes"))
        assert '"code":"INTERNAL","message":"The tool failed"' in text
        assert "stays in the log" not in text
        assert ran == ["yes"]


def copied(call: Call) -> Call:
    return replace(call, arguments=dict(call.arguments))


def made_anew(call: Call) -> Call:
    return Call(call.origin, call.name, call.arguments, call.run_id, call.correlation_id, call.reply, tool=call.tool)


@each_door
@pytest.mark.parametrize("copy", [copied, made_anew])
async def test_a_stage_that_passes_on_a_copy_of_its_call_keeps_no_slot(door: str, copy: Callable[[Call], Call]) -> None:
    def pass_on_a_copy(proceed: Service) -> Service:
        return lambda call: proceed(copy(call))

    async with asyncio.timeout(PATIENCE), DOORS[door]([pass_on_a_copy]) as opened:
        assert (await opened.shout("yes"))["error"]["code"] == -32603
        assert ran == []
        assert (opened.runtime.slots.in_use, opened.runtime.runner.under_way) == (0, 0)


async def test_a_stage_cannot_go_on_with_a_call_that_has_ended() -> None:
    later: list[Callable[[], Awaitable[Any]]] = []

    def answer_first(proceed: Service) -> Service:
        async def answer(call: Call) -> Any:
            later.append(partial(proceed, call))
            return "early"

        return answer

    async with open_server([shout], stages=[answer_first]) as server:
        assert (await server.runtime.call("shout", {"word": "yes"})).value == "early"
        with pytest.raises(RuntimeError, match="has ended"):
            await later[0]()
        assert (server.runtime.slots.in_use, ran) == (0, [])


async def test_a_stage_can_run_a_tool_again_with_arguments_set_again() -> None:
    @tool
    def year_of(day: date) -> int:
        """The year of a day."""
        ran.append(day.isoformat())
        return day.year

    def repeat(proceed: Service) -> Service:
        async def run_twice(call: Call) -> Any:
            arguments = call.arguments
            first = await proceed(call)
            call.arguments = arguments
            return first + await proceed(call)

        return run_twice

    async with open_server([year_of], stages=[repeat]) as server:
        assert (await server.runtime.call("year_of", {"day": "2026-07-28"})).unwrap() == 2 * 2026
        assert ran == ["2026-07-28", "2026-07-28"]
        assert server.runtime.slots.in_use == 0


async def test_the_stages_show_no_arguments_of_calls_under_way() -> None:
    shown: list[str] = []

    def look(proceed: Service) -> Service:
        def show(call: Call) -> Awaitable[Any]:
            shown.append(repr(server.runtime.stages))
            return proceed(call)

        return show

    async with open_server([shout], stages=[look]) as server:
        await server.runtime.call("shout", {"word": "a secret"})
    assert "RecordCompletion(" in shown[0]
    assert "a secret" not in shown[0]


async def test_stages_stand_in_their_order_after_the_check_of_scopes_and_traces_name_them() -> None:
    def second(proceed: Service) -> Service:
        return proceed

    async with open_server([shout], stages=[Refuse("no"), second]) as server:
        assert "CheckScopes(), <" in repr(server.runtime.stages)
        trace: list[Span] = []
        await server.runtime.call("shout", {"word": "yes"}, trace=trace)
        names = [span.name for span in trace]
        start = names.index("CheckScopes")
        assert names[start : start + 5] == ["CheckScopes", "Refuse", "second", "CheckCall", "LimitRate"]


async def test_the_explorer_describes_stages_by_their_docstrings() -> None:
    def second(proceed: Service) -> Service:
        """Does nothing."""
        return proceed

    config = make_config({"explorer": {"enabled": True}})
    app = create_server(ServerOptions(config=config, stages=[Refuse("no"), second])).http()
    described = (await Driver(app).ask(b"GET /explorer/pipeline HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).json
    assert described[5:7] == [
        {"name": "Refuse", "description": "Refuses calls about one word."},
        {"name": "second", "description": "Does nothing."},
    ]
    await app.stop(0)


async def test_a_stage_sees_no_call_that_its_caller_may_not_make() -> None:
    seen: list[str] = []

    def observe(proceed: Service) -> Service:
        def watch(call: Call) -> Awaitable[Any]:
            seen.append(call.name)
            return proceed(call)

        return watch

    async with open_server([shout], stages=[observe]) as server:
        stranger = Caller("eve", scopes=frozenset({"tool:other"}))
        outcome = await server.runtime.call("shout", {"word": "yes"}, caller=stranger)
        assert outcome.error is not None
        assert (seen, ran) == ([], [])


async def test_a_stage_stands_before_resources_too() -> None:
    class Closed:
        """Refuses everything."""

        def __call__(self, proceed: Service, /) -> Service:
            def refuse(call: Call) -> Awaitable[Any]:
                raise Unauthorized("Closed")

            return refuse

    async with open_server([word], stages=[Closed()]) as server:
        answer = await (await server.client()).request("resources/read", {"uri": "data://word"})
        assert answer["error"]["message"] == "Closed"
        assert ran == []

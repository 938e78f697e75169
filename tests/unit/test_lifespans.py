"""Lifespans: what they may be, and where they are entered and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from dragoman import Tool, ToolContext, ToolDefinition, define_tool, resource
from dragoman.app import ServerOptions, create_server
from dragoman.lifespans import Lifespan
from dragoman.runtime import Runtime
from dragoman.testing import ManualClock, open_server


def recorder(name: str, seen: list[str]) -> Any:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        seen.append(f"{name} entered")
        yield name
        seen.append(f"{name} left")

    return lifespan


def make(name: str, handler: Any) -> Tool:
    return define_tool(ToolDefinition(name=name, description="", input_schema={"type": "object"}), handler)


async def _value(arguments: dict[str, Any], ctx: ToolContext) -> dict[str, Any]:
    return {"value": ctx.lifespan}


value = make("value", _value)


async def value_in(runtime: Runtime, name: str = "value") -> Any:
    return (await runtime.call(name)).unwrap()["value"]


async def test_the_value_of_the_servers_lifespan_is_in_the_context() -> None:
    @asynccontextmanager
    async def lifespan(runtime: Runtime) -> AsyncIterator[dict[str, Any]]:
        yield {"server": runtime.config.server.name}

    async with open_server([value], lifespan=lifespan) as server:
        assert await value_in(server.runtime) == {"server": "dragoman"}
    async with open_server([value]) as server:
        assert await value_in(server.runtime) is None


async def test_a_lifespan_is_entered_and_left_in_one_task_so_that_it_may_hold_a_task_group() -> None:
    tasks = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks.append(asyncio.current_task())
            group.create_task(asyncio.sleep(0))
            yield
        tasks.append(asyncio.current_task())

    runtime = create_server(ServerOptions(lifespan=lifespan))
    await asyncio.create_task(runtime.start())
    await asyncio.create_task(runtime.stop())
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_tools_of_several_files_have_the_lifespan_of_their_own_file_and_are_left_in_reverse() -> None:
    seen: list[str] = []
    first, second = (Lifespan(recorder(name, seen)) for name in ("first", "second"))
    other = make("other", _value)

    @resource("x:y")
    async def read(ctx: ToolContext) -> dict[str, Any]:
        return {"value": ctx.lifespan}

    async with open_server(
        [value.within(first), other.within(second), read], lifespan=recorder("server", seen)
    ) as server:
        assert await value_in(server.runtime) == "first"
        assert await value_in(server.runtime, "other") == "second"
        client = await server.client()
        contents = (await client.request("resources/read", {"uri": "x:y"}))["result"]["contents"]
        assert '"server"' in contents[0]["text"]
    assert seen == [
        *("server entered", "first entered", "second entered"),
        *("second left", "first left", "server left"),
    ]


async def test_a_reload_enters_the_new_lifespan_first_and_leaves_the_old_one_when_its_calls_have_ended() -> None:
    seen: list[str] = []
    begun, release = asyncio.Event(), asyncio.Event()

    async def hold(arguments: dict[str, Any], ctx: ToolContext) -> dict[str, Any]:
        begun.set()
        await release.wait()
        return {"value": ctx.lifespan}

    old, new = Lifespan(recorder("old", seen)), Lifespan(recorder("new", seen))
    before, after = [make("hold", hold).within(old)], [value.within(new)]
    async with open_server(before) as server:
        client = await server.client()
        call = client.begin("tools/call", {"name": "hold", "arguments": {}})
        await begun.wait()
        await server.runtime.reload(before, after)
        assert await value_in(server.runtime) == "new"
        assert seen == ["old entered", "new entered"]
        release.set()
        assert (await client.answer(call))["result"]["content"][0]["text"] == '{"value":"old"}'
        await _until(lambda: seen[-1] == "old left")
    assert seen == ["old entered", "new entered", "old left", "new left"]


async def test_a_reload_whose_lifespan_or_tools_cannot_be_used_changes_nothing() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    before = [value.within(Lifespan(recorder("old", seen)))]
    async with open_server(before) as server:
        with pytest.raises(ValueError, match="no database"):
            await server.runtime.reload(before, [value.within(Lifespan(failing))])
        twice = [value.within(Lifespan(recorder("new", seen)))] * 2
        with pytest.raises(Exception, match="registered already"):
            await server.runtime.reload(before, twice)
        assert await value_in(server.runtime) == "old"
        await _until(lambda: seen[-1] == "new left")
    assert seen == ["old entered", "new entered", "new left", "old left"]


async def test_a_lifespan_that_does_not_end_is_cancelled_when_the_time_to_stop_is_over() -> None:
    cancelled = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with open_server([value], lifespan=lifespan) as server:
        assert await server.runtime.stop(0.01) == 0
        assert [entry["message"] for entry in server.log] == ["the end of the lifespan took too long"]
        await cancelled.wait()


async def test_a_stop_while_a_lifespan_is_being_entered_cancels_it() -> None:
    begun = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        begun.set()
        await asyncio.Event().wait()
        yield

    runtime = create_server(ServerOptions(lifespan=lifespan))
    starting = asyncio.create_task(runtime.start())
    await begun.wait()
    assert await runtime.stop(5) == 0
    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.mark.parametrize("error", [SystemExit("bye"), KeyboardInterrupt()])
async def test_a_lifespan_that_exits_fails_the_start_or_is_logged_and_does_not_end_the_event_loop(
    error: BaseException,
) -> None:
    is_early = True

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        if is_early:
            raise error
        yield
        raise error

    with pytest.raises(type(error)):
        await create_server(ServerOptions(lifespan=lifespan, clock=ManualClock())).start()
    is_early = False
    async with open_server([value], lifespan=lifespan) as server:
        await server.runtime.stop(5)
        assert [entry["message"] for entry in server.log] == ["the end of the lifespan failed"]


async def _bare() -> AsyncIterator[None]:
    yield


async def _coroutine() -> None: ...


def _generator() -> Iterator[None]:
    yield


@asynccontextmanager
async def _of_two(one: int, two: int) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_bare, "decorate it with @contextlib.asynccontextmanager"),
        (_coroutine, "must be an async generator function"),
        (_generator, "must be an async generator function"),
        (asynccontextmanager(_bare)(), "without calling it"),
        (7, "must be an async generator function"),
        (_of_two, "takes no argument, or one: the runtime"),
    ],
)
def test_what_cannot_be_a_lifespan_is_refused_with_a_reason(make: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Lifespan(make)


async def test_a_sync_context_manager_fails_the_start_with_a_reason() -> None:
    runtime = create_server(ServerOptions(lifespan=contextmanager(_generator)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="asynchronous context manager"):
        await runtime.start()


async def _until(is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_cancellation_of_its_own_is_a_failure_of_the_lifespan() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        waited_for = asyncio.create_task(asyncio.sleep(0))
        waited_for.cancel()
        await waited_for
        yield

    explained = Lifespan(lifespan, lambda error: RuntimeError(f"it failed: {type(error).__name__}"))
    with pytest.raises(RuntimeError, match="it failed: CancelledError"):
        await explained.enter(None)
    assert await explained.leave(0)

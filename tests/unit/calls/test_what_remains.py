"""Nothing of a call outlives it: what it held is free when it has ended, without the help of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import pytest
from apcore import Executor

from apcore_mcp.server.serve import attach
from dragoman import Ask, Text, ToolContext, prompt, resource, tool
from dragoman.access.callers import Caller
from dragoman.app import ServerOptions, create_server
from dragoman.calls.call import Call, Outcome
from dragoman.config import make_config
from dragoman.edge.http.exchange import Exchange, SessionCall
from dragoman.edge.http.server import HttpServer
from dragoman.errors import Failed
from dragoman.offers.catalogue import Offers
from dragoman.runtime import Runtime
from dragoman.testing import MemoryClient
from dragoman.tools.tool import tool_of
from tests.support import http_serving
from tests.support.asgi import Driver
from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, message, modern, modern_call, request
from tests.support.modules import Does, registry_of
from tests.support.waiting import PATIENCE, until


class Held:
    """What a handler works on."""


class Refusing(Held):
    """What has no JSON form."""


class Long(Held):
    def model_dump(self, **options: Any) -> str:
        return "x" * 1000


@tool
async def succeed(kind: str = "") -> dict[str, int]:
    """Works."""
    held = Held()
    return {"id": id(held)}


@tool
def succeed_on_a_thread() -> int:
    """Works."""
    held = Held()
    return id(held)


@tool
async def fail() -> None:
    """Says that it failed."""
    held = Held()
    raise Failed("no", {"id": id(held)})


@tool
async def break_down() -> None:
    """Has a defect."""
    held = Held()
    try:
        raise KeyError(id(held))
    except KeyError as error:
        raise ValueError("no") from error


@tool
async def keep_an_error() -> None:
    """Has a defect, and a frame that leads back to its exception."""
    held = Held()
    error = ValueError(id(held))
    raise error


@tool
def break_down_on_a_thread() -> None:
    """Has a defect."""
    held = Held()
    raise ValueError(id(held))


@tool
async def break_down_on_a_worker() -> None:
    """Has a defect."""

    def work() -> None:
        held = Held()
        raise ValueError(id(held))

    await asyncio.to_thread(work)


@tool
async def break_down_in_a_group() -> None:
    """Has a defect in a task."""

    async def child() -> None:
        held = Held()
        raise ValueError(id(held))

    held = Held()
    async with asyncio.TaskGroup() as group:
        group.create_task(child())
    del held


@tool
async def return_what_cannot_be_sent() -> Any:
    """Returns what has no JSON form."""
    return Refusing()


@tool
async def return_too_much() -> Any:
    """Returns more than may be sent."""
    return [Long()] * 100_000


@tool
async def return_blocks() -> Any:
    """Returns content blocks."""
    held = Held()
    return [Text(str(id(held)))]


@tool(timeout_ms=20)
async def take_too_long(ctx: ToolContext) -> None:
    """Stops when it is told to, by raising."""
    held = Held()
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()
    del held


@tool(timeout_ms=20)
def take_too_long_on_a_thread(ctx: ToolContext) -> int:
    """Stops when it is told to, by raising."""
    held = Held()
    while True:
        ctx.cancellation.raise_if_set()
        if held is None:
            return 1


@tool
async def wait(ctx: ToolContext) -> None:
    """Waits until it is cancelled."""
    held = Held()
    STARTED.append(ctx.run_id)
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()
    del held


@tool(read_only=True, cache_ttl_ms=1000)
async def keep() -> int:
    """Has its result kept."""
    held = Held()
    return id(held)


@tool(read_only=True, cache_ttl_ms=1000)
async def keep_nothing() -> int:
    """Is asked for a result that is kept, and has a defect."""
    held = Held()
    await asyncio.sleep(0.01)
    raise ValueError(id(held))


@tool(read_only=True)
async def limited() -> int:
    """May be called once a minute."""
    return 1


@tool
async def ask(sure: Annotated[bool, Ask("Sure?")]) -> bool:
    """Asks before it runs."""
    held = Held()
    return sure and held is not None


@tool
async def ask_meanwhile(ctx: ToolContext) -> str:
    """Asks in the middle of its work."""
    held = Held()
    answer = await ctx.elicit("Sure?", bool)
    return f"{answer} {id(held)}"


@resource("held://it")
async def read() -> str:
    """Works."""
    held = Held()
    return str(id(held))


@resource("held://not")
async def read_nothing() -> str:
    """Has a defect."""
    held = Held()
    raise ValueError(id(held))


@prompt
async def say() -> str:
    """Works."""
    held = Held()
    return str(id(held))


@prompt
async def say_nothing() -> str:
    """Has a defect."""
    held = Held()
    raise ValueError(id(held))


STARTED: list[str] = []
OFFERS = [read, read_nothing, say, say_nothing]
TOOLS = [
    succeed,
    succeed_on_a_thread,
    fail,
    break_down,
    keep_an_error,
    break_down_on_a_thread,
    break_down_on_a_worker,
    break_down_in_a_group,
    return_what_cannot_be_sent,
    return_too_much,
    return_blocks,
    take_too_long,
    take_too_long_on_a_thread,
    wait,
    keep,
    keep_nothing,
    limited,
    ask,
    ask_meanwhile,
]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    tool_of(each).name: (tool_of(each).name, {}) for each in TOOLS if each not in (wait, ask, ask_meanwhile)
}
CALLS |= {
    "arguments that do not fit": ("succeed", {"kind": 1}),
    "an unknown tool": ("nobody", {}),
    "an array that is too long": ("succeed", {"kind": [0] * 1000}),
    "a module": ("module.works", {}),
    "a module that fails": ("module.fails", {}),
}
CONFIG = {"limits": {"tools": {"limited": {"calls_per_minute": 1}}}}


def does(inputs: dict[str, Any], context: Any) -> dict[str, Any]:
    held = Held()
    return {"id": id(held)}


def does_not(inputs: dict[str, Any], context: Any) -> dict[str, Any]:
    held = Held()
    raise ValueError(id(held))


@asynccontextmanager
async def serving(config: dict[str, Any] | None = None) -> AsyncIterator[tuple[Runtime, Driver]]:
    offers = Offers()
    options = ServerOptions(config=make_config({**CONFIG, **(config or {})}), tools=[*TOOLS, *OFFERS], offers=offers)
    runtime = create_server(options)
    listener = attach(runtime, Executor(registry_of(module__works=Does(does), module__fails=Does(does_not))))
    app = runtime.http()
    async with app.lifespan():
        yield runtime, Driver(app)
    listener.stop()


@pytest.fixture(autouse=True)
def without_the_collector() -> Iterator[None]:
    logging.disable()  # pytest keeps what is logged, with the exceptions.
    gc.collect()
    gc.freeze()  # What is there already is not looked at.
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


def left() -> list[Any]:
    kinds = (Call, Outcome, ToolContext, Exchange, SessionCall)
    return [each for each in gc.get_objects() if type(each) in kinds or isinstance(each, Held)]


async def check_that_nothing_remains(case: str) -> None:
    """What has been answered may take a few turns of the loop to end."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while left() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 -- it is nobody's event.
        await asyncio.sleep(0.005)
    assert [type(each).__name__ for each in left()] == [], case


class Ways:
    """The ways in which a call can come."""

    def __init__(self, runtime: Runtime, driver: Driver) -> None:
        self._runtime = runtime
        self._driver = driver
        self._address: tuple[str, int]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve at an address, too."""
        async with http_serving.listening(HttpServer(self._driver.app, self._runtime.config.http)) as port:
            self._address = ("127.0.0.1", port)
            yield

    async def python(self, name: str, arguments: dict[str, Any]) -> None:
        outcome = await self._runtime.call(name, arguments)
        assert outcome.rendered is not None

    async def stdio(self, name: str, arguments: dict[str, Any]) -> None:
        client = await MemoryClient(self._runtime).handshake()
        await client.call_tool(name, arguments)

    async def stdio_with_progress(self, name: str, arguments: dict[str, Any]) -> None:
        client = await MemoryClient(self._runtime).handshake()
        await client.call_tool(name, arguments, {"progressToken": "t"})

    async def modern_stdio(self, name: str, arguments: dict[str, Any]) -> None:
        await MemoryClient(self._runtime, modern=True).call_tool(name, arguments)

    async def http(self, name: str, arguments: dict[str, Any]) -> None:
        """By ASGI."""
        answer = await self._driver.ask(modern_call(name, **arguments))
        assert answer.message["id"] == 1

    async def whole_http(self, name: str, arguments: dict[str, Any]) -> None:
        """By the server's own door."""
        reader, writer = await asyncio.open_connection(*self._address)
        async with asyncio.timeout(PATIENCE):
            writer.write(modern_call(name, **arguments))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            writer.close()
            await writer.wait_closed()

    async def session(self, name: str, arguments: dict[str, Any], **meta: Any) -> None:
        """In the lane."""
        opened = await self._driver.ask(request(INITIALIZE))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": LATEST}
        await self._driver.ask(request(INITIALIZED, headers))
        params = {"name": name, "arguments": arguments, **({"_meta": meta} if meta else {})}
        answer = await self._driver.ask(request(message("tools/call", params, 1), headers))
        assert answer.message["id"] == 1

    async def sdk_session(self, name: str, arguments: dict[str, Any]) -> None:
        """In a session, by way of the SDK."""
        await self.session(name, arguments, progressToken="t")


WAYS = ["python", "stdio", "stdio_with_progress", "modern_stdio", "http", "whole_http", "session", "sdk_session"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_of_a_call_remains_when_it_has_ended(way: str) -> None:
    async with serving() as (runtime, driver):
        ways = Ways(runtime, driver)
        async with ways.listening():
            for case, (name, arguments) in CALLS.items():
                if way == "python" and case == "keep_an_error":
                    continue  # Its errors keep their tracebacks, and so what a tool's own frames lead to.
                for _ in range(2):
                    await getattr(ways, way)(name, arguments)
                if way == "python" and sys.version_info >= (3, 12):
                    # Tasks start eagerly there, so the frames of an error lead back to the caller, which has the error.
                    gc.collect()
                await check_that_nothing_remains(case)


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_nothing_of_a_refused_call_remains(way: str) -> None:
    """Because of the slots, of the caller's scopes, or because the server stops."""
    async with serving({"resources": {"max_concurrent_executions": 1}}) as (runtime, driver):
        ways = Ways(runtime, driver)
        release = runtime.slots.try_acquire_slot()
        assert release is not None
        await getattr(ways, way)("succeed", {"kind": "x"})
        await check_that_nothing_remains("no slot")
        release()
        client = await MemoryClient(runtime, caller=Caller("ada", scopes=frozenset({"tool:other"}))).handshake()
        await client.call_tool("succeed", {})
        await check_that_nothing_remains("no scope")
        await runtime.stop(0)
        await getattr(ways, way)("succeed", {})
        await check_that_nothing_remains("no server")


async def started() -> None:
    await until(lambda: STARTED)
    STARTED.clear()


async def test_nothing_of_a_cancelled_call_remains() -> None:
    async with serving() as (runtime, driver):
        client = await MemoryClient(runtime).handshake()
        request_id = client.begin("tools/call", {"name": "wait", "arguments": {}})
        await started()
        client.notify("notifications/cancelled", {"requestId": request_id})
        client.connection.disconnect()
        await check_that_nothing_remains("by its client")
        calling = asyncio.create_task(runtime.call("wait", {}))
        await started()
        calling.cancel()
        await asyncio.wait([calling])
        del calling
        await check_that_nothing_remains("by Python")
        asked = driver.begin(modern_call("wait"))
        await started()
        asked.leave()
        await asyncio.wait([asked.task])
        del asked
        await check_that_nothing_remains("by a dropped request")


async def test_nothing_remains_of_calls_that_share_a_result_or_a_failure() -> None:
    async with serving() as (runtime, _):
        for name in ("keep", "keep_nothing"):
            outcomes = await asyncio.gather(*(runtime.call(name, {}) for _ in range(3)))
            assert len({outcome.is_error for outcome in outcomes}) == 1
            del outcomes
            await check_that_nothing_remains(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ask", "ask_meanwhile"])
@pytest.mark.parametrize("reply", ["accept", "decline", "error", "nonsense", "leave"])
async def test_nothing_remains_of_a_call_whose_client_was_asked(name: str, reply: str) -> None:
    async with serving() as (runtime, _):
        client = MemoryClient(runtime, capabilities={"elicitation": {"form": {}}})
        await client.handshake()
        request_id = client.begin("tools/call", {"name": name, "arguments": {}})
        question = await client.question()
        if reply == "leave":
            client.disconnect()
        else:
            key = next(iter(question["params"]["requestedSchema"]["properties"]))
            if reply == "error":
                error = {"code": -1, "message": "no"}
                client.send(msgspec.json.encode({"jsonrpc": "2.0", "id": question["id"], "error": error}) + b"\n")
            else:
                content = {"content": {key: True if reply == "accept" else "x"}} if reply != "decline" else {}
                client.reply(question, {"action": "decline" if reply == "decline" else "accept", **content})
            await client.answer(request_id)
        await check_that_nothing_remains(reply)


WORKING = (str({"uri": "held://it"}), str({"name": "say"}))


@pytest.mark.slow
@pytest.mark.parametrize("is_modern", [False, True])
async def test_nothing_remains_of_what_is_offered_besides_tools(is_modern: bool) -> None:
    async with serving() as (runtime, driver):
        client = MemoryClient(runtime, modern=is_modern)
        if not is_modern:
            await client.handshake()
        for method, params in (
            ("resources/read", {"uri": "held://it"}),
            ("resources/read", {"uri": "held://not"}),
            ("resources/read", {"uri": "held://nobody"}),
            ("prompts/get", {"name": "say"}),
            ("prompts/get", {"name": "say_nothing"}),
        ):
            answer = await client.request(method, params)
            assert ("result" in answer) is (str(params) in WORKING)
            await check_that_nothing_remains(str(params))
            if is_modern:
                headers = {"mcp-name": params.get("uri") or params["name"]}
                response = await driver.ask(modern(method, params, headers))
                assert ("result" in response.message) is (str(params) in WORKING)
                await check_that_nothing_remains(f"{params} over HTTP")


@pytest.mark.slow
async def test_error_of_a_call_from_python_keeps_its_traceback() -> None:
    async with serving() as (runtime, _):
        outcome = await runtime.call("break_down", {})
    assert outcome.error is not None
    assert outcome.error.__cause__ is not None
    assert "held = Held()" not in "".join(traceback.format_exception(outcome.error))
    assert 'raise ValueError("no") from error' in "".join(traceback.format_exception(outcome.error))

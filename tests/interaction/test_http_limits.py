"""What clients may take up is bounded: time, connections, sessions, memory. Those who keep to it notice nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

import dragoman
from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.edge.http.listening import bind
from dragoman.edge.http.server import HttpServer
from dragoman.runtime import Runtime
from tests.support.answers import text_in
from tests.support.asgi import Driver
from tests.support.http_process import HttpProcess
from tests.support.http_serving import listening
from tests.support.http_wire import INITIALIZE, INITIALIZED, Wire, message, modern, modern_call, request
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, until, wait_until

pytestmark = pytest.mark.slow
TOOLS = path_of("http_tools.py")
SESSIONS = int(os.environ.get("DRAGOMAN_TEST_SESSIONS", "500"))
"""How many sessions are opened and dropped; raise it for a longer look at what stays behind."""
CONNECTIONS = 2000


@pytest.fixture(scope="module")
def impatient() -> Iterator[HttpProcess]:
    """A server that waits for nobody."""
    settings = {
        "http.read_timeout_ms": 400,
        "http.write_timeout_ms": 400,
        "http.keep_alive_ms": 1000,
        "tools.max_payload_bytes": 10_000_000,
        "response.max_response_bytes": 100_000_000,
    }
    with HttpProcess(TOOLS, settings=settings) as server:
        yield server
        server.check_health()


def drip(wire: Wire, data: bytes, patience: float = PATIENCE) -> None:
    """Send the data a byte at a time, slowly, until the server has enough."""
    deadline = time.monotonic() + patience
    wire.socket.settimeout(0.05)
    for byte in data:
        assert time.monotonic() < deadline, "the server waits for ever"
        try:
            wire.send(bytes([byte]))
            if wire.socket.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
    wire.socket.settimeout(patience)


REQUEST = modern_call("echo", message="hi" * 200)
HEAD, BODY = REQUEST.split(b"\r\n\r\n")


@pytest.mark.parametrize("at_once", [b"", HEAD + b"\r\n\r\n"], ids=["head", "body"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_a_client_that_sends_too_slowly_is_told_so_and_disconnected(
    impatient: HttpProcess, at_once: bytes, is_first: bool
) -> None:
    with impatient.wire() as wire:
        if not is_first:
            assert wire.ask(REQUEST).status == 200
        wire.send(at_once)
        drip(wire, REQUEST[len(at_once) :])
        answered = wire.read()
        assert (answered.status, answered.code, wire.is_ended) == (408, -32600, True)


def test_a_chunked_body_without_an_end_is_cut_off(impatient: HttpProcess) -> None:
    chunked = {"transfer-encoding": "chunked", "content-type": "application/json"}
    with impatient.wire() as wire:
        wire.send(request(None, chunked, method="POST"))
        drip(wire, b"1\r\n \r\n" * 1000)
        answered = wire.read()
        assert (answered.status, answered.code, wire.is_ended) == (408, -32600, True)


HEALTH = request(None, method="GET", path="/health")
REFUSED = request(None, {"content-type": "text/plain", "content-length": "2"}, method="POST")
SILENCES: dict[str, tuple[bytes, bytes]] = {
    "nothing was sent": (b"", b""),
    "in the middle of a head": (b"", b"POST /mcp HTTP/1.1\r\nHost: 127"),
    "after an answer": (HEALTH, b""),
    "after an answer and a line that means nothing": (HEALTH, b"\r\n"),
    "after a line that means nothing": (b"", HEALTH + b"\r\n"),
    "after a refusal": (b"", REFUSED + b"{}"),
    "after a refusal that came before the body": (REFUSED, b"{}"),
}


def test_clients_that_fall_silent_are_disconnected(impatient: HttpProcess) -> None:
    with ExitStack() as stack:
        wires = {name: stack.enter_context(impatient.wire()) for name in SILENCES}
        for name, (asked, left) in SILENCES.items():
            if asked:
                wires[name].ask(asked)
            wires[name].send(left)
        for name, wire in wires.items():
            try:
                while wire.socket.recv(100_000):
                    pass
            except TimeoutError:
                pytest.fail(f"still connected: {name}")


@pytest.mark.parametrize("times", [1, 30], ids=["one", "many"])
def test_a_client_that_never_reads_its_large_answer_is_disconnected(impatient: HttpProcess, times: int) -> None:
    wait_until(lambda: connections_of(impatient) == 0)
    size = 20_000_000 // times
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", impatient.port))
        slow.sendall(modern_call("repeat", text="x", times=size) * times)
        wait_until(lambda: connections_of(impatient) == 1)
        wait_until(lambda: connections_of(impatient) == 0)
    impatient.check_health()


def connections_of(server: HttpProcess) -> int:
    """How many clients the server thinks that it has."""
    found = psutil.Process(server.pid).net_connections("tcp")
    return sum(each.status not in ("LISTEN", "TIME_WAIT") for each in found)


WAYS_TO_END = {
    "said so": (modern_call("repeat", {"connection": "close"}, times=50_000), False),
    "fell silent": (modern_call("repeat", times=50_000), False),
    "began another": (modern_call("repeat", times=50_000) + REQUEST[:20], False),
    "closed its half": (modern_call("repeat", times=50_000), True),
}


@pytest.mark.parametrize(("asked", "closes"), WAYS_TO_END.values(), ids=WAYS_TO_END)
async def test_a_client_that_leaves_the_rest_of_its_last_answer_unread_is_disconnected(
    asked: bytes, closes: bool
) -> None:
    """Too little for the server to notice that it is not read, and too much for the system to take it over."""
    config = make_config({"http": {"write_timeout_ms": 100, "read_timeout_ms": 100, "keep_alive_ms": 1000}})
    app = create_server(ServerOptions(config=config, tools=[repeat])).http()
    server = HttpServer(app, config.http)
    sock = bind("127.0.0.1", 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.setblocking(False)
        async with asyncio.timeout(PATIENCE), listening(server, sock):
            await asyncio.get_running_loop().sock_connect(deaf, sock.getsockname())
            deaf.send(asked)
            if closes:
                await asyncio.get_running_loop().sock_recv(deaf, 1)  # It was answered.
                deaf.shutdown(socket.SHUT_WR)
            await until(lambda: len(server.connections) == 1)
            await until(lambda: not server.connections)
    await app.stop()


@pytest.mark.parametrize("waits", [True, False], ids=["later", "at once"])
async def test_a_call_whose_client_has_stopped_reading_and_closes_its_half_is_cancelled(waits: bool) -> None:
    is_told, was_told = asyncio.Event(), asyncio.Event()

    @dragoman.tool
    async def chat(ctx: dragoman.ToolContext) -> None:
        for step in range(200):
            ctx.progress(step)
        is_told.set()
        await ctx.cancellation.wait()
        was_told.set()

    config = make_config()
    app = create_server(ServerOptions(config=config, tools=[chat])).http()
    server = HttpServer(app, config.http)
    sock = bind("127.0.0.1", 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.setblocking(False)
        async with asyncio.timeout(PATIENCE), listening(server, sock):
            await asyncio.get_running_loop().sock_connect(deaf, sock.getsockname())
            deaf.send(modern("tools/call", {"name": "chat", "arguments": {}}, meta={"progressToken": 1}))
            await is_told.wait()
            if waits:
                await asyncio.sleep(0.3)  # Whoever closes its half right after it has asked may still read.
            deaf.shutdown(socket.SHUT_WR)
            await was_told.wait()
    await app.stop()


async def test_little_is_read_ahead_of_large_requests() -> None:
    ends = asyncio.Event()

    @dragoman.tool
    async def wait() -> None:
        await ends.wait()

    @dragoman.tool
    async def weigh(text: str) -> int:
        return len(text)

    config = make_config()
    app = create_server(ServerOptions(config=config, tools=[wait, weigh])).http()
    server = HttpServer(app, config.http)
    async with asyncio.timeout(PATIENCE), listening(server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(modern_call("wait") + modern_call("weigh", text="x" * 60_000) * 10)
        await until(lambda: any(not each.line.is_read for each in server.connections))
        ends.set()
        for _ in range(11):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readline()
        writer.close()
        await app.stop()


def test_2000_connections_at_once_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = min(CONNECTIONS, hard - 200)
    if wanted < CONNECTIONS:
        with capsys.disabled():
            print(f"\nonly {wanted} connections: the system allows {hard} files")
    try:
        with HttpProcess(TOOLS) as server, ExitStack() as stack:
            wires = [stack.enter_context(server.wire()) for _ in range(wanted)]
            for number, wire in enumerate(wires):
                wire.send(modern_call("echo", id=number, message=str(number)))
            answers = [wire.read() for wire in wires]
            assert [text_in(each)["message"] for each in answers] == [str(number) for number in range(wanted)]
            server.check_health()
            stack.close()
            wait_until(lambda: connections_of(server) == 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_beyond_the_limit_are_refused_and_those_within_it_are_not() -> None:
    with HttpProcess(TOOLS, settings={"http.max_connections": 3}) as server, ExitStack() as stack:
        inside: list[Any] = []
        for _ in range(20):  # Whoever looked whether the server is up may not have been missed yet.
            wire = stack.enter_context(server.wire())
            if len(inside) < 3 and wire.ask(request(None, method="GET", path="/health")).status == 200:
                inside.append(wire)
            if len(inside) == 3:
                break
        for _ in range(5):  # They stay where they are, and take nobody's place.
            outside = stack.enter_context(server.wire())
            refused = outside.read()
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, -32603, "1")
            assert outside.is_ended
        for wire in inside:
            assert text_in(wire.ask(modern_call("echo", message="hi"))) == {"message": "hi"}
        inside.pop().close()
        wait_until(lambda: server.get("/health").status == 200)


def test_sessions_beyond_the_limit_are_refused_until_another_has_ended() -> None:
    with HttpProcess(TOOLS, settings={"http.max_sessions": 2}) as server:
        first, second = server.open(), server.open()
        refused = server.ask(request(INITIALIZE))
        assert (refused.status, refused.code) == (503, -32603)
        assert text_in(first.call("echo", message="hi")) == {"message": "hi"}
        server.check_health()
        first.delete()
        third = server.open()
        assert text_in(third.call("echo", message="hi")) == {"message": "hi"}
        assert text_in(second.call("echo", message="hi")) == {"message": "hi"}


def test_sessions_of_the_deprecated_transport_take_the_same_places() -> None:
    stream = request(None, {"accept": "text/event-stream"}, method="GET", path="/sse")
    with HttpProcess(TOOLS, transport="sse", settings={"http.max_sessions": 2}) as server, server.wire() as old:
        old.send(stream)
        assert old.head()[0] == 200
        other = server.open()
        for asked in (stream, request(INITIALIZE)):
            with server.wire() as wire:
                wire.send(asked)
                assert wire.head()[0] == 503  # A stream that is not refused has no end.
            refused = server.ask(asked)
            facts: dict[str, Any] = {"reason": "too_many_sessions", "limit": 2, "retryable": True}
            facts["correlationId"] = refused.error["data"]["correlationId"]
            said = {"code": -32603, "message": "Too many open sessions", "data": facts}
            assert (refused.status, refused.error) == (503, said)
        other.delete()
        with server.wire() as another:
            another.send(stream)
            assert another.head()[0] == 200
            assert server.ask(request(INITIALIZE)).status == 503
        old.close()
        for _ in range(2):  # The server notices one after the other that their streams are closed.
            wait_until(lambda: server.ask(request(INITIALIZE)).status == 200)
        assert server.ask(request(INITIALIZE)).status == 503


def test_a_session_that_nobody_uses_ends_and_one_that_the_lane_serves_does_not() -> None:
    with HttpProcess(TOOLS, settings={"http.session_idle_ms": 2000}) as server:
        idle, used, slow = server.open(), server.open(), server.open()
        answered = slow.call("nap", seconds=0.4)
        assert (text_in(answered), answered.headers["content-type"].split(";")[0]) == (0.4, "text/event-stream")

        def is_alone() -> bool:
            assert text_in(used.call("echo", message="hi")) == {"message": "hi"}
            return b"\ndragoman_sessions 1.0\n" in server.get("/metrics").body

        wait_until(is_alone)
        for session in (idle, slow):
            refused = session.call("echo", message="hi")
            assert (refused.status, refused.code) == (404, -32600)
        assert text_in(used.call("nap", seconds=2.2)) == 2.2
        assert text_in(used.call("echo", message="hi")) == {"message": "hi"}


@dragoman.tool
async def echo(message: str) -> dict[str, str]:
    """Returns the message it was given."""
    return {"message": message}


@dragoman.tool
async def repeat(times: int) -> Any:
    """Returns a text of any size."""
    return "x" * times


@dragoman.tool
async def wait(ctx: dragoman.ToolContext) -> None:
    """Ends when nobody wants the answer any longer."""
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()


async def open_and_drop(driver: Driver, number: int) -> None:
    """The life of a session: the handshake, a call in the lane, a request to the SDK; then it is ended."""
    opened = await driver.ask(request(INITIALIZE))
    headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
    await driver.ask(request(INITIALIZED, headers))
    call = message("tools/call", {"name": "echo", "arguments": {"message": str(number)}}, number)
    assert text_in(await driver.ask(request(call, headers))) == {"message": str(number)}
    listed = await driver.ask(request(message("tools/list", None, number), headers))
    assert listed.message["result"]["tools"]
    assert (await driver.ask(request(None, headers, method="DELETE"))).status == 200


async def test_sessions_that_are_opened_and_dropped_leave_nothing_behind() -> None:
    server = create_server(ServerOptions(config=make_config({}), tools=[echo]))
    driver = Driver(server.http())
    await driver.app.start()
    for number in range(50):  # What is made once is made by now.
        await open_and_drop(driver, number)
    before = remains(server)
    memory = psutil.Process().memory_info().rss
    for number in range(SESSIONS):
        await open_and_drop(driver, number)
    grown = psutil.Process().memory_info().rss - memory
    assert remains(server) == before
    assert grown < 8_000_000 + 500 * SESSIONS, f"{grown} bytes stay behind"
    await driver.app.stop()


def remains(server: Runtime) -> dict[str, Any]:
    """What there is of sessions, calls and their surroundings."""
    gc.collect()
    sessions: Any = server.sessions.open
    kinds = ("LaneSession", "Transport", "SessionEvents", "Stream", "ServerRunner", "MemoryObjectStreamState")
    objects = [type(each).__name__ for each in gc.get_objects()]
    return {
        "sessions": sessions.count,
        "replay": (sessions._buffer.size, len(sessions._buffer._held)),
        "instances": len(sessions._manager._server_instances),
        "owners": len(sessions._manager._session_owners),
        "tasks": len(asyncio.all_tasks()),
        "calls": server.runner.under_way,
        **{kind: objects.count(kind) for kind in kinds},
    }


async def test_requests_in_one_session_leave_behind_what_can_be_resumed_and_no_more() -> None:
    server = create_server(ServerOptions(config=make_config({"http": {"max_replay_bytes": 50_000}}), tools=[echo]))
    driver = Driver(server.http())
    opened = await driver.ask(request(INITIALIZE))
    headers = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await driver.ask(request(INITIALIZED, headers))
    for number in range(200):
        await driver.ask(request(message("ping", None, number), headers))
    sessions: Any = server.sessions.open
    (transport,) = sessions._manager._server_instances.values()
    assert sessions._buffer.size <= 50_000
    assert len(transport._event_store.streams._by_number) < 100
    await driver.app.stop()


@pytest.mark.requirement("FND-CONN-02", "FND-CONN-03", "FND-CONN-05")
async def test_a_thousand_clients_that_leave_while_they_are_served_leave_nothing_behind() -> None:
    config = make_config({"resources": {"max_concurrent_executions": 1001}})
    server = create_server(ServerOptions(config=config, tools=[wait]))
    driver = Driver(server.http())
    await driver.app.start()
    tasks = len(asyncio.all_tasks())
    stays, *leaving = [driver.begin(modern_call("wait", id=number)) for number in range(1001)]
    await asyncio.sleep(0)
    assert server.runner.under_way == 1001
    for each in leaving:
        each.leave()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(each.task for each in leaving))
        await until(lambda: server.runner.under_way == 1)
    assert (server.runner.under_way, server.slots.in_use, stays.task.done()) == (1, 1, False)
    stays.leave()
    await stays.task
    await server.runner.drain(PATIENCE)
    assert (server.runner.under_way, server.slots.in_use, len(asyncio.all_tasks())) == (0, 0, tasks)
    await driver.app.stop()

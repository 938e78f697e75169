"""A server of several processes: it must not matter which one a client meets, nor for long that one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import msgspec
import psutil
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from tests.support.forking import run
from tests.support.processes import LONG, command, environment, free_port
from tests.support.waiting import PATIENCE, until
from tests.support.worker_processes import (
    TOKENS,
    TOOLS,
    Server,
    Session,
    Wire,
    as_caller,
    encoded,
    modern,
    modern_call,
    served,
    value_of,
)

pytestmark = pytest.mark.slow

CONFIG = f"""
[auth.callers.alice]
token = "{TOKENS["alice"]}"
[auth.callers.bob]
token = "{TOKENS["bob"]}"
[tools]
memory_enabled = true
admin_registration_enabled = true
admin_policy = {{ mode = "local_stdio_only" }}
[security]
dynamic_registration_enabled = true
"""
FORM = {"elicitation": {"form": {}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers with everything switched on, for tests that break nothing."""
    folder = tmp_path_factory.mktemp("workers")
    config = folder / "dragoman.toml"
    config.write_text(CONFIG)
    with served(TOOLS, "--config", str(config), settings={"storage.data_dir": folder}) as server:
        yield server
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


@asynccontextmanager
async def sdk_client(port: int, mode: str = "legacy", **options: Any) -> AsyncIterator[Client]:
    """A real client that opens a connection for each request, so that it meets all workers."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    http = httpx2.AsyncClient(verify=False, headers=as_caller("alice"), limits=limits, timeout=PATIENCE)
    url = f"http://127.0.0.1:{port}/mcp"
    async with http, Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client:
        yield client


@pytest.fixture(autouse=True)
async def hang_up() -> AsyncIterator[None]:
    yield
    Wire.close_all()


async def administer(port: int, via: int, what: str, arguments: dict[str, Any]) -> None:
    """Have a worker's own stdio client, if it had one, use an admin tool."""
    answer = await modern_call(port, "administer", via, "alice", tool=f"admin/{what}", arguments=arguments)
    assert '"success":true' in value_of(answer)[0]["text"], answer


# What does not belong to a session.


async def test_modern_calls_are_answered_by_whichever_worker_takes_the_connection(server: Server) -> None:
    answers = [value_of(await modern_call(server.port, "where", via, "alice")) for via in (0, 1)]
    assert {answer["pid"] for answer in answers} == server.pids()
    assert [answer["isOwner"] for answer in answers] == [True, False]


async def test_metrics_are_those_of_all_workers_whichever_is_met(server: Server) -> None:
    for via in (0, 1, 1):
        await modern_call(server.port, "where", via, "alice")
    pages = []
    for via in (0, 1):
        wire = await Wire.open(server.port, via)
        assert await wire.send("GET", as_caller("alice"), path="/metrics") == 200
        pages.append([line for line in (await wire.body()).decode().splitlines() if 'tool="where"' in line])
    assert pages[0] == pages[1]
    (calls,) = [line for line in pages[0] if line.startswith("dragoman_calls_total")]
    assert float(calls.split()[-1]) >= 3
    stranger = await Wire.open(server.port, 0)
    assert await stranger.send("GET", {}, path="/metrics") == 401


async def test_connections_are_dealt_out_to_all_workers(server: Server) -> None:
    wires = [await Wire.open(server.port) for _ in range(40)]
    counts = [sum(wire.worker == index for wire in wires) for index in (0, 1)]
    for wire in wires:
        wire.close()
    assert min(counts) >= 6, counts  # By chance less often than once in a million runs.


async def test_what_one_worker_asked_another_can_hear_the_answer_to(server: Server) -> None:
    call = {"name": "greet", "arguments": {}, "_meta": {"io.modelcontextprotocol/clientCapabilities": FORM}}
    asked = (await modern(server.port, "tools/call", call, 0, "alice"))["result"]
    assert asked["resultType"] == "input_required"
    answers = {"who": {"action": "accept", "content": {"name": "Ada"}}}
    again = {**call, "inputResponses": answers, "requestState": asked["requestState"]}
    assert value_of(await modern(server.port, "tools/call", again, 1, "alice")) == "Hello, Ada!"


async def test_a_kept_result_is_dropped_everywhere_when_it_is_no_longer_true(server: Server) -> None:
    for via in (0, 1):
        first = await modern_call(server.port, "look", via, "alice")
        assert value_of(await modern_call(server.port, "look", via, "alice")) == value_of(first)
    await modern_call(server.port, "change", 0, "alice")
    seen = value_of(first)
    async with asyncio.timeout(PATIENCE):
        while value_of(await modern_call(server.port, "look", 1, "alice")) <= seen:
            pass


async def test_many_writers_in_all_workers_lose_no_memory(server: Server) -> None:
    async def write(number: int) -> None:
        wire_answer = await modern_call(
            server.port, "memory_store", number % 2, "alice", key=f"k{number}", value={"n": number}, namespace="crowd"
        )
        assert "isError" not in wire_answer["result"] or not wire_answer["result"]["isError"], wire_answer

    await asyncio.gather(*(write(number) for number in range(60)))
    for via in (0, 1):
        listed = value_of(await modern_call(server.port, "memory_list", via, "alice", namespace="crowd", limit=100))
        assert listed["total"] == 60


# Sessions.


async def test_a_session_works_through_every_worker(server: Server) -> None:
    for owner in (0, 1):
        session = await Session.open(server.port, owner, "alice")
        answers = [await session.call("where", via) for via in (0, 1, 0, 1)]
        assert len({answer["pid"] for answer in answers}) == 1
        assert answers[0]["isOwner"] is (owner == 0)


async def test_a_real_client_notices_nothing_of_the_workers(server: Server) -> None:
    told: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Grace"})

    async with sdk_client(server.port, elicitation_callback=answer) as client:
        pids = {(await client.call_tool("where", {})).structured_content["pid"] for _ in range(12)}
        assert len(pids) == 1
        for _ in range(6):
            assert (await client.call_tool("greet", {})).content[0].text == "Hello, Grace!"
        await client.call_tool("steps", {"count": 3, "ms": 20}, progress_callback=on_progress)
        assert told == [1, 2, 3]


async def test_progress_comes_through_another_worker_while_the_call_runs(server: Server, tmp_path: Path) -> None:
    session = await Session.open(server.port, 0, "alice")
    ends = tmp_path / "ends"
    wire = await session.begin_call("progress_until", 1, token=5, path=str(ends))
    messages = [await wire.message(), await wire.message()]
    ends.touch()  # The call ends once the progress has come.
    messages.append(await wire.message())
    assert [each["params"]["progress"] for each in messages[:2]] == [1, 2]
    assert value_of(messages[2]) == 2


async def test_a_stream_that_broke_is_resumed_through_another_worker(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    wire = await session.begin_call("steps", 1, token=5, count=4, ms=100)
    last_id = None
    for _ in range(2):
        event_id, message = await wire.event()
        last_id = event_id or last_id
    seen = 1 if message is None or "method" not in message else int(message["params"]["progress"])
    wire.close()
    resumed = await session.get(1, last_id)
    progress = []
    while "method" in (message := await resumed.message()):
        progress.append(message["params"]["progress"])
    assert progress[-1] == 4
    assert progress == list(range(int(progress[0]), 5))
    assert progress[0] <= seen + 1
    assert value_of(message) == 4


async def test_a_question_and_its_answer_may_take_different_ways(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice", capabilities=FORM)
    wire = await session.begin_call("greet", 1)
    question = await wire.message()
    assert question["method"] == "elicitation/create"
    reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"name": "Mary"}}}
    assert (await session.post(msgspec.json.encode(reply), 0)).status == 202
    assert value_of(await wire.answer()) == "Hello, Mary!"


async def test_a_session_is_ended_through_another_worker(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    assert await session.end(1) == 200
    for via in (0, 1):
        assert (await session.begin_call("where", via)).status == 404


async def test_a_call_is_cancelled_through_another_worker(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    begun, ended = server.count_in_log("under way"), server.count_in_log("cancelled")
    wire = await session.begin_call("until_cancelled", 1)
    server.wait_for_log("under way", begun + 1)
    assert (await session.post(encoded("notifications/cancelled", {"requestId": 7}), 1)).status == 202
    server.wait_for_log("cancelled", ended + 1)
    wire.close()


async def test_a_client_that_leaves_is_seen_to_leave_by_the_worker_that_answers(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    call = {"name": "until_cancelled", "arguments": {}}
    begun = server.count_in_log("under way")
    ended = server.count_in_log("cancelled")
    headers = {"Mcp-Session-Id": session.id}  # It means nothing in the modern era, but leads to the other worker.
    calling = asyncio.create_task(modern(server.port, "tools/call", call, 1, "alice", headers))
    await asyncio.to_thread(server.wait_for_log, "under way", begun + 1)
    Wire.close_all()
    await asyncio.to_thread(server.wait_for_log, "cancelled", ended + 1)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await calling


def without_id(body: bytes) -> dict[str, Any]:
    """A JSON-RPC error without the correlation id that it must have."""
    message: dict[str, Any] = msgspec.json.decode(body)
    del message["error"]["data"]["correlationId"]
    return message


async def test_somebody_elses_session_is_not_found_through_any_worker(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    body = encoded("tools/call", {"name": "where", "arguments": {}}, 1)
    said = []
    for via in (0, 1):
        wire = await session.post(body, via, "bob")
        assert wire.status == 404
        said.append(without_id(await wire.body()))
    assert said[0] == said[1]
    unknown = Session(server.port, "1-00000000-" + "0" * 32, "alice")
    wire = await unknown.post(body, 0)
    assert (wire.status, without_id(await wire.body())) == (404, said[0])
    wire = await Wire.open(server.port, 1)
    anonymous = {**session.headers, "Content-Type": "application/json"}
    del anonymous["Authorization"]
    assert await wire.send("POST", anonymous, body) == 401


@pytest.mark.parametrize(
    "session_id", ["../../../etc/passwd", "0-../log-" + "0" * 32, "1-0000000g-" + "0" * 32, "9" * 400, "0", "-", "log"]
)
async def test_an_id_that_nobody_gave_out_leads_nowhere(server: Server, session_id: str) -> None:
    stranger = Session(server.port, "0-0", "alice")
    stranger.headers["Mcp-Session-Id"] = session_id
    for via in (0, 1):
        assert (await stranger.begin_call("where", via)).status == 404


async def test_a_page_is_let_in_once_whichever_way_its_request_takes(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    for origin, status in (("http://localhost:3000", 200), ("http://elsewhere.example", 403)):
        session.headers["Origin"] = origin
        wire = await session.begin_call("where", 1)
        assert wire.status == status
        if status == 200:
            assert wire.headers["access-control-allow-origin"] == origin
    wire = await Wire.open(server.port, 1)
    head = {**session.headers, "Origin": "http://localhost:3000", "Content-Type": "application/json"}
    await wire.send("POST", head, encoded("tools/call", {"name": "where", "arguments": {}}, 1))
    assert wire.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_a_body_that_is_too_large_is_refused_before_it_is_passed_on(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    assert (await session.post(b"x" * (10_485_760 + 1), 1)).status == 413


async def test_a_large_answer_comes_through_another_worker_whole(server: Server) -> None:
    session = await Session.open(server.port, 0, "alice")
    word = "é" * 90_000
    assert await session.call("slow", 1, ms=0, word=word) == word
    assert await session.call("slow", 1, ms=400, word=word) == word


async def test_fifty_sessions_at_once_get_their_own_answers(server: Server) -> None:
    async def visit(number: int) -> None:
        session = await Session.open(server.port, number % 2, "alice")
        for turn in range(3):
            via = (number + turn) % 2
            word = f"{number}.{turn}"
            assert await session.call("slow", via, ms=(number % 5) * 10, word=word) == word
        assert await session.end(number // 2 % 2) == 200

    await asyncio.gather(*(visit(number) for number in range(50)))


# What all have to know.


async def test_a_tool_registered_in_one_worker_is_there_in_all_and_their_clients_are_told(server: Server) -> None:
    sessions = [await Session.open(server.port, owner, "alice") for owner in (0, 1)]
    streams = [await session.get(via) for session, via in zip(sessions, (1, 1), strict=True)]
    async with (
        sdk_client(server.port, "auto") as client,
        client.listen(tools_list_changed=True) as one,
        client.listen(tools_list_changed=True) as other,
    ):
        arguments = {"toolType": "echo", "name": "parrot", "description": "Says it again.", "version": "2"}
        await administer(server.port, 1, "registerTool", arguments)
        for stream in streams:
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
        assert [await anext(one), await anext(other)] == [ToolsListChanged(), ToolsListChanged()]
        for via in (0, 1):
            listed = (await modern(server.port, "tools/list", {}, via, "alice"))["result"]["tools"]
            (parrot,) = [each for each in listed if each["name"] == "parrot"]
            assert parrot["description"] == "Says it again."
            said = await modern_call(server.port, "parrot", via, "alice", message="hello")
            assert "hello" in said["result"]["content"][0]["text"]
        await administer(server.port, 0, "unregisterTool", {"name": "parrot"})
        for stream in streams:
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
        for via in (0, 1):
            said = await modern_call(server.port, "parrot", via, "alice", message="hello")
            assert said["result"]["isError"] is True
    for stream in streams:
        stream.close()


async def test_subscribers_of_every_worker_hear_of_an_updated_resource(server: Server) -> None:
    sessions = [await Session.open(server.port, owner, "alice") for owner in (0, 1)]
    streams = []
    for session in sessions:
        streams.append(await session.get(0))
        answer = await session.post(encoded("resources/subscribe", {"uri": "test://watched"}, 3), 1)
        assert "error" not in await answer.answer()
    async with (
        sdk_client(server.port, "auto") as client,
        client.listen(resource_subscriptions=["test://watched"]) as changes,
    ):
        await modern_call(server.port, "touch", 0, "alice", uri="test://watched")
        assert await anext(changes) == ResourceUpdated("test://watched")
    for stream in streams:
        message = await stream.message()
        assert (message["method"], message["params"]["uri"]) == ("notifications/resources/updated", "test://watched")
        stream.close()


# What is private.


async def test_the_sockets_of_the_workers_are_private(server: Server) -> None:
    folder = private_folder_of(server)
    assert folder.stat().st_mode & 0o777 == 0o700
    sockets = [each for each in folder.iterdir() if each.is_socket()]
    assert sorted(each.name[0] for each in sockets) == ["0", "1"]
    for path in sockets:
        assert path.stat().st_mode & 0o777 == 0o600
        for secret in ("", "x-dragoman-worker: guess\r\n"):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(f"GET /health HTTP/1.1\r\nhost: localhost\r\n{secret}\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 403")
            writer.close()
    for pid in server.pids():
        process = psutil.Process(pid)
        assert not [each for each in process.cmdline() if len(each) > 30 and "/" not in each]
        assert "dragoman-worker" not in str(process.environ())


def private_folder_of(server: Server) -> Path:
    sockets = [each.laddr for pid in server.pids() for each in psutil.Process(pid).net_connections("unix")]
    (folder,) = {Path(str(address)).parent for address in sockets if "dragoman-" in str(address)}
    return folder


# Lives and deaths.


async def test_a_worker_that_is_killed_takes_its_sessions_along_and_nothing_else() -> None:
    with served() as server:
        sessions = [await Session.open(server.port, owner) for owner in (0, 1)]
        pids = [(await session.call("where"))["pid"] for session in sessions]
        assert await sessions[1].call("where", 0) == {"pid": pids[1], "isOwner": False}  # There is a connection now.
        under_way = await sessions[1].begin_call("steps", 0, token=1, count=100, ms=100)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises((asyncio.IncompleteReadError, ValueError)):
            await asyncio.wait_for(under_way.answer(), PATIENCE)
        for via in (0, None):
            assert (await sessions[1].begin_call("where", via)).status == 404
        assert (await sessions[0].call("where"))["pid"] == pids[0]
        server.wait_for_log("worker died")
        await until(lambda: len(server.pids()) == 2)
        again = await Session.open(server.port, 1)
        assert (await again.call("where", 0))["pid"] not in pids
        assert (await sessions[1].begin_call("where", 1)).status == 404
        assert (await sessions[0].call("where", 1))["pid"] == pids[0]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        died = next(entry for entry in server.log() if entry["message"] == "worker died")
        assert (died["worker"], died["exitCode"]) == (1, -9)


async def test_a_worker_whose_loop_is_stuck_is_replaced_and_others_are_not() -> None:
    with served(settings={"server.worker_timeout_ms": 3000}) as server:
        pids = [value_of(await modern_call(server.port, "where", via))["pid"] for via in (0, 1)]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await modern_call(server.port, "stick", 1)
        await until(lambda: server.count_in_log("worker ready") == 3)
        answers = [value_of(await modern_call(server.port, "where", via))["pid"] for via in (0, 1)]
        assert (answers[0] == pids[0], answers[1] in pids) == (True, False)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        entries = [entry for entry in server.log() if entry["level"] == "error"]
        assert [(entry["message"], entry["worker"]) for entry in entries] == [
            ("worker gives no sign of life: killed", 1),
            ("worker died", 1),
        ]


async def test_a_worker_that_is_started_again_has_what_was_registered_before(tmp_path: Path) -> None:
    config = tmp_path / "dragoman.toml"
    config.write_text(CONFIG)
    with served(TOOLS, "--config", str(config), settings={"storage.data_dir": tmp_path}) as server:
        for change, name in (("registerTool", "parrot"), ("registerTool", "gone"), ("unregisterTool", "gone")):
            arguments = {"name": name} | ({"toolType": "echo"} if change == "registerTool" else {})
            await administer(server.port, 0, change, arguments)
        await administer(server.port, 0, "unregisterTool", {"name": "slow"})
        before = value_of(await modern_call(server.port, "where", 1, "alice"))["pid"]
        os.kill(before, signal.SIGKILL)
        await until(lambda: before not in server.pids() and len(server.pids()) == 2)
        for via in (0, 1):
            listed = (await modern(server.port, "tools/list", {}, via, "alice"))["result"]["tools"]
            assert {"parrot", "gone", "slow"} & {each["name"] for each in listed} == {"parrot"}


async def test_a_tool_that_crashes_costs_its_worker_and_never_the_server() -> None:
    with served() as server:
        session = await Session.open(server.port, 0)
        assert (await session.begin_call("die", 1)).status == 502  # It may have done something before it died.
        for deaths in range(1, 7):
            server.wait_for_log("worker ready", 2 + deaths)
            if deaths < 6:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await modern_call(server.port, "die", deaths % 2)
        for via in (0, 1):
            assert value_of(await modern_call(server.port, "where", via))["pid"] in server.pids()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        died = [entry for entry in server.log() if entry["message"] == "worker died"]
        assert {entry["exitCode"] for entry in died} == {9}
        assert sorted(entry["restartInMs"] for entry in died) == [100, 100, 200, 200, 400, 400]


async def test_no_call_that_was_taken_is_lost_when_the_server_is_told_to_stop() -> None:
    with served(settings=LONG) as server:
        session = await Session.open(server.port, 0)
        call = {"name": "slow", "arguments": {"ms": 2000, "word": "answered"}}
        answering = asyncio.gather(
            # Worker 1 has nothing to do but to wait for what it has passed on.
            modern(server.port, "tools/call", call, 1, headers={"Mcp-Session-Id": session.id}),
            modern_call(server.port, "slow", 0, ms=1000, word="answered"),
        )
        await until(lambda: server.count_in_log("under way") == 2)
        server.signal(signal.SIGTERM)
        assert [value_of(answer) for answer in await answering] == ["answered"] * 2
        assert server.wait() == 0
        outcomes = [entry["outcome"] for entry in server.log() if entry["message"] == "tool call completed"]
        assert outcomes == ["success"] * 2


async def test_calls_that_do_not_end_in_time_are_abandoned_and_the_exit_code_says_so() -> None:
    with served(settings={"server.shutdown_timeout_ms": 200}) as server:
        session = await Session.open(server.port, 0)
        calling = asyncio.create_task(session.begin_call("slow", 1, ms=600_000, word=""))
        await until(lambda: server.count_in_log("under way"))
        server.signal(signal.SIGINT)
        assert server.wait() == 3
        calling.cancel()


async def test_workers_whose_parent_is_killed_stop_in_order() -> None:
    with served() as server:
        pids = server.pids()
        call = asyncio.create_task(modern_call(server.port, "slow", 1, ms=1000, word="still answered"))
        await until(lambda: server.count_in_log("under way"))
        server.signal(signal.SIGKILL)
        assert value_of(await call) == "still answered"
        await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        stopped = [entry for entry in server.log() if entry["message"] == "server stopped"]
        assert sorted(entry["worker"] for entry in stopped) == [0, 1]


async def test_every_worker_serves_what_was_reloaded_and_its_clients_are_told(tmp_path: Path) -> None:
    target = tmp_path / "growing.py"
    target.write_text("from dragoman import tool\n@tool\ndef one() -> int:\n    return 1\n")
    with served(str(target), "--reload") as server:
        sessions = [await Session.open(server.port, owner) for owner in (0, 1)]
        streams = [await session.get(1) for session in sessions]
        target.write_text(target.read_text() + "@tool\ndef two() -> int:\n    return 2\n")
        for stream in streams:
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
            stream.close()
        assert [await session.call("two", 0) for session in sessions] == [2, 2]


async def test_entries_of_all_workers_stand_in_the_log_unmixed() -> None:
    with served() as server:
        await asyncio.gather(*(modern_call(server.port, "long_line", via, length=50_000) for via in (0, 1) * 5))
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        log = server.log()  # Each line is whole.
        assert sorted(entry["worker"] for entry in log if entry["message"] == "long") == [0] * 25 + [1] * 25
        records = [entry for entry in log if entry["message"] == "tool call completed"]
        assert sorted(entry["worker"] for entry in records) == [0] * 5 + [1] * 5


# What is refused.


def refusal(*arguments: str, settings: dict[str, Any] | None = None, **extra: str) -> tuple[int, str]:
    ended = run(command(*arguments), env=environment(settings, extra), text=True, timeout=PATIENCE)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("transport", "why"), [("stdio", "stdin has one reader"), ("sse", "its sessions cannot move between them")]
)
def test_workers_are_for_streamable_http(transport: str, why: str) -> None:
    code, said = refusal("--transport", transport, "--workers", "2")
    assert (code, why in said, said.count("\n")) == (2, True, 1)


def test_no_workers_at_all_are_refused() -> None:
    assert refusal("--transport", "streamable-http", "--workers", "0")[0] == 2


def test_what_is_wrong_with_the_tools_is_said_once() -> None:
    port = str(free_port())
    code, said = refusal(TOOLS, "--transport", "streamable-http", "--port", port, "--workers", "2", REFUSE_TO_LOAD="1")
    assert code == 2
    assert said.count("RuntimeError: not today\n") == 2  # The traceback, and the refusal.
    assert said.count("dragoman: ") == 1


def test_settings_that_processes_cannot_share_are_refused() -> None:
    workers = ("--transport", "streamable-http", "--port", str(free_port()), "--workers", "2")
    code, said = refusal(*workers, settings={"storage.engine": "memory"})
    assert (code, "each worker would have memories of its own" in said) == (2, True)
    code, said = refusal(*workers, settings={"resources.max_concurrent_executions": 1})
    assert (code, "at least 2" in said) == (2, True)


def test_an_address_that_is_taken_is_refused_even_if_it_could_be_shared() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = refusal("--transport", "streamable-http", "--port", port, "--workers", "2")
        assert (code, "in use" in said) == (2, True)

"""The tasks extension over stdio and over HTTP, byte for byte: what a client asks, and what it is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from msgspec import Struct

from dragoman import ToolContext, tool
from dragoman.access.callers import ANONYMOUS, LOCAL
from dragoman.errors import InvalidArgument, ProtocolError
from dragoman.protocol.versions import TASK_METHODS, TASKS_EXTENSION
from dragoman.testing import ManualClock, MemoryClient
from dragoman.testing.connection import CLIENT_INFO
from dragoman.tools.tool import tool_of
from tests.support.answers import error_in, value_in
from tests.support.http_serving import BOTH, Reply, message, open_session, request, serving
from tests.support.keyed_calls import with_key
from tests.support.task_peers import ABLE, AUTH, TASKS, TOKENS, TaskPeer, Transport, filled_in

REQUIRED: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
NO_SUCH_TASK = {"code": -32602, "message": "Invalid params: there is no such task", "data": {}}
ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ACK = {"resultType": "complete"}
HANDLE = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "_meta"}

Open: TypeAlias = Callable[..., AbstractAsyncContextManager[TaskPeer]]


class Sure(Struct):
    sure: bool


@tool(task="optional")
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(task="required")
async def insist() -> str:
    """Takes nothing but a task."""
    return "done"


@tool
async def plain() -> str:
    """Never becomes a task."""
    return "plain"


@tool(task="optional")
async def repeat(times: int) -> str:
    """Returns as many letters."""
    return "x" * times


@tool(task="optional")
async def refuse() -> str:
    """Fails, and says why."""
    raise InvalidArgument("There is no such page")


@tool(task="optional")
async def fault() -> str:
    """Ends with a JSON-RPC error."""
    raise ProtocolError("The printer is on fire", {"floor": 3}, code=451)


@tool(task="required")
async def question(ctx: ToolContext) -> str:
    """Asks for three things at once."""
    sure, thought, roots = await asyncio.gather(
        ctx.elicit("Are you sure?", Sure), ctx.sample("What do you think?"), ctx.list_roots()
    )
    return f"{sure and sure.sure} {thought} {[each.uri for each in roots or ()]}"


@tool(task="required")
async def question_twice(ctx: ToolContext) -> list[bool]:
    """Asks two persons the same."""
    both = await asyncio.gather(ctx.elicit("Are you sure?", Sure), ctx.elicit("Are you sure?", Sure))
    return [each is not None and each.sure for each in both]


TOOLS: list[Any] = [add, insist, plain, repeat, refuse, fault, question, question_twice]


class Gate:
    """A tool that is under way from `started` on, until it is let through."""

    def __init__(self, **options: Any) -> None:
        self.started, self.opened = asyncio.Event(), asyncio.Event()

        @tool(task="optional", **options)
        async def hold(ctx: ToolContext) -> str:
            """Goes on when it is let."""
            self.started.set()
            opened, cancelled = (
                asyncio.ensure_future(self.opened.wait()),
                asyncio.ensure_future(ctx.cancellation.wait()),
            )
            await asyncio.wait((opened, cancelled), return_when=asyncio.FIRST_COMPLETED)
            ctx.cancellation.raise_if_set()
            return "held"

        self.tool: Any = hold


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture
def opened(transport: Transport) -> Open:
    """Opens a server, and a client of it that does not have to say who it is."""

    @asynccontextmanager
    async def open_peer(
        tools: Iterable[Any] = (), settings: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[TaskPeer]:
        async with serving([*TOOLS, *tools], settings, **options) as server:
            yield TaskPeer(server, transport)

    return open_peer


@pytest.fixture
async def peer(opened: Open) -> AsyncIterator[TaskPeer]:
    async with opened() as peer:
        yield peer


def stripped(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what differs from call to call."""
    found: dict[str, Any] = msgspec.json.decode(ID.sub(b"", msgspec.json.encode(result)))
    found.pop("_meta", None)
    return found


# The life of a task.


async def test_a_task_is_created_worked_on_and_completed_with_what_the_call_would_have_returned(opened: Open) -> None:
    gate = Gate()
    async with opened([gate.tool]) as peer:
        created = await peer.call("hold")
        assert created.keys() == HANDLE
        assert (created["resultType"], created["status"]) == ("task", "working")
        assert len(created["taskId"]) == 48
        assert (type(created["ttlMs"]), type(created["pollIntervalMs"])) == (int, int)
        working = await peer.get(created["taskId"])
        assert working.keys() == HANDLE
        assert {key: working[key] for key in ("resultType", "status", "taskId", "createdAt")} == {
            **{key: created[key] for key in ("taskId", "createdAt")},
            "resultType": "complete",
            "status": "working",
        }
        gate.opened.set()
        completed = await peer.until(created["taskId"])
        assert completed.keys() == HANDLE | {"result"}
        assert completed["status"] == "completed"
        peer.capabilities = {}
        assert stripped(completed["result"]) == stripped(await peer.call("hold"))
        assert "io.modelcontextprotocol/related-task" not in completed["result"]["_meta"]


@pytest.mark.parametrize("name", ["add", "refuse", "repeat"])
async def test_a_completed_task_holds_exactly_what_a_plain_call_is_answered_with(peer: TaskPeer, name: str) -> None:
    arguments = {"add": {"a": 2, "b": 3}, "repeat": {"times": 5}}.get(name, {})
    ended = await peer.ended(name, **arguments)
    peer.capabilities = {}
    answered = await peer.call(name, **arguments)
    assert (ended["status"], stripped(ended["result"])) == ("completed", stripped(answered))
    assert ended["result"]["isError"] is (name == "refuse")


async def test_a_protocol_error_of_a_handler_is_a_failed_task_and_answers_a_plain_call(peer: TaskPeer) -> None:
    error = {"code": 451, "message": "The printer is on fire", "data": {"floor": 3}}
    ended = await peer.ended("fault")
    assert (ended["status"], ended["error"], "result" in ended) == ("failed", error, False)
    peer.capabilities = {}
    assert await peer.error("tools/call", name="fault", arguments={}) == error


async def test_a_task_that_is_cancelled_ends_as_cancelled_once_its_handler_has_stopped(opened: Open) -> None:
    gate = Gate()
    async with opened([gate.tool]) as peer:
        task_id = await peer.create("hold")
        await gate.started.wait()
        assert stripped(await peer.cancel(task_id)) == ACK
        assert (await peer.until(task_id)).keys() == HANDLE
        assert (await peer.get(task_id))["status"] == "cancelled"


async def test_cancelling_a_task_that_has_ended_is_acknowledged_and_changes_nothing(peer: TaskPeer) -> None:
    ended = await peer.ended("add", a=2, b=3)
    assert stripped(await peer.cancel(ended["taskId"])) == ACK
    assert await peer.get(ended["taskId"]) == ended


async def test_a_handler_that_does_not_stop_for_cancellation_ends_with_its_result(opened: Open) -> None:
    started, opens = asyncio.Event(), asyncio.Event()

    @tool(task="optional")
    async def deaf(ctx: ToolContext) -> str:
        """Ignores its token."""
        started.set()
        await opens.wait()
        return "done anyway"

    async with opened([deaf]) as peer:
        task_id = await peer.create("deaf")
        await started.wait()
        await peer.cancel(task_id)
        assert (await peer.get(task_id))["status"] == "working"
        opens.set()
        ended = await peer.until(task_id)
        assert (ended["status"], value_in(ended["result"])) == ("completed", "done anyway")


async def test_a_task_that_waits_for_a_slot_is_working_and_ends_at_once_when_it_is_cancelled(opened: Open) -> None:
    gate = Gate()
    async with opened([gate.tool], {"tasks": {"max_concurrent": 1}}) as peer:
        first = await peer.create("hold")
        second = await peer.create("add", a=1, b=1)
        assert (await peer.get(second))["status"] == "working"
        await peer.cancel(second)
        assert (await peer.get(second))["status"] == "cancelled"
        gate.opened.set()
        assert (await peer.until(first))["status"] == "completed"


async def test_a_dropped_connection_cancels_nothing(opened: Open, transport: Transport) -> None:
    gate = Gate()
    async with opened([gate.tool]) as peer:
        task_id = await peer.create("hold")
        await gate.started.wait()
        begun = await peer.begin("tasks/get", {"taskId": task_id})
        if isinstance(begun, Reply):
            begun.drop()
        else:
            assert peer.memory is not None
            peer.memory.disconnect()
        again = TaskPeer(peer.server, transport)
        assert (await again.get(task_id))["status"] == "working"
        gate.opened.set()
        assert (await again.until(task_id))["status"] == "completed"


# Who gets a task.


async def test_the_extension_is_announced_to_clients_of_the_modern_era_alone(
    peer: TaskPeer, transport: Transport
) -> None:
    capabilities = (await peer.result("server/discover"))["capabilities"]
    assert (capabilities["extensions"], "tasks" in capabilities) == ({TASKS_EXTENSION: {}}, False)
    params = {"protocolVersion": "2025-11-25", "capabilities": ABLE, "clientInfo": CLIENT_INFO}
    if transport == "stdio":
        answer = await MemoryClient(peer.server.runtime).request("initialize", params)
    else:
        headers = {"Content-Type": "application/json", "Accept": BOTH}
        sent = await request(peer.server.port, "POST", headers, message("initialize", params, 0))
        answer = await (await sent.begin()).answer()
    assert not {"extensions", "tasks", "experimental"} & answer["result"]["capabilities"].keys()


async def test_a_server_without_tools_for_tasks_announces_nothing(transport: Transport) -> None:
    async with serving([tool_of(plain)]) as server:
        assert "extensions" not in (await TaskPeer(server, transport).result("server/discover"))["capabilities"]


async def handshake_answer(peer: TaskPeer, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request of the handshake era, of a client that declares what it likes."""
    if peer.memory is not None:
        client = MemoryClient(peer.server.runtime, capabilities=ABLE)
        return await (await client.handshake()).request(method, params)
    session = await open_session(peer.server.port, capabilities=ABLE)
    return await (await (await session.post(message(method, params, 7))).begin()).answer()


@pytest.mark.parametrize("method", [*sorted(TASK_METHODS), "tasks/list", "tasks/result"])
async def test_the_handshake_era_has_no_tasks(peer: TaskPeer, method: str) -> None:
    params = {"taskId": await peer.create("insist"), "inputResponses": {}}
    assert (await handshake_answer(peer, method, params))["error"]["code"] == -32601


async def test_in_the_handshake_era_optional_tools_are_called_and_required_ones_refused(peer: TaskPeer) -> None:
    called = await handshake_answer(peer, "tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}})
    assert value_in(called["result"]) == 5
    refused = await handshake_answer(peer, "tools/call", {"name": "insist", "arguments": {}, "task": {"ttl": 1000}})
    assert (refused["error"]["code"], REQUIRED.items() <= refused["error"]["data"].items()) == (-32021, True)


@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        {"extensions": {}},
        {"extensions": {"io.example/other": {}}},
        {"tasks": {}},
        {"extensions": [TASKS_EXTENSION]},
    ],
    ids=["none", "no extension", "another", "v1", "a list"],
)
async def test_a_client_that_does_not_declare_the_extension_in_a_request_gets_no_task(
    peer: TaskPeer, capabilities: dict[str, Any]
) -> None:
    task_id = await peer.create("insist")
    peer.capabilities = capabilities
    assert (await peer.call("add", a=2, b=3))["structuredContent"] == {"result": 5}
    for method in ("tools/call", *sorted(TASK_METHODS)):
        error = await peer.error(method, name="insist", arguments={}, taskId=task_id, inputResponses={})
        assert (error["code"], error["data"]) == (-32021, REQUIRED)
    peer.capabilities = TASKS
    assert (await peer.call("add", a=2, b=3))["resultType"] == "task"


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
async def test_methods_that_the_extension_no_longer_has_do_not_exist(peer: TaskPeer, method: str) -> None:
    error = await peer.error(method, taskId=await peer.create("insist"))
    assert (error["code"], error["message"]) == (-32601, f"Method not found: {method}")


async def test_the_task_parameter_of_the_first_version_is_ignored(peer: TaskPeer) -> None:
    hint = {"ttl": 60_000, "pollInterval": 100}
    answered = await peer.result("tools/call", name="plain", arguments={}, task=hint)
    assert (answered["resultType"], value_in(answered)) == ("complete", "plain")
    created = await peer.result("tools/call", name="add", arguments={"a": 1, "b": 1}, task=hint)
    assert created.keys() == HANDLE
    assert created["ttlMs"] == 86_400_000


async def test_wrong_arguments_are_refused_before_there_is_a_task(peer: TaskPeer) -> None:
    answered = await peer.call("add", a="two")
    assert (answered["resultType"], error_in(answered)["code"]) == ("complete", "INVALID_ARGUMENT")


# Whose a task is.


@pytest.mark.parametrize("method", sorted(TASK_METHODS))
@pytest.mark.parametrize(
    "task_id",
    ["", "x", "x" * 32, "x" * 10_240, "\x00\ud7ff", 7, 1.5, True, None, ["x"], {"x": 1}, ...],
    ids=["empty", "short", "unknown", "10 KB", "control", "int", "float", "bool", "null", "list", "object", "absent"],
)
async def test_an_id_of_any_other_shape_is_no_task(peer: TaskPeer, method: str, task_id: Any) -> None:
    named = {} if task_id is ... else {"taskId": task_id}
    assert await peer.error(method, **named, inputResponses={}) == NO_SUCH_TASK


@pytest.mark.parametrize("method", sorted(TASK_METHODS))
async def test_the_tasks_of_another_caller_are_not_there(transport: Transport, method: str) -> None:
    async with serving(TOOLS, AUTH) as server:
        ada, ben = (TaskPeer(server, transport, name) for name in TOKENS)
        ended = await ada.ended("add", a=2, b=3)
        assert await ben.error(method, taskId=ended["taskId"], inputResponses={}) == NO_SUCH_TASK
        assert await ada.get(ended["taskId"]) == ended


async def test_a_task_is_there_for_its_time_to_live_and_not_for_longer(opened: Open) -> None:
    clock = ManualClock()
    async with opened(settings={"tasks": {"ttl_ms": 5_000}}, clock=clock) as peer:
        ended = await peer.ended("add", a=2, b=3)
        clock.advance(ended["ttlMs"] / 1000 - 0.001)
        assert await peer.get(ended["taskId"]) == ended
        clock.advance(0.002)
        for method in sorted(TASK_METHODS):
            assert await peer.error(method, taskId=ended["taskId"], inputResponses={}) == NO_SUCH_TASK


@pytest.mark.slow
async def test_a_task_with_a_key_is_there_as_long_as_its_key(opened: Open) -> None:
    clock = ManualClock()
    async with opened(settings={"tasks": {"ttl_ms": 1_000}}, clock=clock) as peer:

        async def created() -> dict[str, Any]:
            return await peer.result("tools/call", name="add", arguments={"a": 2, "b": 3}, _meta=with_key())

        first = await created()
        ended = await peer.until(first["taskId"])
        assert (first["ttlMs"], ended["ttlMs"]) == (86_400_000, 86_400_000)
        for _ in range(4):
            clock.advance(21_500)
            assert await peer.get(first["taskId"]) == ended
            assert (await created())["taskId"] == first["taskId"]
        clock.advance(401)  # The key counts until it is purged, and so does what it stands for.
        again = await created()
        assert again["taskId"] == first["taskId"]
        assert await peer.get(again["taskId"]) == ended


async def test_a_task_that_runs_longer_than_its_time_to_live_is_kept(opened: Open) -> None:
    gate, clock = Gate(timeout_ms=3_600_000), ManualClock()
    async with opened([gate.tool], {"tasks": {"ttl_ms": 5_000}}, clock=clock) as peer:
        task_id = await peer.create("hold")
        await gate.started.wait()
        clock.advance(12)
        working = await peer.get(task_id)
        assert (working["status"], working["ttlMs"]) == ("working", 15_000)
        gate.opened.set()
        ended = await peer.until(task_id)
        assert (ended["status"], ended["ttlMs"]) == ("completed", 17_000)


async def test_scopes_are_checked_again_with_every_request(transport: Transport, tmp_path: Path) -> None:
    def settings(scopes: list[str]) -> dict[str, Any]:
        ada = {"token": TOKENS["ada"], "scopes": scopes}
        return {"auth": {"callers": {"ada": ada}}, "storage": {"data_dir": str(tmp_path)}}

    for scopes, is_there in ((["tool:add"], True), (["tool:plain"], False), (["tool:a*"], True)):
        async with serving(TOOLS, settings(scopes)) as server:
            ada = TaskPeer(server, transport, "ada", scopes=scopes)
            if scopes == ["tool:add"]:
                task_id = (await ada.ended("add", a=2, b=3))["taskId"]
            for method in sorted(TASK_METHODS):
                answer = await ada.ask(method, {"taskId": task_id, "inputResponses": {}})
                assert ("result" in answer) is is_there, answer


# What a task asks.


async def test_a_task_asks_for_several_things_which_are_answered_one_by_one(peer: TaskPeer) -> None:
    task_id = await peer.create("question")
    asked = await peer.questions(task_id, 3)
    by_method = {each["method"]: key for key, each in asked.items()}
    assert (await peer.get(task_id))["status"] == "input_required"
    for method, answer in (
        ("elicitation/create", filled_in(sure=True)),
        ("sampling/createMessage", {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hm"}}),
        ("roots/list", {"roots": [{"uri": "file:///here"}]}),
    ):
        key = by_method[method]
        assert stripped(await peer.update(task_id, {key: answer})) == ACK
        asked.pop(key)
        task = await peer.get(task_id)
        assert set(task.get("inputRequests", {})) == set(asked)
        assert (task["status"] == "input_required") is bool(asked)
    ended = await peer.until(task_id)
    assert (ended["status"], value_in(ended["result"])) == ("completed", "True hm ['file:///here']")


async def test_the_same_question_asked_twice_has_two_keys(peer: TaskPeer) -> None:
    task_id = await peer.create("question_twice")
    first, second = await peer.questions(task_id, 2)
    await peer.update(task_id, {second: filled_in(sure=False), first: filled_in(sure=True)})
    assert sorted(value_in((await peer.until(task_id))["result"])) == [False, True]


ELICITED: dict[str, Any] = {
    "no object": "yes",
    "no action": {"content": {"sure": True}},
    "an unknown action": {"action": "shrug"},
    "content that is no object": {"action": "accept", "content": [True]},
    "a list": [],
    "null": None,
}


@pytest.mark.parametrize("answer", ELICITED.values(), ids=ELICITED)
async def test_an_answer_of_the_wrong_shape_is_refused_and_the_question_stays(peer: TaskPeer, answer: Any) -> None:
    task_id = await peer.create("question_twice")
    first, second = await peer.questions(task_id, 2)
    responses = {first: answer, second: filled_in(sure=True)}
    error = await peer.error("tasks/update", taskId=task_id, inputResponses=responses)
    assert (error["code"], first in error["message"]) == (-32602, True)
    assert set(await peer.questions(task_id, 2)) == {first, second}
    await peer.update(task_id, {first: filled_in(sure=True), second: {"action": "decline"}})
    assert sorted(value_in((await peer.until(task_id))["result"])) == [False, True]


@pytest.mark.parametrize("responses", [None, [], "x", 7, ...])
async def test_responses_that_are_no_object_are_refused(peer: TaskPeer, responses: Any) -> None:
    task_id = await peer.create("question_twice")
    params = {"taskId": task_id} if responses is ... else {"taskId": task_id, "inputResponses": responses}
    assert (await peer.error("tasks/update", **params))["code"] == -32602


async def test_unknown_and_answered_keys_are_ignored_and_so_is_an_update_after_the_end(peer: TaskPeer) -> None:
    task_id = await peer.create("question_twice")
    first, second = await peer.questions(task_id, 2)
    for responses in ({"unknown": {"ignored": True}}, {first: filled_in(sure=True)}, {first: filled_in(sure=False)}):
        assert stripped(await peer.update(task_id, responses)) == ACK
    assert set(await peer.questions(task_id)) == {second}
    await peer.update(task_id, {second: filled_in(sure=True)})
    ended = await peer.until(task_id)
    assert value_in(ended["result"]) == [True, True]
    assert stripped(await peer.update(task_id, {first: filled_in(sure=False), "unknown": 7})) == ACK
    assert await peer.get(task_id) == ended


async def test_a_task_that_asks_is_cancelled_like_any(peer: TaskPeer) -> None:
    task_id = await peer.create("question_twice")
    await peer.questions(task_id, 2)
    await peer.cancel(task_id)
    ended = await peer.until(task_id)
    assert (ended["status"], "inputRequests" in ended) == ("cancelled", False)


async def test_a_task_that_asks_gives_its_slot_to_another(opened: Open) -> None:
    async with opened(settings={"tasks": {"max_concurrent": 1}}) as peer:
        asking = await peer.create("question_twice")
        keys = await peer.questions(asking, 2)
        assert (await peer.ended("add", a=2, b=3))["status"] == "completed"
        await peer.update(asking, {key: filled_in(sure=True) for key in keys})
        assert (await peer.until(asking))["status"] == "completed"


async def test_a_client_that_cannot_be_asked_has_its_task_told_so(peer: TaskPeer) -> None:
    peer.capabilities = TASKS
    ended = await peer.ended("question_twice")
    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)


async def test_a_question_that_nobody_answers_ends_after_its_time(opened: Open) -> None:
    clock = ManualClock()
    async with opened(settings={"timeouts": {"input_ms": 60_000}}, clock=clock) as peer:
        task_id = await peer.create("question_twice")
        await peer.questions(task_id, 2)
        clock.advance(61)
        assert value_in((await peer.until(task_id))["result"]) == [False, False]


# What a task says.


async def test_progress_is_told_by_the_task_and_by_no_notification(opened: Open) -> None:
    clock, told = ManualClock(), asyncio.Event()
    opens = asyncio.Event()

    @tool(task="optional")
    async def step(ctx: ToolContext) -> str:
        """Says how far it is."""
        ctx.progress(1, 4, "one of four")
        await asyncio.sleep(0)
        told.set()
        await opens.wait()
        ctx.progress(4, 4, "all")
        return "done"

    async with opened([step], clock=clock) as peer:
        created = await peer.result("tools/call", name="step", arguments={}, _meta={"progressToken": "token"})
        await told.wait()
        clock.advance(0.25)
        task = await peer.when(created["taskId"], lambda task: "statusMessage" in task)
        assert task["statusMessage"] == "one of four"
        assert task["_meta"]["dragoman/progress"] == {"progress": 1, "total": 4}
        opens.set()
        await peer.until(created["taskId"])
        if peer.memory is not None:
            assert [each for each in peer.memory.received() if "method" in each] == []


async def test_a_created_task_is_one_message_and_no_stream(peer: TaskPeer) -> None:
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": {"progressToken": 7}}
    begun = await peer.begin("tools/call", params)
    if isinstance(begun, Reply):
        assert not (await begun.begin()).is_stream
        await begun.json()


async def test_results_up_to_the_limit_are_kept_and_larger_ones_are_the_error_of_a_plain_call(opened: Open) -> None:
    async with opened(settings={"response": {"max_response_bytes": 4096}}) as peer:
        peer.capabilities = {}
        most = 1
        while not (await peer.call("repeat", times=most + 64))["isError"]:
            most += 64
        refused = error_in(await peer.call("repeat", times=most + 128))
        peer.capabilities = ABLE
        fits, above = await peer.ended("repeat", times=most - 64), await peer.ended("repeat", times=most + 128)
        assert (fits["status"], value_in(fits["result"])) == ("completed", "x" * (most - 64))
        error = error_in(above["result"])
        assert (above["status"], error["code"], error["details"]["reason"]) == (
            ("completed", refused["code"], refused["details"]["reason"])
        )


# How many there may be.


@pytest.mark.slow
async def test_tasks_beyond_those_that_may_wait_are_refused_before_anything_is_written(opened: Open) -> None:
    gate = Gate()
    settings = {"tasks": {"max_concurrent": 2, "max_waiting": 500}}
    async with opened([gate.tool], settings) as peer:
        answers = [await peer.call("hold") for _ in range(2_000)]
        created = [each["taskId"] for each in answers if each["resultType"] == "task"]
        refused = [error_in(each) for each in answers if each["resultType"] == "complete"]
        assert (len(created), len(refused)) == (502, 1_498)
        assert {each["code"] for each in refused} == {"RESOURCE_EXHAUSTED"}
        caller = ANONYMOUS if peer.memory is None else LOCAL
        page = await peer.server.runtime.tasks.requests.page(caller, limit=5_000)
        assert sorted(each.task_id or "" for each in page) == sorted(created)
        gate.opened.set()
        for task_id in created:
            assert (await peer.until(task_id))["status"] == "completed"


async def test_one_of_several_callers_may_fill_half_of_the_queue(transport: Transport) -> None:
    gate = Gate()
    settings = {**AUTH, "tasks": {"max_concurrent": 1, "max_waiting": 8}}
    async with serving([gate.tool], settings) as server:
        ada, ben = (TaskPeer(server, transport, name) for name in TOKENS)
        kinds = [(await ada.call("hold"))["resultType"] for _ in range(7)]
        assert kinds == ["task"] * 5 + ["complete"] * 2
        assert (await ben.call("hold"))["resultType"] == "task"
        gate.opened.set()


# Headers.


@pytest.mark.parametrize("method", sorted(TASK_METHODS))
@pytest.mark.parametrize("name", ["another", "", "=?base64?AAAA?="])
async def test_a_name_in_the_headers_that_is_not_the_task_is_a_mismatch(method: str, name: str) -> None:
    async with serving(TOOLS) as server:
        peer = TaskPeer(server, "http")
        task_id = await peer.create("insist")
        params = {"taskId": task_id, "inputResponses": {}}
        refused = await peer.ask(method, params, **{"Mcp-Name": name})
        assert (refused["error"]["code"], "Mcp-Name" in refused["error"]["message"]) == (-32020, True)
        for headers in ({}, {"Mcp-Name": task_id}):
            assert "result" in await peer.ask(method, params, **headers)

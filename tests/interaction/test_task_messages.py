"""Every message about tasks fits the schemas that the extension's own package publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Struct

from dragoman import ToolContext, tool
from dragoman.errors import InvalidArgument, ProtocolError
from dragoman.testing import ManualClock
from tests.support.ext_tasks import TasksPackage
from tests.support.http_serving import Reply, serving
from tests.support.task_peers import TaskPeer, Transport, filled_in

pytestmark = pytest.mark.slow

OF_STATUS = {
    "working": "WorkingTaskV2Schema",
    "input_required": "InputRequiredTaskV2Schema",
    "completed": "CompletedTaskV2Schema",
    "failed": "FailedTaskV2Schema",
    "cancelled": "CancelledTaskV2Schema",
}


class Sure(Struct):
    sure: bool


@tool(task="optional")
async def end(how: str, ctx: ToolContext) -> list[int]:
    """Ends in every way."""
    match how:
        case "refused":
            raise InvalidArgument("There is no such page")
        case "failed":
            raise ProtocolError("The printer is on fire", {"floor": 3}, code=451)
        case "cancelled":
            ctx.progress(1, 2, "half of it")
            await ctx.cancellation.wait()
            ctx.cancellation.raise_if_set()
    return [1, 2]


@tool(task="optional")
async def question(ctx: ToolContext) -> str:
    """Asks for everything that can be asked for."""
    await asyncio.gather(ctx.elicit("Are you sure?", Sure), ctx.sample("What do you think?"), ctx.list_roots())
    return "done"


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def peer(transport: Transport, clock: ManualClock) -> AsyncIterator[TaskPeer]:
    tools: list[Any] = [end, question]
    async with serving(tools, clock=clock) as server:
        yield TaskPeer(server, transport)


async def test_every_result_fits_its_schema(peer: TaskPeer, clock: ManualClock, tasks_package: TasksPackage) -> None:
    checked: list[tuple[str, dict[str, Any]]] = []

    def seen(task: dict[str, Any]) -> None:
        checked.extend([("GetTaskResultV2Schema", task), (OF_STATUS[task["status"]], task)])
        if "result" in task:
            checked.append(("CallToolResultV2Schema", task["result"]))

    checked.append(("ServerTaskCapabilityEnvelopeV2Schema", (await peer.result("server/discover"))["capabilities"]))
    for how in ("completed", "refused", "failed", "cancelled"):
        created = await peer.call("end", how=how)
        checked.append(("CreateTaskResultV2Schema", created))
        if how == "cancelled":
            seen(await peer.get(created["taskId"]))
            clock.advance(1)
            seen(await peer.when(created["taskId"], lambda task: "statusMessage" in task))
            checked.append(("CancelTaskResultV2Schema", await peer.cancel(created["taskId"])))
        seen(await peer.until(created["taskId"]))
    asking = await peer.create("question")
    keys = await peer.questions(asking, 3)
    seen(await peer.get(asking))
    for key, request in keys.items():
        answer: dict[str, Any] = {
            "elicitation/create": filled_in(sure=True),
            "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hm"}},
            "roots/list": {"roots": []},
        }[request["method"]]
        checked.append(("UpdateTaskResultV2Schema", await peer.update(asking, {key: answer})))
    seen(await peer.until(asking))
    assert {name for name, _ in checked} >= set(OF_STATUS.values())
    problems = await tasks_package.run("task_schemas.mjs", checked)
    assert [(*each, said) for each, said in zip(checked, problems, strict=True) if said] == []


async def test_every_notification_fits_its_schema(peer: TaskPeer, tasks_package: TasksPackage) -> None:
    task_id = await peer.create("question")
    wanted = {"taskIds": [task_id, "another's"]}
    begun = await peer.begin("subscriptions/listen", {"notifications": wanted})
    stream = await begun.begin() if isinstance(begun, Reply) else None

    async def notification(number: int) -> dict[str, Any]:
        if stream is not None:
            event = await stream.event()
            assert event is not None
            assert event.message is not None
            return event.message
        assert peer.memory is not None
        while len(told := [each for each in peer.memory.received() if "method" in each]) <= number:
            await peer.memory.wire.wait()
        return told[number]

    acknowledged = await notification(0)
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"]["taskIds"] == [task_id]
    await peer.questions(task_id, 3)
    await peer.cancel(task_id)
    checked = [
        ("TaskSubscriptionAcknowledgedNotificationsV2Schema", acknowledged["params"]["notifications"]),
        ("TaskStatusNotificationV2Schema", await notification(1)),
    ]
    while checked[-1][1]["params"]["status"] != "cancelled":
        checked.append(("TaskStatusNotificationV2Schema", await notification(len(checked))))
    if stream is not None:
        stream.drop()
    problems = await tasks_package.run("task_schemas.mjs", checked)
    assert [(*each, said) for each, said in zip(checked, problems, strict=True) if said] == []


async def test_the_schemas_find_fault_with_what_is_wrong(tasks_package: TasksPackage) -> None:
    whole = {"taskId": "t", "status": "failed", "createdAt": "", "lastUpdatedAt": "", "ttlMs": 1, "resultType": "task"}
    wrong = [
        ("CreateTaskResultV2Schema", {**whole, "ttlMs": 1.5}),
        ("CreateTaskResultV2Schema", {**whole, "resultType": "complete"}),
        ("GetTaskResultV2Schema", {**whole, "resultType": "complete"}),
        ("UpdateTaskResultV2Schema", {}),
    ]
    assert await tasks_package.run("task_schemas.mjs", [("CreateTaskResultV2Schema", whole)]) == [[]]
    assert all(await tasks_package.run("task_schemas.mjs", wrong))

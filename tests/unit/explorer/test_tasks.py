"""What the explorer answers about tasks: who sees which, in pages, what they ask, and who may start or cancel one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest

from dragoman import Ask, ToolContext, tool
from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.errors import InvalidArgument, ProtocolError
from dragoman.explorer.tasks import LARGEST_ARGUMENTS, MOST_TASKS
from tests.support.explorer_page import Answer, Page, eventually, open_explorer

AUTH = {
    "callers": {
        "ada": {"token": "a" * 32},
        "ben": {"token": "b" * 32},
        "cy": {"token": "c" * 32, "scopes": ["tool:plain"]},
    }
}
ADA, BEN, CY = ({"authorization": f"Bearer {letter * 32}"} for letter in "abc")
SETTLED = ("completed", "failed", "cancelled")
UNKNOWN = (404, {"error": "No such task is known, or not any longer"})
PATHS = ("tasks", "tasks/x", "tasks/x/answer", "tasks/x/cancel")


class Ways:
    """What the tools of a test are told to do, from outside."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    def tools(self) -> list[Any]:
        @tool(task="optional", idempotent=True)
        async def work(ctx: ToolContext, what: str = "", password: str = "") -> dict[str, str]:
            """Works until the test says that it is enough, or its client has had enough."""
            ctx.progress(1, 4, f"a quarter of {what[:20]}")
            stopped = asyncio.ensure_future(ctx.cancellation.wait())
            waited = asyncio.ensure_future(self.go_on.wait())
            await asyncio.wait((stopped, waited), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            waited.cancel()
            ctx.cancellation.raise_if_set()
            return {"done": what[:20]}

        @tool(task="required")
        async def ask(ctx: ToolContext) -> str:
            """Asks."""
            name, count = await asyncio.gather(ctx.elicit("Who?", str), ctx.elicit("How many?", int))
            return f"{name} has {count}"

        @tool(task="optional")
        async def fail(how: str) -> None:
            """Fails."""
            if how == "tool":
                raise InvalidArgument("a whim", {"reason": "whim"})
            raise ProtocolError("it broke", {"part": 7}, code=1234)

        @tool(task="optional")
        async def asks_first(name: Annotated[str, Ask("Who?")]) -> str:
            """Asks before it begins."""
            return name

        @tool(task="optional")
        async def break_down() -> float:
            """Raises what no client is told."""
            return 1 / 0

        @tool
        async def plain() -> str:
            """Never becomes a task."""
            return "plain"

        return [work, ask, fail, asks_first, break_down, plain]


class Desk(NamedTuple):
    page: Page
    ways: Ways
    tools: list[Any]

    async def get(self, path: str, **headers: str) -> Any:
        return (await self.page.get(f"/explorer/{path}", **headers)).json

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.page.request("POST", f"/explorer/{path}", sent, {**self.page.credentials(), **headers})

    async def start(self, name: str, arguments: Any = None, **headers: str) -> Any:
        """A task, as soon as it is stored."""
        made = await self.post("tasks", {"tool": name, "arguments": arguments or {}}, **headers)
        assert made.status == 201, made.body
        return made.json["task"]

    async def once(self, task: Any, *statuses: str, **headers: str) -> Any:
        """The whole task, as soon as it has one of these statuses."""
        path = f"tasks/{task['taskId']}"
        found = await eventually(lambda: self.get(path, **headers), lambda seen: seen["task"]["status"] in statuses)
        return found["task"]

    async def asking(self, **headers: str) -> Any:
        """A task that asks two questions."""
        path = f"tasks/{(await self.start('ask', **headers))['taskId']}"
        found = await eventually(lambda: self.get(path, **headers), lambda seen: len(seen["task"]["questions"]) == 2)
        return found["task"]


@asynccontextmanager
async def desk(sections: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Desk]:
    ways = Ways()
    tools = ways.tools()
    async with open_explorer(tools, sections, **settings) as page:
        try:
            yield Desk(page, ways, tools)
        finally:
            ways.go_on.set()


# Whether there is anything to see.


async def test_a_server_without_task_support_has_nothing_of_this_and_opens_no_storage(tmp_path: Path) -> None:
    @tool
    async def only() -> None:
        """The only tool."""

    folder = tmp_path / "data"
    async with open_explorer([only], {"storage": {"data_dir": str(folder)}}) as page:
        server = (await page.get("/explorer/server")).json
        assert (server["hasTasks"], server["taskTools"]) == (False, {})
        assert [(await page.get(f"/explorer/{path}")).status for path in PATHS] == [404] * 4
        posted = [await page.request("POST", f"/explorer/{path}", b"{}", page.credentials()) for path in PATHS]
        assert [each.status for each in posted] == [405] * 4
        assert page.runtime.tasks.requests.is_in_use is False
    assert not folder.exists()


async def test_a_server_says_which_tools_become_tasks() -> None:
    async with desk() as at:
        server = await at.get("server")
        listed = await at.get("tasks")
    wanted = dict.fromkeys(("asks_first", "break_down", "fail", "work"), "optional") | {"ask": "required"}
    assert (server["hasTasks"], server["taskTools"]) == (True, wanted)
    assert listed == {"tasks": [], "next": None}


async def test_tasks_stay_to_be_seen_when_their_tools_have_gone() -> None:
    async with desk() as at:
        task = await at.start("fail", {"how": "tool"})
        await at.once(task, "completed")
        at.page.runtime.replace(at.tools, [])
        server = await at.get("server")
        assert (server["hasTasks"], server["taskTools"]) == (True, {})
        assert [each["taskId"] for each in (await at.get("tasks"))["tasks"]] == [task["taskId"]]


# What is seen.


async def test_a_task_is_shown_with_its_progress_and_then_its_result() -> None:
    async with desk() as at:
        task = await at.start("work", {"what": "a ship", "password": "hunter2"}, **{"x-correlation-id": "mine"})
        path = f"tasks/{task['taskId']}"
        seen = (await eventually(lambda: at.get(path), lambda found: found["task"]["progress"]))["task"]
        assert (seen["tool"], seen["status"], seen["statusMessage"]) == ("work", "working", "a quarter of a ship")
        assert (seen["progress"], seen["attempts"]) == ({"progress": 1, "total": 4}, 1)
        assert (seen["correlationId"], seen["endedAt"], seen["questions"]) == ("mine", None, [])
        assert seen["arguments"] == {"what": "a ship", "password": "[REDACTED]"}
        assert {"result", "error"}.isdisjoint(seen)
        (listed,) = (await at.get("tasks"))["tasks"]
        assert (listed["progress"], listed["statusMessage"]) == (seen["progress"], seen["statusMessage"])
        at.ways.go_on.set()
        done = await at.once(task, "completed")
    assert msgspec.json.decode(done["result"]["content"][0]["text"]) == {"done": "a ship"}
    assert (done["result"]["isError"], done["endedAt"] >= done["createdAt"]) == (False, True)
    assert done["ageSeconds"] >= 0


async def test_an_error_of_a_tool_is_a_result_and_one_of_the_protocol_is_an_error() -> None:
    async with desk() as at:
        first, second = [await at.start("fail", {"how": how}) for how in ("tool", "protocol")]
        completed, failed = await at.once(first, *SETTLED), await at.once(second, *SETTLED)
    assert (completed["status"], completed["result"]["isError"]) == ("completed", True)
    assert (failed["status"], failed["error"]) == ("failed", {"code": 1234, "message": "it broke", "data": {"part": 7}})


@pytest.mark.parametrize(("length", "is_shown"), [(10, True), (LARGEST_ARGUMENTS, False)])
async def test_large_arguments_are_not_shown(length: int, is_shown: bool) -> None:
    async with desk() as at:
        task = await at.start("work", {"what": "x" * length})
    assert task["argumentsBytes"] > length
    assert ("arguments" in task) is is_shown


async def test_tasks_come_in_pages_the_newest_first() -> None:
    async with desk() as at:
        made = [(await at.start("fail", {"how": "tool"}))["taskId"] for _ in range(MOST_TASKS + 3)]
        first = await at.get("tasks")
        second = await at.get(f"tasks?before={first['next']}")
        odd = await at.get("tasks?before=x")
    assert [len(page["tasks"]) for page in (first, second)] == [MOST_TASKS, 3]
    assert [each["taskId"] for page in (first, second) for each in page["tasks"]] == made[::-1]
    assert second["next"] is None
    assert [each["taskId"] for each in odd["tasks"]] == [each["taskId"] for each in first["tasks"]]


async def test_a_page_is_filled_with_tasks_that_a_caller_may_see() -> None:
    async with desk() as at:
        runtime = at.page.runtime
        everything = Caller("ada")
        wanted = [await runtime.create_task("fail", {"how": "tool"}, caller=everything) for _ in range(2)]
        for _ in range(5):
            await runtime.create_task("work", caller=everything)
        less = Caller("ada", scopes=frozenset({"tool:fail"}))
        found = await runtime.tasks.requests.page(less, limit=2)
    assert [run.task_id for run in found] == wanted[::-1]


@pytest.mark.parametrize("task_id", ["x", "x" * 500, "a/b", "%00", "..", "tasks"])
async def test_an_id_that_no_task_has_leads_nowhere(task_id: str) -> None:
    async with desk() as at:
        await at.start("work")
        found = await at.page.get(f"/explorer/tasks/{task_id}")
    assert (found.status, found.json) == UNKNOWN


async def test_a_ledger_that_cannot_be_read_is_said_and_nothing_else(tmp_path: Path) -> None:
    async with desk({"storage": {"data_dir": str(tmp_path)}}) as at:
        path = f"tasks/{(await at.asking())['taskId']}"
        await at.page.runtime.facilities.storage.close()
        answers = [await at.page.get(f"/explorer/{each}") for each in ("tasks", path)]
        answers += [await at.post(f"{path}/{what}", {}) for what in ("answer", "cancel")]
        started = await at.post("tasks", {"tool": "work"})
    assert {(each.status, each.body) for each in answers} == {(503, b'{"error":"The ledger cannot be used now"}')}
    assert (started.status, started.json) == (503, {"error": "The call cannot be stored now"})


# Questions.


async def test_questions_are_listed_and_answered_one_by_one() -> None:
    async with desk() as at:
        task = await at.asking()
        assert (task["status"], (await at.get("tasks"))["tasks"][0]["status"]) == ("input_required",) * 2
        who, many = task["questions"]
        assert (who["method"], who["params"]["message"]) == ("elicitation/create", "Who?")
        assert who["params"]["requestedSchema"]["properties"]["value"]["type"] == "string"
        path = f"tasks/{task['taskId']}/answer"
        first = await at.post(path, {"key": who["key"], "result": {"action": "accept", "content": {"value": "Ada"}}})
        assert (first.status, first.json["task"]["questions"]) == (200, [many])
        again = await at.post(path, {"key": who["key"], "result": {"action": "decline"}})
        assert (again.status, again.json) == (409, {"error": "That is not asked, or not any longer"})
        await at.post(path, {"key": many["key"], "result": {"action": "accept", "content": {"value": 3}}})
        done = await at.once(task, "completed")
    assert done["result"]["content"] == [{"type": "text", "text": "Ada has 3"}]
    assert done["questions"] == []


async def test_a_question_that_comes_before_the_work_is_one_of_the_task() -> None:
    async with desk() as at:
        task = await at.once(await at.start("asks_first"), "input_required")
        (asked,) = task["questions"]
        answer = {"key": asked["key"], "result": {"action": "accept", "content": {"name": "Ada"}}}
        assert (await at.post(f"tasks/{task['taskId']}/answer", answer)).status == 200
        done = await at.once(task, *SETTLED)
    assert done["result"]["content"] == [{"type": "text", "text": "Ada"}]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"key":1,"result":{}}', b'{"key":"question-1","result":[]}', b"\xff"],
)
async def test_a_body_that_is_no_answer_is_refused(body: bytes) -> None:
    async with desk() as at:
        task = await at.asking()
        assert (await at.post(f"tasks/{task['taskId']}/answer", body)).status == 400


async def test_an_answer_that_nobody_could_give_is_refused_and_the_question_stays() -> None:
    async with desk() as at:
        task = await at.asking()
        path, key = f"tasks/{task['taskId']}", task["questions"][0]["key"]
        refused = await at.post(f"{path}/answer", {"key": key, "result": {"action": "perhaps"}})
        assert (refused.status, len((await at.get(path))["task"]["questions"])) == (400, 2)
        assert refused.json["error"].startswith("Input validation failed: ")
        assert (await at.post(f"{path}/answer", {"key": "other", "result": {"action": "accept"}})).status == 409


# Cancelling.


async def test_a_task_is_cancelled_and_one_that_has_ended_stays_what_it_is() -> None:
    async with desk() as at:
        task = await at.start("work")
        path = f"tasks/{task['taskId']}/cancel"
        asked = await at.post(path, {})
        assert (asked.status, asked.json["task"]["isCancelled"]) == (200, True)
        ended = await at.once(task, *SETTLED)
        assert ended["status"] == "cancelled"
        again = await at.post(path, {})
        assert (again.status, again.json["task"]["status"]) == (200, "cancelled")


# Starting.


async def test_a_call_that_does_not_fit_becomes_no_task_and_the_field_is_named() -> None:
    async with desk() as at:
        refused = await at.post("tasks", {"tool": "fail", "arguments": {}})
        assert (refused.status, refused.json["fields"][0]["path"]) == (400, "/how")
        assert refused.json["error"].startswith("Input validation failed: ")
        assert await at.get("tasks") == {"tasks": [], "next": None}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"tool":1}', 400),
        (b'{"tool":"work","arguments":[]}', 400),
        (b'{"tool":"none"}', 404),
        (b'{"tool":"plain"}', 400),
    ],
)
async def test_a_body_of_which_no_task_can_be_made_is_refused(body: bytes, status: int) -> None:
    async with desk() as at:
        assert (await at.post("tasks", body)).status == status
        assert await at.get("tasks") == {"tasks": [], "next": None}


async def test_a_task_too_many_is_refused() -> None:
    async with desk({"tasks": {"max_concurrent": 1, "max_waiting": 1}}) as at:
        for _ in range(2):
            await at.start("work")
        refused = await at.post("tasks", {"tool": "work"})
        assert (refused.status, len((await at.get("tasks"))["tasks"])) == (503, 2)


async def test_nothing_is_started_answered_or_cancelled_without_the_token_or_where_nothing_may_be_run() -> None:
    async with desk() as at:
        task = await at.asking()
        answer = {"key": task["questions"][0]["key"], "result": {"action": "decline"}}
        own = f"tasks/{task['taskId']}"
        requests: dict[str, Any] = {"tasks": {"tool": "work"}, f"{own}/answer": answer, f"{own}/cancel": {}}
        for path, body in requests.items():
            plain, sent = {"content-type": "application/json"}, msgspec.json.encode(body)
            refused = [await at.page.request("POST", f"/explorer/{path}", sent, plain)]
            refused += [await at.post(path, body, **{"x-explorer-token": "wrong"})]
            refused += [await at.post(path, body, **{"content-type": "text/plain"})]
            assert [each.status for each in refused] == [403, 403, 415]
        assert (await at.get(own))["task"]["questions"] == task["questions"]
        assert len((await at.get("tasks"))["tasks"]) == 1
    async with desk(allow_execute=False) as at:
        task_id = await at.page.runtime.create_task("work", caller=ANONYMOUS)
        assert (await at.get(f"tasks/{task_id}"))["task"]["tool"] == "work"
        for path in ("tasks", f"tasks/{task_id}/cancel"):
            assert (await at.post(path, {"tool": "work"})).status == 403


# Who is asking.


async def test_where_callers_say_who_they_are_nobody_else_is_shown_anything() -> None:
    async with desk({"auth": AUTH}) as at:
        assert [(await at.page.get(f"/explorer/{path}")).status for path in PATHS] == [401] * 4
        assert [(await at.post(path, {})).status for path in PATHS] == [401] * 4


async def test_a_caller_sees_its_own_tasks_and_anothers_are_unknown() -> None:
    async with desk({"auth": AUTH}) as at:
        task = await at.asking(**ADA)
        path = f"tasks/{task['taskId']}"
        answer = {"key": task["questions"][0]["key"], "result": {"action": "decline"}}
        assert await at.get("tasks", **BEN) == {"tasks": [], "next": None}
        found = [await at.page.get(f"/explorer/{path}", **BEN)]
        found += [await at.post(f"{path}/answer", answer, **BEN), await at.post(f"{path}/cancel", {}, **BEN)]
        assert [(each.status, each.json) for each in found] == [UNKNOWN] * 3
        assert len((await at.get(path, **ADA))["task"]["questions"]) == 2
        assert [each["taskId"] for each in (await at.get("tasks", **ADA))["tasks"]] == [task["taskId"]]


async def test_a_caller_whose_scopes_name_no_tool_with_task_support_has_nothing_of_this() -> None:
    async with desk({"auth": AUTH}) as at:
        await at.start("work", **ADA)
        server = await at.get("server", **CY)
        assert (server["hasTasks"], server["taskTools"]) == (False, {})
        assert (await at.page.get("/explorer/tasks", **CY)).status == 404
        assert (await at.post("tasks", {"tool": "work"}, **CY)).status == 405


async def test_an_operator_sees_the_tasks_of_all_answers_them_and_learns_why_one_failed() -> None:
    callers = {**AUTH["callers"], "dee": {"token": "d" * 32, "scopes": ["operate"]}}
    dee = {"authorization": "Bearer " + "d" * 32}
    async with desk({"auth": {"callers": callers}}) as at:
        task = await at.asking(**ADA)
        (listed,) = (await at.get("tasks", **dee))["tasks"]
        assert listed["taskId"] == task["taskId"]
        for question, value in zip(task["questions"], ("Ada", 3), strict=True):
            answer = {"key": question["key"], "result": {"action": "accept", "content": {"value": value}}}
            assert (await at.post(f"tasks/{task['taskId']}/answer", answer, **dee)).status == 200
        ended = await at.once(task, *SETTLED, **dee)
        assert ended["result"]["content"][0]["text"] == "Ada has 3"
        broken = await at.once(await at.start("break_down", **ADA), *SETTLED, **ADA)
        assert broken["result"]["isError"] is True
        assert "causes" not in broken
        (cause,) = (await at.get(f"tasks/{broken['taskId']}", **dee))["task"]["causes"]
        assert (cause["type"], cause["message"]) == ("ZeroDivisionError", "division by zero")
        assert (await at.page.get(f"/explorer/tasks/{task['taskId']}", **BEN)).status == 404

"""Tasks of real servers: what becomes of them when a server stops, dies, or has several processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.protocol.versions import CAPABILITIES_KEY
from tests.support.answers import value_in
from tests.support.http_process import HttpProcess
from tests.support.http_wire import modern as modern_request
from tests.support.processes import ServerProcess
from tests.support.served import path_of
from tests.support.task_peers import ABLE, ENDED, Transport, filled_in
from tests.support.waiting import PATIENCE, wait_until
from tests.support.worker_processes import Server, Wire, modern, served

pytestmark = pytest.mark.slow

TOOLS = path_of("task_tools.py")
META = {CAPABILITIES_KEY: ABLE}
UNKNOWN = {
    "code": -32603,
    "message": "The server ended while the tool ran, and the tool must not run twice",
    "data": {"outcome": "UNKNOWN"},
}


class Desk:
    """A client of a server in a process of its own, which keeps its data when it dies."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        if isinstance(self._process, HttpProcess):
            answer: dict[str, Any] = self._process.ask(modern_request(method, params, meta=META)).message
        else:
            answer = self._process.request(method, {**params, "_meta": META})
        result: dict[str, Any] = answer["result"]
        return result

    def create(self, name: str, **arguments: Any) -> str:
        task_id: str = self.ask("tools/call", name=name, arguments=arguments)["taskId"]
        return task_id

    def get(self, task_id: str) -> dict[str, Any]:
        return self.ask("tasks/get", taskId=task_id)

    def when(self, task_id: str, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not is_so(task := self.get(task_id)):
            assert time.monotonic() < deadline, task
            time.sleep(0.01)
        return task

    def ended(self, task_id: str) -> dict[str, Any]:
        return self.when(task_id, lambda task: task["status"] in ENDED)

    def answer(self, task_id: str, words: str) -> None:
        """Say yes to the question with these words, when it is asked; it must be the only one."""
        ((key, asked),) = self.when(task_id, lambda task: task["status"] == "input_required")["inputRequests"].items()
        assert asked["params"]["message"] == words
        self.ask("tasks/update", taskId=task_id, inputResponses={key: filled_in(sure=True)})

    def kill(self) -> None:
        self._process.signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.signal(signal.SIGTERM)
        return self._process.wait()


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that the tools wait for."""
    return tmp_path / "gate"


@contextmanager
def started(transport: Transport, folder: Path, target: str = TOOLS) -> Iterator[Desk]:
    """A server on the data in a folder, and a client of it."""
    settings = {"storage.data_dir": folder, "storage.space": "tasks", "server.shutdown_timeout_ms": 300}
    process = (
        ServerProcess(target, settings=settings, is_modern=True)
        if transport == "stdio"
        else HttpProcess(target, settings=settings)
    )
    with process:
        yield Desk(process)


def runs_at(gate: Path) -> list[str]:
    """What the tools have written down."""
    notes = Path(f"{gate}.runs")
    return notes.read_text().splitlines() if notes.exists() else []


ends = pytest.mark.parametrize("end", ["killed", "stopped"])


def leave(desk: Desk, end: str) -> None:
    if end == "killed":
        desk.kill()
    else:
        assert desk.stop() in (0, 3)  # 3: the handler had to be left behind.


@ends
def test_a_task_that_may_be_repeated_goes_on_after_a_restart(
    transport: Transport, tmp_path: Path, gate: Path, end: str
) -> None:
    with started(transport, tmp_path) as desk:
        task_id = desk.create("build", gate=str(gate))
        wait_until(lambda: runs_at(gate) == ["build"])
        leave(desk, end)
    with started(transport, tmp_path) as desk:
        assert desk.get(task_id)["status"] == "working"
        wait_until(lambda: runs_at(gate) == ["build"] * 2)
        gate.touch()
        ended = desk.ended(task_id)
        assert (ended["status"], value_in(ended["result"])) == ("completed", "built")
        assert runs_at(gate) == ["build"] * 2
    with started(transport, tmp_path) as desk:
        assert desk.get(task_id) == ended


@ends
def test_a_task_that_must_not_be_repeated_has_failed_after_a_restart(
    transport: Transport, tmp_path: Path, gate: Path, end: str
) -> None:
    with started(transport, tmp_path) as desk:
        task_id = desk.create("pay", gate=str(gate))
        wait_until(lambda: runs_at(gate) == ["pay"])
        if end == "stopped":  # A handler that stops for the token has ended, and nothing about it is unknown.
            assert desk.stop() in (0, 3)  # 3: the handler had to be left behind.
        else:
            desk.kill()
    gate.touch()
    with started(transport, tmp_path) as desk:
        ended = desk.ended(task_id)
        assert (ended["status"], ended["error"], "result" in ended) == ("failed", UNKNOWN, False)
        assert runs_at(gate) == ["pay"]


@ends
def test_a_question_that_was_answered_is_not_asked_again_after_a_restart(
    transport: Transport, tmp_path: Path, gate: Path, end: str
) -> None:
    with started(transport, tmp_path) as desk:
        task_id = desk.create("confirm", gate=str(gate))
        desk.answer(task_id, "Are you sure?")
        (second,) = desk.when(
            task_id,
            lambda task: [each["params"]["message"] for each in task.get("inputRequests", {}).values()] == ["Really?"],
        )["inputRequests"]
        leave(desk, end)
    with started(transport, tmp_path) as desk:
        asking = desk.when(task_id, lambda task: task["status"] == "input_required")
        assert list(asking["inputRequests"]) == [second]
        desk.answer(task_id, "Really?")
        gate.touch()
        assert value_in(desk.ended(task_id)["result"]) == "confirmed"
        assert runs_at(gate) == ["first True", "first True", "second True"]


@pytest.mark.parametrize("left", ["other tools", "nothing"])
def test_a_task_whose_tool_is_gone_has_failed_and_names_it(
    transport: Transport, tmp_path: Path, gate: Path, left: str
) -> None:
    with started(transport, tmp_path) as desk:
        task_id = desk.create("build", gate=str(gate))
        wait_until(lambda: runs_at(gate) == ["build"])
        desk.kill()
    target = tmp_path / "others.py"
    options = '(task="optional")' if left == "other tools" else ""
    target.write_text(f"from dragoman import tool\n@tool{options}\ndef other() -> None: ...\n")
    with started(transport, tmp_path, str(target)) as desk:
        ended = desk.ended(task_id)
        assert ended["status"] == "failed"
        assert (ended["error"]["code"], ended["error"]["message"]) == (-32603, "Unknown tool: build")


# Several processes.


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("workers")
    with served(TOOLS, settings={"storage.data_dir": folder}) as server:
        yield server
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.fixture(autouse=True)
async def hang_up() -> AsyncIterator[None]:
    yield
    Wire.close_all()


async def ask(server: Server, via: int | None, method: str, **params: Any) -> dict[str, Any]:
    answer = await modern(server.port, method, {**params, "_meta": META}, via)
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def settled(server: Server, via: int, task_id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            task = await ask(server, via, "tasks/get", taskId=task_id)
            if task["status"] in (statuses or ENDED):
                return task
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("via", [0, 1])
async def test_any_worker_answers_for_any_task(workers: Server, tmp_path: Path, via: int) -> None:
    other = 1 - via
    gate = tmp_path / "gate"
    asking = (await ask(workers, via, "tools/call", name="confirm", arguments={"gate": str(gate)}))["taskId"]
    for words in ("Are you sure?", "Really?"):
        while True:
            task = await settled(workers, other, asking, "input_required")
            ((key, asked),) = task["inputRequests"].items()
            if asked["params"]["message"] == words:
                break
        await ask(workers, other, "tasks/update", taskId=asking, inputResponses={key: filled_in(sure=True)})
    gate.touch()
    ended = await settled(workers, other, asking)
    assert value_in(ended["result"]) == "confirmed"
    assert await ask(workers, via, "tasks/get", taskId=asking) == ended


@pytest.mark.parametrize("via", [0, 1])
async def test_a_task_is_cancelled_through_whichever_worker(workers: Server, tmp_path: Path, via: int) -> None:
    gate = str(tmp_path / "gate")
    task_id = (await ask(workers, via, "tools/call", name="pay", arguments={"gate": gate}))["taskId"]
    await asyncio.to_thread(wait_until, lambda: runs_at(Path(gate)) == ["pay"])
    await ask(workers, 1 - via, "tasks/cancel", taskId=task_id)
    for each in (0, 1):
        assert (await settled(workers, each, task_id))["status"] == "cancelled"


async def test_the_task_of_a_worker_that_dies_goes_on_in_another(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with served(TOOLS, settings={"storage.data_dir": tmp_path}) as server:
        created = [
            (await ask(server, via, "tools/call", name="build", arguments={"gate": str(gate)}))["taskId"]
            for via in (0, 1)
        ]
        await asyncio.to_thread(wait_until, lambda: len(runs_at(gate)) == 2)
        os.kill(min(server.pids()), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: len(runs_at(gate)) == 3)
        gate.touch()
        for task_id in created:
            for via in (0, 1):
                assert value_in((await settled(server, via, task_id))["result"]) == "built"

"""Answers that were not asked for, and answers that are sent again, to real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support import worker_processes as worker_servers
from tests.support.http_process import HttpProcess
from tests.support.http_wire import Wire, modern
from tests.support.processes import ServerProcess

pytestmark = pytest.mark.slow

Call: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
FORM = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
YES = {"apcore/approval": {"action": "accept", "content": {"approve": True}}}
MODULES = """
import os

from apcore.decorator import module


@module(id="files.delete", annotations={"requires_approval": True, "destructive": True})
def delete(path: str) -> dict[str, str]:
    "Delete a file."
    with open(os.environ["RUNS"], "a") as runs:
        runs.write(path + chr(10))
    return {"deleted": path}
"""


class Guarded:
    """A folder with a guarded module that notes each of its runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "modules").mkdir()
        (folder / "modules" / "files.py").write_text(MODULES)
        self.arguments = ("--extensions-dir", str(folder / "modules"))
        self._runs = folder / "runs"
        monkeypatch.setenv("RUNS", str(self._runs))
        monkeypatch.setenv("DRAGOMAN_SECURITY__STATE_KEY", "k" * 32)

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0

    @contextmanager
    def served(self, transport: str) -> Iterator[Call]:
        """A server; gives what sends it a modern `tools/call` with these params, and returns the answer."""
        if transport == "stdio":
            with ServerProcess(*self.arguments, is_modern=True) as server:
                yield lambda params: server.request("tools/call", {**params, "_meta": FORM})
            return
        if transport == "http":
            with HttpProcess(None, *self.arguments) as server:
                yield lambda params: _post(server.port, params)
            return
        with worker_servers.served(*self.arguments) as workers:
            yield lambda params: _post(workers.port, params)


def _post(port: int, params: Mapping[str, Any]) -> dict[str, Any]:
    with Wire(port) as wire:
        return wire.ask(modern("tools/call", params, meta=FORM)).message


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    return Guarded(tmp_path, monkeypatch)


DELETE = {"name": "files.delete", "arguments": {"path": "a"}}


@pytest.mark.parametrize("transport", ["stdio", "http", "workers"])
def test_one_approval_that_is_sent_many_times_runs_a_module_once(guarded: Guarded, transport: str) -> None:
    with guarded.served(transport) as call:
        unasked = call({**DELETE, "inputResponses": YES})["result"]
        assert unasked["resultType"] == "input_required"
        assert guarded.runs == 0
        approved = {**DELETE, "inputResponses": YES, "requestState": unasked["requestState"]}
        if transport == "stdio":
            outcomes = [call(approved) for _ in range(3)]
        else:
            with ThreadPoolExecutor(8) as pool:
                outcomes = list(pool.map(call, [approved] * 16))
        assert sum("result" in each for each in outcomes) == 1
        assert {each["error"]["code"] for each in outcomes if "error" in each} == {-32602}
        assert guarded.runs == 1


def test_an_approval_is_not_valid_after_a_new_start_though_the_key_is_the_same(guarded: Guarded) -> None:
    with guarded.served("stdio") as call:
        asked = call(DELETE)["result"]
    approved = {**DELETE, "inputResponses": YES, "requestState": asked["requestState"]}
    with guarded.served("stdio") as call:
        assert call(approved)["error"]["code"] == -32602
    assert guarded.runs == 0


async def test_an_answer_that_is_sent_to_all_workers_runs_a_tool_once() -> None:
    greet = {"name": "greet", "arguments": {}, "_meta": FORM}
    with worker_servers.served() as workers:
        for asking, answering in ((0, 1), (1, 0)):
            asked = (await worker_servers.modern(workers.port, "tools/call", greet, asking))["result"]
            answers = {"who": {"action": "accept", "content": {"name": "Ada"}}}
            again = {**greet, "inputResponses": answers, "requestState": asked["requestState"]}
            vias = [answering, asking] * 4
            calls = [worker_servers.modern(workers.port, "tools/call", again, via) for via in vias]
            outcomes = await asyncio.gather(*calls)
            assert sum("result" in each for each in outcomes) == 1
    worker_servers.Wire.close_all()

"""The same idempotency key at two server processes on one data directory."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import error_in
from tests.support.keyed_calls import is_repeat, with_key, without_ids
from tests.support.processes import ServerProcess
from tests.support.served import path_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TOOLS = path_of("keyed_tools.py")


def started(folder: Path) -> ServerProcess:
    return ServerProcess(TOOLS, settings={"storage.data_dir": str(folder / "data")}, is_modern=True)


def begin(server: ServerProcess, folder: Path, name: str = "pay") -> int:
    return server.begin("tools/call", {"name": name, "arguments": {"folder": str(folder)}, "_meta": with_key()})


def result_of(server: ServerProcess, request_id: int) -> dict[str, Any]:
    result: dict[str, Any] = server.answer(request_id)["result"]
    return result


def effects(folder: Path) -> list[int]:
    """The processes that a tool has run in, in order."""
    file = folder / "effects"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_same_key_a_hundred_times_at_two_processes_runs_once(tmp_path: Path) -> None:
    (tmp_path / "gated").touch()
    with started(tmp_path) as one, started(tmp_path) as two:
        begun = [(server, begin(server, tmp_path)) for _ in range(50) for server in (one, two)]
        wait_until(lambda: effects(tmp_path))
        (tmp_path / "gate").touch()
        results = [result_of(*each) for each in begun]
        assert [without_ids(each) for each in results] == [without_ids(results[0])] * 100
        assert [is_repeat(each) for each in results].count(False) == 1
        assert not any(each["isError"] for each in results)
        later = [result_of(server, begin(server, tmp_path)) for server in (one, two)]
        assert [without_ids(each) for each in later] == [without_ids(results[0])] * 2
        assert [server.leave() for server in (one, two)] == [0, 0]
    assert len(effects(tmp_path)) == 1


@pytest.mark.parametrize("name", ["pay", "put"], ids=["once", "idempotent"])
def test_a_repeat_learns_that_the_process_of_the_first_call_was_killed(tmp_path: Path, name: str) -> None:
    (tmp_path / "gated").touch()
    with started(tmp_path) as one, started(tmp_path) as two:
        begin(one, tmp_path, name)
        wait_until(lambda: effects(tmp_path))
        waiting = begin(two, tmp_path, name)
        one.signal(signal.SIGKILL)
        one.wait()
        (tmp_path / "gate").touch()
        results = [result_of(two, waiting), result_of(two, begin(two, tmp_path, name))]
        assert two.leave() == 0
        if name == "put":
            assert [is_repeat(each) for each in results] == [False, True]
            assert effects(tmp_path) == [one.pid, two.pid]
        else:
            unknown = {"outcome": "UNKNOWN", "retryable": False}
            assert [error_in(each)["details"] for each in results] == [unknown] * 2
            assert effects(tmp_path) == [one.pid]

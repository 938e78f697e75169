"""`dragoman jobs list` and `dragoman registry` beside running servers, and after they have ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.operator import Operator
from tests.support.served import path_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

AGENTS = {"counter", "fragile", "patient"}


class Watcher(Operator):
    """Somebody who looks at the registry."""

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.answer("registry")["entries"] if each["kind"] == kind]

    def runs(self) -> dict[str, list[dict[str, Any]]]:
        runs = self.answer("jobs", "list")["runs"]
        return {each["job"]: [one for one in runs if one["job"] == each["job"]] for each in runs}

    def wait_for(self, processes: int) -> None:
        wait_until(lambda: len(self.entries("process")) == processes and len(self.entries("agent")) == len(AGENTS))
        wait_until(lambda: {"heartbeat", "registry.forget"} <= self.runs().keys())


@pytest.fixture
def operator(tmp_path: Path) -> Watcher:
    return Watcher(tmp_path, path_of("operated_agents.py"))


@pytest.mark.requirement("MC-HB-01")
def test_a_server_and_its_agents_are_in_the_registry_until_it_stops(operator: Watcher) -> None:
    with operator.serve() as server:
        operator.wait_for(1)
        (process,) = operator.entries("process")
        assert (process["status"], process["revision"], process["tenant"]) == ("healthy", 1, None)
        assert process["details"]["pid"] == server.pid
        agents = operator.entries("agent")
        assert {each["name"] for each in agents} == AGENTS
        assert {(each["status"], each["details"]["process"]) for each in agents} == {("healthy", process["name"])}
        (beat,) = operator.runs()["heartbeat"]
        assert (beat["process"], beat["outcome"]) == (process["name"], "completed")
    assert operator.entries("process") == []
    assert {each["name"] for each in operator.entries("agent")} == AGENTS
    with operator.serve():
        wait_until(lambda: {each["revision"] for each in operator.entries("agent")} == {2})
        assert len(operator.runs()["registry.forget"]) == 1


def test_the_entry_of_a_server_that_is_killed_stays_and_shows_when_it_was_last_seen(operator: Watcher) -> None:
    with operator.serve() as server:
        operator.wait_for(1)
        before = operator.entries("process")
        server.signal(signal.SIGKILL)
        server.wait()
    assert operator.entries("process") == before


def test_each_worker_has_an_entry_and_one_of_them_runs_the_other_jobs(operator: Watcher) -> None:
    with operator.serve("--workers", "2"):
        operator.wait_for(2)
        names = {each["name"] for each in operator.entries("process")}
        wait_until(lambda: len(operator.runs()["heartbeat"]) == 2)
        runs = operator.runs()
        assert {each["process"] for each in runs["heartbeat"]} == names
        (forget,) = runs["registry.forget"]
        assert forget["process"] in names

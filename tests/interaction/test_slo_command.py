"""`dragoman slo` beside running servers, of one process and of several, and after they have ended."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.support import forking
from tests.support.forking import DRAGOMAN
from tests.support.gateway import Signer, create_args
from tests.support.gateway_process import CREATE, GatewayProcess, add_keys
from tests.support.http_process import HttpProcess
from tests.support.processes import environment
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

WINDOWS = ("day", "week", "quarter")


def slo(folder: Path, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [*DRAGOMAN, "slo", *words],
        env=environment({"storage.data_dir": folder, **settings}),
        cwd=folder,
        text=True,
        timeout=PATIENCE,
    )


def counted(folder: Path, *words: str) -> list[int]:
    """How many requests there were in each window."""
    return [window["requests"] for window in json.loads(slo(folder, "--json", *words).stdout)["windows"]]


def requests_shown(server: HttpProcess) -> float:
    families = parse(server.get("/metrics").body.decode())
    return sum(each.value for family in families for each in family.samples if each.name == "a2a_requests_total")


def stop(server: HttpProcess) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    made = Signer()
    add_keys(tmp_path, made)
    return made


@pytest.mark.requirement("MC-METRIC-01")
@pytest.mark.requirement("MC-METRIC-05")
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one", "workers"])
def test_requests_are_added_up_over_processes_and_restarts(
    options: tuple[str, ...], tmp_path: Path, signer: Signer
) -> None:
    for run in (1, 2):
        with GatewayProcess(tmp_path, *options) as server:
            for _ in range(10):
                server.create(signer)
            wait_until(lambda server=server: requests_shown(server) == 10)  # type: ignore[misc]
            stop(server)
        assert counted(tmp_path) == [10 * run] * 3
    shown = json.loads(slo(tmp_path, "--json").stdout)
    assert (shown["holds"], shown["tenant"]) == (True, None)
    assert [window["availability"] for window in shown["windows"]] == [1.0] * 3
    assert counted(tmp_path, "--tenant", "acme") == [20] * 3
    assert counted(tmp_path, "--tenant", "globex") == [0] * 3


@pytest.mark.requirement("MC-METRIC-05")
def test_the_exit_code_tells_whether_the_objectives_hold(tmp_path: Path, signer: Signer) -> None:
    assert slo(tmp_path).returncode == 0
    with GatewayProcess(tmp_path) as server:
        server.create(signer)
        assert server.act(signer, CREATE, create_args(parent_id="0" * 8)).status == 404
        stop(server)
    done = slo(tmp_path)
    assert done.returncode == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["error", "budget", "7", "days", "<=", "1.00%", "50.00%", "NO"] in lines
    assert ["ACK", "P95,", "external", "7", "days", "<=", "2000", "ms", "-", "yes"] in lines
    shown = json.loads(slo(tmp_path, "--json").stdout)
    broken = [(each["name"], each["window"]) for each in shown["objectives"] if not each["holds"]]
    assert broken == [("error budget", "week"), ("error budget", "quarter")]


def test_what_cannot_be_tried_has_exit_code_2(tmp_path: Path) -> None:
    assert slo(tmp_path, "--window", "7d").returncode == 2
    assert slo(tmp_path, **{"storage.engine": "memory"}).returncode == 2


def test_a_killed_process_loses_nothing_that_was_stored(tmp_path: Path, signer: Signer) -> None:
    with GatewayProcess(tmp_path) as server:
        server.create(signer)
        stop(server)
    with GatewayProcess(tmp_path) as server:
        server.create(signer)
        server.signal(signal.SIGKILL)
        server.wait()
    assert counted(tmp_path) in ([1] * 3, [2] * 3)  # The job may have run by chance.
    with GatewayProcess(tmp_path) as server:
        server.create(signer)
        stop(server)
    assert counted(tmp_path)[0] in (2, 3)

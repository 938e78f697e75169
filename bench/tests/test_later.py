"""Accepted requests and artifacts are measured, and what is wrong spoils the run."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench import artifacts, later, report
from bench.__main__ import about, measured
from bench.handing_in import Sender, check_accepted, flood, keep_keys, seen
from bench.measure import DRAGOMAN
from bench.process import BenchError
from bench.rounds import Figures, Plan, spread_of
from bench.targets import targets
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow


def plan_in(folder: Path) -> Plan:
    return Plan(
        rounds=1, seconds=0.02, start_ups=1, growth_calls=1, is_short=True, folder=folder, say=lambda words: None
    )


def text_of(plan: Plan, sections: Figures) -> str:
    results = {"about": about(datetime.now(UTC), plan, 1.0, 0.5), **sections}
    return report.text(json.loads(json.dumps(results)))


@pytest.mark.requirement("FND-TEST-08")
def test_requests_that_are_carried_out_later_are_measured_beside_those_answered_at_once(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    results = measured(plan, ["later"])
    figures = results["later"]
    by_tenants = [later.of_tenants(number) for number in later.TENANTS]
    assert {path: list(work) for path, work in figures["works"].items()} == {later.PATH: [later.AT_ONCE, *by_tenants]}
    assert min(each["per_second"]["low"] for each in figures["works"][later.PATH].values()) > 0
    assert list(figures["accepted"]) == list(figures["rate_ratios"]) == by_tenants
    small = figures["small"]
    assert {name: each["waiting"] for name, each in small.items()} == {"alone": 0, "few": 100, "many": 500}
    assert [name for name, each in small.items() if each["requests"] < 20 or each["p50_ms"] <= 0] == []
    text = text_of(plan, results)
    assert [target.name for target in targets(results) if target.name not in text] == []
    assert len(targets(results)) == len(by_tenants) + 3


def _later(rate: float, alone: float, few: float, many: float) -> Figures:
    times = {"alone": (0, alone), "few": (1000, few), "many": (10_000, many)}
    return {
        "rate_ratios": {later.of_tenants(10): spread_of([rate])},
        "small": {name: {"waiting": waiting, "p99_ms": p99} for name, (waiting, p99) in times.items()},
    }


def test_targets_of_later_are_the_rate_and_how_little_a_small_tenant_notices_of_a_flood() -> None:
    good, bad = (targets({"later": _later(*facts)}) for facts in ((0.6, 10, 30, 33), (0.4, 2, 21, 33)))
    assert [(target.found, target.is_reached) for target in good] == [
        ("0.6 x", True),
        ("1.1 x", True),
        ("3 x", True),
        ("3.3 x", True),
    ]
    assert [target.is_reached for target in bad] == [False, False, False, False]


def test_what_floods_a_tenant_waits_until_somebody_takes_it(tmp_path: Path) -> None:
    small, large = Sender("small"), Sender("large")
    keep_keys(tmp_path / "data", [small, large])
    flood(tmp_path / "data", large, 3)
    flood(tmp_path / "data", large, 2)
    with seen(tmp_path / "data") as found:
        assert (found.waiting(), found.waiting("large"), found.waiting("small"), found.completed()) == (5, 5, 0, 0)


@pytest.mark.parametrize("status", [b"200 OK", b"401 Unauthorized"])
def test_a_request_that_is_not_accepted_spoils_the_run(status: bytes) -> None:
    check_accepted(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}")
    with pytest.raises(BenchError, match="a request was answered with"):
        check_accepted(b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\n{}" % status)


@pytest.mark.requirement("FND-TEST-08")
def test_artifacts_are_measured_beside_a_bare_file_handler(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    results = measured(plan, ["artifacts"])
    figures = results["artifacts"]
    kinds = (artifacts.UPLOAD, artifacts.DOWNLOAD)
    paths = [artifacts.path_of(kind, size) for size in artifacts.SIZES for kind in kinds]
    servers = [DRAGOMAN, artifacts.BARE_FILES]
    assert {path: list(work) for path, work in figures["works"].items()} == dict.fromkeys(paths, servers)
    assert min(each["per_second"]["low"] for work in figures["works"].values() for each in work.values()) > 0
    assert figures["growth"]["uploaded_mb"] == 64
    text = text_of(plan, results)
    assert [target.name for target in targets(results) if target.name not in text] == []
    assert [*figures["rate_ratios"]] == paths


def test_the_target_of_artifacts_is_the_memory() -> None:
    growths = ({"uploaded_mb": 1024, "before_mb": 50.0, "after_mb": 50.0 + grown} for grown in (1.0, 11.0))
    found = [targets({"artifacts": {"growth": growth}}) for growth in growths]
    assert [(target.found, target.is_reached) for each in found for target in each] == [
        ("1 MB", True),
        ("11 MB", False),
    ]


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """The port of a server that gives these answers on one connection, whatever it is asked, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for answer in answers:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}", "an upload was answered with 413"),
        (b"HTTP/1.1 201 Created\r\n\r\n", "an answer without a length"),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\n{}", "the server closed a connection"),
        (b"HTTP/1.1 201 Created\r\n", "the server closed a connection"),
        (
            b'HTTP/1.1 201 Created\r\ncontent-length: 40\r\n\r\n{"data":{"artifact_uri":"http://a/b?c"}}',
            "an upload was kept as /b",
        ),
    ],
)
def test_an_upload_that_is_not_kept_spoils_the_run(answer: bytes, problem: str) -> None:
    with answering(answer) as port, pytest.raises(BenchError, match=problem):
        artifacts.FileClient(None).upload(1, 1, port)

"""The benchmark measures what it says, and trusts no figure whose counts do not add up."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import measure, memories
from bench.client import BenchError, Command, Server, Work

ROOT = Path(__file__).parents[2]
DRAGOMAN = measure._dragoman("Dragoman", "dragoman_tools.py")


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-08")
def test_a_run_gives_throughput_latency_and_processor_time(tmp_path: Path) -> None:
    with Server(DRAGOMAN, tmp_path) as server:
        one, many = (server.run(Work("noop", in_flight), 200) for in_flight in (1, 32))
    assert len(one.latencies) == 200
    assert min(one.rate, many.rate, *one.latencies) > 0
    assert one.cpu_per_call >= 0


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-09")
def test_memory_and_the_loops_delay_are_reported_under_sustained_load(tmp_path: Path) -> None:
    with Server(replace(DRAGOMAN, records=False), tmp_path) as server:
        before = server.memory
        server.run(Work("noop", 32), 20_000)
        grown = server.memory - before
        answer = server.request("tools/call", {"name": "health"})
        health = json.loads(answer["result"]["content"][0]["text"])
    assert grown < 64 * 1024 * 1024
    assert health["resources"]["memoryUsageBytes"] > 0
    assert health["resources"]["eventLoopDelayMs"] >= 0
    assert health["resources"]["concurrentExecutions"] == 0


LOSES_AN_ANSWER = """
import json, sys
for number, line in enumerate(sys.stdin):
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": 1 if number == 4 else message["id"], "result": {"content": []}}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.requirement("FND-TEST-08")
def test_a_server_that_answers_one_call_twice_and_another_never_spoils_the_run(tmp_path: Path) -> None:
    command = Command("forgetful", (sys.executable, "-c", LOSES_AN_ANSWER))
    with (
        pytest.raises(BenchError, match="5 answers to 4 of 5 calls"),
        Server(command, tmp_path) as server,
    ):
        server.run(Work("noop", 1), 5)


@pytest.mark.slow
def test_a_server_without_its_records_spoils_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.client._LOG_LIMIT", 0.2)
    silent = Command("silent", DRAGOMAN.argv, {**DRAGOMAN.environment, "DRAGOMAN_LOGGING__LEVEL": "error"}, True)
    with pytest.raises(BenchError, match="0 records of 10 calls"), Server(silent, tmp_path) as server:
        server.run(Work("noop", 1), 10)


@pytest.mark.requirement("FND-TEST-08", "FND-TEST-09")
def test_the_published_report_has_every_figure() -> None:
    results = json.loads((ROOT / "docs/bench.json").read_text("utf-8"))
    assert len(results["targets"]) == 11
    assert {"date", "python", "cores", "rounds", "versions"} <= set(results["about"])
    text = json.dumps(results)
    assert [figure for figure in ("p50", "p95", "p99", "cpu", "growth", "memory") if figure not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("adapter", sorted(memories.ADAPTERS))
def test_every_operation_on_memories_is_measured(adapter: str) -> None:
    rates = asyncio.run(memories.measure(adapter, entries=50, times=64))
    assert len(rates) == 11
    assert min(rates.values()) > 0

"""The benchmark measures what it says, and trusts no figure whose counts do not add up."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from bench import (
    actions,
    against,
    agents,
    bridge,
    cache,
    in_process,
    measure,
    memories,
    over_http,
    protection,
    report,
    tasks,
)
from bench.__main__ import SECTIONS, about, measured
from bench.client import Server, Work
from bench.copies import Copy
from bench.go import go
from bench.http_load import Era, Expected
from bench.page import page
from bench.process import BenchError, Command, Process
from bench.rounds import Figures, Plan, Run, compared, plan_for, spread_of
from bench.targets import targets
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.agents.migrations import MIGRATIONS
from dragoman.clock import SystemClock
from dragoman.storage.settings import StorageConfig
from dragoman.tasks.port import Run as StoredRun
from dragoman.tasks.port import RunQuery, Runs
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DRAGOMAN = measure._dragoman("Dragoman", "dragoman_tools.py")


@pytest.mark.requirement("FND-TEST-08")
def test_a_run_gives_throughput_latency_and_processor_time(tmp_path: Path) -> None:
    with Server(DRAGOMAN, tmp_path) as server:
        one, many = (server.run(Work("noop", in_flight), 200) for in_flight in (1, 32))
    for run in (one, many):
        assert len(run.latencies) == 200
        assert min(run.rate, run.cpu_per_call, *run.latencies) > 0
    assert max(many.latencies) <= many.seconds


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


def test_a_server_without_its_records_spoils_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.process._LOG_LIMIT", 0.2)
    silent = Command("silent", DRAGOMAN.argv, {**DRAGOMAN.environment, "DRAGOMAN_LOGGING__LEVEL": "error"}, True)
    with pytest.raises(BenchError, match="0 records of 10 calls"), Server(silent, tmp_path) as server:
        server.run(Work("noop", 1), 10)


@pytest.mark.parametrize("adapter", sorted(memories.ADAPTERS))
def test_every_operation_on_memories_is_measured_among_few_and_many(adapter: str) -> None:
    figures = asyncio.run(memories.measure(adapter, memories.Plan(few=20, many=50, rounds=1, times=16)))
    assert len(figures) == 11
    assert min(min(rates.values()) for rates in figures.values()) > 0


def _plan(folder: Path, said: list[str]) -> Plan:
    return Plan(rounds=1, seconds=0.02, start_ups=1, growth_calls=1, is_short=True, folder=folder, say=said.append)


def _text(plan: Plan, sections: Figures) -> str:
    results = {"about": about(datetime.now(UTC), plan, 1.0, 0.5), **sections}
    return report.text(json.loads(json.dumps(results)))


@pytest.mark.requirement("FND-TEST-08", "FND-TEST-09")
def test_every_server_is_measured_over_stdio_and_dragoman_in_process(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [])
    results = measured(plan, ["over_stdio", "in_process"])
    works = results["over_stdio"]["works"]
    servers = [command.name for command in measure.COMMANDS]
    assert [list(works[measure.path_of(number)]) for number in (32, 1)] == [servers, servers]
    calls = [server for work in works.values() for server in work.values()]
    assert min(server[key] for server in calls for key in ("p50_us", "p95_us", "p99_us", "client_us")) > 0
    assert min(server[key]["low"] for server in calls for key in ("cpu_us", "per_second")) > 0
    assert list(results["in_process"]["works"]["in process"]) == [
        in_process.ONE_BY_ONE,
        in_process.TOGETHER,
        in_process.AWAITED,
    ]
    text = _text(plan, results)
    wanted = (*servers, "stdio, 32 in flight, 1 MB", in_process.AWAITED, "p99 µs")
    assert [words for words in wanted if words not in text] == []
    assert [target.name for target in targets(results) if target.name not in text] == []
    assert "Fewer than 15 rounds do not tell" in text
    assert "Fewer than 15 rounds" not in _text(replace(plan, rounds=15), {"over_stdio": results["over_stdio"]})


@pytest.mark.requirement("FND-TEST-08")
def test_the_cache_protection_and_the_memories_are_in_the_results_and_in_the_report(tmp_path: Path) -> None:
    said: list[str] = []
    plan = _plan(tmp_path, said)
    results = {name: SECTIONS[name](plan) for name in ("cache", "protection", "memories")}
    text = _text(plan, results)

    per_second = results["cache"]["per_second"]
    assert {"lru", "lfu", "fifo"} <= set(per_second)
    assert set(per_second["lru"]) == {cache.GET, cache.REPLACE, cache.EVICT, cache.MIX, cache.WEIGH}
    stages = [cost["name"] for cost in results["protection"]["stages"] if cost["kind"] == "stage"]
    assert {"RecordCompletion", "CheckRequest", "LimitRate", "TakeSlot", "ReuseResults"} <= set(stages)
    settings = results["protection"]["settings"]
    assert {*settings["calls"], *settings["left_out"]} == set(protection.VARIANTS)
    assert set(results["memories"]["adapters"]) == {"sqlite"}
    wanted = (
        *(f"{policy}: {cache.EVICT}" for policy in ("lru", "lfu", "fifo")),
        *stages,
        *protection.VARIANTS,
        *(f"{adapter}: search a rare word" for adapter in memories.ADAPTERS),
        "cache: a million operations a second",
    )
    assert [words for words in wanted if words not in text] == []
    assert [name for name in ("cache", "protection", "memories") if not any(f"{name}, " in each for each in said)] == []


@pytest.mark.requirement("FND-TEST-08")
def test_agents_are_measured_beside_what_limits_them(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [])
    results = measured(plan, ["agents"])
    works = results["agents"]["works"]
    senders = [agents.of_senders(number) for number in agents.SENDERS]
    limits = [measure.BARE, agents.ROWS_AT_ONCE]
    assert list(works[agents.path_of(1)]) == [*senders, *limits]
    assert list(works[agents.path_of(64)]) == [*senders, *limits, agents.SYNC, agents.TWO_PROCESSES]
    assert list(works[agents.IN_MEMORY]) == [agents.MESSAGES, agents.CALLS]
    assert len(works[agents.IN_ROWS]) == 2
    assert min(each["per_second"]["low"] for work in works.values() for each in work.values()) > 0
    text = _text(plan, results)
    assert [target.name for target in targets(results) if target.name not in text] == []
    assert len(targets(results)) == 4


@pytest.mark.requirement("FND-TEST-08")
def test_tasks_are_measured_beside_calls_of_the_same_server(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [])
    results = measured(plan, ["tasks"])
    works, waiting = results["tasks"]["works"], results["tasks"]["waiting"]
    rivals = [tasks.IN_FASTMCP] if tasks.HAS_FASTMCP_TASKS else []
    assert {path: list(work) for path, work in works.items()} == {
        tasks.path_of(connections): [tasks.CALL, tasks.GET, tasks.IN_DATABASE, tasks.IN_MEMORY, *rivals]
        for connections in tasks.CONNECTIONS
    }
    assert min(each["per_second"]["low"] for work in works.values() for each in work.values()) > 0
    assert {name: each["tasks"] for name, each in waiting.items()} == {tasks.IN_DATABASE: 320, tasks.IN_MEMORY: 320}
    text = _text(plan, results)
    assert [target.name for target in targets(results) if target.name not in text] == []
    assert len(targets(results)) == (4 if rivals else 2)


@pytest.mark.requirement("FND-TEST-08")
def test_actions_are_measured_beside_a_bare_handler(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [])
    results = measured(plan, ["actions"])
    works = results["actions"]["works"]
    kinds = (actions.CREATE, actions.UPDATE)
    paths = [actions.path_of(kind, clients) for clients in actions.CLIENTS for kind in kinds]
    servers = [measure.DRAGOMAN, actions.BARE_HANDLER]
    assert {path: list(work) for path, work in works.items()} == dict.fromkeys((*paths, actions.PACED), servers)
    assert min(each["per_second"]["low"] for work in works.values() for each in work.values()) > 0
    assert works[actions.PACED][measure.DRAGOMAN]["p95_us"] > 0
    assert results["actions"]["growth"]["documents"] == 640
    assert results["actions"]["imports"]["per_second"]["low"] > 0
    text = _text(plan, results)
    assert [target.name for target in targets(results) if target.name not in text] == []
    assert len(targets(results)) == len(paths) + 2


def _actions(rate: float, p95: float, grown: float) -> Figures:
    return {
        "works": {actions.PACED: {measure.DRAGOMAN: {"p95_us": p95 * 1e3}}},
        "rate_ratios": {actions.path_of(actions.CREATE, 16): spread_of([rate])},
        "growth": {"documents": 10, "before_mb": 1.0, "after_mb": 1.0 + grown},
    }


def test_targets_of_actions_are_the_rate_the_latency_of_an_answer_and_the_memory() -> None:
    good, bad = (targets({"actions": _actions(*facts)}) for facts in ((0.6, 20.0, 1.0), (0.4, 60.0, 11.0)))
    assert [(target.found, target.is_reached) for target in good] == [("0.6 x", True), ("20 ms", True), ("1 MB", True)]
    assert [target.is_reached for target in bad] == [False, False, False]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b'{"ok":false,"error":{"code":"CONFLICT"}}', "an action was answered with 200"),
        (b'{"ok":true,"data":{"ignored":true}}', "an action came to"),
        (b"nonsense", "an action was answered with 200"),
    ],
)
def test_an_action_without_its_effect_spoils_the_run(answer: bytes, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        actions.check(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))


def _answered(**task: object) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"taskId": "a", "resultType": "complete", **task}}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([_answered(status="working")], "no task was created"),
        ([_answered(status="working", resultType="task"), _answered(status="failed")], "a task has come to"),
        (
            [
                _answered(status="working", resultType="task"),
                _answered(status="completed", result={"content": [], "isError": True}),
            ],
            "a task has come to",
        ),
        ([b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"], "answered with 400"),
    ],
)
def test_a_task_that_does_not_come_to_its_result_spoils_the_run(answers: list[bytes], problem: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=_answer_with, args=(listener, answers), daemon=True)
        serving.start()
        client = tasks.TaskClient(listener.getsockname()[1])
        with pytest.raises(BenchError, match=problem):
            client.wait_for(client.create(1, connections=1))
        serving.join(PATIENCE)


def _answer_with(listener: socket.socket, answers: list[bytes]) -> None:
    """Answer with these, in order, on as many connections as it takes."""
    left = list(answers)
    while left:
        connection, _ = listener.accept()
        with connection:
            while left and connection.recv(1 << 16):
                connection.sendall(left.pop(0))


@pytest.mark.requirement("FND-TEST-08")
def test_agents_that_end_too_early_spoil_the_run(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="has ended too early"):
        agents.Worker("nothing", "counting_agents.py", "no such kind", tmp_path, "a")


@pytest.mark.requirement("FND-TEST-08")
def test_the_cache_is_measured_alone_where_there_is_no_cachetools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "HAS_CACHETOOLS", False)
    figures = cache.measure(rounds=1, operations=200)
    assert set(figures["per_second"]) == {"lru", "lfu", "fifo"}
    assert figures["ratios"] == {}
    text = _text(_plan(tmp_path, []), {"cache": figures})
    assert "cache: a million operations a second" in text
    assert "lfu: get, found" in text


async def test_a_dialect_that_this_version_does_not_have_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = protection.Variant({"response": {"dialect": "pidgin"}})
    monkeypatch.setattr(protection, "VARIANTS", {protection.SHIPPED: protection.Variant(), "dialect pidgin": unknown})
    monkeypatch.setattr(protection, "_CALLS", 5)
    figures = await protection.measure_settings(rounds=1)
    assert set(figures["calls"]) == {protection.SHIPPED}
    assert figures["left_out"]["dialect pidgin"].startswith("refused: response.dialect: must be one of")


def test_a_section_whose_process_fails_spoils_the_run(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no_such_module"):
        measure.in_a_process(_plan(tmp_path, []), "no_such_module")


COSTS = {over_http.ECHO: 30.0, measure.DRAGOMAN: 60.0, over_http.SDK_LOW: 240.0}
SESSION = over_http.in_session(measure.DRAGOMAN)


def _runs(**costs: float) -> Figures:
    """Made-up figures: servers that take so many microseconds for a call, and a client that takes ten."""
    return {name: {0: Run(1_000, 0.1, cost / 1e3, [0.001, 0.002], 0.01)} for name, cost in costs.items()}


def _over_http(session: float = 66.0) -> Figures:
    paths = [over_http.path_of(number) for number in over_http.CONNECTIONS]
    work = compared(_runs(**COSTS, **{SESSION: session}), measure.DRAGOMAN)
    return {
        "works": dict.fromkeys(paths, work),
        "session_ratios": dict.fromkeys(paths, spread_of([session / COSTS[measure.DRAGOMAN]])),
        "worker_ratios": {over_http.path_of(16, "work"): spread_of([1.6, 1.8, 1.9])},
        "sessions": {},
    }


def test_targets_over_http_are_ratios_of_the_cpu_per_call_for_16_and_64_connections() -> None:
    found = {target.name: (target.found, target.is_reached) for target in targets({"over_http": _over_http()})}
    assert found == {
        **{
            f"HTTP, {number} connections: {name}": verdict
            for number in (16, 64)
            for name, verdict in {
                "CPU per call against the bare ASGI echo's": ("2 x", False),
                "CPU per call against the SDK's": ("1/4", False),
                "CPU per call in a session against the modern era": ("1.1 x", True),
            }.items()
        },
        "HTTP, 16 connections, work: calls/s of 2 workers against 1": ("1.8 x (1.7 to 1.85)", True),
        "HTTP: CPU of the client against the bare ASGI echo's": ("1/3", True),
    }


def test_targets_of_tasks_are_the_cpu_of_a_get_and_the_rate_of_fastmcp() -> None:
    ratios = {"get_ratios": {"tasks": spread_of([0.5])}, "rate_ratios": {"tasks": spread_of([4.0])}}
    assert [(target.found, target.is_reached) for target in targets({"tasks": ratios})] == [
        ("0.5 x", True),
        ("4 x", False),
    ]


def test_a_short_run_lists_what_it_missed_and_says_that_it_does_not_tell(tmp_path: Path) -> None:
    text = _text(_plan(tmp_path, []), {"over_http": _over_http(session=90.0)})
    assert "Fewer than 15 rounds do not tell" in text
    assert text.endswith(
        """6 of 8 targets are missed
  HTTP, 16 connections: CPU per call against the bare ASGI echo's
  HTTP, 16 connections: CPU per call against the SDK's
  HTTP, 16 connections: CPU per call in a session against the modern era
  HTTP, 64 connections: CPU per call against the bare ASGI echo's
  HTTP, 64 connections: CPU per call against the SDK's
  HTTP, 64 connections: CPU per call in a session against the modern era"""
    )


@pytest.mark.requirement("FND-TEST-08", "FND-TEST-09")
def test_every_server_is_measured_over_http_in_both_eras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_http, "CONNECTIONS", (1, 3))
    monkeypatch.setattr(over_http, "WORKER_CONNECTIONS", (2, 3))
    said: list[str] = []
    plan = _plan(tmp_path, said)
    figures = json.loads(json.dumps(over_http.over_http(plan)))
    names = [
        over_http.in_session(site.name) if era is Era.HANDSHAKE else site.name
        for site in over_http.SITES
        for era in site.eras
    ]
    assert {over_http.ECHO, over_http.SDK_LOW, measure.DRAGOMAN, SESSION} <= set(names)
    works = [figures["works"][path] for path in ("HTTP, 1 connection", "HTTP, 3 connections")]
    assert [list(work) for work in works] == [names] * 2
    for facts in (facts for work in works for facts in work.values()):
        assert min(facts[key] for key in ("p50_us", "p95_us", "p99_us", "client_us")) > 0
        assert min(facts[key]["low"] for key in ("cpu_us", "per_second")) > 0
    assert {name: facts["sessions"] for name, facts in figures["sessions"].items()} == dict.fromkeys(
        (measure.DRAGOMAN, measure.SDK), 320
    )
    workers = [figures["works"][over_http.path_of(number, "work")] for number in (2, 3)]
    assert [list(work) for work in workers] == [[over_http.ONE_WORKER, over_http.TWO_WORKERS]] * 2
    text = _text(plan, {"over_http": figures})
    assert [name for name in (*names, over_http.TWO_WORKERS, "ms each") if name not in text] == []
    assert "HTTP, 3 connections, work: calls/s of 2 workers against 1" in text
    assert any(words.startswith("HTTP, 3 connections, round 1 of 1: ") for words in said)


def test_a_short_run_installs_no_server_in_go(tmp_path: Path) -> None:
    said: list[str] = []
    assert go(_plan(tmp_path, said)) == {}
    assert "left out" in said[0]


def test_a_server_that_answers_something_else_over_http_spoils_the_run(tmp_path: Path) -> None:
    echo = replace(over_http.SITES[0], expected=Expected(("null",)))
    with over_http.HttpServer(echo, tmp_path) as server:
        server.wait()
        with pytest.raises(BenchError, match=r"bare ASGI echo: call 1000001 was answered with .*1000000"):
            server.run(Era.MODERN, 1, 0.05)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    site = over_http.Site("hopeless", (sys.executable, "-c", "raise SystemExit('no port for me')"))
    with (
        pytest.raises(BenchError, match="hopeless did not start:\nno port for me"),
        over_http.HttpServer(site, tmp_path) as server,
    ):
        server.wait()


def _bridge(*, has_public: bool = True, theirs: float = 5_000.0) -> Figures:
    """Made-up figures, in which the public bridge takes so many microseconds for a call over HTTP."""
    alone = {
        "executor_us": 2_700.0,
        "served_us": 150.0,
        "routed_us": 170.0,
        "routing_us": 20.0,
        "definitions_ms": 100.0,
        "tools_ms": 115.0,
        "beyond_ms": 15.0,
        "tools_mb": 1.0,
    }
    names = [measure.DRAGOMAN, *([bridge.PUBLIC] if has_public else [])]
    session = over_http.in_session(bridge.PUBLIC)
    return {
        "modules": 100,
        "alone": dict.fromkeys(names, alone),
        "processes": {name: {"start_s": 1.0, "mb": 60.0} for name in names},
        "works": {
            "bridge, stdio, 1 in flight": compared(
                _runs(**{measure.DRAGOMAN: 250.0, **({bridge.PUBLIC: 10_000.0} if has_public else {})}),
                measure.DRAGOMAN,
            ),
            "bridge, HTTP, 10 connections": compared(
                _runs(**{SESSION: 400.0, measure.DRAGOMAN: 390.0, **({session: theirs} if has_public else {})}), SESSION
            ),
        },
    }


BRIDGE_TARGETS = {
    "bridge, stdio, 1 in flight: CPU per call against the public one's": 1 / 40,
    "bridge, HTTP, 10 connections: CPU per call against the public one's": 0.08,
    "bridge: routing, beyond the executor": 0.02,
    "bridge: 100 tools, beyond their definitions": 15.0,
    "bridge: memory of 100 tools": 1.0,
}


def test_targets_of_the_bridge_are_ratios_to_the_public_one_path_by_path() -> None:
    found = targets({"bridge": _bridge()})
    assert {target.name: target.figure for target in found} == pytest.approx(BRIDGE_TARGETS)
    assert all(target.is_reached for target in found)
    dearer = targets({"bridge": _bridge(theirs=3_000.0)})
    assert [target.name for target in dearer if not target.is_reached] == [list(BRIDGE_TARGETS)[1]]


def test_the_bridge_is_reported_without_the_public_one(tmp_path: Path) -> None:
    figures = _bridge(has_public=False)
    assert [target.name for target in targets({"bridge": figures})] == list(BRIDGE_TARGETS)[2:]
    assert bridge.PUBLIC not in _text(_plan(tmp_path, []), {"bridge": figures})


@pytest.mark.parametrize("has_public", [True, False])
def test_bridges_are_measured_over_both_transports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_public: bool
) -> None:
    if not has_public:
        monkeypatch.setattr(bridge, "PUBLIC_PYTHON", tmp_path / "nowhere")
    elif not bridge.PUBLIC_PYTHON.exists():
        pytest.skip("the public bridge is not installed: make public")
    monkeypatch.setattr(bridge, "MODULES", 8)
    monkeypatch.setattr(bridge, "IN_FLIGHT", (1, 3))
    monkeypatch.setattr(bridge, "CLIENTS", (2,))
    said: list[str] = []
    plan = _plan(tmp_path, said)
    figures = json.loads(json.dumps(bridge.bridge(plan)))
    names = [measure.DRAGOMAN, *([bridge.PUBLIC] if has_public else [])]
    session = [over_http.in_session(name) for name in names]
    assert list(figures["alone"]) == list(figures["processes"]) == names
    assert {path: set(work) for path, work in figures["works"].items()} == {
        "bridge, stdio, 1 in flight": {*names},
        "bridge, stdio, 3 in flight": {*names},
        "bridge, HTTP, 2 connections": {measure.DRAGOMAN, *session},
    }
    assert min(facts["cpu_us"]["low"] for work in figures["works"].values() for facts in work.values()) > 0
    text = _text(plan, {"bridge": figures})
    assert [name for name in (*names, *session, *figures["works"]) if name not in text] == []
    assert any("is left out" in words for words in said) is not has_public
    assert any(words.startswith("bridge, HTTP, 2 connections, round 1 of 1: ") for words in said)


@pytest.mark.requirement("NFR-PERF-001", "NFR-PERF-002", "NFR-PERF-003")
def test_what_a_bridge_takes_by_itself_is_measured_for_a_hundred_modules(tmp_path: Path) -> None:
    extensions = bridge.write_modules(tmp_path / "extensions")
    figures = bridge.alone(replace(_plan(tmp_path, []), rounds=3), bridge.bridges()[0], extensions)
    assert figures["beyond_ms"] < 100  # Of the processor's time: what apcore itself takes for definitions is its own.
    assert figures["routing_us"] < 5_000
    assert figures["tools_mb"] < 10
    assert figures["served_us"] < figures["executor_us"] / 2


def test_a_bridge_that_cannot_be_measured_spoils_the_run(tmp_path: Path) -> None:
    hopeless = bridge.Bridge("hopeless", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(BenchError, match=r"hopeless, alone: .* status 3"):
        bridge.alone(_plan(tmp_path, []), hopeless, tmp_path)


def test_the_page_is_opened_with_few_tools_and_with_many(tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    said: list[str] = []
    plan = replace(plan_for(short=True), folder=tmp_path, say=said.append)
    figures = page(plan)
    assert list(figures) == ["10", "1000"]
    assert all(0 < each["least"] <= each["median"] for each in figures.values())
    assert len(said) == 2
    assert "1,000 tools" in _text(plan, {"page": figures})
    assert "no browser here" in _text(plan, {"page": {}})


THREE_ROUNDS = [10.0, 20.0, 40.0]  # A machine that gets slower and slower.


def _verdict(*, factor: float = 1.0, noise: float = 0.0) -> against.Verdict:
    """A tree that costs `factor` times as much as the other, whose copies are so far apart."""
    other = against.Costs(THREE_ROUNDS, [cost * (1 + noise) for cost in THREE_ROUNDS])
    return against.Verdict(
        against.Costs(*([cost * factor for cost in costs] for costs in (other.first, other.second))), other
    )


@pytest.mark.parametrize(
    ("factor", "noise", "is_ok"),
    [
        (1.0, 0.0, True),
        (1.029, 0.0, True),
        (1.031, 0.0, False),
        (1.06, 0.05, True),
        (1.09, 0.05, False),
        (0.5, 0.0, True),
    ],
)
def test_a_tree_is_slower_if_a_call_costs_three_per_cent_and_its_noise_more(
    factor: float, noise: float, is_ok: bool
) -> None:
    verdict = _verdict(factor=factor, noise=noise)
    assert verdict.is_ok is is_ok
    assert verdict.change.change == pytest.approx(factor - 1)
    assert verdict.change.deviation == pytest.approx(0)
    assert ("ok" in against.worded("abc", {"stdio": verdict})) is is_ok
    assert ("SLOWER" in against.worded("abc", {"stdio": verdict})) is not is_ok


def test_a_change_is_the_median_of_the_rounds_and_its_distance_grows_with_their_deviation() -> None:
    change = against.Change.of([11.0, 10.0, 9.0, 20.0], [10.0, 10.0, 10.0, 10.0])
    assert change == against.Change(pytest.approx(0.05), pytest.approx(0.1), 4)
    assert change.distance == pytest.approx(0.05 + 2 * 0.1 / 2)
    assert str(change) == "+5.0% ± 10.0%"


def _against(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "bench.against", *arguments)


def _worktrees() -> str:
    """Where the repository has worktrees."""
    return subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tree is not a git checkout")


@needs_git
def test_this_tree_is_compared_with_a_commit(tmp_path: Path) -> None:
    argv = _against("HEAD", "--rounds", "2", "--seconds", "0.01", "--paths", "stdio")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == (1 if "SLOWER" in done.stdout else 0), done.stderr
    assert "stdio, 32 in flight: " in done.stdout
    assert "this vs itself: " in done.stdout
    assert "HTTP" not in done.stdout
    assert "round 2 of 2, stdio: " in done.stderr
    assert str(tmp_path) not in _worktrees()


@needs_git
def test_calls_of_every_kind_and_the_start_of_a_process_are_compared(tmp_path: Path) -> None:
    paths = ["sync", "keyed", "tasks", "agents", "creates", "start"]
    argv = _against("HEAD", "--rounds", "1", "--seconds", "0.01", "--paths", ",".join(paths))
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode in (0, 1), done.stderr
    assert [line.partition(", ")[2].partition(":")[0] for line in done.stderr.splitlines()] == paths
    assert [path for path in paths if f"{against.PATHS[path]}: " not in done.stdout] == []


def test_each_keyed_call_is_stored_under_a_key_of_its_own(tmp_path: Path) -> None:
    copy = Copy("this", ROOT / "src")
    command = copy.of(DRAGOMAN, tmp_path)
    command.environment["DRAGOMAN_STORAGE__SPACE"] = "bench"
    with Server(command, tmp_path) as server:
        server.run(Work(is_keyed=True), 40)
        server.run(Work(is_keyed=True), 20)
        server.run(Work(), 10)
    config = StorageConfig(data_dir=str(copy.folder(tmp_path)), space="bench")

    async def stored() -> list[StoredRun]:
        storage = SqliteStorage(config, SystemClock(), MIGRATIONS)
        try:
            return await storage.port(Runs).page(RunQuery(tasks_only=False))
        finally:
            await storage.close()

    assert len({run.request_id for run in asyncio.run(stored())}) == 60


@needs_git
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_no_worktree_behind(number: signal.Signals, tmp_path: Path) -> None:
    argv = _against("HEAD", "--rounds", "1000", "--seconds", "0.01", "--paths", "in-process")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert b"round 1 of 1000" in process.stderr.readline()
        assert str(tmp_path) in _worktrees()
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(PATIENCE) != 0
    assert str(tmp_path) not in _worktrees()


@needs_git
def test_a_commit_that_does_not_exist_cannot_be_compared_with() -> None:
    done = subprocess.run(_against("no-such-commit"), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "git rev-parse" in done.stderr


def test_a_tree_that_would_import_another_package_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="old does not import dragoman from"):
        against.compare(_plan(tmp_path, []), "old", tmp_path / "src", ["stdio"])


THREAD_THEN_WAIT = """
import sys, threading
thread = threading.Thread(target=lambda: sum(range(5_000_000)))
thread.start()
thread.join()
print("done", flush=True)
sys.stdin.read()
"""


def test_the_processor_time_of_a_process_includes_threads_that_have_ended(tmp_path: Path) -> None:
    process = Process(Command("threads", (sys.executable, "-c", THREAD_THEN_WAIT)), tmp_path, stream=subprocess.PIPE)
    with process.popen as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"done\n"
        times = psutil.Process(popen.pid).cpu_times()
        assert process.cpu == pytest.approx(times.user + times.system, abs=0.03)
    process.end()

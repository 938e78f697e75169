"""The gates: what each of them says, where they stand, how they are switched, and what is recorded of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import tool
from dragoman.calls.guards import POLICY, GateFacts, Verdict
from dragoman.calls.guards import listed as guards_listed
from dragoman.calls.limits import ARRAY_TOO_LARGE, Violation
from dragoman.telemetry.load import PressureMonitor, memory_budget, process_memory
from dragoman.testing import ManualClock, SequentialIds, open_server
from tests.support.answers import error_in
from tests.support.calls import Held, Spy, begin

MEMORY, SIZE, ARRAYS, AUDIT = POLICY.gates


@pytest.mark.requirement("PRD-GUARD-01")
async def test_policy_lists_four_gates_in_order_each_with_a_check_that_can_be_awaited() -> None:
    assert (POLICY.id, POLICY.name) == ("mcp-runtime-policy", "MCP Runtime Governance")
    names = ["memory-pressure-check", "request-size-check", "array-size-check", "timeout-audit"]
    assert [gate.id for gate in POLICY.gates] == names
    for gate in POLICY.gates:
        assert gate.name
        assert gate.description
        assert msgspec.to_builtins(await gate.check(GateFacts())) == {"passed": True}
    everything = GateFacts(
        pressure_level="critical",
        request_size_bytes=11,
        max_request_bytes=10,
        array_size_violations=(Violation("/a", ARRAY_TOO_LARGE, "", 3, 4),),
        duration_ms=90,
        timeout_ms=100,
    )
    verdicts = [msgspec.to_builtins(await gate.check(everything)) for gate in POLICY.gates]
    assert [verdict["passed"] for verdict in verdicts] == [False, False, False, True]
    reasons = [str(verdict.get("reason") or verdict["audit"]["event"]).split(" (")[0] for verdict in verdicts]
    assert reasons == [
        "Memory pressure is critical", "Request size", "Array size violations: /a has 4 items", "near_timeout",
    ]  # fmt: skip


@pytest.mark.requirement("PRD-GUARD-02", "PRD-GUARD-03")
@pytest.mark.parametrize(
    ("level", "verdict"),
    [
        (None, Verdict(True)),
        ("low", Verdict(True)),
        ("medium", Verdict(True)),
        ("high", Verdict(True, warning="Memory pressure is high, consider reducing cache usage")),
        (
            "critical",
            Verdict(False, "Memory pressure is critical", "Wait for cache eviction or increase maxSizeBytes"),
        ),
    ],
)
async def test_memory_gate_warns_when_high_and_fails_when_critical(level: Any, verdict: Verdict) -> None:
    assert await MEMORY.check(GateFacts(pressure_level=level)) == verdict


@pytest.mark.requirement("PRD-GUARD-04")
@pytest.mark.parametrize(
    ("size", "limit", "passed"), [(None, 10, True), (10, None, True), (10, 10, True), (11, 10, False)]
)
async def test_size_gate_fails_above_the_limit_only(size: int | None, limit: int | None, passed: bool) -> None:
    verdict = await SIZE.check(GateFacts(request_size_bytes=size, max_request_bytes=limit))
    said = Verdict(False, "Request size (11 bytes) exceeds limit (10 bytes)", "Reduce request payload size")
    assert verdict == (Verdict(True) if passed else said)


@pytest.mark.requirement("PRD-GUARD-05")
async def test_array_gate_names_every_violation() -> None:
    found = (Violation("/a", ARRAY_TOO_LARGE, "", 3, 4), Violation("/b/c", ARRAY_TOO_LARGE, "", 3, 9))
    assert await ARRAYS.check(GateFacts(array_size_violations=found)) == Verdict(
        False,
        "Array size violations: /a has 4 items (max: 3), /b/c has 9 items (max: 3)",
        "Reduce array sizes or paginate requests",
    )


@pytest.mark.requirement("PRD-GUARD-06")
@pytest.mark.parametrize(
    ("duration", "timeout", "ratio"),
    [
        (850, 1000, "85.0%"),
        (801, 1000, "80.1%"),
        (800, 1000, None),
        (0, 1000, None),
        (None, 1000, None),
        (850, None, None),
    ],
)
async def test_audit_gate_notes_what_came_close_to_its_deadline(
    duration: float | None, timeout: int | None, ratio: str | None
) -> None:
    verdict = await AUDIT.check(GateFacts(tool_name="t", duration_ms=duration, timeout_ms=timeout))
    audit = {"event": "near_timeout", "tool": "t", "durationMs": duration, "timeoutMs": timeout, "ratio": ratio}
    assert verdict == Verdict(True, audit=audit if ratio else None)


# In the pipeline


def a_budget(part: float) -> dict[str, Any]:
    """Settings under which the process uses this part of its memory budget."""
    return {"guards": {"memory_budget_bytes": int(process_memory() / part)}}


@pytest.mark.requirement("PRD-GUARD-02", "PRD-GUARD-07")
async def test_call_is_refused_under_critical_pressure_before_its_handler_and_health_still_answers() -> None:
    spy = Spy()
    async with open_server([spy.tool], a_budget(1.2), ids=SequentialIds()) as server:
        client = await server.client()
        error = error_in(await client.call_tool("spy"))
        assert error == {
            "code": "RESOURCE_EXHAUSTED",
            "message": "Memory pressure is critical",
            "details": {
                "reason": "memory_pressure",
                "retryable": True,
                "gate": "memory-pressure-check",
                "recommendation": "Wait for cache eviction or increase maxSizeBytes",
                "setting": "guards.memory_budget_bytes",
            },
            "runId": "run-1",
            "correlationId": "corr-1",
        }
        assert spy.calls == 0
        assert (await client.call_tool("health"))["isError"] is False
        assert [record.get("guards") for record in server.records] == [
            [
                {
                    "gate": "memory-pressure-check",
                    "decision": "fail",
                    "reason": "Memory pressure is critical",
                    "recommendation": "Wait for cache eviction or increase maxSizeBytes",
                }
            ],
            None,
        ]


@pytest.mark.requirement("PRD-GUARD-03")
async def test_high_pressure_lets_the_call_pass_with_a_warning_in_its_record() -> None:
    spy = Spy()
    async with open_server([spy.tool], a_budget(0.9)) as server:
        assert (await (await server.client()).call_tool("spy"))["isError"] is False
        said = "Memory pressure is high, consider reducing cache usage"
        assert server.records[0]["guards"] == [{"gate": "memory-pressure-check", "decision": "warn", "reason": said}]


async def test_a_full_cache_is_not_memory_pressure() -> None:
    @tool(read_only=True, cache_ttl_ms=0)
    async def read(n: int) -> str:
        return "x" * 200

    config = {"cache": {"max_size_bytes": 1000, "max_entries": 3}}
    async with open_server([read], config) as server:
        client = await server.client()
        for n in range(20):
            assert (await client.call_tool("read", {"n": n}))["isError"] is False
        assert server.runtime.cache.stats().eviction_count > 0
        assert not any("guards" in record for record in server.records)


@pytest.mark.requirement("PRD-GUARD-05", "PRD-GUARD-07")
async def test_array_gate_refuses_and_its_words_are_in_answer_and_record() -> None:
    spy = Spy()
    async with open_server([spy.tool], {"limits": {"max_array_size": 100}}) as server:
        error = error_in(await (await server.client()).call_tool("spy", {"a": [0] * 101}))
        assert error["message"] == "Array size violations: /a has 101 items (max: 100)"
        assert error["details"]["gate"] == "array-size-check"
        assert error["details"]["recommendation"] == "Reduce array sizes or paginate requests"
        assert server.records[0]["guards"] == [
            {
                "gate": "array-size-check",
                "decision": "fail",
                "reason": "Array size violations: 1",  # Names of members are the client's data.
                "recommendation": "Reduce array sizes or paginate requests",
            }
        ]
        assert spy.calls == 0


@pytest.mark.requirement("PRD-GUARD-05")
async def test_array_gate_passes_a_call_in_which_only_a_string_is_too_long() -> None:
    spy = Spy()
    async with open_server([spy.tool], {"limits": {"max_string_length": 100}}) as server:
        error = error_in(await (await server.client()).call_tool("spy", {"a": "x" * 101}))
        assert error["message"] == "Arguments exceed a limit"
        assert error["details"].keys() == {"errors", "total", "setting"}
        assert "guards" not in server.records[0]
        assert spy.calls == 0


@pytest.mark.requirement("PRD-GUARD-04")
@pytest.mark.parametrize(("mode", "refused"), [("enforce", True), ("warn", False), ("off", False)])
async def test_size_gate_refuses_in_its_own_words_and_can_be_switched(mode: str, refused: bool) -> None:
    spy = Spy()
    config = {"limits": {"max_request_bytes": 1000}, "guards": {"gates": {"request-size-check": mode}}}
    async with open_server([spy.tool], config) as server:
        outcome = await server.runtime.call("spy", {"x": "y" * 2000})
        assert outcome.is_error is refused
        if refused:
            assert outcome.error is not None
            assert outcome.error.message == "Request size (2008 bytes) exceeds limit (1000 bytes)"
            assert server.records[0]["guards"][0]["recommendation"] == "Reduce request payload size"


@pytest.mark.parametrize(("mode", "guards"), [("warn", "warn"), ("off", None)])
async def test_gate_that_is_not_enforced_lets_the_call_pass(mode: str, guards: str | None) -> None:
    spy = Spy()
    config = {"limits": {"max_array_size": 100}, "guards": {"gates": {"array-size-check": mode}}}
    async with open_server([spy.tool], config) as server:
        assert (await (await server.client()).call_tool("spy", {"a": [0] * 101}))["isError"] is False
        decisions = server.records[0].get("guards")
        assert (decisions[0]["decision"] if decisions else None) == guards
        listed = {gate.id: gate.mode for gate in guards_listed(server.runtime.config.guards)}
        assert listed["array-size-check"] == mode
        assert listed["timeout-audit"] == "enforce"


async def test_gate_that_lets_arrays_pass_says_nothing_about_depth() -> None:
    spy = Spy()
    async with open_server([spy.tool], {"guards": {"gates": {"array-size-check": "off"}}}) as server:
        deep: Any = []
        for _ in range(12):
            deep = [deep]
        assert error_in(await (await server.client()).call_tool("spy", {"a": deep}))["code"] == "INVALID_ARGUMENT"
        assert spy.calls == 0


@pytest.mark.requirement("PRD-GUARD-06", "PRD-GUARD-07")
@pytest.mark.parametrize(("took", "audited"), [(0.8, False), (0.81, True)])
async def test_call_that_ends_close_to_its_deadline_is_noted_in_its_record(took: float, audited: bool) -> None:
    clock, held = ManualClock(), Held(timeout_ms=1000)
    async with open_server([held.tool], clock=clock) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(took)
        held.release.set()
        assert (await client.answer(call))["result"]["isError"] is False
        assert ("guards" in server.records[0]) is audited
        if audited:
            audit = {
                "event": "near_timeout",
                "tool": "hold",
                "durationMs": 810.0,
                "timeoutMs": 1000,
                "ratio": "81.0%",
            }
            assert server.records[0]["guards"] == [{"gate": "timeout-audit", "decision": "audit", "audit": audit}]


# Memory


def test_budget_is_never_more_than_there_is() -> None:
    assert 0 < process_memory() < memory_budget()


@pytest.mark.parametrize(
    ("used", "level"),
    [
        (0, "low"),
        (699, "low"),
        (700, "medium"),
        (849, "medium"),
        (850, "high"),
        (949, "high"),
        (950, "critical"),
        (2000, "critical"),
    ],
)
async def test_pressure_is_the_part_of_the_budget_in_use(used: int, level: str) -> None:
    monitor = PressureMonitor(ManualClock(), 1000, lambda: used)
    monitor.start()
    assert (monitor.level, monitor.is_calm) == (level, level in ("low", "medium"))


async def test_pressure_is_looked_at_once_a_second_until_it_is_stopped() -> None:
    clock, used = ManualClock(), [0]
    monitor = PressureMonitor(clock, 1000, lambda: used[0])
    monitor.start()
    used[0] = 1000
    clock.advance(0.9)
    assert monitor.level == "low"
    clock.advance(0.1)
    assert monitor.level == "critical"
    used[0] = 0
    clock.advance(1.0)
    assert monitor.level == "low"
    monitor.stop()
    used[0] = 1000
    clock.advance(5.0)
    assert monitor.level == "low"


async def test_pressure_that_cannot_be_looked_at_stays_and_is_looked_at_again() -> None:
    clock, used = ManualClock(), [1000]

    def measure() -> int:
        if used[0] < 0:
            raise OSError("no descriptor")
        return used[0]

    monitor = PressureMonitor(clock, 1000, measure)
    monitor.start()
    used[0] = -1
    clock.advance(1.0)
    assert monitor.level == "critical"
    used[0] = 0
    clock.advance(1.0)
    assert monitor.level == "low"

"""The checks of the soak pass for a healthy server, and fail for each fault that they are there for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from soak.asks import Asked, some_echo
from soak.ledger import ERROR, NO_RECORD, SUCCESS, Ledger, LogReader
from soak.run import TOOLS, Plan, Run
from soak.servers import COUNT_ALLOWANCE, MEMORY_ALLOWANCE, Sample, complaints_about


def record(correlation_id: str, outcome: str = "success") -> bytes:
    entry = {"level": "info", "message": "tool call completed", "correlationId": correlation_id, "outcome": outcome}
    return msgspec.json.encode(entry)


def test_a_record_for_each_accepted_call_and_none_for_the_others_is_right() -> None:
    ledger = Ledger()
    ledger.take(record(ledger.open(SUCCESS)))
    ledger.open(NO_RECORD)
    ledger.take(record(ledger.open(SUCCESS | NO_RECORD)))
    ledger.check()
    assert ledger.problems == []


def test_a_missing_record_is_found_once() -> None:
    ledger = Ledger()
    ledger.open(SUCCESS)
    ledger.open(SUCCESS)
    ledger.check(before=1)
    assert ledger.problems == ["the record of soak-0: none, and it must be success"]
    ledger.check()
    assert ledger.problems[1:] == ["the record of soak-1: none, and it must be success"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([record("soak-0")] * 2, "a second record of soak-0: success after success"),
        ([record("soak-0", "aborted")], "the record of soak-0: aborted, and it must be success"),
        ([record("soak-0"), record("soak-1")], "the record of soak-1: success, and it must be no record"),
        ([record("soak-0"), record("soak-2")], "a record of a call that nobody made: soak-2"),
        ([record("soak-0"), record("another")], "a record of a call that nobody made: another"),
        ([record("soak-0"), b"Traceback"], "a line of the log is not JSON: b'Traceback'"),
    ],
)
def test_a_wrong_line_in_the_log_is_found(lines: list[bytes], problem: str) -> None:
    ledger = Ledger()
    ledger.open(SUCCESS)
    ledger.open(NO_RECORD)
    for line in lines:
        ledger.take(line)
    ledger.check()
    assert ledger.problems == [problem]


@pytest.mark.parametrize(
    ("entry", "is_expected"),
    [
        ({"level": "error", "message": "tool failed", "toolName": "crash"}, True),
        ({"level": "error", "message": "tool failed", "toolName": "echo"}, False),
        ({"level": "error", "message": "request failed"}, False),
    ],
)
def test_only_the_tool_that_crashes_may_be_logged_as_failed(entry: dict[str, Any], is_expected: bool) -> None:
    ledger = Ledger()
    ledger.take(msgspec.json.encode(entry))
    assert (ledger.problems == []) is is_expected


def test_a_log_that_ends_within_a_line_is_found(tmp_path: Path) -> None:
    ledger, log = Ledger(), tmp_path / "log"
    log.write_bytes(record(ledger.open(SUCCESS)) + b"\n" + record(ledger.open(SUCCESS))[:20])
    LogReader(log, ledger).close()
    ledger.check()
    assert len(ledger.problems) == 2


def answer(asked: Asked, **changes: Any) -> dict[str, Any]:
    text = msgspec.json.encode(asked.params["arguments"]["text"]).decode()
    meta = {"dragoman/correlationId": asked.correlation_id}
    result = {"content": [{"type": "text", "text": text}], "isError": False, "_meta": meta}
    return {"id": asked.id, "result": {**result, **changes}}


@pytest.mark.parametrize(
    "changes", [{"content": []}, {"content": [{"text": '"another text"'}]}, {"_meta": {}}, {"isError": True}]
)
def test_a_wrong_answer_is_found(changes: dict[str, Any]) -> None:
    ledger = Ledger()
    asked = Asked(ledger, some_echo())
    asked.check(answer(asked))
    assert ledger.problems == []
    if changes.get("isError"):
        changes |= {"content": [{"text": '{"code":"INTERNAL"}'}]}
    asked.check(answer(asked, **changes))
    assert len(ledger.problems) == 1


def test_a_refusal_for_want_of_a_slot_must_be_recorded_as_one() -> None:
    ledger = Ledger()
    asked = Asked(ledger, some_echo())
    error = {"code": "RESOURCE_EXHAUSTED", "details": {"reason": "no_free_slot"}}
    asked.check(answer(asked, isError=True, content=[{"text": msgspec.json.encode(error).decode()}]))
    assert (ledger.problems, ledger.refused_for_slots) == ([], 1)
    ledger.take(record(asked.correlation_id, *ERROR))
    ledger.check()
    assert ledger.problems == []


def samples(memory: int = 0, descriptors: int = 0, threads: int = 0) -> list[Sample]:
    """A hundred, over which each grows by so much, with a peak in the middle."""
    return [
        Sample(at, at, (1 << 26) + memory * at // 100 + (at == 50 and 1 << 26), descriptors * at, threads * at)
        for at in range(100)
    ]


def test_only_growth_beyond_the_allowance_is_found() -> None:
    assert complaints_about("http", samples(memory=MEMORY_ALLOWANCE)) == []
    for faulty in (
        samples(memory=2 * MEMORY_ALLOWANCE),
        samples(descriptors=COUNT_ALLOWANCE),
        samples(threads=COUNT_ALLOWANCE),
    ):
        assert len(complaints_about("http", faulty)) == 1


async def problems_of(tools: str, folder: Path) -> list[str]:
    report = await Run(Plan(3.0, folder, share=2.0, tools=TOOLS.with_name(tools))).run()
    found: list[str] = report["problems"]
    return found


@pytest.mark.slow
@pytest.mark.nightly
async def test_a_healthy_server_passes(tmp_path: Path) -> None:
    assert await problems_of("tools.py", tmp_path) == []


@pytest.mark.slow
@pytest.mark.nightly
async def test_a_server_that_loses_records_fails(tmp_path: Path) -> None:
    assert [each for each in await problems_of("losing_tools.py", tmp_path) if each.startswith("the record of soak-")]


@pytest.mark.slow
@pytest.mark.nightly
async def test_a_server_that_leaks_memory_fails(tmp_path: Path) -> None:
    problems = await problems_of("leaking_tools.py", tmp_path)
    assert [each for each in problems if each.startswith("http: memory grew by")]

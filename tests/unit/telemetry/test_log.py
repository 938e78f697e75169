"""The log: what an entry holds, and the one line that it becomes."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dragoman import ToolContext, tool
from dragoman.telemetry.log import Entry, EntryWriter, StructuredLogger
from dragoman.telemetry.settings import LoggingConfig
from dragoman.testing import ManualClock, SequentialIds, is_json_rpc, open_server
from tests.support.processes import environment
from tests.support.waiting import PATIENCE

NOW = "2024-01-15T10:30:00.000Z"


class Log:
    """A logger, and what it wrote."""

    def __init__(self, **settings: Any) -> None:
        config = LoggingConfig(**settings)
        self.clock = ManualClock()
        self.entries: list[Entry] = []
        self.logger = StructuredLogger(self.entries.append, self.clock, config)
        self._config = config

    @property
    def written(self) -> bytes:
        return EntryWriter(self._config)(self.entries)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.splitlines()]

    @property
    def text(self) -> str:
        return EntryWriter(self._config, text=True)(self.entries).decode()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.requirement("FND-LOG-01")
def test_an_entry_is_one_json_object_with_time_level_message_and_facts(log: Log) -> None:
    facts = {
        "correlationId": "c",
        "runId": "r",
        "durationMs": 1.5,
        "error": {"code": "INTERNAL", "message": "broken", "details": {"why": ["so"]}},
        "toolName": "echo",
    }
    log.logger.warn("tool failed", facts)
    assert log.written.count(b"\n") == 1
    assert log.lines == [{"timestamp": NOW, "level": "warn", "message": "tool failed", **facts}]


@pytest.mark.requirement("FND-LOG-01")
def test_an_entry_without_facts_has_three_keys(log: Log) -> None:
    log.logger.info("hello")
    assert log.written == b'{"timestamp":"2024-01-15T10:30:00.000Z","level":"info","message":"hello"}\n'


@pytest.mark.requirement("FND-LOG-01")
def test_every_level_has_a_method_and_log_takes_any() -> None:
    log = Log(level="debug")
    for level in ("debug", "info", "warn", "error"):
        getattr(log.logger, level)("m")
        log.logger.log(level, "m")  # type: ignore[arg-type]
    levels = ["debug", "debug", "info", "info", "warn", "warn", "error", "error"]
    assert [line["level"] for line in log.lines] == levels


@pytest.mark.requirement("FND-LOG-01")
@pytest.mark.parametrize(
    "facts", [{"level": "fatal"}, {"timestamp": 0}, {"message": "forged"}, {"level": ["x"], "timestamp": None}]
)
def test_facts_cannot_pass_for_the_time_the_level_or_the_message(log: Log, facts: dict[str, Any]) -> None:
    log.logger.info("true", facts)
    log.logger.child(facts).info("true")
    assert [(line["timestamp"], line["level"], line["message"]) for line in log.lines] == [(NOW, "info", "true")] * 2
    assert log.text.count("\n") == 2


@pytest.mark.parametrize(
    ("level", "logged"),
    [
        ("debug", ["debug", "info", "warn", "error"]),
        ("info", ["info", "warn", "error"]),
        ("warn", ["warn", "error"]),
        ("error", ["error"]),
    ],
)
def test_entries_below_the_level_are_not_made(level: str, logged: list[str]) -> None:
    log = Log(level=level)
    for each in ("debug", "info", "warn", "error"):
        log.logger.child({"a": 1}).log(each, each)  # type: ignore[arg-type]
    assert [line["message"] for line in log.lines] == logged


@pytest.mark.requirement("FND-LOG-03", "FND-LOG-12")
def test_timestamps_are_the_clocks(log: Log) -> None:
    log.logger.info("one")
    log.clock.advance(61.5)
    log.logger.info("two")
    log.logger.child({"a": 1}).info("three")
    times = [NOW, "2024-01-15T10:31:01.500Z", "2024-01-15T10:31:01.500Z"]
    assert [line["timestamp"] for line in log.lines] == times


@pytest.mark.requirement("FND-LOG-03")
def test_without_a_clock_the_machines_own_is_used() -> None:
    entries: list[Entry] = []
    StructuredLogger(entries.append).info("now")
    moment = datetime.strptime(entries[0]["timestamp"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60


@pytest.mark.requirement("FND-LOG-04")
def test_a_child_adds_to_what_its_parent_adds(log: Log) -> None:
    parent = log.logger.child({"a": 1, "b": 1})
    child = parent.child({"b": 2, "c": 2})
    child.info("m", {"c": 3, "d": 3})
    parent.info("m")
    log.logger.info("m")
    head = {"timestamp": NOW, "level": "info", "message": "m"}
    assert log.lines == [{**head, "a": 1, "b": 2, "c": 3, "d": 3}, {**head, "a": 1, "b": 1}, head]


@pytest.mark.requirement("FND-LOG-04", "FND-LOG-05", "FND-LOG-07", "FND-CONF-06")
def test_a_child_keeps_its_parents_redaction_keys_and_level() -> None:
    log = Log(redact_keys=("badge",), level="warn")
    child = log.logger.child({"badge": "hunter2", "token": "hunter2"}).child({"deep": {"Badge": "hunter2"}})
    child.info("not logged")
    child.warn("m", {"BADGE": "hunter2", "shown": 1})
    head = {"timestamp": NOW, "level": "warn", "message": "m"}
    hidden = "[REDACTED]"
    assert log.lines == [
        {**head, "badge": hidden, "token": hidden, "deep": {"Badge": hidden}, "BADGE": hidden, "shown": 1}
    ]
    assert child.redact({"badge": 1, "x": 2}) == {"badge": hidden, "x": 2}


@pytest.mark.requirement("FND-LOG-05", "FND-LOG-07")
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    "facts",
    [
        {"token": "hunter2"},
        {"apikey": "hunter2"},
        {"Authorization": "Bearer hunter2"},
        {"a": [{"b": {"SESSION": "hunter2"}}]},
        {"a": ({"cookie": ["hunter2"]},)},
    ],
)
def test_secrets_do_not_reach_the_log_in_either_format(facts: dict[str, Any], text: bool) -> None:
    log = Log()
    log.logger.info("m", facts)
    written = log.text.encode() if text else log.written
    assert b"hunter2" not in written
    assert b"[REDACTED]" in written


@pytest.mark.requirement("FND-LOG-05")
def test_one_secret_among_many_harmless_entries_is_found(log: Log) -> None:
    for number in range(50):
        log.logger.info("m", {"number": number})
    log.logger.info("m", {"number": 50, "Token": "hunter2"})
    assert [line["number"] for line in log.lines] == list(range(51))
    assert log.lines[50]["Token"] == "[REDACTED]"
    assert b"hunter2" not in log.written


@pytest.mark.requirement("FND-LOG-06")
def test_what_is_logged_is_not_changed_and_what_changes_later_is_not_logged(log: Log) -> None:
    facts = {"token": "hunter2", "list": [{"key": "hunter2"}, "a\nb"], "text": "a\nb"}
    before = copy.deepcopy(facts)
    log.logger.child(facts).info("m", facts)
    log.logger.redact(facts)
    log.logger.sanitize(facts["text"])
    written = log.written
    assert facts == before
    facts["list"].append("later")  # type: ignore[attr-defined]
    facts["text"] = "later"
    assert log.written == written


@pytest.mark.requirement("FND-LOG-06")
def test_flat_facts_that_change_after_logging_were_logged_as_they_were(log: Log) -> None:
    facts = {"step": 1}
    child = log.logger.child(facts)
    log.logger.info("m", facts)
    facts["step"] = 2
    child.info("m")
    assert [line["step"] for line in log.lines] == [1, 1]


@pytest.mark.requirement("FND-LOG-08")
@pytest.mark.parametrize("text", [False, True])
def test_one_entry_is_one_line_whatever_is_in_it(text: bool) -> None:
    hostile = "".join(map(chr, range(0x21))) + "\x7f\x85\x9b\u2028\u2029\u202e\u2066\ud800" + '"\\{}[]'
    log = Log()
    log.logger.child({hostile: hostile}).info(hostile, {hostile + "2": [hostile, {hostile: hostile}], "flat": hostile})
    log.logger.info("next", {"flat": hostile})
    written = (log.text.encode() if text else log.written).replace(b"\x1b[0m", b"")
    assert written.endswith(b"\n")
    decoded = written.decode()
    assert len(decoded.splitlines()) == 2
    assert not set(decoded.replace("\n", "")) & set(
        map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E))
    )


@pytest.mark.requirement("FND-LOG-08")
def test_control_characters_are_written_as_unicode_escapes(log: Log) -> None:
    log.logger.info("a\nb", {"flat": "\r", "deep": {"list": ["\t", {"x": "\x00\x1f"}]}})
    assert log.lines == [
        {
            "timestamp": NOW,
            "level": "info",
            "message": "a\\u000ab",
            "flat": "\\u000d",
            "deep": {"list": ["\\u0009", {"x": "\\u0000\\u001f"}]},
        }
    ]


def test_a_line_cannot_be_forged_from_within(log: Log) -> None:
    log.logger.info('x"}\n{"level":"error","message":"forged"}', {"a": '"}\n{"message":"forged"}'})
    assert [line["level"] for line in log.lines] == ["info"]


@pytest.mark.parametrize("text", ["plain", "é", "日本語 🙂", 'quotes " and \\ too', "{braces} [brackets]", "a\u0301"])
def test_text_that_is_harmless_is_logged_as_it_is(log: Log, text: str) -> None:
    log.logger.info(text, {"flat": text, "list": [text]})
    assert log.lines == [{"timestamp": NOW, "level": "info", "message": text, "flat": text, "list": [text]}]


@pytest.mark.parametrize(
    ("value", "logged"),
    [
        (2**70, 2**70),
        (float("nan"), None),
        (float("inf"), None),
        (None, None),
        (True, True),
        (b"hunter2", "<bytes>"),
        (ValueError("hunter2"), "<ValueError>"),
        ({1: 2}, {"1": 2}),
    ],
)
def test_facts_of_any_type_can_be_logged(log: Log, value: Any, logged: Any) -> None:
    log.logger.info("m", {"value": value})
    assert [line["value"] for line in log.lines] == [logged]
    assert log.text.count("\n") == 1


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1, 2)])
def test_keys_that_are_not_text_are_logged_as_text(log: Log, key: Any) -> None:
    log.logger.info("m", {key: "x"})
    log.logger.child({key: "x"}).info("m")
    assert [line[str(key)] for line in log.lines] == ["x", "x"]


def test_a_message_that_is_not_text_is_no_reason_to_fail(log: Log) -> None:
    log.logger.error(ValueError("x"))  # type: ignore[arg-type]
    assert [line["level"] for line in log.lines] == ["error"]
    assert log.text.count("\n") == 1


def test_many_entries_are_written_the_same_as_one_by_one(log: Log) -> None:
    log.logger.info("flat", {"a": 1})
    log.logger.info("deep", {"a": {"b": [1]}})
    log.logger.info("secret", {"token": "x"})
    log.logger.info("hostile\n")
    one = EntryWriter()
    assert one(log.entries) == b"".join(one([entry]) for entry in log.entries)
    assert one([]) == b""


def test_text_is_for_a_person_at_a_terminal() -> None:
    log = Log(level="debug")
    for level in ("debug", "info", "warn", "error"):
        log.logger.log(level, "hello", {"a": 1, "b": "x y", "c": [1, {"d": None}]})  # type: ignore[arg-type]
    log.logger.info("alone")
    facts = 'a=1 b=x y c=[1,{"d":null}]'
    assert log.text.splitlines() == [
        f"10:30:00.000 \x1b[2mDEBUG hello\x1b[0m {facts}",
        f"10:30:00.000 INFO  hello\x1b[0m {facts}",
        f"10:30:00.000 \x1b[33mWARN  hello\x1b[0m {facts}",
        f"10:30:00.000 \x1b[31mERROR hello\x1b[0m {facts}",
        "10:30:00.000 INFO  alone\x1b[0m",
    ]


@pytest.mark.parametrize("number", [0x1B, 0x07, 0x0D, 0x7F, 0x85, 0x9B, 0x2028, 0x2029, 0x200F, 0x202E, 0x2066, 0xFEFF])
def test_text_cannot_command_the_terminal(log: Log, number: int) -> None:
    log.logger.info(f"a{chr(number)}b", {f"k{chr(number)}": f"v{chr(number)}", "list": [f"l{chr(number)}"]})
    escaped = f"\\u{number:04x}"
    listed = f'["l{escaped}"]'.replace("\\", "\\\\")
    assert log.text == f"10:30:00.000 INFO  a{escaped}b\x1b[0m k{escaped}=v{escaped} list={listed}\n"


# In a server


@pytest.mark.requirement("FND-LOG-09")
async def test_sanitising_and_redaction_concern_the_log_and_nothing_else() -> None:
    hostile = {"message": "a\nb\t\x1b\u2028\u202e", "token": "hunter2"}
    seen: list[Any] = []

    @tool
    def say(message: str, token: str, context: ToolContext) -> dict[str, str]:
        seen.append({"message": message, "token": token})
        context.logger.info(message, {"token": token, "message2": message})
        return {"message": message, "token": token}

    async with open_server([say]) as server:
        result = await (await server.client()).call_tool("say", hostile)
    assert seen == [hostile]
    assert json.loads(result["content"][0]["text"]) == hostile
    assert result["structuredContent"] == hostile
    assert b"hunter2" not in server.stderr
    assert server.log[0]["message"] == "a\\u000ab\\u0009\\u001b\\u2028\\u202e"


@pytest.mark.requirement("FND-LOG-10")
async def test_a_cancelled_call_is_logged_under_its_ids_and_without_secrets() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(secret: str, context: ToolContext) -> None:
        started.set()
        await context.cancellation.wait()
        facts = {"reason": context.cancellation.reason, "secret": secret, "deep": [{"Password": secret}]}
        context.logger.warn("stopping early", facts)
        stopped.set()
        context.cancellation.raise_if_set()

    async with open_server([wait], clock=ManualClock(), ids=SequentialIds()) as server:
        client = await server.client()
        request = client.begin("tools/call", {"name": "wait", "arguments": {"secret": "hunter2"}})
        await started.wait()
        client.notify("notifications/cancelled", {"requestId": request, "reason": "bored"})
        await stopped.wait()
    ids = {"runId": "run-1", "correlationId": "corr-1"}
    hidden = "[REDACTED]"
    cancelled, stopping, record = server.log[:3]
    assert cancelled == {
        "timestamp": NOW,
        "level": "info",
        "message": "call cancelled by its client",
        "connectionCorrelationId": "conn-1",
        **ids,
        "reason": "bored",
    }
    assert stopping == {
        "timestamp": NOW,
        "level": "warn",
        "message": "stopping early",
        **ids,
        "reason": "client",
        "secret": hidden,
        "deep": [{"Password": hidden}],
    }
    assert {key: record[key] for key in ("message", "runId", "correlationId", "outcome")} == {
        "message": "tool call completed",
        **ids,
        "outcome": "aborted",
    }
    assert b"hunter2" not in server.stderr


@pytest.mark.requirement("FND-LOG-10")
async def test_a_call_that_passed_its_deadline_is_logged_under_its_ids() -> None:
    started = asyncio.Event()

    @tool(timeout_ms=100)
    async def wait(token: str, context: ToolContext) -> None:
        started.set()
        await context.cancellation.wait()

    clock = ManualClock()
    async with open_server([wait], clock=clock, ids=SequentialIds()) as server:
        client = await server.client()
        client.begin("tools/call", {"name": "wait", "arguments": {"token": "hunter2"}})
        await started.wait()
        clock.advance(0.1)
    assert server.log[0] == {
        "timestamp": "2024-01-15T10:30:00.100Z",
        "level": "warn",
        "message": "tool call passed its deadline",
        "runId": "run-1",
        "correlationId": "corr-1",
        "toolName": "wait",
    }
    assert b"hunter2" not in server.stderr


@pytest.mark.requirement("FND-LOG-11")
async def test_a_refusal_for_want_of_resources_is_logged_with_a_hint_to_retry_where_that_can_help() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> None:
        started.set()
        await go_on.wait()

    config = {"resources": {"maxConcurrentExecutions": 1}, "tools": {"maxPayloadBytes": 20}}
    async with open_server([hold], config, clock=ManualClock(), ids=SequentialIds()) as server:
        client = await server.client()
        client.begin("tools/call", {"name": "hold", "arguments": {}})
        await started.wait()
        await client.call_tool("hold")
        await client.call_tool("hold", {"padding": "x" * 20})
        go_on.set()
    hint = "Clients should retry with exponential backoff and jitter."  # Not for arguments that stay too large.
    refused = [entry for entry in server.records if entry.get("errorCode") == "RESOURCE_EXHAUSTED"]
    assert [(entry["level"], entry.get("hint"), entry["runId"]) for entry in refused] == [
        ("warn", hint, "run-2"),
        ("warn", None, "run-3"),
    ]
    assert [entry.get("hint") for entry in server.records if "errorCode" not in entry] == [None]


NOISY = """
import os, sys
from dragoman import ToolContext, tool

print("printed while loading")

@tool
def noisy(context: ToolContext) -> int:
    print("printed")
    sys.stdout.write("written\\n")
    os.write(1, b"straight to the descriptor\\n")
    os.system("echo from a child")
    context.logger.info("logged")
    return 1
"""


@pytest.mark.slow
@pytest.mark.requirement("FND-LOG-02", "FND-LOG-01")
def test_nothing_but_the_protocol_reaches_stdout_and_the_log_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    requests = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "noisy"}},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "unknown"}},
    ]
    (tmp_path / "requests").write_text("".join(json.dumps(request) + "\n" for request in requests))
    with (tmp_path / "requests").open("rb") as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "dragoman", "serve", "noisy.py"],
            cwd=tmp_path,
            stdin=stdin,
            env=environment(),
            capture_output=True,
            timeout=PATIENCE,
        )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(map(is_json_rpc, answers))
    assert sorted(answer["id"] for answer in answers) == [1, 2, 3]
    stderr = done.stderr.decode().splitlines()
    noise = {"printed while loading", "printed", "written", "straight to the descriptor", "from a child"}
    assert noise <= set(stderr)
    entries = [json.loads(line) for line in stderr if line not in noise]
    assert all(entry.keys() >= {"timestamp", "level", "message"} for entry in entries)
    assert "logged" in [entry["message"] for entry in entries]
    assert done.returncode == 0


def test_a_worker_signs_each_of_its_entries_however_they_are_written() -> None:
    flat = {"timestamp": "2026-01-01T00:00:00.000Z", "level": "info", "message": "}"}
    nested = {**flat, "facts": {"a": "}\n"}, "token": "secret"}
    for entries in ([flat, flat], [flat, nested]):
        lines = EntryWriter(worker=3)(entries).splitlines()
        assert [json.loads(line)["worker"] for line in lines] == [3, 3]
        assert [json.loads(line)["message"] for line in lines] == ["}", "}"]
    assert b"worker=3" in EntryWriter(text=True, worker=3)([flat])

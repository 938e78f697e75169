"""`dragoman agents`, `messages` and `ledger`: what an operator sees of a ledger, and can do with it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from dragoman.adapters.engines import make_storage
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.agents.ledger import EntryStatus, LedgerEntry
from dragoman.cli.commands import app
from dragoman.cli.ledger_access import age_in_words
from dragoman.cli.target import with_space
from dragoman.clock import SystemClock
from dragoman.config import Config
from dragoman.errors import InternalFailure
from dragoman.memories.migrations import MIGRATIONS as MEMORIES
from dragoman.memories.port import Memories, Space
from dragoman.storage.settings import StorageConfig
from dragoman.telemetry.causes import Cause, with_causes
from dragoman.workers.control import Source
from tests.support.kept_messages import CLIENT, KeptMessages, fill, tamper

runner = CliRunner()
SPACE = "crew"
FAILED_WITH = "ValueError: no such order (orders.py:3 in place)"
EVERY = ("agents list", "agents show clerk", "agents send clerk hi", "messages list", "messages dead",
         "messages show 1", "messages redrive --all", "messages purge", "ledger stats", "ledger verify")  # fmt: skip
HOSTILE = "\x1b]0;gone\x07 \x1b[2J \x9b31m \u202egnp.exe \u2066x \r\n\x00 \u200b end"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def dragoman(*words: str) -> Result:
    return runner.invoke(app, words)


def answer(*words: str) -> Any:
    """What a command that goes well prints as JSON."""
    result = dragoman(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


async def one_of_each(kept: KeptMessages) -> list[LedgerEntry]:
    """A completed request, which is message 1 and answered by 5; a dead and an unknown event; one that waits."""
    entries = [await kept.accept("clerk", {"nr": 1}, "REQUEST"), *[await kept.accept("clerk", nr) for nr in (2, 3, 4)]]
    hold = await kept.hold("clerk")
    error = msgspec.json.encode(InternalFailure("It failed").structured(None, "c"))
    error = with_causes(error, [Cause(1, 1_700_000_000.0, "ValueError", "no such order", "orders.py:3 in place")])
    await kept.end(hold, hold.version, entries[0], EntryStatus.COMPLETED)
    await kept.end(hold, hold.version + 1, entries[1], EntryStatus.DEAD, error)
    await kept.end(hold, hold.version + 2, entries[2], EntryStatus.UNKNOWN, error)
    return entries


# Which ledger is meant.


@pytest.mark.parametrize("command", EVERY)
def test_without_a_database_nothing_is_made_and_the_command_is_refused(command: str, data: Path) -> None:
    result = dragoman(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"dragoman: {data} has no ledger yet; a server with agents or tasks makes one\n"
    assert not data.exists()


def test_a_database_without_a_ledger_is_left_as_it_is(data: Path) -> None:
    async def remember() -> None:
        storage = make_storage(StorageConfig(data_dir=str(data)), SystemClock(), MEMORIES)
        await storage.port(Memories).list(Space("somebody", "notes"), 1)
        await storage.close()

    asyncio.run(remember())
    assert dragoman("ledger", "stats").exit_code == 2
    with closing(sqlite3.connect(data / FILE_NAME)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'ledger%'").fetchall() == []


@pytest.mark.parametrize("command", EVERY)
def test_with_several_spaces_they_are_listed_and_the_command_is_refused(command: str, data: Path) -> None:
    for space in ("night", "day"):
        fill(data, space, lambda kept: kept.hold("clerk"))
    result = dragoman(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    first, *listed = result.stderr.splitlines()
    assert first == f"dragoman: there are several spaces; name one with --space. {data} has:"
    assert listed == ["  day", "  night"]


@pytest.mark.slow
def test_a_space_is_named_by_an_option_a_setting_or_a_target(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_target = with_space(Config(), Source("crew.py")).storage.space
    assert of_target is not None
    for space, agent in (("day", "sun"), ("night", "moon"), (of_target, "star")):
        fill(data, space, lambda kept, agent=agent: kept.hold(agent))  # type: ignore[misc]

    def seen(*words: str) -> list[str]:
        return [each["agentId"] for each in answer("agents", "list", *words)]

    assert seen("--space", "day") == ["sun"]
    assert seen("--target", "crew.py") == ["star"]
    monkeypatch.setenv("DRAGOMAN_STORAGE__SPACE", "night")
    assert seen() == ["moon"]
    assert seen("--space", "day") == ["sun"]
    both = dragoman("agents", "list", "--space", "day", "--target", "crew.py")
    assert (both.exit_code, both.stderr) == (2, "dragoman: give --target or --space, not both\n")


def test_an_unknown_space_is_refused_and_not_made(data: Path) -> None:
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    for words in (("--space", "crow"), ("--target", "other.py")):
        result = dragoman("agents", "send", "clerk", "hello", *words)
        assert (result.exit_code, result.stderr.splitlines()[1:]) == (2, ["  crew"])
        assert result.stderr.startswith("dragoman: there is no space ")
    assert answer("ledger", "stats")["space"] == SPACE


def test_an_engine_that_keeps_nothing_has_no_ledger_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__ENGINE", "memory")
    result = dragoman("agents", "list")
    assert result.exit_code == 2
    assert result.stderr == "dragoman: storage.engine is memory: messages and tasks are in the server's memory alone\n"


def test_a_file_that_is_no_database_fails_the_command(data: Path) -> None:
    data.mkdir()
    (data / FILE_NAME).write_bytes(b"not a database, and long enough to be looked at" * 100)
    result = dragoman("messages", "list")
    assert result.exit_code == 1
    assert result.stderr == "dragoman: the ledger cannot be used: file is not a database\n"


# Agents.


@pytest.mark.slow
def test_agents_are_listed_with_their_holders_and_what_waits(data: Path) -> None:
    async def work(kept: KeptMessages) -> tuple[Any, str]:
        await one_of_each(kept)
        await kept.hold("archive")
        # On a thread: a command has an event loop of its own.
        shown = await asyncio.to_thread(dragoman, "agents", "list")
        return await asyncio.to_thread(answer, "agents", "list"), shown.stdout

    listed, shown = fill(data, SPACE, work)
    process, oldest = listed[1].pop("process"), listed[1].pop("oldest")
    assert (listed[0].pop("process"), oldest[-1]) == (process, "Z")
    assert listed == [
        {"agentId": "archive", "holder": "alive", "epoch": 1, "version": 0, "depth": 0},
        {"agentId": "clerk", "holder": "alive", "epoch": 1, "version": 3, "depth": 1},
    ]
    assert [line.split()[:3] for line in shown.splitlines()] == [
        ["AGENT", "HOLDER", "DEPTH"],
        ["archive", "alive", "0"],
        ["clerk", "alive", "1"],
    ]
    assert [each["holder"] for each in answer("agents", "list")] == ["none", "none"]


def test_the_state_of_an_agent_is_shown_without_what_the_log_redacts(data: Path) -> None:
    async def work(kept: KeptMessages) -> None:
        entry, hold = await kept.accept("clerk"), await kept.hold("clerk")
        await kept.end(hold, hold.version, entry, EntryStatus.COMPLETED)

    fill(data, SPACE, work)
    tamper(data, "INSERT INTO ledger_state SELECT id, 'clerk', 'seen', '[1, 2]' FROM ledger_space")
    tamper(data, "INSERT INTO ledger_state SELECT id, 'clerk', 'login', '{\"password\": \"hush\"}' FROM ledger_space")
    assert answer("agents", "show", "clerk") == {
        "agentId": "clerk",
        "holder": "none",
        "epoch": 1,
        "version": 1,
        "depth": 0,
        "state": {"login": {"password": "[REDACTED]"}, "seen": [1, 2]},
    }
    shown = [line.split(maxsplit=2) for line in dragoman("agents", "show", "clerk").stdout.splitlines()]
    assert shown[-2:] == [["State", "login", '{"password":"[REDACTED]"}'], ["State", "seen", "[1,2]"]]


@pytest.mark.parametrize("command", [("show", "clark"), ("send", "clark", "hello")])
def test_an_agent_that_the_ledger_has_never_seen_is_refused(command: tuple[str, ...], data: Path) -> None:
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    result = dragoman("agents", *command)
    assert result.exit_code == 1
    assert result.stderr == "dragoman: the ledger of crew has never seen an agent 'clark'; did you mean clerk?\n"
    assert answer("messages", "list") == {"messages": [], "after": None}


# Sending.


@pytest.mark.parametrize(("given", "payload"), [('{"a": [1]}', {"a": [1]}), ("7", 7), ("seven", "seven"), ("", "")])
def test_a_message_is_accepted_with_json_or_text_as_its_payload(given: str, payload: Any, data: Path) -> None:
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    sent = answer("agents", "send", "clerk", given, "--type", "greet")
    assert sent == {"number": 1, "messageId": sent["messageId"], "status": "waiting"}
    shown = answer("messages", "show", "1")
    facts = ("messageType", "targetAgentId", "status", "type", "payload")
    assert [shown[name] for name in facts] == ["EVENT", "clerk", "waiting", "greet", payload]


@pytest.mark.slow
def test_the_same_request_id_is_the_same_request_and_no_other(data: Path) -> None:
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    request_id = "6F9619FF-8B86-4D01-B42D-00CF4FC964FF"
    words = ("agents", "send", "clerk", "hello", "--request-id", request_id)
    assert dragoman(*words).stdout == f"accepted as message 1, request {request_id.lower()}\n"
    assert dragoman(*words).stdout == f"known as message 1, request {request_id.lower()}\n"
    other = dragoman("agents", "send", "clerk", "bye", "--request-id", request_id)
    assert other.exit_code == 1
    assert other.stderr == "dragoman: the request id was used before, for another request\n"
    assert len(answer("messages", "list", "--request-id", request_id)["messages"]) == 1


@pytest.mark.parametrize("given", ["7", "6f9619ff8b864d01b42d00cf4fc964ff", "6f9619ff-8b86-1d01-b42d-00cf4fc964ff"])
def test_a_request_id_that_is_no_uuid_of_version_4_is_refused(given: str, data: Path) -> None:
    result = dragoman("agents", "send", "clerk", "hello", "--request-id", given)
    assert (result.exit_code, result.stderr) == (2, "dragoman: --request-id must be a UUID of version 4\n")


def test_a_payload_beyond_the_limit_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    monkeypatch.setenv("DRAGOMAN_TOOLS__MAX_PAYLOAD_BYTES", "1024")
    result = dragoman("agents", "send", "clerk", "x" * 2000)
    assert (result.exit_code, result.stdout) == (1, "")
    assert answer("messages", "list")["messages"] == []


def test_waiting_for_what_nobody_handles_ends_and_the_message_stays(data: Path) -> None:
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    result = dragoman("agents", "send", "clerk", "hello", "--wait", "--timeout", "0.01")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("dragoman: message 1 is waiting after 0.01 s, and stays in the ledger\n")
    assert answer("agents", "show", "clerk")["depth"] == 1


def test_waiting_for_a_request_that_was_answered_before_prints_the_response(data: Path) -> None:
    async def work(kept: KeptMessages) -> str | None:
        return (await one_of_each(kept))[0].request_id

    request_id = fill(data, SPACE, work)
    # The owner of the request is who made it: the command line is another, whose request is a new one.
    sent = dragoman("agents", "send", "clerk", "x", "--request-id", str(request_id), "--wait", "--timeout", "0.01")
    assert sent.exit_code == 1
    tamper(data, "UPDATE ledger_entry SET status = 'failed' WHERE number = 6")
    again = dragoman("agents", "send", "clerk", "x", "--request-id", str(request_id), "--wait")
    assert (again.exit_code, again.stderr) == (1, "dragoman: message 6 is failed: The message failed\n")


# Looking at messages.


@pytest.mark.slow
def test_messages_are_listed_page_by_page(data: Path) -> None:
    async def work(kept: KeptMessages) -> None:
        for number in range(5):
            await kept.accept("clerk", number)

    fill(data, SPACE, work)
    pages, after = [], 0
    while after is not None:
        page = answer("messages", "list", "--limit", "2", "--after", str(after))
        pages.append([each["number"] for each in page["messages"]])
        after = page["after"]
    assert pages == [[1, 2], [3, 4], [5]]
    shown = dragoman("messages", "list", "--limit", "2")
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["NUMBER", "1", "2"]
    assert shown.stderr == "there are more: --after 2\n"
    assert dragoman("messages", "list", "--after", "5").stderr == "there are no such messages\n"


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("--agent clerk", [1, 2, 3, 4]),
        ("--source clerk", [5]),
        (f"--source {CLIENT} --status dead", [2]),
        ("--status waiting --status unknown", [3, 4]),
        ("--older-than 1h", []),
        ("--older-than 0s", [1, 2, 3, 4, 5]),
        ("--agent nobody", []),
    ],
)
def test_messages_are_found_by_what_they_are(filters: str, numbers: list[int], data: Path) -> None:
    fill(data, SPACE, one_of_each)
    assert [each["number"] for each in answer("messages", "list", *filters.split())["messages"]] == numbers


@pytest.mark.slow
def test_a_request_and_its_response_are_found_by_their_id(data: Path) -> None:
    fill(data, SPACE, one_of_each)
    shown = answer("messages", "show", "1")
    assert (shown["payload"], shown["response"], shown["outcome"]) == ({"nr": 1}, "done", "COMPLETED")
    found = answer("messages", "list", "--request-id", shown["requestId"])["messages"]
    assert [(each["number"], each["messageType"]) for each in found] == [(1, "REQUEST"), (5, "RESPONSE")]
    assert answer("messages", "show", "5")["payload"] == "done"
    dead = answer("messages", "show", "2")
    assert dead["error"] == {"code": "INTERNAL", "message": "It failed", "correlationId": "c"}
    assert dead["causes"] == [
        {
            "attempt": 1,
            "at": "2023-11-14T22:13:20.000Z",
            "type": "ValueError",
            "message": "no such order",
            "place": "orders.py:3 in place",
        }
    ]


def test_a_message_that_is_not_there_is_not_shown(data: Path) -> None:
    fill(data, SPACE, one_of_each)
    result = dragoman("messages", "show", "99")
    assert (result.exit_code, result.stderr) == (1, "dragoman: there is no message 99\n")
    assert dragoman("messages", "show", str(2**63)).exit_code == 2


@pytest.mark.parametrize("length", ["soon", "-1", "1w", "1h30m", "", "1e9", "9999999999"])
def test_a_length_of_time_that_is_none_is_refused(length: str, data: Path) -> None:
    assert dragoman("messages", "list", "--older-than", length).exit_code == 2


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_an_age_is_told_in_one_unit(seconds: float, words: str) -> None:
    assert age_in_words(seconds) == words


@pytest.mark.slow
def test_nothing_that_a_message_says_reaches_the_terminal_as_it_is(data: Path) -> None:
    async def work(kept: KeptMessages) -> None:
        entry = await kept.accept("clerk", {HOSTILE: [HOSTILE], "token": "hush"}, source=HOSTILE)
        error = msgspec.json.encode(InternalFailure(HOSTILE, {"reason": HOSTILE}).structured(None, HOSTILE))
        hold = await kept.hold("clerk")
        await kept.end(hold, hold.version, entry, EntryStatus.DEAD, error)

    fill(data, SPACE, work)
    with closing(sqlite3.connect(data / FILE_NAME)) as connection, connection:
        values = (HOSTILE, msgspec.json.encode(HOSTILE))
        connection.execute("INSERT INTO ledger_state SELECT id, 'clerk', ?, ? FROM ledger_space", values)
        connection.execute("UPDATE ledger_pair SET last_seq = 7")
    commands = (
        "agents show clerk",
        "messages list",
        "messages dead",
        "messages show 1",
        "ledger stats",
        "ledger verify",
    )
    for command in commands:
        for words in (command.split(), [*command.split(), "--json"]):
            result = dragoman(*words)
            said = (result.stdout + result.stderr).replace("\n", "").replace("\u200b", "")
            assert said.isprintable(), words
            assert "hush" not in said
    shown = answer("messages", "show", "1")
    assert shown["payload"] == {HOSTILE: [HOSTILE], "token": "[REDACTED]"}
    assert (shown["sourceAgentId"], shown["error"]["message"]) == (HOSTILE, HOSTILE)
    assert answer("agents", "show", "clerk")["state"] == {HOSTILE: HOSTILE}


def test_hostile_names_of_agents_and_spaces_are_quoted(data: Path) -> None:
    fill(data, HOSTILE, lambda kept: kept.hold("clerk"))
    for words in (("agents", "show", HOSTILE), ("agents", "list", "--space", HOSTILE * 2)):
        result = dragoman(*words)
        assert result.exit_code in (1, 2)
        assert result.stderr.replace("\n", "").replace("\u200b", "").isprintable()


# Redriving and purging.


@pytest.mark.slow
def test_what_is_dead_or_unknown_is_listed_and_redriven_by_number(data: Path) -> None:
    fill(data, SPACE, one_of_each)
    assert [(each["number"], each["status"]) for each in answer("messages", "dead")["messages"]] == [
        (2, "dead"),
        (3, "unknown"),
    ]
    assert answer("messages", "redrive", "2", "3", "--dry-run") == {
        "dryRun": True,
        "redriven": [{"number": 2, "cause": FAILED_WITH}, {"number": 3, "cause": FAILED_WITH}],
        "refused": [],
    }
    assert dragoman("messages", "redrive", "2").stdout == "message 2 is message 6 now\n"
    assert answer("agents", "show", "clerk")["depth"] == 2
    assert [each["number"] for each in answer("messages", "dead")["messages"]] == [3]


def test_a_message_that_cannot_be_redriven_is_named_and_the_others_are(data: Path) -> None:
    fill(data, SPACE, one_of_each)
    result = dragoman("messages", "redrive", "1", "2", "77")
    assert (result.exit_code, result.stdout) == (1, "message 2 is message 6 now\n")
    assert (
        result.stderr == "dragoman: message 1 is neither dead nor unknown\n  message 77 is neither dead nor unknown\n"
    )
    as_json = dragoman("messages", "redrive", "1", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (1, {"dryRun": False, "redriven": [], "refused": [1]})


@pytest.mark.slow
@pytest.mark.parametrize("filters", [("--all",), ("--agent", "clerk"), ("--source", CLIENT), ("--older-than", "0")])
def test_messages_are_redriven_by_filters(filters: tuple[str, ...], data: Path) -> None:
    fill(data, SPACE, one_of_each)
    assert dragoman("messages", "redrive", *filters, "--dry-run").stdout == (
        f"message 2 would be redriven; it failed with {FAILED_WITH}\n"
        f"message 3 would be redriven; it failed with {FAILED_WITH}\n"
    )
    assert [each["number"] for each in answer("messages", "redrive", *filters)["redriven"]] == [2, 3]
    assert dragoman("messages", "redrive", *filters).stderr == "there is nothing to redrive\n"
    assert answer("ledger", "verify") == {"valid": True, "problems": []}


@pytest.mark.parametrize("words", [(), ("2", "--all"), ("2", "--agent", "clerk")])
def test_redriving_takes_numbers_or_filters(words: tuple[str, ...], data: Path) -> None:
    fill(data, SPACE, one_of_each)
    result = dragoman("messages", "redrive", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("dragoman: give the numbers of messages, or filters, or --all")
    assert len(answer("messages", "dead")["messages"]) == 2


@pytest.mark.slow
def test_what_has_expired_is_purged_and_a_dry_run_says_how_much(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_AACP__MAX_DELAY_MS", "1000")
    fill(data, SPACE, one_of_each)
    fill(data, SPACE, one_of_each, ttl_ms=-6_000)
    fill(data, SPACE, one_of_each, ttl_ms=-1_000)  # A message may still be tried again for this long.
    assert dragoman("messages", "purge", "--older-than", "1h").stdout == "0 messages purged\n"
    assert dragoman("messages", "purge", "--dry-run").stdout == "5 messages would be purged\n"
    assert answer("messages", "purge", "--dry-run") == {"dryRun": True, "purged": 5}
    assert len(answer("messages", "list")["messages"]) == 15
    assert answer("messages", "purge") == {"dryRun": False, "purged": 5}
    assert len(answer("messages", "list")["messages"]) == 10
    assert answer("ledger", "verify")["valid"] is True


# The ledger as a whole.


def test_the_ledger_is_counted(data: Path) -> None:
    fill(data, SPACE, one_of_each)
    counted = answer("ledger", "stats")
    assert 0 <= counted.pop("oldestSeconds") < 3600
    assert counted == {
        "space": "crew",
        "agents": 1,
        "byStatus": {"completed": 2, "dead": 1, "unknown": 1, "waiting": 1},
        "depths": {"clerk": 1},
        "tasks": {},
    }
    lines = [line.split() for line in dragoman("ledger", "stats").stdout.splitlines()]
    assert lines[:5] == [["Space", "crew"], ["Agents", "1"], ["Messages", "5"], ["completed", "2"], ["dead", "1"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM ledger_entry WHERE number = 4", "has given out"),
        ("DELETE FROM ledger_entry WHERE number = 1", "response 5 has no request"),
        ("DELETE FROM ledger_entry WHERE number = 5", "request 1 is completed, and has no response"),
        ("UPDATE ledger_agent SET epoch = 0", "was handled in epoch 1, and its agent is in epoch 0"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_found_out(statement: str, problem: str, data: Path) -> None:
    fill(data, SPACE, one_of_each)
    assert dragoman("ledger", "verify").stdout == "The ledger is in order.\n"
    tamper(data, statement)
    shown, as_json = dragoman("ledger", "verify"), dragoman("ledger", "verify", "--json")
    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    found = json.loads(as_json.stdout)
    assert found["valid"] is False
    assert shown.stdout.splitlines() == found["problems"]
    assert any(problem in each for each in found["problems"])


@pytest.mark.parametrize("payload", ["{x", "[1,", ' {"a": }'])
def test_a_payload_that_was_meant_as_json_is_refused_before_the_ledger_is_opened(payload: str, data: Path) -> None:
    refused = dragoman("agents", "send", "clerk", payload)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("dragoman: PAYLOAD is not valid JSON: ")
    assert refused.stderr.endswith("Correct it, or send it as text with --text\n")
    fill(data, SPACE, lambda kept: kept.hold("clerk"))
    assert dragoman("agents", "send", "clerk", payload, "--text").exit_code == 0
    assert answer("messages", "show", "1")["payload"] == payload

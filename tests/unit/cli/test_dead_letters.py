"""`dragoman messages` and dead letters of both kinds: of agents, in a ledger, and of actions, on the bus."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.agents.ledger import EntryStatus
from dragoman.cli.commands import app
from dragoman.clock import SystemClock
from dragoman.errors import InternalFailure
from dragoman.messaging import bus
from tests.contract.engines import opened_storages
from tests.support.dead_actions import AUTHOR, CREATE, DeadActions, error
from tests.support.kept_messages import KeptMessages, fill

runner = CliRunner()
ID = "0d2f8d7c-3b1f-4a53-9a0a-1f0c6d1b9a01"
HOSTILE = "\x1b]0;gone\x07 \x1b[2J \x9b31m \u202egnp.exe \u2066x \r\n\x00 end"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def dragoman(*words: str) -> Result:
    return runner.invoke(app, words)


def answer(*words: str) -> Any:
    result = dragoman(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def listed(*words: str) -> list[Any]:
    return [each["number"] for each in answer("messages", "dead", *words)["messages"]]


def put(data: Path, work: Callable[[DeadActions], Awaitable[Any]]) -> Any:
    """Put dead actions into the data directory."""

    async def run() -> Any:
        async with opened_storages("sqlite", data, SystemClock()) as (storage,):
            return await work(DeadActions(storage, SystemClock()))

    return asyncio.run(run())


async def three_actions(made: DeadActions) -> None:
    """a1 of acme, which was accepted, a2 of globex, which was, and a3 of acme, which was not."""
    await made.fail("acme", request_id=ID, errors=2)
    await made.fail("globex")
    await made.refuse("acme")


async def two_messages(kept: KeptMessages) -> None:
    """Two dead messages to an agent, 1 and 2."""
    entries = [await kept.accept("clerk", number) for number in (1, 2)]
    hold = await kept.hold("clerk")
    record = msgspec.json.encode(InternalFailure("It failed").structured(None, "c"))
    for place, entry in enumerate(entries):
        await kept.end(hold, hold.version + place, entry, EntryStatus.DEAD, record)


@pytest.fixture
def both(data: Path) -> None:
    """Two messages, and three actions."""
    fill(data, "crew", two_messages)
    put(data, three_actions)


@pytest.mark.slow
def test_both_kinds_are_listed_unless_one_is_chosen(both: None) -> None:
    assert listed() == [1, 2, "a1", "a2", "a3"]
    assert listed("--kind", "agent") == [1, 2]
    assert listed("--kind", "action") == ["a1", "a2", "a3"]
    assert listed("--tenant", "acme") == ["a1", "a3"]
    assert listed("--agent", "clerk") == [1, 2]
    assert listed("--older-than", "1h") == []
    assert listed("--older-than", "0s") == [1, 2, "a1", "a2", "a3"]


def test_an_action_has_the_columns_of_a_message(both: None) -> None:
    header, *rows = dragoman("messages", "dead", "--kind", "action").stdout.splitlines()
    assert header.split() == ["NUMBER", "STATUS", "KIND", "FROM", "TO", "SEQ", "ATTEMPTS", "ACCEPTED", "REQUEST"]
    first = rows[0].split()
    assert [*first[:3], " ".join(first[3:5]), *first[5:8], first[9]] == [
        "a1", "dead", "ACTION", AUTHOR, "acme", "-", "2", ID,
    ]  # fmt: skip
    assert rows[2].split()[3:6] == ["-", "acme", "-"]


@pytest.mark.slow
def test_pages_go_on_from_messages_to_actions(both: None) -> None:
    pages, after = list[list[Any]](), list[str]()
    while True:
        page = answer("messages", "dead", "--limit", "2", *after)
        pages.append([each["number"] for each in page["messages"]])
        if page["after"] is None:
            break
        after = ["--after", str(page["after"])]
    assert pages == [[1, 2], ["a1", "a2"], ["a3"]]
    assert dragoman("messages", "dead", "--limit", "3").stderr == "there are more: --after a1\n"
    assert listed("--after", "1") == [2, "a1", "a2", "a3"]
    assert listed("--after", "a3") == []


@pytest.mark.parametrize(
    "words",
    [
        "dead --after a1 --kind agent",
        "dead --after 1 --tenant acme",
        "dead --agent clerk --tenant acme",
        "dead --kind action --source x",
        "dead --kind other",
        "dead --after b1",
        "show a",
        "show A1",
        "show a1.5",
        "show -- a-1",
        f"show a{2**63}",
        "redrive a1 --kind action",
        "redrive a1 --all",
        "redrive x",
    ],
)
def test_kinds_and_numbers_that_do_not_go_together_are_refused(both: None, words: str) -> None:
    result = dragoman("messages", *words.split())
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.slow
def test_an_action_is_shown_with_its_envelope_and_every_error(both: None) -> None:
    shown = answer("messages", "show", "a1")
    assert (shown["author"], shown["tenant"], shown["action"], shown["isAccepted"]) == (AUTHOR, "acme", CREATE, True)
    assert [each["code"] for each in shown["errors"]] == ["UNAVAILABLE", "NOT_FOUND"]
    assert (shown["envelope"]["request_id"], "error" in shown) == (ID, False)
    refused = answer("messages", "show", "a3")
    assert (b64decode(refused["body"]), refused["author"]) == (b"\xff", None)
    assert "nobody-may-see" not in dragoman("messages", "show", "a3").stdout
    missing = dragoman("messages", "show", "a9")
    assert (missing.exit_code, missing.stderr) == (1, "dragoman: there is no action a9\n")


@pytest.mark.slow
def test_nothing_that_an_action_says_reaches_the_terminal_as_it_is_and_secrets_stay_out(data: Path) -> None:
    async def work(made: DeadActions) -> None:
        body = msgspec.json.encode({"action": HOSTILE, "request_id": HOSTILE, HOSTILE: [HOSTILE], "token": "hush"})
        await made.refuse(HOSTILE, body, record=error(HOSTILE, HOSTILE, details={"token": "hush"}))

    put(data, work)
    for words in (["dead"], ["show", "a1"], ["redrive", "--all", "--dry-run"], ["redrive", "a1"]):
        for more in ([], ["--json"]):
            result = dragoman("messages", *words, *more)
            said = (result.stdout + result.stderr).replace("\n", "")
            assert said.isprintable(), words
            assert "hush" not in said
    assert listed("--tenant", "acme") == []


@pytest.mark.slow
@pytest.mark.requirement("MC-TRANS-04")
def test_messages_and_actions_are_redriven_together_and_the_audit_has_the_actions(both: None) -> None:
    dry = answer("messages", "redrive", "2", "a1", "--dry-run")
    assert dry == {"dryRun": True, "redriven": [{"number": 2}, {"number": "a1"}], "refused": []}
    assert listed() == [1, 2, "a1", "a2", "a3"]
    assert (
        dragoman("messages", "redrive", "2", "a1").stdout == "message 2 is message 3 now\naction a1 is action a4 now\n"
    )
    assert listed() == [1, "a2", "a3"]
    events = answer("audit", "list")["events"]
    assert [(each["event"], each["tenant"], each["principal"], each["subject"]) for each in events] == [
        ("message.redriven", "acme", "operator", ID)
    ]
    (made,) = answer("messages", "redrive", "a3")["redriven"]
    assert (made["number"], made["newNumber"]) == ("a3", "a5")


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ("--all", [1, 2, "a1", "a2", "a3"]),
        ("--kind action", ["a1", "a2", "a3"]),
        ("--tenant globex", ["a2"]),
        ("--kind agent --older-than 0", [1, 2]),
        ("--older-than 1h", []),
    ],
)
def test_letters_are_redriven_by_filters(both: None, filters: str, numbers: list[Any]) -> None:
    assert [each["number"] for each in answer("messages", "redrive", *filters.split())["redriven"]] == numbers
    assert dragoman("messages", "redrive", *filters.split()).stderr == "there is nothing to redrive\n"


@pytest.mark.slow
def test_an_action_that_cannot_be_redriven_is_named_with_the_reason_and_the_others_are(data: Path) -> None:
    async def work(made: DeadActions) -> None:
        await made.fail(acceptance="{}")
        await made.fail()

    put(data, work)
    reasons = "dragoman: action a1 cannot be redriven: Its acceptance cannot be read\n  there is no dead action a7\n"
    dry = dragoman("messages", "redrive", "a1", "a2", "a7", "--dry-run")
    assert (dry.exit_code, dry.stdout, dry.stderr) == (1, "action a2 would be redriven\n", reasons)
    done = dragoman("messages", "redrive", "a1", "a2", "a7", "--json")
    assert (done.exit_code, json.loads(done.stdout)["refused"], done.stderr) == (1, ["a1", "a7"], reasons)
    assert listed() == ["a1"]


def test_an_action_for_which_the_bus_has_no_room_stays_and_the_others_are_redriven(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(made: DeadActions) -> None:
        for tenant in ("acme", "acme", "globex"):
            await made.fail(tenant)

    put(data, work)
    monkeypatch.setattr(bus, "MOST_MESSAGES", 1)
    done = dragoman("messages", "redrive", "--all", "--json")
    shown = json.loads(done.stdout)
    assert (done.exit_code, shown["refused"], [each["number"] for each in shown["redriven"]]) == (
        1,
        ["a2"],
        ["a1", "a3"],
    )
    assert done.stderr == "dragoman: action a2 cannot be redriven: 1 messages wait already; retry later\n"
    assert listed() == ["a2"]


def test_a_data_directory_may_have_one_kind_only(data: Path) -> None:
    put(data, three_actions)
    assert listed() == ["a1", "a2", "a3"]
    refused = dragoman("messages", "dead", "--kind", "agent")
    assert (refused.exit_code, "has no ledger yet" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_a_ledger_without_actions_is_left_without_their_tables(data: Path) -> None:
    fill(data, "crew", two_messages)
    assert listed() == [1, 2]
    for words in (["dead", "--kind", "action"], ["show", "a1"], ["redrive", "a1"]):
        result = dragoman("messages", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "dragoman: the data directory has no actions yet; a server with --gateway keeps them\n"
    with closing(sqlite3.connect(data / FILE_NAME)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'bus%'").fetchall() == []


def test_without_a_database_none_is_made(data: Path) -> None:
    assert dragoman("messages", "dead", "--kind", "action").exit_code == 2
    assert dragoman("messages", "redrive", "a1").exit_code == 2
    assert not data.exists()


def test_a_file_that_is_no_database_fails_the_command(data: Path) -> None:
    data.mkdir()
    (data / FILE_NAME).write_bytes(b"not a database, and long enough to be looked at" * 100)
    result = dragoman("messages", "dead", "--kind", "action")
    assert (result.exit_code, result.stderr.startswith("dragoman: the database cannot be used: ")) == (1, True)


def test_an_engine_that_keeps_nothing_has_no_actions_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__ENGINE", "memory")
    for words in (["dead"], ["dead", "--kind", "action"], ["show", "a1"]):
        result = dragoman("messages", *words)
        assert (result.exit_code, "storage.engine is memory" in result.stderr) == (2, True)

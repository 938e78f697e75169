"""`dragoman jobs` and `dragoman registry`: what they print of the data directory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from dragoman.cli.commands import app
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.jobs.port import JobRun, Registry, RegistryEntry, Schedule

runner = CliRunner()
NOW = 1_700_000_000.0
RUN = JobRun(
    job="knowledge.tidy",
    process="p1",
    started_at=NOW,
    duration_ms=12.4,
    outcome="completed",
    next_due_at=NOW + 60,
    facts={"tidied": 3},
)
FAILED = replace(RUN, job="zeal", outcome="failed", error="INTERNAL", error_type="OSError", facts={})
ENTRY = RegistryEntry(kind="agent", name="ann", status="healthy", last_seen_at=NOW, details={"process": "p1"})
HOSTILE = "\x1b]0;gone\x07 \u202egnp"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def dragoman(*words: str) -> Result:
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return result


def answer(*words: str) -> Any:
    return json.loads(dragoman(*words, "--json").stdout)


def keep(work: Callable[[OpenStorage], Awaitable[Any]]) -> None:
    with_storage(None, work)


def keep_runs(*runs: JobRun) -> None:
    async def note(stored: OpenStorage) -> None:
        for run in runs:
            await stored.storage.port(Schedule).note(run)

    keep(note)


def test_runs_are_listed_with_their_outcome_and_when_the_next_is_due() -> None:
    keep_runs(FAILED, RUN)
    first, second = answer("jobs", "list")["runs"]
    assert first == {
        "job": "knowledge.tidy",
        "process": "p1",
        "startedAt": "2023-11-14T22:13:20.000Z",
        "durationMs": 12.4,
        "outcome": "completed",
        "error": None,
        "nextDueAt": "2023-11-14T22:14:20.000Z",
        "facts": {"tidied": 3},
    }
    assert (second["outcome"], second["error"]) == ("failed", {"code": "INTERNAL", "type": "OSError"})
    header, *rows = dragoman("jobs", "list").stdout.splitlines()
    assert header.split() == ["JOB", "PROCESS", "STARTED", "TOOK", "OUTCOME", "NEXT", "FACTS"]
    assert rows[0].split() == [
        *("knowledge.tidy", "p1", "2023-11-14T22:13:20.000Z", "12", "ms", "completed"),
        *("2023-11-14T22:14:20.000Z", '{"tidied":3}'),
    ]
    assert rows[1].endswith('{"error":"INTERNAL","type":"OSError"}')


@pytest.mark.requirement("MC-HB-01")
def test_the_registry_is_listed_with_status_last_seen_and_revision() -> None:
    async def beat(stored: OpenStorage) -> None:
        registry = stored.storage.port(Registry)
        seen = stored.now() - 200
        await registry.beat([ENTRY])
        await registry.beat([ENTRY, replace(ENTRY, tenant="acme", name="bob", status="degraded", last_seen_at=seen)])

    keep(beat)
    first, second = answer("registry")["entries"]
    assert first == {
        "kind": "agent",
        "name": "ann",
        "space": "default",
        "tenant": None,
        "status": "healthy",
        "lastSeenAt": "2023-11-14T22:13:20.000Z",
        "revision": 2,
        "details": {"process": "p1"},
    }
    assert (second["name"], second["tenant"], second["status"], second["revision"]) == ("bob", "acme", "degraded", 1)
    header, one, two = dragoman("registry").stdout.splitlines()
    assert header.split() == ["KIND", "NAME", "SPACE", "TENANT", "STATUS", "SEEN", "REVISION", "DETAILS"]
    assert one.split()[:5] == ["agent", "ann", "default", "-", "healthy"]
    assert two.split() == [*("agent", "bob", "default", "acme", "degraded", "3", "min", "ago", "1", '{"process":"p1"}')]


@pytest.mark.parametrize(("words", "said"), [(("jobs", "list"), "no job has run"), (("registry",), "is empty")])
def test_with_nothing_to_list_stdout_is_empty_and_stderr_says_so(words: tuple[str, ...], said: str) -> None:
    result = dragoman(*words)
    assert (result.stdout, said in result.stderr) == ("", True)
    assert list(answer(*words).values()) == [[]]


@pytest.mark.slow
def test_characters_that_a_terminal_obeys_are_not_printed() -> None:
    async def beat(stored: OpenStorage) -> None:
        await stored.storage.port(Registry).beat(
            [replace(ENTRY, name=HOSTILE, tenant=HOSTILE, space=HOSTILE, details={HOSTILE: HOSTILE})]
        )

    keep(beat)
    keep_runs(replace(RUN, process=HOSTILE, facts={HOSTILE: HOSTILE}))
    for words in (("jobs", "list"), ("registry",)):
        printed = dragoman(*words).stdout + dragoman(*words, "--json").stdout
        assert all(character.isprintable() or character == "\n" for character in printed)


def test_without_a_database_that_is_kept_the_commands_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__ENGINE", "memory")
    result = runner.invoke(app, ["registry"])
    assert (result.exit_code, "memory" in result.stderr) == (2, True)

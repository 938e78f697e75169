"""`dragoman knowledge query`: passages are shown with where they stand, and answers if they are wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dragoman.cli.commands import app
from tests.support.model_server import model_on_a_thread

runner = CliRunner()
CARRIED = "Up to five days are carried over until the end of March."
HOSTILE = "\x1b]0;gone\x07 owls \u202e"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with two documents, one below the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "files" / "vacation").mkdir(parents=True)
    (tmp_path / "files" / "vacation" / "carrying over.md").write_text(CARRIED)
    (tmp_path / "files" / "hostile.txt").write_text(HOSTILE)
    assert dragoman("import", "files").exit_code == 0
    return tmp_path


def dragoman(*words: str) -> Result:
    return runner.invoke(app, ("knowledge", *words))


def asked(*words: str) -> Any:
    result = dragoman("query", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
def test_a_passage_is_shown_with_its_path_its_score_and_its_document() -> None:
    (found,) = asked("five days")["context"]
    assert (found["path"], found["passage"]) == (["vacation"], CARRIED)
    assert 0 < found["score"] < 1
    assert dragoman("query", "five days").stdout.splitlines() == [
        "[1] vacation › carrying over",
        f"    {found['document_id']}  revision 1  score {found['score']:.3f}",
        f"    {CARRIED}",
        "",
    ]


@pytest.mark.slow
def test_nothing_found_is_said_and_is_no_failure() -> None:
    result = dragoman("query", "zebras")
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (0, "", "nothing was found")
    assert asked("zebras") == {"response": "", "context": [], "hits": 0}
    assert asked("five days", "--tenant", "acme")["hits"] == 0


def test_only_documents_with_every_tag_are_searched() -> None:
    assert asked("five days", "--tag", "hr")["hits"] == 0


@pytest.mark.slow
def test_there_are_as_many_passages_as_are_wanted() -> None:
    assert len(asked("owls days")["context"]) == 2
    few = asked("owls days", "--top-k", "1")
    assert (len(few["context"]), few["hits"]) == (1, 2)


def test_what_a_document_says_cannot_steer_the_terminal() -> None:
    shown = dragoman("query", "owls").stdout
    assert "owls" in shown
    assert not {"\x1b", "\x07", "\u202e"} & {*shown}


@pytest.mark.slow
def test_passages_are_quoted_as_an_answer_if_there_is_no_model() -> None:
    assert dragoman("query", "five days", "--answer").stdout.startswith(
        f"{CARRIED}\n[1] vacation › carrying over\n\n[1]"
    )
    assert asked("five days")["response"] == ""
    assert asked("five days", "--answer")["response"].startswith(CARRIED)


@pytest.mark.slow
def test_a_model_writes_the_answer_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    with model_on_a_thread(pieces=("Five ", "days [1].")) as model:
        monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__ANSWERS_URL", model.url)
        monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__ANSWERS_MODEL", "scripted")
        assert asked("five days")["response"] == ""
        assert model.requests == []
        assert asked("five days", "--answer")["response"] == "Five days [1]."
    result = dragoman("query", "five days", "--answer")  # It is gone now.
    assert (result.exit_code, result.stdout.startswith(CARRIED)) == (0, True)
    reason, told = result.stderr.splitlines()
    assert (reason.endswith("cannot be asked: ConnectError"), told.startswith("the model cannot be used")) == (
        True,
        True,
    )


def test_a_query_that_is_too_long_is_a_mistake() -> None:
    assert dragoman("query", "x" * 2049).exit_code == 2

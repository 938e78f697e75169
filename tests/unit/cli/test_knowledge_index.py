"""`dragoman knowledge index`, and the job of a server that does the same, with a model on a server of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dragoman.app import ServerOptions, create_server
from dragoman.cli.commands import app
from dragoman.cli.options import load_settings
from dragoman.cli.storage_access import opened_storage
from dragoman.jobs.port import Schedule
from dragoman.knowledge.index import PassageVectors
from dragoman.knowledge.vectors import JOB
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock
from tests.support.scripted_http import Asked, Said, scripted_server
from tests.support.waiting import PATIENCE


class Model:
    """A server that makes vectors of the lengths of texts, until it is told to fail."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.status = 200

    def answer(self, asked: Asked) -> Said:
        if self.status != 200:
            return Said(self.status)
        texts = json.loads(asked.body)["input"]
        self.texts += texts
        data = [{"index": place, "embedding": [len(text), 1.0]} for place, text in enumerate(texts)]
        return Said(body=json.dumps({"data": data}).encode())


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """The model, with the settings for it in the environment, and three documents."""
    made = Model()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "files").mkdir()
    for name in "abc":
        (tmp_path / "files" / f"{name}.md").write_text(f"The text of {name}.")
    with scripted_server(made.answer) as url:
        monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__EMBEDDINGS_URL", url)
        use(monkeypatch, "small")
        assert dragoman("import", "files").exit_code == 0
        yield made


def use(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__EMBEDDER", "openai")
    monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__EMBEDDINGS_MODEL", name)


def dragoman(*words: str) -> Result:
    return CliRunner().invoke(app, ["knowledge", *words])


def status() -> Any:
    shown = dragoman("index", "--status", "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)["models"]


def line(name: str, there: int, state: str, passages: int = 3) -> dict[str, Any]:
    left = passages - there
    return {"model": f"openai/{name}", "passages": passages, "withVector": there, "left": left, "state": state}


@pytest.mark.slow
def test_what_is_left_is_embedded_and_what_is_there_is_not(model: Model) -> None:
    assert status() == [line("small", 0, "under way")]
    done = dragoman("index", "--json")
    assert (done.exit_code, json.loads(done.stdout)["models"]) == (0, [line("small", 3, "done")])
    assert sorted(model.texts) == [f"The text of {name}." for name in "abc"]
    Path("files", "d.md").write_text("One more.")
    dragoman("import", "files")
    assert status() == [line("small", 3, "under way", 4)]
    assert dragoman("index").exit_code == 0
    assert model.texts[3:] == ["One more."]
    assert status() == [line("small", 4, "done", 4)]


def test_the_state_is_shown_as_a_table(model: Model) -> None:
    header, row = dragoman("index", "--status").stdout.splitlines()
    assert header.split("  ")[0] == "MODEL"
    assert row.split() == ["openai/small", "3", "0", "3", "under", "way"]


@pytest.mark.slow
def test_another_model_replaces_the_one_before_when_it_is_done(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    dragoman("index")
    use(monkeypatch, "large")
    assert status() == [line("large", 0, "under way"), line("small", 3, "other")]
    model.status = 401
    assert dragoman("index").exit_code == 1
    assert status() == [line("large", 0, "under way"), line("small", 3, "other")]
    model.status = 200
    assert dragoman("index").exit_code == 0
    assert status() == [line("large", 3, "done")]


@pytest.mark.slow
def test_without_an_embedder_there_is_nothing_to_embed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__EMBEDDER", "none")
    refused = dragoman("index")
    assert (refused.exit_code, "knowledge.embedder is none" in refused.stderr) == (2, True)
    assert status() == []
    assert "there are no vectors" in dragoman("index", "--status").stderr


@pytest.mark.slow
def test_a_model_that_is_not_installed_is_said_and_the_state_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__EMBEDDER", "minilm")
    refused = dragoman("index")
    assert (refused.exit_code, "dragoman models install minilm" in refused.stderr) == (2, True)
    assert [each["left"] for each in status()] == [3]


def test_a_model_that_fails_is_a_failure(model: Model) -> None:
    model.status = 401
    failed = dragoman("index")
    assert failed.exit_code == 1
    assert "answered with status 401" in failed.stderr
    assert "0 passages embedded; the same command goes on from here" in failed.stderr


async def test_nothing_is_embedded_beside_a_server_that_does(model: Model) -> None:
    async with opened_storage(load_settings(None).config) as stored:
        assert await stored.storage.port(Schedule).lead(JOB)
        refused = await asyncio.to_thread(dragoman, "index")
    assert (refused.exit_code, "a server on this data directory embeds already" in refused.stderr) == (1, True)
    assert model.texts == []


async def test_a_server_embeds_in_the_background_and_goes_on_after_a_failure(model: Model) -> None:
    model.status = 401
    clock, entries = ManualClock(), list[Entry]()
    config = load_settings(None, {"gateway": {"enabled": True}}).config
    runtime = create_server(ServerOptions(config=config, clock=clock, logger=StructuredLogger(entries.append, clock)))
    vectors = runtime.facilities.storage.port(PassageVectors)
    await runtime.start()

    def outcomes() -> list[str]:
        return [each["outcome"] for each in entries if isinstance(each, dict) and each.get("job") == JOB]

    async with asyncio.timeout(PATIENCE):
        while "completed" not in outcomes():
            clock.advance(1)
            await asyncio.sleep(0.002)
            if len(outcomes()) == 2:
                model.status = 200
    assert outcomes()[:2] == ["failed", "failed"]
    now = await vectors.status("openai/small")
    assert (now.passages, now.with_vector) == (3, 3)
    await runtime.stop(0.1)

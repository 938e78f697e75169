"""`dragoman resources list` and `dragoman prompts list`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli.commands import app

runner = CliRunner()

OFFERS = '''
from dragoman import prompt, resource

print("loading")

@resource("note://{id}")
def note(id: int) -> str:
    """One note.

    At length."""
    return ""

@resource("note:all", title="All")
def notes() -> str:
    return ""

@prompt
def ask(about: str = "") -> str:
    """Asks."""
    return ""
'''


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_offers.py").write_text(OFFERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    sys.modules.pop("my_offers", None)


def test_resources_and_prompts_are_listed_in_lines() -> None:
    resources = runner.invoke(app, ["resources", "list", "my_offers.py"])
    lines = [line.rstrip() for line in resources.stdout.splitlines()]
    assert (resources.exit_code, lines) == (0, ["note:all", "note://{id}  One note."])
    prompts = runner.invoke(app, ["prompts", "list", "my_offers.py"])
    assert (prompts.exit_code, prompts.stdout.splitlines()) == (0, ["ask  Asks."])


def test_resources_and_prompts_are_listed_as_clients_see_them() -> None:
    resources = runner.invoke(app, ["resources", "list", "my_offers.py", "--json"])
    assert json.loads(resources.stdout) == [
        {"uri": "note:all", "name": "notes", "title": "All"},
        {"uriTemplate": "note://{id}", "name": "note", "description": "One note.\n\nAt length."},
    ]
    prompts = runner.invoke(app, ["prompts", "list", "my_offers.py", "--json"])
    assert json.loads(prompts.stdout) == [
        {"name": "ask", "description": "Asks.", "arguments": [{"name": "about", "required": False}]}
    ]


def test_the_built_in_tools_bring_none_and_a_bad_definition_ends_the_command(tmp_path: Path) -> None:
    assert json.loads(runner.invoke(app, ["resources", "list", "--json"]).stdout) == []
    (tmp_path / "my_offers.py").write_text(OFFERS.replace("note:all", "note://{id}").replace("notes()", "notes(id)"))
    refused = runner.invoke(app, ["resources", "list", "my_offers.py"])
    assert refused.exit_code == 2
    assert "a resource 'note://{id}' is registered already" in refused.stderr

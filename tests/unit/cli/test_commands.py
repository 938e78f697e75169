"""The table of the commands, and what stands for a command until it is run."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dragoman.cli.commands import COMMANDS, app, load


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_in_the_list_is_that_of_the_command(name: str) -> None:
    command = load(name)
    assert command.name == name
    assert " ".join((command.help or "").split("\n\n")[0].split()) == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_itself_answers_with_its_whole_help(name: str) -> None:
    command = load(name)
    parts = [*getattr(command, "commands", {}), *(each.opts[0] for each in command.params)]
    helped = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    assert f"dragoman {name} [OPTIONS]" in helped
    assert [part for part in parts if part not in helped.lower()] == []


def test_a_word_that_is_nearly_a_command_is_corrected() -> None:
    refused = CliRunner().invoke(app, ["tols"])
    assert refused.exit_code == 2
    assert "No such command 'tols'. Did you mean 'tools'" in refused.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("dragoman to", ["token", "top", "tools"]),
        ("dragoman knowledge im", ["import"]),
        ("dragoman call --tra", ["--trace"]),
    ],
)
def test_a_shell_completes_commands_and_what_is_in_them(words: str, completed: list[str]) -> None:
    given = {"_DRAGOMAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = CliRunner().invoke(app, [], prog_name="dragoman", env=given)
    assert done.stdout.split() == completed

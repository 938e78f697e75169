"""What somebody is told who makes a usual mistake on the way to a first tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dragoman.cli.arguments import read_arguments
from dragoman.cli.commands import app
from dragoman.cli.main import main
from dragoman.cli.target import load_tools
from dragoman.errors import TargetError
from dragoman.testing import open_server
from dragoman.tools.tool import ToolDefinition, define_tool

TOOL = """
from dragoman import tool

@tool
def add_first_steps(a: int) -> int:
    "Adds."
    return a + 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(target: str) -> str:
    with pytest.raises(TargetError) as error:
        load_tools(target)
    return error.value.reason


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("missing_steps.py", "there is no such file"),
        (".", "it is a folder; name a Python file in it, or a module"),
        ("./sub/", "it is a folder; name a Python file in it, or a module"),
        ("first_steps.txt", "it is not a Python file: its name must end with .py"),
        ("no_such_module_here", "there is no such module"),
        ("empty_steps.py", "it has no tools; decorate a function with @tool"),
        ("first_steps.py:add_frst_steps", "there is no 'add_frst_steps' in it; did you mean add_first_steps?"),
        ("bare_steps.py", "lifespan is an async generator: decorate it with @contextlib.asynccontextmanager"),
    ],
)
def test_a_target_that_cannot_be_served_says_why(folder: Path, target: str, reason: str) -> None:
    (folder / "sub").mkdir()
    (folder / "first_steps.py").write_text(TOOL)
    (folder / "first_steps.txt").write_text(TOOL)
    (folder / "empty_steps.py").write_text("def add(a: int) -> int: ...")
    (folder / "bare_steps.py").write_text(TOOL + "\nasync def lifespan():\n    yield\n")
    assert refused(target) == reason


def test_a_value_named_lifespan_that_cannot_be_called_is_no_lifespan(folder: Path) -> None:
    (folder / "value_steps.py").write_text(f"{TOOL}\nlifespan = 30\n")
    assert len(load_tools("value_steps.py")) == 1


def test_a_file_that_fails_shows_the_frames_of_the_author(folder: Path) -> None:
    (folder / "failing_steps.py").write_text("import json\njson.loads('{')\n")
    for level, frames in (("error", 1), ("debug", 4)):
        ended = CliRunner().invoke(app, ["call", "x", "--target", "failing_steps.py", "--log-level", level])
        assert ended.exit_code == 2
        files = [line for line in ended.stderr.splitlines() if line.startswith("  File ")]
        assert len(files) == frames if level == "error" else len(files) >= frames
        assert any("failing_steps.py" in line for line in files)
        assert "cannot load tools from 'failing_steps.py': JSONDecodeError" in ended.stderr


def test_a_call_without_a_target_says_that_there_are_only_built_in_tools() -> None:
    ended = CliRunner().invoke(app, ["call", "add", "a=1"])
    assert "Unknown tool: add; without --target there are only the built-in tools" in ended.stderr


def test_a_file_among_the_arguments_of_a_call_is_pointed_out() -> None:
    with pytest.raises(ValueError, match=r"'tools.py' is not name=value; pass a file of tools with --target tools.py"):
        read_arguments(["tools.py"], {}, {})


@pytest.mark.parametrize("words", [["serve", "--target", "a.py"], ["tools", "show", "x", "--target=a.py"]])
def test_the_option_target_is_pointed_out_where_it_is_an_argument(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dragoman", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "dragoman: TARGET is an argument here, not an option: leave --target out\n"


async def _pause() -> None: ...


async def test_the_log_says_what_is_wrong_with_a_result() -> None:
    async def forgetful(arguments: Any, context: Any) -> Any:
        return {"a": _pause()}

    async def wrong(arguments: Any, context: Any) -> Any:
        return {"a": "text"}

    numbers = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [
        define_tool(
            ToolDefinition(name=name, description="", input_schema={"type": "object"}, output_schema=schema), handler
        )
        for name, handler, schema in (("forgetful", forgetful, None), ("wrong", wrong, numbers))
    ]
    async with open_server(tools) as server:
        client = await server.client()
        with pytest.warns(RuntimeWarning, match="never awaited"):
            await client.call_tool("forgetful")
        await client.call_tool("wrong")
        said = [entry["error"]["message"] for entry in server.log if entry["message"] == "tool failed"]
    assert said == [
        "TypeError: coroutine has no JSON form; is an `await` missing?",
        'TypeError: the result does not match the tool\'s output schema: /a: the value is not of type "integer"',
    ]

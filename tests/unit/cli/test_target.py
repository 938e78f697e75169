"""Tools from a file, a module, or an object in a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dragoman.cli.target import load_tools, refuse_target
from dragoman.config import make_config
from dragoman.errors import PartFailed, StorageFailed, TargetError

TOOLS = """
from dragoman import tool

@tool
def one() -> int:
    return 1

@tool
def two() -> int:
    return 2

again = two
several = [two, one, two, "not a tool"]
nothing = []
number = 5
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to load from, and an interpreter that afterwards does not remember it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(target: str) -> list[str]:
    return [each.definition.name for each in load_tools(target)]


def reason(target: str) -> str:
    with pytest.raises(TargetError) as refused:
        load_tools(target)
    assert refused.value.target == target
    return refused.value.reason


def test_all_tools_of_a_file_are_loaded_each_once(workplace: Path) -> None:
    (workplace / "my_tools.py").write_text(TOOLS)
    assert names("my_tools.py") == ["one", "two"]
    assert names(str(workplace / "my_tools.py")) == ["one", "two"]
    assert names("./my_tools.py") == ["one", "two"]


def test_all_tools_of_a_module_in_the_working_directory_are_loaded(workplace: Path) -> None:
    package = workplace / "some_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inside.py").write_text(TOOLS)
    assert names("some_package.inside") == ["one", "two"]
    assert names("some_package.inside:one") == ["one"]


def test_an_object_may_be_a_tool_or_several(workplace: Path) -> None:
    (workplace / "my_tools.py").write_text(TOOLS)
    assert names("my_tools.py:two") == ["two"]
    assert names("my_tools.py:several") == ["two", "one"]


def test_resources_and_prompts_are_loaded_like_tools(workplace: Path) -> None:
    (workplace / "my_offers.py").write_text(
        "from dragoman import prompt, resource\n"
        "@resource('x:y')\n"
        "def thing(): return ''\n"
        "@prompt\n"
        "def ask(): return ''\n"
        "both = [ask, thing]\n"
    )
    assert [repr(each) for each in load_tools("my_offers.py")] == ["Resource('x:y')", "Prompt('ask')"]
    assert [repr(each) for each in load_tools("my_offers.py:ask")] == ["Prompt('ask')"]
    assert [repr(each) for each in load_tools("my_offers.py:both")] == ["Prompt('ask')", "Resource('x:y')"]


def test_a_file_may_import_its_neighbours(workplace: Path) -> None:
    folder = workplace / "folder"
    folder.mkdir()
    (folder / "neighbour_of_tools.py").write_text(TOOLS)
    (folder / "my_tools.py").write_text("from neighbour_of_tools import one")
    assert names("folder/my_tools.py") == ["one"]


def test_hints_in_a_file_are_read_even_when_they_are_put_off(workplace: Path) -> None:
    (workplace / "my_tools.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from dragoman import tool\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "@tool\n"
        "def show(point: Point) -> None: ...\n"
    )
    (made,) = load_tools("my_tools.py")
    assert made.definition.input_schema["properties"] == {"point": {"$ref": "#/$defs/Point"}}


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("gone.py", "there is no such file"),
        ("folder/gone", "there is no such file"),
        ("my_tools.py:three", "there is no 'three' in it"),
        ("my_tools.py:nothing", "it has no tools; decorate a function with @tool"),
        ("my_tools.py:number", "it has no tools; decorate a function with @tool"),
        ("empty.py", "it has no tools; decorate a function with @tool"),
        ("raising.py", "RuntimeError: not today"),
        ("raising", "RuntimeError: not today"),
        ("exiting.py", "SystemExit: 1"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_a_reason(workplace: Path, target: str, why: str) -> None:
    (workplace / "my_tools.py").write_text(TOOLS)
    (workplace / "empty.py").touch()
    (workplace / "raising.py").write_text("raise RuntimeError('not today')")
    (workplace / "exiting.py").write_text("raise SystemExit(1)")
    assert reason(target) == why


def test_a_module_that_is_not_there_is_not_taken_for_one_that_is_broken(workplace: Path) -> None:
    (workplace / "half.py").write_text("import no_such_neighbour")
    assert "no_such_neighbour" in reason("half")
    assert "no_such_neighbour" not in reason("no_such_module")


def test_a_file_with_a_mistake_in_it_says_where(workplace: Path) -> None:
    (workplace / "mistaken.py").write_text("def f(:\n")
    assert reason("mistaken.py").startswith("SyntaxError: ")


def test_what_a_file_raised_is_the_cause(workplace: Path) -> None:
    (workplace / "raising.py").write_text("raise RuntimeError('not today')")
    with pytest.raises(TargetError) as refused:
        load_tools("raising.py")
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_data_directory_that_cannot_be_used_is_named_with_what_to_set_and_without_frames(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = PartFailed("agents", StorageFailed("[Errno 13] Permission denied"))
    failed.__cause__ = StorageFailed("[Errno 13] Permission denied")
    config = make_config({"storage": {"data_dir": "/proc/nowhere"}})
    with pytest.raises(typer.Exit) as ended:
        refuse_target(failed, config)
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.splitlines() == [
        "dragoman: the data directory /proc/nowhere cannot be used: [Errno 13] Permission denied",
        "  set storage.data_dir, or the variable DRAGOMAN_STORAGE__DATA_DIR, to a folder that you can write to",
    ]

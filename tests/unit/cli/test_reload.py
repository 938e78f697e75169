"""What is loaded anew when a target's files change, and what is left alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dragoman.app import ServerOptions, create_server
from dragoman.cli.reload import Reloader
from dragoman.cli.target import load_tools
from dragoman.config import Config
from dragoman.errors import TargetError
from dragoman.telemetry.log import StructuredLogger
from dragoman.tools.tool import Tool
from dragoman.workers.control import Source

TOOL = "from dragoman import tool\n@tool\ndef {name}() -> str:\n    return {value}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to load from, and an interpreter that afterwards does not remember it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def answers(tools: list[Any]) -> dict[str, Any]:
    return {tool.definition.name: tool.handler({}, None) for tool in tools}


def test_an_edit_of_the_same_size_in_the_same_second_is_seen(folder: Path) -> None:
    file = folder / "my_tools.py"
    file.write_text(TOOL.format(name="one", value="'a'"))
    reloader = Reloader(Source("my_tools.py"), Config())
    assert answers(reloader.load()) == {"one": "a"}
    for value in "bcd":
        file.write_text(TOOL.format(name="one", value=repr(value)))
        assert answers(reloader.load()) == {"one": value}
    assert not (folder / "__pycache__").exists()


def test_neighbours_are_loaded_anew_too(folder: Path) -> None:
    (folder / "neighbour_of_mine.py").write_text("VALUE = 'a'")
    (folder / "my_tools.py").write_text(
        "import neighbour_of_mine\n" + TOOL.format(name="one", value="neighbour_of_mine.VALUE")
    )
    reloader = Reloader(Source("my_tools.py"), Config())
    assert answers(reloader.load()) == {"one": "a"}
    (folder / "neighbour_of_mine.py").write_text("VALUE = 'b'")
    assert answers(reloader.load()) == {"one": "b"}


@pytest.mark.parametrize("target", ["some_package.inner.tools", "some_package.inner.tools:one"])
def test_all_of_a_package_is_loaded_anew(folder: Path, target: str) -> None:
    inner = folder / "some_package" / "inner"
    inner.mkdir(parents=True)
    (folder / "some_package" / "__init__.py").touch()
    (folder / "some_package" / "values.py").write_text("VALUE = 'a'")
    (inner / "__init__.py").touch()
    (inner / "tools.py").write_text("from ..values import VALUE\n" + TOOL.format(name="one", value="VALUE"))
    reloader = Reloader(Source(target), Config())
    assert answers(reloader.load()) == {"one": "a"}
    before = reloader.snapshot()
    assert {path.name for path in before} == {"__init__.py", "values.py", "tools.py"}
    (folder / "some_package" / "values.py").write_text("VALUE = 'bb'")
    assert reloader.snapshot() != before
    assert answers(reloader.load()) == {"one": "bb"}


def test_installed_packages_and_what_was_there_before_stay(folder: Path) -> None:
    site = folder / ".venv" / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "installed_package.py").touch()
    (folder / "there_before.py").touch()
    sys.path[:0] = [str(site), str(folder)]
    __import__("there_before")
    kept = sys.modules["there_before"]
    (folder / "my_tools.py").write_text(
        "import installed_package, there_before\n" + TOOL.format(name="one", value="'a'")
    )
    reloader = Reloader(Source("my_tools.py"), Config())
    reloader.load()
    installed, mine = sys.modules["installed_package"], sys.modules["my_tools"]
    reloader.load()
    assert sys.modules["installed_package"] is installed
    assert sys.modules["there_before"] is kept
    assert sys.modules["my_tools"] is not mine


@pytest.mark.parametrize(
    "broken", ["def f(:", "raise RuntimeError", "raise SystemExit", "import no_such_thing", "x = 1"]
)
def test_a_file_that_cannot_be_loaded_leaves_the_modules_as_they_were(folder: Path, broken: str) -> None:
    (folder / "neighbour_of_mine.py").touch()
    file = folder / "my_tools.py"
    file.write_text("import neighbour_of_mine\n" + TOOL.format(name="one", value="'a'"))
    reloader = Reloader(Source("my_tools.py"), Config())
    reloader.load()
    before = {name: sys.modules[name] for name in ("my_tools", "neighbour_of_mine")}
    file.write_text(f"import neighbour_of_mine\n{broken}")
    with pytest.raises(TargetError):
        reloader.load()
    assert {name: sys.modules[name] for name in before} == before


def test_a_snapshot_sees_what_is_edited_added_and_removed(folder: Path) -> None:
    file = folder / "my_tools.py"
    file.write_text(TOOL.format(name="one", value="'a'"))
    reloader = Reloader(Source("my_tools.py"), Config())
    seen = [reloader.snapshot()]
    (folder / "new.py").touch()
    seen.append(reloader.snapshot())
    file.write_text(TOOL.format(name="two", value="'bb'"))
    seen.append(reloader.snapshot())
    file.unlink()
    seen.append(reloader.snapshot())
    assert all(earlier != later for earlier, later in pairwise(seen))
    (folder / "notes.txt").touch()
    assert reloader.snapshot() == seen[-1]


def test_tools_come_go_and_change_and_one_that_cannot_be_registered_changes_nothing(folder: Path) -> None:
    entries: list[Any] = []
    logger = StructuredLogger(entries.append)
    server = create_server(ServerOptions(logger=logger))
    catalogue = server.catalogue
    file = folder / "my_tools.py"
    reloader = Reloader(Source("my_tools.py"), Config())

    def load(*names: str) -> list[str]:
        file.write_text("\n".join(TOOL.format(name=name, value="'a'") for name in names))
        asyncio.run(reloader.replace(server, reloader.load()))
        return [each.name for each in catalogue.list()]

    assert load("one", "two") == ["health", "one", "two"]
    assert load("two", "three") == ["health", "three", "two"]
    file.write_text(TOOL.format(name="one", value="'a'").replace("@tool", "@tool(name='no spaces')"))
    asyncio.run(reloader.replace(server, load_tools("my_tools.py")))
    assert [each.name for each in catalogue.list()] == ["health", "three", "two"]
    assert [entry["message"] for entry in entries] == ["tools reloaded", "tools reloaded", "tools not reloaded"]
    assert load("four") == ["four", "health"]


def test_resources_and_prompts_come_and_go_with_the_tools(folder: Path) -> None:
    server = create_server(ServerOptions())
    reloader = Reloader(Source("my_tools.py"), Config())
    kinds = {"tool": "@tool\ndef {0}() -> str: return ''", "prompt": "@prompt\ndef {0}() -> str: return ''"}
    kinds["resource"] = "@resource('x:{0}')\ndef {0}() -> str: return ''"

    def load(**offered: str) -> list[str]:
        lines = [kinds[kind].format(name) for name, kind in offered.items()]
        (folder / "my_tools.py").write_text("\n".join(["from dragoman import prompt, resource, tool", *lines]))
        asyncio.run(reloader.replace(server, reloader.load()))
        return [*(each.name for each in server.catalogue.list()), *(each.key for each in server.offers)]

    assert load(a="tool", b="resource", c="prompt") == ["a", "health", "c", "x:b"]
    assert load(a="prompt", b="resource", c="tool") == ["c", "health", "a", "x:b"]
    assert load(health="tool", d="resource") == ["c", "health", "a", "x:b"]
    assert load(d="resource") == ["health", "x:d"]


MODULE = "from apcore.decorator import module\n@module(id='{id}')\ndef f() -> str:\n    return {value}\n"


def modules_of(tools: list[Any]) -> set[str]:
    return {tool.definition.name for tool in tools if isinstance(tool, Tool)}


def test_a_folder_of_modules_is_loaded_anew_beside_the_target(folder: Path) -> None:
    extensions = folder / "extensions" / "deeper"
    extensions.mkdir(parents=True)
    (folder / "my_tools.py").write_text(TOOL.format(name="one", value="'a'"))
    (extensions / "first.py").write_text(MODULE.format(id="a.first", value="'a'"))
    reloader = Reloader(Source("my_tools.py", "extensions"), Config())
    seen = [reloader.snapshot()]
    assert modules_of(reloader.load()) == {"one", "a.first"}
    (extensions / "first.py").write_text(MODULE.format(id="a.changed", value="'bb'"))
    seen.append(reloader.snapshot())
    assert modules_of(reloader.load()) == {"one", "a.changed"}
    (extensions / "second.py").write_text(MODULE.format(id="a.second", value="'a'"))
    seen.append(reloader.snapshot())
    assert modules_of(reloader.load()) == {"one", "a.changed", "a.second"}
    (extensions / "second_meta.yaml").write_text("version: '2'\n")
    seen.append(reloader.snapshot())
    (extensions / "first.py").unlink()
    seen.append(reloader.snapshot())
    assert modules_of(reloader.load()) == {"one", "a.second"}
    assert all(earlier != later for earlier, later in pairwise(seen))


def test_of_a_folder_only_what_can_be_loaded_beside_the_target_is_there(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "extensions").mkdir()
    (folder / "my_tools.py").write_text(TOOL.format(name="one", value="'a'"))
    for name, code in {"one": MODULE.format(id="one", value="'a'"), "script": "raise SystemExit"}.items():
        (folder / "extensions" / f"{name}.py").write_text(code)
    (folder / "extensions" / "good.py").write_text(MODULE.format(id="good", value="'a'"))
    server = create_server(ServerOptions())
    reloader = Reloader(Source("my_tools.py", "extensions"), Config())
    for _ in range(2):
        asyncio.run(reloader.replace(server, reloader.load()))
        assert [each.name for each in server.catalogue.list()] == ["good", "health", "one"]
    assert "a tool named 'one' is registered already" in caplog.text


def test_a_folder_that_is_gone_changes_nothing(folder: Path) -> None:
    (folder / "extensions").mkdir()
    reloader = Reloader(Source(extensions="extensions"), Config())
    assert reloader.load() == []
    (folder / "extensions").rmdir()
    assert reloader.snapshot() == {}
    with pytest.raises(TargetError, match="extensions"):
        reloader.load()

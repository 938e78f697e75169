"""The files beside a target: which imports find them, and what is said about names that are taken."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.cli.target import load_tools
from dragoman.errors import TargetError

TOOL = "from dragoman import tool\n\n@tool\ndef word() -> str:\n    return WORD\n"
ASK = """
import importlib

def by_statement():
    import only_here

def by_name():
    return importlib.import_module("only_here")
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The folder of a target, and one with packages that are installed."""
    own, installed = tmp_path / "own", tmp_path / "installed"
    own.mkdir()
    installed.mkdir()
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    monkeypatch.chdir(own)
    yield own, installed
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def reason(target: str) -> str:
    with pytest.raises(TargetError) as refused:
        load_tools(target)
    return refused.value.reason


def test_an_installed_module_is_used_in_place_of_a_neighbour_and_that_is_logged(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    own, installed = places
    (own / "shared_name.py").write_text("WORD = 'own'")
    (own / "my_word.py").write_text("from shared_name import WORD\n" + TOOL)
    (installed / "shared_name.py").write_text("WORD = 'installed'")
    load_tools("my_word.py")
    assert sys.modules["my_word"].WORD == "installed"
    said = "modules beside the target are not used, because installed ones have their names; rename them: shared_name"
    assert caplog.record_tuples == [("dragoman.cli.neighbours", logging.WARNING, said)]


def test_nothing_is_logged_about_neighbours_that_are_used(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    own, _ = places
    (own / "package").mkdir()
    (own / "package" / "__init__.py").write_text("WORD = 'own'")
    (own / "my_word.py").write_text("from package import WORD\n" + TOOL)
    load_tools("my_word.py")
    assert caplog.record_tuples == []


def test_only_the_code_beside_a_target_finds_its_neighbours(places: tuple[Path, Path]) -> None:
    own, installed = places
    (installed / "some_package.py").write_text(ASK)
    (own / "only_here.py").write_text("")
    (own / "my_word.py").write_text("import some_package\nfrom some_package import by_name, by_statement\n" + TOOL)
    load_tools("my_word.py")
    target = sys.modules["my_word"]
    for ask in (target.by_statement, target.by_name):
        with pytest.raises(ModuleNotFoundError, match="only_here"):
            ask()
    assert importlib.util.find_spec("only_here") is None


@pytest.mark.parametrize("way", ["by_name", "by_statement"])
def test_a_package_finds_a_neighbour_of_the_target_that_called_it_only_by_name(
    places: tuple[Path, Path], way: str
) -> None:
    own, installed = places
    (installed / "some_package.py").write_text(ASK)
    (own / "only_here.py").write_text("")
    (own / "my_word.py").write_text(f"import some_package\nsome_package.{way}()\n" + TOOL)
    if way == "by_name":
        load_tools("my_word.py")
    else:
        assert reason("my_word.py") == "ModuleNotFoundError: No module named 'only_here'"


def test_an_entry_point_that_lies_beside_a_target_is_not_loaded(places: tuple[Path, Path]) -> None:
    own, installed = places
    (installed / "some_package.py").write_text(
        "from importlib.metadata import EntryPoint\n\n"
        "def load():\n    return EntryPoint('x', 'only_here', 'plugins').load()\n"
    )
    (own / "only_here.py").write_text("")
    (own / "my_word.py").write_text("import some_package\nsome_package.load()\n" + TOOL)
    assert reason("my_word.py") == "ModuleNotFoundError: No module named 'only_here'"


def test_the_configuration_of_logging_finds_a_neighbour_of_the_target(places: tuple[Path, Path]) -> None:
    own, _ = places
    (own / "only_here.py").write_text("import logging\nclass Handler(logging.NullHandler): pass\n")
    handlers = {"mine": {"class": "only_here.Handler"}}
    settings = {"version": 1, "disable_existing_loggers": False, "handlers": handlers}
    (own / "my_word.py").write_text(f"import logging.config\nlogging.config.dictConfig({settings})\n" + TOOL)
    load_tools("my_word.py")


def test_a_neighbour_cannot_be_a_module_of_python_that_this_platform_lacks(places: tuple[Path, Path]) -> None:
    own, _ = places
    missing = next(name for name in ("_winapi", "_posixsubprocess") if importlib.util.find_spec(name) is None)
    (own / f"{missing}.py").write_text("")
    (own / "my_word.py").write_text(f"import {missing}\n" + TOOL)
    assert reason("my_word.py") == f"ModuleNotFoundError: No module named '{missing}'"


def test_a_target_with_the_name_of_an_installed_module_is_refused(places: tuple[Path, Path]) -> None:
    own, installed = places
    (own / "shared_name.py").write_text(TOOL)
    (installed / "shared_name.py").write_text("")
    there = installed / "shared_name.py"
    assert reason("shared_name.py") == f"its name would hide the module 'shared_name' of {there}; give it another"
    assert reason("shared_name") == f"'shared_name' is in {own} and in {there}; rename it"
    assert reason(str(own / "shared_name.py")).startswith("its name would hide")
    assert "shared_name" not in sys.modules


@pytest.mark.parametrize("name", ["typer", "joserfc", "email", "mcp"])
def test_a_target_cannot_have_the_name_of_a_module_that_the_server_needs(places: tuple[Path, Path], name: str) -> None:
    own, _ = places
    (own / f"{name}.py").write_text(TOOL)
    assert f"would hide the module '{name}' of" in reason(f"{name}.py")


def test_a_module_is_looked_for_in_the_folder_that_is_named(places: tuple[Path, Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far_helper.py").write_text("WORD = 'far'")
    (elsewhere / "far_word.py").write_text("from far_helper import WORD\n" + TOOL)
    assert reason("far_word") == "there is no such module"
    (tool,) = load_tools("far_word", str(elsewhere))
    assert tool.name == "word"

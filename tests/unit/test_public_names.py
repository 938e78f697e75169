"""What `import dragoman` offers, and what it costs."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dragoman
import dragoman.testing
from tests.support.source import parsed
from tests.support.waiting import PATIENCE

HEAVY = {"mcp", "mcp_types", "typer", "rich", "click", "pydantic", "anyio", "asyncio", "msgspec", "jsonschema_rs"}


def loaded_by(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after running `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=PATIENCE).stdout
    return set(json.loads(output)) & HEAVY


def seen_by_type_checkers() -> list[str]:
    """The names that are imported under `if TYPE_CHECKING`."""
    tree = parsed(Path(dragoman.__file__))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    return sorted(
        alias.asname or alias.name
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def test_every_public_name_can_be_imported_and_nothing_else_of_ours() -> None:
    for name in dragoman.__all__:
        getattr(dragoman, name)
    ours = {
        name
        for name, value in vars(dragoman).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "").startswith("dragoman")
    }
    assert sorted(ours) == sorted(dragoman.__all__)


def test_type_checkers_see_the_names_that_can_be_imported() -> None:
    assert seen_by_type_checkers() == sorted(dragoman.__all__)


def test_public_names_are_listed_once_and_in_order() -> None:
    assert sorted(set(dragoman.__all__)) == dragoman.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dragoman' has no attribute 'nonsense'"):
        dragoman.nonsense  # noqa: B018
    assert not hasattr(dragoman, "open_runtime")


def test_public_names_are_what_their_modules_define() -> None:
    for name, home in [
        ("tool", "dragoman.tools.tool"),
        ("ToolContext", "dragoman.tools.context"),
        ("Config", "dragoman.config"),
        ("create_server", "dragoman.app"),
    ]:
        assert getattr(dragoman, name) is getattr(importlib.import_module(home), name)


def test_everything_for_tests_can_be_imported_from_one_place() -> None:
    assert all(hasattr(dragoman.testing, name) for name in dragoman.testing.__all__)


@pytest.mark.slow
def test_importing_the_package_loads_nothing() -> None:
    assert loaded_by("import dragoman") == loaded_by("")


@pytest.mark.slow
def test_writing_tools_and_serving_them_needs_neither_the_sdk_nor_the_command_line() -> None:
    code = "import dragoman\nfor name in dragoman.__all__: getattr(dragoman, name)"
    assert loaded_by(code) & {"mcp", "mcp_types", "typer", "rich", "click", "pydantic", "anyio"} == set()
    assert "msgspec" in loaded_by(code)

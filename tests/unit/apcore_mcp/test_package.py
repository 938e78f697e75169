"""The package itself: how large it is, what it needs, what importing it costs, and how it logs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import apcore_mcp

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src" / "apcore_mcp").rglob("*.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MOST_LINES = 1200


def lines_of_code(path: Path) -> int:
    """Lines that are neither empty, nor a comment, nor part of a docstring."""
    text = path.read_text("utf-8")
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and not line.strip().startswith("#") and number not in said)


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=30).stdout
    return set(json.loads(output))


@pytest.mark.requirement("NFR-MAINT-001", "C-03")
def test_it_only_adapts() -> None:
    counted = {path.name: lines_of_code(path) for path in SOURCES}
    assert 500 <= sum(counted.values()) <= MOST_LINES, counted


@pytest.mark.requirement("SRS-API-14", "FR-OPENAI-005", "C-06", "D-03")
def test_importing_it_loads_nothing_and_nothing_ever_loads_openai() -> None:
    heavy = {"apcore", "mcp", "mcp_types", "pydantic", "asyncio", "openai", "argparse", "msgspec"}
    assert loaded_by("import apcore_mcp") & heavy == loaded_by("") & heavy
    everything = "import apcore_mcp, apcore_mcp.cli\nfor name in apcore_mcp.__all__: getattr(apcore_mcp, name)"
    assert loaded_by(everything) & {"openai", "mcp", "typer", "rich", "uvicorn"} == set()


@pytest.mark.requirement("SRS-API-14", "SRS-API-15")
def test_every_name_can_be_imported_from_where_the_specification_has_it() -> None:
    for name in apcore_mcp.__all__:
        assert getattr(apcore_mcp, name) is not None
    for place, name in (
        ("adapters.schema", "SchemaConverter"),
        ("adapters.annotations", "AnnotationMapper"),
        ("adapters.errors", "ErrorMapper"),
        ("adapters.id_normalizer", "ModuleIDNormalizer"),
        ("converters.openai", "OpenAIConverter"),
        ("server.factory", "MCPServerFactory"),
        ("server.router", "ExecutionRouter"),
        ("server.listener", "RegistryListener"),
        ("helpers", "report_progress"),
        ("helpers", "MCP_ELICIT_KEY"),
    ):
        module = __import__(f"apcore_mcp.{place}", fromlist=[name])
        assert hasattr(module, name), (place, name)


def logger_calls() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                yield path.name, ", ".join(map(ast.unparse, node.args))


@pytest.mark.requirement("NFR-MAINT-004", "FR-LOG-004")
def test_every_logger_is_under_the_packages_name_and_nobody_uses_the_root() -> None:
    named = list(logger_calls())
    assert len(named) >= 6
    assert all(name == "__name__" or name.startswith("'apcore_mcp") for _, name in named), named
    direct = re.compile(r"logging\.(debug|info|warning|error|exception|critical)\(")
    assert [path.name for path in SOURCES if direct.search(path.read_text("utf-8"))] == []


@pytest.mark.requirement("NFR-MAINT-003")
def test_its_types_are_checked_strictly() -> None:
    assert "apcore_mcp" in PROJECT["tool"]["mypy"]["packages"]
    assert PROJECT["tool"]["mypy"]["strict"] is True
    assert (ROOT / "src" / "apcore_mcp" / "py.typed").is_file()


@pytest.mark.requirement("NFR-MAINT-002")
def test_its_coverage_counts() -> None:
    assert "apcore_mcp" in PROJECT["tool"]["coverage"]["run"]["source"]


@pytest.mark.requirement("NFR-COMPAT-001", "NFR-COMPAT-002", "NFR-COMPAT-003", "C-01", "C-04", "D-01", "D-02", "D-03")
def test_what_it_needs_is_declared() -> None:
    project = PROJECT["project"]
    assert project["requires-python"] == ">=3.11"
    assert "mcp~=2.3.0" in project["dependencies"]
    extras = project["optional-dependencies"]
    assert "apcore>=0.32,<0.33" in extras["apcore"]
    wanted = [*project["dependencies"], *(each for needs in extras.values() for each in needs)]
    assert not any(each.startswith("openai") for each in wanted)
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/dragoman", "src/apcore_mcp"]


@pytest.mark.requirement("NFR-PORT-002")
def test_only_accelerators_and_what_stands_in_for_them_depend_on_the_platform() -> None:
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["apcore"]]
    marked = {re.split(r"[<>=~;]", each)[0] for each in wanted if ";" in each}
    assert marked == {"uvloop", "psutil"}


@pytest.mark.requirement("NFR-PORT-001")
def test_it_makes_no_call_of_one_platform_only() -> None:
    own = {"fcntl", "resource", "termios", "pwd", "grp", "signal", "select", "winreg", "msvcrt"}
    for path in SOURCES:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        assert not named & own, path

"""The package itself: how large it is, what it needs, what importing it costs, and how it logs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import apcore_mcp
from dragoman.extras import install_command
from tests.coverage_gate import totals_of, verdict
from tests.support.source import parsed
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src" / "apcore_mcp").rglob("*.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MOST_LINES = 1200


def lines_of_code(path: Path) -> int:
    """Lines that are neither empty, nor a comment, nor part of a docstring."""
    text = path.read_text("utf-8")
    said: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and not line.strip().startswith("#") and number not in said)


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=PATIENCE).stdout
    return set(json.loads(output))


@pytest.mark.requirement("NFR-MAINT-001", "C-03")
def test_it_only_adapts() -> None:
    counted = {str(path.relative_to(ROOT)): lines_of_code(path) for path in SOURCES}
    assert 500 <= sum(counted.values()) <= MOST_LINES, counted


@pytest.mark.slow
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
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                yield path.name, ", ".join(map(ast.unparse, node.args))


@pytest.mark.requirement("NFR-MAINT-004", "FR-LOG-004")
def test_every_logger_is_under_the_packages_name_and_nobody_uses_the_root() -> None:
    named = list(logger_calls())
    assert len(named) >= 6
    assert all(name == "__name__" or name.startswith("'apcore_mcp") for _, name in named), named
    direct = re.compile(r"logging\.(debug|info|warning|error|exception|critical)\(")
    assert [path.name for path in SOURCES if direct.search(path.read_text("utf-8"))] == []
    parts = [path.relative_to(ROOT / "src").with_suffix("").parts for path in SOURCES if not path.stem.startswith("_")]
    loggers = {name: getattr(import_module(name), "logger", None) for name in map(".".join, parts)}
    assert [name for name, logger in loggers.items() if logger is not None and logger.name != name] == []


USES = """
import asyncio
from apcore import Executor, Identity, Registry
from apcore_mcp import app, attach, call_openai_tool, load_extensions, serve, to_openai_tools
from apcore_mcp.adapters.errors import ErrorMapper
from dragoman.app import ServerOptions, create_server

registry: Registry = load_extensions("folder")
attach(create_server(ServerOptions()), Executor(registry), tags=["a"], dynamic=True).stop()
tools: list[dict[str, object]] = [{**tool} for tool in to_openai_tools(registry, strict=True, api="responses")]
message: dict[str, str] = asyncio.run(call_openai_tool(registry, {}))
text: str = ErrorMapper().text(ValueError())
serve(registry, transport="sse", on_startup=lambda: None)

class Keys:
    async def authenticate(self, headers: dict[str, str]) -> Identity | None:
        return None

authenticated: bool = app(registry, authenticator=Keys(), allowed_hosts=["a"]).is_authenticated
"""
MISUSES = {
    "load_extensions(5)": "arg-type",
    "attach(registry, registry)": "arg-type",
    "to_openai_tools(registry, api='files')": "arg-type",
    "serve(registry, port='8000')": "arg-type",
    "serve(registry, 'stdio')": "call-arg",
    "app(registry, authenticator=object())": "arg-type",
    "length: int = to_openai_tools(registry)": "assignment",
}


@pytest.mark.slow
@pytest.mark.requirement("NFR-MAINT-003")
def test_its_types_are_complete_and_those_who_use_it_have_them(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(USES + "\n".join(MISUSES))
    first = USES.count("\n") + 1
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary"]
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    checked = [str(ROOT / "src" / "apcore_mcp"), str(program)]
    done = subprocess.run([*command, *config, *checked], cwd=ROOT, capture_output=True, text=True, timeout=300)
    exempt = [
        name for each in PROJECT["tool"]["mypy"]["overrides"] for name in [each["module"]] if "apcore_mcp" in name
    ]
    assert exempt == []
    found = re.findall(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    expected = [("program.py", str(line), code) for line, code in enumerate(MISUSES.values(), first)]
    assert found == expected, done.stdout + done.stderr
    assert (ROOT / "src" / "apcore_mcp" / "py.typed").is_file()


@pytest.mark.requirement("NFR-MAINT-002")
@pytest.mark.parametrize(("covered", "enough"), [(90, True), (89, False)])
def test_its_coverage_counts_by_itself(covered: int, enough: bool) -> None:
    def summary(lines: int) -> dict[str, Any]:
        counted = {"covered_lines": lines, "num_statements": 100, "covered_branches": 8, "num_branches": 10}
        return {"summary": counted}

    files = {"src/dragoman/app.py": summary(100), "src/apcore_mcp/cli.py": summary(covered)}
    totals = totals_of({"files": files}, "src/apcore_mcp/")
    assert (totals["covered_lines"], verdict(totals)[0]) == (covered, enough)
    assert verdict(totals_of({"files": files}, "src/"))[0]
    assert "apcore_mcp" in PROJECT["tool"]["coverage"]["run"]["source"]


def test_it_is_written_in_the_oldest_python_that_it_is_for() -> None:
    versions = SpecifierSet(PROJECT["project"]["requires-python"])
    assert [minor for minor in range(8, 15) if f"3.{minor}" in versions] == [11, 12, 13, 14]
    for path in SOURCES:
        parsed(path, feature_version=(3, 11))


@pytest.mark.requirement("NFR-COMPAT-002", "NFR-COMPAT-003", "C-01", "D-01", "D-02")
def test_it_runs_here_with_what_it_says_that_it_needs() -> None:
    project = PROJECT["project"]
    needs = [Requirement(each) for each in (*project["dependencies"], *project["optional-dependencies"]["apcore"])]
    ranges = {each.name: each.specifier for each in needs}
    for name, too_old, too_new in (("apcore", "0.31.9", "0.33.0"), ("mcp", "2.2.9", "3.0.0")):
        assert ranges[name].contains(version(name)), name
        assert not ranges[name].contains(too_old)
        assert not ranges[name].contains(too_new)


@pytest.mark.slow
@pytest.mark.requirement("D-01")
def test_without_apcore_it_can_be_imported_and_its_command_says_what_to_install(tmp_path: Path) -> None:
    without = "import sys\nsys.modules['apcore'] = None\nimport apcore_mcp\nfrom apcore_mcp.cli import main\n"
    script = without + f"main(['--extensions-dir', {str(tmp_path)!r}])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    wanted = f"Error: the extra `apcore` is not installed: {install_command('apcore')}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


@pytest.mark.requirement("D-03")
def test_openai_is_nothing_that_it_needs() -> None:
    project = PROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(each for needs in project["optional-dependencies"].values() for each in needs),
    ]
    assert not any(each.startswith("openai") for each in wanted)
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/dragoman", "src/apcore_mcp"]


@pytest.mark.requirement("NFR-PORT-002")
def test_only_accelerators_and_what_stands_in_for_them_depend_on_the_platform() -> None:
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["apcore"]]
    marked = {re.split(r"[<>=~;]", each)[0] for each in wanted if ";" in each}
    assert marked == {"uvloop", "psutil"}

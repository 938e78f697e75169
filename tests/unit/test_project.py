"""The project itself: its checks, its test groups and its figures."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import requirements
from tests.coverage_gate import verdict
from tests.interaction.servers import environment

ROOT = Path(__file__).parents[2]


@pytest.mark.requirement("FND-TEST-04", "PRD-METRIC-05")
@pytest.mark.parametrize(
    ("lines", "branches", "enough"), [(900, 800, True), (899, 1000, False), (1000, 799, False), (1000, 1000, True)]
)
def test_too_little_coverage_fails_the_build(lines: int, branches: int, enough: bool) -> None:
    totals = {"covered_lines": lines, "num_statements": 1000, "covered_branches": branches, "num_branches": 1000}
    assert verdict(totals)[0] is enough


BLOCK = "    if number:\n        pass\n"


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-04", "PRD-METRIC-05", "NFR-MAINT-002")
@pytest.mark.parametrize("untested", [None, "dragoman", "apcore_mcp"])
def test_the_build_fails_when_one_part_alone_is_not_covered(untested: str | None, tmp_path: Path) -> None:
    for name, size in (("dragoman", 1000), ("apcore_mcp", 20)):
        code = tmp_path / "src" / name / "code.py"
        code.parent.mkdir(parents=True)
        more = "def never_called(number):\n" + BLOCK * size if name == untested else ""
        code.write_text("for number in (0, 1):\n" + BLOCK * size + more)
    run_all = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path)\n"
    (tmp_path / "all.py").write_text(run_all)
    here: dict[str, Any] = {"cwd": tmp_path, "env": environment(is_measured=False), "timeout": 60}
    measure = [sys.executable, "-m", "coverage", "run", "--branch", "--source=src", "all.py"]
    subprocess.run([*measure, *map(str, (tmp_path / "src").rglob("*.py"))], check=True, **here)
    gate = subprocess.run([sys.executable, ROOT / "tests/coverage_gate.py"], capture_output=True, text=True, **here)
    assert gate.returncode == (0 if untested is None else 1), gate.stdout + gate.stderr
    assert [said.partition(": ")[0] for said in gate.stdout.splitlines()] == ["src/", "src/apcore_mcp/"]


@pytest.mark.requirement("FND-TEST-04", "FND-TEST-10")
@pytest.mark.parametrize(
    ("target", "recipe"),
    [
        ("check", "ruff format --check ."),
        ("check", "ruff check ."),
        ("check", "mypy"),
        ("check", "lint-imports"),
        ("test", "coverage_gate.py"),
        ("bench", "-m bench"),
        ("wheel-check", "wheel_check.py"),
    ],
)
def test_each_quality_command_is_part_of_its_target(target: str, recipe: str) -> None:
    plan = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert recipe in plan.stdout


def test_each_extra_is_a_package_that_some_code_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    everything = extras.pop("all")
    assert everything == [f"dragoman[{','.join(extras)}]"]
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for requirement in (each for extra in extras.values() for each in extra):
        name = re.split(r"[<>=~!\[; ]", requirement)[0]
        module = "opentelemetry" if name.startswith("opentelemetry") else name.replace("-", "_")
        assert re.search(rf"^\s*(import|from) {module}\b|find_spec\(.{module}.\)", code, re.MULTILINE), name


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-10")
@pytest.mark.parametrize("group", ["unit", "property", "interaction"])
def test_each_group_of_tests_can_be_run_by_itself(group: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", f"tests/{group}"],
        cwd=ROOT,
        env=environment(is_measured=False),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    "component",
    [
        "telemetry/test_log.py",
        "test_errors.py",
        "test_config.py",
        "tools/test_catalogue.py",
        "calls/test_resources.py",
        "calls/test_deadlines.py",
    ],
)
def test_each_component_has_unit_tests(component: str) -> None:
    assert "\ndef test_" in (ROOT / "tests/unit" / component).read_text("utf-8").replace("async def", "def")


@pytest.mark.requirement("PRD-ARCH-01")
def test_cache_deadlines_limits_and_replies_know_nothing_of_each_other() -> None:
    concerns = {
        "cache": ["cache.py"],
        "timeouts": ["calls/deadlines.py", "tools/categories.py", "calls/stages/enforce_deadline.py"],
        "limits": ["calls/limits.py"],
        "replies": [f"replies/{path.name}" for path in (ROOT / "src/dragoman/replies").glob("[a-z]*.py")],
    }
    modules = {
        concern: [file.removesuffix(".py").replace("/", ".") for file in files] for concern, files in concerns.items()
    }
    for concern, files in concerns.items():
        others = {module for other, names in modules.items() if other != concern for module in names}
        for file in files:
            assert imported_by(ROOT / "src/dragoman" / file) & others == set(), file


def imported_by(path: Path) -> set[str]:
    """The modules of `dragoman` that a file imports, however it does; `from dragoman.x import y` counts as both."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("dragoman.") for name in names}


@pytest.mark.requirement("PRD-ARCH-03")
def test_every_invariant_has_a_test_and_there_are_tests_of_contracts_parts_and_the_whole() -> None:
    ledger = requirements.load()
    invariants = [id for id in ledger.areas if id.startswith("INV-MCP-")]
    assert len(invariants) == 21
    assert [id for id in invariants if id not in ledger.tested] == []
    for level in ("contract", "unit", "property", "interaction"):
        assert list((ROOT / "tests" / level).rglob("test_*.py"))

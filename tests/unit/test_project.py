"""The project itself: its checks, its test groups and its figures."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cpu_budget, requirements
from tests.coverage_gate import verdict
from tests.support.processes import environment
from tests.support.source import parsed
from tests.support.waiting import PATIENCE

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
    here: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "timeout": 60}
    measure = [sys.executable, "-m", "coverage", "run", "--branch", "--source=src", "all.py"]
    subprocess.run([*measure, *map(str, (tmp_path / "src").rglob("*.py"))], check=True, **here)
    gate = subprocess.run([sys.executable, ROOT / "tests/coverage_gate.py"], capture_output=True, text=True, **here)
    assert gate.returncode == (0 if untested is None else 1), gate.stdout + gate.stderr
    assert [said.partition(": ")[0] for said in gate.stdout.splitlines()] == ["src/", "src/apcore_mcp/"]


STARTS_A_PROCESS = """
import subprocess, sys
import pytest

def start() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_a_fast_one() -> None:
    start()

@pytest.mark.slow
def test_a_slow_one() -> None:
    start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_test_that_starts_a_process_and_is_not_marked_as_slow_fails(
    parallel: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "test_starting.py").write_text(STARTS_A_PROCESS)
    kept = tmp_path / "kept.json"
    options = ("-p", "conftest", "-c", "pyproject.toml", "--rootdir", ".", "--cpu-time", str(kept))
    ran = run_pytest(*parallel, *options, str(tmp_path))
    assert "1 failed, 1 passed" in ran.stdout
    assert "a test that starts a process is to be marked as slow" in ran.stdout
    assert "times the yardstick of" in ran.stdout
    assert json.loads(kept.read_bytes())["yardsticks"] > 1


@pytest.mark.parametrize(("yardsticks", "is_within"), [(1.0, True), (125.0, True), (125.1, False)])
def test_a_run_may_take_a_quarter_more_than_its_budget(yardsticks: float, is_within: bool) -> None:
    assert cpu_budget.verdict(yardsticks, 100)[0] is is_within


LINTERS = ("ruff format --check .", "ruff check .", "mypy", "lint-imports")


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-04", "FND-TEST-10")
@pytest.mark.parametrize(
    ("target", "recipe"),
    [
        *((target, command) for target in ("lint", "check") for command in LINTERS),
        ("check", '-m "not slow'),
        ("coverage", "coverage_gate.py"),
        ("bench", "-m bench"),
        ("wheel-check", "wheel_check.py"),
    ],
)
def test_each_quality_command_is_part_of_its_target(target: str, recipe: str) -> None:
    plan = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert recipe in plan.stdout


@pytest.mark.requirement("FND-TEST-04", "FND-TEST-10")
@pytest.mark.parametrize("target", ["lint", "test", "budget", "coverage", "wheel-check", "requirements", "bench-short"])
def test_nothing_lands_without_each_quality_command(target: str) -> None:
    assert f"\nstep make {target}\n" in (ROOT / ".ci" / "run").read_text("utf-8")


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
@pytest.mark.nightly
@pytest.mark.requirement("FND-TEST-10")
@pytest.mark.parametrize("group", ["unit", "property", "interaction"])
def test_each_group_of_tests_can_be_run_by_itself(group: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", f"tests/{group}"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout


def run_pytest(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_a_background_job_that_inherits_an_ignored_interrupt_passes_the_tests_of_interrupts() -> None:
    ran = run_pytest("tests/unit/calls/test_interrupts.py", prefix=("sh", "-c", 'trap "" INT; exec "$@"', "sh"))
    assert ran.returncode == 0, ran.stdout


HANGS = """
import threading

def test_that_never_ends() -> None:
    threading.Event().wait()

def test_after_it() -> None:
    assert True
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_test_that_hangs_fails_by_name_with_its_stack_and_the_others_run(
    parallel: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGS)
    ran = run_pytest(*parallel, "-c", "pyproject.toml", "--rootdir", ".", "--timeout", "1", str(tmp_path))
    assert ran.returncode == 1
    assert "1 failed, 1 passed" in ran.stdout
    assert "test_that_never_ends" in ran.stdout
    assert "threading.Event().wait()" in ran.stdout


PROGRAMS = {
    "python3.11": "echo 3.11.9",
    "python3.12": "exit 127",  # As the shim of a version that is not active.
    "python3.13": "echo 3.13.0",
    "python3.14": "echo 3.14.1",
    "make": 'echo "$@"; case "$*" in *3.14*) exit 2;; esac',
}


def run_pythons(folder: Path, *arguments: str, target: str = "test") -> tuple[int, list[str], str]:
    """The exit code, the versions that were run, and the summary without the times."""
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    command = [sys.executable, "tests/pythons.py", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env={"PATH": str(folder)}, capture_output=True, text=True)
    runs = re.findall(rf"^{target} PYTHON=.*VENV=\.venv-(.*)$", ran.stdout, re.MULTILINE)
    return ran.returncode, runs, re.sub(r" in \d+ s", "", ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_tests_run_on_each_installed_python_and_the_summary_names_the_others(tmp_path: Path) -> None:
    summary = "Pythons: 3.11.9: passed; 3.12: not installed; 3.13.0: passed; 3.14.1: FAILED"
    assert run_pythons(tmp_path) == (1, ["3.11", "3.13", "3.14"], summary)


@pytest.mark.slow
def test_the_second_python_is_the_newest_that_is_not_the_first(tmp_path: Path) -> None:
    code, runs, _ = run_pythons(tmp_path, "--newest")
    assert (code, runs) == ((0, ["3.13"]) if sys.version_info[:2] == (3, 14) else (1, ["3.14"]))


@pytest.mark.slow
def test_another_target_runs_on_another_python(tmp_path: Path) -> None:
    _, runs, _ = run_pythons(tmp_path, "--newest", "--target", "bench", target="bench")
    assert runs == ["3.13" if sys.version_info[:2] == (3, 14) else "3.14"]


@pytest.mark.slow
def test_no_test_runs_twice_in_the_checks_before_a_merge() -> None:
    steps = re.findall(r"^step make (.*)$", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)
    assert not {"check", "nightly", "test-fast"} & set(steps)
    assert {"lint", "test", "budget", "test-pythons NEWEST=1 TARGET=test-fast", "browser", "workers"} <= set(steps)
    assert len(steps) == len(set(steps))
    apart = re.search(r"^APART := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert apart is not None
    once = [*steps, "nightly"]
    plans = [
        subprocess.run(["make", "-n", *each.split()], cwd=ROOT, capture_output=True, text=True).stdout for each in once
    ]
    for each in apart[1].split():  # What `make test` leaves out is in one other place.
        assert (
            sum(line.count(f" {each}") for plan in plans for line in plan.splitlines() if "--ignore" not in line) == 1
        )


def test_every_test_has_a_time_limit() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert options["faulthandler_timeout"] > options["timeout"] > PATIENCE
    assert options["faulthandler_exit_on_timeout"] is True


@pytest.mark.requirement("FND-TEST-06")
@pytest.mark.parametrize(
    "component",
    [
        "telemetry/test_log.py",
        "test_errors.py",
        "test_config.py",
        "tools/test_catalogue.py",
        "calls/test_slots.py",
        "calls/test_deadlines.py",
        "agents/test_coordinator.py",
        *(f"agents/aacp/test_{part}.py" for part in ("envelope", "ledger", "sessions", "retransmitter")),
    ],
)
def test_each_component_has_unit_tests(component: str) -> None:
    assert "\ndef test_" in (ROOT / "tests/unit" / component).read_text("utf-8").replace("async def", "def")


@pytest.mark.requirement("FND-TEST-11")
def test_each_concern_of_the_foundation_has_a_home_that_the_architecture_names() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("concerns and their homes:")[2].partition("\n\n")[0]
    for concern in (
        "MCP protocol", "registry", "session", "configuration", "logging", "errors", "resources", "agents", "tools",
        "AACP", "entry points",
    ):  # fmt: skip
        assert concern in text, concern
    homes = re.findall(r"`([^`]+)`", text)
    assert [home for home in homes if not (ROOT / "src/dragoman" / home).exists()] == []
    assert len(homes) == len(set(homes)) >= 11


@pytest.mark.requirement("PRD-ARCH-01")
def test_cache_deadlines_limits_and_replies_know_nothing_of_each_other() -> None:
    concerns = {
        "cache": ["cache/bounded.py", "cache/eviction.py"],
        "timeouts": ["calls/deadlines.py", "tools/categories.py", "calls/stages/enforce_deadline.py"],
        "limits": ["calls/limits.py"],
        "replies": [f"replies/{path.name}" for path in (ROOT / "src/dragoman/replies").glob("[a-z]*.py")],
    }
    modules = {
        concern: [f"dragoman.{file.removesuffix('.py').replace('/', '.')}" for file in files]
        for concern, files in concerns.items()
    }
    for concern, files in concerns.items():
        others = {module for other, names in modules.items() if other != concern for module in names}
        for file in files:
            assert imported_by(ROOT / "src/dragoman" / file, others) == set(), file


def imported_by(path: Path, modules: Collection[str]) -> set[str]:
    """Those of `modules` that a file imports, anywhere in it; of `from a import b`, `a.b` if that is one, else `a`."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules else f"{node.module}" for name in full}
    return names & set(modules)


MOST_LINES, MOST_METHODS = 60, 15


def too_large_in(node: ast.AST, inside: str = "") -> Iterator[str]:
    """Qualified names of functions with too many lines and classes with too many public methods."""
    for each in ast.iter_child_nodes(node):
        name = inside
        if isinstance(each, ast.ClassDef):
            name = f"{inside}{each.name}"
            defined = (item for item in each.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            if len({item.name for item in defined if not item.name.startswith("_")}) > MOST_METHODS:
                yield name
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}{each.name}"
            if (each.end_lineno or 0) - each.lineno + 1 > MOST_LINES:
                yield name
        yield from too_large_in(each, name if name == inside else f"{name}.")


@pytest.mark.slow
def test_no_function_has_more_than_60_lines_and_no_class_more_than_15_public_methods() -> None:
    source = ROOT / "src"
    found = {
        f"{path.relative_to(source)}: {what}" for path in source.rglob("*.py") for what in too_large_in(parsed(path))
    }
    assert found == set()


def types_in(path: Path) -> Iterator[str]:
    """The public classes and type aliases that a module defines."""
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@pytest.mark.slow
def test_no_two_modules_define_a_type_of_the_same_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in types_in(path):
            if re.fullmatch(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*", name):
                homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_marks_are_looked_for_where_pytest_looks_for_tests() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert [ROOT / folder for folder in options["testpaths"]] == list(requirements.FOLDERS)


@pytest.mark.slow
def test_no_file_imports_a_test_file_or_a_conftest() -> None:
    folders = ("tests", "bench", "fuzz", "soak", "chaos", "conformance")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    private = {name for name, path in modules.items() if path.name == "conftest.py" or path.name.startswith("test_")}
    imports = {name: imported_by(path, private) for name, path in modules.items()}
    assert {name: found for name, found in imports.items() if found} == {}


@pytest.mark.slow
@pytest.mark.requirement("PRD-ARCH-03")
def test_every_invariant_has_a_test_and_there_are_tests_of_contracts_parts_and_the_whole() -> None:
    ledger = requirements.load()
    invariants = [id for id in ledger.areas if id.startswith("INV-MCP-")]
    assert len(invariants) == 21
    assert [id for id in invariants if id not in ledger.tested] == []
    for level in ("contract", "unit", "property", "interaction"):
        assert list((ROOT / "tests" / level).rglob("test_*.py"))

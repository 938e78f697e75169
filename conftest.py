"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, so that a red run can be repeated. `make nightly` asks for more of them.
settings.register_profile(
    "dragoman",
    max_examples=int(os.environ.get("DRAGOMAN_TESTS_EXAMPLES", 30)),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("dragoman")

pytest_plugins = ["tests.support.cpu_time"]
pytest.register_assert_rewrite("tests.support")  # So that its assertions say what they compared.

# A shell without job control starts background jobs with SIGINT ignored, and each process here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent
REQUIRE_ALL = os.environ.get("DRAGOMAN_TESTS_REQUIRE_ALL") == "1"
ON_DISK = os.environ.get("DRAGOMAN_TESTS_ON_DISK") == "1"
IN_MEMORY, ENOUGH_MEMORY = Path("/dev/shm"), 2 << 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--requirement", metavar="ID", help="only the tests that are marked with a requirement")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    id = config.getoption("--requirement")
    if id is not None:
        items[:] = [each for each in items if any(id in mark.args for mark in each.iter_markers("requirement"))]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        _start_worker()
    else:
        _use_memory_for_files(config)
        if not config.getoption("numprocesses", None):
            _start_worker()
    # Servers that are given no data directory use one of this run, and not what an earlier run or a user has left.
    folder = tempfile.TemporaryDirectory(prefix="dragoman-data-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_DATA_HOME"] = folder.name


def _use_memory_for_files(config: pytest.Config) -> None:
    """A disk that others keep busy makes tests of the database several times as slow.

    Folders of tests that have failed are kept, where pytest says; all others go when the run ends.
    """
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= ENOUGH_MEMORY
    if ON_DISK or not has_room or "TMPDIR" in os.environ:
        return
    folder = tempfile.TemporaryDirectory(prefix="dragoman-tests-", dir=IN_MEMORY, ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


def _start_worker() -> None:
    """In the process that runs tests: what they start is not measured. What collecting them makes is no garbage."""
    gc.disable()
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    sys.addaudithook(_refuse_processes)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A full collection looks through all test modules, which stay: a quarter of a second, hundreds of times."""
    _freeze_what_stays()
    gc.enable()


def _freeze_what_stays() -> None:
    global _tests_since
    gc.collect()
    gc.freeze()
    _tests_since = 0


_tests_since = 0
_MANY_TESTS = 200
"""Pytest keeps some fifty objects of each test until its end."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where everything must be installed, a skip is a failure: it would hide a missing install step."""
    # To report a failure, pytest parses the test's source. Up to 3.11.7 that fails where garbage is collected meanwhile
    # whose finaliser parses, too.
    gc.disable()
    try:
        report = yield
    finally:
        gc.enable()
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be: {report.longrepr}"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Free what earlier tests left before Hypothesis parses the source of a state machine.

    Freed meanwhile, it may be reported with a traceback, for which Python parses, too: up to 3.11.7 the outer parser
    then fails with "AST constructor recursion depth mismatch".
    """
    if item.path.parent.name == "property" and item.path.stem.endswith("_model"):
        gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    global _tests_since
    _tests_since += 1
    is_last_of_its_module = nextitem is None or nextitem.path != item.path  # What a module's fixtures made has ended.
    if is_last_of_its_module and _tests_since >= _MANY_TESTS:
        _freeze_what_stays()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _may_start_processes
    is_slow = item.get_closest_marker("slow") is not None
    _may_start_processes = is_slow
    try:
        return (yield)
    finally:
        _may_start_processes = True


_may_start_processes = True


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if not _may_start_processes and event in (
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
    ):
        raise RuntimeError("a test that starts a process is to be marked as slow")

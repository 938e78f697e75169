"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

# Every property runs at least a hundred examples, and the same ones each time, so that a red run can be repeated.
settings.register_profile(
    "dragoman",
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("dragoman")

pytest.register_assert_rewrite("tests.support")  # So that its assertions say what they compared.

# A shell without job control starts background jobs with SIGINT ignored, and each process here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent
# Coverage is what the other tests reach. These run the same code many times, and being measured doubles their cost.
MANY_CLIENTS = "tests/interaction/test_http_clients.py"
UNMEASURED = [
    ROOT / path
    for path in (
        "tests/attacks",
        "tests/property",
        MANY_CLIENTS,
        "bench/tests",
        "fuzz/tests",
        "soak/tests",
        "chaos/tests",
    )
]

REQUIRE_ALL = os.environ.get("DRAGOMAN_TESTS_REQUIRE_ALL") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Servers that are given no data directory use one of this run, and not what an earlier run or a user has left."""
    folder = TemporaryDirectory(prefix="dragoman-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_DATA_HOME"] = folder.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where everything must be installed, a skip is a failure: it would hide a missing install step."""
    report = yield
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


@contextmanager
def not_measured() -> Iterator[None]:
    """Without coverage, in this process and in those that it starts."""
    coverage = sys.modules.get("coverage")
    measuring = coverage and coverage.Coverage.current()
    if not measuring:
        yield
        return
    config = os.environ.pop("COVERAGE_PROCESS_CONFIG")
    measuring.stop()
    try:
        yield
    finally:
        measuring.start()
        os.environ["COVERAGE_PROCESS_CONFIG"] = config


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not any(item.path.is_relative_to(path) for path in UNMEASURED):
        return (yield)
    with not_measured():
        return (yield)

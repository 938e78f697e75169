"""The processor time that tests take, their processes included: the dearest are listed, and a whole run is kept."""

from __future__ import annotations

import resource
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.forking import spent_by_forks

DEAR = 0.5
"""Seconds. A test that takes more is listed; machines differ, so none fails for it."""
_MOST_LISTED = 30
_PROPERTY = "cpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("processor time")
    group.addoption("--cpu-time", type=Path, metavar="FILE", help="list dear tests, and keep the time of the run here")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Meter() if hasattr(config, "workerinput") else _Run(config), "cpu time")


def spent() -> float:
    """Seconds of this process and of those that it has started and waited for."""
    return _used(resource.RUSAGE_SELF) + _used(resource.RUSAGE_CHILDREN) + spent_by_forks()


def _used(whose: int) -> float:
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def yardstick() -> float:
    """Seconds that a fixed piece of work takes, much like what tests do: how fast this machine is just now."""
    began = time.process_time()
    for number in range(60_000):
        value: Any = {"jsonrpc": "2.0", "id": number, "params": {"arguments": [str(each) for each in range(10)]}}
        for _ in range(5):
            value = msgspec.json.decode(msgspec.json.encode(value))
        assert sorted(value["params"]["arguments"], key=int)[-1] == "9"
    return time.process_time() - began


class _Meter:
    """Adds to each test's last report what the test took."""

    def __init__(self) -> None:
        self._began = spent()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_PROPERTY, spent() - self._began))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.workeroutput["cpu"] = spent()  # type: ignore[attr-defined]


class _Run(_Meter):
    """The process that prints: what all workers tell it, and its own."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._path: Path | None = config.getoption("cpu_time")
        self._tests: dict[str, float] = {}
        self._by_workers = 0.0
        self._yardsticks: list[float] = []

    def pytest_sessionstart(self) -> None:
        if self._path:
            self._yardsticks.append(yardstick())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        pass

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._tests[report.nodeid] = float(str(value))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._by_workers += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._path is None:
            return
        # What workers tell is complete; they may have been waited for by now, or not.
        seconds = _used(resource.RUSAGE_SELF) + self._by_workers if self._by_workers else spent()
        self._yardsticks.append(yardstick())
        unit = sum(self._yardsticks) / len(self._yardsticks)
        tests = sorted(((each, test) for test, each in self._tests.items()), reverse=True)
        kept = {"seconds": seconds, "yardsticks": seconds / unit, "tests": {test: each for each, test in tests}}
        self._path.write_bytes(msgspec.json.encode(kept))
        terminalreporter.section("processor time")
        dear = [(each, test) for each, test in tests if each > DEAR]
        for each, test in dear[:_MOST_LISTED]:
            terminalreporter.write_line(f"{each:6.2f} s  {test}")
        if len(dear) > _MOST_LISTED:
            terminalreporter.write_line(f"and {len(dear) - _MOST_LISTED} more above {DEAR} s")
        terminalreporter.write_line(f"{seconds:.0f} s in all, {seconds / unit:.0f} times the yardstick of {unit:.3f} s")

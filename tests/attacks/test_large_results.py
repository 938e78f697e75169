"""A tool that returns far more than may be sent holds nobody up: its result is refused for the price of a small one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.cost import LEAST_CPU, cheapest, cpu_of
from tests.support.http_process import HttpProcess
from tests.support.http_wire import modern_call
from tests.support.processes import ServerProcess

ROW = {"id": 123_456, "name": "x" * 20, "numbers": [1, 2, 3]}
ROWS = 1_000_000
CALLS = 5
TOOLS = f"""
from dragoman import resource, tool

ROWS = [{ROW!r}] * {ROWS}

@tool
async def large() -> list:
    return ROWS

@resource("rows://large")
async def rows() -> list:
    return ROWS
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("large") / "large.py"
    file.write_text(TOOLS)
    return file


@pytest.fixture(scope="module")
def bare_encode() -> float:
    """CPU seconds that it takes just to encode the result once."""
    rows = [ROW] * ROWS
    return min(cpu_of(lambda: msgspec.json.encode(rows)) for _ in range(2))


def check_cost(pid: int, call: Callable[[], str], bare_encode: float) -> None:
    assert "too large" in call()  # What is imported for the first one is nobody's attack.
    allowed = LEAST_CPU + bare_encode
    assert cheapest(pid, lambda: [call() for _ in range(CALLS)], allowed) <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["structured", "envelope"])
def test_result_that_is_too_large_is_refused_over_http_for_less_than_it_takes_to_encode_it(
    target: Path, bare_encode: float, dialect: str
) -> None:
    with HttpProcess(str(target), settings={"response.dialect": dialect}, is_measured=False) as server:
        check_cost(server.pid, lambda: server.ask(modern_call("large")).body.decode(), bare_encode)
        session = server.open()
        check_cost(server.pid, lambda: session.call("large").body.decode(), bare_encode)


@pytest.mark.slow
def test_result_that_is_too_large_is_refused_over_stdio_for_less_than_it_takes_to_encode_it(
    target: Path, bare_encode: float
) -> None:
    with ServerProcess(str(target), is_measured=False) as server:
        server.handshake()
        check_cost(server.pid, lambda: str(server.request("tools/call", {"name": "large"})), bare_encode)
        read = {"uri": "rows://large"}
        check_cost(server.pid, lambda: str(server.request("resources/read", read)), bare_encode)

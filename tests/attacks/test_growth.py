"""Calls leave no memory behind in a server that runs for long."""

from __future__ import annotations

from itertools import pairwise

import psutil
import pytest

from tests.support.processes import ServerProcess, line
from tests.support.served import path_of

pytestmark = pytest.mark.slow

TOOLS = path_of("attack_tools.py")
ROUNDS, ROUND, IN_FLIGHT = 4, 20_000, 500
MOST_BYTES_PER_CALL = 10
"""A million calls then leave less than ten megabytes behind."""


@pytest.mark.requirement("PRD-METRIC-01")
def test_calls_leave_less_than_ten_bytes_each_behind_in_a_warm_server() -> None:
    settings = {"resources.max_concurrent_executions": IN_FLIGHT, "logging.level": "error"}
    with ServerProcess(TOOLS, settings=settings) as server:
        server.handshake()
        calls = b"".join(
            line("tools/call", {"name": name, "arguments": arguments}, id)
            for id, (name, arguments) in enumerate(
                [("echo", {"message": "x" * 100}), ("echo", {}), ("nobody", {}), ("take", {"data": {"a": [1, 2]}})]
                * (IN_FLIGHT // 4)
            )
        )
        process, answered, sizes = psutil.Process(server.pid), 1, []
        for _ in range(ROUNDS + 1):
            for _ in range(ROUND // IN_FLIGHT):
                server.send(calls)
                answered += IN_FLIGHT
                server.output.wait_until(lambda lines, count=answered: len(lines) >= count or None)
            sizes.append(process.memory_info().rss)
    # A leak shows in every round. The allocator's own growth, after the first, only in some.
    growths = [after - before for before, after in pairwise(sizes)]
    assert min(growths) < MOST_BYTES_PER_CALL * ROUND, growths

"""Nothing of a call that failed stays in the server's memory."""

from __future__ import annotations

import pytest

from tests.support.answers import error_in
from tests.support.cost import MEGABYTE, growth_of
from tests.support.http_process import HttpProcess
from tests.support.http_wire import modern_call
from tests.support.processes import ServerProcess
from tests.support.served import path_of

pytestmark = pytest.mark.slow

TOOLS = path_of("attack_tools.py")


@pytest.mark.parametrize("name", ["fail", "fail_on_a_thread"])
@pytest.mark.parametrize("transport", ["stdio", "modern", "session"])
def test_failed_calls_free_their_data_without_the_garbage_collector(name: str, transport: str) -> None:
    """Eighty calls that held ten megabytes each: the collector would come round to them after hundreds."""
    with HttpProcess(TOOLS) as http, ServerProcess(TOOLS) as stdio:
        stdio.handshake()
        session = http.open()

        def fail() -> None:
            if transport == "stdio":
                result = stdio.call(name, megabytes=10)
            elif transport == "modern":
                result = http.ask(modern_call(name, megabytes=10)).message["result"]
            else:
                result = session.call(name, megabytes=10).message["result"]
            assert error_in(result)["code"] == "INTERNAL"

        fail()
        with growth_of(stdio.pid if transport == "stdio" else http.pid) as growth:
            for _ in range(80):
                fail()
        assert growth.memory <= 50 * MEGABYTE

"""`dragoman agents`, `messages` and `ledger` beside a running server, and across its death."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.operator import Operator
from tests.support.served import path_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

AGENTS = path_of("operated_agents.py")


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path, AGENTS)


def test_a_command_is_answered_by_the_agent_of_a_running_server(operator: Operator) -> None:
    refused = operator.run("agents", "list")
    assert (refused.returncode, (operator.folder / "data").exists()) == (2, False)
    with operator.serve() as server:
        assert {each["agentId"]: each["holder"] for each in operator.answer("agents", "list", "--target", AGENTS)} == {
            "counter": "alive",
            "fragile": "alive",
            "patient": "alive",
        }
        asked = operator.run("agents", "send", "counter", '{"a": 1}', "--request", "--wait")
        assert (asked.returncode, asked.stdout) == (0, '{"count":1,"payload":{"a":1}}\n')
        told = operator.run("agents", "send", "counter", "hello", "--wait")
        assert (told.returncode, told.stderr) == (0, "message 3 is completed\n")
        failed = operator.run("agents", "send", "fragile", "hello", "--request", "--wait")
        assert (failed.returncode, failed.stderr) == (1, "dragoman: message 4 is dead: The agent failed\n")
        assert operator.state("counter") == {"count": 2}
        assert operator.answer("ledger", "verify") == {"valid": True, "problems": []}
        assert server.get("/health").json["status"] == "ok"
    assert {each["holder"] for each in operator.answer("agents", "list")} == {"none"}


def test_messages_that_wait_when_a_server_is_killed_are_handled_by_the_next(operator: Operator) -> None:
    with operator.serve() as server:
        for number in range(3):
            operator.answer("agents", "send", "patient", str(number))
        assert operator.answer("agents", "show", "patient")["depth"] == 3
        server.signal(signal.SIGKILL)
        server.wait()
    left = {each["agentId"]: (each["holder"], each["depth"]) for each in operator.answer("agents", "list")}
    assert left == {"counter": ("ended", 0), "fragile": ("ended", 0), "patient": ("ended", 3)}
    operator.answer("agents", "send", "patient", "3")
    operator.allow("open")
    with operator.serve() as server:
        wait_until(lambda: operator.answer("agents", "show", "patient")["depth"] == 0)
        assert operator.state("patient") == {"seen": [0, 1, 2, 3]}
        page = server.get("/metrics").body.decode()
        assert "dragoman_agent_takeovers_total 3.0" in page
        assert 'dragoman_agent_mailbox_messages{agent="patient"} 0.0' in page
    assert operator.answer("ledger", "verify")["valid"]


def test_dead_letters_that_are_redriven_are_handled_by_the_running_server(operator: Operator) -> None:
    with operator.serve() as server:
        for word in ("one", "two"):
            failed = operator.run("agents", "send", "fragile", word, "--wait")
            assert failed.returncode == 1
        assert [each["number"] for each in operator.answer("messages", "dead")["messages"]] == [1, 2]
        operator.allow("mended")
        assert len(operator.answer("messages", "redrive", "--agent", "fragile")["redriven"]) == 2
        wait_until(lambda: operator.answer("agents", "show", "fragile")["depth"] == 0)
        assert operator.state("fragile") == {"seen": ["one", "two"]}
        assert operator.answer("messages", "dead") == {"messages": [], "after": None}
        page = server.get("/metrics").body.decode()
        assert "dragoman_agent_retries_total 2.0" in page
        assert "dragoman_agent_dead_letters_total 2.0" in page


def test_each_agent_is_counted_once_by_a_server_of_several_processes(operator: Operator) -> None:
    with operator.serve("--workers", "2") as server:
        for _ in range(3):
            operator.answer("agents", "send", "patient", "1")
        shown = 'dragoman_agent_mailbox_messages{agent="patient"} 2.0'
        wait_until(lambda: shown in server.get("/metrics").body.decode())
        assert server.get("/metrics").body.decode().count('dragoman_agent_queue_messages{agent="counter"}') == 1
        operator.allow("open")
        wait_until(lambda: operator.answer("agents", "show", "patient")["depth"] == 0)
        assert operator.state("patient") == {"seen": [1, 1, 1]}

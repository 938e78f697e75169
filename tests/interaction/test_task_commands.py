"""`dragoman tasks` and `dragoman call --task` beside a running server, and across its death."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.operator import Operator
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

TOOLS = path_of("operated_tasks.py")
KEY = "order-7-of-monday"


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path, TOOLS)


def create(operator: Operator, tool: str, *words: str) -> str:
    """The id of a new task."""
    done = operator.run("call", tool, *words, "--target", TOOLS, "--task")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(operator: Operator, task_id: str) -> Any:
    return operator.answer("tasks", "show", task_id)


def has(operator: Operator, task_id: str, status: str) -> Callable[[], bool]:
    return lambda: bool(shown(operator, task_id)["status"] == status)


def begun(operator: Operator, task_id: str) -> Callable[[], bool]:
    return lambda: "statusMessage" in shown(operator, task_id)


def what_ran(operator: Operator) -> list[str]:
    ran = operator.folder / "ran"
    return ran.read_text().splitlines() if ran.exists() else []


def waiting(operator: Operator, *words: str) -> tuple[str, ...]:
    """The words of a command that waits for a task."""
    return ("call", *words, "--target", TOOLS, "--task", "--wait")


def first_word(process: subprocess.Popen[str]) -> str:
    """The id of the task that a command waits for, which it says at once."""
    assert process.stderr is not None
    return process.stderr.readline().removeprefix("task ").strip()


def test_a_task_that_a_command_stores_is_run_by_the_running_server(operator: Operator) -> None:
    with operator.serve() as server:
        task_id = create(operator, "build", "name=boat")
        wait_until(begun(operator, task_id))
        running = shown(operator, task_id)
        assert (running["status"], running["statusMessage"], running["isHeld"]) == ("working", "began build boat", True)
        early = operator.run("tasks", "result", task_id)
        assert (early.returncode, early.stdout) == (1, "")
        assert early.stderr == f"dragoman: task {task_id} is working: it is not done yet\n"
        operator.allow("open")
        wait_until(has(operator, task_id, "completed"))
        done = operator.run("tasks", "result", task_id)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"did": "build boat", "by": server.pid})
        listed = operator.answer("tasks", "list", "--target", TOOLS, "--status", "completed")["tasks"]
        assert [each["taskId"] for each in listed] == [task_id]
        assert operator.answer("ledger", "verify")["valid"]


def test_a_command_that_waits_leaves_the_run_to_the_server(operator: Operator) -> None:
    operator.allow("open")
    with operator.serve() as server:
        done = operator.run(*waiting(operator, "pay", "name=ada"))
        assert (done.returncode, json.loads(done.stdout)) == (0, {"did": "pay ada", "by": server.pid})
    assert what_ran(operator) == ["pay ada"]


def test_a_running_task_is_cancelled_from_the_command_line(operator: Operator) -> None:
    with operator.serve():
        task_id = create(operator, "pay", "name=ada")
        wait_until(begun(operator, task_id))
        asked = operator.run("tasks", "cancel", task_id)
        assert (asked.returncode, asked.stdout) == (0, f"task {task_id} is working, and its tool was asked to stop\n")
        wait_until(has(operator, task_id, "cancelled"))
        done = operator.run("tasks", "result", task_id)
        assert (done.returncode, done.stderr) == (1, f"dragoman: task {task_id} was cancelled\n")


def test_a_question_is_shown_while_the_server_waits_for_its_answer(operator: Operator) -> None:
    with operator.serve():
        task_id = create(operator, "ask")
        wait_until(has(operator, task_id, "input_required"))
        (question,) = shown(operator, task_id)["inputRequests"].values()
        assert (question["method"], question["params"]["message"]) == ("elicitation/create", "Whose?")
        listed = operator.answer("tasks", "list", "--status", "input_required")["tasks"]
        assert [each["taskId"] for each in listed] == [task_id]


def test_after_a_server_was_killed_the_next_one_goes_on_with_what_may_run_again(operator: Operator) -> None:
    with operator.serve() as server:
        again, once = create(operator, "build", "name=boat"), create(operator, "pay", "name=ada")
        for each in (again, once):
            wait_until(begun(operator, each))
        server.signal(signal.SIGKILL)
        server.wait()
    assert not shown(operator, again)["isHeld"]
    operator.allow("open")
    with operator.serve() as server:
        wait_until(has(operator, again, "completed"))
        wait_until(has(operator, once, "failed"))
        assert shown(operator, again)["result"] == {"did": "build boat", "by": server.pid}
        lost = operator.run("tasks", "result", once)
        assert (lost.returncode, lost.stderr.splitlines()[-1]) == (1, '  outcome: "UNKNOWN"')
    assert sorted(what_ran(operator)) == ["build boat", "build boat", "pay ada"]
    assert operator.answer("ledger", "verify")["valid"]


def test_tasks_of_a_server_that_was_killed_are_cancelled_without_one(operator: Operator) -> None:
    with operator.serve() as server:
        again, once = create(operator, "build", "name=boat"), create(operator, "pay", "name=ada")
        for each in (again, once):
            wait_until(begun(operator, each))
        server.signal(signal.SIGKILL)
        server.wait()
    assert operator.run("tasks", "cancel", again).stdout == f"task {again} is cancelled\n"
    assert operator.run("tasks", "cancel", once).returncode == 1
    assert [each["status"] for each in operator.answer("tasks", "list")["tasks"]] == ["failed", "cancelled"]


def test_a_task_goes_on_in_the_server_when_the_command_that_waits_is_interrupted(operator: Operator) -> None:
    with operator.serve(), operator.begin(*waiting(operator, "pay", "name=ada")) as command:
        task_id = first_word(command)
        wait_until(begun(operator, task_id))
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=PATIENCE)
        assert (command.returncode, said.splitlines()[-1]) == (130, "dragoman: interrupted")
        assert f"task {task_id} goes on" in said
        operator.allow("open")
        wait_until(has(operator, task_id, "completed"))


def test_a_task_that_runs_in_the_command_ends_with_it_when_it_is_interrupted(operator: Operator) -> None:
    with operator.begin(*waiting(operator, "pay", "name=ada")) as command:
        task_id = first_word(command)
        wait_until(begun(operator, task_id))
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=PATIENCE)
    assert (command.returncode, said) == (130, "dragoman: interrupted\n")
    assert shown(operator, task_id)["status"] == "cancelled"


def test_a_command_that_waits_takes_over_from_a_server_that_was_killed(operator: Operator) -> None:
    with operator.serve() as server, operator.begin(*waiting(operator, "build", "name=boat")) as command:
        task_id = first_word(command)
        wait_until(begun(operator, task_id))
        server.signal(signal.SIGKILL)
        server.wait()
        operator.allow("open")
        answer, _ = command.communicate(timeout=PATIENCE)
        assert (command.returncode, json.loads(answer)) == (0, {"did": "build boat", "by": command.pid})
    assert operator.answer("ledger", "verify")["valid"]


def test_a_command_stops_waiting_at_its_timeout_and_the_task_goes_on(operator: Operator) -> None:
    with operator.serve():
        done = operator.run(*waiting(operator, "pay", "name=ada"), "--timeout", "1")
        assert (done.returncode, done.stdout) == (1, "")
        task_id = done.stderr.split()[1]
        assert f"task {task_id} is working after 1 s, and goes on" in done.stderr
        operator.allow("open")
        wait_until(has(operator, task_id, "completed"))


def test_the_progress_of_a_task_is_a_bar_on_a_terminal(operator: Operator) -> None:
    terminal, end = pty.openpty()
    with operator.begin(*waiting(operator, "build", "name=boat"), stderr=end) as command:
        os.close(end)
        seen = b""
        while b"began build boat" not in seen or b" 25%" not in seen:
            seen += os.read(terminal, 65536)
        operator.allow("open")
        answer, _ = command.communicate(timeout=PATIENCE)
    os.close(terminal)
    assert json.loads(answer)["did"] == "build boat"


def test_the_same_key_in_two_processes_at_once_is_one_run(operator: Operator) -> None:
    words = ("call", "pay", "name=ada", "--target", TOOLS, "--idempotency-key", KEY)
    with operator.begin(*words) as first, operator.begin(*words) as second:
        wait_until(lambda: what_ran(operator))
        operator.allow("open")
        answers = [each.communicate(timeout=PATIENCE)[0] for each in (first, second)]
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["by"] in (first.pid, second.pid)
    assert operator.run(*words).stdout == answers[0]
    assert what_ran(operator) == ["pay ada"]

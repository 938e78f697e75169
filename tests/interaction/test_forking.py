"""Forked processes of tests are what interpreters would be, and every transport starts in an interpreter, too."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.forking import BRIDGE, DRAGOMAN, INTERPRETED, ForkedProcess, run, spent_by_forks, start
from tests.support.http_process import HttpProcess
from tests.support.operator import Operator
from tests.support.processes import HANDSHAKE, Lines, ServerProcess, environment, free_port, running
from tests.support.served import TOOLS, path_of
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, nothing is forked")]

EXTENSIONS = str(Path(__file__).parents[2] / "examples" / "extensions")

FACTS = """
import gc, locale, logging, multiprocessing, os, random, signal, sys, threading, time, warnings
from dragoman import tool

@tool
def facts() -> dict:
    streams = sys.__stdin__, sys.__stdout__, sys.__stderr__
    main = sys.modules["__main__"]
    return {
        "arguments": [sys.argv, sys.orig_argv],
        "path": sys.path,
        "main": [main.__name__, main.__file__, main.__spec__.name],
        "flags": repr(sys.flags),
        "environment": dict(os.environ),
        "folder": [os.getcwd(), os.umask(0o22)],
        "time": [time.tzname, locale.setlocale(locale.LC_ALL)],
        "signals": {each.name: repr(signal.getsignal(each)).partition(" at ")[0] for each in signal.valid_signals()
                    if isinstance(each, signal.Signals)},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "streams": [(each.name, each.mode, each.encoding, each.errors, each.line_buffering, each.isatty())
                    for each in streams],
        "warnings": repr(warnings.filters),
        "logging": [repr(logging.root), repr(logging.root.handlers)],
        "threads": sorted(each.name for each in threading.enumerate()),
        "daemon": multiprocessing.current_process().name,
        "group": [os.getpgid(0) == os.getpgid(os.getppid()), os.getsid(0) == os.getsid(os.getppid())],
        "collected": [gc.isenabled(), gc.get_threshold()],
    }

@tool
def chances() -> list[str]:
    from dragoman.ids import RandomIds
    return [str(random.random()), os.urandom(8).hex(), RandomIds().run_id(), str(os.getpid())]

@tool
def descriptors() -> list[str]:
    return sorted(os.readlink(f"/proc/self/fd/{each}").partition(":")[0] for each in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{each}"))
"""

ENDS = {
    "said": "raise SystemExit('no more')",
    "code": "raise SystemExit(7)",
    "error": "raise BaseException('unexpected')",
    "interrupt": "raise KeyboardInterrupt",
    "at once": "os._exit(9)",
    "killed": "os.kill(os.getpid(), 9)",
    "later": "import atexit; atexit.register(lambda: os._exit(11))",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), os._exit(12))).start()",
    "unflushed": "import sys; sys.__stdout__.write('x'); sys.__stderr__.write('y')",
}
"""What may end a process while its target is loaded."""


@pytest.fixture(autouse=True)
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_TESTS_INTERPRETERS", raising=False)


WAYS: dict[str, dict[str, str]] = {"forked": {}, "interpreted": INTERPRETED}


def answer(tool: str, folder: Path, extra: dict[str, str]) -> Any:
    (folder / "facts.py").write_text(FACTS)
    variables = environment(extra={"TZ": "Asia/Kathmandu", **extra})
    del variables["HOME"]
    done = run([*DRAGOMAN, "call", tool, "--target", "facts.py"], cwd=folder, env=variables, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


@pytest.mark.parametrize("tool", ["facts", "descriptors"])
def test_a_forked_process_finds_what_an_interpreter_finds(tool: str, tmp_path: Path) -> None:
    forked, interpreted = (answer(tool, tmp_path, extra) for extra in WAYS.values())
    if tool == "facts":
        assert interpreted["environment"].pop("PYTHONHASHSEED")
    assert forked == interpreted


def test_no_two_forked_processes_have_anything_random_in_common(tmp_path: Path) -> None:
    first, second = (answer("chances", tmp_path, {}) for _ in range(2))
    assert not {*first} & {*second}


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_process_ends_as_an_interpreter_does(end: str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(f"import os\n{ENDS[end]}\n")

    def come_to(extra: dict[str, str]) -> tuple[int, bytes, list[bytes]]:
        command = [*DRAGOMAN, "tools", "list", "ends.py"]
        done = run(command, cwd=tmp_path, env=environment(extra=extra), timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    forked, interpreted = map(come_to, WAYS.values())
    assert forked == interpreted


def test_what_cannot_be_flushed_is_told_as_by_an_interpreter() -> None:
    def come_to(extra: dict[str, str]) -> tuple[int, bytes]:
        pipes = {"stdout": full, "stderr": subprocess.PIPE}
        with start([*DRAGOMAN, "--version"], env=environment(extra=extra), **pipes) as process:
            _, complaint = process.communicate(timeout=PATIENCE)
            return process.wait(), complaint

    with open("/dev/full", "wb") as full:
        forked, interpreted = map(come_to, WAYS.values())
    assert forked == interpreted


def test_a_forked_process_can_be_awaited_stopped_and_killed() -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    spent = spent_by_forks()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with running([*DRAGOMAN, "serve", str(TOOLS)], env=environment(), **pipes) as process:
            assert isinstance(process, ForkedProcess)
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.stdin.write(HANDSHAKE)
            assert process.stdout.readline()
            process.send_signal(number)
            assert process.wait(PATIENCE) == code
            assert process.cpu_seconds > 0
            spent += process.cpu_seconds
            assert spent_by_forks() == pytest.approx(spent)
            process.kill()  # Nobody has this process id any more, or somebody else.


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([sys.executable, "-m", "dragoman"], {}),
        ([*DRAGOMAN[:3], "this"], {}),
        ([*DRAGOMAN], {"env": environment(extra={"PYTHONDEVMODE": "1"})}),
        ([*DRAGOMAN], {"env": environment(extra={"LC_ALL": "C"})}),
        ([*DRAGOMAN], {"env": environment(), "start_new_session": True}),
    ],
    ids=["path", "module", "interpreter", "locale", "session"],
)
def test_where_a_fork_would_be_different_an_interpreter_is_started(command: list[str], options: dict[str, Any]) -> None:
    with start([*command, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options) as process:
        assert isinstance(process, subprocess.Popen)


def test_with_a_terminal_an_interpreter_is_started() -> None:
    ours, theirs = pty.openpty()
    with start([*DRAGOMAN, "--version"], stdout=theirs, env=environment()) as process:
        assert isinstance(process, subprocess.Popen)
    os.close(ours)
    os.close(theirs)


KILLED_WITH_SERVER = """
from subprocess import PIPE
from tests.support.forking import DRAGOMAN, start
from tests.support.operator import Operator
from tests.support.processes import HANDSHAKE, environment
from tests.support.served import TOOLS, path_of
server = start([*DRAGOMAN, "serve", TOOLS], stdin=PIPE, stdout=PIPE, env=environment())
server.stdin.write(HANDSHAKE)
server.stdin.flush()
server.stdout.readline()
print(server.pid, flush=True)
server.wait()
"""


def test_helper_and_servers_end_with_tests_that_are_killed() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running([sys.executable, "-c", KILLED_WITH_SERVER], **pipes) as tests:
        server = psutil.Process(int(tests.stdout.readline()))
        helper = server.parent()
        assert helper is not None
        assert helper.ppid() == tests.pid
        tests.kill()
        assert psutil.wait_procs([server, helper], PATIENCE)[1] == []


# What only an interpreter would show.


def test_a_server_on_stdio_starts_in_an_interpreter() -> None:
    with ServerProcess(TOOLS, extra=INTERPRETED) as server:
        server.handshake()
        assert not server.call("echo", message="hi").get("isError")
        assert server.leave() == 0


@pytest.mark.parametrize(
    "arguments",
    [["--transport", "streamable-http"], ["--transport", "sse"], ["--transport", "streamable-http", "--workers", "2"]],
    ids=["http", "sse", "workers"],
)
def test_a_server_over_http_starts_in_an_interpreter(arguments: list[str]) -> None:
    with HttpProcess(TOOLS, *arguments[2:], transport=arguments[1], extra=INTERPRETED) as server:
        assert server.get("/health").json["status"] == "ok"
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
def test_a_bridge_over_http_starts_in_an_interpreter(transport: str) -> None:
    arguments = ("--extensions-dir", EXTENSIONS, "--transport", transport, "--port", str(free_port()))
    with running([*BRIDGE, *arguments], stderr=subprocess.PIPE, env=environment(extra=INTERPRETED)) as process:
        log = Lines(process.stderr.fileno())
        log.start()
        log.wait_until(lambda lines: any(b"server started" in each for each in lines) or None)
        process.terminate()
        assert process.wait(PATIENCE) == 0


COMMANDS = (
    "agents list",
    "audit list --tenant acme",
    "jobs list",
    "keys list",
    "knowledge tree --tenant acme",
    "ledger verify",
    "messages dead",
    "slo",
    "tasks list",
    "registry",
)


def test_a_gateway_and_the_commands_beside_it_start_in_interpreters(tmp_path: Path) -> None:
    operator = Operator(tmp_path, path_of("operated_agents.py"))
    operator.extra |= INTERPRETED
    made = operator.run("keys", "generate", "--tenant", "acme", "--role", "owner", "--out", "key.json")
    assert made.returncode == 0, made.stderr
    with operator.serve("--gateway", "--explorer") as server:
        assert server.get("/health").json["status"] == "ok"
        for command in COMMANDS:
            done = operator.run(*command.split())
            assert done.returncode == 0, (command, done.stderr)

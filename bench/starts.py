"""What the start of a process costs, as a multiple of the CPU time of `python -c pass` in the same round."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

from bench.client import Server
from bench.process import BenchError, Command
from bench.rounds import Figures, Plan, Run, Way, cpu_of, ratio_of, spread_of, take_turns

SERVE, HELP, CALL, VERSION = "first answer of dragoman serve", "dragoman --help", "dragoman call", "dragoman --version"
_NOTHING = "python -c pass"
_DRAGOMAN = (sys.executable, "-m", "dragoman")
_TO_THE_END = {
    _NOTHING: (sys.executable, "-c", "pass"),
    HELP: (*_DRAGOMAN, "--help"),
    CALL: (*_DRAGOMAN, "call", "echo", "message=hi"),
    VERSION: (*_DRAGOMAN, "--version"),
}


def starts(plan: Plan) -> Figures:
    """CPU time until a server has answered `initialize`, and until a command has ended."""
    # What has never run is compiled in the first round, and only then.
    environment = {"DRAGOMAN_STORAGE__DATA_DIR": str(plan.folder / "data"), "PYTHONDONTWRITEBYTECODE": ""}
    commands = [Command(name, argv, environment) for name, argv in _TO_THE_END.items()]
    serve = Command(SERVE, (*_DRAGOMAN, "serve"), environment)
    ways = [Way(each.name, partial(to_the_end, each, plan)) for each in commands]
    rounds = take_turns(plan, [*ways, Way(SERVE, partial(to_the_first_answer, serve, plan))], "starts")
    return {
        "cpu_ms": {name: spread_of(run.cpu * 1e3 for run in runs.values()) for name, runs in rounds.items()},
        "ratios": {name: ratio_of(rounds[name], rounds[_NOTHING], cpu_of) for name in (SERVE, HELP, CALL, VERSION)},
    }


def to_the_first_answer(command: Command, plan: Plan) -> Run:
    """The start of a server over stdio."""
    with Server(command, plan.folder) as server:
        return server.first_answer


def to_the_end(command: Command, plan: Plan) -> Run:
    """A process from its start to its end."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=plan.folder,
        env=os.environ | command.environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise BenchError(f"{command.name} ended with {process.returncode}")
    return Run(1, time.perf_counter() - started, usage.ru_utime + usage.ru_stime, [])

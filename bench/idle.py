"""How often the processes of servers wake up while nothing is asked of them: `python -m bench idle`.

A wake-up is a voluntary context switch of any thread: something that slept has run, and sleeps again. Each server has
answered what makes it do all that it does, and has been left alone since. Of several processes the busiest counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.client import Server, Work
from bench.handing_in import Sender, keep_keys
from bench.http_load import Load
from bench.measure import SERVERS
from bench.over_http import HttpServer, Site
from bench.process import Command
from bench.rounds import Figures, Plan
from bench.tasks import TaskClient

TOOLS, MORE = 5, 10
"""Wake-ups a second that are wanted at most: of a process that serves tools, and of one with agents or the gateway."""
_SETTLE = 4.0
_TASKS, _CONNECTIONS = 32, 16
_SECONDS = 10.0
_SHORT_SECONDS = 2.0
_CAN_COUNT = sys.platform == "linux"
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Kind:
    """A kind of server, and how often each of its processes may wake up a second."""

    name: str
    target: str = str(SERVERS / "dragoman_tools.py")
    """What is served."""
    options: tuple[str, ...] = ()
    is_http: bool = True
    has_tasks: bool = False
    goal: float = TOOLS


_AGENTS, _TASK_TOOLS = str(_ROOT / "examples" / "agents.py"), str(SERVERS / "dragoman_tasks.py")
_WORKERS = ("--workers", "4")
KINDS = (
    Kind("stdio", is_http=False),
    Kind("HTTP"),
    Kind("HTTP, 4 workers", options=_WORKERS),
    Kind("HTTP, tasks", _TASK_TOOLS, has_tasks=True),
    Kind("HTTP, agents", _AGENTS, goal=MORE),
    Kind("HTTP, agents, 4 workers", _AGENTS, _WORKERS, goal=MORE),
    Kind("HTTP, gateway", options=("--gateway",), goal=MORE),
    Kind("HTTP, gateway, 4 workers", options=("--gateway", *_WORKERS), goal=MORE),
    Kind("HTTP, agents, gateway", _AGENTS, ("--gateway",), goal=MORE),
)


def idle(plan: Plan) -> Figures:
    """Wake-ups a second of the processes of each kind of server; nothing where they cannot be counted."""
    if not _CAN_COUNT:
        plan.say("idle: the context switches of other processes can be counted on Linux alone")
        return {}
    kinds: Figures = {}
    for number, kind in enumerate(KINDS):
        folder = plan.folder / f"idle-{number}"
        with _serving(kind, folder) as pid:
            time.sleep(_SETTLE)
            found = wakeups(pid, _SHORT_SECONDS if plan.is_short else _SECONDS)
        kinds[kind.name] = {"busiest": found[0], "together": sum(found), "processes": len(found), "goal": kind.goal}
        plan.say(f"idle, {kind.name}: " + ", ".join(f"{each:.1f}" for each in found))
    return {"kinds": kinds}


@contextmanager
def _serving(kind: Kind, folder: Path) -> Iterator[int]:
    """A server that has done once what it is there for; the id of its first process."""
    serve = (sys.executable, "-m", "dragoman", "serve", *((kind.target,) if kind.target else ()), *kind.options)
    settings = {"DRAGOMAN_STORAGE__DATA_DIR": str(folder / "data")}
    folder.mkdir()
    if not kind.is_http:
        with Server(Command(kind.name, serve, settings), folder) as server:
            server.run(Work(), 1)
            yield server.pid
        return
    if "--gateway" in kind.options:
        keep_keys(folder / "data", [Sender("tenant")])
    argv = (*serve, "--transport", "streamable-http", "--host", "127.0.0.1", "--port")
    with HttpServer(Site(kind.name, argv, settings, says_when=b"server started"), folder) as http:
        http.wait()
        if kind.has_tasks:
            http.under(_run_tasks, leaves_records=False)
        yield http.pid


def _run_tasks(port: int) -> Load:
    client = TaskClient(port)
    client.wait_for(client.create(_TASKS, _CONNECTIONS))
    return Load(1.0, 0.0, [])


def wakeups(pid: int, seconds: float) -> list[float]:
    """Of a process and those that it has started, each a second, the busiest first."""
    processes = [pid, *(child.pid for child in psutil.Process(pid).children())]
    before, began = [_switches(each) for each in processes], time.monotonic()
    time.sleep(seconds)
    after, took = [_switches(each) for each in processes], time.monotonic() - began
    return sorted(((more - less) / took for less, more in zip(before, after, strict=True)), reverse=True)


def _switches(pid: int) -> int:
    return sum(_voluntary(status) for status in Path(f"/proc/{pid}/task").glob("*/status"))


def _voluntary(status: Path) -> int:
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0  # The thread has ended.
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

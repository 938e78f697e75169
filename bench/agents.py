"""Agents with a durable ledger, beside what limits them: `python -m bench agents`.

Everything works in processes of its own, which take turns: requests to one agent and to 64, the statements of the same
requests in a bare loop, the disk alone, two processes that share a file, ledgers of few and of many rows, messages that
are not kept beside calls of tools, and DBOS, which needs an environment of its own (`make dbos`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BARE, ROOT, SELDOM, SERVERS
from bench.process import BenchError
from bench.rounds import Figures, Plan, Rounds, Run, Way, compared, rate_of, ratio_of, take_turns
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger_rows import ADDED_COLUMNS
from dragoman.agents.migrations import MIGRATIONS

DBOS_PYTHON = ROOT / f".venv-dbos{Path(sys.prefix).name.removeprefix('.venv')}" / "bin" / "python"
SENDERS, AGENTS = (1, 64, 256, 1_024), (64, 1)
MANY = 256
ROWS_AT_ONCE, SYNC, DBOS = "bare loop, many rows a statement", "fdatasync", "DBOS"
TWO_PROCESSES = "2 processes, 256 senders each"
MESSAGES, CALLS = "messages in memory", "tool calls"
_TOGETHER = 32
_LONGER = 2
"""Requests wait for the disk twice: a run takes longer than one of calls that wait for nothing."""
_LIMIT = 120.0


@dataclass(frozen=True)
class Rows:
    """How many messages there are in the ledgers that are compared."""

    few: int
    many: int


FULL, SHORT = Rows(10_000, 1_000_000), Rows(1_000, 20_000)


def path_of(agents: int) -> str:
    """The path of durable requests to so many agents."""
    return f"agents, {agents} agent{'s' * (agents > 1)}"


def of_senders(number: int) -> str:
    return f"{number:,} sender{'s' * (number > 1)}"


def of_rows(number: int) -> str:
    return f"{number:,} rows, {of_senders(MANY)}"


IN_MEMORY, IN_ROWS = "agents, in memory", "agents, rows in the ledger"


class Worker:
    """A process that works when it is told to; see `servers/at_work.py`."""

    def __init__(
        self,
        name: str,
        script: str,
        *arguments: object,
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        argv = [str(python), str(SERVERS / script), *map(str, arguments)]
        env = os.environ | (environment or {})
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        self._read()

    def begin(self, senders: int, agents: int, seconds: float) -> None:
        assert self._process.stdin is not None
        order = {"senders": senders, "agents": agents, "seconds": seconds}
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()

    def end(self) -> Run:
        told = json.loads(self._read())
        return Run(told["calls"], told["seconds"], told["cpu"], [])

    def close(self) -> None:
        """Let it end by itself; it fails if its counts do not add up."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise BenchError(f"{self.name} does not end") from None
        if code:
            raise BenchError(f"{self.name} has failed with {code}")

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} has ended too early")
        return line


def agents(plan: Plan) -> Figures:
    """Requests by the number of agents, by the number of rows, and messages in memory."""
    works: dict[str, Rounds] = {}
    with ExitStack() as stack:
        start = starting(stack, plan.folder)
        one, bare = durable(start, "durable"), start("statements", "ledger_loop.py", "statements")
        at_once, sync = start("rows", "ledger_loop.py", "rows"), start("fdatasync", "ledger_loop.py", "fdatasync")
        two = durable(start, "shared", "a"), durable(start, "shared", "b")
        for number in AGENTS:
            ways = [way(plan, of_senders(senders), (one,), senders, number) for senders in SENDERS]
            ways += [way(plan, BARE, (bare,), 1, number), way(plan, ROWS_AT_ONCE, (at_once,), 1, number)]
            if number > 1:
                ways += [way(plan, SYNC, (sync,), 1, number), way(plan, TWO_PROCESSES, two, MANY, number)]
                ways += _dbos(plan, start, number)
            works[path_of(number)] = take_turns(plan, ways, path_of(number))
        works[IN_MEMORY] = _in_memory(plan, start)
        rows = SHORT if plan.is_short else FULL
        works[IN_ROWS] = _among_rows(plan, start, rows)
    mine = {IN_MEMORY: MESSAGES, IN_ROWS: of_rows(rows.many)}
    return {
        "works": {path: compared(rounds, mine.get(path, of_senders(MANY))) for path, rounds in works.items()},
        "rate_ratios": _rate_ratios(works, rows),
    }


def _rate_ratios(works: dict[str, Rounds], rows: Rows) -> Figures:
    """Requests a second with many senders as a multiple of what they are held against."""
    one, many = works[path_of(1)], works[path_of(64)]
    ours, among, in_memory = of_senders(MANY), works[IN_ROWS], works[IN_MEMORY]
    return {
        "bare_64": ratio_of(many[ours], many[BARE], rate_of),
        "bare_1": ratio_of(one[ours], one[BARE], rate_of),
        **({"dbos": ratio_of(many[ours], many[DBOS], rate_of)} if DBOS in many else {}),
        "in_memory": ratio_of(in_memory[MESSAGES], in_memory[CALLS], rate_of),
        "rows": ratio_of(among[of_rows(rows.many)], among[of_rows(rows.few)], rate_of),
    }


Start = Callable[..., Worker]


def starting(stack: ExitStack, folder: Path) -> Start:
    """A function that starts a worker with a folder; it ends with the stack."""

    def start(
        name: str,
        script: str,
        *kind: str,
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
        more: Sequence[str] = (),
    ) -> Worker:
        place = folder / f"agents-{name}"
        place.mkdir(exist_ok=True)
        worker = Worker(f"agents, {name}", script, *kind, place, *more, python=python, environment=environment)
        stack.callback(worker.close)
        return worker

    return start


def durable(start: Start, folder: str, name: str = "a", environment: Mapping[str, str] | None = None) -> Worker:
    """A worker whose agents keep what they count; the names of the agents begin with `name`."""
    return start(folder, "counting_agents.py", "durable", environment=environment, more=(name,))


def way(plan: Plan, name: str, workers: Sequence[Worker], senders: int, among: int, every: int = 1) -> Way:
    """Requests of so many senders to so many agents of each worker, at the same time."""

    def run() -> Run:
        for worker in workers:
            worker.begin(senders, among, plan.seconds * _LONGER)
        runs = [worker.end() for worker in workers]
        return Run(sum(run.calls for run in runs), max(run.seconds for run in runs), sum(run.cpu for run in runs), [])

    run()  # It warms up.
    return Way(name, run, every)


def _dbos(plan: Plan, start: Start, among: int) -> list[Way]:
    if plan.is_short or not DBOS_PYTHON.exists():
        plan.say("agents: this is a short run, or DBOS is not here (`make dbos`), so it is left out")
        return []
    worker = start("dbos", "dbos_counting.py", python=DBOS_PYTHON)
    return [way(plan, DBOS, (worker,), MANY, among, SELDOM)]


def _in_memory(plan: Plan, start: Start) -> Rounds:
    script = "counting_agents.py"
    ways = [
        way(plan, name, (start(kind, script, kind, more=("a",)),), _TOGETHER, 1)
        for name, kind in ((MESSAGES, "memory"), (CALLS, "tools"))
    ]
    return take_turns(plan, ways, IN_MEMORY)


def _among_rows(plan: Plan, start: Start, rows: Rows) -> Rounds:
    ways = []
    for number in (rows.few, rows.many):
        folder = plan.folder / f"agents-{number}"
        folder.mkdir()
        plan.say(f"agents: filling a ledger with {number:,} rows")
        fill(folder, number)
        ways.append(way(plan, of_rows(number), (durable(start, str(number)),), MANY, 64))
    return take_turns(plan, ways, IN_ROWS)


def fill(folder: Path, rows: int) -> None:
    """Put requests and responses into a new ledger that were handled some time ago."""
    connection = SqliteDatabase(folder / FILE_NAME, MIGRATIONS).connect()
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO ledger_space (id, name) VALUES (1, 'bench')")
        places = ", ".join("?" * len(ADDED_COLUMNS.split(",")))
        connection.executemany(f"INSERT INTO ledger_entry ({ADDED_COLUMNS}) VALUES ({places})", _handled(rows))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()


def _handled(rows: int) -> Iterator[tuple[object, ...]]:
    for number in range(rows):
        request, is_answer = divmod(number, 2)
        name = f"{request:036}"
        client, agent = "client:0123456789abcdef0123456789abcdef", f"before-{request % 64}"
        pair = (agent, client) if is_answer else (client, agent)
        ids = (1, f"{number:036}", "RESPONSE" if is_answer else "REQUEST", *pair, client, name, request + 1)
        yield (*ids, "completed", 1e9, 4e9, 1e9, name, "", None, None, b'{"type":"request","payload":{"number":1}}')

"""Copies of two trees, and what they take turns at: the paths of `against.py`, and how each is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from bench import actions, agents, measure, over_http, tasks
from bench.client import Server, Work
from bench.http_load import Era
from bench.in_process import ONE_BY_ONE
from bench.measure import ARGUMENTS, DRAGOMAN, IN_FLIGHT, ROOT
from bench.process import BenchError, Command
from bench.rounds import Plan, Rounds, Run, Way, take_turns
from tests.support.gateway import Signer

CONNECTIONS = 16
_TURNS = 3  # Of each copy in one round.
_WARM_UP = 0.1
_LONGER = 4
"""Calls that are stored wait for the disk: a turn of them takes longer than one of calls that wait for nothing."""
_CREATES = 256
_SENDERS, _AGENTS = 256, 64

_DATA_DIR = "DRAGOMAN_STORAGE__DATA_DIR"


@dataclass(frozen=True)
class Copy:
    """One of the two copies of a tree. `source` is the folder that its packages are imported from."""

    name: str
    source: Path

    @property
    def environment(self) -> dict[str, str]:
        # A checkout has no bytecode yet: without leave to write it, each start would compile everything.
        return {"PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": ""}

    def check_source(self) -> None:
        """Fail if this would import another tree's package, as the comparison would be of that tree with itself."""
        found = self.run("-c", "import dragoman; print(dragoman.__file__)")
        if not Path(found or "nothing").is_relative_to(self.source):
            raise BenchError(f"{self.name} does not import dragoman from {self.source}: {found}")

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """What Python prints with this tree's packages."""
        env = os.environ | self.environment | (environment or {})
        done = subprocess.run((sys.executable, *arguments), cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"{self.name}, {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def of(self, command: Command, folder: Path) -> Command:
        """A command with this tree's packages, which keeps its data in a folder of its own."""
        environment = command.environment | self.environment | {_DATA_DIR: str(self.folder(folder))}
        return replace(command, name=self.name, environment=environment)

    def folder(self, folder: Path) -> Path:
        return folder / f"data of {self.name}"


CostOfEach: TypeAlias = dict[str, float]
"""Microseconds of CPU time per call, by the name of the copy."""


@dataclass(frozen=True)
class Group:
    """Paths whose calls are made of the same processes, and how to measure some of them."""

    titles: Mapping[str, str]
    measure: Callable[[Plan, Sequence[Copy], Sequence[str]], Iterable[tuple[str, CostOfEach]]]


def costs_of_a_round(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    """Each path, and what a call on it cost each copy. Processes and databases are new."""
    with TemporaryDirectory(dir=plan.folder) as folder:
        turns = replace(plan, rounds=_TURNS, say=lambda _: None, folder=Path(folder))
        for group in GROUPS:
            if wanted := [path for path in paths if path in group.titles]:
                yield from group.measure(turns, copies, wanted)


_WORKS = {
    "stdio": Work(in_flight=IN_FLIGHT),
    "stdio-100kb": Work("take", IN_FLIGHT, ARGUMENTS["100 KB"]),
    "sync": Work("sync", IN_FLIGHT),
    "keyed": Work(in_flight=IN_FLIGHT, is_keyed=True),
}
_ERAS = {"http-modern": Era.MODERN, "http-session": Era.HANDSHAKE}
_COMMAND = next(each for each in measure.COMMANDS if each.name == DRAGOMAN)


def _over_stdio(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    with measure.started(plan, [copy.of(_COMMAND, plan.folder) for copy in copies]) as servers:
        for path in paths:
            turns = _longer(plan) if _WORKS[path].is_keyed else plan
            yield path, _least(measure.call_in_turns(turns, servers, _WORKS[path], path))


def _over_http(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    site = next(each for each in over_http.SITES if each.name == DRAGOMAN)
    with over_http.started(plan, [copy.of(site, plan.folder) for copy in copies]) as servers:
        for path in paths:
            for server in servers:
                server.run(_ERAS[path], CONNECTIONS, _WARM_UP)
            ways = [Way(server.name, partial(server.run, _ERAS[path], CONNECTIONS, plan.seconds)) for server in servers]
            yield path, _least(take_turns(plan, ways, path))


def _in_process(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    for path in paths:
        yield path, {copy.name: _cost_in_process(plan, copy) for copy in copies}


def _cost_in_process(plan: Plan, copy: Copy) -> float:
    figures = measure.in_a_process(plan, "in_process", plan.rounds, plan.seconds, environment=copy.environment)
    cost: float = figures[ONE_BY_ONE]["cpu_us"]["least"]
    return cost


def _tasks(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    site, seconds = tasks.sites(plan, "tasks")[0], _longer(plan).seconds
    with over_http.started(plan, [copy.of(site, plan.folder) for copy in copies]) as servers:

        def way(server: over_http.HttpServer) -> Way:
            server.under(lambda port: tasks.TaskClient(port).complete(_WARM_UP, CONNECTIONS))
            return Way(
                server.name,
                lambda: server.under(lambda port: tasks.TaskClient(port).complete(seconds, CONNECTIONS)),
            )

        for path in paths:
            yield path, _least(take_turns(plan, [way(server) for server in servers], path))


def _agents(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    with ExitStack() as stack:
        start = agents.starting(stack, plan.folder)
        workers = [agents.durable(start, copy.name, environment=copy.environment) for copy in copies]
        for path in paths:
            ways = [
                agents.way(_longer(plan), copy.name, [worker], _SENDERS, _AGENTS)
                for copy, worker in zip(copies, workers, strict=True)
            ]
            yield path, _least(take_turns(plan, ways, path))


def _creates(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    signers = [_signer(copy, plan.folder) for copy in copies]
    with over_http.started(plan, [copy.of(actions.SITE, plan.folder) for copy in copies]) as servers:
        clients = [actions.ActionClient(signer) for signer in signers]
        for server, client in zip(servers, clients, strict=True):
            server.under(client.make_documents)
        for path in paths:
            ways = [
                actions.way(server, client, actions.CREATE, CONNECTIONS, _CREATES)
                for server, client in zip(servers, clients, strict=True)
            ]
            yield path, _least(take_turns(plan, ways, path))


def _signer(copy: Copy, folder: Path) -> Signer:
    """Signs with a key that the copy has made: what a database looks like is each tree's own affair."""
    signer, out = Signer(), folder / f"key of {copy.name}"
    roles = [word for role in signer.roles for word in ("--role", role)]
    command = ("-m", "dragoman", "keys", "generate", "--tenant", signer.tenant, *roles, "--out", str(out), "--json")
    signer.kid = json.loads(copy.run(*command, environment={_DATA_DIR: str(copy.folder(folder))}))["kid"]
    signer.private = json.loads(out.read_bytes())
    return signer


def _starts(plan: Plan, copies: Sequence[Copy], paths: Sequence[str]) -> Iterator[tuple[str, CostOfEach]]:
    def start(command: Command) -> Run:
        with Server(command, plan.folder) as server:
            return server.first_answer

    for path in paths:
        ways = [Way(copy.name, partial(start, copy.of(_COMMAND, plan.folder))) for copy in copies]
        yield path, _least(take_turns(plan, ways, path))


def _longer(plan: Plan) -> Plan:
    return replace(plan, seconds=plan.seconds * _LONGER)


def _least(rounds: Rounds) -> CostOfEach:
    """The least of the turns: other programs on the same machine only add to a cost."""
    return {name: min(run.cpu_per_call for run in runs.values()) * 1e6 for name, runs in rounds.items()}


GROUPS = (
    Group(
        {
            "stdio": f"stdio, {IN_FLIGHT} in flight",
            "stdio-100kb": f"stdio, {IN_FLIGHT} in flight, 100 KB of arguments",
            "sync": f"stdio, {IN_FLIGHT} in flight, a sync tool",
            "keyed": f"stdio, {IN_FLIGHT} in flight, each with a new idempotency key",
        },
        _over_stdio,
    ),
    Group(
        {
            "http-modern": f"HTTP, modern era, {CONNECTIONS} connections",
            "http-session": f"HTTP, handshake sessions, {CONNECTIONS} connections",
        },
        _over_http,
    ),
    Group({"in-process": "in process, runtime.call"}, _in_process),
    Group({"tasks": f"tasks from their creation to their end, HTTP, {CONNECTIONS} connections"}, _tasks),
    Group({"agents": f"requests of {_SENDERS} senders to {_AGENTS} agents, in process"}, _agents),
    Group({"creates": f"documents created through the gateway, {CONNECTIONS} connections"}, _creates),
    Group({"start": "the start of a process, to its answer to initialize"}, _starts),
)
PATHS = {path: title for group in GROUPS for path, title in group.titles.items()}
"""What each path measures."""

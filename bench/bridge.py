"""The apcore bridge beside the public package of the same name: `python -m bench bridge`.

The public one needs another version of the SDK, so it lives in an environment of its own (`make public`), and where
there is none only ours is measured. Both serve the same folder of 100 modules with ten properties each, and the same
client asks the same of both. What apcore's executor takes for a call by itself is the limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import measure, over_http
from bench.client import Work
from bench.http_load import Ask, Era, Expected
from bench.measure import DRAGOMAN, ROOT, SERVERS
from bench.process import BenchError, Command
from bench.rounds import Figures, Plan, compared, take_turns

PUBLIC = "apcore-mcp"
PUBLIC_PYTHON = ROOT / f".venv-public{Path(sys.prefix).name.removeprefix('.venv')}" / "bin" / "python"
"""Of the same version as this one: `.venv-3.13` has its `.venv-public-3.13`."""
MODULES = 100
IN_FLIGHT, CLIENTS = (1, 32), (10, 50)
_MOST_ROUNDS = 5  # The public one is so much slower that more would tell nothing.
_LIMIT = 300.0
_WARM_UP = 0.1
_MB = 1 << 20

_MODULE = '''
from pydantic import BaseModel, Field


class Order(BaseModel):
    customer: str = Field(description="Who orders")
    street: str
    city: str
    country: str = "NL"
    quantity: int = Field(ge=1, le=1000)
    price: float
    express: bool = False
    note: str | None = None
    labels: list[str] = []
    stock: dict[str, int] = {{}}


class Receipt(BaseModel):
    number: int
    total: float


class Counter{number}:
    """Takes orders."""

    description = "Takes orders at counter {number}."
    input_schema = Order
    output_schema = Receipt

    async def execute(self, inputs, context):
        return {{"number": {number}, "total": inputs["quantity"] * inputs["price"]}}
'''
ASK = Ask(
    "counter_7",
    {
        "customer": "Ada",
        "street": "Main Street 1",
        "city": "Utrecht",
        "country": "NL",
        "quantity": 3,
        "price": 1.5,
        "express": True,
        "note": None,
        "labels": ["fragile", "blue"],
        "stock": {"here": 4},
    },
)
_TOTAL = "4.5"
EXPECTED = Expected((f'{{"number": 7, "total": {_TOTAL}}}',))


@dataclass(frozen=True)
class Bridge:
    """A bridge, and the Python that it is installed for."""

    name: str
    python: tuple[str, ...]
    options: tuple[str, ...] = ()
    path: str = ASK.path
    records: bool = False
    eras: tuple[Era, ...] = tuple(Era)

    def serving(self, extensions: Path, *transport: str) -> tuple[str, ...]:
        return (
            *(*self.python, "-m", "apcore_mcp", "--extensions-dir", str(extensions), *self.options),
            *("--transport", *transport),
        )


def bridges() -> list[Bridge]:
    """Ours, and the public one if it is there. `-I` keeps it from finding ours, and a line per call from its log."""
    ours = Bridge(DRAGOMAN, (sys.executable,), records=True)
    public = Bridge(PUBLIC, (str(PUBLIC_PYTHON), "-I"), ("--log-level", "WARNING"), "/mcp/", eras=(Era.HANDSHAKE,))
    return [ours, *([public] if PUBLIC_PYTHON.exists() else [])]


def bridge(plan: Plan) -> Figures:
    """Building tools, calls without a connection, over stdio, and over HTTP."""
    plan = replace(plan, rounds=min(plan.rounds, _MOST_ROUNDS))
    extensions = write_modules(plan.folder / "extensions")
    found = bridges()
    if len(found) == 1:
        plan.say("bridge: the public apcore-mcp is not here (`make public`), so it is left out")
    figures = {each.name: alone(plan, each, extensions) for each in found}
    over_stdio, processes = _over_stdio(plan, found, extensions)
    return {
        "modules": MODULES,
        "alone": figures,
        "processes": processes,
        "works": over_stdio | _over_http(plan, found, extensions),
    }


def write_modules(folder: Path) -> Path:
    folder.mkdir()
    for number in range(MODULES):
        (folder / f"counter_{number}.py").write_text(_MODULE.format(number=number))
    return folder


def alone(plan: Plan, bridge: Bridge, extensions: Path) -> Figures:
    """What needs no connection, measured where the bridge is installed."""
    calls = 100 if plan.is_short else 300
    script = (str(SERVERS / "bridge_alone.py"), str(extensions), ASK.tool, json.dumps(ASK.arguments))
    argv = [*bridge.python, *script, _TOTAL, str(plan.rounds), str(calls)]
    try:
        done = subprocess.run(argv, cwd=plan.folder, stdout=subprocess.PIPE, timeout=_LIMIT, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{bridge.name}, alone: {error}") from None
    figures: Figures = json.loads(done.stdout)
    plan.say(
        f"bridge, {bridge.name}: tools in {figures['tools_ms']:.0f} ms, {figures['served_us']:.0f} µs in the executor, "
        f"{figures['routing_us']:.0f} µs to get there"
    )
    return figures


def _over_stdio(plan: Plan, found: Sequence[Bridge], extensions: Path) -> tuple[Figures, Figures]:
    """Calls by path, and what each process took to start and holds."""
    commands = [Command(each.name, each.serving(extensions, "stdio"), records=each.records) for each in found]
    works: Figures = {}
    with measure.started(plan, commands) as servers:
        for number in IN_FLIGHT:
            path = f"bridge, {measure.path_of(number)}"
            work = Work(ASK.tool, number, arguments=ASK.arguments)
            works[path] = compared(measure.call_in_turns(plan, servers, work, path), DRAGOMAN)
        facts = {server.name: {"start_s": server.first_answer.seconds, "mb": server.memory / _MB} for server in servers}
    return works, facts


def _over_http(plan: Plan, found: Sequence[Bridge], extensions: Path) -> Figures:
    sites = [
        over_http.Site(
            each.name,
            each.serving(extensions, "streamable-http", "--port"),
            records=each.records,
            ask=replace(ASK, path=each.path),
            expected=EXPECTED,
            eras=each.eras,
        )
        for each in found
    ]
    works: Figures = {}
    with over_http.started(plan, sites) as servers:
        for way in over_http.ways(servers, max(CLIENTS), _WARM_UP):
            way.run()
        for number in CLIENTS:
            path = f"bridge, {over_http.path_of(number)}"
            rounds = take_turns(plan, over_http.ways(servers, number, plan.seconds), path)
            works[path] = compared(rounds, over_http.in_session(DRAGOMAN))
    return works

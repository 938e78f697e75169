"""Dragoman beside a server in Go: `python -m bench go`.

The other server is MCP Toolbox, a public server that npm has as a binary for Linux on x86-64. Its tool `wait`, called
with no time to wait, is the nearest that it has to a tool that does nothing; Dragoman serves a tool of the same name,
argument and answer. Toolbox runs on one thread of Go's scheduler, as Dragoman runs on one core, and logs errors alone,
so it writes nothing about a call. Dragoman has its shipped protections and records.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import measure, over_http
from bench.client import Work
from bench.http_load import Ask, Era, Expected
from bench.measure import DRAGOMAN, SERVERS, SLOTS
from bench.over_http import Site
from bench.process import Command
from bench.rounds import Figures, Plan, compared, take_turns
from tests.support.node import NotInstalled, find_node, installed

TOOLBOX = "MCP Toolbox, Go"
PACKAGE, VERSION = "@toolbox-sdk/server-linux-x64", "1.12.0"
ASK = Ask("wait", {"duration": "0s"})
EXPECTED = Expected(('"Wait for 0s completed successfully."',))
_ONE_THREAD = {"GOMAXPROCS": "1"}
_WARM_UP = 0.3


def go(plan: Plan) -> Figures:
    """Over stdio, and over HTTP in the modern era; nothing in a short run, or where it cannot be installed."""
    node = None if plan.is_short else find_node()
    if node is None:
        plan.say("go: this is a short run, or there is no Node.js to install it with (`make node`), so it is left out")
        return {}
    try:
        toolbox = _toolbox(installed(node, PACKAGE, VERSION) / "bin" / "toolbox")
    except NotInstalled as error:
        plan.say(f"go: it is left out: {error}")
        return {}
    ours = (sys.executable, "-m", "dragoman", "serve", str(SERVERS / "dragoman_wait.py"))
    return {"works": _over_stdio(plan, ours, toolbox) | _over_http(plan, ours, toolbox)}


def _toolbox(binary: Path) -> tuple[str, ...]:
    config = str(SERVERS / "toolbox.yaml")
    return (str(binary), "--config", config, "--disable-reload", "--disable-version-check", "--log-level", "ERROR")


def _over_stdio(plan: Plan, ours: tuple[str, ...], toolbox: tuple[str, ...]) -> Figures:
    commands = [Command(DRAGOMAN, ours, SLOTS, records=True), Command(TOOLBOX, (*toolbox, "--stdio"), _ONE_THREAD)]
    works: Figures = {}
    with measure.started(plan, commands) as servers:
        for number in (measure.IN_FLIGHT, 1):
            path = measure.path_of(number, ASK.tool)
            work = Work(ASK.tool, number, arguments=ASK.arguments)
            works[path] = compared(measure.call_in_turns(plan, servers, work, path), DRAGOMAN)
    return works


def _over_http(plan: Plan, ours: tuple[str, ...], toolbox: tuple[str, ...]) -> Figures:
    transport = ("--transport", "streamable-http", "--port")
    sites = [
        Site(DRAGOMAN, (*ours, *transport), SLOTS, records=True, ask=ASK, expected=EXPECTED, eras=(Era.MODERN,)),
        Site(TOOLBOX, (*toolbox, "--port"), _ONE_THREAD, ask=ASK, expected=EXPECTED, eras=(Era.MODERN,)),
    ]
    works: Figures = {}
    with over_http.started(plan, sites) as servers:
        for way in over_http.ways(servers, max(over_http.CONNECTIONS), _WARM_UP):
            way.run()
        for number in over_http.CONNECTIONS:
            path = over_http.path_of(number, ASK.tool)
            works[path] = compared(take_turns(plan, over_http.ways(servers, number, plan.seconds), path), DRAGOMAN)
    return works

"""A bridge without a connection: what its tools take to build and to hold, and what a call takes in the executor and
through the router. Prints JSON: `bridge_alone.py DIRECTORY MODULE ARGUMENTS PART-OF-THE-ANSWER ROUNDS CALLS`.

Each bridge runs it in an environment of its own, so it needs nothing but apcore, a bridge and Python.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from apcore import Executor, Registry

from apcore_mcp.server.factory import MCPServerFactory
from apcore_mcp.server.router import ExecutionRouter

try:
    from apcore_mcp.server.quicken import quicken
except ImportError:  # Only ours has it.

    def quicken(executor: Executor) -> bool:
        return False


Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


def again(registry: Registry) -> Registry:
    """The same modules in a registry of which nobody has kept anything."""
    fresh = Registry()
    for module_id, module in registry.iter():
        fresh.register(module_id, module)
    return fresh


def build(registry: Registry, rounds: int) -> dict[str, float]:
    """Milliseconds for the definitions of all modules, and for their tools, by turns; megabytes that the tools take."""
    definitions: list[float] = []
    tools: list[float] = []
    for _ in range(rounds + 1):
        fresh = again(registry)
        started = time.process_time()
        made = [fresh.get_definition(module_id) for module_id in fresh.list()]
        between = time.process_time()
        built = MCPServerFactory().build_tools(fresh)
        tools.append((time.process_time() - between) * 1e3)
        definitions.append((between - started) * 1e3)
        assert len(made) == len(built) == registry.count
    fresh = again(registry)
    tracemalloc.start()
    kept = MCPServerFactory().build_tools(fresh)
    megabytes = tracemalloc.get_traced_memory()[0] / (1 << 20)
    tracemalloc.stop()
    assert len(kept) == registry.count
    return {  # The first round warms up.
        "definitions_ms": statistics.median(definitions[1:]),
        "tools_ms": statistics.median(tools[1:]),
        "beyond_ms": statistics.median(mine - bare for mine, bare in zip(tools[1:], definitions[1:], strict=True)),
        "tools_mb": megabytes,
    }


async def call(
    registry: Registry, module_id: str, arguments: dict[str, Any], expected: str, rounds: int, calls: int
) -> dict[str, float]:
    """Microseconds of a call by apcore's executor as it comes, by the one that the bridge serves, and routed to it."""
    bare, served = Executor(registry), Executor(registry)
    quicken(served)
    ways: dict[str, Call] = {
        "executor_us": bare.call_async,
        "served_us": served.call_async,
        "routed_us": ExecutionRouter(served).handle_call,
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, make in ways.items():
            started = time.process_time()
            for _ in range(calls):
                answer = await make(module_id, arguments)
            spent[way].append((time.process_time() - started) / calls * 1e6)
            assert expected in repr(answer), f"{way}: {answer!r}"
    warm = {way: each[1:] for way, each in spent.items()}
    routing = statistics.median(
        routed - executed for routed, executed in zip(warm["routed_us"], warm["served_us"], strict=True)
    )
    return {**{way: statistics.median(each) for way, each in warm.items()}, "routing_us": routing}


def main(directory: str, module_id: str, arguments: str, expected: str, rounds: str, calls: str) -> None:
    registry = Registry(extensions_dir=directory)
    registry.discover()
    figures = build(registry, int(rounds))
    figures |= asyncio.run(call(registry, module_id, json.loads(arguments), expected, int(rounds), int(calls)))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])

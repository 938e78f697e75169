"""Where the time of one call goes, in process: `python -m bench.profile`.

Each line is the best of many short runs. The stages are added one at a time from the inside out, so what a stage costs
is the difference that it makes; coroutines are stepped by hand, so that the event loop is a line of its own.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import uvloop

import dragoman
from bench.client import Work
from bench.servers.dragoman_tools import noop
from dragoman.access.callers import LOCAL
from dragoman.calls import pipeline
from dragoman.calls.call import Call, Completion, Outcome, Service
from dragoman.calls.origin import Origin
from dragoman.calls.run_handler import RunHandler
from dragoman.calls.stages.record_completion import RecordCompletion
from dragoman.calls.threads import Threads
from dragoman.edge.connection import Connection, TransportType
from dragoman.protocol.jsonrpc import encode_result
from dragoman.telemetry.log import Entry, EntryWriter, StructuredLogger

_CALLS = 256
_RUNS = 300
_IN_FLIGHT = 32
_HANDSHAKE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"profile","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)


class Cost(NamedTuple):
    """A part of a call and how many microseconds it takes. What is `within` is not in the sum."""

    name: str
    microseconds: float
    kind: Literal["step", "stage", "sum", "whole", "within"] = "step"


class NullWire:
    """Takes every line and sends none."""

    type: TransportType = "stdio"
    is_full = False

    def send(self, line: bytes, *, more: bool) -> None: ...

    def flush(self) -> None: ...


class Profile:
    """One runtime with a connection that has been shaken hands with, and the ways to run parts of a call."""

    def __init__(self, runtime: dragoman.Runtime, entries: list[Entry]) -> None:
        self._runtime = runtime
        self._entries = entries
        self._connection: Connection = runtime.connect(NullWire())
        self._connection.receive(_HANDSHAKE)
        lines = Work().lines(_CALLS)
        self._chunks = [b"".join(lines[start : start + _IN_FLIGHT]) for start in range(0, _CALLS, _IN_FLIGHT)]

    async def costs(self, runs: int) -> list[Cost]:
        """What is done in a call, from the first byte to the last."""
        stages = self._runtime.stages
        handler: Service = RunHandler(Threads(), self._runtime.logger).run
        parts = {"session": self._session, "call": self._create, "record": self._record, "answer": self._answer}
        for depth in range(len(stages), -1, -1):
            parts[f"depth {depth}"] = self._stepped(pipeline.compose(stages[depth:], handler))
        best = dict.fromkeys((*parts, "tasks", "whole", "log"), float("inf"))
        for _ in range(runs):
            costs = {name: part() for name, part in parts.items()}
            costs["tasks"] = await self._tasks()
            self._entries.clear()
            costs["whole"] = await self._whole()
            costs["log"] = self._write_log()
            self._entries.clear()
            best = {name: min(best[name], cost) for name, cost in costs.items()}
        found = [Cost("session: decode the line", best["session"]), Cost("call: ids and the object", best["call"])]
        found.append(Cost("task: create, schedule, finish", best["tasks"] - best["depth 0"]))
        for depth, stage in enumerate(stages):
            found.append(Cost(type(stage).__name__, best[f"depth {depth}"] - best[f"depth {depth + 1}"], "stage"))
        found.append(Cost("RunHandler and the handler", best[f"depth {len(stages)}"], "stage"))
        found.append(Cost("answer: render and encode", best["answer"]))
        return [
            *found,
            Cost("sum of the above", sum(cost.microseconds for cost in found), "sum"),
            Cost("measured as a whole: bytes in, lines out", best["whole"], "whole"),
            Cost("the record alone (part of RecordCompletion)", best["record"], "within"),
            Cost("the record as a line of the log (on its thread)", best["log"], "within"),
        ]

    def _calls(self) -> list[Call]:
        tool = self._runtime.catalogue.get("noop")
        ids, origin = self._runtime.ids, Origin(LOCAL, "stdio")
        return [
            Call(
                origin,
                "noop",
                {},
                ids.run_id(),
                ids.correlation_id(),
                _ignore,
                number,
                tool=tool,
                started=time.perf_counter(),
            )
            for number in range(_CALLS)
        ]

    def _session(self) -> float:
        receive = self._connection.session.receive
        started = time.perf_counter()
        for chunk in self._chunks:
            receive(chunk)
        return _microseconds(started)

    def _create(self) -> float:
        started = time.perf_counter()
        self._calls()
        return _microseconds(started)

    def _stepped(self, service: Service) -> Callable[[], float]:
        def run() -> float:
            calls = self._calls()
            started = time.perf_counter()
            for call in calls:
                coroutine: Any = service(call)
                try:
                    coroutine.send(None)
                except StopIteration:
                    while call.undo:
                        call.undo.pop()(call)
            return _microseconds(started)

        return run

    def _record(self) -> float:
        recorder = self._runtime.stages[0]
        assert isinstance(recorder, RecordCompletion)
        calls = self._calls()
        started = time.perf_counter()
        for call in calls:
            recorder.record(call, Completion.SUCCESS)
        return _microseconds(started)

    def _answer(self) -> float:
        outcome = Outcome(None)
        render = self._runtime.edge.services.dialect.render
        calls = self._calls()
        started = time.perf_counter()
        for number, call in enumerate(calls):
            encode_result(number, render(call, outcome))
        return _microseconds(started)

    async def _tasks(self) -> float:
        calls = self._calls()
        submit = self._runtime.runner.submit
        started = time.perf_counter()
        for start in range(0, _CALLS, _IN_FLIGHT):
            for call in calls[start : start + _IN_FLIGHT]:
                submit(call)
            await asyncio.sleep(0)  # They are scheduled before us, and none of them waits.
        cost = _microseconds(started)
        assert self._runtime.runner.under_way == 0
        return cost

    async def _whole(self) -> float:
        receive = self._connection.receive
        started = time.perf_counter()
        for chunk in self._chunks:
            receive(chunk)
            await asyncio.sleep(0)
        cost = _microseconds(started)
        assert self._connection.is_idle
        return cost

    def _write_log(self) -> float:
        write = EntryWriter(self._runtime.config.logging)
        assert len(self._entries) == _CALLS
        started = time.perf_counter()
        write(self._entries)
        return _microseconds(started)


def _ignore(call: Call, outcome: Outcome) -> None:
    """Nobody waits for the answer."""


def _microseconds(started: float) -> float:
    return (time.perf_counter() - started) / _CALLS * 1e6


async def measure(runs: int = _RUNS) -> list[Cost]:
    """The best of so many runs for each part of a call of a tool that does nothing."""
    entries: list[Entry] = []
    settings = {"resources": {"max_concurrent_executions": 64}}
    async with dragoman.open([noop], settings, logger=StructuredLogger(entries.append)) as runtime:
        profile = Profile(runtime, entries)
        gc.freeze()  # As `dragoman serve` does.
        return await profile.costs(runs)


async def main() -> None:
    costs = await measure()
    print(f"µs per call, best of {_RUNS} runs of {_CALLS}")
    for name, cost, kind in costs:
        print(f"{cost:7.2f}  {'  ' if kind == 'stage' else ''}{name}")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

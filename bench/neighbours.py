"""What one hostile tenant of a gateway costs the others: `python -m bench.neighbours`.

1. Each case has a server of its own, `dragoman serve --gateway` with its default settings and a data directory on disk.
   The hostile tenant is another process, which sends signed requests, or tokens to the page, at the default rates.
2. The others send one request after the other on one connection, a write and a read in turn. They are as many tenants
   as need be for the default rates to let them: `REQUESTS_OF_A_TENANT` each.
3. Rounds without the hostile load and rounds with it take turns. One without begins when the server is at rest.
4. With the load, the 99th percentile of the others' writes, and of their reads, is to be at most `TIMES` what it is
   without, or `LEAST_MS` if that is more, and none of their requests may be refused. All cases at once have no target.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from bench.handing_in import Sender, keep_keys, site_of, with_storage
from bench.hostile import HOSTILE, LOADS, MODEL, TOKENS, Client, Prepared, Size, attack, grow
from bench.http_load import Answer, Script, drive
from bench.over_http import HttpServer, started
from bench.process import BenchError
from bench.rounds import plan_for
from tests.support.gateway import create_args
from tests.support.model_server import ModelServer, model_on_a_thread

TIMES, LEAST_MS = 3.0, 50.0
ALL = "all at once"
CASES = {**{name: (name,) for name in LOADS}, ALL: tuple(LOADS)}
REQUESTS_OF_A_TENANT = 500
_WRITE, _READ = "write", "read"
_REST_LIMIT = 300.0
_AT_REST = 8.0
"""Percent of a core that a server takes at most while nothing is asked of it, but for the beat of its jobs."""
_MB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """So many requests of each kind, with and without the hostile load, in so many rounds."""

    requests: int = 1_000
    rounds: int = 4
    size: Size = Size()  # noqa: RUF009 - it is frozen.


@dataclass
class Seen:
    """What the others have seen: seconds, by kind of request, and what was not answered as it should be."""

    times: dict[str, list[float]] = field(default_factory=lambda: {_WRITE: [], _READ: []})
    refused: Counter[str] = field(default_factory=Counter)

    def ms(self, kind: str, percentile: int) -> float:
        return statistics.quantiles(self.times[kind], n=100, method="inclusive")[percentile - 1] * 1e3


@dataclass
class Result:
    """What came of a case. Memory and disk are in MB, before the first round and after the last."""

    case: str
    load_average: float
    alone: Seen = field(default_factory=Seen)
    beside: Seen = field(default_factory=Seen)
    hostile: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)

    def is_reached(self) -> bool:
        """Whether the targets are; a case without any reaches them."""
        is_near = all(self.beside.ms(each, 99) <= most_ms(self.alone.ms(each, 99)) for each in (_WRITE, _READ))
        return self.case == ALL or (is_near and not self.beside.refused)


def most_ms(alone: float) -> float:
    """The highest 99th percentile beside the hostile load, by that without."""
    return max(TIMES * alone, LEAST_MS)


class Others:
    """Tenants that write and read small documents."""

    def __init__(self, requests: int) -> None:
        self.senders = [Sender(f"other-{number}") for number in range(math.ceil(requests / REQUESTS_OF_A_TENANT))]
        self._documents: dict[str, list[str]] = {each.signer.tenant: [] for each in self.senders}
        self._turns = count()

    def round(self, port: int, number: int, seen: Seen) -> None:
        """So many writes, and as many reads."""
        clients = [Client(each.signer, port) for each in self.senders]
        answers: list[bytes] = []

        def script() -> Script:
            for turn in [next(self._turns) for _ in range(number)]:
                client = clients[turn % len(clients)]
                for kind, make in ((_WRITE, self._write), (_READ, self._read)):
                    request = make(client, turn // len(clients))
                    began = time.perf_counter()
                    answers.append((yield request))
                    seen.times[kind].append(time.perf_counter() - began)

        drive(port, [script()])
        for answer in map(Answer.read, answers):
            if answer.status != 200 or b'"partial":true' in answer.body:
                seen.refused[f"{answer.status} {answer.body[:200]!r}"] += 1

    def _write(self, client: Client, turn: int) -> bytes:
        """A new document, or another text and title of the last one."""
        mine = self._documents[client.signer.tenant]
        content = {"mime_type": "text/plain", "body": f"Owls hunt at night, number {turn}. " * 20}
        if turn % 2 == 0:
            mine.append(str(uuid.uuid4()))
            return client.act("create_document", create_args(mine[-1], content=content))
        patch = {"content": content, "metadata": {"title": f"Owls {turn}"}}
        args = {"document_id": mine[-1], "patch": patch, "update_mask": ["content.body", "metadata.title"]}
        return client.act("update_document", args)

    def _read(self, client: Client, turn: int) -> bytes:
        """A query, or the page of the last document."""
        if turn % 2 == 0:
            return client.act("query_knowledge", {"query": "When do owls hunt?"})
        return client.get(f"/knowledge/documents/{client.signer.tenant}/{self._documents[client.signer.tenant][-1]}")


def measured(case: str, plan: Plan, say: Callable[[str], None]) -> Result:
    """The rounds of a case."""
    result = Result(case, os.getloadavg()[0])
    others, hostile = Others(4 * plan.requests), [Sender(HOSTILE).signer for _ in range(2)]
    hostile[1].roles = ("viewer",)
    loads = CASES[case]
    with tempfile.TemporaryDirectory(prefix="dragoman-neighbours-") as folder, _model(loads) as model:
        data = Path(folder) / "data"
        keep_keys(data, [*others.senders, *map(_sender_of, hostile)])
        prepared = Prepared(loads, plan.size, plan.rounds)
        with_storage(data, partial(grow, prepared))
        settings = {"DRAGOMAN_AUTH__CALLERS": json.dumps(TOKENS)}
        settings |= {
            f"DRAGOMAN_KNOWLEDGE__{key.upper()}": value for key, value in (model.settings if model else {}).items()
        }
        server_plan = replace(plan_for(short=True), folder=Path(folder))
        with started(server_plan, [site_of("gateway", data, settings, records=False)]) as (server,):
            port = server.port
            others.round(port, 2 * len(others.senders), Seen())
            for turn in range(plan.rounds):
                _come_to_rest(server)
                if turn == 0:
                    _weigh(result, server, data)
                others.round(port, plan.requests // plan.rounds, result.alone)
                with _hostile(port, hostile, prepared, turn, result.hostile):
                    others.round(port, plan.requests // plan.rounds, result.beside)
                say(f"{case}, round {turn + 1} of {plan.rounds}")
            _come_to_rest(server)
            _weigh(result, server, data)
    return result


def _sender_of(signer: Any) -> Sender:
    sender = Sender(signer.tenant)
    sender.signer = signer
    return sender


@contextmanager
def _model(loads: Sequence[str]) -> Iterator[ModelServer | None]:
    """A model that does not answer the hostile tenant, if one of the loads needs it."""
    with model_on_a_thread(held=MODEL) if MODEL in loads else nullcontext() as model:
        if model is not None:
            model.gate.clear()
        yield model


@contextmanager
def _hostile(port: int, signers: Sequence[Any], prepared: Prepared, turn: int, seen: Counter[str]) -> Iterator[None]:
    """The load, from before the block to its end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=attack, args=(there, port, signers, prepared, turn))
    process.start()
    there.close()
    try:
        here.recv()
        yield
        here.send(None)
        seen.update(here.recv())
    except EOFError:
        raise BenchError("the hostile clients have ended before their time") from None
    finally:
        process.terminate()
        process.join()


def _come_to_rest(server: HttpServer) -> None:
    """Wait until a server does nothing any more."""
    process, deadline = psutil.Process(server.pid), time.monotonic() + _REST_LIMIT
    while process.cpu_percent(0.5) > _AT_REST:
        if time.monotonic() > deadline:
            raise BenchError(f"the server works on for {_REST_LIMIT:.0f} s")


def _weigh(result: Result, server: HttpServer, data: Path) -> None:
    result.memory.append(server.memory / _MB)
    result.disk.append(sum(each.stat().st_size for each in data.rglob("*") if each.is_file()) / _MB)


def text(results: Sequence[Result]) -> str:
    """A table of all of them, and what was refused."""
    lines = [
        "| Case | Writes alone, p50 / p99 | beside | Reads alone, p50 / p99 | beside | Memory | Disk | Load | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        figures = [
            f"{seen.ms(kind, 50):.1f} / {seen.ms(kind, 99):.1f} ms"
            for kind in (_WRITE, _READ)
            for seen in (each.alone, each.beside)
        ]
        sizes = [f"{before:.0f} → {after:.0f} MB" for before, after in (each.memory, each.disk)]
        verdict = "–" if each.case == ALL else "reached" if each.is_reached() else "MISSED"
        lines.append(f"| {' | '.join([each.case, *figures, *sizes, f'{each.load_average:.1f}', verdict])} |")
    for each in results:
        lines.append(f"{each.case}: answers to the hostile tenant: {dict(each.hostile)}")
        for seen in (each.alone, each.beside):
            lines += [f"{each.case}: {number} times {what}" for what, number in seen.refused.most_common(5)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} [all of them]")
    parser.add_argument("--requests", type=int, default=Plan.requests, help="of each kind [%(default)s]")
    parser.add_argument("--rounds", type=int, default=Plan.rounds, help="[%(default)s]")
    parser.add_argument("--tries", type=int, default=1, help="how often a case that misses is measured [%(default)s]")
    parser.add_argument("--short", action="store_true", help="small documents, to see that it still runs")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    size = Size.small() if options.short else Size()
    plan = Plan(options.requests, options.rounds, size)
    results, is_reached = list[Result](), True

    def say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    for case in options.cases or CASES:
        for _ in range(options.tries):
            results.append(measured(case, plan, say))
            say(text(results[-1:]))
            if results[-1].is_reached():
                break
        is_reached &= results[-1].is_reached()
    print(text(results))
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())

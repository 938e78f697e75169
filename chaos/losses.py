"""Rounds in which a file of the database is moved away, replaced or deleted under two servers that are asked.

1. No call that is sent after the loss is acknowledged.
2. Each server says so: `/ready` is 503 with the reason, and its log has one error.
3. When the file is back and a server was started again, each call that was acknowledged has the same answer as before.
   What was in a file that is deleted, or written over with an older copy, is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.http_served import HttpServed
from chaos.run_tasks import TASKS_FILE
from chaos.servers import Gone, Place
from chaos.tasks import final_answer
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from tests.support.http_wire import request

TROUBLE = "the storage is in trouble until the server is restarted"
_LANES = 8
_PATIENCE = 20.0
_SETTINGS = {"server.shutdown_timeout_ms": 1000}
"""Calls whose result cannot be stored end with the server."""


def _move(file: Path) -> None:
    file.rename(file.with_name("away"))


def _replace(file: Path) -> None:
    shutil.copyfile(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


LOSSES: tuple[tuple[str, str, Callable[[Path], None]], ...] = tuple(
    (f"{name} {file}", file, lose)
    for file in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm")
    for name, lose in (("move", _move), ("replace", _replace), ("delete", Path.unlink))
)


@dataclass
class Call:
    """A call with a key, and what it was acknowledged with."""

    key: str
    token: str | None = None


@dataclass
class LossReport:
    """The result of all rounds."""

    losses: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    acknowledged: int = 0
    problems: list[str] = field(default_factory=list)


async def run_losses(count: int, folder: Path, seed: int) -> LossReport:
    """So many rounds, each on a data directory of its own; those of rounds that failed stay."""
    chance, report = random.Random(seed), LossReport()
    for number in range(count):
        name, file, lose = LOSSES[number % len(LOSSES)]
        place = Place(folder / f"{number}", _SETTINGS, TASKS_FILE)
        place.folder.mkdir(parents=True)
        problems = await _round(place, place.data / file, lose, chance, report)
        report.losses[name] += 1
        report.problems += [f"{name}: {each}" for each in problems]
        if not problems:
            shutil.rmtree(place.folder)
    return report


async def _round(
    place: Place, file: Path, lose: Callable[[Path], None], chance: random.Random, report: LossReport
) -> list[str]:
    servers = [await HttpServed.start(place) for _ in range(2)]
    calls: list[Call] = []

    async def ask(server: HttpServed) -> Call:
        call = Call(f"key-{chance.getrandbits(64):016x}")
        calls.append(call)
        call.token = await _answer(server, call.key)
        return call

    async def lane(server: HttpServed) -> None:
        while True:
            await ask(server)

    for server in servers:  # Until each has opened the database: what opens a file later has not lost it.
        async with asyncio.timeout(_PATIENCE):
            while (await ask(server)).token is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    lanes = [asyncio.create_task(lane(servers[number % 2])) for number in range(_LANES)]
    await asyncio.sleep(0.2 + chance.random() * 0.3)
    lose(file)
    async with asyncio.timeout(_PATIENCE):
        late = await asyncio.gather(*(ask(servers[number % 2]) for number in range(_LANES)))
    for each in lanes:  # Calls that ran are stored again and again, which nobody waits for.
        each.cancel()
    await asyncio.gather(*lanes, return_exceptions=True)
    problems = [f"{call.key} was acknowledged after the loss" for call in late if call.token is not None]
    for server in servers:
        problems += await _silence(server)
        await server.end(signal.SIGTERM)
        if server.logged()[TROUBLE] != 1:
            problems.append(f"the trouble is {server.logged()[TROUBLE]} times in {server.log.name}")
    acknowledged = [call for call in calls if call.token is not None]
    report.calls += len(calls)
    report.acknowledged += len(acknowledged)
    away = file.with_name("away")
    if away.exists():
        away.replace(file)
        problems += await _lost(place, acknowledged)
    return problems


async def _answer(server: HttpServed, key: str) -> str | None:
    """What a call with a key is acknowledged with; None if it is refused."""
    try:
        params = {"name": "once", "arguments": {"item": key}}
        token = final_answer(await server.ask("tools/call", params, {IDEMPOTENCY_KEY: key}))
    except Gone:
        return None
    return token if isinstance(token, str) else None


async def _silence(server: HttpServed) -> list[str]:
    """What a server that has lost its file ought to say, and does not."""
    asked = request(None, {"connection": "close"}, method="GET", path="/ready")
    told = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while b'"storage":"replaced"' not in told:
                told = (await server.exchange(asked)).message
                await asyncio.sleep(0.05)
            return []
    return [f"/ready of {server.log.name} says {told.decode()}"]


async def _lost(place: Place, acknowledged: list[Call]) -> list[str]:
    """Ask a new server for everything that was acknowledged."""
    with contextlib.closing(sqlite3.connect(place.data / FILE_NAME)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    problems = [] if found == "ok" else [f"the database that is back: {found}"]
    server = await HttpServed.start(place)
    async with asyncio.timeout(_PATIENCE):
        while await _answer(server, "the first answer") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for call in acknowledged:
        token = await _answer(server, call.key)
        if token != call.token:
            problems.append(f"{call.key} was {call.token}, and is {token}")
    await server.end(signal.SIGTERM)
    return problems

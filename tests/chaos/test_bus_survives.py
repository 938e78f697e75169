"""Processes that publish or handle messages are killed, and no message is lost or handled again once it is settled."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.agents.migrations import MIGRATIONS as AGENTS
from dragoman.clock import SystemClock
from dragoman.messaging.bus import Bus
from dragoman.messaging.migrations import MIGRATIONS
from dragoman.storage.settings import StorageConfig
from tests.support.bus_messages import publish, subscribed, taken_ids
from tests.support.processes import running

pytestmark = pytest.mark.slow

STORAGE = """
import asyncio, itertools, sys
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.agents.migrations import MIGRATIONS as AGENTS
from dragoman.clock import SystemClock
from dragoman.messaging.bus import Bus, BusMessage
from dragoman.messaging.migrations import MIGRATIONS
from dragoman.storage.settings import StorageConfig

bus = SqliteStorage(StorageConfig(data_dir=sys.argv[1]), SystemClock(), (*AGENTS, *MIGRATIONS)).port(Bus)
"""
PUBLISHES_UNTIL_KILLED = f"""{STORAGE}
async def main():
    for number in itertools.count():
        await bus.publish(BusMessage(subject=f"jobs.{{number % 3}}", id=f"m{{number}}", body=b"{{}}"))
        print("published", f"m{{number}}", flush=True)

asyncio.run(main())
"""
HANDLES_UNTIL_KILLED = f"""{STORAGE}
async def work(subscription, takes):
    for _ in takes:
        delivery = await subscription.take()
        print("taken", delivery.message.id, flush=True)
        assert await bus.ack(delivery)
        print("settled", delivery.message.id, flush=True)
    await asyncio.Event().wait()

async def main():
    subscription = bus.subscribe("jobs.*", most_per_subject=2, ack_seconds=3600.0)
    takes = iter(range(int(sys.argv[2])))
    await asyncio.gather(*(work(subscription, takes) for _ in range(4)))

asyncio.run(main())
"""


def run_until(script: str, folder: Path, lines: int) -> list[list[str]]:
    """What a process said until it was killed, after so many lines or a few more; it takes so many messages at most."""
    argv = [sys.executable, "-c", script, str(folder), str(lines)]
    with running(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.read().splitlines(keepends=True)
    assert process.returncode == -signal.SIGKILL
    return [line.decode().split() for line in said if line.endswith(b"\n")]


def test_what_a_killed_process_has_published_is_delivered_and_what_it_held_is_delivered_again(tmp_path: Path) -> None:
    published = [id for _, id in run_until(PUBLISHES_UNTIL_KILLED, tmp_path, 120)]
    settled: Counter[str] = Counter()
    unsaid = set[str]()
    for lines in (1, 2, 7, 30, 45):
        said = run_until(HANDLES_UNTIL_KILLED, tmp_path, lines)
        taken = {id for what, id in said if what == "taken"}
        assert taken
        assert not taken & settled.keys()
        settled.update(id for what, id in said if what == "settled")
        unsaid |= taken - settled.keys()
    assert set(settled.values()) == {1}
    left = asyncio.run(everything_left(tmp_path))
    assert not set(left) & settled.keys()
    missing = set(published) - {*left, *settled}
    assert missing <= unsaid  # Settled just before the process was killed.
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        done = {id for (id,) in connection.execute("SELECT id FROM bus_message WHERE state = 'done'")}
    assert missing | settled.keys() <= done <= unsaid | settled.keys()


async def everything_left(folder: Path) -> list[str]:
    """The messages that are not settled, up to a last one on each subject. Those of the killed processes wait again."""
    storage = SqliteStorage(StorageConfig(data_dir=str(folder)), SystemClock(), (*AGENTS, *MIGRATIONS))
    bus, left = storage.port(Bus), list[str]()
    for subject in ("jobs.0", "jobs.1", "jobs.2"):
        await publish(bus, "last", subject=subject)
        subscription = subscribed(bus, subject, most=10_000)
        while (id := (await taken_ids(subscription))[0]) != "last":
            left.append(id)
    await storage.close()
    return left

"""Publishes messages on the bus of a data directory, beside the servers: `python publisher.py FOLDER`.

Each line of its input is a message: JSON with `subject`, `id`, `body` and `headers`. Each line of its output is the id
of a message that is published, after a `+`, or that could not be published, after a `-`.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.agents.migrations import MIGRATIONS as LEDGER_MIGRATIONS
from dragoman.clock import SystemClock
from dragoman.errors import StorageError
from dragoman.messaging.bus import Bus, BusMessage
from dragoman.messaging.migrations import MIGRATIONS
from dragoman.storage.settings import StorageConfig

_decode = msgspec.json.Decoder(BusMessage).decode


async def main(folder: str) -> None:
    storage = SqliteStorage(StorageConfig(data_dir=folder), SystemClock(), (*LEDGER_MIGRATIONS, *MIGRATIONS))
    bus = storage.port(Bus)
    try:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            message = _decode(line)
            try:
                await bus.publish(message)
                sign = "+"
            except StorageError:
                sign = "-"
            print(f"{sign}{message.id}", flush=True)
    finally:
        await storage.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

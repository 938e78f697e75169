"""Rounds of servers with actions, which are killed between a request and its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.action_checks import ActionsFound, problems_with_actions
from chaos.action_points import ACTION_POINTS
from chaos.actions import PUBLIC_URL, ActionLoad, Asked, Late, Used
from chaos.http_served import HttpServed
from chaos.rounds import LANES, Round
from chaos.run_tasks import TASKS_FILE
from chaos.servers import Place, Served
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.clock import SystemClock
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE_MIGRATIONS
from dragoman.knowledge.port import Audit, AuditEvent
from dragoman.storage.migrations import migrations_for
from dragoman.storage.settings import StorageConfig
from tests.support.gateway import Signer
from tests.support.passage_rows import problems_with_passages

if TYPE_CHECKING:
    import sqlite3

SETTINGS = {
    "gateway.enabled": "true",
    "gateway.public_url": PUBLIC_URL,
    "gateway.requests_per_minute_per_tenant": 1_000_000,
    "gateway.requests_per_minute_per_principal": 1_000_000,
    "knowledge.max_concurrent": 64,
}


class ActionRound(Round):
    """One server at a time, and in the next round two."""

    points = ACTION_POINTS
    sizes = (1, 2)
    _load: ActionLoad

    @classmethod
    def place_in(cls, folder: Path) -> Place:
        return Place(folder, SETTINGS, TASKS_FILE)

    def make_load(self) -> ActionLoad:
        return ActionLoad(self._live, self._chance)

    async def serve(self, *arguments: str) -> Served:
        if not self._all:
            await keep_key(self._place, self._load.signer)
        return await HttpServed.start(self._place, *arguments)

    async def settle(self, last: Served) -> None:
        """Every request once more, and every nonce: the first has the result that it had, the second is refused."""
        load = self._load

        async def again(asked: Sequence[Asked], used: Sequence[Used]) -> None:
            for each in asked:
                if not await load.ask_once(each):
                    load.problems.append(f"{each.action} {each.key} has no result any more")
            for request in used:
                await load.replay(request)

        used = list(load.used)
        await asyncio.gather(*(again(load.asked[lane::LANES], used[lane::LANES]) for lane in range(LANES)))
        if used and not load.replays:
            load.problems.append("no request was replayed")

    async def check(self) -> None:
        report, load = self._report, self._load
        found = await actions_found_in(self._place, load.asked, load.late)
        report.requests += len(load.asked)
        report.messages += len(found.events)
        report.statuses.update(Counter(event.event for event in found.events))
        report.problems += problems_with_actions(found)


@contextlib.asynccontextmanager
async def _opened(place: Place) -> AsyncIterator[SqliteDatabase]:
    migrations = migrations_for("sqlite", (*KNOWLEDGE_MIGRATIONS, *GATEWAY_MIGRATIONS))
    database = SqliteDatabase(place.data / FILE_NAME, migrations)
    try:
        yield database
    finally:
        await database.close()


async def keep_key(place: Place, signer: Signer) -> None:
    """Give the servers at a place the public half of a key."""
    place.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with _opened(place) as database:
        await SqliteSigningKeys(database).add(signer.key())


async def actions_found_in(place: Place, asked: Sequence[Asked], late: Sequence[Late]) -> ActionsFound:
    """What clients were told, beside the content of the database."""

    def read(
        connection: sqlite3.Connection,
    ) -> tuple[dict[str, int], dict[str, list[int]], dict[str, int], list[str]]:
        documents = dict(connection.execute("SELECT id, revision FROM document"))
        revisions: dict[str, list[int]] = defaultdict(list)
        for id, revision in connection.execute("SELECT id, revision FROM document_revision"):
            revisions[id].append(revision)
        seqs = dict(connection.execute("SELECT context_id, seq FROM document_stream"))
        return documents, revisions, seqs, problems_with_passages(connection)

    async with _opened(place) as database:
        return ActionsFound(asked, late, await events_at(place), *await database.read(read))


async def events_at(place: Place) -> list[AuditEvent]:
    """The whole audit of the servers at a place."""
    storage = SqliteStorage(StorageConfig(data_dir=str(place.data)), SystemClock(), KNOWLEDGE_MIGRATIONS)
    try:
        return await storage.port(Audit).page(1 << 30)
    finally:
        await storage.close()

"""Rounds of servers with requests that are carried out later, which are killed between acceptance and reply."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.deliveries import NEVER_ACCEPTED, DeliveryLoad, Handed
from chaos.delivery_checks import DeliveriesFound, Reply, problems_with_deliveries
from chaos.delivery_points import DELIVERY_POINTS
from chaos.http_served import HttpServed
from chaos.rounds import LANES, Round
from chaos.run_actions import SETTINGS as ACTION_SETTINGS
from chaos.run_actions import events_at, keep_key
from chaos.run_tasks import TASKS_FILE
from chaos.servers import LEASE_MS, SPACE, Place, Served
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.agents.migrations import MIGRATIONS as LEDGER_MIGRATIONS
from dragoman.gateway.delivery_migrations import MIGRATIONS as DELIVERY_MIGRATIONS
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE_MIGRATIONS
from dragoman.messaging.migrations import MIGRATIONS as BUS_MIGRATIONS
from dragoman.storage.migrations import migrations_for

if TYPE_CHECKING:
    import sqlite3

ALL_MIGRATIONS = (
    *LEDGER_MIGRATIONS,
    *KNOWLEDGE_MIGRATIONS,
    *GATEWAY_MIGRATIONS,
    *BUS_MIGRATIONS,
    *DELIVERY_MIGRATIONS,
)
SETTINGS = {
    **ACTION_SETTINGS,
    "gateway.max_in_flight_per_tenant": 32,
    "gateway.max_attempts": 1000,  # Processes end with messages again and again, and it is none of the messages' doing.
    "gateway.retry_delay_ms": 20,
    "gateway.ack_deadline_ms": LEASE_MS,
    "gateway.max_retry_delay_ms": 100,
}
_QUIET_LIMIT = 60.0
_LEFT = (
    "SELECT subject || ' ' || state || ' ' || number FROM bus_message "
    "WHERE state NOT IN ('done', 'dead') AND subject NOT LIKE 'dragoman.replies.%'"
)
_REPLIES = (
    "SELECT m.id, b.body FROM bus_message m JOIN bus_body b ON b.number = m.number "
    "WHERE m.subject LIKE 'dragoman.replies.%' ORDER BY m.number"
)
_DEAD = "SELECT m.subject, b.body FROM bus_message m JOIN bus_body b ON b.number = m.number WHERE m.state = 'dead'"


class DeliveryRound(Round):
    """Two servers at a time."""

    points = DELIVERY_POINTS
    sizes = (2,)
    _load: DeliveryLoad

    @classmethod
    def place_in(cls, folder: Path) -> Place:
        return Place(folder, SETTINGS, TASKS_FILE)

    def make_load(self) -> DeliveryLoad:
        return DeliveryLoad(self._live, self._chance, self._place)

    async def serve(self, *arguments: str) -> Served:
        if not self._all:
            for signer in (self._load.signer, self._load.reader):
                await keep_key(self._place, signer)
        return await HttpServed.start(self._place, *arguments)

    async def settle(self, last: Served) -> None:
        """Hand every request in once more, and ask for its answer: it must be the one that it had."""
        await until_quiet(self._place)
        load = self._load

        async def again(handed: Sequence[Handed]) -> None:
            for each in handed:
                if not await load.hand_in_once(each):
                    load.problems.append(f"{each.name} cannot be handed in again")
                if not await load.look_once(each):
                    load.problems.append(f"{each.name} has no answer any more")

        accepted = [each for each in load.handed if each.kind not in NEVER_ACCEPTED]
        await asyncio.gather(*(again(accepted[lane::LANES]) for lane in range(LANES)))
        await until_quiet(self._place)

    async def check(self) -> None:
        report, load = self._report, self._load
        found = await deliveries_found_in(self._place, load.handed)
        report.requests += len(load.handed)
        report.messages += len(found.kept)
        report.statuses.update(Counter(handed.kind for handed in load.handed))
        report.takeovers += found.redelivered
        report.problems += problems_with_deliveries(found)


@contextlib.asynccontextmanager
async def _opened(place: Place) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(place.data / FILE_NAME, migrations_for("sqlite", ALL_MIGRATIONS))
    try:
        yield database
    finally:
        await database.close()


def _left(connection: sqlite3.Connection) -> list[str]:
    return [message for (message,) in connection.execute(_LEFT)]


async def until_quiet(place: Place) -> None:
    """Return when no request is open, or after a minute."""
    async with _opened(place) as database:
        deadline = time.monotonic() + _QUIET_LIMIT
        while await database.read(_left) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def deliveries_found_in(place: Place, handed: Sequence[Handed]) -> DeliveriesFound:
    """What clients were told, beside the content of the database."""

    def read(connection: sqlite3.Connection) -> dict[str, Any]:
        revisions: dict[str, list[int]] = defaultdict(list)
        for id, revision in connection.execute("SELECT id, revision FROM document_revision"):
            revisions[id].append(revision)
        replies: dict[str, list[Reply]] = defaultdict(list)
        for id, body in connection.execute(_REPLIES):
            reply = msgspec.json.decode(body)
            replies[reply["request_id"]].append(Reply(id, reply["payload"]))
        dead: dict[str, list[str]] = defaultdict(list)
        for subject, body in connection.execute(_DEAD):
            dead[msgspec.json.decode(body)["request_id"]].append(subject)
        return {
            "documents": dict(connection.execute("SELECT id, revision FROM document")),
            "revisions": revisions,
            "kept": dict(connection.execute("SELECT request_id, body FROM action_request")),
            "replies": replies,
            "dead": dead,
            "left": _left(connection),
            "redelivered": connection.execute("SELECT count(*) FROM bus_message WHERE attempts > 1").fetchone()[0],
        }

    async with _opened(place) as database:
        return DeliveriesFound(
            handed=handed,
            events=await events_at(place),
            contradictions=await SqliteLedgerAdmin(database, SPACE).verify(),
            **await database.read(read),
        )

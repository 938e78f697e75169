"""The database in the data directory, for commands about keys, the audit, documents and jobs. No target is loaded.

Servers may use it at the same time. It is created if there is none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, TypeVar

import typer

from dragoman.cli.options import settings_from
from dragoman.cli.output import complain, refuse
from dragoman.process.exit_codes import FAILED, INTERRUPTED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.clock import Clock
    from dragoman.config import Config
    from dragoman.storage.port import Storage

T = TypeVar("T")

OPERATOR = "operator"
"""The principal of changes that are made on the command line."""
LARGEST = 2**63 - 1
"""SQLite takes no larger number."""
_LONGEST_TENANT = 128


def check_tenant(name: str | None) -> str | None:
    """The name of a tenant, as envelopes can have it."""
    if name is not None and not (0 < len(name) <= _LONGEST_TENANT and name.isprintable()):
        raise typer.BadParameter(f"a tenant has a name of 1 to {_LONGEST_TENANT} printable characters")
    return name


OfTenant: TypeAlias = Annotated[str, typer.Option("--tenant", callback=check_tenant, help="Whose documents are meant.")]


class OpenStorage(NamedTuple):
    """The storage that a command works with, and its settings."""

    config: Config
    folder: Path
    storage: Storage
    clock: Clock

    def now(self) -> float:
        """Seconds since 1970."""
        return self.clock.now().timestamp()


def with_storage(file: Path | None, work: Callable[[OpenStorage], Awaitable[T]]) -> T:
    """Call `work` with the storage that the settings name, and return its result; or end the command."""
    from dragoman.errors import ConfigError, StorageError, ToolError

    config = settings_from(file).config
    if config.storage.engine != "sqlite":
        refuse(f"storage.engine is {config.storage.engine}: everything is in the memory of the server alone")
    try:
        return asyncio.run(_run(config, work))
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    except ToolError as error:
        refuse(f"{error.code}: {sanitize(error.message)}", code=FAILED)
    except StorageError as error:
        refuse(f"the database cannot be used: {sanitize(str(error))}", code=FAILED)
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from None


async def _run(config: Config, work: Callable[[OpenStorage], Awaitable[T]]) -> T:
    async with opened_storage(config) as stored:
        return await work(stored)


@asynccontextmanager
async def opened_storage(config: Config) -> AsyncIterator[OpenStorage]:
    """The storage that the settings name, until the end of the block."""
    from dragoman.adapters.engines import make_storage
    from dragoman.clock import SystemClock
    from dragoman.gateway.delivery_migrations import MIGRATIONS as DELIVERIES
    from dragoman.gateway.migrations import MIGRATIONS as GATEWAY
    from dragoman.jobs.migrations import MIGRATIONS as JOBS
    from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE
    from dragoman.memories.migrations import MIGRATIONS as MEMORIES
    from dragoman.messaging.migrations import MIGRATIONS as BUS
    from dragoman.slo.migrations import MIGRATIONS as SLO
    from dragoman.storage.settings import data_directory

    clock = SystemClock()
    folder = data_directory(config.storage, os.environ)
    migrations = (*MEMORIES, *KNOWLEDGE, *GATEWAY, *BUS, *DELIVERIES, *JOBS, *SLO)
    storage = make_storage(config.storage, clock, migrations)
    try:
        yield OpenStorage(config, folder, storage, clock)
    finally:
        await storage.close()

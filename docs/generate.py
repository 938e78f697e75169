"""Writes the pages of docs/ that are made from the code. A test fails when they are no longer what this would write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import typer

from dragoman import errors
from dragoman.calls.call import COMPLETION_MEANINGS
from dragoman.cli.main import EXIT_CODES, app
from dragoman.config import FLAGS, PREFIX, Config
from dragoman.protocol.session import TRANSITIONS, State
from dragoman.sections import Section, is_marked, is_section, member_of, notes_on

DOCS = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py from the code; do not edit. -->\n\n"


def error_page() -> str:
    """Every error code, JSON-RPC code and completion outcome."""
    lines = [
        "# Errors and outcomes",
        "",
        "## Tool errors",
        "",
        "A call that fails is answered with a `tools/call` result that has `isError: true` and one text item, the JSON",
        "of `{code, message, details?, runId, correlationId}`. *Refused* means that the handler did not run, so that",
        "repeating the call is safe; *failed* means that it ran: repeat the call only if the tool is idempotent.",
        "",
        "A tool may raise any of these classes itself. `Envelope` is the code in the `envelope` dialect.",
        "",
        "| Class | Code | Envelope | | Meaning |",
        "|---|---|---|---|---|",
    ]
    for kind in concrete(errors.ToolError):
        family = "refused" if issubclass(kind, errors.Refused) else "failed"
        lines.append(f"| `{kind.__name__}` | `{kind.code}` | `{kind.envelope_code}` | {family} | {said(kind)} |")
    lines += [
        f"| | `{errors.ErrorCode.NOT_INITIALIZED}` | | refused | Never a tool error: see -32002 below. |",
        "",
        "## Protocol errors",
        "",
        "A message that cannot be taken as it is gets a JSON-RPC error. `error.data.correlationId` is the request's",
        "own correlation id where it brought one, else the connection's.",
        "",
        "| Code | Meaning |",
        "|---|---|",
    ]
    lines += [f"| {kind.code} | {said(kind)} |" for kind in leaves(errors.ProtocolError)]
    lines += [
        "",
        "## Completion outcomes",
        "",
        "Every call leaves exactly one record in the log, `tool call completed`, when its handler has really ended.",
        "Its `outcome` is one of these.",
        "",
        "| Outcome | Meaning |",
        "|---|---|",
    ]
    lines += [f"| `{outcome}` | {meaning} |" for outcome, meaning in COMPLETION_MEANINGS.items()]
    return NOTE + "\n".join(lines) + "\n"


def concrete(kind: type[Any]) -> Iterator[type[Any]]:
    """Every class of an error tree but the families it is split into, in the order in which they are defined."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            if child not in (errors.Refused, errors.Failed):
                yield child
            yield from concrete(child)


def leaves(kind: type[Any]) -> Iterator[type[Any]]:
    """The classes at the ends of an error tree, in the order in which they are defined."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    for child in children:
        yield from leaves(child)
    if not children:
        yield kind


def said(kind: type[Any]) -> str:
    """A class's docstring on one line."""
    return " ".join((kind.__doc__ or "").split())


def state_page() -> str:
    """The state diagram of a handshake connection, from the table that drives it."""
    arrows = [f"    {source.name} --> {target.name}: {move.value}" for (source, move), target in TRANSITIONS.items()]
    lines = [
        "# The states of a connection",
        "",
        "A connection that opens with `initialize` moves through these states, and through no others. Before RUNNING,",
        "every method but `initialize` and `initialized` is answered -32002, `ping` included. CLOSED is final, and",
        "silent.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {State.STARTING.name}",
        *arrows,
        f"    {State.CLOSED.name} --> [*]",
        "```",
        "",
        "A connection whose first request carries the 2026-07-28 envelope in `params._meta` has no handshake, and so",
        "none of these states: each of its requests is complete in itself, and -32002 is never sent. A connection",
        "keeps the era of its first request.",
    ]
    return NOTE + "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Every setting with its default, its variable and its place in a file."""
    lines = [
        "# Configuration",
        "",
        "Flags win over environment variables, variables over the file, the file over the defaults, setting by",
        "setting. The file is the one given with `--config`, else `./dragoman.toml`, else `./dragoman.json`. Keys may",
        "be written `max_payload_bytes` or `maxPayloadBytes`. Whatever is wrong is refused by name, all of it at",
        "once, before anything starts. [`dragoman config`](commands.md#dragoman-config) checks a file, shows what is",
        "in force and where it came from, and prints a JSON Schema for editors.",
        "",
        "```toml",
        "[resources]",
        "max_concurrent_executions = 64",
        "",
        "[timeouts.tool_overrides]",
        "count_down = 5000",
        "",
        "[limits.tools.count_words]",
        "max_string_length = 1000",
        "```",
        "",
        "A variable's value is text where the setting is text, and JSON where it is not. `<name>` is yours: a tool's",
        "name, exactly as it is. In a variable a map is best given whole, as JSON, such as",
        "`DRAGOMAN_TIMEOUTS__TOOL_OVERRIDES='{\"count_down\": 5000}'`. A map is added to its default entry by entry.",
        "",
        "Settings marked *guarded* cannot be turned on by a file that was merely found in the working directory,",
        "because whoever unpacked that folder may not be whoever runs the server: name the file with `--config`.",
    ]
    for section in msgspec.structs.fields(Config):
        lines += ["", f"## `{section.name}`", "", said(section.type)]
        settings = list(rows(section.type, section.name))
        if settings:
            lines += ["", "| Setting | Default | Variable | |", "|---|---|---|---|", *settings]
    return NOTE + "\n".join(lines) + "\n"


def rows(section: type[Section], path: str) -> Iterator[str]:
    """One row for each setting; for a map of sections, one for each setting of a member."""
    for field in msgspec.structs.fields(section):
        name = f"{path}.{field.name}"
        if is_section(field.type):
            yield from rows(field.type, name)
        elif is_section(member := member_of(field.type)):
            yield from rows(member, f"{name}.<name>")
        else:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            variable = (PREFIX + name.upper().replace(".", "__")).replace("<NAME>", "<name>")
            notes = [note.description for note in notes_on(field.type) if note.description]
            notes += ["*Guarded.*"] if is_marked(field.type, "is_guarded") else []
            notes += [f"Flag: `{FLAGS[name]}`."] if name in FLAGS else []
            yield f"| `{name}` | `{msgspec.json.encode(default).decode()}` | `{variable}` | {' '.join(notes)} |"


def commands_page() -> str:
    """Every command with its arguments and options, in the words of `--help`."""
    lines = [
        "# Commands",
        "",
        "`dragoman COMMAND --help` says the same. Answers are on stdout, everything else on stderr. JSON is indented",
        "on a terminal, and on one line where a program reads it.",
        "",
        EXIT_CODES,
        "",
        "`dragoman --install-completion` teaches your shell the commands and options; `dragoman --show-completion`",
        "prints what it would add.",
    ]
    lines += chain.from_iterable(
        command_lines(each, f"dragoman {name}", 2) for name, each in typer.main.get_command(app).commands.items()
    )
    return NOTE + "\n".join(lines) + "\n"


def command_lines(command: Any, name: str, level: int) -> Iterator[str]:
    """A command's part of the page, and below it those of the commands within it."""
    yield from ("", f"{'#' * level} `{name}`", "", command.help)
    within = getattr(command, "commands", {})
    parameters = [each for each in command.params if each.name != "help"]
    if not within:
        arguments = [argument(each) for each in parameters if each.param_type_name == "argument"]
        options = ["[OPTIONS]"] if len(arguments) < len(parameters) else []
        yield from ("", "```", " ".join((name, *arguments, *options)), "```")
    if parameters:
        yield from ("", "| | Default | |", "|---|---|---|")
        yield from map(parameter_row, parameters)
    for each in within:
        yield from command_lines(within[each], f"{name} {each}", level + 1)


def argument(parameter: Any) -> str:
    """An argument in a line of usage."""
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def parameter_row(parameter: Any) -> str:
    """One argument or option. What has no default says in its help what happens without it."""
    is_argument = parameter.param_type_name == "argument"
    spelled = parameter.name.upper() if is_argument else ", ".join((*parameter.opts, *parameter.secondary_opts))
    default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else f"`{parameter.default}`"
    return f"| `{spelled}` | {default} | {' '.join(parameter.help.split())} |".replace("|  |", "| |")


PAGES = {
    "errors.md": error_page,
    "states.md": state_page,
    "configuration.md": configuration_page,
    "commands.md": commands_page,
}


def main() -> None:
    for name, write in PAGES.items():
        (DOCS / name).write_text(write(), "utf-8")


if __name__ == "__main__":
    main()

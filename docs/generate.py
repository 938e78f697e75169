"""Writes the pages of docs/ that are made from the code. A test fails when they are no longer what this would write."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dragoman import errors
from dragoman.calls.call import COMPLETION_MEANINGS
from dragoman.config import PREFIX, Config, Section
from dragoman.protocol.session import TRANSITIONS, State

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
        "be written `max_payload_bytes` or `maxPayloadBytes`. Unknown keys are refused by name, before anything",
        "starts.",
        "",
        "```toml",
        "[resources]",
        "max_concurrent_executions = 64",
        "",
        "[timeouts.tool_overrides]",
        "count_down = 5000",
        "```",
    ]
    for section in msgspec.structs.fields(Config):
        lines += ["", f"## `{section.name}`", "", said(section.type)]
        settings = list(rows(section.type, section.name))
        if settings:
            lines += ["", "| Setting | Default | Variable | |", "|---|---|---|---|", *settings]
    return NOTE + "\n".join(lines) + "\n"


def rows(section: type[Section], path: str) -> Iterator[str]:
    hints = typing.get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from rows(field.type, f"{path}.{field.name}")
            continue
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        shown = msgspec.json.encode(default).decode()
        name = f"{path}.{field.name}"
        variable = PREFIX + name.upper().replace(".", "__")
        notes = [
            note.description for note in typing.get_args(hints[field.name])[1:] if getattr(note, "description", None)
        ]
        yield f"| `{name}` | `{shown}` | `{variable}` | {' '.join(notes)} |"


PAGES = {"errors.md": error_page, "states.md": state_page, "configuration.md": configuration_page}


def main() -> None:
    for name, write in PAGES.items():
        (DOCS / name).write_text(write(), "utf-8")


if __name__ == "__main__":
    main()

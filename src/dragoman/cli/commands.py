"""The commands: their names and help as data, so that listing them imports none; each is imported when it is run."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, NamedTuple

import typer
from typer.main import get_group

from dragoman.cli.words import Commands, Group, PlainCommand
from dragoman.version import __version__

EXIT_CODES = (
    "Exit codes: 0 it went well, 1 what was asked for failed, 2 it could not be tried (usage, settings, target), "
    "3 calls were abandoned, 130 a call was interrupted."
)


class ListedCommand(NamedTuple):
    """What is known of a command before it is imported."""

    home: str
    """`module:object`: a function, or a group of commands."""
    help: str
    """The help of a group; the first paragraph of a function's docstring."""


COMMANDS = {
    name: ListedCommand(f"dragoman.cli.{home}", words)
    for name, home, words in (
        (
            "serve",
            "serve:serve",
            "Serve the tools in TARGET: to one client over standard input and output, or to many over HTTP.",
        ),
        ("call", "call:call", "Call a tool and print its result as JSON."),
        ("token", "signing:token", "Print a token for one request, to be sent as `Authorization: Bearer TOKEN`."),
        (
            "registry",
            "registry:registry",
            "List the processes and agents of servers that use the data directory, as their last heartbeats described "
            "them.",
        ),
        (
            "slo",
            "slo:slo",
            "Show whether the service keeps its promises: error budget, ACK and job-done P95, and dead letters.",
        ),
        ("top", "top:top", "Watch a server that is served over HTTP: calls, latency, load and refusals."),
        ("guards", "guards:guards", "List the gates that calls pass, in order, with the mode that each is in."),
        ("install", "install:install", "Tell a client how to start the server for TARGET."),
        (
            "doctor",
            "doctor:doctor",
            "Check this machine: Python, packages, settings, storage, a trial start, clients, the port.",
        ),
        ("tools", "tools:app", "List and describe the tools of a target."),
        ("resources", "offers:resources", "List the resources of a target."),
        ("prompts", "offers:prompts", "List the prompts of a target."),
        ("agents", "agents:app", "List and show agents, and send them messages."),
        (
            "messages",
            "messages:app",
            "Look through the messages to agents, and dead letters of agents and actions; redrive and purge them.",
        ),
        ("ledger", "ledger:app", "Count what is in the ledger of messages and tasks, and verify it."),
        ("tasks", "tasks:app", "List and show tasks, cancel them, and print their results."),
        ("knowledge", "knowledge:app", "Import and export documents, search them, and look at them."),
        ("models", "models:app", "Install models that run on this machine."),
        ("keys", "keys:app", "Make, list, rotate and revoke the keys that sign requests to the gateway."),
        ("actions", "actions:app", "Send signed envelopes to a gateway."),
        ("audit", "audit:app", "List what has been done to documents and keys."),
        ("storage", "storage:app", "Back the data directory up while servers use it, and restore it."),
        ("jobs", "jobs:app", "List the jobs of servers that use the data directory."),
        ("config", "config:app", "Show, describe and check the settings."),
    )
}
"""By name, in the order of the help."""


def load(name: str) -> Any:
    """The command of this name, imported."""
    home, words = COMMANDS[name]
    found, alone = resolve_name(home), Commands()
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, help=words)
    else:
        alone.command(name)(found)
    return get_group(alone).commands[name]


class _AllCommands(Group):
    """The group of all commands. Until one of `COMMANDS` is run, its name and help stand for it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        listed = {name: PlainCommand(name, help=each.help) for name, each in COMMANDS.items()}
        self.commands = {**listed, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


app = Commands(
    name="dragoman",
    cls=_AllCommands,
    help="A governed MCP runtime: every tool call ordered, limited, timed and recorded.",
    epilog=EXIT_CODES,
    add_completion=True,
    pretty_exceptions_enable=False,
)
"""Parts add their commands to it."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Say which version."),
) -> None:
    pass

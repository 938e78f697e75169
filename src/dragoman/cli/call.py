"""`dragoman call`: one call, through the same pipeline as a client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import ConfigFile, ExtensionsDir, settings_from
from dragoman.cli.output import complain, kept_for_answers, print_encoded, refuse
from dragoman.config import Config
from dragoman.process.exit_codes import INTERRUPTED
from dragoman.workers.control import Source

if TYPE_CHECKING:
    from dragoman.cli.calling import AskedCall


def call(
    tool: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Its arguments. A value is JSON where it is JSON, else text; what only takes text gets the text.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="A Python file, a module, or module:object. Without it, the built-in tools."),
    ] = None,
    extensions_dir: ExtensionsDir = None,
    given: Annotated[
        str | None,
        typer.Option("--json", help="The arguments as a JSON object: the text itself, @FILE, or - for stdin."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds to wait for the answer. Without it, the tool's own deadline."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show, on stderr, how long each stage took.")] = False,
    task: Annotated[bool, typer.Option("--task", help="Store a task for a server of the tools; print its id.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --task: wait, or run it here; print the result.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Repeats with the same key print the first result. 16 to 128 printable characters."),
    ] = None,
    config: ConfigFile = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warn or error.")] = "error",
) -> None:
    """Call a tool and print its result as JSON.

    The call is limited, timed and recorded as a client's would be. What the tool prints goes to stderr, and so does its
    error, with exit code 1. With --task or --idempotency-key, the data directory of `dragoman serve` keeps the outcome.
    """
    _check_options(task, wait, trace, timeout, idempotency_key)
    overrides = {tool: max(1, round(timeout * 1000))} if timeout is not None else None
    settings = settings_from(config, {"logging.level": log_level, "timeouts.tool_overrides": overrides}).config
    source, options = Source(target, extensions_dir), dict[str, Any]()
    if task or idempotency_key is not None:
        settings = _to_keep(settings, source)
        options = {"has_durable_agents": True, "runs_tasks": False, "runs_nothing": task and not wait}
    try:
        from dragoman.cli.calling import answer_of, asked_for

        with kept_for_answers():
            asked = asked_for(tool, arguments or [], given, source, settings, **options)
            if task:
                answer = _task_of(asked, idempotency_key, timeout, wait=wait)
            else:
                answer = answer_of(asked, idempotency_key, trace)
    except KeyboardInterrupt:
        complain("interrupted" if task else "cancelled")
        raise typer.Exit(INTERRUPTED) from None
    if task and not wait:
        typer.echo(answer)
    else:
        print_encoded(answer)


def _task_of(asked: AskedCall, key: str | None, timeout: float | None, *, wait: bool) -> bytes:
    """The id of the task that a call becomes, or its result."""
    from dragoman.cli.task_calls import created, waited_for

    return waited_for(asked, key, timeout) if wait else created(asked, key)


def _to_keep(settings: Config, source: Source) -> Config:
    """The settings for a call whose outcome is kept where `dragoman serve` keeps it; or the end of the command."""
    from dragoman.cli.target import with_space

    if settings.storage.engine != "sqlite":
        refuse(f"storage.engine is {settings.storage.engine}: nothing that is stored outlives the command")
    return with_space(settings, source)


def _check_options(task: bool, wait: bool, trace: bool, timeout: float | None, key: str | None) -> None:
    """End the command for options that do not go together."""
    if wait and not task:
        refuse("--wait needs --task")
    if task and trace:
        refuse("--trace is about a call that runs here and now; it cannot be given with --task")
    if task and not wait and timeout is not None:
        refuse("--timeout needs --wait, with --task: a task has the deadline of the server that runs it")
    if key is not None:
        from dragoman.calls.repeats import LONGEST_KEY, SHORTEST_KEY, is_key

        if not is_key(key):
            refuse(f"--idempotency-key must have {SHORTEST_KEY} to {LONGEST_KEY} printable characters")

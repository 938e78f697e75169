"""`dragoman call`: one call, through the same pipeline as a client's."""

from __future__ import annotations

from typing import Annotated

import typer

from dragoman.cli.options import ConfigFile, ExtensionsDir, settings_from
from dragoman.cli.output import complain, kept_for_answers, print_encoded
from dragoman.process.exit_codes import FAILED, INTERRUPTED
from dragoman.workers.control import Source


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
    config: ConfigFile = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warn or error.")] = "error",
) -> None:
    """Call a tool and print its result as JSON.

    The call is limited, timed and recorded as a client's would be. What the tool prints goes to stderr, and so does its
    error, with exit code 1.
    """
    overrides = {tool: max(1, round(timeout * 1000))} if timeout is not None else None
    settings = settings_from(config, {"logging.level": log_level, "timeouts.tool_overrides": overrides})
    try:
        from dragoman.cli.calling import encoded, error_lines, outcome_of, trace_lines

        with kept_for_answers():
            source = Source(target, extensions_dir)
            outcome, hint, spans = outcome_of(tool, arguments or [], given, source, settings.config, trace)
    except KeyboardInterrupt:
        complain("cancelled")
        raise typer.Exit(INTERRUPTED) from None
    for line in trace_lines(spans):
        typer.echo(line, err=True)
    if outcome.error is not None:
        complain(*error_lines(outcome, hint))
        raise typer.Exit(FAILED)
    print_encoded(encoded(outcome.value))

"""`dragoman doctor`: what could keep a server from running here. It changes nothing, and loads no target."""

from __future__ import annotations

import typer

from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import FAILED, print_json

_PAINT = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "problem": typer.colors.RED}


def doctor(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check this machine: Python, packages, settings, storage, a trial start, clients, the port.

    Changes nothing, and loads no tools of yours. Exit code 1 when there is a problem; a warning is none.
    """
    from msgspec.structs import replace

    from dragoman.cli.checks import all_findings
    from dragoman.findings import Finding
    from dragoman.telemetry.clean import sanitize

    found: list[Finding] = []
    for each in all_findings(config):
        finding = replace(each, message=sanitize(each.message))  # Clients' files may say anything.
        found.append(finding)
        if not as_json:  # One by one, because the trial start takes a moment.
            mark = typer.style(f"{finding.verdict:8}", fg=_PAINT[finding.verdict])
            typer.echo(f"{mark} {finding.check}: {finding.message}")
            if finding.advice is not None:
                typer.echo(f"{'':9}→ {finding.advice}")
    problems = sum(finding.verdict == "problem" for finding in found)
    warnings = sum(finding.verdict == "warning" for finding in found)
    if as_json:
        print_json({"ok": problems == 0, "findings": found})
    else:
        typer.echo(f"\n{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}.")
    raise typer.Exit(FAILED if problems else 0)


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"

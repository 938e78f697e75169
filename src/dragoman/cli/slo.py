"""`dragoman slo`: whether the objectives of the action contract hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dragoman.cli.ledger_access import print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns
from dragoman.cli.storage_access import OpenStorage, check_tenant, with_storage
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.slo.objectives import Objective, Report, Window

_WINDOWS = {"day": "24 hours", "week": "7 days", "quarter": "quarter"}


def slo(
    tenant: Annotated[
        str | None, typer.Option("--tenant", callback=check_tenant, help="Only requests of this tenant.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show whether the service keeps its promises: error budget, ACK and job-done P95, and dead letters.

    The figures are those of all servers that use the data directory, beside running servers or without one. A server
    stores what it has counted once a minute and when it stops. The exit code is 0 if all objectives hold, and 1 if one
    does not.
    """

    async def read(stored: OpenStorage) -> Report:
        from dragoman.slo.objectives import read_report
        from dragoman.slo.port import ServiceLevels

        return await read_report(stored.storage.port(ServiceLevels), stored.now(), deadlines_of(stored.config), tenant)

    report = with_storage(config, read)
    if as_json:
        print_shown(_facts(report, tenant))
    else:
        print_columns([("OBJECTIVE", "WINDOW", "TARGET", "VALUE", "HOLDS"), *map(_objective_row, report.objectives)])
        typer.echo("")
        header = ("WINDOW", "SINCE", "REQUESTS", "AVAILABLE", "ERRORS", "BUDGET LEFT", "DEAD", "RETRIES", "P95")
        print_columns([header, *map(_window_row, report.windows)])
    if not report.holds:
        raise typer.Exit(FAILED)


def deadlines_of(config: Config) -> Callable[[str], float]:
    """How long an action may take by itself, by its name: its deadline is the ETA."""
    from dragoman.clock import SystemClock
    from dragoman.knowledge.actions import ACTIONS
    from dragoman.telemetry.log import StructuredLogger
    from dragoman.tools.catalogue import Catalogue

    catalogue = Catalogue(config.tools, StructuredLogger(lambda _: None, SystemClock()), config.timeouts)
    for action in ACTIONS.values():
        catalogue.register(action.tool(lambda _: True), is_builtin=True)

    def deadline(name: str) -> float:
        tool = catalogue.get(name)
        return float(config.tools.default_timeout_ms if tool is None else tool.timeout_ms)

    return deadline


def _facts(report: Report, tenant: str | None) -> dict[str, Any]:
    from dragoman.agents.tools import iso

    return {
        "at": iso(report.at),
        "tenant": tenant,
        "holds": report.holds,
        "objectives": [{**msgspec.to_builtins(each), "holds": each.holds} for each in report.objectives],
        "windows": [{**msgspec.to_builtins(each), "since": iso(each.since)} for each in report.windows],
    }


def _objective_row(objective: Objective) -> tuple[str, ...]:
    said = _percent if objective.unit == "share" else _milliseconds
    value, target = said(objective.value), f"<= {said(objective.target)}"
    name = sanitize(objective.name)
    return name, _WINDOWS[objective.window], target, value, "yes" if objective.holds else "NO"


def _window_row(window: Window) -> tuple[str, ...]:
    from dragoman.agents.tools import iso

    left = None if window.budget_used is None else 1 - window.budget_used
    return (
        _WINDOWS[window.name],
        iso(window.since),
        str(window.requests),
        _percent(window.availability),
        _percent(window.error_rate),
        _percent(left),
        str(window.dead_letters),
        str(window.retries),
        _milliseconds(window.latency_p95_ms),
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"

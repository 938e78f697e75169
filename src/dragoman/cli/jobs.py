"""`dragoman jobs`: when the jobs of servers ran, what came of it, and when each is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.cli.ledger_access import note, one_line_of, print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.cli.words import Commands
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.jobs.port import JobRun

app = Commands()


@app.callback()
def _jobs() -> None:
    """A group, although it has one command."""


@app.command("list")
def list_runs(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the latest run of each job in each process, beside running servers or without one."""

    async def read(stored: OpenStorage) -> None:
        from dragoman.jobs.port import Schedule

        runs = await stored.storage.port(Schedule).runs()
        if as_json:
            print_shown({"runs": [_facts(each) for each in runs]})
        elif runs:
            header = ("JOB", "PROCESS", "STARTED", "TOOK", "OUTCOME", "NEXT", "FACTS")
            print_columns([header, *map(_row, runs)])
        else:
            note("no job has run")

    with_storage(config, read)


def _facts(run: JobRun) -> dict[str, Any]:
    from dragoman.agents.tools import iso

    return {
        "job": run.job,
        "process": run.process,
        "startedAt": iso(run.started_at),
        "durationMs": run.duration_ms,
        "outcome": run.outcome,
        "error": None if run.error is None else {"code": run.error, "type": run.error_type},
        "nextDueAt": iso(run.next_due_at),
        "facts": run.facts,
    }


def _row(run: JobRun) -> tuple[str, ...]:
    from dragoman.agents.tools import iso

    said = run.facts if run.error is None else {"error": run.error, "type": run.error_type}
    return (
        run.job,
        sanitize(run.process),
        iso(run.started_at),
        f"{run.duration_ms:.0f} ms",
        run.outcome,
        iso(run.next_due_at),
        one_line_of(said),
    )

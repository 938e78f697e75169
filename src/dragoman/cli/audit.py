"""`dragoman audit`: what has been done to documents and keys, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.ledger_access import note, one_line_of, print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns
from dragoman.cli.storage_access import LARGEST, OpenStorage, check_tenant, with_storage
from dragoman.cli.words import Commands
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.knowledge.port import AuditEvent

app = Commands()


@app.callback()
def _audit() -> None:
    """A group, although it has one command."""


@app.command("list")
def list_events(
    tenant: Annotated[
        str | None, typer.Option("--tenant", callback=check_tenant, help="Only events of this tenant.")
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", min=1, max=LARGEST, help="The number before which the page ends.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most events of a page.")] = 100,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the events, the newest first, page by page. Events are never changed or removed."""

    async def read(stored: OpenStorage) -> None:
        from dragoman.knowledge.port import Audit

        page = await stored.storage.port(Audit).page(limit + 1, tenant=tenant, before=before)
        shown, more = page[:limit], page[limit - 1].number if len(page) > limit else None
        if as_json:
            print_shown({"events": [_facts(each) for each in shown], "before": more})
            return
        if shown:
            header = ("NUMBER", "AT", "TENANT", "EVENT", "PRINCIPAL", "SUBJECT", "DETAILS")
            print_columns([header, *map(_row, shown)])
        else:
            note("there are no such events")
        if more is not None:
            note(f"there are more: --before {more}")

    with_storage(config, read)


def _facts(event: AuditEvent) -> dict[str, Any]:
    from dragoman.agents.tools import iso

    return {
        "number": event.number,
        "at": iso(event.at),
        "tenant": event.tenant,
        "event": event.event,
        "principal": event.principal,
        "subject": event.subject,
        "details": event.details,
    }


def _row(event: AuditEvent) -> tuple[str, ...]:
    number, *texts, details = _facts(event).values()
    return (str(number), *map(sanitize, texts), one_line_of(details))

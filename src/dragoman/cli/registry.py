"""`dragoman registry`: the processes and agents that send heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.cli.ledger_access import age_in_words, note, one_line_of, print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.jobs.port import RegistryEntry


def registry(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the processes and agents of servers that use the data directory, as their last heartbeats described them.

    Servers with agents or with the gateway send heartbeats every 5 minutes. An entry stays for a day after the last
    one; that of a process which stops in order is removed at once.
    """

    async def read(stored: OpenStorage) -> None:
        from dragoman.jobs.port import Registry

        entries = await stored.storage.port(Registry).entries()
        if as_json:
            print_shown({"entries": [_facts(each) for each in entries]})
        elif entries:
            header = ("KIND", "NAME", "SPACE", "TENANT", "STATUS", "SEEN", "REVISION", "DETAILS")
            now = stored.now()
            print_columns([header, *(_row(each, now) for each in entries)])
        else:
            note("the registry is empty")

    with_storage(config, read)


def _facts(entry: RegistryEntry) -> dict[str, Any]:
    from dragoman.agents.tools import iso

    return {
        "kind": entry.kind,
        "name": entry.name,
        "space": entry.space,
        "tenant": entry.tenant,
        "status": entry.status,
        "lastSeenAt": iso(entry.last_seen_at),
        "revision": entry.revision,
        "details": entry.details,
    }


def _row(entry: RegistryEntry, now: float) -> tuple[str, ...]:
    return (
        entry.kind,
        sanitize(entry.name),
        sanitize(entry.space),
        "-" if entry.tenant is None else sanitize(entry.tenant),
        entry.status,
        f"{age_in_words(now - entry.last_seen_at)} ago",
        str(entry.revision),
        one_line_of(entry.details),
    )

"""`dragoman messages`: what is in a ledger, and what became of it; dead letters handled again; old ones deleted."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from dragoman.agents.ledger import EntryStatus, Query
from dragoman.cli.dead_letters import (
    Filter,
    LetterKind,
    LetterNumber,
    Letters,
    NotRedriven,
    letter_number,
    number_of,
    with_letters,
)
from dragoman.cli.ledger_access import Books, OfSpace, OfTarget, note, one_line_of, print_shown, with_books
from dragoman.cli.message_facts import named, print_listed, redacted_facts, whole_action, with_contents
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import complain, print_columns, refuse
from dragoman.cli.storage_access import LARGEST, check_tenant
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PAGE = 500

app = Commands()


def _seconds(text: str) -> float:
    """A length of time, such as `90`, `15m`, `2h`, `7d`."""
    parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", text)
    if parts is None:
        raise typer.BadParameter("give a number of seconds, or such as 15m, 2h, 7d")
    return float(parts[1]) * _UNITS[parts[2]]


OfAgent: TypeAlias = Annotated[str | None, typer.Option("--agent", help="Only messages to this agent.")]
OfSource: TypeAlias = Annotated[str | None, typer.Option("--source", help="Only messages from this agent or client.")]
OfRequest: TypeAlias = Annotated[str | None, typer.Option("--request-id", help="Only this request and its response.")]
OlderThan: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--older-than", parser=_seconds, metavar="TIME", help="Only messages accepted longer ago: 90s, 15m, 2h, 7d."
    ),
]
PageAfter: TypeAlias = Annotated[
    int, typer.Option("--after", min=0, max=LARGEST, help="The number behind which the page begins.")
]
PageLimit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most messages of a page.")]
OfKind: TypeAlias = Annotated[LetterKind | None, typer.Option("--kind", help="Only messages for agents, or actions.")]
OfActionTenant: TypeAlias = Annotated[
    str | None, typer.Option("--tenant", callback=check_tenant, help="Only actions of this tenant.")
]
DeadOlderThan: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        parser=_seconds,
        metavar="TIME",
        help="Only messages accepted, and actions that failed for good, longer ago: 90s, 15m, 2h, 7d.",
    ),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be.")]


@app.command("list")
def list_messages(
    agent: OfAgent = None,
    source: OfSource = None,
    status: Annotated[list[EntryStatus] | None, typer.Option("--status", help="Only these; may be repeated.")] = None,
    request_id: OfRequest = None,
    older_than: OlderThan = None,
    after: PageAfter = 0,
    limit: PageLimit = 100,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List messages, in the order in which they were accepted, page by page."""
    query = Query(
        target=agent,
        source=source,
        statuses=tuple(status) if status else None,
        request_id=None if request_id is None else request_id.lower(),
        after=after,
        limit=limit,
    )
    with_books(config, target, space, lambda books: _print_page(books, query, older_than, as_json))


@app.command()
def dead(
    kind: OfKind = None,
    agent: OfAgent = None,
    source: OfSource = None,
    tenant: OfActionTenant = None,
    older_than: DeadOlderThan = None,
    after: Annotated[
        LetterNumber | None,
        typer.Option(
            "--after", parser=letter_number, metavar="NUMBER", help="The number behind which the page begins."
        ),
    ] = None,
    limit: PageLimit = 100,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List what can be redriven: dead letters of agents and actions, and messages whose outcome is unknown.

    Messages to agents come first, then actions: their numbers begin with an a, as in a17.
    """
    chosen = Filter(kind, agent, source, tenant, older_than)
    kinds = chosen.kinds
    if after is not None and after.kind not in kinds:
        refuse(f"--after {after.shown} is the number of another kind of message")

    async def read(letters: Letters) -> None:
        page = await letters.page(chosen, limit + 1, after)
        shown, more = page[:limit], number_of(page[limit - 1]).shown if len(page) > limit else None
        print_listed(letters.config, shown, more, as_json)

    with_letters(config, target, space, kinds, read)


@app.command()
def show(
    number: Annotated[
        LetterNumber,
        typer.Argument(parser=letter_number, metavar="NUMBER", help="The number of the message, or a17 for an action."),
    ],
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a message with its payload and its response, or a dead action with its envelope and every error.

    The output is redacted as the log is. Exit code 1 when there is no such message.
    """

    async def read(letters: Letters) -> None:
        if letters.books is None:
            facts = await whole_action(letters, number.number)
        else:
            found = await letters.books.ledger.get([number.number])
            facts = await with_contents(letters.books, found[0]) if found and not found[0].is_of_run else None
        if facts is None:
            refuse(f"there is no {named(number)}", code=FAILED)
        facts = redacted_facts(letters.config, facts)
        if as_json:
            print_shown(facts)
        else:
            texts = {name: fact if isinstance(fact, str) else one_line_of(fact) for name, fact in facts.items()}
            print_columns((name, sanitize(text)) for name, text in texts.items())

    with_letters(config, target, space, frozenset((number.kind,)), read)


@app.command()
def redrive(
    numbers: Annotated[
        list[LetterNumber] | None,
        typer.Argument(parser=letter_number, metavar="[NUMBERS]...", help="The numbers of the messages: 12, a17."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every message that can be redriven.")] = False,
    kind: OfKind = None,
    agent: OfAgent = None,
    source: OfSource = None,
    tenant: OfActionTenant = None,
    older_than: DeadOlderThan = None,
    dry_run: DryRun = False,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Have dead letters, and messages whose outcome is unknown, handled again, behind all others.

    Give numbers, filters, or --all. A redriven action has its whole time to live again, and the audit has an event.
    Exit code 1 when a message cannot be redriven, or is not there.
    """
    chosen = Filter(kind, agent, source, tenant, older_than)
    if bool(numbers) is (everything or chosen.is_set):
        refuse("give the numbers of messages, or filters, or --all" + (", not both" if numbers else ""))
    kinds = frozenset(each.kind for each in numbers) if numbers else chosen.kinds

    async def change(letters: Letters) -> list[str]:
        wanted = numbers or await letters.numbers(chosen)
        driven: list[dict[str, Any]] = []
        refused: dict[LetterNumber, str] = {}
        for number in wanted:
            try:
                made = await letters.redrive(number, dry_run=dry_run)
            except NotRedriven as error:
                refused[number] = str(error)
                continue
            driven.append(made)
            if not as_json:
                again = "would be redriven" if dry_run else f"is {named(number, made['newNumber'])} now"
                cause = f"; it failed with {made['cause']}" if "cause" in made else ""
                typer.echo(f"{named(number)} {again}{cause}")
        if as_json:
            print_shown({"dryRun": dry_run, "redriven": driven, "refused": [each.shown for each in refused]})
        elif not wanted:
            note("there is nothing to redrive")
        return [*refused.values()]

    reasons = with_letters(config, target, space, kinds, change)
    if reasons:
        complain(*reasons)
        raise typer.Exit(FAILED)


@app.command()
def purge(
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", parser=_seconds, metavar="TIME", help="Only what expired longer ago: 15m, 7d."),
    ] = None,
    dry_run: DryRun = False,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete messages that have ended and expired, a few at a time. A server does the same every half minute."""

    async def change(books: Books) -> None:
        from dragoman.adapters.sqlite_ledger_overview import count_expired

        until = books.drafts.now() - max(older_than or 0.0, books.config.aacp.retry_seconds)
        count = 0
        if dry_run:
            count = count_expired(books.folder, books.space, until)
        else:
            while purged := await books.admin.purge(until, _PAGE):
                count += purged
        if as_json:
            print_shown({"dryRun": dry_run, "purged": count})
        else:
            typer.echo(f"{count} {'message' if count == 1 else 'messages'} {'would be ' if dry_run else ''}purged")

    with_books(config, target, space, change)


async def _print_page(books: Books, query: Query, older_than: float | None, as_json: bool) -> None:
    limit = query.limit
    if older_than is not None:
        query = msgspec.structs.replace(query, accepted_before=books.drafts.now() - older_than)
    page = await books.admin.page(msgspec.structs.replace(query, limit=limit + 1))
    print_listed(books.config, page[:limit], page[limit - 1].number if len(page) > limit else None, as_json)

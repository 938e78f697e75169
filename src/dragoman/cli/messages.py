"""`dragoman messages`: what is in a ledger, and what became of it; dead letters handled again; old ones deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from dragoman.agents.ledger import PARKED, EntryStatus, Query
from dragoman.cli.ledger_access import Books, OfSpace, OfTarget, note, one_line_of, print_shown, with_books
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import complain, print_columns, refuse
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.agents.ledger import LedgerEntry

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PAGE = 500
_LARGEST = 2**63 - 1
"""SQLite takes no larger number."""

app = typer.Typer(no_args_is_help=True, help="Look through the messages to agents; redrive and purge them.")


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
    int, typer.Option("--after", min=0, max=_LARGEST, help="The number behind which the page begins.")
]
PageLimit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most messages of a page.")]
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
    agent: OfAgent = None,
    source: OfSource = None,
    older_than: OlderThan = None,
    after: PageAfter = 0,
    limit: PageLimit = 100,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List what can be redriven: dead letters, and messages whose outcome is unknown."""
    query = Query(target=agent, source=source, statuses=PARKED, after=after, limit=limit)
    with_books(config, target, space, lambda books: _print_page(books, query, older_than, as_json))


@app.command()
def show(
    number: Annotated[int, typer.Argument(min=1, max=_LARGEST, help="The number of the message.")],
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a message with its payload and its response, without what the log would redact.

    Exit code 1 when there is no such message.
    """

    async def read(books: Books) -> None:
        found = await books.ledger.get([number])
        if not found or found[0].is_of_run:
            refuse(f"there is no message {number}", code=FAILED)
        facts = await _with_contents(books, found[0])
        if as_json:
            print_shown(facts)
        else:
            texts = {name: fact if isinstance(fact, str) else one_line_of(fact) for name, fact in facts.items()}
            print_columns((name, sanitize(text)) for name, text in texts.items())

    with_books(config, target, space, read)


@app.command()
def redrive(
    numbers: Annotated[
        list[int] | None, typer.Argument(min=1, max=_LARGEST, help="The numbers of the messages.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every message that can be redriven.")] = False,
    agent: OfAgent = None,
    source: OfSource = None,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Have dead letters, and messages whose outcome is unknown, handled again, behind all others.

    Give numbers, filters, or --all. Exit code 1 when a message is neither dead nor unknown, or not there.
    """
    is_filtered = everything or agent is not None or source is not None or older_than is not None
    if bool(numbers) is is_filtered:
        refuse("give the numbers of messages, or filters, or --all" + (", not both" if numbers else ""))
    query = Query(target=agent, source=source, statuses=PARKED, limit=_PAGE)
    refused: list[int] = []

    async def change(books: Books) -> None:
        wanted = numbers or await _numbers(books, query, older_than)
        driven: list[dict[str, Any]] = []
        for number in wanted:
            made = await _redriven(books, number, dry_run)
            if made is None:
                refused.append(number)
            else:
                driven.append(made)
                if not as_json:
                    again = "would be redriven" if dry_run else f"is message {made['newNumber']} now"
                    typer.echo(f"message {number} {again}")
        if as_json:
            print_shown({"dryRun": dry_run, "redriven": driven, "refused": refused})
        elif not wanted:
            note("there is nothing to redrive")

    with_books(config, target, space, change)
    if refused:
        if not as_json:
            complain(*(f"message {each} is neither dead nor unknown" for each in refused))
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
    from dragoman.agents.tools import described

    limit = query.limit
    page = await books.admin.page(msgspec.structs.replace(_aged(books, query, older_than), limit=limit + 1))
    shown, after = page[:limit], page[limit - 1].number if len(page) > limit else None
    if as_json:
        messages = [{"number": each.number, **_redacted(books, described(each))} for each in shown]
        print_shown({"messages": messages, "after": after})
        return
    if shown:
        rows = map(_row, shown)
        print_columns([("NUMBER", "STATUS", "KIND", "FROM", "TO", "SEQ", "ATTEMPTS", "ACCEPTED", "REQUEST"), *rows])
    else:
        note("there are no such messages")
    if after is not None:
        note(f"there are more: --after {after}")


def _row(entry: LedgerEntry) -> tuple[str, ...]:
    from dragoman.agents.tools import iso

    cells = (
        str(entry.number),
        entry.status.value,
        entry.kind,
        entry.source,
        entry.target,
        str(entry.seq),
        str(entry.attempts),
        iso(entry.accepted_at),
        entry.request_id or "-",
    )
    return tuple(map(sanitize, cells))


async def _with_contents(books: Books, entry: LedgerEntry) -> dict[str, Any]:
    """A message as `messages show` has it."""
    from dragoman.agents.tools import described

    facts = {"number": entry.number, **described(entry)}
    content = entry.payload
    if entry.completion_ref is not None:  # A large one is kept apart.
        content = await books.ledger.result(entry.owner, entry.request_id or "") or b""
    told: Any = msgspec.json.decode(content) if content else None
    facts |= {"payload": told} if entry.kind == "RESPONSE" else told
    if entry.kind == "REQUEST" and entry.status is EntryStatus.COMPLETED:
        result = await books.ledger.result(entry.owner, entry.request_id or "")
        facts["response"] = None if result is None else msgspec.json.decode(result)
    return _redacted(books, facts)


def _redacted(books: Books, facts: dict[str, Any]) -> dict[str, Any]:
    from dragoman.telemetry.log import make_cleaner

    redacted: dict[str, Any] = make_cleaner(books.config.logging).redact(facts)
    return redacted


def _aged(books: Books, query: Query, older_than: float | None) -> Query:
    if older_than is None:
        return query
    return msgspec.structs.replace(query, accepted_before=books.drafts.now() - older_than)


async def _numbers(books: Books, query: Query, older_than: float | None) -> list[int]:
    """The numbers of all messages that a query finds. All of them first: what is redriven may soon be dead again."""
    query, numbers = _aged(books, query, older_than), list[int]()
    while page := await books.admin.page(msgspec.structs.replace(query, after=numbers[-1] if numbers else 0)):
        numbers += (each.number for each in page)
    return numbers


async def _redriven(books: Books, number: int, dry_run: bool) -> dict[str, Any] | None:
    """Redrive a message; None for one that cannot be."""
    if dry_run:
        found = await books.ledger.get([number])
        return {"number": number} if found and found[0].can_be_redriven else None
    drafts = books.drafts
    now = drafts.now()
    made = await books.admin.redrive(number, drafts.message_id(), now, now + drafts.ttl_ms / 1000)
    if made is None:
        return None
    return {"number": number, "newNumber": made.number, "messageId": made.message_id}

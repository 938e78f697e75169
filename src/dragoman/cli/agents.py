"""`dragoman agents`: the agents of a ledger, their states, and messages to them; with or without a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from uuid import UUID

import msgspec
import typer

from dragoman.cli.ledger_access import (
    Books,
    OfSpace,
    OfTarget,
    age_in_words,
    note,
    one_line_of,
    print_shown,
    with_books,
)
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns, refuse
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.sections import nearest
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.adapters.sqlite_ledger_overview import SeenAgent
    from dragoman.agents.ledger import AgentQueue, LedgerEntry

_LOOK_SECONDS = 0.05


class AgentFacts(NamedTuple):
    """An agent, and what waits for it."""

    id: str
    seen: SeenAgent
    queue: AgentQueue | None

    @property
    def holder(self) -> str:
        return "none" if self.seen.process is None else "alive" if self.seen.is_alive else "ended"

    @property
    def depth(self) -> int:
        return 0 if self.queue is None else self.queue.depth

    def oldest(self, now: float) -> str:
        """The age of the oldest message, for a person."""
        return "-" if self.queue is None else age_in_words(now - self.queue.oldest)

    def as_json(self) -> dict[str, Any]:
        from dragoman.agents.tools import iso

        return {
            "agentId": self.id,
            "holder": self.holder,
            **({} if self.seen.process is None else {"process": self.seen.process}),
            "epoch": self.seen.epoch,
            "version": self.seen.version,
            "depth": self.depth,
            **({} if self.queue is None else {"oldest": iso(self.queue.oldest)}),
        }


app = Commands()


@app.command("list")
def list_agents(
    target: OfTarget = None, space: OfSpace = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """List the agents that the ledger has seen, who holds them, and what waits for them."""

    async def read(books: Books) -> None:
        found = await _agents(books)
        if as_json:
            print_shown([each.as_json() for each in found.values()])
            return
        now = books.drafts.now()
        rows = [
            (sanitize(each.id), each.holder, str(each.depth), each.oldest(now), str(each.seen.epoch))
            for each in found.values()
        ]
        print_columns([("AGENT", "HOLDER", "DEPTH", "OLDEST", "EPOCH"), *rows])

    with_books(config, target, space, read)


@app.command()
def show(
    agent: Annotated[str, typer.Argument(help="The agent's id.")],
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show an agent: who holds it, what waits for it, and its stored state, without what the log would redact.

    Exit code 1 when the ledger has never seen the agent.
    """
    from dragoman.telemetry.log import make_cleaner

    async def read(books: Books) -> None:
        facts = (await _agents(books, agent))[agent]
        stored = await books.ledger.state(agent)
        state = {key: msgspec.json.decode(value) for key, value in stored.items()}
        state = make_cleaner(books.config.logging).redact(state)
        if as_json:
            print_shown({**facts.as_json(), "state": state})
            return
        process = "" if facts.seen.process is None else f", process {facts.seen.process}"
        print_columns(
            [
                ("Agent", sanitize(agent)),
                ("Space", sanitize(books.space)),
                ("Holder", facts.holder + process),
                ("Epoch", str(facts.seen.epoch)),
                ("Depth", str(facts.depth)),
                ("Oldest", facts.oldest(books.drafts.now())),
                *((f"State {sanitize(key)}", one_line_of(value)) for key, value in state.items()),
            ]
        )

    with_books(config, target, space, read)


@app.command()
def send(
    agent: Annotated[str, typer.Argument(help="The agent's id.")],
    payload: Annotated[str, typer.Argument(help="The payload: JSON if it parses, otherwise text.")],
    kind: Annotated[str | None, typer.Option("--type", help="The type of the message. [default: message]")] = None,
    request: Annotated[bool, typer.Option("--request", help="Ask for a response, which the ledger keeps.")] = False,
    request_id: Annotated[
        str | None, typer.Option(help="A UUID of version 4. The same again is the same request. Implies --request.")
    ] = None,
    is_text: Annotated[bool, typer.Option("--text", help="Take the payload as text, even if it is JSON.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it was handled, and print the response.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds to wait. Without it, the deadline of tools that execute something."),
    ] = None,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Put a message for an agent into the ledger. The server that has the agent, or the next one, handles it.

    Exit code 1 when the ledger has never seen the agent, and with --wait when the message fails or takes too long.
    """
    if request_id is not None:
        request_id = _checked(request_id)
    value = payload if is_text else _payload_in(payload)
    is_request = request or request_id is not None

    async def accept(books: Books) -> None:
        await _agents(books, agent)
        entry = await _accept(books, agent, value, kind, is_request, request_id)
        if wait:
            await _print_outcome(books, entry, timeout, as_json)
            return
        facts = {"number": entry.number, "messageId": entry.message_id, "status": entry.status.value}
        if as_json:
            print_shown({**facts, **({"requestId": entry.request_id} if is_request else {})})
        else:
            asked = f", request {entry.request_id}" if is_request else ""
            typer.echo(f"{'accepted' if entry.is_new else 'known'} as message {entry.number}{asked}")

    with_books(config, target, space, accept)


def _payload_in(text: str) -> Any:
    """The payload that a word is; or the end of the command, for what was meant as JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        if text.lstrip()[:1] in ("{", "["):
            refuse(f"PAYLOAD is not valid JSON: {error}. Correct it, or send it as text with --text")
        return text


def _checked(request_id: str) -> str:
    """A request id as the ledger has it; or the end of the command."""
    asked = request_id.lower()
    try:
        is_fit = UUID(asked).version == 4 and str(UUID(asked)) == asked
    except ValueError:
        is_fit = False
    if not is_fit:
        refuse("--request-id must be a UUID of version 4")
    return asked


async def _accept(
    books: Books, agent: str, value: Any, kind: str | None, is_request: bool, request_id: str | None
) -> LedgerEntry:
    from dragoman.access.callers import LOCAL
    from dragoman.agents.senders import client_source
    from dragoman.errors import RequestConflict

    drafts, source = books.drafts, client_source(LOCAL)
    if is_request:
        asked = request_id or drafts.message_id()
        entry = drafts.make("REQUEST", agent, value, kind or "request", source, LOCAL, None, asked)
    else:
        entry = drafts.make("EVENT", agent, value, kind or "message", source, LOCAL, None)
    try:
        return await books.ledger.accept(entry)
    except RequestConflict:
        refuse("the request id was used before, for another request", code=FAILED)


async def _print_outcome(books: Books, entry: LedgerEntry, timeout: float | None, as_json: bool) -> None:
    """Wait until a message has ended, and print the response to it; or the end of the command."""
    from dragoman.agents.awaited import stored_outcome
    from dragoman.clock import sleep

    clock = books.drafts.clock
    patience = timeout or books.config.timeouts.tool_timeouts.execution / 1000
    deadline = clock.monotonic() + patience
    number, found = entry.number, [entry]
    while found and found[0].is_open and clock.monotonic() < deadline:
        await sleep(clock, _LOOK_SECONDS)
        found = await books.ledger.get([number])
    if not found:
        refuse(f"message {number} is no longer in the ledger: somebody has redriven or purged it", code=FAILED)
    if found[0].is_open:
        refuse(
            f"message {number} is {found[0].status.value} after {patience:g} s, and stays in the ledger",
            f"see `dragoman messages show {number}`",
            code=FAILED,
        )
    outcome = await stored_outcome(books.ledger, found[0])
    if outcome.error is not None:
        refuse(f"message {number} is {found[0].status.value}: {sanitize(outcome.error.message)}", code=FAILED)
    if found[0].kind == "REQUEST":
        print_shown(outcome.value)
    elif as_json:
        print_shown({"number": number, "messageId": found[0].message_id, "status": found[0].status.value})
    else:
        note(f"message {number} is {found[0].status.value}")


async def _agents(books: Books, *wanted: str) -> dict[str, AgentFacts]:
    """The agents that the ledger has seen, or those of them that are wanted, by id."""
    from dragoman.adapters.sqlite_ledger_overview import agents_in

    seen = agents_in(books.folder, books.space)
    if wanted:
        unknown = [each for each in wanted if each not in seen]
        if unknown:
            hint = nearest(unknown[0], seen)
            refuse(sanitize(f"the ledger of {books.space} has never seen an agent {unknown[0]!r}{hint}"), code=FAILED)
        seen = {each: seen[each] for each in wanted}
    queues = await books.admin.queues(tuple(seen), sys.maxsize)
    return {each: AgentFacts(each, agent, queues.get(each)) for each, agent in seen.items()}

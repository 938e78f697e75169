"""Messages to agents and dead actions, as `dragoman messages` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.agents.ledger import EntryStatus, LedgerEntry
from dragoman.cli.dead_letters import LetterKind, LetterNumber, Letters
from dragoman.cli.ledger_access import Books, note, print_shown
from dragoman.cli.output import print_columns
from dragoman.telemetry.causes import causes_in, described_causes
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.gateway.dead_letters import DeadAction

_HEADER = ("NUMBER", "STATUS", "KIND", "FROM", "TO", "SEQ", "ATTEMPTS", "ACCEPTED", "REQUEST")


def print_listed(
    config: Config, shown: Sequence[LedgerEntry | DeadAction], after: int | str | None, as_json: bool
) -> None:
    """Print a page, and the number behind which the next one begins, if there is one."""
    if as_json:
        print_shown({"messages": [redacted_facts(config, _listed(each)) for each in shown], "after": after})
        return
    if shown:
        print_columns([_HEADER, *map(_row, shown)])
    else:
        note("there are no such messages")
    if after is not None:
        note(f"there are more: --after {after}")


def _listed(message: LedgerEntry | DeadAction) -> dict[str, Any]:
    from dragoman.agents.tools import described

    if isinstance(message, LedgerEntry):
        return {"number": message.number, **described(message)}
    return action_facts(message)


def _row(message: LedgerEntry | DeadAction) -> tuple[str, ...]:
    from dragoman.agents.tools import iso

    start: tuple[str, ...]
    if isinstance(message, LedgerEntry):
        start = str(message.number), message.status.value, message.kind, message.source, message.target
        end = str(message.seq), str(message.attempts), iso(message.accepted_at), message.request_id or "-"
    else:
        start = message.name, "dead", "ACTION", message.author or "-", message.tenant
        end = "-", str(message.attempts), iso(message.published_at), message.request_id or "-"
    return tuple(map(sanitize, (*start, *end)))


def named(number: LetterNumber, shown: int | str | None = None) -> str:
    """A message with its number, or with another one."""
    what = "message" if number.kind is LetterKind.AGENT else "action"
    return f"{what} {number.shown if shown is None else shown}"


async def with_contents(books: Books, entry: LedgerEntry) -> dict[str, Any]:
    """A message as `messages show` has it. Not redacted."""
    from dragoman.agents.tools import described

    facts = {"number": entry.number, **described(entry)}
    if causes := causes_in(entry.error):
        facts["causes"] = described_causes(causes)
    content = entry.payload
    if entry.completion_ref is not None:  # A large one is kept apart.
        content = await books.ledger.result(entry.owner, entry.request_id or "") or b""
    told: Any = msgspec.json.decode(content) if content else None
    facts |= {"payload": told} if entry.kind == "RESPONSE" else told
    if entry.kind == "REQUEST" and entry.status is EntryStatus.COMPLETED:
        result = await books.ledger.result(entry.owner, entry.request_id or "")
        facts["response"] = None if result is None else msgspec.json.decode(result)
    return facts


def redacted_facts(config: Config, facts: dict[str, Any]) -> dict[str, Any]:
    """Facts without the values that the log would not have."""
    from dragoman.telemetry.log import make_cleaner

    made: dict[str, Any] = make_cleaner(config.logging).redact(facts)
    return made


def action_facts(letter: DeadAction) -> dict[str, Any]:
    """A dead action as a list has it. Not redacted."""
    from dragoman.agents.tools import iso

    return {
        "number": letter.name,
        "status": "dead",
        "messageType": "ACTION",
        "action": letter.action,
        "author": letter.author,
        "tenant": letter.tenant,
        "isAccepted": letter.is_accepted,
        "attempts": letter.attempts,
        "acceptedAt": iso(letter.published_at),
        "diedAt": iso(letter.died_at),
        "requestId": letter.request_id,
        "error": msgspec.to_builtins(letter.error),
    }


async def whole_action(letters: Letters, number: int) -> dict[str, Any] | None:
    """A dead action with its envelope and every error; None if there is none. Not redacted."""
    from dragoman.gateway.dead_letters import content_of, described, errors_of

    assert letters.actions is not None
    letter = await letters.actions.find(number)
    if letter is None:
        return None
    facts = action_facts(described(letter))
    del facts["error"]
    return {**facts, "errors": errors_of(letter), **content_of(letter.message)}

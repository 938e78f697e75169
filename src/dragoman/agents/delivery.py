"""A message on its way to an agent's handler."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from dragoman.access.callers import LOCAL, Caller
from dragoman.agents.ledger import LedgerEntry, NewEntry
from dragoman.agents.message import AgentMessage
from dragoman.agents.senders import as_caller
from dragoman.calls.call import Call, Outcome


class Delivery(Struct, eq=False):
    """A message that waits for the agent, or is being handled."""

    message: AgentMessage
    source: str | None = None
    entry: LedgerEntry | None = None
    """The message in the ledger, if it is there."""
    caller: Caller = LOCAL
    correlation_id: str | None = None
    reply: Callable[[Outcome], None] | None = None
    """Tells the sender of a message that is not in the ledger."""
    attempts: int = 0
    call: Call | None = None
    has_begun: bool = False
    sends: list[NewEntry] = msgspec.field(default_factory=list)
    requests: int = 0
    """How many requests the handler has made."""


def delivery_of(entry: LedgerEntry) -> Delivery:
    """A message of the ledger as a worker queues it."""
    told = msgspec.json.decode(entry.payload)
    message = AgentMessage(told["type"], told["payload"], entry.source)
    correlation_id = entry.correlation_id or None
    return Delivery(message, entry.source, entry, as_caller(entry.caller), correlation_id, attempts=entry.attempts)

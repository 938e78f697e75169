"""Messages and settlements for tests of the ledger."""

from __future__ import annotations

from typing import Any

from dragoman.agents.ledger import Hold, Ledger, LedgerEntry, NewEntry, Settlement


def event(message_id: str, source: str = "x", target: str = "a", **facts: Any) -> NewEntry:
    told = {"payload": b'"p"', "accepted_at": 1.0, "expires_at": 100.0, "owner": source, "kind": "EVENT", **facts}
    return NewEntry(message_id=message_id, source=source, target=target, **told)


def request(message_id: str, request_id: str = "r", source: str = "x", target: str = "a", **facts: Any) -> NewEntry:
    return event(message_id, source, target, kind="REQUEST", request_id=request_id, **facts)


def response(to: LedgerEntry, payload: bytes, message_id: str = "answer") -> NewEntry:
    return event(
        message_id,
        to.target,
        to.source,
        kind="RESPONSE",
        owner=to.owner,
        request_id=to.request_id,
        payload=payload,
        expires_at=to.expires_at,
    )


async def held(ledger: Ledger, agent: str = "a") -> Hold:
    hold = await ledger.hold(agent)
    assert hold is not None
    return hold


def done(hold: Hold, entry: LedgerEntry | None, later: int = 0, **facts: Any) -> Settlement:
    """A settlement of a holder that is the first one, or so many later."""
    told = {"epoch": hold.epoch, "version": hold.version + later, "at": 5.0, **facts}
    return Settlement(agent=hold.agent, number=None if entry is None else entry.number, **told)


async def found(ledger: Ledger, entry: LedgerEntry) -> LedgerEntry:
    (found,) = await ledger.get([entry.number])
    return found

"""The checks at the end: each accepted message has had its effect once, in order, and one outcome.

1. Nothing is open, and the ledger contradicts none of its own rules.
2. A request has one row in the ledger, and all answers to it are the same: that of the row.
3. Agents have recorded exactly the messages that completed, each once, and those of a pair in their order.
4. A message that an agent sends on is in the ledger once for each handling that completed.
5. `outside` work that was interrupted is UNKNOWN, and was done at most once. Other work ends in a response, or as a
   dead letter after the last attempt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from chaos.asks import Ask
from dragoman.agents.ledger import EntryStatus, LedgerEntry

MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Found:
    """The state of everything at the end."""

    asks: Sequence[Ask]
    entries: Sequence[LedgerEntry]
    states: Mapping[str, Mapping[str, Any]]
    outside: Counter[tuple[str, str]]
    """How often an agent has done an item outside of the ledger."""
    contradictions: Sequence[str] = ()


def problems_in(found: Found) -> list[str]:
    """Everything that is not as it must be, in words."""
    return [
        *found.contradictions,
        *_wrong_ends(found),
        *_wrong_answers(found),
        *_wrong_states(found),
        *_wrong_sends(found),
        *_wrong_outside(found),
    ]


def item_of(entry: LedgerEntry) -> str:
    """The subject of a message."""
    item: str = msgspec.json.decode(entry.payload)["payload"]
    return item


def _handled(found: Found) -> Iterator[LedgerEntry]:
    return (entry for entry in found.entries if entry.kind != "RESPONSE")


def _wrong_ends(found: Found) -> Iterator[str]:
    for entry in _handled(found):
        name = f"message {entry.number} to {entry.target}"
        if entry.is_open:
            yield f"{name} is still {entry.status}"
        elif entry.status is EntryStatus.UNKNOWN and entry.target != "outside":
            yield f"{name} is unknown, though it may be repeated"
        elif entry.status is EntryStatus.DEAD and entry.attempts < MAX_ATTEMPTS:
            yield f"{name} is dead after {entry.attempts} attempts"
        elif entry.status in (EntryStatus.FAILED, EntryStatus.EXPIRED):
            yield f"{name} is {entry.status}"


def _wrong_answers(found: Found) -> Iterator[str]:
    rows: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in found.entries:
        if entry.kind == "REQUEST" and entry.source.startswith("client:"):
            rows[entry.request_id or ""].append(entry)
    asked = {ask.request_id: ask for ask in found.asks}
    for request_id in rows.keys() - asked.keys():
        yield f"nobody asked {request_id}"
    for request_id, ask in asked.items():
        name = f"request {request_id} to {ask.target}"
        if len(rows[request_id]) != 1:
            yield f"{name} is in the ledger {len(rows[request_id])} times"
            continue
        (entry,) = rows[request_id]
        if not ask.answers:
            yield f"{name} has no answer"
        elif any(answer != ask.answers[0] for answer in ask.answers):
            yield f"{name} has different answers: {ask.answers}"
        elif entry.status is EntryStatus.COMPLETED:
            if ask.answers[0] != found.states.get(ask.target, {}).get(ask.item):
                yield f"{name} was answered {ask.answers[0]}, which is not what its agent recorded"
        elif entry.error is None or ask.answers[0] != _told(entry.error):
            yield f"{name} is {entry.status}, and was answered {ask.answers[0]}"


def _told(error: bytes) -> dict[str, Any]:
    stored = msgspec.json.decode(error)
    return {key: stored.get(key) for key in ("code", "message", "details")}


def _wrong_states(found: Found) -> Iterator[str]:
    completed: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in _handled(found):
        if entry.status is EntryStatus.COMPLETED:
            completed[entry.target].append(entry)
    for agent in completed.keys() | found.states.keys():
        recorded = dict(found.states.get(agent, {}))
        count = recorded.pop("count", 0)
        items = Counter(map(item_of, completed[agent]))
        for item, times in items.items():
            if times > 1:
                yield f"{agent} has completed {item} {times} times"
        for item in sorted(items.keys() - recorded.keys()):
            yield f"{agent} has lost {item}"
        for item in sorted(recorded.keys() - items.keys()):
            yield f"{agent} has recorded {item}, which did not complete"
        if sorted(recorded.values()) != list(range(1, count + 1)):
            yield f"{agent} has counted to {count} over {len(recorded)} items"
        yield from _wrong_order(agent, recorded, completed[agent])


def _wrong_order(agent: str, recorded: Mapping[str, int], completed: Sequence[LedgerEntry]) -> Iterator[str]:
    last: dict[str, tuple[int, str]] = {}
    for entry in sorted(completed, key=lambda each: each.seq):
        turn = recorded.get(item_of(entry), 0)
        before, earlier = last.get(entry.source, (0, ""))
        if 0 < turn < before:
            yield f"{agent} has handled {item_of(entry)} before {earlier}, which was sent before it"
        last[entry.source] = (turn, item_of(entry))


def _wrong_sends(found: Found) -> Iterator[str]:
    relayed = Counter(item_of(each) for each in _handled(found) if each.target == "relay" and _is_done(each))
    sent = Counter(item_of(each) for each in _handled(found) if each.target == "sink")
    for item in sorted((relayed | sent).keys()):
        if relayed[item] != sent[item]:
            yield f"relay has completed {item} {relayed[item]} times, and sent it on {sent[item]} times"
    asked = Counter(item_of(each) for each in _handled(found) if each.source == "asker")
    for entry in _handled(found):
        if entry.target == "asker" and _is_done(entry) and asked[f"{item_of(entry)} of asker"] != 1:
            yield f"asker has completed {item_of(entry)}, and asked {asked[f'{item_of(entry)} of asker']} times"


def _wrong_outside(found: Found) -> Iterator[str]:
    for entry in _handled(found):
        if entry.target not in ("outside", "again"):
            continue
        times, item = found.outside[entry.target, item_of(entry)], item_of(entry)
        if _is_done(entry) and times == 0:
            yield f"{entry.target} has completed {item}, and not done it"
        if entry.target == "outside" and times > 1:
            yield f"outside has done {item} {times} times"
        if entry.target == "outside" and times and not (_is_done(entry) or entry.status is EntryStatus.UNKNOWN):
            yield f"outside has done {item}, which is {entry.status}"


def _is_done(entry: LedgerEntry) -> bool:
    return entry.status is EntryStatus.COMPLETED

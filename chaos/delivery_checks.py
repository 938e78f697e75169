"""The checks of requests that are carried out later.

1. A request that is known to be accepted has one answer: all that were read are the same, and the one that is kept.
2. It has one effect: the audit has it once, with the revision in the answer. One that failed has none.
3. The revisions of a document are 1, 2, 3 and so on; the newest is the document's, and the audit has an event for each.
4. There is one reply to it, with that answer. Each repeat on the bus may have led to one more, with the same answer.
5. One that failed is a dead letter, and so is each message that was refused, whose sender has one reply, if it is
   known. There is no other dead letter, and no other reply.
6. No message waits or is held, and the ledger has no contradictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from chaos.action_checks import wrong_documents
from chaos.deliveries import FORBIDDEN, NEVER_ACCEPTED, ORPHAN, Handed
from dragoman.knowledge.port import AuditEvent


class Reply(NamedTuple):
    """A reply on the bus."""

    id: str
    payload: Any


@dataclass(frozen=True)
class DeliveriesFound:
    """The state of everything at the end. Replies, dead letters and answers are by the request's id."""

    handed: Sequence[Handed]
    events: Sequence[AuditEvent]
    documents: Mapping[str, int]
    """The revision of each document, by its id."""
    revisions: Mapping[str, Sequence[int]]
    """The revisions that are kept of each document."""
    kept: Mapping[str, bytes | None]
    """The answer to each request that was accepted."""
    replies: Mapping[str, Sequence[Reply]]
    dead: Mapping[str, Sequence[str]]
    """The subjects of the dead letters."""
    left: Sequence[str] = ()
    """Messages that wait or are held."""
    contradictions: Sequence[str] = ()
    redelivered: int = 0
    """How many messages were delivered more than once."""


def problems_with_deliveries(found: DeliveriesFound) -> list[str]:
    """Everything that is not as it must be, in words."""
    return [
        *found.contradictions,
        *(f"{message} is left" for message in found.left),
        *(problem for handed in found.handed for problem in _wrong_request(handed, found)),
        *wrong_documents(found.events, found.documents, found.revisions),
        *_unasked(found),
    ]


def _wrong_request(handed: Handed, found: DeliveriesFound) -> Iterator[str]:
    id = handed.request_id
    replies, dead = found.replies.get(id, ()), len(found.dead.get(id, ()))
    noted = [event.details["revision"] for event in found.events if _id_of(event) == handed.correlation_id]
    if handed.kind in NEVER_ACCEPTED:
        wanted = (handed.published, handed.published if handed.kind == FORBIDDEN else 0, False, [])
        if (dead, len(replies), id in found.kept, noted) != wanted:
            yield f"{handed.name} has {dead} dead letters, {len(replies)} replies, and revisions {noted}"
        return
    if not handed.answers:
        yield f"{handed.name} has no answer"
        return
    answer = handed.answers[0]
    if any(each != answer for each in handed.answers):
        yield f"{handed.name} has different answers: {handed.answers}"
    if found.kept.get(id) != answer:
        yield f"{handed.name} was answered {answer!r}, and {found.kept.get(id)!r} is kept"
    told = msgspec.json.decode(answer)
    if told["ok"] is (handed.kind == ORPHAN):
        yield f"{handed.name} was answered {answer!r}"
    if noted != ([told["data"].get("revision")] if told["ok"] else []):
        yield f"{handed.name} was answered {answer!r}, and the audit has revisions {noted}"
    if dead != (not told["ok"]):
        yield f"{handed.name} has {dead} dead letters"
    yield from _wrong_replies(handed, told, replies)


def _wrong_replies(handed: Handed, told: Any, replies: Sequence[Reply]) -> Iterator[str]:
    again = [reply.id for reply in replies if reply.id.startswith("again-")]
    firsts = [reply.id for reply in replies if reply.id.startswith("reply-")]
    if len(firsts) != 1 or len(again) + len(firsts) != len(replies):
        yield f"{handed.name} has the replies {[reply.id for reply in replies]}"
    if len(again) > max(0, handed.published - (not handed.accepted)):
        yield f"{handed.name} was published {handed.published} times, and has {len(again)} replies to repeats"
    for reply in replies:
        if reply.payload != told:
            yield f"{handed.name} was answered {told}, and the reply is {reply.payload}"


def _unasked(found: DeliveriesFound) -> Iterator[str]:
    correlations = {handed.correlation_id for handed in found.handed}
    ids = {handed.request_id for handed in found.handed}
    yield from (
        f"nobody asked for {event.event} of {event.subject}"
        for event in found.events
        if _id_of(event) not in correlations
    )
    yield from (f"nobody asked for request {id}" for id in {*found.kept, *found.replies, *found.dead} - ids)


def _id_of(event: AuditEvent) -> Any:
    return event.details.get("correlation_id")

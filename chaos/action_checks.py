"""The checks of actions at the end.

1. All answers to a request are the same, whatever token it was signed with.
2. Each request is in the audit once, with the revision that its client was told, and nothing else is.
3. The revisions of a document are 1, 2, 3 and so on; the newest is the document's, and the audit has an event for each.
4. The sequence number of a stream is the newest that was used, and a request with an older one was told so.
5. The index has the passages and words of each document, and nothing of those that were deleted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaos.actions import Asked, Late
from dragoman.knowledge.port import AuditEvent


@dataclass(frozen=True)
class ActionsFound:
    """The state of everything at the end."""

    asked: Sequence[Asked]
    late: Sequence[Late]
    events: Sequence[AuditEvent]
    documents: Mapping[str, int]
    """The revision of each document, by its id; of deleted ones too."""
    revisions: Mapping[str, Sequence[int]]
    """The revisions that are kept of each document."""
    seqs: Mapping[str, int]
    """By context, the newest sequence number."""
    passages: Sequence[str] = ()
    """What is wrong with the index, in words."""


def problems_with_actions(found: ActionsFound) -> list[str]:
    """Everything that is not as it must be, in words."""
    return [
        *_wrong_answers(found),
        *wrong_documents(found.events, found.documents, found.revisions),
        *_wrong_streams(found),
        *found.passages,
    ]


def _wrong_answers(found: ActionsFound) -> Iterator[str]:
    events: dict[str, list[AuditEvent]] = defaultdict(list)
    for event in found.events:
        events[event.details["correlation_id"]].append(event)
    for unasked in events.keys() - {asked.correlation_id for asked in found.asked}:
        yield f"nobody asked for {events[unasked][0].event} of {events[unasked][0].subject}"
    for asked in found.asked:
        name = f"{asked.action} {asked.key}"
        noted = [event.details["revision"] for event in events[asked.correlation_id]]
        if not asked.answers:
            yield f"{name} has no answer"
        elif any(answer != asked.answers[0] for answer in asked.answers):
            yield f"{name} has different answers: {asked.answers}"
        elif noted != [asked.answers[0].get("revision")]:
            yield f"{name} was answered {asked.answers[0]}, and the audit has revisions {noted}"


def wrong_documents(
    events: Sequence[AuditEvent], documents: Mapping[str, int], revisions: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    """Documents whose revisions have gaps, or another number than the audit has events."""
    noted = Counter(event.subject for event in events)
    for id in documents.keys() | revisions.keys() | noted.keys():
        kept, newest = revisions.get(id, ()), documents.get(id, 0)
        if sorted(kept) != list(range(1, newest + 1)):
            yield f"document {id} has revision {newest}, and {sorted(kept)} are kept"
        if noted[id] != newest:
            yield f"document {id} has revision {newest}, and the audit has {noted[id]} events"


def _wrong_streams(found: ActionsFound) -> Iterator[str]:
    newest: dict[str, int] = {}
    for asked in found.asked:
        if asked.answers:
            newest[asked.context_id] = max(asked.seq, newest.get(asked.context_id, 0))
    for context, seq in newest.items():
        if found.seqs.get(context) != seq:
            yield f"{context} has come to {seq}, and {found.seqs.get(context)} is stored"
    for late in found.late:
        if late.answer != {"ignored": True, "last_seq": late.newest}:
            yield f"{late.context_id} was at {late.newest}, and a late request was told {late.answer}"

"""Dead letters of the bus, as operators see them: requests that failed for good, and messages that were refused.

1. A letter belongs to the tenant of its subject, whatever its envelope says.
2. A redrive is a new acceptance by an operator: the request has its whole time to live anew, its stored answer and its
   errors are dropped, and the audit has an event. A message that was never accepted is delivered as it is, and goes
   through all checks again.
3. Headers are not shown: those of a message that was refused may hold a token.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import msgspec
from msgspec import Struct

from dragoman.clock import Clock
from dragoman.errors import Conflict, ToolError
from dragoman.gateway.accepting import Acceptance, acceptance_in, accepted_again
from dragoman.gateway.requests import ActionRequests, RequestKey
from dragoman.knowledge.port import AuditEvent
from dragoman.messaging.bus import BusMessage, DeadLetter, DeadLetters
from dragoman.messaging.subjects import ALL_ACCEPTED, ALL_ACTIONS, accepted_subject, actions_subject, matches, name_in

PREFIX: Final = "a"
"""Before the number of a dead letter of the bus, to tell it from the number of a message to an agent."""
REDRIVEN: Final = "message.redriven"
_READ_AT_ONCE: Final = 20
"""Letters are read a few at a time: each may have a large body."""
_LONGEST_NAME: Final = 256
_UNREADABLE = (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError, ToolError)


class DeadAction(Struct, frozen=True, kw_only=True):
    """A dead letter without its body, for lists."""

    number: int
    tenant: str
    is_accepted: bool
    """False for a message that was refused before it was accepted: action and request id are what it claims."""
    action: str
    author: str | None
    """The caller; None if the message does not show who sent it."""
    request_id: str
    attempts: int
    published_at: float
    died_at: float
    error: Mapping[str, Any]
    """That of the last attempt."""

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.number}"


class Redriven(Struct, frozen=True, kw_only=True):
    """A dead letter that is delivered again."""

    number: int
    new_number: int
    tenant: str
    request_id: str


class ActionLetters:
    """Lists, finds and redrives dead letters. With `tenants`, only theirs exist. Raises `StorageError`s."""

    def __init__(self, letters: DeadLetters, requests: ActionRequests, clock: Clock) -> None:
        self._letters = letters
        self._requests = requests
        self._clock = clock

    async def page(
        self, limit: int, *, after: int = 0, died_before: float | None = None, tenants: Set[str] | None = None
    ) -> list[DeadAction]:
        """In the order of their numbers, from behind `after`."""
        patterns, found = _patterns(tenants), list[DeadAction]()
        while len(found) < limit:
            wanted = min(limit - len(found), _READ_AT_ONCE)
            read = [
                letter
                for pattern in patterns
                for letter in await self._letters.page(pattern, wanted, after=after, died_before=died_before)
            ]
            step = sorted(read, key=lambda each: each.number)[:wanted]
            found += (described(each) for each in step if _is_of(each, tenants))
            if len(step) < wanted:
                break
            after = step[-1].number
        return found

    async def find(self, number: int, tenants: Set[str] | None = None) -> DeadLetter | None:
        """A dead letter with its body."""
        letter = await self._letters.get(number)
        return letter if letter is not None and _is_of(letter, tenants) else None

    async def redrive(self, letter: DeadLetter, principal: str) -> Redriven | None:
        """Deliver a letter again, on behalf of an operator; None if it is no dead letter any longer.

        Raises `Conflict` for one that `check` refuses, and `BusFull`.
        """
        now = self._clock.now().timestamp()
        headers, request = _accepted_anew(letter, now)
        facts = described(letter)
        subject = facts.name if request is None else request.request_id
        details = {"number": facts.name, "action": facts.action, "attempts": letter.attempts}
        event = AuditEvent(
            tenant=facts.tenant, event=REDRIVEN, principal=principal, subject=subject, at=now, details=details
        )
        made = await self._requests.redrive(letter.number, headers, request, event)
        if made is None:
            return None
        return Redriven(number=letter.number, new_number=made, tenant=facts.tenant, request_id=facts.request_id)

    def check(self, letter: DeadLetter) -> None:
        """Raise `Conflict` for a letter that cannot be redriven."""
        _accepted_anew(letter, self._clock.now().timestamp())


def described(letter: DeadLetter) -> DeadAction:
    """A letter without its body."""
    claimed, acceptance = _claimed_in(letter.message.body), _acceptance_of(letter)
    errors = errors_of(letter)
    return DeadAction(
        number=letter.number,
        tenant=_tenant_of(letter.message),
        is_accepted=_is_accepted(letter.message),
        action=claimed.action[:_LONGEST_NAME],
        author=None if acceptance is None else acceptance.author,
        request_id=claimed.request_id[:_LONGEST_NAME],
        attempts=letter.attempts,
        published_at=letter.published_at,
        died_at=letter.died_at,
        error=errors[-1] if errors else {},
    )


def errors_of(letter: DeadLetter) -> list[dict[str, Any]]:
    """The errors of all attempts, the last one's last: code, message, details, attempt and time."""
    return [*map(_error_in, letter.errors)]


def _error_in(record: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(record, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):  # Any subscription can give a message up.
        return {"message": "The error cannot be read"}


def content_of(message: BusMessage) -> dict[str, Any]:
    """The envelope of a message, or the body as base64 if it is not a JSON object. Not redacted."""
    try:
        return {"envelope": msgspec.json.decode(message.body, type=dict[str, Any])}
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {"body": b64encode(message.body).decode()}


class _Claimed(Struct):
    """Fields of an envelope, whether or not the rest of it can be used. Everything else is skipped, not built."""

    tenant_id: str = ""
    action: str = ""
    request_id: str = ""


def _claimed_in(body: bytes) -> _Claimed:
    try:
        return msgspec.json.decode(body, type=_Claimed)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return _Claimed()


def _is_accepted(message: BusMessage) -> bool:
    return matches(ALL_ACCEPTED, message.subject)


def _acceptance_of(letter: DeadLetter) -> Acceptance | None:
    if not _is_accepted(letter.message):
        return None
    try:
        return acceptance_in(letter.message)
    except _UNREADABLE:
        return None


def _accepted_anew(letter: DeadLetter, now: float) -> tuple[Mapping[str, str] | None, RequestKey | None]:
    """The headers of a letter that is redriven, and its request; Nones for a message that was never accepted."""
    if not _is_accepted(letter.message):
        return None, None
    try:
        headers, key = accepted_again(letter.message, now)
    except _UNREADABLE:
        raise Conflict("Its acceptance cannot be read", {"reason": "unreadable_acceptance"}) from None
    if accepted_subject(key.tenant) != letter.message.subject:
        raise Conflict("Its envelope is that of another tenant", {"reason": "other_tenant"})
    return headers, key


def _patterns(tenants: Set[str] | None) -> Sequence[str]:
    if tenants is None:
        return ALL_ACCEPTED, ALL_ACTIONS
    return [subject(tenant) for tenant in sorted(tenants) for subject in (accepted_subject, actions_subject)]


def _is_of(letter: DeadLetter, tenants: Set[str] | None) -> bool:
    """Whether a letter is about an action, and of one of these tenants."""
    subject = letter.message.subject
    if not (matches(ALL_ACCEPTED, subject) or matches(ALL_ACTIONS, subject)):
        return False
    return tenants is None or _tenant_of(letter.message) in tenants


def _tenant_of(message: BusMessage) -> str:
    """The tenant whose name is in the subject."""
    word = message.subject.rpartition(".")[2]
    return name_in(word) or word

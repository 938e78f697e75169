"""The port to runs: calls of tools that are kept in the ledger, with an idempotency key, as a task, or both.

1. A run is a request in the ledger, whose owner is the caller. `NewRun` is stored once: a second one with the same
   request id of the same owner is the first one, found by the statement that would have added it.
2. A run that has begun belongs to one process. Each process that begins it gets a higher fence than the one before, and
   what a process stores about a run is stored only if the fence is still its own.
3. A run whose process has ended without a word is given up by `sweep`: one that may be repeated waits to be begun
   again, a call with a key by its next repeat; any other is UNKNOWN, and never runs again.
4. A question keeps its key, and its answer, for the run that asks it again in the same place and in the same words.
5. A run that has ended does not change, with one exception: the process that began it last may have been silent and
   not dead. While nobody has begun the run again, the end that this process stores late counts, also for a run that is
   UNKNOWN by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.agents.ledger import OPEN, TOOL_TARGET, EntryStatus, NewEntry
from dragoman.errors import InvalidArgument

MOST_ATTEMPTS = 5
"""A run that so many processes have ended with may be what ended them, and is UNKNOWN then."""


class NewRun(Struct, frozen=True, kw_only=True):
    """A run to be stored."""

    message_id: str
    owner: str
    tool: str
    request_id: str
    arguments: bytes
    """JSON, as they came, with sorted keys: two runs are the same request if these are equal."""
    at: float
    """Seconds of the epoch."""
    expires_at: float
    correlation_id: str
    caller: bytes | None
    is_repeatable: bool
    """Whether it may run again after its process has ended."""
    begins: bool = True
    """Whether this process begins it now. Otherwise it waits."""
    task_id: str | None = None
    capabilities: bytes = b"{}"
    """JSON of what the client can be asked."""
    answers: Sequence[StoredQuestion] = ()
    """The questions that were answered before it was stored."""

    def entry(self) -> NewEntry:
        """The request in the ledger."""
        return NewEntry(
            message_id=self.message_id,
            kind="REQUEST",
            source=self.owner,
            target=TOOL_TARGET + self.tool,
            owner=self.owner,
            payload=self.arguments,
            accepted_at=self.at,
            expires_at=self.expires_at,
            request_id=self.request_id,
            correlation_id=self.correlation_id,
            caller=self.caller,
        )


class StoredQuestion(Struct, frozen=True, kw_only=True):
    """A question to the client, and its answer once there is one."""

    key: str
    digest: str
    """Of the words."""
    place: int = 0
    """How many questions with the same words were asked before it."""
    request: bytes = b"{}"
    """JSON of method and params."""
    fence: int = 0
    """Of the run when it last asked; 0 if nobody waits for the answer."""
    answer: bytes | None = None
    """JSON of the client's result."""


class Run(Struct, frozen=True, kw_only=True):
    """A run as it is stored."""

    number: int
    owner: str
    tool: str
    request_id: str
    arguments: bytes
    status: EntryStatus
    created_at: float
    updated_at: float
    expires_at: float
    correlation_id: str
    caller: bytes | None
    fence: int
    attempts: int
    """How often it was begun and not given back."""
    is_repeatable: bool
    task_id: str | None = None
    capabilities: bytes = b"{}"
    message: str | None = None
    progress: bytes | None = None
    """JSON of what the handler last said about how far it is."""
    is_cancelled: bool = False
    """Whether its client has asked for it to be cancelled."""
    ended_at: float | None = None
    error: bytes | None = None
    """JSON of the error of a run that failed or is unknown."""
    result: bytes | None = None
    """JSON of what a completed run came to; see `stored.py`."""
    questions: Sequence[StoredQuestion] = ()
    """In the order in which they were asked."""
    is_new: bool = False
    """Whether `NewRun` has stored it."""
    is_held: bool = False
    """Whether the process that it belongs to is alive."""

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def has_key(self) -> bool:
        """Whether its request id is made of an idempotency key: that of a task without one is the task's own."""
        return self.request_id != self.task_id

    @property
    def waits_for_repeat(self) -> bool:
        """Whether it is a call whose process was lost, and whose next repeat is to begin it."""
        return self.task_id is None and self.status is EntryStatus.WAITING

    def response(self, done: Ended, result: bytes) -> NewEntry:
        """The response in the ledger, which is kept as long as the request."""
        return NewEntry(
            message_id=done.message_id,
            kind="RESPONSE",
            source=TOOL_TARGET + self.tool,
            target=self.owner,
            owner=self.owner,
            payload=result,
            accepted_at=done.at,
            expires_at=self.expires_at,
            request_id=self.request_id,
            correlation_id=self.correlation_id,
        )

    @property
    def pending(self) -> Sequence[StoredQuestion]:
        """The questions that its client has yet to answer."""
        if self.status is not EntryStatus.RUNNING:
            return ()
        return [each for each in self.unanswered if each.fence == self.fence]

    @property
    def unanswered(self) -> Sequence[StoredQuestion]:
        """The same, and what an earlier process asked: its client may answer before this one asks it again."""
        return [each for each in self.questions if each.answer is None and each.fence > 0]


class Begin(Struct, frozen=True):
    """This process begins a run that waits."""

    number: int
    at: float


class Note(Struct, frozen=True):
    """How far the handler is."""

    number: int
    fence: int
    at: float
    message: str | None
    progress: bytes


class QuestionAsked(Struct, frozen=True):
    """The handler asks the client something, for the first time or again. The store makes the key."""

    number: int
    fence: int
    at: float
    digest: str
    place: int
    request: bytes


class Unasked(Struct, frozen=True):
    """The handler has gone on without an answer, and nobody waits for one any longer."""

    number: int
    fence: int
    at: float
    digest: str
    place: int


class Answered(Struct, frozen=True):
    """The client answers; by key, JSON of its results. Keys that are not asked, or were answered, are ignored."""

    number: int
    at: float
    answers: Mapping[str, bytes]


class Cancelled(Struct, frozen=True):
    """The client asks for a run to be cancelled. One that waits ends at once."""

    number: int
    at: float
    expires_at: float


class Ended(Struct, frozen=True, kw_only=True):
    """A run has ended."""

    number: int
    fence: int
    at: float
    expires_at: float
    status: EntryStatus
    result: bytes | None = None
    error: bytes | None = None
    message_id: str = ""
    """Of the response that holds the result."""


class Released(Struct, frozen=True):
    """This process gives a run up that may be repeated: a task waits again, any other run is forgotten."""

    number: int
    fence: int
    at: float


RunChange: TypeAlias = Begin | Note | QuestionAsked | Unasked | Answered | Cancelled | Ended | Released


class RunQuery(Struct, frozen=True, kw_only=True):
    """A filter for runs. None matches any."""

    owner: str | None = None
    tool: str | None = None
    statuses: tuple[EntryStatus, ...] | None = None
    tasks_only: bool = True
    before: int | None = None
    """Only runs with a lower number."""
    oldest_first: bool = False
    limit: int = 100


class Runs(Protocol):
    """Raises `StorageError`s; `LeaseLost` where a run has ended, is gone or belongs to another process by now."""

    def add(self, run: NewRun) -> Awaitable[Run]:
        """Store a run, or find the one that was stored before under its owner and request id.

        Raises `RequestConflict` for a request id that was used with another tool or other arguments.
        """
        ...

    def change(self, change: RunChange) -> Awaitable[Run]:
        """Store a change of a run; returns the run after it, without its result."""
        ...

    async def find(self, *, task_id: str | None = None, owner: str = "", request_id: str = "") -> Run | None:
        """A run by its task id, or by its owner and request id, with its questions and its result."""
        ...

    async def page(self, query: RunQuery) -> list[Run]:
        """Runs from the newest to the oldest, or the opposite, without results. Those that run have their questions."""
        ...

    async def count(self) -> Mapping[str, Any]:
        """How many tasks there are by status, and when the oldest that is open was created."""
        ...

    async def sweep(self, at: float, unknown: bytes) -> int:
        """Give up the runs whose process has ended; those that are UNKNOWN get the error `unknown`. How many."""
        ...

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        """As `Ledger.watch`. Both may be called on one storage."""
        ...

    def look_often(self) -> Callable[[], None]:
        """As `Ledger.look_often`; otherwise, `changed` may take half a second."""
        ...

    async def close(self, at: float, unknown: bytes) -> None:
        """Give up everything that this process has begun and not ended."""
        ...


def encoded_arguments(arguments: Any) -> bytes:
    """Arguments as `NewRun` has them; raises `InvalidArgument` when they have no such form."""
    try:
        return _encode_sorted(arguments)
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise InvalidArgument("Arguments cannot be serialised", {"reason": "arguments_not_serializable"}) from None


_encode_sorted = msgspec.json.Encoder(order="deterministic").encode

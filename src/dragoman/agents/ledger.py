"""The port to the ledger: the messages that were accepted, what became of each, and the state of agents.

1. A message is accepted once `accept` has returned it. A second request with the same id of the same source is the
   first one: it is found by the statement that would have added it.
2. An agent belongs to one holder at a time. Each holder gets a higher epoch than the one before, and each settlement
   raises the agent's version by one.
3. A settlement is all of a handling's effects: what became of the message, the state, the messages that it sends and
   the response. All of them are stored together, and only if epoch and version are the expected ones.
4. Settlements are stored in the order in which `settle` is called, so the next handling may begin before the last one
   is stored. If one is refused, so are those that build on it.
5. A message that ended keeps its place in its pair: sequence numbers are never used twice, and never forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

LARGE_RESULT = 65_536
"""Bytes. A larger result is kept apart from its message, behind a `completionRef`."""

MessageKind: TypeAlias = Literal["REQUEST", "RESPONSE", "EVENT"]


class EntryStatus(StrEnum):
    """The state of a message."""

    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


OPEN = (EntryStatus.WAITING, EntryStatus.RUNNING, EntryStatus.RETRYING)
"""The handling of such a message is still to come, or under way."""

PARKED = (EntryStatus.DEAD, EntryStatus.UNKNOWN)
"""An operator may have such a message handled again."""

TOOL_TARGET = "tool:"
"""The prefix of a run's target in the ledger, before the tool's name. No agent's id begins with it."""

STATUS_MEANINGS = {
    EntryStatus.WAITING: "Accepted, and not begun.",
    EntryStatus.RUNNING: "Begun by an agent whose effects are outside of the ledger.",
    EntryStatus.RETRYING: "Failed, and due to be tried again.",
    EntryStatus.COMPLETED: "Handled; its effects are stored.",
    EntryStatus.FAILED: "The agent refused it. It is not tried again.",
    EntryStatus.UNKNOWN: "The process ended while an agent with effects outside of the ledger handled it.",
    EntryStatus.DEAD: "Failed at the last attempt. An operator may redrive it.",
    EntryStatus.EXPIRED: "Not handled within its time to live.",
    EntryStatus.CANCELLED: "A task that its client cancelled, and that stopped for it.",
}


class NewEntry(Struct, frozen=True, kw_only=True):
    """A message to be accepted."""

    message_id: str
    kind: MessageKind
    source: str
    target: str
    owner: str
    """The source of the request that it belongs to."""
    payload: bytes
    """JSON."""
    accepted_at: float
    """Seconds of the epoch."""
    expires_at: float
    request_id: str | None = None
    correlation_id: str = ""
    caller: bytes | None = None
    """JSON of the caller that it is handled for; None: the owner of the process."""
    chain: tuple[str, ...] = ()
    """The agents that wait for its response."""


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """A message in the ledger."""

    number: int
    """In the order of acceptance."""
    message_id: str
    kind: MessageKind
    source: str
    target: str
    owner: str
    seq: int
    payload: bytes
    accepted_at: float
    expires_at: float
    status: EntryStatus
    request_id: str | None = None
    correlation_id: str = ""
    caller: bytes | None = None
    chain: tuple[str, ...] = ()
    attempts: int = 0
    due_at: float = 0.0
    """When it is tried again, in seconds of the epoch."""
    fence: int = 0
    """The epoch of the holder that began or ended it."""
    ended_at: float | None = None
    completion_ref: str | None = None
    error: bytes | None = None
    """JSON of a `StructuredError`, of the last attempt."""
    is_new: bool = True
    """False where `accept` found it."""

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def is_of_run(self) -> bool:
        """Whether it is a run of a tool, or the result of one. No message to or from an agent is."""
        return self.target.startswith(TOOL_TARGET) or self.source.startswith(TOOL_TARGET)

    @property
    def can_be_redriven(self) -> bool:
        """Whether an operator may have it handled again. A run of a tool never is."""
        return self.status in PARKED and not self.is_of_run

    def again(self, message_id: str, at: float, expires_at: float) -> NewEntry:
        """The same message, to be accepted once more. Nobody waits for it any longer."""
        return NewEntry(
            message_id=message_id,
            kind=self.kind,
            source=self.source,
            target=self.target,
            owner=self.owner,
            payload=self.payload,
            accepted_at=at,
            expires_at=expires_at,
            request_id=self.request_id,
            correlation_id=self.correlation_id,
            caller=self.caller,
        )


class Hold(Struct, frozen=True):
    """An agent, as its holder found it."""

    agent: str
    epoch: int
    version: int
    state: Mapping[str, bytes]
    """JSON by key."""
    has_crashed: bool = False
    """Whether the holder before ended without giving it back."""


class Settlement(Struct, frozen=True, kw_only=True):
    """The effects of one handling."""

    agent: str
    epoch: int
    version: int
    """The agent's version that the handling began with, or that the settlement before it makes."""
    at: float
    number: int | None = None
    """The message; None for one that is not in the ledger."""
    status: EntryStatus = EntryStatus.COMPLETED
    error: bytes | None = None
    attempts: int = 0
    due_at: float = 0.0
    message_id: str | None = None
    """The new id of a message that is tried again."""
    state: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)
    """The keys that changed; None for those that are gone."""
    sends: Sequence[NewEntry] = ()
    """The response, if it is a request, and the messages that the handler sent."""


class Query(Struct, frozen=True, kw_only=True):
    """A filter for messages. None matches any. Runs of tools are never found."""

    source: str | None = None
    target: str | None = None
    statuses: tuple[EntryStatus, ...] | None = None
    kinds: tuple[MessageKind, ...] | None = None
    request_id: str | None = None
    owner: str | None = None
    correlation_id: str | None = None
    """There is no index for it: give `after` and `before` besides."""
    accepted_before: float | None = None
    after: int = 0
    """Only messages with a higher number."""
    before: int | None = None
    """Only messages with a lower number."""
    newest_first: bool = False
    limit: int = 100


EXACT = ("source", "target", "owner", "request_id", "correlation_id")
"""The exact values that a query names."""


class AgentQueue(Struct, frozen=True):
    """The open messages of an agent that has any."""

    depth: int
    oldest: float
    """When the oldest was accepted, in seconds of the epoch."""


class Ledger(Protocol):
    """Raises `StorageError`s; `LeaseLost` where an agent has another holder by now."""

    def accept(self, entry: NewEntry) -> Awaitable[LedgerEntry]:
        """Add a message behind those of its pair, or find the request that was accepted before.

        Raises `RequestConflict` for a request whose id was used with another target or payload.
        """
        ...

    async def hold(self, agent: str) -> Hold | None:
        """Become the holder of an agent; None while another process that is alive holds it."""
        ...

    async def release(self, agents: Sequence[str]) -> None:
        """Give agents back, for another process to hold at once."""
        ...

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        """Note that the handling of a message begins, for agents whose effects are not in the ledger."""
        ...

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        """Store all effects of a handling, or none; returns what was sent."""
        ...

    async def waiting(self, agent: str, after: int, limit: int) -> list[LedgerEntry]:
        """The open messages of an agent that were accepted after a number, in order."""
        ...

    async def news(self, after: int) -> tuple[list[LedgerEntry], int]:
        """The open messages of all agents that were accepted after a number, and the highest number by now."""
        ...

    async def state(self, agent: str) -> Mapping[str, bytes]:
        """The stored state of an agent, JSON by key."""
        ...

    async def get(self, numbers: Sequence[int]) -> list[LedgerEntry]:
        """Messages by their numbers; those that there are."""
        ...

    async def result(self, owner: str, request_id: str) -> bytes | None:
        """JSON of what a request was answered with; None unless it completed."""
        ...

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        """Renew the lease of this process while `is_alive`, and call `changed` when the ledger has changed.

        `lost` is called when something that another process held may be taken over. All three are called from another
        thread. Other processes may take over what a process holds whose lease has run out. Once only, until `close`.
        """
        ...

    def look_often(self) -> Callable[[], None]:
        """Have `changed` called within 50 ms, and not only within 250, until the function that this returns is called.

        For those that wait for another process. `watch` comes first.
        """
        ...

    async def close(self) -> None:
        """Give everything back that this process holds."""
        ...


class LedgerAdmin(Protocol):
    """The operators' side of a ledger, usable beside running servers. Raises `StorageError`s."""

    async def page(self, query: Query) -> list[LedgerEntry]:
        """A page of messages, in the order of acceptance or the opposite one."""
        ...

    async def redrive(self, number: int, message_id: str, at: float, expires_at: float) -> LedgerEntry | None:
        """Accept a message again that is dead or unknown, behind all others; None if it is neither."""
        ...

    async def purge(self, now: float, limit: int) -> int:
        """Delete up to so many messages that ended and expired; how many."""
        ...

    async def queues(self, agents: Sequence[str], most: int) -> Mapping[str, AgentQueue]:
        """The queues of these agents. At most so many messages of each are counted, so that it takes no time."""
        ...

    async def figures(self, *, by_status: bool = True) -> dict[str, Any]:
        """By agent the depth and the age of the oldest message; counts by status, for which every message is read."""
        ...

    async def verify(self) -> list[str]:
        """Everything that contradicts the rules of the ledger, in words."""
        ...

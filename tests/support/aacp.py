"""Agents that talk over a link which loses, repeats, delays and reorders, on a clock that tests move."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dragoman.agents.aacp import (
    AACPEncoder,
    AACPEndpoint,
    AACPEnvelope,
    AACPHooks,
    AACPLedger,
    AACPLink,
    AACPMessageType,
    AACPPersistenceAdapter,
    AACPReceipt,
    AACPRecords,
    AACPRetryPolicy,
    AACPSessionManager,
    DirectLink,
    InMemoryAACPPersistenceAdapter,
    Receiver,
)
from dragoman.testing import ManualClock

NOW = "2024-01-15T10:30:00.000Z"
POLICY = AACPRetryPolicy(base_delay_ms=1_000, max_delay_ms=8_000)


def uuid(number: int) -> str:
    """A UUID of version 4 that can be foreseen."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def uuids() -> Callable[[], str]:
    """A source of ids: `uuid(1)`, `uuid(2)` and so on."""
    numbers = count(1)
    return lambda: uuid(next(numbers))


def envelope(**changes: Any) -> AACPEnvelope:
    """A valid request from `a` to `b`, but for what is changed."""
    fields: dict[str, Any] = {
        "message_id": uuid(1),
        "request_id": uuid(1001),
        "source_agent_id": "a",
        "target_agent_id": "b",
        "seq": 1,
        "message_type": AACPMessageType.REQUEST,
        "timestamp": NOW,
        "payload": {"n": 1},
    }
    return AACPEnvelope(**fields | changes)


@dataclass(frozen=True)
class Faults:
    """Probabilities of what a link does to each transmission."""

    loss: float = 0.0
    doubling: float = 0.0
    delay: float = 0.0
    longest_delay_s: float = 5.0


class SlowAdapter(InMemoryAACPPersistenceAdapter):
    """Lets other tasks run before and after every operation, as a database would."""

    def __getattribute__(self, name: str) -> Any:
        operation = super().__getattribute__(name)
        if name.startswith("_"):
            return operation

        async def slowly(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            result = await operation(*arguments, **options)
            await asyncio.sleep(0)
            return result

        return slowly


class LossyLink:
    """Does to each transmission what a seeded plan says, and hands over what is due when `deliver` is called.

    `carried` and `receipts` have everything that was sent, `delivered` every envelope that arrived. Everything that an
    agent in `silenced` sends is lost.
    """

    def __init__(self, clock: ManualClock, seed: int = 0, faults: Faults | None = None) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._faults = faults or Faults()
        self._encoder = AACPEncoder()
        self._under_way: list[tuple[float, int, AACPEnvelope | AACPReceipt]] = []
        self._numbers = count()
        self.receivers: dict[str, Receiver] = {}
        self.silenced: set[str] = set()
        self.carried: list[AACPEnvelope] = []
        self.receipts: list[AACPReceipt] = []
        self.delivered: list[AACPEnvelope] = []

    def heal(self) -> None:
        """Lose, repeat and delay nothing from now on."""
        self._faults = Faults()
        self.silenced.clear()

    def cut(self) -> None:
        """Lose everything until it is healed."""
        self.silenced |= {*self.receivers}

    async def carry(self, envelope: AACPEnvelope) -> None:
        self.carried.append(envelope)
        self._send(envelope)

    async def acknowledge(self, receipt: AACPReceipt) -> None:
        self.receipts.append(receipt)
        self._send(receipt)

    async def deliver(self) -> int:
        """Hand over everything that is due, and what is sent in answer to it; returns how many transmissions."""
        handed_over = 0
        while self._under_way and self._under_way[0][0] <= self._clock.monotonic():
            _, _, item = heapq.heappop(self._under_way)
            receiver = self.receivers[item.target_agent_id]
            if isinstance(item, AACPReceipt):
                await receiver.receive_receipt(item)
            else:
                self.delivered.append(item)
                await receiver.receive(self._encoder.decode(self._encoder.encode(item)))
            handed_over += 1
        return handed_over

    def _send(self, item: AACPEnvelope | AACPReceipt) -> None:
        if self._random.random() < self._faults.loss or item.source_agent_id in self.silenced:
            return
        for _ in range(2 if self._random.random() < self._faults.doubling else 1):
            is_late = self._random.random() < self._faults.delay
            delay = self._random.random() * self._faults.longest_delay_s if is_late else 0.0
            heapq.heappush(self._under_way, (self._clock.monotonic() + delay, next(self._numbers), item))


@dataclass
class Agent:
    """An endpoint with an adapter of its own, which a restart leaves as it is. Its handler notes what it is given."""

    name: str
    link: LossyLink | DirectLink
    clock: ManualClock
    new_id: Callable[[], str]
    answer: Callable[[AACPEnvelope], Any] = lambda envelope: {"done": envelope.payload}
    policy: AACPRetryPolicy = POLICY
    window: int = 256
    hooks: AACPHooks = field(default_factory=AACPHooks)
    keep: Callable[[ManualClock], AACPPersistenceAdapter] = InMemoryAACPPersistenceAdapter
    handled: list[AACPEnvelope] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adapter = self.keep(self.clock)
        self.start()

    def start(self) -> None:
        """A new endpoint over what the adapter has."""
        self.ledger = AACPLedger(self.adapter, self.clock)
        self.sessions = AACPSessionManager(self.ledger, self.link, self.clock, self.new_id)
        self.endpoint = AACPEndpoint(
            self.name,
            self.handle,
            ledger=self.ledger,
            sessions=self.sessions,
            link=self.link,
            clock=self.clock,
            random=lambda: 1.0,
            policy=self.policy,
            hooks=self.hooks,
            window=self.window,
        )
        if isinstance(self.link, LossyLink):
            self.link.receivers[self.name] = self.endpoint
        else:
            self.link.attach(self.name, self.endpoint)

    async def handle(self, envelope: AACPEnvelope) -> Any:
        self.handled.append(envelope)
        answer = self.answer(envelope)
        return await answer if hasattr(answer, "__await__") else answer


@dataclass
class Pair:
    """Two agents, `a` and `b`, and the link between them."""

    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    records: AACPRecords | None = None
    """Where they keep what they know; in memory unless given."""

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.link = LossyLink(self.clock, self.seed, self.faults)
        new_id = uuids()
        self.a, self.b = (Agent(name, self.link, self.clock, new_id, keep=self._keep(name)) for name in "ab")

    def _keep(self, name: str) -> Callable[[ManualClock], AACPPersistenceAdapter]:
        records = self.records
        return InMemoryAACPPersistenceAdapter if records is None else lambda clock: records.for_agent(name)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, deliver what is due, and send again what is."""
        self.clock.advance(seconds)
        await self.link.deliver()
        for agent in (self.a, self.b):
            await agent.endpoint.process_retries_once()
        await self.link.deliver()


def by_pair(envelopes: list[AACPEnvelope]) -> dict[tuple[str, str], list[AACPEnvelope]]:
    """The envelopes of each direction."""
    found: defaultdict[tuple[str, str], list[AACPEnvelope]] = defaultdict(list)
    for each in envelopes:
        found[each.source_agent_id, each.target_agent_id].append(each)
    return found


def session_manager(
    clock: ManualClock,
    link: AACPLink | None = None,
    keep: Callable[[ManualClock], AACPPersistenceAdapter] = InMemoryAACPPersistenceAdapter,
) -> AACPSessionManager:
    """A manager over a new adapter."""
    ledger = AACPLedger(keep(clock), clock)
    return AACPSessionManager(ledger, link or LossyLink(clock), clock, uuids())

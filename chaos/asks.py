"""The requests to the agents, and their answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from chaos.servers import Gone, Served

TARGETS = ("tally", "relay", "asker", "flaky", "outside", "again")
Answer: TypeAlias = Any
"""The agent's response, or of an error the code, the message and the details."""

_PAUSE = 0.02
_ANSWER_LIMIT = 120.0


@dataclass
class Ask:
    """A request, and each final answer to it."""

    request_id: str
    target: str
    item: str
    answers: list[Answer] = field(default_factory=list)


def answer_in(result: dict[str, Any]) -> tuple[Answer, bool]:
    """The value of a result, and whether it is the outcome of the request: that may still be unknown."""
    said = msgspec.json.decode(result["content"][0]["text"])
    if not result["isError"]:
        return said, True
    answer = {key: said.get(key) for key in ("code", "message", "details")}
    reason = (said.get("details") or {}).get("reason")
    is_final = "timeoutMs" not in (said.get("details") or {}) and reason not in _NOT_YET and said["code"] != "ABORTED"
    return answer, is_final


_NOT_YET = frozenset(
    (
        "storage_busy",
        "storage_full",
        "storage_failed",
        "storage_closed",
        "storage_uncertain",
        "stopping",
        "over_capacity",
        "lease_lost",
    )
)
"""Reasons of refusals: the request may not have been accepted, or its outcome is not known yet."""


class AskLoad:
    """Lanes that ask, each one thing after the other, and ask again until there is an outcome."""

    def __init__(self, live: Sequence[Served | None], chance: random.Random) -> None:
        self._live = live
        self._chance = chance
        self._is_over = False
        self.asks: list[Ask] = []
        self.problems: list[str] = []
        self.unsettled = 0
        """How often an answer was not the outcome, or the server ended first."""

    async def run(self, lanes: int) -> None:
        """Ask until `stop`; every request that was begun has its outcome then."""
        await asyncio.gather(*(self._lane() for _ in range(lanes)))

    def stop(self) -> None:
        self._is_over = True

    async def _lane(self) -> None:
        while not self._is_over:
            ask = self._new()
            doubles = 2 if self._chance.random() < 0.2 else 1
            await asyncio.gather(*(self._settle(ask) for _ in range(doubles)))
            await asyncio.sleep(_PAUSE * self._chance.random())

    def _new(self) -> Ask:
        request_id = UUID(int=self._chance.getrandbits(128), version=4)
        ask = Ask(str(request_id), self._chance.choice(TARGETS), f"item {len(self.asks)}")
        self.asks.append(ask)
        return ask

    async def _settle(self, ask: Ask) -> None:
        try:
            async with asyncio.timeout(_ANSWER_LIMIT):
                while not await self.ask_once(ask, lambda: self._chance.choice(self._live)):
                    self.unsettled += 1
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            self.problems.append(f"{ask.request_id} to {ask.target} has no outcome after {_ANSWER_LIMIT:.0f} s")

    async def ask_once(self, ask: Ask, choose: Callable[[], Served | None]) -> bool:
        """Whether there is an outcome."""
        server = choose()
        if server is None:
            return False
        try:
            answer, is_final = answer_in(await server.request(ask.target, ask.item, ask.request_id))
        except Gone:
            return False
        if is_final:
            ask.answers.append(answer)
        return is_final

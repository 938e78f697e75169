"""Sessions: numbers and acknowledgements of the messages from one agent to another.

`ack` means receipt, not commitment: every message up to it has arrived and is recorded. Whether a request was carried
out is the status of its `requestId` in the ledger. `ack` never skips a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace as changed

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, plain
from dragoman.agents.aacp.ledger import AACPLedger
from dragoman.agents.aacp.link import AACPLink
from dragoman.clock import Clock


class AACPSession:
    """One direction between two agents. Its numbers go through the adapter, and outlive it."""

    def __init__(self, manager: AACPSessionManager, source: str, target: str, last_seq: int, last_ack: int) -> None:
        self.source_agent_id = source
        self.target_agent_id = target
        self.next_seq = last_seq + 1
        self.last_ack = last_ack
        self._manager = manager
        self._early: set[int] = set()
        self._lock = asyncio.Lock()

    async def send_message(self, payload: Any, message_type: AACPMessageType, request_id: str | None = None) -> str:
        """Record a message, then carry it; returns its `messageId`. A REQUEST without an id gets a new one."""
        envelope = await self.record_message(payload, message_type, request_id)
        await self._manager.link.carry(envelope)
        return envelope.message_id

    async def record_message(
        self, payload: Any, message_type: AACPMessageType, request_id: str | None = None
    ) -> AACPEnvelope:
        """Number a message and record it in the ledger, without carrying it."""
        if request_id is None and message_type is AACPMessageType.REQUEST:
            request_id = self._manager.new_id()
        payload = plain(payload)
        async with self._lock:
            envelope = AACPEnvelope(
                message_id=self._manager.new_id(),
                request_id=request_id,
                source_agent_id=self.source_agent_id,
                target_agent_id=self.target_agent_id,
                seq=self.next_seq,
                ack=await self._manager.ack_for(self.target_agent_id, self.source_agent_id),
                message_type=message_type,
                timestamp=self._manager.clock.timestamp(),
                payload=payload,
            )
            await self._manager.ledger.adapter.update_last_sequence(
                self.source_agent_id, self.target_agent_id, envelope.seq
            )
            self.next_seq += 1
            await self._manager.ledger.append(envelope)
        return envelope

    async def stamp_again(self, envelope: AACPEnvelope) -> AACPEnvelope:
        """The same message for another transmission: a new `messageId`, and the `ack` and time of now."""
        return changed(
            envelope,
            message_id=self._manager.new_id(),
            ack=await self._manager.ack_for(self.target_agent_id, self.source_agent_id),
            timestamp=self._manager.clock.timestamp(),
        )

    async def acknowledge_message(self, seq: int) -> None:
        """Note that a message was received. `last_ack` advances as far as there is no gap; other numbers are kept."""
        if seq <= self.last_ack:
            return
        self._early.add(seq)
        ack = self.last_ack
        while ack + 1 in self._early:
            ack += 1
        await self.acknowledge_through(ack)

    async def acknowledge_through(self, seq: int) -> None:
        """Note that everything up to a number was received, or will never come."""
        while seq + 1 in self._early:
            seq += 1
        if seq <= self.last_ack:
            return
        # Stored first: what another agent learns must survive.
        await self._manager.ledger.adapter.update_last_ack(self.source_agent_id, self.target_agent_id, seq)
        self.last_ack = max(self.last_ack, seq)  # Another task may have been quicker.
        self._early = {number for number in self._early if number > self.last_ack}

    @property
    def gaps(self) -> list[range]:
        """The numbers that are missing before a number that was received, lowest first."""
        found, expected = [], self.last_ack + 1
        for seq in sorted(self._early):
            if seq > expected:
                found.append(range(expected, seq))
            expected = seq + 1
        return found


class AACPSessionManager:
    """Opens and closes sessions. A pair of agents and the reverse pair are two sessions."""

    def __init__(self, ledger: AACPLedger, link: AACPLink, clock: Clock, new_id: Callable[[], str]) -> None:
        self.ledger = ledger
        self.link = link
        self.clock = clock
        self.new_id = new_id
        self._sessions: dict[tuple[str, str], AACPSession] = {}

    async def create_session(self, source_agent_id: str, target_agent_id: str) -> AACPSession:
        """The session of a pair, which continues where the last one stopped; the open one if there is one."""
        if found := await self.get_session(source_agent_id, target_agent_id):
            return found
        last_seq = await self.ledger.adapter.get_last_sequence(source_agent_id, target_agent_id)
        last_ack = await self.ledger.adapter.get_last_ack(source_agent_id, target_agent_id)
        session = AACPSession(self, source_agent_id, target_agent_id, last_seq, last_ack)
        # Another task may have opened one meanwhile, and two would give out the same numbers.
        return self._sessions.setdefault((source_agent_id, target_agent_id), session)

    async def get_session(self, source_agent_id: str, target_agent_id: str) -> AACPSession | None:
        return self._sessions.get((source_agent_id, target_agent_id))

    async def close_session(self, source_agent_id: str, target_agent_id: str) -> None:
        self._sessions.pop((source_agent_id, target_agent_id), None)

    async def ack_for(self, source_agent_id: str, target_agent_id: str) -> int | None:
        """The `ack` of a message to `source_agent_id`; None if nothing was received from it."""
        return await self.ledger.adapter.get_last_ack(source_agent_id, target_agent_id) or None

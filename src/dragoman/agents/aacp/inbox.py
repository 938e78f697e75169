"""The messages that one agent receives: each once, in the order of its number, recorded before it is acknowledged.

A message that arrives early is held in memory until the gap before it is filled. It is neither recorded nor
acknowledged before that, so it is sent again if the process ends. A message that does not fit into the window is
dropped and sent again later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, AACPOutcome, first_dead
from dragoman.agents.aacp.ledger import AACPLedger
from dragoman.agents.aacp.records import AACPRequestRecord
from dragoman.agents.aacp.sessions import AACPSession, AACPSessionManager
from dragoman.errors import RequestConflict


@dataclass
class AACPAdmitted:
    """The result of a transmission: how far its source is acknowledged, and the work to do at once."""

    ack: int = 0
    responses: list[AACPEnvelope] = field(default_factory=list)
    repeated: list[AACPRequestRecord] = field(default_factory=list)
    refused: list[tuple[AACPEnvelope, RequestConflict]] = field(default_factory=list)


@dataclass
class _Direction:
    """From one source: what is held back, the numbers that will never come, and what waits to be handled."""

    held: dict[int, AACPEnvelope] = field(default_factory=dict)
    dead: set[tuple[int, int]] = field(default_factory=set)
    waiting: deque[AACPEnvelope] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_handling: bool = False

    def dead_until(self, due: int) -> int | None:
        """The last of the dead numbers from `due` on; None if `due` is not dead. Received messages are not dead."""
        last = max((last for first, last in self.dead if first <= due <= last), default=None)
        if last is None:
            return None
        return min([last, *(seq - 1 for seq in self.held if due < seq <= last)])


class AACPInbox:
    """Admits the messages to one agent, and hands requests and events over one at a time for each source."""

    def __init__(self, agent_id: str, ledger: AACPLedger, sessions: AACPSessionManager, window: int) -> None:
        self._agent_id = agent_id
        self._ledger = ledger
        self._sessions = sessions
        self._window = window
        self._directions: defaultdict[str, _Direction] = defaultdict(_Direction)

    async def admit(self, envelope: AACPEnvelope) -> AACPAdmitted | None:
        """Take a transmission; None if its `messageId` was seen before, or there is no room for it."""
        direction = self._directions[envelope.source_agent_id]
        async with direction.lock:
            if await self._is_seen(direction, envelope):
                return None
            session = await self._sessions.create_session(envelope.source_agent_id, self._agent_id)
            admitted = AACPAdmitted()
            first = first_dead(envelope)
            if envelope.seq <= session.last_ack or (first is None and envelope.seq in direction.held):
                await self._repeat(envelope, admitted)
            elif not self._has_room(direction, envelope.seq):
                return None
            elif first is not None:
                direction.dead.add((first, envelope.seq))
            else:
                direction.held[envelope.seq] = envelope
            await self._accept(direction, session, admitted)
            admitted.ack = session.last_ack
            return admitted

    async def resume(self, envelope: AACPEnvelope) -> None:
        """Queue a message that was recorded before a restart and not handled."""
        session = await self._sessions.create_session(envelope.source_agent_id, self._agent_id)
        await session.acknowledge_message(envelope.seq)
        self.queue(envelope)

    def queue(self, envelope: AACPEnvelope) -> None:
        """Let a message be handled, after what waits already."""
        self._directions[envelope.source_agent_id].waiting.append(envelope)

    async def hand_over(self, source: str, handle: Callable[[AACPEnvelope], Awaitable[None]]) -> None:
        """Handle what waits from one source, in order; returns at once if that is being done already."""
        direction = self._directions[source]
        if direction.is_handling:
            return
        direction.is_handling = True
        try:
            while direction.waiting:
                await handle(direction.waiting.popleft())
        finally:
            direction.is_handling = False

    async def _is_seen(self, direction: _Direction, envelope: AACPEnvelope) -> bool:
        held = direction.held.get(envelope.seq)
        if held is not None and held.message_id == envelope.message_id:
            return True
        return await self._ledger.get_by_message_id(envelope.message_id) is not None

    def _has_room(self, direction: _Direction, seq: int) -> bool:
        if len(direction.held) + len(direction.dead) + len(direction.waiting) < self._window:
            return True
        last = max(direction.held, default=0)
        if seq >= last:
            return False
        del direction.held[last]  # Lower numbers come first: only they can close a gap.
        return True

    async def _accept(self, direction: _Direction, session: AACPSession, admitted: AACPAdmitted) -> None:
        while True:
            due = session.last_ack + 1
            if due in direction.held:
                await self._take(direction, direction.held.pop(due), admitted)
                await session.acknowledge_message(due)
            elif (last := direction.dead_until(due)) is not None:
                await session.acknowledge_through(last)
            else:
                break
        direction.dead = {run for run in direction.dead if run[1] > session.last_ack}

    async def _take(self, direction: _Direction, envelope: AACPEnvelope, admitted: AACPAdmitted) -> None:
        try:
            appended = await self._ledger.append(envelope)
        except RequestConflict as conflict:
            await self._ledger.finish_message(envelope.message_id, AACPOutcome.FAILED)
            admitted.refused.append((envelope, conflict))
            return
        if envelope.message_type is AACPMessageType.RESPONSE:
            admitted.responses.append(envelope)
        elif appended.is_new:
            direction.waiting.append(envelope)
        else:
            await self._ledger.finish_message(envelope.message_id, AACPOutcome.COMPLETED)
            if appended.known is not None:
                admitted.repeated.append(appended.known)

    async def _repeat(self, envelope: AACPEnvelope, admitted: AACPAdmitted) -> None:
        await self._ledger.remember(envelope)
        if envelope.message_type is AACPMessageType.REQUEST:
            try:
                known = await self._ledger.check_duplicate(envelope)
            except RequestConflict as conflict:
                admitted.refused.append((envelope, conflict))
            else:
                admitted.repeated += [known] if known is not None else []

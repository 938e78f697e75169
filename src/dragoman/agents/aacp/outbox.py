"""The messages that one agent has sent and keeps sending until they are acknowledged, answered or given up.

A number between the last acknowledged one and the last one sent belongs either to a message that is still being sent or
to a dead one: given up, expired, or lost before it was recorded. Tombstones tell the target not to wait for dead
numbers. They go ahead of the messages that those numbers hold back, each time these are sent, and are not acknowledged
by themselves.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace as changed

from dragoman.agents.aacp.envelope import (
    AACPEnvelope,
    AACPMessageType,
    AACPOutcome,
    AACPReceipt,
    AACPResponse,
    tombstone,
)
from dragoman.agents.aacp.hooks import AACPHooks
from dragoman.agents.aacp.ledger import AACPLedger
from dragoman.agents.aacp.link import AACPLink
from dragoman.agents.aacp.records import AACPMessageRecord
from dragoman.agents.aacp.retries import AACPRetransmitter
from dragoman.agents.aacp.sessions import AACPSessionManager
from dragoman.errors import ErrorCode, LinkDown, StructuredError, WindowFull


@dataclass
class _Sent:
    """A message that is not finished: a request until it is answered, another message until it is acknowledged."""

    envelope: AACPEnvelope
    transmissions: list[str] = field(default_factory=list)


@dataclass
class _Direction:
    """To one target: the numbers that it has not acknowledged, with the ids of their messages."""

    live: dict[int, str] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AACPOutbox:
    """Sends the messages of one agent: recorded first, then carried, then carried again as the policy says."""

    def __init__(
        self,
        agent_id: str,
        ledger: AACPLedger,
        sessions: AACPSessionManager,
        link: AACPLink,
        retransmitter: AACPRetransmitter,
        hooks: AACPHooks,
        window: int,
    ) -> None:
        self._agent_id = agent_id
        self._ledger = ledger
        self._sessions = sessions
        self._link = link
        self._retransmitter = retransmitter
        self._hooks = hooks
        self._window = window
        self._sent: dict[str, _Sent] = {}
        self._requests: dict[str, str] = {}
        self._transmissions: dict[str, str] = {}
        self._directions: defaultdict[str, _Direction] = defaultdict(_Direction)

    async def record(
        self, target: str, payload: Any, message_type: AACPMessageType, request_id: str | None = None
    ) -> AACPEnvelope:
        """Number and record a message; raises `WindowFull`. A response is always taken: its request has been."""
        direction = self._directions[target]
        async with direction.lock:
            if len(direction.live) >= self._window and message_type is not AACPMessageType.RESPONSE:
                raise WindowFull(target, self._window)
            session = await self._sessions.create_session(self._agent_id, target)
            envelope = await session.record_message(payload, message_type, request_id)
            self._track(envelope)
            direction.live[envelope.seq] = envelope.message_id
        return envelope

    async def dispatch(self, envelope: AACPEnvelope) -> None:
        """Carry a message for the first time."""
        await self._retransmitter.schedule_retry(envelope.message_id, self._retransmitter.get_backoff_delay(0))
        await self._carry(envelope.message_id, envelope)

    async def try_again(self, record: AACPMessageRecord) -> None:
        """Carry a message once more."""
        session = await self._sessions.create_session(self._agent_id, record.envelope.target_agent_id)
        await self._carry(record.message_id, await session.stamp_again(record.envelope))

    async def repeat_response(self, target: str, request_id: str, response: AACPResponse) -> None:
        """Answer a request again: the same message if it is still being sent, else the same answer as a new message."""
        for message_id in self._directions[target].live.values():
            sent = self._sent[message_id].envelope
            if sent.message_type is AACPMessageType.RESPONSE and sent.request_id == request_id:
                session = await self._sessions.create_session(self._agent_id, target)
                await self._carry(message_id, await session.stamp_again(sent))
                return
        await self.dispatch(await self.record(target, response, AACPMessageType.RESPONSE, request_id))

    async def confirm(self, target: str, ack: int) -> None:
        """Note that `target` has every message up to `ack`. Numbers that were never sent are ignored."""
        session = await self._sessions.create_session(self._agent_id, target)
        if not session.last_ack < ack < session.next_seq:
            return
        await session.acknowledge_through(ack)
        live = self._directions[target].live
        for message_id in [live.pop(seq) for seq in sorted(live) if seq <= ack]:
            sent = self._sent.get(message_id)
            if sent is None or sent.envelope.message_type is AACPMessageType.REQUEST:
                continue  # It is finished, or it has arrived, but only its answer tells the outcome.
            await self._retransmitter.cancel_retry(message_id)
            await self._ledger.finish_message(message_id, AACPOutcome.COMPLETED)
            self._forget(message_id)
            await self._hooks.message_completed(message_id)

    async def confirm_receipt(self, receipt: AACPReceipt) -> None:
        """The same, for a receipt of a transmission that is known and was for the agent that acknowledges it."""
        sent = self._sent.get(self._transmissions.get(receipt.message_id, ""))
        if sent is not None and sent.envelope.target_agent_id == receipt.source_agent_id:
            await self.confirm(receipt.source_agent_id, receipt.ack)

    async def answered(self, request_id: str, outcome: AACPOutcome) -> str | None:
        """Stop sending a request that has its outcome in the ledger; returns the id of its message if it was sent."""
        message_id = self._requests.get(request_id)
        if message_id is not None:
            await self._retransmitter.cancel_retry(message_id)
            await self._ledger.finish_message(message_id, outcome)
            self._forget(message_id)
        return message_id

    def is_sending(self, request_id: str) -> bool:
        """Whether a request is neither answered nor given up."""
        return request_id in self._requests

    async def give_up(self, message_id: str) -> str | None:
        """Make a message a dead letter; returns the id of its request. Its target may have received it even so."""
        await self._ledger.finish_message(message_id, AACPOutcome.FAILED)
        sent = self._forget(message_id)
        if sent is None:
            return None
        attempts = self._retransmitter.get_max_attempts()
        error = StructuredError(ErrorCode.TIMEOUT, f"Not confirmed after {attempts} attempts", {"attempts": attempts})
        await self._hooks.message_failed(message_id, error)
        return sent.envelope.request_id

    async def resume(self, record: AACPMessageRecord) -> None:
        """Go on sending a message that was sent before a restart, unless it is finished."""
        envelope = record.envelope
        session = await self._sessions.create_session(self._agent_id, envelope.target_agent_id)
        if envelope.seq <= session.last_ack and envelope.message_type is not AACPMessageType.REQUEST:
            await self._ledger.finish_message(record.message_id, AACPOutcome.COMPLETED)
            return
        self._track(envelope)
        if envelope.seq > session.last_ack:
            self._directions[envelope.target_agent_id].live[envelope.seq] = record.message_id
        self._retransmitter.resume(record)

    def _track(self, envelope: AACPEnvelope) -> None:
        self._sent[envelope.message_id] = _Sent(envelope)
        if envelope.message_type is AACPMessageType.REQUEST and envelope.request_id is not None:
            self._requests[envelope.request_id] = envelope.message_id

    def _forget(self, message_id: str) -> _Sent | None:
        sent = self._sent.pop(message_id, None)
        if sent is not None:
            self._directions[sent.envelope.target_agent_id].live.pop(sent.envelope.seq, None)
            if self._requests.get(sent.envelope.request_id or "") == message_id:
                self._requests.pop(sent.envelope.request_id or "")
            for transmission in sent.transmissions:
                self._transmissions.pop(transmission, None)
        return sent

    async def _carry(self, message_id: str, envelope: AACPEnvelope) -> None:
        sent = self._sent.get(message_id)
        if sent is None:
            return  # It was finished meanwhile.
        sent.transmissions.append(envelope.message_id)
        self._transmissions[envelope.message_id] = message_id
        try:
            for dead in await self._tombstones(envelope):
                await self._link.carry(dead)
            await self._link.carry(envelope)
        except LinkDown:
            pass  # It is recorded, and the next attempt is planned.

    async def _tombstones(self, envelope: AACPEnvelope) -> list[AACPEnvelope]:
        target = envelope.target_agent_id
        session = await self._sessions.create_session(self._agent_id, target)
        # Lower numbers were all given out before this one: those that are neither acknowledged nor live are dead.
        runs = list(_dead_runs(session.last_ack, self._directions[target].live, envelope.seq))
        event = changed(envelope, message_type=AACPMessageType.EVENT, request_id=None)
        return [changed(await session.stamp_again(event), seq=last, payload=tombstone(first)) for first, last in runs]


def _dead_runs(last_ack: int, live: Iterable[int], below: int) -> Iterator[tuple[int, int]]:
    first = last_ack + 1
    for seq in sorted({below, *(seq for seq in live if last_ack < seq < below)}):
        if seq > first:
            yield first, seq - 1
        first = seq + 1

"""One agent's side of the protocol.

1. A message is recorded, then carried. It is carried again, as the same request with a new `messageId`, until it is
   acknowledged and, if it is a request, answered. After the last attempt it is a dead letter.
2. A transmission whose `messageId` was seen is ignored. A request whose `requestId` is known is not executed: it is
   answered with the response that there is, or, while it is in progress, when there is one.
3. Requests and events of one source are handled one at a time, in the order of their numbers.
4. An outcome is stored before anybody learns of it. A failure that the policy calls transient is not an outcome: the
   handler is called again later, after a growing delay.
5. A caller that stops waiting leaves its request UNKNOWN. It takes the outcome that arrives later.

An endpoint starts no task and no timer but those of callers that wait: its owner calls `recover` once, before anything
is received, and `process_retries_once` from time to time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.agents.aacp.envelope import (
    AACPEnvelope,
    AACPMessageStatus,
    AACPMessageType,
    AACPOutcome,
    AACPReceipt,
    AACPResponse,
    is_reserved,
    plain,
)
from dragoman.agents.aacp.handling import AACPHandler, AACPHandling
from dragoman.agents.aacp.hooks import AACPHooks
from dragoman.agents.aacp.inbox import AACPInbox
from dragoman.agents.aacp.ledger import AACPLedger
from dragoman.agents.aacp.link import AACPLink
from dragoman.agents.aacp.outbox import AACPOutbox
from dragoman.agents.aacp.records import AACPMessageRecord, AACPRequestRecord
from dragoman.agents.aacp.retries import AACPRetransmitter, AACPRetryPolicy
from dragoman.agents.aacp.sessions import AACPSessionManager
from dragoman.agents.aacp.waiting import AACPWaiting
from dragoman.clock import Clock
from dragoman.errors import (
    ErrorCode,
    InvalidEnvelope,
    LinkDown,
    OutcomeUnknown,
    RequestFailed,
    StorageUncertain,
    StructuredError,
)
from dragoman.messaging.retries import Random

WINDOW = 256


class AACPEndpoint:
    """Sends the messages of one agent and handles those that it receives.

    `window` is the number of messages that may be unacknowledged at a target, and that are kept waiting from a source.
    """

    def __init__(
        self,
        agent_id: str,
        handler: AACPHandler,
        *,
        ledger: AACPLedger,
        sessions: AACPSessionManager,
        link: AACPLink,
        clock: Clock,
        random: Random,
        policy: AACPRetryPolicy | None = None,
        hooks: AACPHooks | None = None,
        window: int = WINDOW,
    ) -> None:
        self.agent_id = agent_id
        self._ledger = ledger
        self._sessions = sessions
        self._link = link
        self._hooks = hooks or AACPHooks()
        self._retransmitter = AACPRetransmitter(ledger.adapter, self, policy or AACPRetryPolicy(), clock, random)
        self._outbox = AACPOutbox(agent_id, ledger, sessions, link, self._retransmitter, self._hooks, window)
        self._inbox = AACPInbox(agent_id, ledger, sessions, window)
        self._handling = AACPHandling(handler, ledger, self._outbox, self._retransmitter, self._hooks)
        self._waiting = AACPWaiting(clock)
        self._making_request = asyncio.Lock()

    async def send_event(self, target: str, payload: Any) -> str:
        """Send a message that is not answered; returns its `messageId`. Raises `InvalidEnvelope` and `WindowFull`.

        Raises `StorageUncertain` when it is unknown whether the message was recorded, and will be sent.
        """
        if is_reserved(payload):
            raise InvalidEnvelope("payload", "is reserved for the protocol")
        self._check_other(target)
        envelope = await self._outbox.record(target, payload, AACPMessageType.EVENT)
        await self._outbox.dispatch(envelope)
        return envelope.message_id

    async def send_request(
        self, target: str, payload: Any, *, timeout_ms: float | None = None, request_id: str | None = None
    ) -> Any:
        """Send a request and return the result of its response; raises `RequestFailed` and `OutcomeUnknown`.

        With the id of an earlier request it joins that one; raises `RequestConflict` if that was another request.
        """
        request_id = await self.begin_request(target, payload, request_id)
        record = await self.wait_for_outcome(request_id, timeout_ms=timeout_ms)
        if record.error is not None:
            raise RequestFailed(request_id, record.error)
        response = await self._ledger.response_to(request_id, self.agent_id)
        if response is None or not record.is_settled:
            raise OutcomeUnknown(request_id)
        return plain(response.result)

    async def begin_request(self, target: str, payload: Any, request_id: str | None = None) -> str:
        """Send a request without waiting for its outcome; returns its `requestId`.

        Raises `OutcomeUnknown` when it is unknown whether the request was recorded: with the same id, it is sent once.
        """
        self._check_other(target)
        request_id = request_id or self._sessions.new_id()
        try:
            async with self._making_request:
                known = await self._ledger.check_request(request_id, self.agent_id, target, plain(payload))
                if known is not None and (known.is_settled or self._outbox.is_sending(request_id)):
                    return request_id
                envelope = await self._outbox.record(target, payload, AACPMessageType.REQUEST, request_id)
            await self._outbox.dispatch(envelope)
        except StorageUncertain as error:
            raise OutcomeUnknown(request_id) from error
        return request_id

    async def wait_for_outcome(self, request_id: str, *, timeout_ms: float | None = None) -> AACPRequestRecord:
        """A request of this agent once it has an outcome; UNKNOWN at the timeout, or when it is given up.

        Raises `OutcomeUnknown` for a request that is not, or no longer, in the ledger.
        """
        with self._waiting.for_outcome(request_id, timeout_ms) as told:
            record = await self._ledger.adapter.get_request_record(request_id, self.agent_id)
            if record is not None and not record.is_settled and self._outbox.is_sending(request_id):
                await told
                record = await self._ledger.adapter.get_request_record(request_id, self.agent_id)
        if record is None:
            raise OutcomeUnknown(request_id)
        return record

    async def get_status(self, message_id: str) -> AACPMessageStatus | None:
        """A message that was sent or accepted, as the ledger has it."""
        return await self._ledger.get_status(message_id)

    async def redrive(self, message_id: str) -> str | None:
        """Send a dead letter again, as a new message of the same request; returns its id, None if it is no dead letter.

        The message gets a new number: it comes after everything that was sent in the meantime.
        """
        record = await self._ledger.adapter.get_message_record(message_id)
        status = await self._ledger.get_status(message_id)
        if record is None or record.status is not AACPOutcome.FAILED or status is None or status.error is not None:
            return None
        old = record.envelope
        if old.source_agent_id != self.agent_id or status.outcome is AACPOutcome.COMPLETED:
            return None
        envelope = await self._outbox.record(old.target_agent_id, old.payload, old.message_type, old.request_id)
        await self._outbox.dispatch(envelope)
        return envelope.message_id

    async def receive(self, envelope: AACPEnvelope) -> None:
        """Take a transmission; returns when everything that it made possible was handled."""
        if envelope.target_agent_id != self.agent_id:
            raise InvalidEnvelope("targetAgentId", f"is not {self.agent_id}")
        source = envelope.source_agent_id
        if envelope.ack is not None:
            await self._outbox.confirm(source, envelope.ack)
        admitted = await self._inbox.admit(envelope)
        if admitted is None:
            return
        await self._acknowledge(envelope, admitted.ack)
        for response in admitted.responses:
            await self._take_response(response)
        for refused, conflict in admitted.refused:
            error = StructuredError(ErrorCode.INVALID_ARGUMENT, str(conflict))
            await self._hooks.message_failed(refused.message_id, error)
        for known in admitted.repeated:
            await self._handling.answer_again(known)
        await self._inbox.hand_over(source, self._handling.handle)

    async def receive_receipt(self, receipt: AACPReceipt) -> None:
        """Take the acknowledgement of what was sent."""
        await self._outbox.confirm_receipt(receipt)

    async def process_retries_once(self) -> int:
        """Send or handle again everything that is due; returns how many messages were."""
        return await self._retransmitter.process_retries_once()

    async def recover(self) -> None:
        """After a restart, go on with what the ledger says is not finished. Completed work is not repeated.

        A request that was being handled is handled again: the process that did it is gone.
        """
        unfinished = await self._ledger.adapter.list_messages_in_state(AACPOutcome.UNKNOWN)
        for record in sorted(unfinished, key=lambda record: record.envelope.seq):
            if not await self._is_finished(record):
                await self._resume(record)
        for source in dict.fromkeys(record.envelope.source_agent_id for record in unfinished):
            await self._inbox.hand_over(source, self._handling.handle)

    async def try_again(self, record: AACPMessageRecord) -> None:
        """Send a message again, or handle one again; called by the retransmitter."""
        if record.envelope.source_agent_id == self.agent_id:
            await self._outbox.try_again(record)
            return
        await self._retransmitter.cancel_retry(record.message_id)
        self._inbox.queue(record.envelope)
        await self._inbox.hand_over(record.envelope.source_agent_id, self._handling.handle)

    async def give_up(self, message_id: str) -> None:
        """Stop sending a message; called by the retransmitter."""
        request_id = await self._outbox.give_up(message_id)
        if request_id is not None:
            self._waiting.tell(request_id)

    def _check_other(self, target: str) -> None:
        if target == self.agent_id:
            raise InvalidEnvelope("targetAgentId", "is the agent that sends")

    async def _acknowledge(self, envelope: AACPEnvelope, ack: int) -> None:
        receipt = AACPReceipt(
            message_id=envelope.message_id,
            source_agent_id=self.agent_id,
            target_agent_id=envelope.source_agent_id,
            ack=ack,
        )
        try:
            await self._link.acknowledge(receipt)
        except LinkDown:
            pass  # The source sends again what it does not know to have arrived.

    async def _take_response(self, envelope: AACPEnvelope) -> None:
        await self._hooks.message_received(envelope)
        response = await self._ledger.answer_in(envelope)
        if response is not None and envelope.request_id is not None:
            await self._settle(envelope.request_id, response, envelope.message_id)
        await self._ledger.finish_message(envelope.message_id, AACPOutcome.COMPLETED)

    async def _settle(self, request_id: str, response: AACPResponse, completion_ref: str) -> None:
        if not await self._ledger.settle_request(request_id, self.agent_id, response, completion_ref):
            return
        message_id = await self._outbox.answered(request_id, response.outcome)
        self._waiting.tell(request_id)
        if message_id is None:
            return
        if response.error is not None:
            await self._hooks.message_failed(message_id, response.error)
        else:
            await self._hooks.message_completed(message_id)

    async def _is_finished(self, record: AACPMessageRecord) -> bool:
        """Whether the process ended after the outcome of a request was stored, and before that of its message."""
        if record.request_id is None or record.envelope.message_type is not AACPMessageType.REQUEST:
            return False
        owner = record.envelope.source_agent_id
        request = await self._ledger.adapter.get_request_record(record.request_id, owner)
        response = await self._ledger.response_to(record.request_id, owner)
        if response is not None:
            await self._ledger.settle_request(record.request_id, owner, response)
            await self._ledger.finish_message(record.message_id, response.outcome)
            return True
        if request is not None and request.is_settled:
            await self._ledger.finish_message(record.message_id, request.status)
            return True
        return False

    async def _resume(self, record: AACPMessageRecord) -> None:
        envelope = record.envelope
        if envelope.source_agent_id == self.agent_id:
            await self._outbox.resume(record)
        elif envelope.message_type is AACPMessageType.RESPONSE:
            await self._take_response(envelope)
        else:
            await self._inbox.resume(envelope)

"""Handling what was received: the handler is called, the outcome stored, and then the answer sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec.structs import replace as changed

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, AACPOutcome, AACPResponse, plain
from dragoman.agents.aacp.hooks import AACPHooks
from dragoman.agents.aacp.ledger import AACPLedger
from dragoman.agents.aacp.outbox import AACPOutbox
from dragoman.agents.aacp.records import AACPRequestRecord
from dragoman.agents.aacp.retries import AACPRetransmitter
from dragoman.errors import ErrorCode, StructuredError, ToolError

AACPHandler: TypeAlias = Callable[[AACPEnvelope], Awaitable[Any]]
"""Handles a request or an event. Returns the result of a request, or raises a `ToolError` as its error."""


class AACPHandling:
    """Calls the handler of one agent and answers requests."""

    def __init__(
        self,
        handler: AACPHandler,
        ledger: AACPLedger,
        outbox: AACPOutbox,
        retransmitter: AACPRetransmitter,
        hooks: AACPHooks,
    ) -> None:
        self._handler = handler
        self._ledger = ledger
        self._outbox = outbox
        self._retransmitter = retransmitter
        self._hooks = hooks

    async def handle(self, envelope: AACPEnvelope) -> None:
        """Handle a message; whatever the handler raises becomes its outcome, or is retried."""
        await self._hooks.message_received(envelope)
        try:
            # A copy: what the handler does to the payload must not change what is recorded.
            result = plain(await self._handler(changed(envelope, payload=plain(envelope.payload))))
        except Exception as error:
            await self._handle_failure(envelope, _structured(error))
        else:
            await self._finish(envelope, AACPResponse(outcome=AACPOutcome.COMPLETED, result=result))

    async def _handle_failure(self, envelope: AACPEnvelope, error: StructuredError) -> None:
        record = await self._ledger.adapter.get_message_record(envelope.message_id)
        if record is not None and self._retransmitter.should_retry(record, error):
            delay_ms = self._retransmitter.get_backoff_delay(record.retry_count)
            await self._retransmitter.schedule_retry(envelope.message_id, delay_ms)
        else:
            await self._finish(envelope, AACPResponse(outcome=AACPOutcome.FAILED, error=error))

    async def _finish(self, envelope: AACPEnvelope, response: AACPResponse) -> None:
        answer = None
        if envelope.request_id is not None and envelope.message_type is AACPMessageType.REQUEST:
            answer = await self._outbox.record(
                envelope.source_agent_id, response, AACPMessageType.RESPONSE, envelope.request_id
            )
        if response.error is not None:
            await self._ledger.mark_failed(envelope.message_id, response.error)
        else:
            await self._ledger.mark_completed(envelope.message_id, answer.message_id if answer else None)
        if answer is not None:
            await self._outbox.dispatch(answer)

    async def answer_again(self, known: AACPRequestRecord) -> None:
        """Answer a repeated request with the response that there is. While it is in progress there is none."""
        response = await self._ledger.response_to(known.request_id, known.owner)
        if response is not None:
            await self._outbox.repeat_response(known.owner, known.request_id, response)


def _structured(error: Exception) -> StructuredError:
    if isinstance(error, ToolError):
        return error.structured()
    return StructuredError(ErrorCode.INTERNAL, "The handler failed", {"error": type(error).__name__})

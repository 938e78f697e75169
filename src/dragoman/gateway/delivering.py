"""Carries out requests that were accepted, and stores what they came to.

1. Key, roles and TTL are checked again before a request is carried out. Its call takes the same way as any other.
2. A request that fails in a way that may pass is retried, with growing delays. After the last attempt, or a refusal
   that cannot change, it is a dead letter with every error.
3. However often a request is delivered, it has its effect once: its idempotency key sees to that. So one after whose
   attempt it is unknown what was stored is retried as well.
4. Requests with a `seq` are carried out one after the other, those of each stream in the order of their acceptance. One
   that is retried holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from dragoman.calls.common_slots import TakeCommon, when_free
from dragoman.calls.intake import Intake
from dragoman.calls.places import AwaitedPlaces, Holder
from dragoman.clock import Clock
from dragoman.errors import Abandoned, InternalFailure, NotFound, QuotaExceeded, Stopping, ToolError
from dragoman.gateway.accepting import Acceptance, acceptance_in
from dragoman.gateway.answers import ActionAnswers
from dragoman.gateway.asking import AskedAction, as_it_is, call_for, given, requested_by
from dragoman.gateway.exchanges import REFUSALS, Exchanges, GatewayExchange
from dragoman.gateway.keeping import Objects
from dragoman.gateway.replying import error_record, may_pass, reply_to, retry_after_seconds
from dragoman.gateway.requests import KEPT_DEAD_SECONDS, ActionRequests, RequestStatus, Settled
from dragoman.gateway.settings import GatewayConfig
from dragoman.gateway.streams import StreamTurns
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.messaging.bus import BusDelivery
from dragoman.messaging.retries import Random, RetryPolicy, backoff_ms
from dragoman.replies.contract import code_in_contract
from dragoman.slo.meter import Requested
from dragoman.telemetry.log import Logger, exception_facts

_PLACES: Final = "deliveries"


class Deliverer:
    """Handles deliveries, several at a time."""

    def __init__(
        self,
        requests: ActionRequests,
        exchanges: Exchanges,
        get_intake: Callable[[], Intake],
        objects: Objects,
        answers: ActionAnswers,
        settings: GatewayConfig,
        knowledge: KnowledgeConfig,
        clock: Clock,
        random: Random,
        logger: Logger,
        take_slot: TakeCommon,
    ) -> None:
        self._requests = requests
        self._turns = StreamTurns(requests, clock)
        self._exchanges = exchanges
        self._get_intake = get_intake
        self._objects = objects
        self._answers = answers
        self._max_artifact_bytes = settings.max_artifact_bytes
        self._strict_args = settings.strict_args
        self._policy = RetryPolicy(
            max_attempts=settings.max_attempts,
            base_delay_ms=settings.retry_delay_ms,
            max_delay_ms=settings.max_retry_delay_ms,
        )
        self._keep_seconds = knowledge.idempotency_ttl_ms / 1000
        self._most_kept = knowledge.answer_bytes_per_tenant
        # Half of the slots at most: a flood of messages leaves room for requests that somebody waits for.
        self._most = max(1, knowledge.max_concurrent // 2)
        self._places = AwaitedPlaces(self._most)
        self._take_slot = take_slot
        self._clock = clock
        self._random = random
        self._logger = logger

    async def handle(self, delivery: BusDelivery) -> None:
        """Raises `StorageError`s, and has settled nothing then. Nor has it when the server is stopping."""
        async with self._turns.turn(delivery):
            await self._deliver(delivery)

    async def _deliver(self, delivery: BusDelivery) -> None:
        exchange = self._exchanges.open_with({})
        exchange.body = delivery.message.body
        acceptance = acceptance_in(delivery.message)
        asked: AskedAction | None = None
        try:
            asked = acceptance.asked(delivery.message.body)
            exchange.trace_id = asked.envelope.trace_id
            if delivery.attempt > self._policy.max_attempts:  # It may be what ended the processes that had it.
                raise InternalFailure("It was delivered too often", {"reason": "too_many_deliveries"})
            value, usage = await self._carry_out(asked, acceptance)
            latency = self._latency_of(acceptance)
            body = await self._answers.word(asked.envelope.tenant_id, value, latency, asked.web_base, usage)
        except REFUSALS as error:
            told = self._exchanges.as_tool_error(exchange, error)
            if isinstance(told, Stopping | Abandoned):
                raise Stopping from None
            await self._failed(delivery, exchange, asked, acceptance, told)
            return
        except Exception as error:  # Whatever it was, the request must have an answer.
            facts = exception_facts(error, InternalFailure.code)
            self._logger.error("a request could not be carried out", {"traceId": exchange.trace_id, **facts})
            await self._failed(delivery, exchange, asked, acceptance, InternalFailure("The action failed"))
            return
        settled = Settled(
            status=RequestStatus.COMPLETED,
            request=acceptance.request,
            http_status=200,
            body=body,
            reply=reply_to(asked.envelope, body, self._clock, f"reply-{delivery.number}"),
            most_kept=self._most_kept if asked.action.only_reads else None,
        )
        try:
            is_settled = await self._requests.settle(delivery, settled)
        except QuotaExceeded as error:
            await self._failed(delivery, exchange, asked, acceptance, error)
            return
        if is_settled:
            self._exchanges.meter.ended(requested_by(asked), "", latency, was_accepted=True)

    async def _carry_out(self, asked: AskedAction, acceptance: Acceptance) -> tuple[Any, Mapping[str, Any]]:
        """The value, and the usage."""
        if asked.kid is not None:
            await self._exchanges.credentials.check_key(asked.kid)
        intake, strict, most = self._get_intake(), self._strict_args, None
        if acceptance.artifact is None:
            arguments = given(asked.action, asked.envelope.payload.args or {}, strict=strict)
        else:
            values = await self._objects.arguments(asked.holder, acceptance.artifact)
            arguments = await asyncio.to_thread(given, asked.action, values, strict=strict, in_artifact=True)
            most = self._max_artifact_bytes
        call = call_for(asked, arguments, intake, self._keep_seconds, max_payload_bytes=most, waits=True)
        async with self._place(asked.holder):
            outcome = await intake.answer(call, as_it_is)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value, call.usage

    @asynccontextmanager
    async def _place(self, holder: Holder) -> AsyncIterator[None]:
        """One of the places that deliveries may have, in this process and in all together."""
        release = await self._places.acquire(holder)
        try:
            common = await when_free(self._take_slot, _PLACES, self._most, holder, self._clock)
            try:
                yield
            finally:
                common()
        finally:
            release()

    async def _failed(
        self,
        delivery: BusDelivery,
        exchange: GatewayExchange,
        asked: AskedAction | None,
        acceptance: Acceptance,
        error: ToolError,
    ) -> None:
        record = error_record(error, exchange.trace_id, delivery.attempt, self._clock)
        code = code_in_contract(error)
        if may_pass(error) and self._policy.has_attempt_left(delivery.attempt - 1):
            wait = backoff_ms(self._policy, delivery.attempt - 1, self._random) / 1000
            wait = max(wait, retry_after_seconds(error))
            settled = Settled(
                status=RequestStatus.RETRYING, request=acceptance.request, error=record, after_seconds=wait
            )
        else:
            answer = self._exchanges.refused(exchange, error)
            await self._pin(acceptance)
            settled = Settled(
                status=RequestStatus.FAILED,
                request=acceptance.request,
                http_status=answer.status,
                body=answer.body,
                reply=None
                if asked is None
                else reply_to(asked.envelope, answer.body, self._clock, f"reply-{delivery.number}"),
                error=record,
            )
        if await self._requests.settle(delivery, settled):
            self._count(acceptance, asked, code, is_over=settled.status is RequestStatus.FAILED)

    def _count(self, acceptance: Acceptance, asked: AskedAction | None, code: str, *, is_over: bool) -> None:
        """Count an attempt that failed."""
        meter, of = self._exchanges.meter, acceptance.request
        requested = Requested(tenant=of.tenant) if asked is None else requested_by(asked)
        if is_over:
            meter.ended(requested, code, self._latency_of(acceptance), was_accepted=True, is_dead=True)
        else:
            meter.retried(requested, code)

    def _latency_of(self, acceptance: Acceptance) -> int:
        """Milliseconds since a request was accepted."""
        return max(0, round((self._clock.now().timestamp() - acceptance.accepted_at) * 1000))

    async def _pin(self, acceptance: Acceptance) -> None:
        """Keep the arguments of a dead letter, for an operator who has it tried again."""
        if acceptance.artifact is not None:
            until = self._clock.now().timestamp() + KEPT_DEAD_SECONDS
            with suppress(NotFound):
                await self._objects.pin(acceptance.request.tenant, acceptance.artifact, until)

"""The `ActionRequests` of one process."""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import islice

from msgspec.structs import replace

from dragoman.adapters.dict_bus import DictBus, DictDeadLetters
from dragoman.adapters.dict_documents import DictAudit
from dragoman.adapters.dict_gateway import DictSigningKeys
from dragoman.clock import Clock
from dragoman.gateway.port import Nonce
from dragoman.gateway.requests import (
    STREAM,
    KeptRequest,
    MakeReply,
    RequestKey,
    RequestStatus,
    Settled,
    kept_until,
    request_conflict,
)
from dragoman.knowledge.port import AuditEvent
from dragoman.messaging.bus import BusDelivery, BusMessage


class DictActionRequests:
    """Implements `ActionRequests`. A method that does not await is a transaction."""

    def __init__(
        self, bus: DictBus, dead: DictDeadLetters, keys: DictSigningKeys, audit: DictAudit, clock: Clock
    ) -> None:
        self._bus = bus
        self._dead = dead
        self._keys = keys
        self._audit = audit
        self._clock = clock
        self._requests: dict[RequestKey, KeptRequest] = {}
        self._until: dict[RequestKey, float] = {}

    async def accept(
        self,
        request: KeptRequest,
        message: BusMessage,
        reply_again: MakeReply | None = None,
        nonce: Nonce | None = None,
        came_in: BusDelivery | None = None,
    ) -> KeptRequest | None:
        known = self._requests.get(request.key)
        if known is not None and known.fingerprint != request.fingerprint:
            raise request_conflict()
        # Everything that can fail comes before anything that cannot be undone.
        if nonce is not None and not self._keys.may_spend(nonce):
            return None
        if came_in is not None and not self._bus.is_held(came_in):
            return replace(request, is_new=False)
        if known is None:
            self._bus.publish_now(message)
            self._requests[request.key] = request
        elif known.body is not None and reply_again is not None:
            self._bus.publish_now(reply_again(known.body))
        if nonce is not None:
            self._keys.spend_now(nonce)
        if came_in is not None:
            self._bus.ack_now(came_in)
        return request if known is None else replace(known, is_new=False)

    async def find(self, tenants: Set[str], principal: str, request_id: str) -> KeptRequest | None:
        keys = (RequestKey(each, principal, request_id) for each in sorted(tenants))
        return next((replace(self._requests[key], is_new=False) for key in keys if key in self._requests), None)

    async def is_behind(self, delivery: BusDelivery) -> bool:
        stream = delivery.message.headers.get(STREAM)
        with self._bus.lock:
            held = self._bus.messages.held_before(delivery)
        return stream is not None and any(each.headers.get(STREAM) == stream for each in held)

    async def settle(self, delivery: BusDelivery, settled: Settled, nonce: Nonce | None = None) -> bool:
        if (nonce is not None and not self._keys.may_spend(nonce)) or not self._bus.is_held(delivery):
            return False
        if settled.reply is not None:
            self._bus.publish_now(settled.reply)
        if nonce is not None:
            self._keys.spend_now(nonce)
        match settled.status:
            case RequestStatus.RETRYING:
                self._bus.retry_now(delivery, settled.after_seconds, settled.error)
            case RequestStatus.FAILED:
                self._bus.give_up_now(delivery, settled.error)
            case _:
                self._bus.ack_now(delivery)
        if settled.request is not None:
            self._change(settled.request, settled.status, settled.http_status, settled.body)
        return True

    async def redrive(
        self, number: int, headers: Mapping[str, str] | None, request: RequestKey | None, event: AuditEvent
    ) -> int | None:
        made = self._dead.redrive_now(number, headers)
        if made is not None:
            if request is not None:
                self._change(request, RequestStatus.ACCEPTED, None, None)
            self._audit.add(event)
        return made

    async def forget(self, limit: int) -> int:
        now = self._clock.now().timestamp()
        due = [*islice((key for key, until in self._until.items() if until <= now), limit)]
        for key in due:
            del self._requests[key], self._until[key]
        return len(due)

    def _change(self, key: RequestKey, status: RequestStatus, http_status: int | None, body: bytes | None) -> None:
        kept = self._requests.get(key)
        if kept is None:
            return
        self._requests[key] = replace(kept, status=status, http_status=http_status, body=body)
        until = kept_until(status, self._clock.now().timestamp())
        self._until.pop(key, None)
        if until is not None:
            self._until[key] = until

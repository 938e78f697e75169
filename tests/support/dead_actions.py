"""Dead letters of the bus: requests that failed, and messages that were refused, put into a storage of any engine."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec

from dragoman.access.callers import Caller
from dragoman.agents.senders import kept_caller
from dragoman.clock import Clock
from dragoman.gateway.accepting import ACCEPTANCE, Acceptance
from dragoman.gateway.requests import ActionRequests, KeptRequest, RequestKey, RequestStatus, Settled
from dragoman.messaging.bus import Bus, BusDelivery, BusMessage
from dragoman.messaging.subjects import accepted_subject, actions_subject
from dragoman.storage.port import Storage
from tests.support.gateway import Signer, as_body, create_args
from tests.support.waiting import PATIENCE

CREATE = "knowledge.create_document"
AUTHOR = "svc:writer (key-1)"
ANSWER = b'{"ok":false}'


def error(code: str = "NOT_FOUND", message: str = "There is no such document", **facts: Any) -> bytes:
    return msgspec.json.encode({"code": code, "message": message, "details": {}, **facts})


class DeadActions:
    """Fills a storage."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._bus, self._requests = storage.port(Bus), storage.port(ActionRequests)
        self._clock = clock

    async def fail(self, tenant: str = "acme", *, errors: int = 1, acceptance: str | None = None, **fields: Any) -> int:
        """A request that was accepted, and failed that often; its number. `acceptance` takes the header's place."""
        envelope = Signer(tenant).envelope(CREATE, create_args(), **fields)
        now = self._clock.now().timestamp()
        caller = Caller("svc:writer", issuer=f"key of {tenant}", tenants=frozenset((tenant,)))
        kept = kept_caller(caller)
        assert kept is not None
        key = RequestKey(envelope["tenant_id"], caller.principal, envelope["request_id"].lower())
        header = Acceptance(
            request=key,
            caller=msgspec.Raw(kept),
            author=AUTHOR,
            roles=("owner",),
            key="k",
            accepted_at=now,
            expires_at=now + 300,
        )
        message = BusMessage(
            subject=accepted_subject(tenant),
            id=str(uuid.uuid4()),
            body=as_body(envelope),
            headers={ACCEPTANCE: msgspec.json.encode(header).decode() if acceptance is None else acceptance},
        )
        await self._requests.accept(KeptRequest(key=key, fingerprint=b"f"), message)
        delivery = await self._take(message.subject)
        for attempt in range(1, errors):
            record = error("UNAVAILABLE", "The storage does not answer", attempt=attempt)
            await self._requests.settle(delivery, Settled(status=RequestStatus.RETRYING, request=key, error=record))
            delivery = await self._take(message.subject)
        failed = Settled(
            status=RequestStatus.FAILED, request=key, error=error(attempt=errors), http_status=404, body=ANSWER
        )
        assert await self._requests.settle(delivery, failed)
        return delivery.number

    async def refuse(self, tenant: str = "acme", body: bytes = b"\xff", *, record: bytes | None = None) -> int:
        """A message that was never accepted; its number."""
        headers = {"Authorization": "Bearer a-token-that-nobody-may-see"}
        subject = actions_subject(tenant)
        await self._bus.publish(BusMessage(subject=subject, id=str(uuid.uuid4()), body=body, headers=headers))
        delivery = await self._take(subject)
        assert await self._bus.give_up(delivery, record or error("UNAUTHORIZED", "The token has expired"))
        return delivery.number

    async def _take(self, subject: str) -> BusDelivery:
        subscription = self._bus.subscribe(subject, most_per_subject=1, ack_seconds=60)
        async with asyncio.timeout(PATIENCE):
            return await subscription.take()

"""Requests that are carried out later: how they are accepted, over HTTP and from the bus.

1. The order of the steps is that of a request that is answered at once, up to TTL. The nonce is used by the transaction
   that accepts the request, so that a process that dies in between has done neither.
2. A message is accepted on behalf of who has signed it: `htm` is `PUBLISH`, and `htu` is its subject. Its token has to
   be valid at the time at which it was published.
3. A message that is refused is a dead letter, with its bytes and the reason. A sender that is known gets a reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from dragoman.agents.senders import as_caller, kept_caller
from dragoman.calls.limits import encode_arguments
from dragoman.clock import Clock
from dragoman.errors import PayloadTooLarge, ToolError, Unauthorized
from dragoman.gateway.asking import AskedAction, asked_for
from dragoman.gateway.credentials import Credential
from dragoman.gateway.envelope import LONGEST_TTL, read_envelope, trace_in
from dragoman.gateway.exchanges import REFUSALS, Exchanges, GatewayExchange, check_body, too_large
from dragoman.gateway.keeping import Objects
from dragoman.gateway.port import Nonce
from dragoman.gateway.replying import error_record, may_pass, reply_to, retry_after_seconds
from dragoman.gateway.requests import (
    KEPT_SECONDS,
    STREAM,
    ActionRequests,
    KeptRequest,
    MakeReply,
    RequestKey,
    RequestStatus,
    Settled,
)
from dragoman.ids import Ids
from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.standing import check_time
from dragoman.messaging.bus import BusDelivery, BusMessage
from dragoman.messaging.retries import Random, RetryPolicy, backoff_ms
from dragoman.messaging.subjects import accepted_subject, actions_subject
from dragoman.replies.contract import code_in_contract

PUBLISH: Final = "PUBLISH"
"""The `htm` of a token for a message."""
ACCEPTANCE: Final = "acceptance"
"""The header of a message that was accepted: JSON of `Acceptance`."""
_POLICY = RetryPolicy(max_delay_ms=600_000)


class Acceptance(Struct, frozen=True, kw_only=True):
    """On whose behalf a request was accepted, and until when it may be carried out."""

    request: RequestKey
    """Identifies the request."""
    caller: msgspec.Raw
    author: str
    roles: tuple[str, ...]
    key: str | None
    accepted_at: float
    expires_at: float
    web_base: str = ""
    kid: str | None = None
    artifact: str | None = None
    """The object that holds the arguments, by its SHA-256."""
    stream: str | None = None
    """The stream that its `seq` counts in; None without one."""

    def asked(self, body: bytes) -> AskedAction:
        """The request. Its envelope was checked when it was accepted. Raises `MalformedEnvelope`."""
        envelope = read_envelope(body)
        return AskedAction(
            envelope=envelope,
            action=ACTIONS[envelope.action],
            caller=as_caller(bytes(self.caller)),
            author=self.author,
            roles=frozenset(self.roles),
            key=self.key,
            expires_at=self.expires_at,
            web_base=self.web_base,
            kid=self.kid,
        )


_decode = msgspec.json.Decoder(Acceptance).decode


def acceptance_in(message: BusMessage) -> Acceptance:
    """The acceptance of a message on the subject of accepted ones."""
    return _decode(message.headers[ACCEPTANCE])


def accepted_again(message: BusMessage, now: float) -> tuple[Mapping[str, str], RequestKey]:
    """The headers of a message that an operator accepts again: it has its whole time to live anew."""
    acceptance = acceptance_in(message)
    asked = acceptance.asked(message.body)
    renewed = msgspec.structs.replace(acceptance, accepted_at=now, expires_at=now + asked.envelope.ttl_sec)
    return _headers_of(renewed), acceptance.request


def key_of(asked: AskedAction) -> RequestKey:
    """Identifies a request."""
    return RequestKey(asked.envelope.tenant_id, asked.caller.principal, asked.envelope.request_id.lower())


def _headers_of(acceptance: Acceptance) -> Mapping[str, str]:
    headers = {ACCEPTANCE: msgspec.json.encode(acceptance).decode()}
    return headers if acceptance.stream is None else {**headers, STREAM: acceptance.stream}


def _stream_of(asked: AskedAction) -> str | None:
    """One text for each principal and context."""
    envelope = asked.envelope
    if envelope.seq is None:
        return None
    return msgspec.json.encode((asked.caller.principal, envelope.context_id)).decode()


class Acceptor:
    """Accepts requests of known senders, each once."""

    def __init__(
        self,
        requests: ActionRequests,
        exchanges: Exchanges,
        objects: Objects,
        clock: Clock,
        ids: Ids,
        most_kept: int,
    ) -> None:
        """At most `most_kept` bytes of answers to queries are kept for a tenant."""
        self._most_kept = most_kept
        self._requests = requests
        self._objects = objects
        self._exchanges = exchanges
        self._clock = clock
        self._ids = ids

    async def accept(
        self, asked: AskedAction, exchange: GatewayExchange, nonce: Nonce | None, came_in: BusDelivery | None = None
    ) -> KeptRequest:
        """Raises `ToolError`s and `StorageError`s, and has accepted nothing then."""
        asked.check_granted()
        check_time(self._clock, asked.expires_at)
        self._check_size(asked)
        artifact = await self._artifact(asked)
        caller = kept_caller(asked.caller)
        assert caller is not None
        key = key_of(asked)
        acceptance = Acceptance(
            request=key,
            caller=msgspec.Raw(caller),
            author=asked.author,
            roles=tuple(sorted(asked.roles)),
            key=asked.key,
            accepted_at=self._clock.now().timestamp(),
            expires_at=asked.expires_at,
            web_base=asked.web_base,
            kid=asked.kid,
            artifact=artifact,
            stream=_stream_of(asked),
        )
        most_kept = self._most_kept if asked.action.only_reads else None
        wanted = KeptRequest(key=key, fingerprint=_fingerprint(asked), most_kept=most_kept)
        subject = accepted_subject(asked.envelope.tenant_id)
        message = BusMessage(
            subject=subject, id=self._ids.run_id(), body=exchange.body, headers=_headers_of(acceptance)
        )
        kept = await self._requests.accept(wanted, message, self._reply_again(asked, came_in), nonce, came_in)
        if kept is None:
            assert nonce is not None
            raise self._exchanges.credentials.nonce_was_used(nonce)
        return kept

    def _reply_again(self, asked: AskedAction, came_in: BusDelivery | None) -> MakeReply | None:
        """Makes the reply to a repeat of a request that was answered before."""
        if came_in is None:
            return None
        return lambda body: reply_to(asked.envelope, body, self._clock, f"again-{came_in.number}")

    def _check_size(self, asked: AskedAction) -> None:
        """Raise `PayloadTooLarge` for what would be refused later, and be kept as a dead letter until then."""
        args, limit = asked.envelope.payload.args, asked.action.max_payload_bytes
        if args is not None and limit is not None and (size := len(encode_arguments(args))) > limit:
            raise PayloadTooLarge(size, limit, None)

    async def _artifact(self, asked: AskedAction) -> str | None:
        """The object that holds the arguments, which is kept for as long as the request may be retried."""
        payload, tenant = asked.envelope.payload, asked.envelope.tenant_id
        if payload.artifact_uri is None or payload.artifact_hash is None:
            return None
        sha256 = await self._objects.resolve(tenant, payload.artifact_uri, payload.artifact_hash)
        await self._objects.pin(tenant, sha256, asked.expires_at + KEPT_SECONDS)
        return sha256


def _fingerprint(asked: AskedAction) -> bytes:
    """The same for repeats of one request, whatever their times, traces, tokens and sequence numbers."""
    envelope = asked.envelope
    key = None if asked.key == envelope.request_id.lower() else asked.key
    hash = envelope.payload.artifact_hash  # Each link is another one.
    payload = envelope.payload.args if hash is None else hash.lower()
    facts = envelope.action, envelope.action_version, payload, key
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).digest()


class BusAcceptor:
    """Accepts messages of the bus, or makes dead letters of them."""

    def __init__(
        self,
        acceptor: Acceptor,
        requests: ActionRequests,
        exchanges: Exchanges,
        aliases: AliasUse,
        clock: Clock,
        random: Random,
        most_bytes: int,
    ) -> None:
        self._acceptor = acceptor
        self._requests = requests
        self._exchanges = exchanges
        self._aliases = aliases
        self._clock = clock
        self._random = random
        self._most_bytes = most_bytes

    async def handle(self, delivery: BusDelivery) -> None:
        """Raises `StorageError`s, and has settled nothing then."""
        headers = {name.lower().encode(): value.encode() for name, value in delivery.message.headers.items()}
        exchange = self._exchanges.open_with(headers)
        asked: AskedAction | None = None
        nonce: Nonce | None = None
        try:
            credential = await self._identify(delivery, exchange, headers)
            nonce = self._exchanges.credentials.nonce_of(credential, delivery.published_at)
            asked = await self._read(delivery, exchange, credential, headers)
            kept = await self._acceptor.accept(asked, exchange, nonce, delivery)
            if kept.is_new:
                self._exchanges.meter.acknowledged(exchange.requested, self._took_ms(delivery))
        except REFUSALS as error:
            await self._refuse(delivery, exchange, asked, nonce, self._exchanges.as_tool_error(exchange, error))

    async def _identify(
        self, delivery: BusDelivery, exchange: GatewayExchange, headers: Mapping[bytes, bytes]
    ) -> Credential:
        message = delivery.message
        if len(message.body) > self._most_bytes:
            raise too_large(self._most_bytes)
        credentials = self._exchanges.credentials
        credential = await credentials.identify(headers, PUBLISH, message.subject, delivery.published_at)
        check_body(credential, message.body)
        exchange.body, exchange.credential = message.body, credential
        await self._exchanges.count(exchange)
        return credential

    async def _read(
        self, delivery: BusDelivery, exchange: GatewayExchange, credential: Credential, headers: Mapping[bytes, bytes]
    ) -> AskedAction:
        envelope = read_envelope(exchange.body)
        exchange.trace_id = envelope.trace_id
        keys = [value for name, value in headers.items() if name == b"idempotency-key"]
        exchange.asked = asked = asked_for(envelope, credential, self._clock, keys)
        if delivery.message.subject != actions_subject(envelope.tenant_id):
            raise Unauthorized("The subject is that of another tenant", {"reason": "other_tenant"})
        await self._exchanges.count_tenant(exchange, envelope.tenant_id)
        await self._aliases.note({*envelope.principal.roles, *asked.caller.roles}, envelope.tenant_id, asked.author)
        return asked

    async def _refuse(
        self,
        delivery: BusDelivery,
        exchange: GatewayExchange,
        asked: AskedAction | None,
        nonce: Nonce | None,
        error: ToolError,
    ) -> None:
        exchange.trace_id = trace_in(delivery.message.body) or exchange.trace_id
        record = error_record(error, exchange.trace_id, delivery.attempt, self._clock)
        is_young = self._clock.now().timestamp() - delivery.published_at < LONGEST_TTL
        if may_pass(error) and is_young:
            # However often: waiting is no attempt. A backlog spreads, so that not all of it comes again each minute.
            wait = backoff_ms(_POLICY, delivery.attempt - 1, self._random) / 1000
            wait += retry_after_seconds(error)
            last = msgspec.structs.replace(delivery, errors=())  # One error is enough of many that are alike.
            settled = Settled(status=RequestStatus.RETRYING, error=record, after_seconds=wait)
            if await self._requests.settle(last, settled):
                self._exchanges.meter.retried(exchange.requested, code_in_contract(error))
            return
        self._exchanges.turned_away(exchange, error)
        reply = None
        if asked is not None:
            body = self._exchanges.refused(exchange, error).body
            reply = reply_to(asked.envelope, body, self._clock, f"refused-{delivery.number}")
        settled = Settled(status=RequestStatus.FAILED, error=record, reply=reply)
        is_settled = await self._requests.settle(delivery, settled, nonce)
        if not is_settled and nonce is not None:
            error = self._exchanges.credentials.nonce_was_used(nonce)
            record = error_record(error, exchange.trace_id, delivery.attempt, self._clock)
            is_settled = await self._requests.settle(delivery, Settled(status=RequestStatus.FAILED, error=record))
        if is_settled:
            code, took_ms = code_in_contract(error), self._took_ms(delivery)
            self._exchanges.meter.ended(exchange.requested, code, took_ms, is_dead=True)

    def _took_ms(self, delivery: BusDelivery) -> float:
        """Milliseconds since a message was published."""
        return max(0.0, self._clock.now().timestamp() - delivery.published_at) * 1000

"""From an envelope to a call: what is checked before anything is done, wherever the envelope comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from dragoman.access.callers import Caller, scope_of
from dragoman.calls.call import Call, Outcome
from dragoman.calls.intake import Intake
from dragoman.calls.places import Holder
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.clock import Clock
from dragoman.errors import MissingScope, Unauthorized
from dragoman.gateway.credentials import Credential, verified_part
from dragoman.gateway.envelope import Envelope22, malformed
from dragoman.knowledge.actions import ACTIONS, Action
from dragoman.knowledge.port import ActionRequest, ActionStream
from dragoman.knowledge.roles import canonical
from dragoman.knowledge.standing import ActionOrigin, canonical_form, check_roles, fingerprint_in
from dragoman.slo.meter import EXTERNAL, INTERNAL, Requested

_CLOCKS_DIFFER: Final = 60.0
"""Seconds that a sender's clock may be ahead."""


class AskedAction(Struct, frozen=True, kw_only=True):
    """A request for an action, as far as it can be checked without carrying it out."""

    envelope: Envelope22
    action: Action
    caller: Caller
    author: str
    """The caller's name for people."""
    roles: frozenset[str]
    """Those that the envelope claims and the credentials grant."""
    key: str | None
    """The idempotency key; None: whoever asks again is answered anew."""
    expires_at: float
    """In seconds since 1970."""
    web_base: str = ""
    """Before the path of a document's page."""
    kid: str | None = None
    """The key that has signed it."""

    @property
    def holder(self) -> Holder:
        """For whom it takes a share of what all tenants share."""
        return Holder(self.envelope.tenant_id, verified_part(self.caller, self.kid))

    def check_granted(self) -> None:
        """Raise `Unauthorized` for what the pipeline would refuse its sender, before anything is kept for it."""
        if not self.caller.may_call(self.action.name):
            raise MissingScope(scope_of(self.action.name))
        check_roles(self.action, self.roles)


def asked_for(
    envelope: Envelope22, credential: Credential, clock: Clock, keys: Sequence[bytes] = (), web_base: str = ""
) -> AskedAction:
    """The action that an envelope asks for, on behalf of its sender. Raises `MalformedEnvelope` and `Unauthorized`.

    `keys` are the headers `Idempotency-Key` that came with it.
    """
    action = _action_of(envelope)
    sent_at = envelope.sent_at
    if sent_at > clock.now().timestamp() + _CLOCKS_DIFFER:
        raise malformed("timestamp", "is in the future")
    return AskedAction(
        envelope=envelope,
        action=action,
        key=_key_of(envelope, action, keys),
        caller=_checked_caller(envelope, credential),
        author=credential.author,
        roles=canonical(envelope.principal.roles) & credential.roles,
        expires_at=sent_at + envelope.ttl_sec,
        web_base=web_base,
        kid=credential.kid,
    )


class GivenArguments(Struct, frozen=True):
    """The arguments of a request, and what is made of them before there is a call."""

    values: dict[str, Any]
    known: dict[str, Any]
    """Those that have an effect."""
    ignored: list[str]
    """Paths of the others."""
    fingerprint: bytes
    size: int | None = None
    """The bytes of the known ones as JSON, if they are in an artifact; None for others, which the call weighs."""


def given(action: Action, values: dict[str, Any], *, strict: bool = False, in_artifact: bool = False) -> GivenArguments:
    """The arguments of a request. For those in an artifact, run it in a thread.

    Members that the published schema does not name have no effect, unless they are `strict`ly refused.
    """
    known, ignored = (values, []) if strict else action.known_part(values)
    encoded = canonical_form(action, known)
    size = len(encoded) - len(canonical_form(action, {})) + len("{}") if in_artifact else None
    return GivenArguments(values, known, ignored, fingerprint_in(encoded), size)


def call_for(
    asked: AskedAction,
    given: GivenArguments,
    intake: Intake,
    keep_seconds: float,
    *,
    max_payload_bytes: int | None = None,
    waits: bool = False,
) -> Call:
    """The call that carries a request out. With `waits` it waits for a slot, as nobody waits for its answer.

    `max_payload_bytes` is for arguments that came as an artifact.
    """
    envelope, action, caller = asked.envelope, asked.action, asked.caller
    request = ActionRequest(
        tenant=envelope.tenant_id,
        principal=caller.principal,  # Not `sub`: whoever has a key can choose that, be it another caller's name.
        roles=asked.roles,
        action=action.name,
        correlation_id=envelope.correlation_id,
        subject=action.subject(given.values, caller.principal),
        key=asked.key,
        fingerprint=given.fingerprint,
        keep_seconds=keep_seconds,
        stream=None if envelope.seq is None else ActionStream(envelope.context_id, envelope.seq),
        web_base=asked.web_base,
        known_as=asked.author,
        verified_as=asked.holder.key,
    )
    origin = ActionOrigin(
        caller,
        "gateway",
        is_counted=True,
        max_payload_bytes=max_payload_bytes,
        payload_bytes=given.size,
        waits_for_slot=waits,
        request=request,
        expires_at=asked.expires_at,
        known_part=given.known,
    )
    call = intake.make_local(action.name, given.values, origin, envelope.correlation_id)
    if asked.key is not None:
        call.meta = {IDEMPOTENCY_KEY: asked.key}
    if given.ignored:
        call.usage = {"ignored": given.ignored}
    return call


def requested_by(asked: AskedAction) -> Requested:
    """The facts about a request that are counted."""
    return Requested(asked.action.name, asked.envelope.tenant_id, asked.caller.name, caller_kind(asked.kid))


def caller_kind(kid: str | None) -> str:
    """The kind of a caller, by the key that it has signed with."""
    return INTERNAL if kid is None else EXTERNAL


def as_it_is(call: Call, outcome: Outcome) -> Outcome:
    """For `Intake.answer`: the outcome itself, which is worded later."""
    return outcome


def _action_of(envelope: Envelope22) -> Action:
    action = ACTIONS.get(envelope.action)
    if action is None:
        raise malformed("action", "There is no action of this name", {"actions": sorted(ACTIONS)})
    if envelope.action_version != action.version:
        raise malformed("action_version", "is not supported", {"supported_versions": [action.version]})
    return action


def _key_of(envelope: Envelope22, action: Action, given: Sequence[bytes]) -> str | None:
    """The idempotency key: the envelope's, or else, for what changes something, the request's id.

    Nobody signs the header: it can only repeat the envelope's.
    """
    key = envelope.idempotency_key
    if given and (key is None or [*given] != [key.encode()]):
        raise malformed("idempotency_key", "The header Idempotency-Key can only repeat the key in the envelope")
    return key if key is not None or action.only_reads else envelope.request_id.lower()


def _checked_caller(envelope: Envelope22, credential: Credential) -> Caller:
    """The caller, if the envelope speaks for it."""
    caller = credential.caller
    if envelope.tenant_id not in caller.tenants:
        raise Unauthorized("The credentials are not for this tenant", {"reason": "other_tenant"})
    if envelope.principal.sub != caller.name:
        raise Unauthorized("principal.sub is not who the credentials are for", {"reason": "other_principal"})
    return caller

"""On whose behalf an action is carried out: found out for each call, before anything is done for it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Set
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dragoman.access.callers import LOCAL, Caller
from dragoman.calls.call import Call, Service
from dragoman.calls.origin import Origin
from dragoman.calls.places import Holder
from dragoman.calls.repeats import IDEMPOTENCY_KEY, check_key
from dragoman.clock import Clock
from dragoman.errors import Expired, InvalidArgument, Unauthorized
from dragoman.knowledge.actions import Action, Perform
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.port import ActionRequest, Applied
from dragoman.knowledge.roles import OWNER, canonical
from dragoman.tools.context import ToolContext
from dragoman.tools.storage_errors import words_storage_errors

LOCAL_TENANT: Final = "local"
"""The tenant of the owner of the data directory."""
TENANT_KEY: Final = "dragoman/tenant"
"""Which tenant is meant, in the `_meta` of a call, for a caller that has several."""
PASSAGES_KEY: Final = "dragoman/passagesOnly"
"""Whether a query wants passages and no answer, in the `_meta` of a call: a search while somebody types."""


class ActionOrigin(Origin, frozen=True, eq=False):
    """Of a call that a signed envelope asks for: whoever has checked the envelope says for whom it is made."""

    request: ActionRequest | None = None
    expires_at: float = 0.0
    """In seconds since 1970. Later than that it has no effect."""
    known_part: dict[str, Any] = msgspec.field(default_factory=dict)
    """The arguments that have an effect. The limit of size is for all of them."""


def has_tenant(caller: Caller) -> bool:
    """Whether there are documents that the caller may know of."""
    return bool(tenants_of(caller))


def tenants_of(caller: Caller) -> frozenset[str]:
    """Whose documents the caller may know of."""
    return frozenset((LOCAL_TENANT,)) if caller is LOCAL else caller.tenants


def tenant_of(caller: Caller, wanted: Any = None) -> str:
    """The caller's tenant, or the one of several that is wanted. Raises `Unauthorized` and `InvalidArgument`."""
    tenants = tenants_of(caller)
    if wanted is not None:
        if not isinstance(wanted, str) or wanted not in tenants:
            raise Unauthorized("The caller does not belong to this tenant", {"reason": "other_tenant"})
        return wanted
    if len(tenants) != 1:
        facts = {"reason": "which_tenant", "tenants": sorted(tenants)}
        raise InvalidArgument(f"The caller has several tenants: name one in _meta as {TENANT_KEY}", facts)
    return next(iter(tenants))


def roles_of(caller: Caller) -> frozenset[str]:
    """What the caller may be in its tenants."""
    return frozenset((OWNER,)) if caller is LOCAL else canonical(caller.roles)


def holder_of(call: Call) -> Holder:
    """For whom an action takes a slot; for calls that `AuthorizeAction` has let through."""
    request: ActionRequest = call.kept_as
    return request.holder


class AuthorizeAction:
    """A stage that finds out whose documents a call is about, refuses what the roles do not allow, and what is late."""

    def __init__(
        self,
        action: Action,
        perform: Perform,
        aliases: AliasUse,
        clock: Clock,
        web_base: str,
        keep_ms: int,
    ) -> None:
        self._action = action
        self._aliases = aliases
        self._perform = perform
        self._clock = clock
        self._web_base = web_base
        self._keep_seconds = keep_ms / 1000

    def __call__(self, proceed: Service, /) -> Service:
        def authorize(call: Call) -> Awaitable[Any]:
            origin = call.origin
            if isinstance(origin, ActionOrigin):
                assert origin.request is not None
                request, until, call.arguments = origin.request, origin.expires_at, origin.known_part
            else:
                request, until = self._request_of(call), None
            check_roles(self._action, request.roles)
            if until is not None:
                check_time(self._clock, until)
            call.kept_as = request
            call.tool = replace(call.tool, handler=partial(self._run, request, origin.caller.roles))
            return proceed(call)

        return authorize

    def _request_of(self, call: Call) -> ActionRequest:
        """For a call that is no envelope: the caller's own tenant counts."""
        caller = call.origin.caller
        if IDEMPOTENCY_KEY in call.meta:
            check_key(call.meta[IDEMPOTENCY_KEY])
        passages_only = call.meta.get(PASSAGES_KEY) is True
        return ActionRequest(
            tenant=tenant_of(caller, call.meta.get(TENANT_KEY)),
            principal=caller.principal,
            roles=roles_of(caller),
            action=self._action.name,
            correlation_id=call.correlation_id,
            subject=self._action.subject(call.arguments, caller.principal),
            key=call.meta.get(IDEMPOTENCY_KEY),
            fingerprint=fingerprint_of(self._action, (call.arguments, True) if passages_only else call.arguments),
            keep_seconds=self._keep_seconds,
            web_base=self._web_base,
            passages_only=passages_only,
        )

    @words_storage_errors
    async def _run(
        self, request: ActionRequest, roles: Set[str], arguments: dict[str, Any], context: ToolContext
    ) -> Applied:
        await self._aliases.note(roles, request.tenant, request.author)
        return await self._perform(arguments, request, context)


def check_roles(action: Action, roles: frozenset[str]) -> None:
    """Raise `Unauthorized` unless one of the roles may do it."""
    if not roles & action.roles:
        facts = {"reason": "role", "roles": sorted(roles), "needed": sorted(action.roles)}
        raise Unauthorized(f"None of the caller's roles may do {action.name}", facts)


def check_time(clock: Clock, until: float) -> None:
    """Raise `Expired` for a request that comes too late."""
    if clock.now().timestamp() > until:
        raise Expired("The request came later than its ttl_sec allows")


def fingerprint_of(action: Action, arguments: Any) -> bytes:
    """The same for two requests that ask for the same."""
    return fingerprint_in(canonical_form(action, arguments))


def canonical_form(action: Action, arguments: Any) -> bytes:
    """What an action with these arguments is fingerprinted by."""
    return msgspec.json.encode((action.name, action.version, arguments), order="sorted")


def fingerprint_in(canonical_form: bytes) -> bytes:
    """The fingerprint of what is asked for in this form."""
    return hashlib.sha256(canonical_form).digest()

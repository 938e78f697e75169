"""The registry over HTTP: callers see which processes and agents there are, and agents of others send heartbeats."""

from __future__ import annotations

from collections.abc import Set
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.agents.senders import may_reach
from dragoman.clock import Clock, iso_milliseconds
from dragoman.errors import InvalidArgument, ResourceExhausted, Unauthorized
from dragoman.gateway.exchanges import REFUSALS, Exchanges
from dragoman.jobs.port import Registry, RegistryEntry
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.replies.contract import word_success

_PATH: Final = "/mcp/registry"
MOST_AGENTS: Final = 1_000
"""Of one tenant. Holders of keys choose their names, and each name is an entry for a day."""


class _Beat(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a heartbeat."""

    status: Literal["healthy", "degraded"]
    tenant_id: str | None = None


class RegistryRoutes:
    """Answers `/mcp/registry`."""

    def __init__(self, exchanges: Exchanges, registry: Registry, clock: Clock) -> None:
        self._exchanges = exchanges
        self._registry = registry
        self._clock = clock

    def routes(self) -> tuple[Route, ...]:
        """Open: a caller sends its own heartbeats, and sees the agents that its scopes reach."""
        words = self._exchanges.word_refusal
        return (
            Route(_PATH, self._answer, methods=("GET", "POST"), needs_caller=False, is_open=True, word_refusal=words),
        )

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        exchange = self._exchanges.open(request)
        try:
            body = await self._exchanges.admit(request, exchange)
            assert exchange.credential is not None
            caller = exchange.credential.caller
            if request.method == "POST":
                entries = await self._beat(caller, exchange.credential.known_as, body)
            else:
                found = await self._registry.entries((None, *caller.tenants))
                entries = [each for each in found if _may_see(caller, each)]
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)
        return HttpResponse(200, word_success({"entries": [*map(_told, entries)]}, 0), exchange.headers)

    async def _beat(self, caller: Caller, name: str, body: bytes) -> list[RegistryEntry]:
        """The caller's entry, under a name that is nobody else's, after its heartbeat."""
        try:
            beat = msgspec.json.decode(body, type=_Beat)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            facts = {"reason": "invalid_value", "errors": [{"path": "status", "message": "healthy or degraded"}]}
            raise InvalidArgument("A heartbeat is an object with a status, healthy or degraded", facts) from None
        tenant = _tenant_for(caller.tenants, beat.tenant_id)
        known = await self._registry.entries((tenant,))
        if len(known) >= MOST_AGENTS and not any(each.name == name for each in known):
            details = {"reason": "too_many_agents", "limit": MOST_AGENTS, "retryable": False}
            raise ResourceExhausted(f"At most {MOST_AGENTS} agents of a tenant are registered", details)
        entry = RegistryEntry(
            kind="agent",
            name=name,
            tenant=tenant,
            status=beat.status,
            last_seen_at=self._clock.now().timestamp(),
        )
        await self._registry.beat((entry,))
        return [each for each in await self._registry.entries((tenant,)) if each.name == name]


def _tenant_for(tenants: Set[str], wanted: str | None) -> str:
    if wanted is None and len(tenants) == 1:
        return next(iter(tenants))
    if wanted is None or wanted not in tenants:
        raise Unauthorized("The credentials are not for this tenant", {"reason": "other_tenant"})
    return wanted


def _may_see(caller: Caller, entry: RegistryEntry) -> bool:
    """Whether an entry is of one of the caller's tenants, or the server's own; of those, agents that it may reach."""
    if entry.tenant is not None:
        return entry.tenant in caller.tenants
    return entry.kind == "process" or may_reach(caller, entry.name)


def _told(entry: RegistryEntry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "tenant_id": entry.tenant,
        "status": entry.status,
        "last_seen_at": _moment(entry.last_seen_at),
        "revision": entry.revision,
    }


def _moment(seconds: float) -> str:
    return iso_milliseconds(datetime.fromtimestamp(seconds, UTC))

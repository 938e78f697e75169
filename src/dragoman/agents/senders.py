"""Senders of messages: agents by their ids, and clients by a digest that no agent can have as its id."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from dragoman.access.callers import ANONYMOUS, LOCAL, Caller

AGENT_SCOPE = "agent:"


def client_source(caller: Caller) -> str:
    """The source of a client's messages, whatever the client says about itself."""
    return _source_of(caller.principal)


@lru_cache(maxsize=256)
def _source_of(principal: str) -> str:
    return f"client:{sha256(principal.encode()).hexdigest()[:32]}"


def may_reach(caller: Caller, agent_id: str) -> bool:
    """Whether an agent exists for a caller: `agent:<id>`, `agent:<beginning>*` or no scopes at all."""
    if caller.scopes is None:
        return True
    wanted = AGENT_SCOPE + agent_id
    return wanted in caller.scopes or any(
        scope.endswith("*") and scope.startswith(AGENT_SCOPE) and wanted.startswith(scope[:-1])
        for scope in caller.scopes
    )


def kept_caller(caller: Caller) -> bytes | None:
    """A caller as the ledger keeps it; None for the owner of the process."""
    if caller is LOCAL:
        return None
    facts: dict[str, Any] = {
        "name": caller.name,
        "roles": sorted(caller.roles),
        "scopes": None if caller.scopes is None else sorted(caller.scopes),
        "issuer": caller.issuer,
        "client_id": caller.client_id,
        "tenants": sorted(caller.tenants),
    }
    return msgspec.json.encode(facts)


@lru_cache(maxsize=256)
def as_caller(kept: bytes | None) -> Caller:
    """A caller from the ledger."""
    if kept is None:
        return LOCAL
    facts = msgspec.json.decode(kept)
    found = Caller(
        facts["name"],
        frozenset(facts["roles"]),
        None if facts["scopes"] is None else frozenset(facts["scopes"]),
        facts["issuer"],
        facts["client_id"],
        tenants=frozenset(facts.get("tenants", ())),
    )
    return ANONYMOUS if found == ANONYMOUS and found.scopes is None else found

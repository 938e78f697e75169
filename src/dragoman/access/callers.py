"""The caller that a call is made for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

SCOPE_PREFIX = "tool:"
LEEWAY_SECONDS = 30
"""How far an issuer's clock may be from ours."""
METRICS_SCOPE = "metrics"
"""What a caller with scopes needs to see the metrics, which name every tool."""

OPERATE_SCOPE = "operate"
"""The scope of an operator, who sees and handles the tasks, messages and calls of all callers. Grant it by name: no
other scope, no role and no absence of scopes implies it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody a call can be attributed to: a subject, of an issuer, through a client.

    Two callers are the same when these three are. What a verifier granted may change from token to token.
    """

    name: str = field(compare=False)
    roles: frozenset[str] = field(default=frozenset(), compare=False)
    """Empty unless a verifier granted them."""
    scopes: frozenset[str] | None = field(default=None, compare=False)
    """What the caller may do; None: whatever there is."""
    issuer: str | None = field(default=None, compare=False)
    """Who vouches for the name; None: this server does."""
    client_id: str | None = None
    """The program that the token was given to."""
    expires_at: float | None = field(default=None, compare=False)
    """When the token does, in seconds of the epoch; None: never."""
    identity: Any = field(default=None, compare=False, repr=False)
    """The data that the application's own authenticator has about the caller; None if the settings authenticate."""
    tenants: frozenset[str] = field(default=frozenset(), compare=False)
    """Whose documents the caller may use."""
    principal: str = field(init=False, repr=False)
    """Whose data and limits these are, through whatever client: the name, together with its issuer if it has one."""

    def __post_init__(self) -> None:
        is_own = self.issuer is None and not self.name.startswith("[")
        principal = self.name if is_own else json.dumps([self.issuer, self.name], ensure_ascii=False)
        object.__setattr__(self, "principal", principal)

    def seconds_left(self, now: float) -> float | None:
        """How long something may go on that the token has begun; None: for ever.

        A token that was taken although it has expired, as clocks differ, lasts until the leeway is over.
        """
        if self.expires_at is None:
            return None
        left = self.expires_at - now
        return left if left > 0 else max(0.0, left + LEEWAY_SECONDS)

    def has(self, scope: str) -> bool:
        """Whether a scope was granted; that of a tool also as `tool:<beginning>*` or `tool:*`."""
        if self.scopes is None or scope in self.scopes:
            return True
        return scope.startswith(SCOPE_PREFIX) and any(
            each.endswith("*") and each.startswith(SCOPE_PREFIX) and scope.startswith(each[:-1]) for each in self.scopes
        )

    def may_call(self, tool: str) -> bool:
        """Whether the scopes cover a tool."""
        return self.has(scope_of(tool))


def scope_of(tool: str) -> str:
    """The scope that a caller needs for a tool, where it needs one."""
    return SCOPE_PREFIX + tool


LOCAL = Caller("local")
"""The owner of the data directory: whoever started the process, and so has its standard streams, and whoever brings
the directory's secret over HTTP."""

ANONYMOUS = Caller("anonymous")
"""Everybody else who is served over HTTP without having to say who it is."""


def is_operator(caller: Caller) -> bool:
    """Whether the caller has the scope `operate`, or is the owner of the data directory."""
    return caller is LOCAL or (caller.scopes is not None and OPERATE_SCOPE in caller.scopes)


def is_known(caller: Caller) -> bool:
    """Whether the caller is told from others: a share of its own would be no share where all are one caller."""
    return caller is not LOCAL and caller is not ANONYMOUS

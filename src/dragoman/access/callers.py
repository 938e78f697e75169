"""The caller that a call is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody a call can be attributed to. `roles` are empty unless a verifier granted them."""

    name: str
    roles: frozenset[str] = frozenset()


LOCAL = Caller("local")
"""Whoever started the process, and therefore owns its standard streams."""

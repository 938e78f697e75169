"""The port behind which tokens are judged."""

from __future__ import annotations

from typing import Protocol

from dragoman.access.callers import Caller


class Verifier(Protocol):
    """Knows whom a bearer token stands for."""

    async def verify(self, token: str) -> Caller:
        """Raises `Unauthenticated` when the token is no good, `VerifierUnavailable` when that cannot be told now."""
        ...

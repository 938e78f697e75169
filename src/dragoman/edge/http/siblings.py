"""The other processes that serve the same clients, as the application needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from dragoman.edge.asgi import Header, Receive, Scope, Send

LOCAL_ONLY = "dragoman.local_only"
"""In the scope of a request that this process answers, and neither forwards nor asks of others."""


class OwnerLost(Exception):
    """The owner of a session ended in the middle of its answer."""


class Siblings(Protocol):
    """Finds the process that has a session, or the rest of a result, and has it answer."""

    index: int
    """The number of this process among them."""
    prefix: str
    """The beginning of the ids of sessions that this process has."""

    def is_for_other(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request may be for another process; if not, this one answers it."""
        ...

    def owner_of(self, headers: Mapping[bytes, bytes], body: bytes) -> str | None:
        """The name of the process that has the session or the result; None if there is none."""
        ...

    async def forward(self, owner: str, scope: Scope, receive: Receive, send: Send, body: bytes) -> bool:
        """Have the owner answer; False if it is gone and the request had no effect.

        Raises `OwnerLost` when part of the answer has been sent, and `RequestRefused` when the request may have had an
        effect.
        """
        ...

    async def drained(self, timeout: float) -> None:
        """Wait until nothing is being forwarded any more, but not for longer than `timeout` seconds."""
        ...

    async def get(self, path: str, headers: Iterable[Header] = ()) -> list[tuple[int, bytes]]:
        """Status and body of each other process's answer to `GET path`."""
        ...

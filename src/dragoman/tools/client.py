"""Whoever made a call, as far as its tool may speak with them while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Client(Protocol):
    """The way back. What a transport does not carry is dropped or refused; a tool need not know which one it has."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client said it can do, as MCP's `ClientCapabilities`; empty when it said nothing."""
        ...

    @property
    def log_level(self) -> str | None:
        """The least level of `notifications/message` that the client wants during this call; None: it wants none.

        In the handshake era what `logging/setLevel` set, `info` before that; in the modern one what the request's
        `_meta` has under `io.modelcontextprotocol/logLevel`.
        """
        ...

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a live back channel: a request would reach the client now, and its answer come back."""
        ...

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification that belongs to this call. Safe from any thread; never waits, never fails."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request that belongs to this call, and wait for its result; on the event loop.

        Raises `ClientCannotBeAsked` without a back channel, and `ClientRefused` when the client answers with an error.
        """
        ...

"""Hooks that tell an application about messages. Everything is stored before a hook is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dragoman.agents.aacp.envelope import AACPEnvelope
from dragoman.errors import StructuredError


@dataclass(frozen=True, kw_only=True)
class AACPHooks:
    """Optional callbacks of an endpoint. An exception of a hook is raised by the call that led to it.

    `on_message_received` gets each message before it is handled. The others get the id of a message that this endpoint
    sent: that it was acknowledged or answered, or that it failed or was given up. `on_message_failed` also gets a
    message that was received and refused, because its `requestId` belongs to another request.
    """

    on_message_received: Callable[[AACPEnvelope], Awaitable[None]] | None = None
    on_message_completed: Callable[[str], Awaitable[None]] | None = None
    on_message_failed: Callable[[str, StructuredError], Awaitable[None]] | None = None

    async def message_received(self, envelope: AACPEnvelope) -> None:
        if self.on_message_received is not None:
            await self.on_message_received(envelope)

    async def message_completed(self, message_id: str) -> None:
        if self.on_message_completed is not None:
            await self.on_message_completed(message_id)

    async def message_failed(self, message_id: str, error: StructuredError) -> None:
        if self.on_message_failed is not None:
            await self.on_message_failed(message_id, error)

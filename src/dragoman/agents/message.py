"""A message as an agent's handler gets it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class AgentMessage(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A message to an agent."""

    type: str
    payload: Any = None
    source_agent_id: str | None = None
    """The agent that sent it, or `client:` and a digest for a client; None for the application itself."""

"""Hooks of an application for agents and messages."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from dragoman.agents.aacp.envelope import AACPEnvelope
from dragoman.agents.envelopes import envelope_of
from dragoman.agents.ledger import LedgerEntry
from dragoman.errors import InternalError, StructuredError
from dragoman.telemetry.log import Logger, exception_facts

Told: TypeAlias = Awaitable[None] | None


class AgentHooks:
    """Functions, sync or async; those that are None are not called. A message's status is stored before they are.

    No handling waits for a hook or fails with it, unlike with `AACPHooks`, which an endpoint awaits: it starts no task.
    """

    on_state_change: Callable[[str, Mapping[str, Any]], Told] | None = None
    on_message_received: Callable[[AACPEnvelope], Told] | None = None
    on_message_completed: Callable[[str], Told] | None = None
    on_message_failed: Callable[[str, StructuredError], Told] | None = None

    def call(self, name: str, logger: Logger, run: Callable[[Coroutine[Any, Any, Any]], None], *arguments: Any) -> None:
        """Call a hook, if it is set; what it raises is logged. An async one is run beside what is under way.

        A message of the ledger is given to it as an envelope.
        """
        hook = getattr(self, name)
        if hook is None:
            return
        try:
            told = hook(*(envelope_of(each) if isinstance(each, LedgerEntry) else each for each in arguments))
        except Exception as error:
            logger.error("a hook of the coordinator failed", exception_facts(error, InternalError.code))
            return
        if inspect.isawaitable(told):
            run(_wait_for(told))


async def _wait_for(told: Awaitable[None]) -> None:
    await told

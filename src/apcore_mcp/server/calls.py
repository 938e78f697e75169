"""A call of the runtime as apcore sees it: who makes it, whether it is still wanted, and the way back to its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

from apcore import CancelToken, Context, Identity

from apcore_mcp.helpers import MCP_ELICIT_KEY, MCP_PROGRESS_KEY
from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.errors import ClientCannotBeAsked
from dragoman.tools.context import Cancellation, ToolContext

logger = logging.getLogger(__name__)

Elicit: TypeAlias = Callable[..., Awaitable[Any]]
way_back: ContextVar[Elicit | None] = ContextVar("way_back", default=None)
"""How the person behind the call under way is asked, for a module that calls another one without its context."""
FREE_FORM = {"type": "object", "properties": {"response": {"type": "string", "title": "Response"}}}


class CallToken(CancelToken):
    """Is cancelled when the call is, for whatever reason: withdrawn, too late, its client gone, the server stopping.

    apcore links a token of its own to it for every module on the way, so nothing has to be passed on.
    """

    def __init__(self, cancellation: Cancellation) -> None:
        super().__init__()
        self._cancellation = cancellation

    @property
    def is_cancelled(self) -> bool:
        return self._cancellation.reason is not None or super().is_cancelled


class WayBack:
    """What a module's helpers lead to. They work from a thread as well, in an event loop of the module's own."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: ToolContext) -> None:
        self._context: ToolContext | None = context
        self._loop = asyncio.get_running_loop()

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._context is not None:
            self._context.progress(progress, total, message)

    def close(self) -> None:
        """The call has ended. Timers keep the variables of the task that set them, and so this, until they are due."""
        self._context = None

    async def ask(self, message: str, requested_schema: dict[str, Any] | None = None) -> dict[str, Any] | None:
        asking = self._asked(message, requested_schema or FREE_FORM)
        if asyncio.get_running_loop() is self._loop:
            return await asking
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))

    async def _asked(self, message: str, schema: dict[str, Any]) -> dict[str, Any] | None:
        if self._context is None:
            return None
        try:
            return await self._context.elicit(message, schema)
        except ClientCannotBeAsked:
            return None
        except ValueError as error:
            logger.warning("A module's question has a form that cannot be used: %s", error)
            return None


def make_context(call: ToolContext) -> tuple[Context[Any], WayBack]:
    """The context in which a module runs for a call, and the way back, to be closed when the call has ended."""
    back = WayBack(call)
    context: Context[Any] = Context(
        trace_id=call.run_id.replace("-", ""),
        identity=identity_of(call.caller),
        cancel_token=CallToken(call.cancellation),
        data={MCP_PROGRESS_KEY: back.report, MCP_ELICIT_KEY: back.ask},
    )
    return context, back


def identity_of(caller: Caller) -> Identity | None:
    """The caller as access rules see it, with the roles that a verifier granted; None for one who said nothing."""
    if caller is ANONYMOUS or caller.identity is not None:
        identity: Identity | None = caller.identity
        return identity
    facts = {"issuer": caller.issuer, "client_id": caller.client_id}
    known = {name: value for name, value in facts.items() if value is not None}
    return Identity(id=caller.name, roles=tuple(sorted(caller.roles)), attrs=known)

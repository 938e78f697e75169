"""Step 8, inner half: the handler itself, and the one place where its exceptions become errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dragoman.calls.call import Call
from dragoman.calls.interrupts import is_interrupt
from dragoman.calls.patience import Patience
from dragoman.calls.threads import Threads
from dragoman.errors import Aborted, InternalFailure, ProtocolError, ToolError
from dragoman.lifespans import Lifespan
from dragoman.telemetry.log import Logger
from dragoman.tools.catalogue import RegisteredTool
from dragoman.tools.context import ToolContext

_NO_CONTEXT: Any = None
"""For handlers that do not look at it."""


@dataclass(frozen=True)
class RunHandler:
    """`run` is the service in the middle of the pipeline. Async handlers run on the loop, sync ones on a thread."""

    threads: Threads
    logger: Logger
    patience: Patience | None = None
    """Without it, handlers cannot ask."""
    lifespan: Lifespan | None = None
    """The server's own, for tools that come from no file with one."""

    def run(self, call: Call) -> Awaitable[Any]:
        """Start the handler; what it returns, or raises, is awaited."""
        tool = call.tool
        context = self._context(call) if tool.wants_context else _NO_CONTEXT
        call.ran = True
        if tool.is_async:
            running: Awaitable[Any] = tool.handler(call.arguments, context)
            return running
        return self._on_a_thread(tool, call.arguments, context)

    async def _on_a_thread(self, tool: RegisteredTool, arguments: dict[str, Any], context: ToolContext) -> Any:
        value = await self.threads.run(partial(tool.handler, arguments, context))
        return await value if inspect.isawaitable(value) else value

    def _context(self, call: Call) -> ToolContext:
        origin = call.origin
        return ToolContext(
            call.run_id,
            call.correlation_id,
            self.logger,
            call.cancellation,
            origin.caller,
            call.progress,
            origin.transport,
            origin.client,
            None if self.patience is None else partial(self.patience.ask, call),
            call.tool.lifespan or self.lifespan,
            origin.headers,
        )


def meaning_of(error: BaseException, call: Call) -> BaseException:
    """What the pipeline should see in place of what a handler raised; what it must not stop is given back as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        # A task group that one child failed in has nothing to add to it. Its traceback leads back to it.
        BaseException.with_traceback(error, None)
        error = error.exceptions[0]
    if isinstance(error, ToolError) or is_interrupt(error):
        return error
    if isinstance(error, ProtocolError) and error.may_be_raised:
        return error
    if isinstance(error, asyncio.CancelledError) and call.completed:
        return error  # Abandoned at shutdown: the cancellation is ours.
    if isinstance(error, Aborted | asyncio.CancelledError) and call.cancellation.is_set():
        return Aborted(call.cancellation.reason)
    # A tool that exits, panics or interrupts ends its call, not the server.
    failure = InternalFailure("The tool failed", {"reason": "handler_exception"})
    failure.__cause__ = error
    return failure

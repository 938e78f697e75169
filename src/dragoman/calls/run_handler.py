"""Step 8, inner half: the handler itself, and the one place where its exceptions become errors."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

from dragoman.calls.call import Call, Outcome
from dragoman.calls.threads import Threads
from dragoman.errors import Aborted, InternalFailure, ToolError
from dragoman.telemetry.log import Logger
from dragoman.tools.context import ToolContext

_NO_CONTEXT: Any = None
"""For handlers that do not look at it."""


@dataclass(frozen=True)
class RunHandler:
    """The service in the middle of the pipeline. Async handlers run on the loop, sync ones on a thread."""

    threads: Threads
    logger: Logger

    async def __call__(self, call: Call) -> Outcome:
        assert call.tool is not None
        tool = call.tool
        context = self._context(call) if tool.wants_context else _NO_CONTEXT
        call.ran = True
        try:
            if tool.is_async:
                value = await tool.handler(call.arguments, context)
            else:
                value = await self.threads.run(partial(tool.handler, call.arguments, context))
                if inspect.isawaitable(value):
                    value = await value
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # A tool that exits or panics ends its call, not the server.
            meaning = _meaning_of(error, call)
            if meaning is error:
                raise
            raise meaning from error
        return Outcome(value)

    def _context(self, call: Call) -> ToolContext:
        return ToolContext(call.run_id, call.correlation_id, self.logger, call.cancellation, call.caller, call.progress)


def _meaning_of(error: BaseException, call: Call) -> BaseException:
    """The exception that the rest of the pipeline should see in place of what a handler raised."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # A task group that one child failed in has nothing to add to it.
    if isinstance(error, ToolError):
        return error
    if isinstance(error, asyncio.CancelledError) and call.completed:
        return error  # Abandoned at shutdown: the cancellation is ours.
    if isinstance(error, Aborted | asyncio.CancelledError) and call.cancellation.is_set():
        return Aborted(call.cancellation.reason)
    return InternalFailure("The tool failed", {"reason": "handler_exception"})

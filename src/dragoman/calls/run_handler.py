"""Step 8, inner half: the handler itself, and the one place where its exceptions become errors."""

from __future__ import annotations

import asyncio
import inspect
import traceback
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
        except ToolError:
            raise
        except Aborted as error:
            if call.cancellation.is_set():
                raise
            raise self._unexpected(call, error) from None
        except asyncio.CancelledError as error:
            if call.completed:  # Abandoned at shutdown: the cancellation is ours.
                raise
            if call.cancellation.is_set():
                raise Aborted(call.cancellation.reason) from None
            raise self._unexpected(call, error) from None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # A tool that exits or panics ends its call, not the server.
            raise self._unexpected(call, error) from None
        return Outcome(value)

    def _context(self, call: Call) -> ToolContext:
        return ToolContext(call.run_id, call.correlation_id, self.logger, call.cancellation, call.caller, call.progress)

    def _unexpected(self, call: Call, error: BaseException) -> InternalFailure:
        """What the client is told about an exception that was not meant for it: that there was one."""
        self.logger.error(
            "tool raised an exception",
            {
                "runId": call.run_id,
                "correlationId": call.correlation_id,
                "toolName": call.name,
                "error": {"code": "INTERNAL", "message": f"{type(error).__name__}: {error}"},
                "traceback": "".join(traceback.format_exception(error)),
            },
        )
        return InternalFailure("The tool failed", {"reason": "handler_exception"})

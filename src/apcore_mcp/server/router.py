"""Calls on their way to a module: through the executor, always, and back in the words of the specification."""

from __future__ import annotations

import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from apcore import errors as theirs
from apcore.cancel import ExecutionCancelledError
from msgspec import Raw

from apcore_mcp.adapters.errors import ErrorMapper
from apcore_mcp.adapters.schema import Schema
from apcore_mcp.server.approval import calls_under_way, take_decision
from apcore_mcp.server.calls import make_context, way_back
from dragoman import errors as ours
from dragoman.telemetry.python_logging import log_failure
from dragoman.tools.content import is_longer
from dragoman.tools.sensitive import Hide, hiding, is_marked

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from apcore import Context, Executor
    from mcp_types import CallToolResult

    from dragoman.tools.context import Cancellation, ToolContext
    from dragoman.tools.tool import Handler

logger = logging.getLogger(__name__)

NOT_SERIALIZABLE = "Failed to serialize module output"
DEEPEST_MERGE = 32
"""As apcore has it: chunks are merged so deep, and replaced below that."""

_KINDS: tuple[tuple[type[Exception], type[ours.ToolError]], ...] = (
    (theirs.ModuleNotFoundError, ours.NotFound),
    (theirs.InvalidInputError, ours.InvalidArgument),
    (theirs.ACLDeniedError, ours.Unauthorized),
    (theirs.ApprovalError, ours.Unauthorized),
    (theirs.ModuleTimeoutError, ours.TimedOut),
    (theirs.ModuleError, ours.Failed),
    (Exception, ours.InternalFailure),
)
_VALIDATION = "Input validation failed"
_STOPPED = (ExecutionCancelledError, ours.Aborted)

# Without NaN, which is not JSON: it would break the line, and not only the text.
_encode = json.JSONEncoder(default=str, allow_nan=False).encode


class ExecutionRouter:
    """Calls modules by id, and lets no exception of theirs through."""

    def __init__(self, executor: Executor, most_bytes: int | None = None) -> None:
        """`most_bytes`: what an output may weigh that can be answered with, if there is a limit."""
        self.executor = executor
        self._most = most_bytes
        self._errors = ErrorMapper()

    async def handle_call(
        self, tool_name: str, arguments: dict[str, Any] | None = None, context: Context[Any] | None = None
    ) -> CallToolResult:
        """Call a module, outside of a server; the result is MCP's, with `is_error` for whatever went wrong."""
        from mcp_types import CallToolResult, TextContent

        given, more = arguments or {}, () if context is None else (context,)
        logger.debug("Tool call: %s", tool_name)

        async def execute() -> Any:
            return await self.executor.call_async(tool_name, given, *more)

        try:
            text, is_error = await self._written(tool_name, execute(), given), False
        except ours.ToolError as error:
            text, is_error = error.plain or "Module error: RESULT_TOO_LARGE", True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)

    def handler(
        self, module_id: str, schema: Schema, own: Schema | None = None, *, is_streaming: bool, is_asked: bool
    ) -> Handler:
        """The handler of a module. `is_asked`: whether a person's decision comes with the arguments.

        `own` is the module's, with the marks of sensitive fields that `schema` no longer has.
        """
        marked = own if own is not None and is_marked(own) else None
        call_async, streams = self.executor.call_async, is_streaming and hasattr(self.executor, "stream")
        under_way = calls_under_way(self.executor)

        async def execute(arguments: dict[str, Any], call: ToolContext) -> Any:
            context, back = make_context(call)
            if is_asked:
                take_decision(arguments, context, module_id)
            before = way_back.set(back.ask)
            under_way.add(call.run_id)
            try:
                if streams and call.wants_progress:
                    return await self._streamed(module_id, arguments, context, call)
                return await call_async(module_id, arguments, context=context)
            finally:
                under_way.discard(call.run_id)
                way_back.reset(before)
                back.close()

        async def handle(arguments: dict[str, Any], call: ToolContext) -> Raw:
            running = execute(arguments, call)
            text = await self._written(module_id, running, arguments, schema, call.cancellation, marked)
            return Raw(text.encode())

        return handle

    async def _written(
        self,
        module_id: str,
        running: Coroutine[Any, Any, Any],
        arguments: dict[str, Any],
        schema: dict[str, Any] | None = None,
        cancellation: Cancellation | None = None,
        marked: dict[str, Any] | None = None,
    ) -> str:
        """A module's output as JSON. Raises `Aborted`, or a `ToolError` in the words of the specification."""
        try:
            output = await running
        except Exception as error:
            if cancellation is not None and cancellation.is_set() and isinstance(error, _STOPPED):
                raise ours.Aborted(cancellation.reason) from None
            if schema is None:  # Outside of a server.
                schema = marked = self._schema_of(module_id)
            hide = None if marked is None else hiding(marked, arguments)
            _log(module_id, error, hide)
            raise _told(error, self._errors.text(error, schema, arguments, hide)) from None
        # Twice: `json` writes some types otherwise, and none of them half as long.
        if self._most is not None and is_longer(output, 2 * self._most):
            raise ours.ResultTooLarge(None, self._most)
        try:
            return _encode(output)
        except Exception as error:  # `str` of a value may fail in any way.
            _log(module_id, error, None if marked is None else hiding(marked, arguments))
            raise _told(error, NOT_SERIALIZABLE) from None

    def _schema_of(self, module_id: str) -> dict[str, Any] | None:
        """What arguments are checked against, if it can be had: the module may be gone by now, or its schema broken."""
        try:
            schema: dict[str, Any] = self.executor.registry.get_definition(module_id).input_schema  # type: ignore[union-attr]
        except Exception:
            return None
        return schema

    async def _streamed(
        self, module_id: str, arguments: dict[str, Any], context: Context[Any], call: ToolContext
    ) -> dict[str, Any]:
        """Send each chunk as progress, and give them all together."""
        output: dict[str, Any] = {}
        count = 0
        stream: Any = self.executor.stream(module_id, arguments, context=context)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                call.progress(count := count + 1, None, _encode(chunk))
                _merge(output, chunk, DEEPEST_MERGE)
                call.cancellation.raise_if_set()
        return output


def _told(error: Exception, text: str) -> ours.ToolError:
    """What the runtime should see in place of `error`."""
    if text.startswith(_VALIDATION):
        told: ours.ToolError = ours.InvalidArgument(_VALIDATION, {"errors": _findings(text)})
    else:
        told = next(kind for their, kind in _KINDS if isinstance(error, their))(text)
    told.plain = text
    return told


def _log(name: str, error: Exception, hide: Hide | None) -> None:
    """What went wrong, with a trace where it was the module's code or ours, and never with the arguments."""
    message = error.message if isinstance(error, theirs.ModuleError) else str(error)
    if isinstance(error, theirs.SchemaValidationError):
        message = message.partition(":")[0]  # What follows quotes values.
    is_expected = isinstance(error, theirs.ModuleError) and not isinstance(error, theirs.ModuleExecuteError)
    trace = None if is_expected else error
    log_failure(logger, f"Tool call error: {name} - {type(error).__name__}: {message}", trace, hide)
    ours.drop_tracebacks(error)  # Nobody is shown it again, and apcore's frames lead back to it.


def _findings(text: str) -> list[dict[str, str]]:
    """The lines of the answer as the runtime has such findings."""
    lines = [line.removeprefix("- ").partition(": ") for line in text.splitlines()[1:]]
    return [{"path": "/" + field.replace(".", "/"), "message": message} for field, _, message in lines]


def _merge(base: dict[str, Any], chunk: dict[str, Any], depth: int) -> None:
    for key, value in chunk.items():
        if depth > 0 and isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value, depth - 1)
        else:
            base[key] = value

"""Calls on their way to a module: through the executor, always, and back in the words of the specification."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from apcore import errors as theirs
from apcore.cancel import ExecutionCancelledError
from apcore.utils.redaction import REDACTED_VALUE
from msgspec import Raw

from apcore_mcp.adapters.errors import UNEXPECTED, ErrorMapper
from apcore_mcp.adapters.schema import ModuleSchema
from apcore_mcp.server.approval import calls_under_way, take_decision
from apcore_mcp.server.calls import make_context, way_back
from dragoman import errors as ours
from dragoman.calls.interrupts import raise_if_stopped
from dragoman.schemas.sensitive import Hide, hiding, if_marked, redact
from dragoman.telemetry.clean import text_of
from dragoman.telemetry.python_logging import log_failure
from dragoman.tools.content import is_longer, merge_into

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from apcore import Context, Executor, ModuleDescriptor
    from mcp_types import CallToolResult

    from dragoman.tools.context import Cancellation, ToolContext
    from dragoman.tools.tool import Handler

logger = logging.getLogger(__name__)

DEEPEST_MERGE = 32
"""As apcore has it: chunks are merged so deep, and replaced below that."""

_KINDS: tuple[tuple[type[BaseException], type[ours.ToolError]], ...] = (
    (theirs.ModuleNotFoundError, ours.NotFound),
    (theirs.InvalidInputError, ours.InvalidArgument),
    (theirs.ACLDeniedError, ours.Unauthorized),
    (theirs.ApprovalError, ours.Unauthorized),
    (theirs.ModuleTimeoutError, ours.TimedOut),
    (theirs.ModuleError, ours.Failed),
    (BaseException, ours.InternalFailure),
)
_VALIDATION = "Input validation failed"
_STOPPED = (ExecutionCancelledError, asyncio.CancelledError, ours.Aborted)

# Without NaN, which is not JSON: it would break the line, and not only the text.
_encode = json.JSONEncoder(default=str, allow_nan=False).encode


class _Module(NamedTuple):
    """A module and its schemas; those that mark sensitive values are there for that, and None if they mark nothing."""

    id: str
    schema: ModuleSchema | None = None
    marked: ModuleSchema | None = None
    marked_output: ModuleSchema | None = None

    def shown(self, output: Any) -> str:
        """An output as JSON, with marked values replaced."""
        return _encode(redact(self.marked_output, output, REDACTED_VALUE))


class ExecutionRouter:
    """Calls modules by id, and lets no exception of theirs through."""

    def __init__(self, executor: Executor, most_bytes: int | None = None) -> None:
        """`most_bytes`: what an output may weigh that can be answered with, if there is a limit."""
        self.executor = executor
        self._most = most_bytes
        self._errors = ErrorMapper()
        self._known: dict[str, tuple[Any, _Module]] = {}

    async def handle_call(
        self, tool_name: str, arguments: dict[str, Any] | None = None, context: Context[Any] | None = None
    ) -> CallToolResult:
        """Call a module, outside of a server; the result is MCP's, with `is_error` for whatever went wrong.

        Raises nothing but `CancelledError` when its own task is cancelled, and `KeyboardInterrupt` for Ctrl-C.
        """
        from mcp_types import CallToolResult, TextContent

        given, more = arguments or {}, () if context is None else (context,)
        logger.debug("Tool call: %s", tool_name)

        async def execute() -> Any:
            return await self.executor.call_async(tool_name, given, *more)

        try:
            text, is_error = await self._written(self._module(tool_name), execute(), given), False
        except ours.ToolError as error:
            text, is_error = error.plain or "Module error: RESULT_TOO_LARGE", True
        except BaseException as error:
            raise_if_stopped(error)
            logger.error("Tool call error: %s - %s", tool_name, type(error).__name__)
            text, is_error = UNEXPECTED, True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)

    def handler(self, descriptor: ModuleDescriptor, schema: ModuleSchema, *, is_asked: bool) -> Handler:
        """The handler of a module. `is_asked`: whether a person's decision comes with the arguments.

        `schema` is the module's input schema as clients are shown it, without the marks of sensitive fields. What the
        module's output schema marks is replaced in every result, and in every chunk of a stream.
        """
        module = _module_of(descriptor, schema)
        streams = getattr(descriptor.annotations, "streaming", False) and hasattr(self.executor, "stream")
        call_async, under_way = self.executor.call_async, calls_under_way(self.executor)

        async def execute(arguments: dict[str, Any], call: ToolContext) -> Any:
            context, back = make_context(call)
            if is_asked:
                take_decision(arguments, context, module.id)
            before = way_back.set(back.ask)
            under_way.add(call.run_id)
            try:
                if streams and call.wants_progress:
                    return await self._streamed(module, arguments, context, call)
                return await call_async(module.id, arguments, context=context)
            finally:
                under_way.discard(call.run_id)
                way_back.reset(before)
                back.close()

        async def handle(arguments: dict[str, Any], call: ToolContext) -> Raw:
            return Raw((await self._written(module, execute(arguments, call), arguments, call.cancellation)).encode())

        return handle

    async def _written(
        self,
        module: _Module,
        running: Coroutine[Any, Any, Any],
        arguments: Any,
        cancellation: Cancellation | None = None,
    ) -> str:
        """A module's output as JSON. Raises `Aborted`, or a `ToolError` in the words of the specification."""
        try:
            output = await running
        except BaseException as error:
            raise_if_stopped(error)
            if cancellation is not None and cancellation.is_set() and isinstance(error, _STOPPED):
                raise ours.Aborted(cancellation.reason) from None
            hide = hiding(module.marked, arguments)
            _log(module.id, error, hide)
            raise _told(error, self._errors.text(error, module.schema, arguments, hide)) from None
        # Twice: `json` writes some types otherwise, and none of them half as long.
        if self._most is not None and is_longer(output, 2 * self._most):
            raise ours.ResultTooLarge(None, self._most)
        try:
            return module.shown(output)
        except Exception as error:  # `str` of a value may fail in any way.
            if module.marked_output is None:
                _log(module.id, error, hiding(module.marked, arguments))
            else:  # What the exception says may quote the output.
                logger.error("Tool call error: %s - %s", module.id, type(error).__name__)
            raise _told(error, "Failed to serialize module output") from None

    def _module(self, module_id: str) -> _Module:
        """A module that is called outside of a server: there may be none of that id, or its schemas may be broken.

        apcore generates its schemas for every definition, so they are kept as long as the registry has the module.
        """
        try:
            registry: Any = self.executor.registry
            instance = registry.get(module_id) if hasattr(registry, "get") else object()
            if self._known.get(module_id, (None,))[0] is not instance:
                found = registry.get_definition(module_id)
                self._known[module_id] = instance, _module_of(found, found.input_schema)
            return self._known[module_id][1]
        except Exception:
            return _Module(module_id)

    async def _streamed(
        self, module: _Module, arguments: dict[str, Any], context: Context[Any], call: ToolContext
    ) -> dict[str, Any]:
        """Send each chunk as progress, and give them all together."""
        output, count = dict[str, Any](), 0
        stream: Any = self.executor.stream(module.id, arguments, context=context)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                call.progress(count := count + 1, None, module.shown(chunk))
                merge_into(output, chunk, DEEPEST_MERGE)
                call.cancellation.raise_if_set()
        return output


def _module_of(descriptor: ModuleDescriptor, schema: ModuleSchema) -> _Module:
    return _Module(
        descriptor.module_id, schema, if_marked(descriptor.input_schema), if_marked(descriptor.output_schema)
    )


def _told(error: BaseException, text: str) -> ours.ToolError:
    """What the runtime should see in place of `error`."""
    if text.startswith(_VALIDATION):
        told: ours.ToolError = ours.InvalidArgument(_VALIDATION, {"errors": _findings(text)})
    else:
        kind = next(kind for their, kind in _KINDS if isinstance(error, their))
        told = (ours.InternalFailure if text == UNEXPECTED else kind)(text)
    told.plain = text
    return told


def _log(name: str, error: BaseException, hide: Hide | None) -> None:
    """What went wrong, with a trace where it was the module's code or ours, and never with the arguments."""
    message = text_of(getattr(error, "message", error) if isinstance(error, theirs.ModuleError) else error)
    if isinstance(error, theirs.SchemaValidationError):
        message = message.partition(":")[0]  # What follows quotes values.
    is_expected = isinstance(error, theirs.ModuleError) and not isinstance(error, theirs.ModuleExecuteError)
    text = f"Tool call error: {name} - {type(error).__name__}: {message}"
    log_failure(logger, text, None if is_expected else error, hide)
    ours.drop_tracebacks(error)  # Nobody is shown it again, and apcore's frames lead back to it.


def _findings(text: str) -> list[dict[str, str]]:
    """The lines of the answer as the runtime has such findings."""
    lines = [line.removeprefix("- ").partition(": ") for line in text.splitlines()[1:]]
    return [{"path": "/" + field.replace(".", "/"), "message": message} for field, _, message in lines]

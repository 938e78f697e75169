"""Actions, and other tools, for the agents of Langroid.

    agent.enable_message(tool_messages(runtime, prefix="knowledge."))

The arguments of a tool, `payload.args` of an envelope, are one field of a Langroid `ToolMessage`: Langroid claims
`request`, `purpose`, `id` and other names beside it, and allows any field. They are checked by the tool's own schema
before Langroid is given them. Langroid is no dependency: the first function that needs it imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dragoman.access.callers import LOCAL, Caller
from dragoman.errors import InvalidArgument, NotFound
from dragoman.knowledge.actions import ACTIONS
from dragoman.openai import function_name, shown_schema, text_of
from dragoman.schemas.references import PlainSchema
from dragoman.schemas.schema import Validator, compile_schema

if TYPE_CHECKING:
    from dragoman.calls.call import Outcome
    from dragoman.runtime import Runtime
    from dragoman.tools.tool import ToolDefinition

ToolMessage: TypeAlias = Any
"""An instance of a `MessageClass`, with the arguments as `args`."""
MessageClass: TypeAlias = Any
"""A subclass of Langroid's `ToolMessage`, for one tool. No type checker sees it: Langroid need not be installed."""


def action_message(action: str) -> MessageClass:
    """The class for messages of an action. Raises `NotFound` for an unknown action, `ImportError` without Langroid."""
    if action not in ACTIONS:
        raise NotFound(f"There is no action {action[:200]}", {"actions": sorted(ACTIONS)})
    return _of_action(action)


def wrap(action: str, args: Mapping[str, Any]) -> ToolMessage:
    """The `payload.args` of an envelope as a message of the action.

    Raises `InvalidArgument` for arguments that do not fit the action's schema, and what `action_message` raises.
    """
    made = action_message(action)
    made.tool_validator.check(args)
    return made(args=args)


def message_class(definition: ToolDefinition) -> MessageClass:
    """The class for messages of a tool.

    There are no messages with arguments that do not fit the tool's schema, or with fields that Langroid does not know.
    Raises `ImportError` without Langroid, `ValueError` and `KeyError` for a schema that a model cannot be shown.
    """

    class Message(_base()):  # type: ignore[misc]
        request: str = function_name(definition.name)
        purpose: str = definition.description
        tool_name: ClassVar[str] = definition.name
        tool_schema: ClassVar[PlainSchema] = shown_schema(definition)
        tool_validator: ClassVar[Validator] = compile_schema(definition.input_schema)

    return Message


def tool_messages(runtime: Runtime, *, prefix: str = "", caller: Caller = LOCAL) -> list[MessageClass]:
    """Classes whose messages the runtime handles: the value for `enable_message` of an agent.

    The list has the tools that `caller` may call and whose name begins with `prefix`; they are called as `caller`. Call
    this function in the event loop of the runtime. An agent in that loop is run by Langroid's async methods, such as
    `Task.run_async`; an agent in another thread by those or by the others.
    """
    loop = asyncio.get_running_loop()

    async def answer(message: ToolMessage) -> str:
        return text_of(await carry_out(runtime, message, caller=caller))

    def handle(message: ToolMessage) -> str:
        if _is_running(loop):
            raise RuntimeError("the agent runs in the event loop of its tools: use async methods, such as run_async")
        return asyncio.run_coroutine_threadsafe(answer(message), loop).result()

    async def handle_async(message: ToolMessage) -> str:
        if _is_running(loop):
            return await answer(message)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(message), loop))

    handlers = {"__module__": __name__, "handle": handle, "handle_async": handle_async}
    shown = (each.definition for each in runtime.catalogue if each.may_be_called_by(caller))
    classes = [message_class(each) for each in shown if each.name.startswith(prefix)]
    return [type(each)("HandledMessage", (each,), handlers) for each in classes]


async def carry_out(
    runtime: Runtime, message: ToolMessage, *, caller: Caller = LOCAL, correlation_id: str | None = None
) -> Outcome:
    """Call the tool that a message is for, through the whole pipeline of the runtime, and wait for the outcome."""
    return await runtime.call(message.tool_name, message.args, caller=caller, correlation_id=correlation_id)


@cache
def _of_action(action: str) -> MessageClass:
    return message_class(ACTIONS[action].tool(lambda caller: True).definition)


@cache
def _base() -> Any:
    if find_spec("langroid") is None:
        raise ImportError(
            "dragoman.langroid needs Langroid, which is not installed; see docs/langroid.md", name="langroid"
        )
    from langroid.agent.tool_message import ToolMessage
    from pydantic import ConfigDict, field_validator

    class Arguments(ToolMessage):  # type: ignore[misc]
        model_config = ConfigDict(extra="forbid")
        _strict = False
        args: dict[str, Any]

        @field_validator("args", mode="before")
        @classmethod
        def check(cls, args: Any) -> Any:
            """Langroid shows the error to the model, which may try again."""
            try:
                cls.tool_validator.check(args)
            except InvalidArgument as error:
                found = (f"{each['path']}: {each['message']}" for each in (error.details or {})["errors"])
                raise ValueError("; ".join([error.message, *found])) from None
            return args

        @classmethod
        def llm_function_schema(cls, request: bool = False, defaults: bool = True) -> Any:
            """With the schema of the tool as it is: Langroid removes what is called `title` from every schema."""
            spec = super().llm_function_schema(request=request, defaults=defaults)
            spec.parameters["properties"]["args"] = cls.tool_schema
            return spec

        @classmethod
        def default_value(cls, f: str) -> Any:
            """Langroid asks here whether a tool is strict. If it were, every argument would be a required one."""
            return False if f == "strict" else super().default_value(f)

    return Arguments


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop runs in this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False

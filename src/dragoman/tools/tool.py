"""A tool: a name, schemas, hints and the function behind it."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, overload

import msgspec

from dragoman.access.callers import Caller
from dragoman.errors import InvalidTool
from dragoman.lifespans import Lifespan
from dragoman.schemas.returns import AS_JSON, Returns
from dragoman.schemas.schema import Schema, listed_schema
from dragoman.schemas.signature import read_signature
from dragoman.tools.attached import F, attach, check_options, made_of
from dragoman.tools.content import is_content_type
from dragoman.tools.context import ToolContext
from dragoman.tools.questions import Question, make_questions, marker_in

Handler: TypeAlias = Callable[[dict[str, Any], ToolContext], Any]
"""Takes validated arguments and the context; returns the result, or an awaitable of it."""

Convert: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

TaskSupport: TypeAlias = Literal["optional", "required"]

MOST_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9_./-]{{1,{MOST_NAME}}}")


class Hints(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client may assume about a tool; None says nothing."""

    read_only: bool | None = msgspec.field(default=None, name="readOnlyHint")
    destructive: bool | None = msgspec.field(default=None, name="destructiveHint")
    idempotent: bool | None = msgspec.field(default=None, name="idempotentHint")
    open_world: bool | None = msgspec.field(default=None, name="openWorldHint")

    @property
    def are_harmless(self) -> bool:
        """Whether a call that may have run can be repeated without harm."""
        return bool(self.read_only or self.idempotent)


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a tool without running it."""

    name: str
    description: str
    input_schema: Schema
    version: str | None = None
    title: str | None = None
    output_schema: Schema | None = None
    hints: Hints = Hints()
    category: str | None = None
    timeout_ms: int | None = None
    cache_ttl_ms: int | None = None
    """How long a result may be given again; None: not at all, 0: for ever."""
    cache_tags: tuple[str, ...] = ()
    """What the result depends on."""
    invalidates: tuple[str, ...] = ()
    """What is no longer as it was once the tool has run."""
    task: TaskSupport | None = None
    """Whether a call may, or must, become a task for clients that take one."""

    from_hints: bool = False
    """Whether the schemas were made from type hints, by us or by others, and not written by their author."""

    def listing(self) -> dict[str, Any]:
        """The tool's entry in `tools/list`; keys that say nothing are left out."""
        entry: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": listed_schema(self.input_schema, is_own=not self.from_hints),
            "outputSchema": (
                listed_schema(self.output_schema, is_own=not self.from_hints)
                if self.output_schema is not None
                else None
            ),
            "annotations": msgspec.to_builtins(self.hints) or None,
            "version": self.version,
        }
        return {key: value for key, value in entry.items() if value is not None}


class Tool:
    """A definition with its handler. `convert` turns validated JSON into what the handler's type hints promise.

    A handler that has its own way to check arguments or results, such as another framework's pipeline, says so: any
    object passes then, and the schemas are for clients only. One that does not `speak` sends no log messages to the
    client: it says how far it is where that is wanted, and asks where that is possible, and so needs no way back to a
    client that can do neither.
    """

    __slots__ = (
        "checks_arguments",
        "checks_results",
        "convert",
        "definition",
        "handler",
        "is_async",
        "is_for",
        "is_reserved",
        "lifespan",
        "questions",
        "returns",
        "speaks",
        "wants_context",
    )

    def __init__(
        self,
        definition: ToolDefinition,
        handler: Handler,
        *,
        is_async: bool | None = None,
        is_reserved: bool = False,
        wants_context: bool = True,
        convert: Convert | None = None,
        questions: tuple[Question, ...] = (),
        checks_arguments: bool = False,
        checks_results: bool = False,
        speaks: bool = True,
        returns: Returns = AS_JSON,
        is_for: Callable[[Caller], bool] | None = None,
    ) -> None:
        self.definition = definition
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler) if is_async is None else is_async
        self.is_reserved = is_reserved
        self.wants_context = wants_context
        self.convert = convert
        self.questions = questions
        self.checks_arguments = checks_arguments
        self.checks_results = checks_results
        self.speaks = speaks
        self.returns = returns
        self.is_for = is_for
        """Whether the tool exists for a caller; None: for all."""
        self.lifespan: Lifespan | None = None
        """The lifespan of the file that it comes from; set by `within`."""

    def within(self, lifespan: Lifespan | None) -> Tool:
        """A copy of the tool whose calls have the value of `lifespan` at `ctx.lifespan`."""
        made = copy.copy(self)
        made.lifespan = lifespan
        return made

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def input_schema(self) -> Schema:
        """As clients are shown it."""
        return listed_schema(self.definition.input_schema, is_own=not self.definition.from_hints)

    @property
    def output_schema(self) -> Schema | None:
        """As clients are shown it; None, where they are told nothing about the result."""
        schema = self.definition.output_schema
        return None if schema is None else listed_schema(schema, is_own=not self.definition.from_hints)


def is_tool_name(name: str) -> bool:
    """Letters, digits and `_ . / -`, at most 128 of them."""
    return _NAME.fullmatch(name) is not None


Function: TypeAlias = Callable[..., Any] | Callable[..., Awaitable[Any]]


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    version: str | None = None,
    category: str | None = None,
    timeout_ms: int | None = None,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    cache_ttl_ms: int | None = None,
    cache_tags: Iterable[str] = (),
    invalidates: Iterable[str] = (),
    task: TaskSupport | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Callable[[F], F]: ...


def tool(function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """Make a tool of a function, sync or async. The function stays what it is: it can still be called and tested.

    The name, description and schemas come from the function's name, docstring and type hints unless they are given. A
    parameter annotated `ToolContext` receives the call's context and is not part of the schema; nor is one annotated
    with `Ask`, `Sample` or `Roots`, which the client is asked for before the function runs. Sync functions run in
    threads, so they may block; async ones run on the event loop, so they must not.

    A tool that is read-only or idempotent may have its results kept: `cache_ttl_ms` says how long (0: for ever). They
    are kept apart for each caller and are dropped when a tool that `invalidates` one of their `cache_tags` has run.

    With `task="optional"`, a client that declares MCP's tasks extension gets a task, which goes on without it; others
    get the result. With `task="required"`, others are refused.
    """

    check_options(tool, options, make_tool)

    def decorate(function: F) -> F:
        return attach(function, make_tool(function, **options))

    return decorate if function is None else decorate(function)


def make_tool(
    function: Function,
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    version: str | None = None,
    category: str | None = None,
    timeout_ms: int | None = None,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    cache_ttl_ms: int | None = None,
    cache_tags: Iterable[str] = (),
    invalidates: Iterable[str] = (),
    task: TaskSupport | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Tool:
    """The tool that `@tool` attaches to the function."""
    tool_name: str = name if name is not None else getattr(function, "__name__", "")
    if tool_name == "<lambda>":
        raise InvalidTool(tool_name, [("", "a lambda has no name; pass name, or write a function")])
    has_schema = input_schema is not None
    signature = read_signature(function, tool_name, _is_argument, is_content_type, has_schema=has_schema)
    asked = [(parameter, hint) for parameter, hint in signature.others if hint is not ToolContext]
    context_parameter = next((parameter.name for parameter, hint in signature.others if hint is ToolContext), None)
    definition = ToolDefinition(
        name=tool_name,
        description=description or inspect.getdoc(function) or "",
        title=title,
        version=version,
        category=category,
        timeout_ms=timeout_ms,
        hints=Hints(read_only, destructive, idempotent, open_world),
        cache_ttl_ms=cache_ttl_ms,
        cache_tags=tuple(cache_tags),
        invalidates=tuple(invalidates),
        task=task,
        input_schema=input_schema if input_schema is not None else signature.input_schema,
        output_schema=output_schema if output_schema is not None else signature.output_schema,
        from_hints=input_schema is None,
    )
    return Tool(
        definition,
        _by_name(function, context_parameter, signature.defaults),
        is_async=inspect.iscoroutinefunction(function),
        wants_context=context_parameter is not None,
        convert=signature.convert,
        questions=make_questions(tool_name, asked, signature.arguments),
        returns=_returns(signature.returns, input_schema, output_schema),
    )


def _is_argument(hint: Any) -> bool:
    return hint is not ToolContext and marker_in(hint) is None


def _returns(declared: Returns, input_schema: Schema | None, output_schema: Schema | None) -> Returns:
    """As the hint has it, but for a tool with schemas of its own: it answers with JSON, under the schema given."""
    if output_schema is not None:
        return AS_JSON
    return declared if input_schema is None else msgspec.structs.replace(declared, is_text=False)


def tool_of(value: Tool | Function) -> Tool:
    """The tool that a decorated function has become; a `Tool` is returned as it is.

    Raises `InvalidTool` for everything else.
    """
    for each in (value, *made_of(value)):
        if isinstance(each, Tool):
            return each
    raise InvalidTool(str(getattr(value, "__name__", value)), [("", "it is not a tool; decorate it with @tool")])


def _by_name(function: Function, context_parameter: str | None, defaults: Mapping[str, Callable[[], Any]]) -> Handler:
    if defaults:
        call = _by_name(function, context_parameter, {})
        return lambda arguments, context: call(
            {name: make() for name, make in defaults.items() if name not in arguments} | arguments, context
        )
    if context_parameter is None:
        return lambda arguments, _: function(**arguments)
    return lambda arguments, context: function(**arguments, **{context_parameter: context})


def define_tool(definition: ToolDefinition, handler: Handler) -> Tool:
    """A tool from a definition and a handler that takes `(arguments, context)`."""
    if not callable(handler):
        raise InvalidTool(definition.name, [("handler", "must be callable")])
    return Tool(definition, handler)

"""All the tools there are, checked and compiled on the way in."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from dragoman.access.callers import Caller
from dragoman.errors import DuplicateTool, DynamicRegistrationOff, InvalidTool
from dragoman.ids import Ids, RandomIds
from dragoman.lifespans import Lifespan
from dragoman.schemas.returns import AS_JSON, Returns
from dragoman.schemas.schema import ANY_OBJECT, Validator, compile_schema
from dragoman.schemas.sensitive import may_be_marked
from dragoman.sections import ValidationResult, join
from dragoman.telemetry.log import Logger
from dragoman.tools.categories import CATEGORIES, TOOL_CATEGORIES
from dragoman.tools.context import ToolContext
from dragoman.tools.questions import Question
from dragoman.tools.settings import TimeoutsConfig, ToolsConfig
from dragoman.tools.tool import Convert, Function, Handler, TaskSupport, Tool, ToolDefinition, is_tool_name, tool_of

Problems: TypeAlias = list[tuple[str, str]]
Validators: TypeAlias = list[Validator | None]

HALF_A_CHARACTER = "has half of a surrogate pair, which cannot be sent"
_serials = itertools.count()


class RegisteredTool(msgspec.Struct, frozen=True):
    """A tool that can be called: its validators are compiled."""

    definition: ToolDefinition
    handler: Handler
    is_async: bool
    is_reserved: bool
    wants_context: bool
    convert: Convert | None
    validator: Validator
    timeout_ms: int
    serial: int
    """No two registrations share it."""
    timeout_setting: str | None = None
    """The setting that decides `timeout_ms`, or can."""
    output_validator: Validator | None = None
    is_dynamic: bool = False
    touches_results: bool = False
    """Whether its results are kept, or it makes kept ones untrue."""
    questions: tuple[Question, ...] = ()
    """What the client is asked before the handler runs."""
    returns: Returns = AS_JSON
    """How its results become text and structured content."""
    speaks: bool = True
    """Whether the handler may send the client log messages."""
    may_be_marked: bool = False
    """Whether its schema marks arguments as sensitive."""
    is_builtin: bool = False
    """Whether it belongs to the server, so that no client can remove or replace it."""
    lifespan: Lifespan | None = None
    """The lifespan of the file that it comes from."""
    task: TaskSupport | None = None
    """Whether a call may, or must, become a task."""
    is_for: Callable[[Caller], bool] | None = None
    """Whether it exists for a caller; None: for all."""
    is_plain: bool = False
    """Whether it has no questions, is never a task, and touches no kept results. Set from the fields above."""

    def __post_init__(self) -> None:
        force_setattr(self, "is_plain", not (self.questions or self.task or self.touches_results))

    def exists_for(self, caller: Caller) -> bool:
        """Whether a caller is told that there is such a tool, whatever its scopes are."""
        return self.is_for is None or self.is_for(caller)

    def may_be_called_by(self, caller: Caller) -> bool:
        """Whether a caller is shown the tool, and may call it."""
        return caller.may_call(self.definition.name) and self.exists_for(caller)

    @classmethod
    def of(cls, tool: Tool, validator: Validator, timeout_ms: int) -> RegisteredTool:
        """A tool whose results are checked and kept nowhere."""
        return cls(
            definition=tool.definition,
            handler=tool.handler,
            is_async=tool.is_async,
            is_reserved=tool.is_reserved,
            wants_context=tool.wants_context,
            convert=tool.convert,
            validator=validator,
            timeout_ms=timeout_ms,
            serial=next(_serials),
            questions=tool.questions,
            may_be_marked=may_be_marked(tool.definition.input_schema),
            lifespan=tool.lifespan,
            is_for=tool.is_for,
        )


def _never_run(arguments: dict[str, Any], context: ToolContext) -> NoReturn:
    raise LookupError("there is no tool to run")


NO_TOOL = RegisteredTool(
    definition=ToolDefinition(name="", description="", input_schema={}),
    handler=_never_run,
    is_async=False,
    is_reserved=False,
    wants_context=False,
    convert=None,
    validator=ANY_OBJECT,
    timeout_ms=0,
    serial=-1,
)
"""In place of a tool that was not found, or not yet. It is in no catalogue."""


class Catalogue:
    """Tools by name. Who may change it is decided elsewhere; listeners are told when it has changed."""

    def __init__(
        self,
        config: ToolsConfig,
        logger: Logger,
        timeouts: TimeoutsConfig | None = None,
        *,
        allows_dynamic: bool = True,
        ids: Ids | None = None,
        tasks: Mapping[str, Literal["optional", "required", "none"]] | None = None,
    ) -> None:
        """`tasks`: by tool, whether a call becomes a task, in place of what the tool says."""
        self._config = config
        self._tasks = tasks or {}
        self._ids = ids or RandomIds()
        self._allows_dynamic = allows_dynamic
        self._timeouts = timeouts or TimeoutsConfig()
        self._logger = logger
        self._tools: dict[str, RegisteredTool] = {}
        self._changing = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self.version = 0
        self._particular: tuple[int, tuple[RegisteredTool, ...]] = (-1, ())
        """The version, and the tools that do not exist for every caller."""

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[RegisteredTool]:
        return iter([registered for _, registered in sorted(self._tools.copy().items())])

    def register(
        self,
        tool: Tool | Function,
        *,
        is_dynamic: bool = False,
        tool_type: str | None = None,
        is_builtin: bool = False,
        logger: Logger | None = None,
    ) -> None:
        """Add a tool, or a decorated function; raises a `RegistrationError` and leaves the catalogue as it was.

        One that a client asked for `is_dynamic`; `tool_type` says which built-in handler it stands for. One that
        `is_builtin` belongs to the server itself. `logger` logs under the ids of the call that asked for it.
        """
        tool = tool_of(tool)
        name = tool.definition.name
        if is_dynamic and not self._allows_dynamic:
            raise DynamicRegistrationOff(name)
        if name in self._tools:
            raise DuplicateTool(name)
        registered = self._compile(tool, is_dynamic=is_dynamic, is_builtin=is_builtin)
        with self._changing:
            if self._tools.setdefault(name, registered) is not registered:
                raise DuplicateTool(name)
            self.version += 1
        if is_dynamic:
            said = f"Dynamic tool registered: {name}" + (f" (type: {tool_type})" if tool_type else "")
            self._log(said, name, logger)
        self._changed()

    def _compile(self, tool: Tool, *, is_dynamic: bool = False, is_builtin: bool = False) -> RegisteredTool:
        definition = tool.definition
        validator, output_validator, problems = self._examine(definition)
        if tool.questions and definition.cache_ttl_ms is not None:
            problems.append(("cacheTtlMs", "a result that depends on answers cannot be kept"))
        if validator is None or problems:
            raise InvalidTool(definition.name, problems)
        if tool.checks_results and output_validator is not None:
            output_validator = ANY_OBJECT
        validator = ANY_OBJECT if tool.checks_arguments else validator
        timeout_ms, timeout_setting = self._timeout_of(definition)
        return msgspec.structs.replace(
            RegisteredTool.of(tool, validator, timeout_ms),
            timeout_setting=timeout_setting,
            output_validator=output_validator,
            is_dynamic=is_dynamic,
            returns=tool.returns,
            speaks=tool.speaks,
            is_builtin=is_builtin,
            task=self._task_support_of(definition),
            touches_results=definition.cache_ttl_ms is not None or bool(definition.invalidates),
        )

    def unregister(self, name: str, *, is_dynamic: bool = False, logger: Logger | None = None) -> bool:
        """Remove a tool; False when there is none of that name. Calls under way are not disturbed.

        A removal that a client asked for `is_dynamic`; `logger` logs under the ids of the call that asked for it.
        """
        with self._changing:
            if self._tools.pop(name, None) is None:
                return False
            self.version += 1
        if is_dynamic:
            self._log(f"Tool unregistered: {name}", name, logger)
        self._changed()
        return True

    def _log(self, said: str, name: str, logger: Logger | None) -> None:
        logger = logger or self._logger.child({"correlationId": self._ids.correlation_id()})
        logger.warn(said, {"toolName": name})

    def replace(self, leaving: Iterable[str], coming: Iterable[Tool]) -> None:
        """Remove tools and add others, all of it or, with a `RegistrationError`, nothing; listeners are told once."""
        compiled = [self._compile(tool) for tool in coming]
        with self._changing:
            tools = self._tools.copy()
            for name in leaving:
                tools.pop(name, None)
            for registered in compiled:
                name = registered.definition.name
                if tools.setdefault(name, registered) is not registered:
                    raise DuplicateTool(name)
            self._tools = tools
            self.version += 1
        self._changed()

    def get(self, name: str) -> RegisteredTool | None:
        return self._tools.get(name)

    @property
    def has_tasks(self) -> bool:
        """Whether calls of some tool may become tasks."""
        return any(registered.task is not None for registered in self._tools.copy().values())

    def hidden_from(self, caller: Caller) -> frozenset[str]:
        """The tools that do not exist for a caller, whatever its scopes are."""
        version, particular = self._particular
        if version != self.version:
            version = self.version  # Before the tools are looked at: a change meanwhile makes it look again.
            particular = tuple(each for each in self._tools.copy().values() if each.is_for is not None)
            self._particular = version, particular
        return frozenset(each.definition.name for each in particular if not each.exists_for(caller))

    def list(self) -> list[ToolDefinition]:
        """All definitions, sorted by name."""
        return [registered.definition for registered in self]

    def validate_definition(self, definition: ToolDefinition) -> ValidationResult:
        """Say whether a definition could be registered, without registering it."""
        _, _, problems = self._examine(definition)
        if definition.name in self._tools:
            problems.append(("name", "is registered already"))
        if not problems:
            return ValidationResult(True)
        return ValidationResult(False, [{"path": path, "message": message} for path, message in problems])

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, on the thread that made it; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _timeout_of(self, definition: ToolDefinition) -> tuple[int, str]:
        """The operator's word, else the tool's own, else its category's, else everybody's; and how to set it."""
        said = self._timeouts.tool_overrides.get(definition.name) or definition.timeout_ms
        if said is not None:
            return said, join("timeouts.tool_overrides", definition.name)
        category = definition.category or TOOL_CATEGORIES.get(definition.name)
        if category is None:
            return self._config.default_timeout_ms, "tools.default_timeout_ms"
        by_category: int = getattr(self._timeouts.tool_timeouts, category)
        return by_category, f"timeouts.tool_timeouts.{category}"

    def _task_support_of(self, definition: ToolDefinition) -> TaskSupport | None:
        """The operator's word, else the tool's own."""
        said = self._tasks.get(definition.name, definition.task)
        return None if said is None or said == "none" else said

    def _changed(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _examine(self, definition: ToolDefinition) -> tuple[Validator | None, Validator | None, Problems]:
        problems: Problems = []
        if not is_tool_name(definition.name):
            problems.append(("name", "must be 1 to 128 letters, digits, or any of _ . / -"))
        if definition.timeout_ms is not None and definition.timeout_ms < 1:
            problems.append(("timeoutMs", "must be at least 1"))
        if definition.category is not None and definition.category not in CATEGORIES:
            problems.append(("category", f"must be one of {', '.join(CATEGORIES)}"))
        if definition.task not in (None, "optional", "required"):
            problems.append(("task", "must be optional or required"))
        problems += _caching_problems(definition)
        for path in ("title", "description", "version"):
            if not can_be_sent(getattr(definition, path)):
                problems.append((path, HALF_A_CHARACTER))
        validators: Validators = []
        for path, schema in (("inputSchema", definition.input_schema), ("outputSchema", definition.output_schema)):
            if schema is None and path == "outputSchema":
                validators.append(None)
            elif not isinstance(schema, dict) or schema.get("type") != "object":
                problems.append((path, "the root must be an object: INVALID_ARGUMENT, `type` is not 'object'"))
            else:
                try:
                    validators.append(compile_schema(schema))
                except ValueError as error:
                    problems.append((path, str(error)))
        if problems:
            return None, None, problems
        return validators[0], validators[1], problems


def can_be_sent(value: Any) -> bool:
    """Whether all text in it is Unicode."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _caching_problems(definition: ToolDefinition) -> Problems:
    if definition.cache_ttl_ms is None:
        return [("cacheTags", "mean nothing without cacheTtlMs")] if definition.cache_tags else []
    problems: Problems = []
    if definition.cache_ttl_ms < 0:
        problems.append(("cacheTtlMs", "must be at least 0"))
    if not (definition.hints.read_only or definition.hints.idempotent):
        problems.append(("cacheTtlMs", "only results of tools that are read-only or idempotent can be kept"))
    return problems

"""Tools for OpenAI's models, and the models' calls of them.

    tools = openai_tools(runtime)
    ...
    messages.append(await call_openai_tool(runtime, tool_call))

The `openai` package is not needed: tools and messages are plain dicts, and a call is a dict or the package's object.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from dragoman.access.callers import LOCAL, Caller
from dragoman.errors import InvalidArgument, NotFound, ToolError
from dragoman.schemas.references import PlainSchema, inline_references
from dragoman.schemas.schema import listed_schema
from dragoman.schemas.sensitive import MARK
from dragoman.schemas.strict import Loss, StrictMode, without_nulls
from dragoman.tools.attached import made_of
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.tool import Function, Tool, ToolDefinition, is_tool_name, tool_of

if TYPE_CHECKING:
    from dragoman.calls.call import Outcome
    from dragoman.runtime import Runtime

logger = logging.getLogger(__name__)

Api: TypeAlias = Literal["chat", "responses"]
Find: TypeAlias = Callable[[str], str]
"""The name of the tool that a function stands for; raises `ToolError`. An unknown name is returned as it is."""

LONGEST_NAME = 64
"""The most characters that OpenAI takes for the name of a function."""
_SEPARATORS = re.compile("[./]")
_FAILED = "Internal error occurred"
_names_of: WeakKeyDictionary[Catalogue, tuple[int, dict[str, list[str]]]] = WeakKeyDictionary()
"""The tools behind each function name, as of a version of the catalogue."""


class Remark(NamedTuple):
    """A difference between a tool and its OpenAI form."""

    tool: str
    path: str
    """A JSON pointer into the tool's schema; empty for the whole tool."""
    message: str


def openai_tools(
    tools: Runtime | Tool | Function | ModuleType | Iterable[Tool | Function],
    *,
    strict: bool = False,
    embed_annotations: bool = False,
    prefix: str | None = None,
    api: Api = "chat",
    caller: Caller = LOCAL,
    report: list[Remark] | None = None,
) -> list[dict[str, Any]]:
    """The value of `tools=` for OpenAI's Chat Completions or, with `api="responses"`, for its Responses.

    `tools` is a runtime, one tool, several tools, or a module that contains tools. `strict` turns on strict mode.
    `embed_annotations` appends the hints that a tool sets to its description. The list contains the tools that `caller`
    may call and whose name begins with `prefix`. `report` receives a remark for each tool that is left out or is not
    strict, and for each part of a schema that strict mode drops.

    Raises `InvalidTool` for a value that is not a tool and for a tool that another decorator has wrapped, `ValueError`
    for an unknown `api` or an empty `prefix`.
    """
    check_api(api)
    if prefix == "":
        raise ValueError("prefix must not be empty")
    definitions = _definitions(tools)
    sharing: dict[str, list[str]] = {}  # Of all tools, so that neither filter changes a name.
    for definition in definitions:
        sharing.setdefault(function_name(definition.name), []).append(definition.name)
    catalogue = getattr(tools, "catalogue", None)
    hidden = catalogue.hidden_from(caller) if isinstance(catalogue, Catalogue) else ()
    made: list[dict[str, Any]] = []
    for definition in definitions:
        is_shown = caller.may_call(definition.name) and definition.name not in hidden
        if not (definition.name.startswith(prefix or "") and is_shown):
            continue
        try:
            name = _own_name(definition.name, sharing)
            parameters, losses = _parameters(definition, strict=strict)
        except (KeyError, ValueError) as error:
            reason = f"there is no definition {error}" if isinstance(error, KeyError) else error
            _tell(report, Remark(definition.name, "", f"skipped: {reason}"))
            continue
        is_strict = strict and all(loss.is_harmless for loss in losses)
        description = definition.description + (_suffix(definition) if embed_annotations else "")
        made.append(function_tool(name, description, parameters, api, strict=is_strict))
        for path, what, why, is_harmless in losses:
            said = f"{what} is {why}" if is_harmless else f"not strict: {what} is {why}"
            _tell(report, Remark(definition.name, path, said), is_harmless=is_harmless)
    return made


async def call_openai_tool(
    runtime: Runtime, tool_call: Any, *, caller: Caller = LOCAL, correlation_id: str | None = None
) -> dict[str, Any]:
    """Run a model's call of a tool and return the message that answers it: `role: tool`, or `function_call_output`.

    `tool_call` is an object of the `openai` package or the dict of one, of Chat Completions or of Responses. The call
    goes through the pipeline of the runtime as a call of `caller`. An error in the call is the text of the message, in
    the runtime's dialect: nothing that a model sends makes this function raise.
    """
    return await answer(runtime, tool_call, partial(_tool_named, runtime.catalogue), caller, correlation_id)


def check_api(api: str) -> None:
    """Raise `ValueError` for an API that does not exist."""
    if api not in ("chat", "responses"):
        raise ValueError(f"Unknown api: {api!r}. Must be one of: chat, responses")


def function_tool(name: str, description: str, parameters: PlainSchema, api: Api, *, strict: bool) -> dict[str, Any]:
    """One entry of `tools=`."""
    function = {"name": name, "description": description, "parameters": parameters}
    if api == "responses":  # There, strict mode is on by default.
        return {"type": "function", **function, "strict": strict}
    return {"type": "function", "function": {**function, "strict": True} if strict else function}


def function_name(tool: str) -> str:
    """`image.resize` becomes `image-resize`: OpenAI allows letters, digits, `_` and `-`."""
    return shortened(_SEPARATORS.sub("-", tool), tool)


def shortened(name: str, whole: str) -> str:
    """A function name of at most 64 characters; a longer one ends in a fingerprint of the `whole` name."""
    if len(name) <= LONGEST_NAME:
        return name
    fingerprint = sha256(whole.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{fingerprint}"


def shown_schema(definition: ToolDefinition) -> PlainSchema:
    """The schema of the arguments, without references; raises `ValueError` and `KeyError` if it has no such form."""
    schema = {"properties": {}, **_inlined(definition)}  # OpenAI refuses an object schema without `properties`.
    schema.pop("$schema", None)
    return schema


def text_of(outcome: Outcome) -> str:
    """What came of a call, for a model that reads only text."""
    return "\n".join(_part(block, with_images=False)["text"] for block in _blocks(outcome))


async def answer(
    runtime: Runtime, tool_call: Any, find: Find, caller: Caller = LOCAL, correlation_id: str | None = None
) -> dict[str, Any]:
    """`call_openai_tool`, with `find` to resolve the name of the function."""
    call = _read(tool_call)
    name = call.name or ""
    try:
        if call.name is None:
            raise InvalidArgument("the tool call names no function")
        name = find(name)
        arguments = _arguments(call.arguments)
    except ToolError as error:
        outcome = runtime.intake.refuse(name, error, caller=caller, correlation_id=correlation_id)
    else:
        registered = runtime.catalogue.get(name)
        if registered is not None:
            arguments = _without_nulls(arguments, registered.definition)
        outcome = await runtime.call(name, arguments, caller=caller, correlation_id=correlation_id)
    return _message(call, outcome)


def _definitions(tools: Any) -> list[ToolDefinition]:
    catalogue = getattr(tools, "catalogue", None)
    if isinstance(catalogue, Catalogue):
        return catalogue.list()
    found: Iterable[Tool]
    if isinstance(tools, ModuleType):
        found = _tools_in(tools)
    elif isinstance(tools, Iterable) and not isinstance(tools, str):
        found = map(tool_of, tools)
    else:
        found = [tool_of(tools)]
    return [tool.definition for tool in dict.fromkeys(found)]


def _tools_in(module: ModuleType) -> Iterator[Tool]:
    for value in list(vars(module).values()):
        yield from (each for each in (value, *made_of(value)) if isinstance(each, Tool))


def _own_name(tool: str, sharing: Mapping[str, list[str]]) -> str:
    """The function name of a tool; raises `ValueError` if it has none, or shares it with another tool.

    A shared name goes to neither tool. Otherwise a tool that is registered later could take the calls of another.
    """
    name = function_name(tool)
    if not is_tool_name(tool):
        raise ValueError(f"the tool name {tool!r} cannot be a function name")
    others = [other for other in sharing[name] if other != tool] or sharing[name][1:]
    if others:
        raise ValueError(f"its function name {name!r} is also that of {others[0]!r}")
    return name


def _tool_named(catalogue: Catalogue, function: str) -> str:
    version, names = _names_of.get(catalogue, (None, {}))
    if version != catalogue.version:
        version, names = catalogue.version, {}
        for each in catalogue:
            names.setdefault(function_name(each.definition.name), []).append(each.definition.name)
        _names_of[catalogue] = version, names
    found = names.get(function, [function])
    if len(found) > 1:
        raise NotFound(f"Several tools have the function name {function}, so none can be called by it")
    return found[0]


def _inlined(definition: ToolDefinition) -> PlainSchema:
    return inline_references(listed_schema(definition.input_schema), private=MARK)


def _parameters(definition: ToolDefinition, *, strict: bool) -> tuple[PlainSchema, list[Loss]]:
    """The schema, and what strict mode takes from it. A schema that strict mode cannot have stays as it is.

    Otherwise OpenAI would refuse the tool and all others of the request, or could not send what the tool needs.
    """
    schema = shown_schema(definition)
    losses: list[Loss] = []
    made = StrictMode(losses).apply(schema) if strict else schema
    harm = [loss for loss in losses if not loss.is_harmless]
    return (schema, harm) if harm else (made, losses)


def _suffix(definition: ToolDefinition) -> str:
    hints = msgspec.structs.asdict(definition.hints).items()
    said = [f"{name}={str(value).lower()}" for name, value in hints if value is not None]
    return f"\n\n[Annotations: {', '.join(said)}]" if said else ""


def _tell(report: list[Remark] | None, remark: Remark, *, is_harmless: bool = False) -> None:
    if not is_harmless:
        logger.warning("Tool %s: %s%s", remark.tool, remark.message, f": {remark.path}" if remark.path else "")
    if report is not None:
        report.append(remark)


class _ToolCall(NamedTuple):
    id: str
    name: str | None
    arguments: Any
    is_response: bool


def _read(tool_call: Any) -> _ToolCall:
    is_response = _get(tool_call, "type") == "function_call" or _get(tool_call, "call_id") is not None
    function = tool_call if is_response else _get(tool_call, "function")
    id, name = _get(tool_call, "call_id" if is_response else "id"), _get(function, "name")
    return _ToolCall(str(id or ""), name if isinstance(name, str) else None, _get(function, "arguments"), is_response)


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _arguments(given: Any) -> dict[str, Any]:
    """The arguments of a call; raises `InvalidArgument` if they are not an object."""
    if given is None or given == "":  # Models send this for a function without parameters.
        return {}
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            raise InvalidArgument("the arguments are not JSON") from None
    if not isinstance(given, Mapping):
        raise InvalidArgument("the arguments are not a JSON object")
    return dict(given)


def _without_nulls(arguments: dict[str, Any], definition: ToolDefinition) -> dict[str, Any]:
    try:
        schema = _inlined(definition)
    except (KeyError, ValueError):  # Such a tool has no OpenAI form, so no null stands for a missing argument.
        return arguments
    made: dict[str, Any] = without_nulls(arguments, schema)
    return made


def _message(call: _ToolCall, outcome: Outcome) -> dict[str, Any]:
    """The answer in the form of the API that the call came from. Only Responses takes images."""
    if not call.is_response:
        return {"role": "tool", "tool_call_id": call.id, "content": text_of(outcome)}
    parts = [_part(block, with_images=True) for block in _blocks(outcome)]
    has_images = any(part["type"] == "input_image" for part in parts)
    return {"type": "function_call_output", "call_id": call.id, "output": parts if has_images else text_of(outcome)}


def _blocks(outcome: Outcome) -> list[dict[str, Any]]:
    """The content of a result, as MCP has it."""
    if outcome.rendered is None:  # A defect of the server; its log has the cause.
        return [{"type": "text", "text": _FAILED}]
    content = outcome.rendered.content
    if isinstance(content, msgspec.Raw):
        blocks: list[dict[str, Any]] = msgspec.json.decode(content)
        return blocks
    return [{"type": "text", "text": block.text} for block in content]


def _part(block: dict[str, Any], *, with_images: bool) -> dict[str, Any]:
    """A content block as a part of an output."""
    kind, resource = block["type"], block.get("resource", block)
    if kind == "image" and with_images:
        return {"type": "input_image", "image_url": f"data:{block['mimeType']};base64,{block['data']}"}
    if kind == "resource_link":
        text = f"{block['name']}: {block['uri']}"
    elif "text" in resource:
        text = resource["text"]
    else:
        text = f"[{kind} of type {resource.get('mimeType', 'unknown')}, not available as text]"
    return {"type": "input_text", "text": text}

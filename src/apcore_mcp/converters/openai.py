"""Modules as tools for OpenAI's models, and the models' calls of them.

    tools = to_openai_tools(registry)
    ...
    messages.append(await call_openai_tool(registry, tool_call))

Nothing of the `openai` package is needed: tools and messages are plain dicts, and calls may be dicts as well.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from apcore_mcp.adapters.annotations import AnnotationMapper
from apcore_mcp.adapters.id_normalizer import ModuleIDNormalizer
from apcore_mcp.adapters.schema import SchemaConverter
from dragoman.openai import Api, answer, check_api, function_tool
from dragoman.per_loop import PerLoop
from dragoman.schemas.strict import Loss, StrictMode

if TYPE_CHECKING:
    from apcore import Executor, ModuleDescriptor, Registry

    from apcore_mcp.server.listener import RegistryListener
    from dragoman.runtime import Runtime

logger = logging.getLogger(__name__)

_MOST_RUNTIMES = 16


class ModuleRemark(NamedTuple):
    """Something about a module's tool that is not as its author wrote it."""

    module_id: str
    path: str
    """Where in the schema, as a JSON pointer; of the whole module, if it is empty."""
    message: str


class OpenAIConverter:
    """Makes tool definitions of modules, all in the same way; `to_openai_tools` says which there are."""

    def __init__(self, *, embed_annotations: bool = False, strict: bool = False, api: Api = "chat") -> None:
        check_api(api)
        self._embeds = embed_annotations
        self._strict = strict
        self._api = api
        self._schemas = SchemaConverter()
        self._annotations = AnnotationMapper()
        self._ids = ModuleIDNormalizer()

    def convert_registry(
        self, registry: Registry, tags: list[str] | None = None, prefix: str | None = None
    ) -> tuple[list[dict[str, Any]], list[ModuleRemark]]:
        """A tool for each module, and what is not as its author wrote it. One that can have none is left out."""
        tools: list[dict[str, Any]] = []
        remarks: list[ModuleRemark] = []
        named, problems = self._ids.names(registry.list())  # Of all, so that a filter changes nobody's name.
        names = {module_id: name for name, module_id in named.items()}
        for module_id in registry.list(tags=tags, prefix=prefix):
            try:
                descriptor = registry.get_definition(module_id)
                if module_id in problems or descriptor is None:
                    raise ValueError(problems.get(module_id, "it has no definition"))
                tools.append(self.convert_descriptor(descriptor, names[module_id], remarks))
            except Exception as error:  # One broken module is no reason to do without the others.
                reason = f"there is no definition {error}" if isinstance(error, KeyError) else error
                logger.warning("Module %s cannot be a tool; skipped: %s", module_id, reason)
                remarks.append(ModuleRemark(module_id, "", f"skipped: {reason}"))
        return tools, remarks

    def convert_descriptor(
        self, descriptor: ModuleDescriptor, name: str | None = None, remarks: list[ModuleRemark] | None = None
    ) -> dict[str, Any]:
        """The tool of one module. Raises `ValueError` or `KeyError` for an id or a schema that cannot be had there."""
        parameters = self._schemas.convert_input_schema(descriptor)
        losses: list[Loss] = []
        if self._strict:
            parameters = StrictMode(losses).apply(parameters)
        suffix = self._annotations.to_description_suffix(descriptor.annotations) if self._embeds else ""
        name = name or self._ids.normalize(descriptor.module_id)
        description = (descriptor.description or "") + suffix
        for path, what, why, is_harmless in losses:
            if not is_harmless:
                logger.warning("Schema for module '%s' uses %s, which is %s: %s", descriptor.module_id, what, why, path)
            if remarks is not None:
                remarks.append(ModuleRemark(descriptor.module_id, path, f"{what} is {why}"))
        return function_tool(name, description, parameters, self._api, strict=self._strict)


def to_openai_tools(
    registry_or_executor: Registry | Executor,
    *,
    embed_annotations: bool = False,
    strict: bool = False,
    tags: list[str] | None = None,
    prefix: str | None = None,
    api: Api = "chat",
    report: list[ModuleRemark] | None = None,
) -> list[dict[str, Any]]:
    """The modules as `tools=` for OpenAI's Chat Completions or, with `api="responses"`, its Responses.

    `embed_annotations` appends what is known about a module's behaviour to its description. `strict` makes the model
    keep to the schema, in the form that this takes. Only modules with all of `tags` and an id that begins with `prefix`
    are there. Which modules could not be, and what of a schema could not be kept, is added to `report`.

    Raises `TypeError` and `ValueError` for what cannot be asked for.
    """
    registry: Any = getattr(registry_or_executor, "registry", registry_or_executor)
    if not all(hasattr(registry, name) for name in ("list", "get_definition")):
        raise TypeError(f"Expected Registry or Executor instance, got {type(registry_or_executor).__name__}")
    if not all(tags or ()) or prefix == "":
        raise ValueError("Tag values and prefix must not be empty")
    converter = OpenAIConverter(embed_annotations=embed_annotations, strict=strict, api=api)
    tools, remarks = converter.convert_registry(registry, tags, prefix)
    if report is not None:
        report += remarks
    return tools


async def call_openai_tool(registry_or_executor: Registry | Executor, tool_call: Any) -> dict[str, str]:
    """Run a model's call of a tool, and give the message that answers it: `role: tool`, or `function_call_output`.

    `tool_call` is the API's object or the dict of it, of Chat Completions or of Responses. Calls go through a runtime
    with its slots, limits and deadlines, and through the executor in it. Whatever is wrong with a call is the message's
    text; only a `registry_or_executor` that is neither raises, with `TypeError`.
    """
    served = await _runtimes.get(registry_or_executor)
    return await answer(served.runtime, tool_call, partial(_module_named, served.listener))


def _module_named(listener: RegistryListener, name: str) -> str:
    ids, tools = ModuleIDNormalizer(), listener.tools
    module_id = ids.denormalize(name)
    if module_id in tools:
        return module_id
    return ids.names(sorted(tools))[0].get(name, name)  # Its name was cut, or there is no such module.


class _Served(NamedTuple):
    """A registry's modules in a runtime."""

    runtime: Runtime
    listener: RegistryListener


async def _open(source: Registry | Executor) -> _Served:
    from apcore_mcp.server.serve import attach, settings
    from dragoman.app import ServerOptions, create_server

    runtime = create_server(ServerOptions(config=settings("openai"), has_health=False))
    listener = attach(runtime, source, dynamic=True)
    await runtime.start()
    return _Served(runtime, listener)


async def _close(served: _Served) -> None:
    served.listener.stop()
    await served.runtime.stop()


_runtimes: PerLoop[Registry | Executor, _Served] = PerLoop(
    _open,
    _close,
    is_busy=lambda served: served.runtime.runner.under_way > 0,
    abandon=lambda served: served.listener.stop(),
    most=_MOST_RUNTIMES,
)

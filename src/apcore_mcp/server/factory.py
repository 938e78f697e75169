"""Modules as tools of the runtime, one for each, and their documentation as resources."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from apcore_mcp.adapters.annotations import AnnotationMapper
from apcore_mcp.adapters.schema import SchemaConverter
from dragoman.offers.resource import Resource, resource
from dragoman.tools.schema import DRAFT_2020_12
from dragoman.tools.tool import Handler, Tool, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from apcore import ModuleDescriptor, Registry
    from mcp_types import ToolAnnotations

    from apcore_mcp.server.router import ExecutionRouter
    from dragoman.tools.context import ToolContext

logger = logging.getLogger(__name__)

_LONGEST_TIMEOUT_MS = 86_400_000


class ModuleTool(Tool):
    """A module as a tool, with the names that MCP has for what is known about it."""

    __slots__ = ("descriptor", "documentation")

    descriptor: ModuleDescriptor
    documentation: Resource | None
    """What `docs://<module id>` leads to, if there is anything to read."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def input_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = self.definition.listing()["inputSchema"]
        return schema

    @property
    def output_schema(self) -> dict[str, Any] | None:
        return self.definition.listing().get("outputSchema")

    @property
    def annotations(self) -> ToolAnnotations:
        return AnnotationMapper().to_mcp_annotations(self.descriptor.annotations)


class MCPServerFactory:
    """Makes tools of modules. Without a router they can be looked at, but not called.

    `validate_inputs`: whether the runtime checks arguments against the schema before the executor does. `asks`: whether
    a person is asked before a module runs that requires approval.
    """

    def __init__(
        self, router: ExecutionRouter | None = None, *, validate_inputs: bool = False, asks: bool = False
    ) -> None:
        self._router = router
        self._validates = validate_inputs
        self._asks = asks
        self._schemas = SchemaConverter()
        self._annotations = AnnotationMapper()
        self._timeout_ms = None if router is None else _longest_call_ms(router.executor)

    def build_tool(self, descriptor: ModuleDescriptor) -> ModuleTool:
        """The tool of a module; raises `ValueError` for one whose schemas cannot be served."""
        try:
            input_schema = self._schemas.convert_input_schema(descriptor)
            output_schema = self._schemas.convert_output_schema(descriptor)
        except KeyError as error:
            raise ValueError(f"there is no definition {error}") from None
        annotations = descriptor.annotations
        definition = ToolDefinition(
            name=descriptor.module_id,
            description=descriptor.description or "",
            input_schema={"$schema": DRAFT_2020_12, **input_schema},
            output_schema=_listable(output_schema),
            hints=self._annotations.to_hints(annotations),
            timeout_ms=self._timeout_ms,
            from_hints=True,
        )
        is_asked = self._asks and self._annotations.has_requires_approval(annotations)
        made = ModuleTool(
            definition,
            self._handler(descriptor, input_schema, is_asked=is_asked),
            is_async=True,
            questions=_questions(descriptor) if is_asked else (),
            checks_arguments=not self._validates,
            checks_results=True,
        )
        made.descriptor = descriptor
        made.documentation = _documentation(descriptor)
        return made

    def build_tools(
        self, registry: Registry, tags: list[str] | None = None, prefix: str | None = None
    ) -> list[ModuleTool]:
        """The tools of all modules that have all `tags` and an id that begins with `prefix`.

        One whose definition or schema is broken is left out, and the log says so.
        """
        return list(self._built(registry, registry.list(tags=tags, prefix=prefix)))

    def _built(self, registry: Registry, module_ids: Iterable[str]) -> Iterator[ModuleTool]:
        for module_id in module_ids:
            tool = self.build_from(registry, module_id)
            if tool is not None:
                yield tool

    def build_from(self, registry: Registry, module_id: str) -> ModuleTool | None:
        """The tool of a module in a registry; None, with a warning in the log, if there can be none."""
        try:
            descriptor = registry.get_definition(module_id)
            if descriptor is None:
                logger.warning("Module %s has no definition; skipped", module_id)
                return None
            return self.build_tool(descriptor)
        except Exception as error:  # One broken module is no reason not to serve the others.
            logger.warning("Module %s cannot be a tool; skipped: %s", module_id, error)
            return None

    def _handler(self, descriptor: ModuleDescriptor, schema: dict[str, Any], *, is_asked: bool) -> Handler:
        if self._router is None:
            return _not_routed
        is_streaming = bool(getattr(descriptor.annotations, "streaming", False))
        return self._router.handler(descriptor.module_id, schema, is_streaming=is_streaming, is_asked=is_asked)


def _questions(descriptor: ModuleDescriptor) -> tuple[Any, ...]:
    from apcore_mcp.server.approval import approval_question

    return (approval_question(descriptor),)


def _listable(schema: dict[str, Any]) -> dict[str, Any] | None:
    """An output schema as MCP takes one, which is of an object; None if it is not."""
    return {"$schema": DRAFT_2020_12, **schema} if schema.get("type") == "object" else None


def _documentation(descriptor: ModuleDescriptor) -> Resource | None:
    text, uri = descriptor.documentation, f"docs://{descriptor.module_id}"
    if not text:
        return None

    async def read() -> str:
        return text

    about = f"The documentation of {descriptor.module_id}"
    return resource(uri, name=uri, description=about, mime_type="text/plain")(read)


def _longest_call_ms(executor: Any) -> int:
    """When apcore gives up on a call and on all that it leads to, which is then the runtime's deadline as well."""
    limit = getattr(executor, "_global_timeout", 0)
    return limit if isinstance(limit, int) and 0 < limit < _LONGEST_TIMEOUT_MS else _LONGEST_TIMEOUT_MS


async def _not_routed(arguments: dict[str, Any], context: ToolContext) -> Any:
    raise RuntimeError("the factory that made this tool has no router")

"""Modules as tools of the runtime, one for each, and their documentation as resources."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from apcore_mcp.adapters.annotations import AnnotationMapper
from apcore_mcp.adapters.schema import SchemaConverter
from apcore_mcp.server.approval import approval_question
from dragoman.offers.resource import text_resource
from dragoman.schemas.schema import DRAFT_2020_12
from dragoman.tools.tool import Handler, Tool, ToolDefinition

if TYPE_CHECKING:
    from apcore import ModuleDescriptor, Registry
    from mcp_types import ToolAnnotations

    from apcore_mcp.server.router import ExecutionRouter
    from dragoman.tools.context import ToolContext

logger = logging.getLogger(__name__)

_LONGEST_TIMEOUT_MS = 86_400_000


class ModuleTool(Tool):
    """The tool of a module."""

    __slots__ = ("descriptor", "documentation")

    def __init__(self, descriptor: ModuleDescriptor, definition: ToolDefinition, handler: Handler, **more: Any) -> None:
        super().__init__(definition, handler, is_async=True, checks_results=True, speaks=False, **more)
        self.descriptor = descriptor
        uri, text = f"docs://{descriptor.module_id}", descriptor.documentation
        about = f"The documentation of {descriptor.module_id}"
        self.documentation = text_resource(uri, text, description=about) if text else None

    @property
    def annotations(self) -> ToolAnnotations:
        """What clients may assume about it, as the SDK has that."""
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
        return ModuleTool(
            descriptor,
            definition,
            self._handler(descriptor, input_schema, is_asked=is_asked),
            questions=(approval_question(descriptor),) if is_asked else (),
            checks_arguments=not self._validates,
        )

    def build_tools(
        self, registry: Registry, tags: list[str] | None = None, prefix: str | None = None
    ) -> list[ModuleTool]:
        """The tools of all modules that have all `tags` and an id that begins with `prefix`.

        One whose definition or schema is broken is left out, and the log says so.
        """
        found = (self.build_from(registry, module_id) for module_id in registry.list(tags=tags, prefix=prefix))
        return [tool for tool in found if tool is not None]

    def build_from(self, registry: Registry, module_id: str) -> ModuleTool | None:
        """The tool of a module in a registry; None, with a warning in the log, if there can be none."""
        try:
            descriptor = registry.get_definition(module_id)
            if descriptor is not None:
                return self.build_tool(descriptor)
            logger.warning("Module %s skipped: it has no definition", module_id)
        except Exception as error:  # One broken module is no reason not to serve the others.
            logger.warning("Module %s skipped: %s", module_id, error)
        return None

    def _handler(self, descriptor: ModuleDescriptor, schema: dict[str, Any], *, is_asked: bool) -> Handler:
        if self._router is None:
            return _not_routed
        return self._router.handler(descriptor, schema, is_asked=is_asked)


def _listable(schema: dict[str, Any]) -> dict[str, Any] | None:
    """An output schema as MCP takes one, which is of an object; None if it is not."""
    return {"$schema": DRAFT_2020_12, **schema} if schema.get("type") == "object" else None


def _longest_call_ms(executor: Any) -> int:
    """When apcore gives up on a call and on all that it leads to, which is then the runtime's deadline as well."""
    limit = getattr(executor, "_global_timeout", 0)
    return limit if isinstance(limit, int) and 0 < limit < _LONGEST_TIMEOUT_MS else _LONGEST_TIMEOUT_MS


async def _not_routed(arguments: dict[str, Any], context: ToolContext) -> Any:
    raise RuntimeError("the factory that made this tool has no router")

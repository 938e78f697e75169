"""A module's schemas, as MCP clients and OpenAI take them.

`x-sensitive` is a note of the module's to itself: neither it nor the defaults and examples of such a field are shown.
Clients receive a token in place of such a value in a result, so the schema that they are shown accepts any value there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from dragoman.schemas.references import inline_references
from dragoman.schemas.sensitive import open_marked

if TYPE_CHECKING:
    from apcore import ModuleDescriptor

ModuleSchema: TypeAlias = dict[str, Any]


class SchemaConverter:
    """Converts the schemas of module descriptors, and never changes them."""

    def convert_input_schema(self, descriptor: ModuleDescriptor) -> ModuleSchema:
        """The schema of a tool's arguments, which says that they are an object.

        Raises `ValueError` for circular, too deep or foreign references, `KeyError` for one that leads nowhere.
        """
        return self._ensure_object_type(self._inline_refs(descriptor.input_schema or {}))

    def convert_output_schema(self, descriptor: ModuleDescriptor) -> ModuleSchema:
        """The schema of a tool's result, `{}` if the module has none. Raises as for the input."""
        return self._inline_refs(open_marked(descriptor.output_schema or {}))

    def _inline_refs(self, schema: Mapping[str, Any]) -> ModuleSchema:
        return inline_references(schema, private="x-sensitive")

    def _ensure_object_type(self, schema: ModuleSchema) -> ModuleSchema:
        if schema and schema.get("type", "object") == "object":
            return {"type": "object", **schema}
        # A module takes named inputs, whatever its schema says.
        return {"type": "object", "properties": {}} | {**schema, "type": "object"}

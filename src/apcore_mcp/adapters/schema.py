"""A module's schemas, as MCP clients and OpenAI take them.

`x-sensitive` is a note of the module's to itself: neither it nor the defaults and examples of such a field are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from dragoman.tools.references import inline_references

if TYPE_CHECKING:
    from apcore import ModuleDescriptor

Schema: TypeAlias = dict[str, Any]


class SchemaConverter:
    """Converts the schemas of module descriptors, and never changes them."""

    def convert_input_schema(self, descriptor: ModuleDescriptor) -> Schema:
        """The schema of a tool's arguments, which says that they are an object.

        Raises `ValueError` for circular, too deep or foreign references, `KeyError` for one that leads nowhere.
        """
        return self._ensure_object_type(self._inline_refs(descriptor.input_schema or {}))

    def convert_output_schema(self, descriptor: ModuleDescriptor) -> Schema:
        """The schema of a tool's result, `{}` if the module has none. Raises as for the input."""
        return self._inline_refs(descriptor.output_schema or {})

    def _inline_refs(self, schema: Mapping[str, Any]) -> Schema:
        return inline_references(schema, private="x-sensitive")

    def _ensure_object_type(self, schema: Schema) -> Schema:
        if not schema:
            return {"type": "object", "properties": {}}
        return schema if "type" in schema else {"type": "object", **schema}

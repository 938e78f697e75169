"""Python types as the forms that MCP lets a person fill in: flat objects of primitives and choices.

What a form cannot say about a field (a pattern, say) is left out of what is sent, and checked in the answer all the
same.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import InvalidArgument
from dragoman.schemas.conversion import converter, object_schema, with_meta
from dragoman.schemas.schema import DRAFT_2020_12, Validator, compile_schema

_ANYWHERE = frozenset({"type", "title", "description", "default"})
_SAID = {
    "boolean": _ANYWHERE,
    "integer": _ANYWHERE | {"minimum", "maximum"},
    "number": _ANYWHERE | {"minimum", "maximum"},
    "string": _ANYWHERE | {"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"},
    "array": _ANYWHERE | {"items", "minItems", "maxItems"},
}
"""What a form says about a field, by its type."""
_FORMATS = frozenset({"date", "date-time", "email", "uri"})


def choices(titles: Mapping[str, str] | None = None, /, **more: str) -> Meta:
    """Values to choose from, each with the title that a person sees: `Annotated[str, choices(S="Small", L="Large")]`.

    For several at once, `list[Annotated[str, choices(…)]]`.
    """
    return Meta(
        extra_json_schema={
            "oneOf": [{"const": value, "title": title} for value, title in {**(titles or {}), **more}.items()]
        }
    )


class Form(Struct, frozen=True):
    """A form, and how what was filled in becomes a value."""

    schema: Mapping[str, Any]
    """As it is sent."""
    _validator: Validator
    _convert: Callable[[dict[str, Any]], dict[str, Any]]
    _only: str | None
    """The one field of a form that was made for a bare type."""
    _blank: Mapping[str, None]
    """The fields that have to be there, and may be nothing: who leaves them out means that."""

    def read(self, content: Any) -> Any:
        """What was filled in, as the type that the form was made for; raises `InvalidArgument`."""
        try:
            self._validator.check(content)
            known: dict[str, Any] = {key: value for key, value in content.items() if key in self.schema["properties"]}
            filled = {**self._blank, **known}
            return self._convert({"answer": filled if self._only is None else filled[self._only]})["answer"]
        except InvalidArgument as error:
            raise InvalidArgument("The answer does not fit its form", error.details) from None


def make_form(kind: Any, name: str) -> Form:
    """The form for `kind`; a bare type gets one with the field `name`.

    Raises `TypeError` for what no form can carry.
    """
    answer = msgspec.defstruct("Answer", [("answer", with_meta(kind))])
    schema = object_schema(answer)
    assert schema is not None
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    whole = _resolved(schema["properties"]["answer"], definitions)
    is_bare = whole.get("type") != "object"
    properties, required = ({name: whole}, [name]) if is_bare else (whole.get("properties"), whole.get("required", []))
    if not properties:
        raise TypeError("a form needs fields, and their names")
    hints = {name: kind} if is_bare else _hints(kind)
    fields: dict[str, dict[str, Any]] = {}
    blank: dict[str, None] = {}
    for key, described in properties.items():
        field, is_nullable = _field(key, described, definitions)
        _put_in_order(field, list(_options(hints.get(key))))
        fields[key] = field
        if is_nullable and key in required:
            blank[key] = None
    required = [key for key in required if key not in blank]
    validator = compile_schema({"$schema": DRAFT_2020_12, **_object(fields, required)})
    shown = {key: _shown(field) for key, field in fields.items()}
    return Form(_object(shown, required), validator, converter(answer), name if is_bare else None, blank)


def form_of(schema: Mapping[str, Any]) -> Form:
    """The form that a schema describes, which gives what was filled in as it is; raises `ValueError` for no schema."""
    shown = {"type": "object", "properties": {}, **schema}
    validator = compile_schema({"$schema": DRAFT_2020_12, **shown})
    return Form(shown, validator, lambda answer: answer, None, {})


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _resolved(described: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    reference = described.get("$ref")
    if reference is None:
        return dict(described)
    found = definitions[reference.removeprefix("#/$defs/")]
    return {**found, **{key: value for key, value in described.items() if key != "$ref"}}


def _field(name: str, described: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of one field, and whether it may be nothing."""
    field = _resolved(described, definitions)
    is_nullable = False
    if "anyOf" in field:
        others = [each for each in field.pop("anyOf") if each.get("type") != "null"]
        is_nullable = True
        if len(others) != 1:
            raise TypeError(f"{name}: a field has one type")
        field = {**_resolved(others[0], definitions), **field}
    if None in field.get("enum", ()):
        is_nullable = True
        field["enum"] = [value for value in field["enum"] if value is not None]
    if field.get("default", ...) is None:
        del field["default"]
    if field.get("type") == "array":
        items = field.get("items")
        field["items"] = _choice_of_several(name, _resolved(items, definitions) if isinstance(items, dict) else {})
        return field, is_nullable
    if "const" in field:
        field["enum"] = [field.pop("const")]
    if "enum" in field:
        field = {"type": "string", **field}
        if not all(isinstance(value, str) for value in field["enum"]):
            raise TypeError(f"{name}: the values to choose from are texts")
    if field.get("type") not in _SAID or "contentEncoding" in field:
        raise TypeError(f"{name}: a field is a text, a number, true or false, or a choice of texts")
    return field, is_nullable


def _hints(kind: Any) -> dict[str, Any]:
    if typing.get_origin(kind) is Annotated:
        return _hints(typing.get_args(kind)[0])
    return typing.get_type_hints(typing.get_origin(kind) or kind, include_extras=True)


def _options(hint: Any) -> Iterator[Any]:
    """The values to choose from, as their author lists them."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        yield from (member.value for member in hint)
    elif typing.get_origin(hint) is Literal:
        yield from typing.get_args(hint)
    else:
        for part in typing.get_args(hint):
            yield from _options(part)


def _put_in_order(field: dict[str, Any], options: list[Any]) -> None:
    """A schema has its values sorted; whoever reads a form expects small before large."""
    chosen_from = field.get("items", field)
    if options and "enum" in chosen_from:
        place = {value: index for index, value in enumerate(options)}
        chosen_from["enum"] = sorted(chosen_from["enum"], key=lambda value: place.get(value, len(place)))


def _choice_of_several(name: str, items: Mapping[str, Any]) -> dict[str, Any]:
    titled = items.get("oneOf", items.get("anyOf"))
    if titled:
        return {"anyOf": titled}
    if items.get("enum") and all(isinstance(value, str) for value in items["enum"]):
        return {"type": "string", "enum": items["enum"]}
    raise TypeError(f"{name}: a list has to be one of texts to choose from")


def _shown(field: Mapping[str, Any]) -> dict[str, Any]:
    said = {key: value for key, value in field.items() if key in _SAID[field["type"]]}
    if said.get("format", "date") not in _FORMATS:
        del said["format"]
    return said

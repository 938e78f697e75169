"""Parameters whose arguments arrive as text: in a URI, or typed into a form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dragoman.errors import InvalidArgument
from dragoman.schemas.schema import Schema, Validator, compile_schema

_LONGEST_NUMBER = 64


class Parameter(msgspec.Struct, frozen=True):
    """One argument, as its function's type hints have it."""

    name: str
    description: str | None
    is_required: bool
    choices: tuple[str, ...]
    """Every text that fits, where the hint names them all."""
    _validator: Validator

    def read(self, text: str) -> Any:
        """The text itself, unless only a number or a boolean will do and it is one. What does not fit, a call refuses.

        So an argument is as it would be in JSON, where a tool's arguments come from.
        """
        if len(text) > _LONGEST_NUMBER or self._fits(text):
            return text
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return text
        return value if isinstance(value, int | float) and self._fits(value) else text

    def _fits(self, value: Any) -> bool:
        try:
            self._validator.check(value, thorough=False)
        except InvalidArgument:
            return False
        return True


def parameters_of(schema: Schema) -> dict[str, Parameter]:
    """The parameters in a function's schema, in order; raises `ValueError` for one that no text can be given for."""
    definitions = schema.get("$defs", {})
    found: dict[str, Parameter] = {}
    for name, own in schema.get("properties", {}).items():
        forms = list(_forms(own, definitions))
        if all(form.get("type") in ("array", "object", "null") for form in forms):
            raise ValueError(f"{name}: its arguments come as text, so it cannot be a list or an object")
        validator = compile_schema({"$schema": schema["$schema"], "$defs": definitions, **own})
        is_required = name in schema.get("required", ())
        found[name] = Parameter(name, own.get("description"), is_required, tuple(_choices(forms)), validator)
    return found


def _forms(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a schema comes down to: more than one where it leaves a choice."""
    if "$ref" in schema:
        yield from _forms(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _forms(each, definitions)
    else:
        yield schema


def _choices(forms: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for form in forms:
        for value in form.get("enum", (True, False) if form.get("type") == "boolean" else ()):
            if value is not None:
                yield value if isinstance(value, str) else msgspec.json.encode(value).decode()

"""Schemas of arguments, and arguments for them, for property tests."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from hypothesis import assume
from hypothesis import strategies as st

leaves = st.sampled_from(
    [
        {"type": "integer", "default": 3, "minimum": 0},
        {"type": "string", "x-order": 1},
        {"enum": ["p", "q"]},
        {"type": "string", "enum": ["p", "q"]},
        {"const": 5},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    ]
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(st.sampled_from(["a", "b", "default", "x-c"]), inner, max_size=4).flatmap(
        lambda properties: st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.just(properties)},
            optional={
                "required": st.lists(st.sampled_from(sorted(properties) or ["none"]), unique=True).filter(
                    lambda names: set(names) <= properties.keys()
                ),
                "additionalProperties": st.booleans(),
                "minProperties": st.just(0),
            },
        )
    )
    arrays = st.fixed_dictionaries({"type": st.just("array"), "items": inner})
    return objects | arrays


shapes = st.recursive(leaves, _containers, max_leaves=10)


@st.composite
def arguments_for(draw: st.DrawFn, schema: dict[str, Any]) -> tuple[Any, Any]:
    """A value, and what a model has to send for it in strict mode: null for what the value does without."""
    if schema.get("type") == "object":
        value, sent = {}, {}
        for name, under in schema["properties"].items():
            one, other = draw(arguments_for(under))
            is_needed = name in schema.get("required", ()) or jsonschema_rs.is_valid(under, None)
            if is_needed or draw(st.booleans()):
                value[name], sent[name] = one, other
            else:
                sent[name] = None
        return value, sent
    if schema.get("type") == "array":
        pairs = [draw(arguments_for(schema["items"])) for _ in range(draw(st.integers(0, 2)))]
        return [one for one, _ in pairs], [other for _, other in pairs]
    value = draw(st.sampled_from([None, 5, "p", "other"]))
    assume(jsonschema_rs.is_valid(schema, value))
    return value, value

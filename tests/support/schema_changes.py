"""The version that a changed schema of arguments needs: what an old request could send must not be refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from dragoman.schemas.references import inline_references

REMARKS = frozenset(("$schema", "title", "description"))
_LEAST, _MOST = frozenset(("minimum", "minLength", "minItems")), frozenset(("maximum", "maxLength", "maxItems"))


class Change(IntEnum):
    """What a change does to the clients of a schema."""

    NONE = 0
    ADDITION = 1
    BREAKING = 2


def without_remarks(schema: Any, *, is_named: bool = False) -> Any:
    """A schema without what says nothing about its values. In `properties`, names are not keywords."""
    if isinstance(schema, list):
        return [without_remarks(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_remarks(value, is_named=not is_named and key in ("properties", "definitions"))
        for key, value in schema.items()
        if is_named or key not in REMARKS
    }


def change_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    """The change from one schema to the next."""
    return _change(inline_references(without_remarks(old)), inline_references(without_remarks(new)))


def is_fit(change: Change, old: str, new: str) -> bool:
    """Whether a version may follow another one with such a change."""
    before, after = ([int(each) for each in version.split(".")] for version in (old, new))
    if change is Change.BREAKING:
        return after[0] > before[0]
    return after[:2] > before[:2] if change is Change.ADDITION else after >= before


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    return max((_of_keyword(key, old, new) for key in {*old, *new}), default=Change.NONE)


def _of_keyword(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    before, after = old.get(key), new.get(key)
    if before == after:
        return Change.NONE
    if key == "properties":
        before, after = before or {}, after or {}
        lost = before.keys() - after.keys()
        inner = max((_change(before[name], after[name]) for name in before.keys() & after.keys()), default=Change.NONE)
        return Change.BREAKING if lost else max(inner, Change.ADDITION if after.keys() - before.keys() else inner)
    if key == "items" and before is not None and after is not None:
        return _change(before, after)
    if after is None:
        return Change.BREAKING if key == "default" else Change.ADDITION
    if key == "required":
        return Change.ADDITION if {*after} <= {*(before or ())} else Change.BREAKING
    if before is None:
        return Change.BREAKING
    if key in ("type", "enum"):
        return Change.ADDITION if _set(before) <= _set(after) else Change.BREAKING
    if key in _LEAST:
        return Change.ADDITION if after < before else Change.BREAKING
    if key in _MOST:
        return Change.ADDITION if after > before else Change.BREAKING
    return Change.BREAKING


def _set(value: Any) -> set[Any]:
    return {*value} if isinstance(value, list) else {value}

"""Redacted copies of data as another package makes them, at less cost where there is nothing to redact.

To take over a part of another package's work is correct only while its functions are those that were read.
`first_unread` checks that.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from operator import attrgetter
from typing import Any, TypeAlias

from dragoman.schemas.sensitive import MARK

Data: TypeAlias = dict[str, Any]

_ATOMS = {str, int, float, bool, type(None)}
_MOST_KEPT = 4096


def first_unread(owner: object, read: Mapping[str, str]) -> str | None:
    """The name of the first function whose source is not the one that was read; None if all sources are.

    `read` maps dotted names within `owner` to fingerprints. A function without source counts as unread.
    """
    for name, expected in read.items():
        try:
            found = fingerprint(attrgetter(name)(owner))
        except (AttributeError, IndexError):
            return name
        if found != expected:
            return name
    return None


def fingerprint(function: Any) -> str:
    """A short hash of a function's source. Raises `AttributeError` or `IndexError` where there is no source.

    The source is read by indentation: `inspect.getsource` takes several milliseconds for each function.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    indent = _indent(lines[0])
    inside = takewhile(lambda line: _indent(line) > indent or line.lstrip()[:1] in ("", ")"), lines[1:])
    return sha256("".join([lines[0], *inside]).rstrip().encode()).hexdigest()[:16]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class QuickCopies:
    """Copies data without its secrets, exactly as `redact(data, schema)` does by the JSON Schema of a Pydantic model.

    Schemas are kept until `forget` is called. `looks_at_values`: whether `redact` has rules about values, and not only
    about names.
    """

    def __init__(self, redact: Callable[[Data, Data], Data], *, looks_at_values: bool) -> None:
        self._redact = redact
        self._looks_at_values = looks_at_values
        self._is_secret = lru_cache(_MOST_KEPT)(lambda name: redact({name: 0}, {}) != {name: 0})
        self._marks_of = lru_cache(_MOST_KEPT)(_marks_of)

    def __call__(self, data: Data, model: Any) -> Data:
        marks: Data = self._marks_of(model) if isinstance(model, Hashable) else model.model_json_schema()
        try:
            copied: Data = self._redact(data, marks) if marks or self._looks_at_values else self._plain_copy(data)
        except LookupError:
            return self._redact(data, marks)
        return copied

    def forget(self, *_: Any) -> None:
        """Read the schemas of models again."""
        self._marks_of.cache_clear()

    def _plain_copy(self, value: Any) -> Any:
        """Raises `LookupError` where there is, or may be, something to redact."""
        if type(value) in _ATOMS:
            return value
        if type(value) is list:
            return [self._plain_copy(each) for each in value]
        if type(value) is dict and not any(map(self._is_secret, value)):
            return {name: self._plain_copy(each) for name, each in value.items()}
        if isinstance(value, dict | list):
            raise LookupError
        return deepcopy(value)


def _marks_of(model: Any) -> Data:
    """The model's schema, or an empty one: without a mark in it, it makes no difference."""
    schema: Data = model.model_json_schema()
    return schema if MARK in repr(schema) else {}

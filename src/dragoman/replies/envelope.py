"""The `envelope` dialect: `{success, data | error, metadata}` as JSON text, shortened where it would be too long.

`structuredContent` is the data itself, or `{"result": data}`, for a tool with an output schema, and valid under it
however much was cut. Content blocks pass unchanged, and so without an envelope.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from dragoman.calls.call import Call, Outcome
from dragoman.errors import ResultTooLarge, ToolError
from dragoman.protocol.results import TextBlock, ToolResult
from dragoman.replies import truncation
from dragoman.replies.artifacts import WHOLE, ArtifactKind, Artifacts, Place
from dragoman.replies.encoding import Encoded, SizeLimit, check_value, decode_value, encode_value, meta_of
from dragoman.replies.failures import ever_smaller
from dragoman.replies.settings import ResponseConfig
from dragoman.replies.truncation import Bounds, Caps, Cut, Fitted
from dragoman.schemas.findings import json_pointer
from dragoman.tools.content import encode_json

_MOST_FOR_CURSORS = 4096


class Continuation(Struct, rename="camel"):
    """Something that was cut: where (a JSON pointer), how long it was, how much was kept, and how to go on."""

    path: str
    kind: ArtifactKind
    total: int
    kept: int
    cursor: str


_LONGEST = Continuation("", "json", 10**15, 0, f"{'x' * 22}.99.{10**15}.{10**15}")
"""At least this much room is left for going on."""


class Metadata(Struct, rename="camel"):
    """What is known about a success."""

    duration_ms: int
    cached: bool = False
    truncated: bool = False
    continuations: Sequence[Continuation] | UnsetType = UNSET


class Success(Struct, kw_only=True):
    """The envelope of a result."""

    success: bool = True
    data: Raw
    metadata: Metadata


class Envelope:
    """The dialect of the optimisation document. Without `artifacts`, what was cut cannot be continued."""

    def __init__(self, config: ResponseConfig, size: SizeLimit, artifacts: Artifacts | None = None) -> None:
        self._config = config
        self._size = size
        self._artifacts = artifacts
        self._most_kept = config.max_value_bytes
        self._caps = Caps(config.max_list_items, config.max_list_items, config.max_string_length)

    def render(self, call: Call, outcome: Outcome) -> ToolResult:
        """The `tools/call` result; raises `InternalFailure` when the value cannot be sent."""
        if outcome.error is not None:
            assert isinstance(outcome.error, ToolError)
            return self._size.first_that_fits(ever_smaller(call, outcome.error, self._size.most))
        encoded, is_content = encode_value(outcome.value, self._most_kept)
        if encoded is None:
            raise ResultTooLarge(None, self._most_kept)
        validator = call.tool.output_validator
        value: Any = UNSET
        if validator is not None:
            value = decode_value(encoded)
            check_value(validator, call.tool.returns.content(value), encoded)
        if is_content:
            if len(encoded) > self._size.limit:
                raise ResultTooLarge(len(encoded), self._size.limit)
            result = ToolResult(Raw(encoded), False, meta_of(call))
            if validator is not None:
                result.structured_content = call.tool.returns.encoded_content(encoded)
            self._size.check(result)
            return result
        metadata = Metadata(int(call.duration_ms), call.cached)
        if self._is_short(encoded):
            return _success(call, encoded, metadata)
        whole, weight = None, len(encoded)
        if weight <= self._size.limit:
            whole = _success(call, encoded, metadata)
            weight = self._size.weigh(whole)
        return self._shortened(call, decode_value(encoded) if value is UNSET else value, whole, weight)

    def _is_short(self, encoded: Encoded) -> bool:
        """Whether nothing can be too long: each character takes a byte at least, each item but the last a comma."""
        return (
            len(encoded) <= self._size.small
            and len(encoded) <= self._config.max_string_length + 2
            and encoded.count(b",") < self._config.max_list_items
        )

    def _shortened(self, call: Call, value: Any, whole: ToolResult | None, weight: int) -> ToolResult:
        """The whole result, if it may be sent and nothing in it is too long; else as much of it as may be sent."""
        if weight > self._size.limit:
            whole = None
        if whole is not None:
            shortened = truncation.shorten(value, self._caps, self._config.truncation_suffix)
            if shortened is not None and not shortened.cuts:
                return whole
        fitted = self._fit(call, value)
        if fitted is not None:
            return self._with_cursors(call, value, fitted)
        if whole is not None:
            return whole  # It cannot be cut, mostly because of its schema, and need not be.
        cursors = self._keep(call, value, [(WHOLE, 0)])
        raise ResultTooLarge(weight, self._size.limit, cursors[0] if cursors else None)

    def _fit(self, call: Call, value: Any) -> Fitted | None:
        config, validator, limit = self._config, call.tool.output_validator, self._size.limit
        returns = call.tool.returns
        empty = _cut_success(call, b"", () if self._artifacts is None else (_LONGEST,))
        for_cursors = 0 if self._artifacts is None else min(_MOST_FOR_CURSORS, limit // 16)
        copies = 1 if validator is None else 2
        limits = Bounds(
            config.max_list_items,
            config.max_string_length,
            config.truncation_suffix,
            limit - self._size.weigh(empty) - for_cursors,
            lambda encoded: copies * len(encoded) + _escapes(encoded),
        )
        return truncation.fit(
            value, limits, None if validator is None else lambda cut: validator.allows(returns.content(cut))
        )

    def _with_cursors(self, call: Call, value: Any, fitted: Fitted) -> ToolResult:
        places = [(WHOLE, 0), *((Place(cut.kind, cut.path), cut.kept) for cut in fitted.cuts)]
        cursors = self._keep(call, value, places)
        if cursors is None:
            return _cut_success(call, fitted.encoded, ())
        offered = [_continuation(cut, cursor) for cut, cursor in zip(fitted.cuts, cursors[1:], strict=True)]
        result = _cut_success(call, fitted.encoded, offered)
        if fitted.is_told and self._size.fits(result):
            return result
        # Too many to be told: as many as there is room for, and then the whole.
        whole = Continuation("", "json", len(encode_json(value).decode()), 0, cursors[0])
        spare = self._size.limit - self._size.weigh(_cut_success(call, fitted.encoded, (whole,)))
        weights = accumulate(len(text) + _escapes(text) + 1 for text in map(encode_json, offered))
        told = sum(weight <= spare for weight in weights)
        return _cut_success(call, fitted.encoded, [*offered[:told], whole])

    def _keep(self, call: Call, value: Any, places: Sequence[tuple[Place, int]]) -> list[str] | None:
        return None if self._artifacts is None else self._artifacts.keep(call.origin.caller, value, places)


def _success(call: Call, encoded: Encoded, metadata: Metadata) -> ToolResult:
    text = encode_json(Success(data=Raw(encoded), metadata=metadata)).decode()
    result = ToolResult([TextBlock(text)], False, meta_of(call))
    if call.tool.output_validator is not None:
        result.structured_content = call.tool.returns.encoded_content(encoded)
    return result


def _cut_success(call: Call, encoded: bytes, continuations: Sequence[Continuation]) -> ToolResult:
    metadata = Metadata(int(call.duration_ms), call.cached, truncated=True, continuations=continuations or UNSET)
    result = _success(call, encoded, metadata)
    result.meta.truncated = True
    if continuations:
        result.meta.next_cursor = continuations[0].cursor
    return result


def _continuation(cut: Cut, cursor: str) -> Continuation:
    return Continuation(json_pointer(cut.path), cut.kind, cut.total, cut.kept, cursor)


def _escapes(encoded: bytes) -> int:
    """How many bytes longer JSON text becomes inside a string."""
    return encoded.count(b'"') + encoded.count(b"\\")

"""What the dialects share: values as JSON, results that fit their schema, and nothing above the limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from dragoman.calls.call import Call
from dragoman.errors import InternalFailure, InvalidArgument, ResultTooLarge
from dragoman.protocol.results import ResultMeta, ToolResult
from dragoman.schemas.findings import with_place
from dragoman.schemas.schema import THOROUGHLY, Validator
from dragoman.tools.content import content_blocks, encode_within, is_content

Encoded: TypeAlias = bytes | bytearray
"""JSON."""

CUT = "... [truncated]"
"""What a message ends with that was too long."""

_FRAME = 1024
"""More than the rest of a result weighs, around its text: ids, times, keys, and the words of an envelope."""


class SizeLimit:
    """What a whole `tools/call` result may weigh, encoded. `reserve` is what others add to it later."""

    __slots__ = ("_reserve", "limit", "most", "small", "small_text")

    def __init__(self, limit: int, reserve: int = 0) -> None:
        self.limit = limit
        self._reserve = reserve
        self.most = max(0, limit - reserve)
        """A value whose JSON is longer does not fit. Encoding stops there."""
        # Inside a string, JSON text doubles at most: only quotes and backslashes are escaped again.
        self.small = (limit - reserve - _FRAME) // 3
        """A value whose JSON is at most this long fits, as text and as structured content, without being weighed."""
        self.small_text = (limit - reserve - _FRAME) // 6
        """A text of at most this many characters fits without being weighed: none takes more than six bytes."""

    def weigh(self, result: ToolResult) -> int:
        return len(msgspec.json.encode(result)) + self._reserve

    def fits(self, result: ToolResult) -> bool:
        return self.weigh(result) <= self.limit

    def check(self, result: ToolResult) -> None:
        """Raise `ResultTooLarge` for what is above the limit."""
        actual = self.weigh(result)
        if actual > self.limit:
            raise ResultTooLarge(actual, self.limit)

    def first_that_fits(self, forms: Iterable[ToolResult]) -> ToolResult:
        """The first of several ever smaller forms that is within the limit; the last one if none is."""
        for form in forms:
            if isinstance(form.content, list) and len(form.content[0].text) <= self.small_text:
                break
            if self.fits(form):
                break
        return form


def meta_of(call: Call) -> ResultMeta:
    """What every result says about its call."""
    meta = ResultMeta(call.run_id, call.correlation_id, call.duration_ms)
    if call.cached:
        meta.cached = True
    if call.repeated:
        meta.repeated = True
    return meta


def encode_value(value: Any, most: int) -> tuple[Encoded | None, bool]:
    """A result as JSON, or None when that is longer than `most` bytes; and whether it is content blocks.

    Content blocks pass unchanged. Raises `InternalFailure` for a value without a JSON form.
    """
    try:
        encoded = encode_within([value] if is_content(value) else value, most)
    except Exception as error:  # A value may say itself how it is written, and fail at that in any way.
        raise not_serializable() from error
    # Afterwards: the items of a list that is too long are not looked at one by one.
    return encoded, encoded is not None and content_blocks(value) is not None


def decode_value(encoded: Encoded) -> Any:
    """What was encoded, in JSON's own types. Raises `InternalFailure` for what cannot be read again."""
    try:
        return msgspec.json.decode(encoded)
    except (RecursionError, msgspec.DecodeError) as error:
        raise not_serializable() from error


def not_serializable() -> InternalFailure:
    """The error in place of a result that has no JSON form."""
    return InternalFailure("Result not serializable", {"reason": "result_not_serializable"})


def text_of_value(call: Call, value: Any, encoded: Encoded) -> str:
    """What a model reads of a result: its JSON, but without quotes where that is a string and the tool declares text.

    The JSON decides, not the type: of a result that was kept, nothing else is left.
    """
    if call.tool.returns.is_text and encoded.startswith(b'"'):
        return value if type(value) is str else str(decode_value(encoded))
    return encoded.decode()


def structured_content(call: Call, validator: Validator, value: Any, encoded: Encoded) -> Raw:
    """What a program reads of a result, under the tool's output schema.

    Raises `InternalFailure` for a result that the schema does not allow, which may be content blocks.
    """
    returns = call.tool.returns
    if not returns.fits(value):
        check_value(validator, returns.content(decode_value(encoded)), encoded)
    return returns.encoded_content(encoded)


def check_value(validator: Validator, value: Any, encoded: Encoded) -> None:
    """Raise `InternalFailure` for a result that its tool's output schema does not allow."""
    try:
        validator.check(value, len(encoded) <= THOROUGHLY)
    except InvalidArgument as error:
        details = {"reason": "result_does_not_match_schema", **(error.details or {})}
        found = "; ".join(map(with_place, (error.details or {}).get("errors", ())))
        mismatch = TypeError(f"the result does not match the tool's output schema: {found}")  # For the log.
        raise InternalFailure("Result does not match the tool's output schema", details) from mismatch


def clean_message(message: object, most: int | None = None) -> str:
    """A message that a handler may have made up, fit to be sent, with at most so many characters."""
    text = str(message)
    if most is not None and len(text) > most:
        text = text[: max(0, most - len(CUT))] + CUT
    return text.encode(errors="replace").decode()


DETAILS_TOO_LARGE: Mapping[str, Any] = {"reason": "details_too_large"}
"""What stands in place of an error's details when they would not fit."""


MOST_KEPT_ERROR = 1_048_576
"""Bytes of an error that is kept: as many as an answer has by default."""


def encode_kept_error(encode: Callable[[str, Any], bytes], message: str, details: Any) -> bytes:
    """What `encode` makes of a message and details, or of what is left of them when that is too large to be kept."""
    encoded = encode(message, details)
    if len(encoded) <= MOST_KEPT_ERROR:
        return encoded
    return encode(clean_message(message, 1000), DETAILS_TOO_LARGE if details else details)


def clean_details(details: Mapping[str, Any] | None, most: int = sys.maxsize) -> Mapping[str, Any] | None:
    """Details that a handler may have made up, of at most so many bytes, or a word about why they are missing."""
    try:
        return DETAILS_TOO_LARGE if encode_within(details, most) is None else details
    except Exception:
        return {"reason": "details_not_serializable"}

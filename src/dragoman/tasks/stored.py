"""Outcomes of runs, as the ledger keeps them and as they are given again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from dragoman import errors
from dragoman.calls.call import Outcome
from dragoman.errors import InternalFailure, InvalidArgument, ProtocolError, ResultTooLarge, ToolError
from dragoman.protocol.results import ToolResult
from dragoman.replies.encoding import clean_message, encode_kept_error
from dragoman.tools.content import Audio, EmbeddedResource, Image, ResourceLink, Text, content_blocks, encode_within


class JsonRpcError(Struct, omit_defaults=True):
    """The `error` of a JSON-RPC response."""

    code: int
    message: str
    data: Any = None


class StoredError(Struct, omit_defaults=True):
    """A `ToolError`, with all that any dialect words it by."""

    kind: str
    """The name of its class, or of the nearest one in `errors.py`."""
    message: str
    details: Any = None
    plain: str | None = None
    rules: tuple[str, ...] = ()


class StoredOutcome(Struct, omit_defaults=True):
    """What a run came to: exactly one of these."""

    value: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    """Content blocks."""
    error: StoredError | UnsetType = UNSET
    protocol_error: JsonRpcError | UnsetType = UNSET


UNKNOWN_OUTCOME = JsonRpcError(
    -32603, "The server ended while the tool ran, and the tool must not run twice", {"outcome": "UNKNOWN"}
)
"""The error of a run that was interrupted and must not be repeated."""


class _Contents(Struct, omit_defaults=True, rename="camel"):
    """What an embedded resource contains: text or bytes."""

    uri: str
    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class _Resource(EmbeddedResource, tag="resource", omit_defaults=True):
    resource: _Contents  # type: ignore[assignment]


class _Link(ResourceLink, tag="resource_link", omit_defaults=True):
    icons: list[Any] | None = None
    """Links of the official SDK have them."""


_MOST_PLAIN = 100_000
"""Characters of an error's words for the dialect `plain`."""

_decode = msgspec.json.Decoder(StoredOutcome).decode
_decode_blocks = msgspec.json.Decoder(list[Text | Image | Audio | _Link | _Resource]).decode


def encode_value(value: Any, most: int) -> bytes:
    """What is stored of a value. Raises `InternalFailure` for one that no client could be sent."""
    try:
        blocks = content_blocks(value)
        encoded = encode_within(value if blocks is None else blocks, most)
    except Exception as error:  # A value may say itself how it is written, and fail at that in any way.
        raise InternalFailure("Result not serializable", {"reason": "result_not_serializable"}) from error
    if encoded is None:
        raise ResultTooLarge(None, most)
    raw = Raw(bytes(encoded))
    return msgspec.json.encode(StoredOutcome(value=raw) if blocks is None else StoredOutcome(content=raw))


def encode_error(error: ToolError | ProtocolError) -> bytes:
    """What is stored of an error. As in answers, particulars without a JSON form, or too large, are left out."""

    def encode(message: str, particulars: Any) -> bytes:
        return msgspec.json.encode(_stored(error, message, particulars))

    message, particulars = _text(error.message), error.data if isinstance(error, ProtocolError) else error.details
    try:
        return encode_kept_error(encode, message, particulars)
    except (TypeError, ValueError, RecursionError):  # Of details that a handler made up.
        return encode_kept_error(encode, message, {"reason": "details_not_serializable"})


def _stored(error: ToolError | ProtocolError, message: str, particulars: Any) -> StoredOutcome:
    if isinstance(error, ProtocolError):
        return StoredOutcome(protocol_error=JsonRpcError(error.code, message, particulars))
    kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == errors.__name__)
    plain = None if error.plain is None else clean_message(error.plain, _MOST_PLAIN)
    rules = error.rules if isinstance(error, InvalidArgument) else ()
    return StoredOutcome(error=StoredError(kind, message, particulars, plain, rules))


def _text(given: object) -> str:
    return str(given).encode(errors="replace").decode()


def _error_of(stored: StoredError) -> ToolError:
    """An error without the constructor of its class, which may build the message itself."""
    kind = getattr(errors, stored.kind, InternalFailure)
    error: ToolError = kind.__new__(kind, stored.message)
    error.message, error.details, error.plain = stored.message, stored.details, stored.plain
    if isinstance(error, InvalidArgument):
        error.rules = stored.rules
    return error


def encode_json_rpc(error: ProtocolError) -> bytes:
    """What is stored of an error that a JSON-RPC response answers with."""

    def encode(message: str, data: Any) -> bytes:
        return msgspec.json.encode(JsonRpcError(error.code, message, data))

    return encode_kept_error(encode, error.message, error.data)


def outcome_in(stored: bytes) -> Outcome:
    """The outcome that was stored, for one more call."""
    found = _decode(stored)
    if found.error is not UNSET:
        return Outcome(error=_error_of(found.error))
    if found.protocol_error is not UNSET:
        told = found.protocol_error
        return Outcome(error=ProtocolError(told.message, told.data, code=told.code))
    if found.content is not UNSET:
        return Outcome(_decode_blocks(found.content))
    return Outcome(None if found.value is UNSET else msgspec.json.decode(found.value))


def unknown_outcome() -> InternalFailure:
    """The error that answers a repeated call whose first run was interrupted."""
    return InternalFailure(UNKNOWN_OUTCOME.message, {"outcome": "UNKNOWN", "retryable": False})


def encode_result(result: ToolResult, server_info: Mapping[str, Any]) -> bytes:
    """A `tools/call` result of the modern era, as a task holds it."""
    result.result_type = "complete"
    result.meta.server_info = server_info
    return msgspec.json.encode(result)

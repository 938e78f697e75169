"""JSON-RPC 2.0 as MCP uses it: one message a line, and what is wrong with a line that is not one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from dragoman.errors import InvalidRequest, ParseError, ProtocolError

MOST_ID = 1024
"""Characters of a request's id: it is kept while the request is answered, and is part of the answer."""
Id: TypeAlias = int | Annotated[str, Meta(max_length=MOST_ID)]
_NOTHING = Raw(b"")
_MOST_SMALL = 6 * MOST_ID + 2  # Each character may be escaped.

_encoder = msgspec.json.Encoder()
encode, _encode_lines = _encoder.encode, _encoder.encode_lines


class RpcMessage(Struct, gc=False):
    """A request, or a notification when it has no id. `params` is left unread until somebody needs it."""

    method: str
    jsonrpc: Literal["2.0"]
    id: Id | UnsetType = UNSET
    params: Raw = _NOTHING

    @property
    def has_params(self) -> bool:
        return self.params is not _NOTHING


class Answer(Struct, gc=False):
    """The peer's answer to a request of ours."""

    id: Id
    result: Any = None
    error: Mapping[str, Any] | None = None


class _Heading(Struct, gc=False):
    method: Raw = _NOTHING
    id: Raw = _NOTHING
    params: Raw = _NOTHING


class _MetaOnly(Struct, gc=False):
    meta: Raw = msgspec.field(default=_NOTHING, name="_meta")


class _CorrelationOnly(Struct, gc=False):
    id: Raw = msgspec.field(default=_NOTHING, name="correlationId")


_decode_message = msgspec.json.Decoder(RpcMessage).decode
_decode_heading = msgspec.json.Decoder(_Heading).decode
_decode_meta = msgspec.json.Decoder(_MetaOnly).decode
_decode_correlation = msgspec.json.Decoder(_CorrelationOnly).decode
_decode_any = msgspec.json.Decoder().decode


def decode(line: bytes) -> RpcMessage | Answer:
    """Read one line.

    Raises `ParseError` or `InvalidRequest`; the latter carries the id to echo as `error.id`, None where it has none.
    """
    try:
        if not line.isascii():
            line.decode()  # The decoder skips over strings that it does not need, bad ones included.
        return _decode_message(line)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(error) from None
    return _diagnose(line)


def decode_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object that is not a message; raises `ParseError` or `InvalidRequest`, as `decode` words them."""
    try:
        if not body.isascii():
            body.decode()
        value = _decode_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(error) from None
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    return value


class Heading(Struct, gc=False):
    """What a message says about itself, however little of it can be read, and at next to no cost."""

    method: str | None = None
    id: Id | None = None
    has_id: bool = False
    """Also true for one that is not valid, and not repeated."""
    params: bytes = b""

    @property
    def meta(self) -> Mapping[str, Any]:
        """All of `_meta`: only for messages that are known to be within the limits."""
        return meta_in(self.params)

    @property
    def correlation(self) -> Mapping[str, Any]:
        """The one member of `_meta` that a refusal repeats."""
        try:
            return {"correlationId": _small(_decode_correlation(_decode_meta(self.params).meta).id)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}


def heading(line: bytes) -> Heading:
    """Read the heading of a line, whatever is wrong with the rest; what cannot be read is left out."""
    try:
        found = _decode_heading(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Heading()
    method, request_id = _small(found.method), _small(found.id)
    return Heading(
        method if isinstance(method, str) else None,
        request_id if _is_id(request_id) else None,
        found.id is not _NOTHING,
        found.params,
    )


def _small(raw: Raw) -> Any:
    """A value that is short, or None: nothing that takes long is decoded."""
    try:
        return _decode_any(raw) if 0 < len(raw) <= _MOST_SMALL else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def meta_in(params: bytes) -> Mapping[str, Any]:
    """`_meta` in params that are not read otherwise, where there is one; the rest costs next to nothing."""
    try:
        meta = _decode_any(_decode_meta(params).meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}


def unreadable(error: Exception) -> ParseError:
    """What a decoder raised, as the error that answers the message."""
    if isinstance(error, RecursionError):
        return ParseError("Parse error: nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return ParseError(f"Parse error: invalid UTF-8 (byte {error.start})")
    return ParseError(f"Parse error: {str(error).removeprefix('JSON is malformed: ')}")


def _diagnose(line: bytes) -> Answer:
    """Say what is wrong with JSON that is not a request; the one thing that is right about it is to be an answer."""
    try:
        message = _decode_any(line)
    except (msgspec.DecodeError, RecursionError) as error:  # Such as a number that no Python type can hold.
        raise unreadable(error) from None
    if isinstance(message, list):
        raise _invalid("batches are not allowed")
    if not isinstance(message, dict):
        raise _invalid("a message must be an object")
    try:
        return _answer_in(message)
    except InvalidRequest as error:
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        error.meta = meta if isinstance(meta, dict) else None
        raise


def _answer_in(message: dict[str, Any]) -> Answer:
    if "id" in message and not _is_id(message["id"]):
        raise _invalid(f"id must be a string of at most {MOST_ID} characters or an integer")
    request_id = message.get("id")
    if message.get("jsonrpc") != "2.0":
        raise _invalid('jsonrpc must be "2.0"', request_id)
    if "method" not in message:
        if request_id is not None and ("result" in message) != ("error" in message):
            return _answer(request_id, message)
        raise _invalid("method is missing", request_id)
    if not isinstance(message["method"], str):
        raise _invalid("method must be a string", request_id)
    raise _invalid("a member is there twice, once with a wrong value", request_id)


def _answer(request_id: Id, message: dict[str, Any]) -> Answer:
    error = message.get("error")
    if "error" in message and not isinstance(error, dict):
        raise _invalid("error must be an object", request_id)
    return Answer(request_id, message.get("result"), error)


def _is_id(value: Any) -> bool:
    return len(value) <= MOST_ID if isinstance(value, str) else type(value) is int


def _invalid(reason: str, request_id: Id | None = None) -> InvalidRequest:
    error = InvalidRequest(f"Invalid request: {reason}")
    error.id = request_id
    return error


def to_json_rpc_error(
    code: int, message: str, data: Mapping[str, Any] | None = None, id: Id | None = None
) -> dict[str, Any]:
    """A JSON-RPC error message; `id` is null when none can be determined."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": error}


def error_data(error: ProtocolError, correlation_id: str) -> dict[str, Any]:
    """The `data` of a JSON-RPC error, on every transport."""
    return {**(error.data or {}), "correlationId": correlation_id}


def encode_error(error: ProtocolError, request_id: Id | None, correlation_id: str) -> bytes:
    """The line that answers a message with `error`."""
    data = error_data(error, correlation_id)
    return encode(to_json_rpc_error(error.code, error.message, data, request_id)) + b"\n"


class _Reply(Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: Id
    result: Any


def encode_result(request_id: Id, result: Mapping[str, Any] | Struct | Raw) -> bytes:
    """The line that answers a request with `result`."""
    return _encode_lines([_Reply(request_id, result)])  # Cheaper than to add the line's end to what `encode` returns.


def encode_request(request_id: Id, method: str, params: Mapping[str, Any]) -> bytes:
    """The line of a request."""
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + b"\n"


def encode_notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """The line of a notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return encode(message) + b"\n"

"""How what is offered is answered: resources, prompts and completions, and the JSON-RPC errors in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.calls.call import Call
from dragoman.errors import (
    InternalError,
    InvalidArgument,
    InvalidParams,
    NotFound,
    ProtocolError,
    ResultTooLarge,
    ToolError,
)
from dragoman.offers.prompt import Message
from dragoman.replies.encoding import Encoded, clean_details, clean_message, meta_of, not_serializable
from dragoman.replies.failures import code_of, details_of, may_repeat
from dragoman.schemas.findings import with_place
from dragoman.tools.content import BlobResource, Text, TextResource, encode_json, encode_within, is_content

MOST_VALUES = 100
"""Of a completion, as MCP has it."""

_BYTES = (bytes, bytearray, memoryview)
_LONGEST_MESSAGE = 1000
_UNSPOKEN = {"reason": "handler_exception"}


def contents(uri: str, mime_type: str | None, value: Any, most: int) -> dict[str, Any]:
    """The result of `resources/read`. What says nothing about its type is plain text, bytes or JSON.

    Raises `ResultTooLarge` for JSON of more than `most` bytes.
    """
    if isinstance(value, TextResource | BlobResource):
        value = [value]
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(each, TextResource | BlobResource) for each in value)
    ):
        return {"contents": list(value)}
    return {"contents": [_content(uri, mime_type, value, most)]}


def _content(uri: str, mime_type: str | None, value: Any, most: int) -> TextResource | BlobResource:
    if isinstance(value, str):
        return TextResource(uri, value, mime_type or "text/plain")
    if isinstance(value, _BYTES):
        return BlobResource(uri, bytes(value), mime_type or "application/octet-stream")
    encoded = _encoded(value, most)
    return TextResource(uri, encoded.decode(), mime_type or "application/json")


def messages(description: str | None, value: Any) -> dict[str, Any]:
    """The result of `prompts/get`."""
    given = value if isinstance(value, list | tuple) else [value]
    said = {"messages": [_message(each) for each in given]}
    return said if description is None else {"description": description, **said}


def _message(value: Any) -> dict[str, Any]:
    message = Message(value) if isinstance(value, str) else value
    if not isinstance(message, Message) or message.role not in ("user", "assistant"):
        raise not_serializable()
    content = Text(message.content) if isinstance(message.content, str) else message.content
    if not is_content(content):
        raise not_serializable()
    return {"role": message.role, "content": content}


def completion(values: Sequence[Any]) -> dict[str, Any]:
    """The result of `completion/complete`."""
    sent = list(values[:MOST_VALUES])
    if not all(isinstance(value, str) for value in sent):
        raise not_serializable()
    return {"completion": {"values": sent, "total": len(values), "hasMore": len(values) > MOST_VALUES}}


def weighed(call: Call, result: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The result in JSON's own types, with the ids of its call; raises `InternalFailure` for what cannot be sent."""
    plain: dict[str, Any] = msgspec.json.decode(_encoded({**result, "_meta": meta_of(call)}, most))
    return plain


def _encoded(value: Any, most: int) -> Encoded:
    try:
        encoded = encode_within(value, most)
    except Exception as error:  # A value may say itself how it is written, and fail at that in any way.
        raise not_serializable() from error
    if encoded is None:
        raise ResultTooLarge(None, most)
    return encoded


def refusal(call: Call, error: ToolError, not_found: Callable[[str], ProtocolError], most: int) -> ProtocolError:
    """The JSON-RPC error in place of a result. The text of an exception that was not meant for clients is not in it."""
    details = clean_details(details_of(error, call), most // 2)
    plain = msgspec.json.decode(encode_json(details))
    message = clean_message(error.message, _LONGEST_MESSAGE)
    if isinstance(error, NotFound):
        answer = not_found(message)
    elif isinstance(error, InvalidArgument):
        answer = InvalidParams(message if call.ran else f"Invalid params: {_wrong(plain, message)}")
    else:
        answer = InternalError("Internal error" if plain == _UNSPOKEN else message)
    facts = {"code": error.code, "retryable": may_repeat(error, code_of(error), call)}
    answer.data = {**(answer.data or {}), **facts, **({"details": plain} if plain else {})}
    answer.correlation_id = call.correlation_id
    return answer


def _wrong(details: Any, otherwise: str) -> str:
    """What is wrong with the arguments, by name."""
    found = details.get("errors", ()) if isinstance(details, dict) else ()
    said = "; ".join(with_place(each).removeprefix("/") for each in found)
    return clean_message(said or otherwise, _LONGEST_MESSAGE)

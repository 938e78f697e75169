"""Whether content is what its MIME type says, found out without holding it in memory."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Collection
from typing import Final

import msgspec

from dragoman.errors import InvalidArgument, MalformedEnvelope
from dragoman.gateway.envelope import malformed

JSON: Final = "application/json"
_UTF8: Final = ("utf-8", '"utf-8"')
_check_syntax = msgspec.json.Decoder(msgspec.Raw).decode


def is_json(mime: str) -> bool:
    """Whether content of a type is JSON."""
    return mime == JSON or mime.endswith("+json")


def mime_type_of(header: bytes, allowed: Collection[str]) -> str:
    """The type that a `Content-Type` names. Raises `MalformedEnvelope` for one that is not allowed."""
    kind, *parameters = (part.strip() for part in header.decode("latin-1").lower().split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name != "charset" or value not in _UTF8 or len(parameters) > 1:
            raise malformed("Content-Type", "must have no parameter but charset=utf-8")
    check_allowed(kind, allowed)
    return kind


def check_allowed(mime: str, allowed: Collection[str]) -> None:
    """Raise `MalformedEnvelope` for a type that is not allowed."""
    if mime not in allowed:
        raise malformed("Content-Type", "is not allowed", {"reason": "mime_type", "mime_types": sorted(allowed)})


async def checked(pieces: AsyncIterator[bytes], mime: str, most_bytes: int) -> AsyncIterator[bytes]:
    """The pieces, as long as they fit the type. Raises `InvalidArgument`, and `MalformedEnvelope` for too many bytes.

    Types other than text and JSON cannot be checked.
    """
    is_text = mime.startswith("text/") or is_json(mime)
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = 0
    try:
        async for piece in pieces:
            size += len(piece)
            if size > most_bytes:
                raise too_long(most_bytes)
            if is_text:
                decoder.decode(piece)
                if b"\0" in piece:
                    raise unfit("The text has a NUL")
            yield piece
        if is_text:
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise unfit("The text is not UTF-8") from None


def check_whole(mime: str, content: memoryview) -> None:
    """Raise `InvalidArgument` for JSON that is none. Nothing is made of it: only its syntax is checked."""
    if not is_json(mime):
        return
    try:
        _check_syntax(content)
    except (msgspec.DecodeError, RecursionError):
        raise unfit("The content is not JSON") from None


def unfit(message: str) -> InvalidArgument:
    """The error for content that is not what it says."""
    return InvalidArgument(message, {"reason": "artifact_content"})


def too_long(most_bytes: int) -> MalformedEnvelope:
    """The error for content that is larger than it may be."""
    details = {"reason": "artifact_too_large", "limit": most_bytes}
    return malformed("", f"An artifact has at most {most_bytes} bytes", details)

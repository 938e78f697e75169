"""MCP content blocks. A handler that returns one, or a list of them, has them passed on unchanged."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, ClassVar, Self, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from dragoman.tools.media import (
    MOST_BYTES,
    FilePath,
    MediaKind,
    checked_type,
    file_type,
    first_bytes,
    found_type,
    read_file,
)


class Text(Struct, tag_field="type", tag="text", omit_defaults=True, rename="camel"):
    """Plain text for the model."""

    text: str
    annotations: dict[str, Any] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class _Media(Struct, rename="camel"):
    """Bytes that go out as base64. The default media type is what the first bytes show."""

    _kind: ClassVar[MediaKind]
    _otherwise: ClassVar[str]

    data: bytes
    mime_type: str = ""
    annotations: dict[str, Any] | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = field(default=UNSET, name="_meta")

    def __post_init__(self) -> None:
        self.mime_type = self.mime_type or found_type(self._kind, first_bytes(self.data)) or self._otherwise

    @classmethod
    def from_file(cls, path: FilePath, *, mime_type: str | None = None, max_bytes: int = MOST_BYTES) -> Self:
        """The contents of a file. Its media type is found in the first bytes, else in the name.

        Raises `NotFound` without such a file, `ResultTooLarge` beyond `max_bytes`, which is checked before the file is
        read, and `ValueError` if the media type cannot be found.
        """
        data = read_file(path, max_bytes)
        return cls(data, mime_type or checked_type(cls._kind, data, path))


class Image(_Media, tag_field="type", tag="image"):
    """A picture. The media type is `image/png` where the first bytes show nothing else."""

    _kind = "image"
    _otherwise = "image/png"


class Audio(_Media, tag_field="type", tag="audio"):
    """Sound. The media type is `audio/wav` where the first bytes show nothing else."""

    _kind = "audio"
    _otherwise = "audio/wav"


class ResourceLink(Struct, tag_field="type", tag="resource_link", omit_defaults=True, rename="camel"):
    """Where something can be read."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: dict[str, Any] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class TextResource(Struct, omit_defaults=True, rename="camel"):
    """A resource's text."""

    uri: str
    text: str
    mime_type: str | None = None


class BlobResource(Struct, omit_defaults=True, rename="camel"):
    """A resource's bytes, which go out as base64."""

    uri: str
    blob: bytes
    mime_type: str | None = None


class EmbeddedResource(Struct, tag_field="type", tag="resource", omit_defaults=True, rename="camel"):
    """Something readable, together with its content."""

    resource: TextResource | BlobResource
    annotations: dict[str, Any] | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")

    @classmethod
    def from_file(
        cls, path: FilePath, *, uri: str | None = None, mime_type: str | None = None, max_bytes: int = MOST_BYTES
    ) -> EmbeddedResource:
        """The contents of a file: as text if it is UTF-8, else as bytes.

        Without a URI it is `file:///` and the file's name, so that clients do not learn where the server has it.
        Raises `NotFound` without such a file, and `ResultTooLarge` beyond `max_bytes`.
        """
        data = read_file(path, max_bytes)
        uri = uri or f"file:///{quote(Path(path).name)}"
        mime_type = mime_type or file_type(path)
        try:
            return cls(TextResource(uri, data.decode(), mime_type or "text/plain"))
        except UnicodeDecodeError:
            return cls(BlobResource(uri, data, mime_type or "application/octet-stream"))


Content: TypeAlias = Text | Image | Audio | ResourceLink | EmbeddedResource
_OURS = (Text, Image, Audio, ResourceLink, EmbeddedResource)
ATOMS = frozenset({type(None), int, float, bool})
"""Types whose values are always short."""
_ORDINARY = ATOMS | {str, dict}
"""Types whose values are never content blocks."""
_PLAIN = _ORDINARY | {list}
_THEIRS = frozenset({"TextContent", "ImageContent", "AudioContent", "ResourceLink", "EmbeddedResource"})


def is_content(value: Any) -> bool:
    """Whether `value` is a content block: ours, or one of the official SDK's."""
    kind = type(value)
    return kind not in _PLAIN and is_content_type(kind)


def is_content_type(kind: type) -> bool:
    """Whether what is of this type is a content block."""
    return issubclass(kind, _OURS) or (kind.__module__.startswith("mcp_types") and kind.__name__ in _THEIRS)


def content_blocks(value: Any) -> list[Any] | None:
    """`value` as content blocks, or None when it is an ordinary result. An empty list is an ordinary result."""
    if type(value) in _ORDINARY:
        return None
    if is_content(value):
        return [value]
    if type(value) in (list, tuple) and value and all(map(is_content, value)):
        return list(value)
    return None


def to_json(value: Any) -> Any:
    """For the encoder: what it does not know by itself. Pydantic models say how they are written."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json", by_alias=True, exclude_none=type(value).__module__.startswith("mcp_types"))
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str | int | float):  # The encoder knows no subclasses of these.
        return str.__str__(value) if isinstance(value, str) else value + 0
    if type(value).__module__.startswith("pydantic"):
        return sys.modules["pydantic_core"].to_jsonable_python(value)
    hint = "; is an `await` missing?" if inspect.isawaitable(value) else ""
    raise TypeError(f"{type(value).__name__} has no JSON form{hint}")


_encoder = msgspec.json.Encoder(enc_hook=to_json)
_encode_into = _encoder.encode_into
_encode_anything_into = msgspec.json.Encoder(enc_hook=str).encode_into
encode_json = _encoder.encode
"""Any result as JSON. Raises `TypeError`, `ValueError` or `RecursionError` for what has no JSON form."""

_FIRST_ROOM, _SECOND_ROOM = 512, 65_536
_FEW = 256
_SLACK = 256
"""The encoder reserves a little more for a number or a date than it then writes."""


def _is_simple(value: Any, most: int) -> bool:
    """Whether a value is a few texts and numbers of at most `most` characters together, as most long results are.

    To encode it whole takes no longer than a small multiple of that, and less than to try how much room it needs.
    """
    pending, looked_at = [value], 0
    while pending:
        each = pending.pop()
        looked_at += 1
        if type(each) is str:
            most -= len(each)
        elif type(each) is dict:
            pending += (*each.values(), *each) if len(each) <= _FEW else (None,) * _FEW
        elif type(each) in (list, tuple):
            pending += each if len(each) <= _FEW else (None,) * _FEW
        elif type(each) not in ATOMS:
            return False
        if most < 0 or looked_at + len(pending) >= _FEW:
            return False
    return True


def is_longer(value: Any, most: int) -> bool:
    """Whether a value takes more bytes, with texts in place of what is no JSON; found out without writing all of it."""
    try:
        return encode_within(value, most, _encode_anything_into) is None
    except Exception:  # An author's own types may do anything, and whoever encodes the value says what.
        return False


def merge_into(base: dict[str, Any], part: Mapping[str, Any], deepest: int) -> None:
    """Add the members of `part` to `base`. Objects are merged down to a depth of `deepest`, other values replaced."""
    for key, value in part.items():
        if deepest > 0 and isinstance(value, dict) and isinstance(base.get(key), dict):
            merge_into(base[key], value, deepest - 1)
        else:
            base[key] = value


def encode_within(
    value: Any, most: int, encode_into: Callable[[Any, bytearray], None] = _encode_into
) -> bytes | bytearray | None:
    """`value` as JSON, or None when it takes more than `most` bytes: the encoder stops when it has written so many.

    Raises what `encode_json` raises. Methods that say how a value is written may be called more than once.
    """
    room = _FIRST_ROOM
    while True:
        encoded = bytearray(room)
        # The encoder grows its output as needed, and a bytearray cannot grow while a view of it exists. Not in a `with`
        # statement, which would cost as much again: this is done for nearly every result.
        _view = memoryview(encoded)
        try:
            encode_into(value, encoded)
        except BufferError:
            if room > most:
                return None
            if room == _SECOND_ROOM and _is_simple(value, most):
                whole = encode_json(value)
                return whole if len(whole) <= most else None
            # Several attempts cost a third more than one; a room of the full size would cost every small result more.
            room = _SECOND_ROOM if room < _SECOND_ROOM else min(4 * room, most + _SLACK)
        else:
            return encoded if len(encoded) <= most else None

"""Files for content blocks: read up to a limit, and with a media type that is found in their first bytes or name."""

from __future__ import annotations

import mimetypes
import os
import stat
from pathlib import Path
from typing import Literal, TypeAlias

from dragoman.errors import NotFound, ResultTooLarge

MediaKind: TypeAlias = Literal["image", "audio"]
FilePath: TypeAlias = str | os.PathLike[str]

MOST_BYTES = 8 * 1024 * 1024
"""Of a file, unless a tool says otherwise. What may be sent is a setting: `response.max_response_bytes`."""

_BEGINNINGS: dict[MediaKind, tuple[tuple[bytes, str], ...]] = {
    "image": (
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"BM", "image/bmp"),
        (b"II*\x00", "image/tiff"),
        (b"MM\x00*", "image/tiff"),
    ),
    "audio": (
        (b"ID3", "audio/mpeg"),
        (b"\xff\xfb", "audio/mpeg"),
        (b"OggS", "audio/ogg"),
        (b"fLaC", "audio/flac"),
    ),
}
_IN_RIFF: dict[MediaKind, tuple[bytes, str]] = {"image": (b"WEBP", "image/webp"), "audio": (b"WAVE", "audio/wav")}
_SUFFIXES: dict[MediaKind, dict[str, str]] = {  # `mimetypes` differs between versions of Python.
    "image": {
        ".png": "image/png",
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".gif": "image/gif",
        ".webp": "image/webp",
        ".svg": "image/svg+xml",
        ".bmp": "image/bmp",
        ".avif": "image/avif",
        ".ico": "image/x-icon",
        ".tif": "image/tiff",
        ".tiff": "image/tiff",
    },
    "audio": {
        ".wav": "audio/wav",
        ".mp3": "audio/mpeg",
        ".ogg": "audio/ogg",
        ".opus": "audio/ogg",
        ".flac": "audio/flac",
        ".m4a": "audio/mp4",
        ".aac": "audio/aac",
        ".aiff": "audio/aiff",
    },
}


def read_file(path: FilePath, max_bytes: int) -> bytes:
    """The bytes of a regular file. Raises `NotFound` and `ResultTooLarge`, which name the file without its folder."""
    name = Path(path).name
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"There is no file {name!r}", {"file": name}) from None
    if not stat.S_ISREG(status.st_mode):  # A pipe or a device may have no end.
        raise NotFound(f"{name!r} is not a file", {"file": name})
    if status.st_size > max_bytes:
        raise ResultTooLarge(status.st_size, max_bytes, setting=None)
    with open(path, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # It has grown, or has no size that is known before.
        raise ResultTooLarge(len(data), max_bytes, setting=None)
    return data


def first_bytes(data: bytes | str) -> bytes:
    """Enough of some bytes to know what they are; raises `TypeError` for a text, which is often meant to be a path."""
    if isinstance(data, str):
        raise TypeError("data must be bytes; use from_file(path) for a file")
    return bytes(data[:16])


def found_type(kind: MediaKind, data: bytes, name: str = "") -> str | None:
    """The media type of an image or a sound, from its first bytes or else from its file's name; None: unknown."""
    for beginning, mime_type in _BEGINNINGS[kind]:
        if data.startswith(beginning):
            return mime_type
    marker, mime_type = _IN_RIFF[kind]
    if data[:4] == b"RIFF" and data[8:12] == marker:
        return mime_type
    return _SUFFIXES[kind].get(Path(name).suffix.lower())


def checked_type(kind: MediaKind, data: bytes, path: FilePath) -> str:
    """As `found_type`; raises `ValueError` when the type is unknown."""
    found = found_type(kind, data, Path(path).name)
    if found is None:
        raise ValueError(f"{Path(path).name!r} is not of a known {kind} format; pass mime_type")
    return found


def file_type(path: FilePath) -> str | None:
    """The media type that a file's name stands for."""
    return mimetypes.guess_type(Path(path).name)[0]

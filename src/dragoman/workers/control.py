"""What the parent and its workers say to each other: few kinds of messages, each checked, over one pair of sockets."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from dragoman.changes import Change

T = TypeVar("T")


class Source(Struct, frozen=True):
    """Where tools come from."""

    target: str | None = None
    """A file, a module, or an object in a module."""
    extensions: str | None = None
    """A folder of apcore modules."""
    reload: bool = False
    """Whether all of it is loaded anew when its files change."""
    app_dir: str | None = None
    """The folder to import a module from that is not installed; None: the working directory."""

    @property
    def is_builtin(self) -> bool:
        """Whether nothing is named, so that there are the tools that come with the server."""
        return self.target is None and self.extensions is None


class Welcome(Struct, frozen=True, tag="welcome"):
    """The first thing that a worker is told: everything that it is to be."""

    source: Source
    config: Raw
    """The settings as JSON: which sections they have is up to the parts that they name."""
    name: str
    """Its index, and a word that no other worker has had."""
    folder: str
    secret: str
    changes: tuple[Change, ...]
    """What has been changed since the server started."""
    keeper: str = ""
    """Marks the answers whose use the parent remembers."""


class Ready(Struct, frozen=True, tag="ready"):
    """A worker takes requests."""


class Alive(Struct, frozen=True, tag="alive"):
    """A worker's event loop still turns."""


class Claim(Struct, frozen=True, tag="claim"):
    """A worker is about to run a tool with answers that count once."""

    number: int
    """The worker's own, which the parent answers with."""
    id: str
    until: float
    holder: str


class Claimed(Struct, frozen=True, tag="claimed"):
    """The parent's answer to a `Claim`."""

    number: int
    is_granted: bool | None
    """False: the answers were used before. None: there is no room to remember them."""


FromParent: TypeAlias = Welcome | Claimed | Change
FromWorker: TypeAlias = Ready | Alive | Claim | Change

BEAT_EVERY = 1.0
"""Seconds between two signs of life."""

BINDS_ITSELF = sys.platform == "linux"
"""Whether each worker has a socket of its own at the address, and not the parent's."""

_MOST_BYTES = 1 << 24
_LENGTH = 4
_encode = msgspec.json.Encoder().encode
_from_parent: msgspec.json.Decoder[FromParent] = msgspec.json.Decoder(FromParent)
_from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)


class Garbled(Exception):
    """The other side says what nobody can have meant."""


def encode(message: FromParent | FromWorker) -> bytes:
    """A message as it is sent."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


async def from_parent(reader: asyncio.StreamReader) -> FromParent | None:
    """What the parent says next; None: it is gone. Raises `Garbled`."""
    return await _receive(reader, _from_parent)


async def from_worker(reader: asyncio.StreamReader) -> FromWorker | None:
    """What a worker says next; None: it is gone. Raises `Garbled`."""
    return await _receive(reader, _from_worker)


def first_from_parent(control: socket.socket) -> Welcome:
    """Before there is an event loop, and nothing beyond it is read. Raises `Garbled`."""
    length = _length(_exactly(control, _LENGTH))
    message = _decoded(_from_parent, _exactly(control, length))
    if not isinstance(message, Welcome):
        raise Garbled("the first message is not a welcome")
    return message


def _exactly(control: socket.socket, size: int) -> bytes:
    data = control.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise Garbled("the parent is gone")
    return data


async def _receive(reader: asyncio.StreamReader, decoder: msgspec.json.Decoder[T]) -> T | None:
    try:
        length = _length(await reader.readexactly(_LENGTH))
        return _decoded(decoder, await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None


def _length(head: bytes) -> int:
    length = int.from_bytes(head, "big")
    if length > _MOST_BYTES:
        raise Garbled(f"a message of {length} bytes")
    return length


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Garbled(str(error)) from None

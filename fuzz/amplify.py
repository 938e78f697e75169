"""Makes large inputs of small ones, as costs that grow faster than the input show only there.

A piece of the input that is expensive in numbers is found, or put in, and repeated until the input is as long as is
wanted: containers in containers, small containers beside each other, members with equal keys or with new ones, values
of the wrong type, combining marks out of their order, digits, the characters of a key, messages, headers.
"""

from __future__ import annotations

import random
import re

PIECES = (
    b"[],",
    b"{},",
    b'"",',
    b"1,",
    b"null,",
    b'"a":{},',
    b'"a":[],',
    b'{"a":1},',
    b"[[[],[]]],",
    "\u0301\u0323".encode(),
    "\ufdfa".encode(),
    b"\\u0301\\u0323",
    b"\\n",
    b"9",
    b"k",
    b" ",
    b"a ",
    b"~1",
    b"\n",
    b"{}\n",
    b"x-a: b\n",
    b"accept: a/b;q=0.1,\n",
    b"a/b;q=0.1,",
)
"""What is repeated as it is."""

NESTS = ((b"[", b"]"), (b'{"a":', b"}"), (b"[[],", b"]"))
"""What is put around a value again and again."""

_VALUE = re.compile(rb"\[\]|\{\}|\"[^\"\\]*\"(?!:)|\d+|null|true|false")
_ITEM = re.compile(rb"(?<=[\[,])(?:\[\]|\{\}|\"\"|\d|null),")
_KEY = re.compile(rb'"([^"\\]*)":')
_LARGEST_PIECE = 64


def amplify(data: bytes, max_size: int, rng: random.Random) -> bytes:
    """An input like `data`, with some pieces many times; cut at `max_size`."""
    for _ in range(rng.randint(1, 3)):
        size = max(0, max_size - len(data)) // rng.choice((1, 2, 2, 2, 16))  # Half: there is room for another piece.
        how = rng.choice((_repeat_known, _repeat_known, _repeat_own, _repeat_items, _nest, _add_members))
        data = how(data, size, rng)[:max_size]
    return data


def _repeat_known(data: bytes, size: int, rng: random.Random) -> bytes:
    """Where a piece stands already it fits: there, if there is such a place."""
    there = [piece for piece in PIECES if piece in data]
    piece = rng.choice(there if there and rng.random() < 0.8 else PIECES)
    places = [match.start() for match in re.finditer(re.escape(piece), data)] or _inside(data)
    at = rng.choice(places)
    return data[:at] + piece * (size // len(piece)) + data[at:]


def _repeat_items(data: bytes, size: int, rng: random.Random) -> bytes:
    """An item of an array, and the characters of a key, which may be above it."""
    there = [match.span() for match in _ITEM.finditer(data)]
    keys = [match.end(1) for match in _KEY.finditer(data)]
    if not there or not keys:
        return _repeat_own(data, size, rng)
    start, end = rng.choice(there)
    key = rng.choice(keys)
    item = data[start:end]
    for at, piece in sorted(((start, item), (key, b"k")), reverse=True):
        data = data[:at] + piece * (size // 2 // len(piece)) + data[at:]
    return data


def _repeat_own(data: bytes, size: int, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randint(1, _LARGEST_PIECE)]
    return data[:start] + piece * (size // max(1, len(piece))) + data[start:]


def _nest(data: bytes, size: int, rng: random.Random) -> bytes:
    before, after = rng.choice(NESTS)
    found = list(_VALUE.finditer(data))
    start, end = rng.choice([match.span() for match in found]) if found else (len(data), len(data))
    depth = size // (len(before) + len(after))
    return data[:start] + before * depth + data[start:end] + after * depth + data[end:]


def _add_members(data: bytes, size: int, rng: random.Random) -> bytes:
    """Members with keys of their own, before one that is there."""
    found = [match.start() for match in _KEY.finditer(data)]
    at = rng.choice(found or _inside(data))
    members, length = [], 0
    while length < size:
        members.append(b'"%x":1,' % len(members))
        length += len(members[-1])
    return data[:at] + b"".join(members[:-1]) + data[at:]


def _inside(data: bytes) -> list[int]:
    """Places in strings, keys and containers that are empty; all places if there are none."""
    return [match.end(1) for match in _KEY.finditer(data)] or list(range(len(data) + 1))

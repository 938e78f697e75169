"""Reads files of the format safetensors: named arrays of numbers, mapped into memory instead of loaded."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy
from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_HEADER_BYTES = 1 << 20


class _Entry(Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def map_tensors(path: Path) -> Mapping[str, NDArray[numpy.float32]]:
    """The arrays in a file, by name; those of other kinds than 32-bit numbers are left out.

    Raises `OSError`, and `ValueError` for a file that is damaged.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(mapped[:8], "little")
    if not 0 < length <= min(_MOST_HEADER_BYTES, len(mapped) - 8):
        raise ValueError(f"{path} is not a file of tensors")
    header = msgspec.json.decode(mapped[8 : 8 + length], type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    found: dict[str, NDArray[numpy.float32]] = {}
    for name, raw in header.items():
        entry = msgspec.json.decode(raw, type=_Entry)
        if entry.dtype != "F32":
            continue
        start, end = (8 + length + offset for offset in entry.data_offsets)
        numbers = numpy.frombuffer(mapped, "<f4", offset=start, count=(end - start) // 4)
        found[name] = numbers.reshape(entry.shape)
    return found

"""Slots that the workers of a server share: a file for each kind in their folder, and in it an entry for each slot.

1. Who holds a slot has the first byte of its entry locked. The system frees the locks of a process that ends, however
   it ends. The entry says for whom the slot is held.
2. Nobody removes such a file while the server runs. The locks belong to the process: each file is opened once, as
   closing any descriptor of it would give all of them back. A child that is forked has none of them.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from dragoman.calls.places import Full, Holder, Places, Release
from dragoman.files import open_or_create_file

fcntl: Any
try:
    import fcntl
except ImportError:  # On Windows each worker counts its own.
    fcntl = None

_NAME: Final = 16
_ENTRY: Final = 2 * _NAME
"""A digest of the tenant, and one of the key in it; zeros for a slot that is nobody's share."""
_TRIES: Final = 1000


class SlotFiles:
    """Implements `CommonSlots`. Belongs to the event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}
        self._held: set[tuple[str, int]] = set()

    def take(self, name: str, limit: int, holder: Holder | None = None) -> Release | Full:
        """See `CommonSlots`. Raises `OSError`."""
        if fcntl is None:
            return lambda: None
        descriptor, looking = self._opened(name), limit * _ENTRY
        for _ in range(_TRIES):  # One process looks at a time. It takes microseconds, unless somebody suspends it.
            if _is_locked(descriptor, looking):
                break
            os.sched_yield()  # The other process may wait for the processor.
        try:
            return self._take(name, descriptor, limit, holder)
        finally:
            _unlock(descriptor, looking)

    def close(self) -> None:
        """Give everything back."""
        while self._files:
            os.close(self._files.popitem()[1])
        self._held.clear()

    def _take(self, name: str, descriptor: int, limit: int, holder: Holder | None) -> Release | Full:
        places, free = Places(limit), list[int]()
        entries = os.pread(descriptor, limit * _ENTRY, 0).ljust(limit * _ENTRY, b"\0")
        for number in range(limit):
            place = number * _ENTRY
            if (name, number) not in self._held and _is_locked(descriptor, place):
                free.append(number)
            else:
                places.hold(_holder_in(entries[place : place + _ENTRY]))
        entry = _entry_of(holder)
        full = places.full(_holder_in(entry))
        for number in free[0 if full is not None else 1 :]:
            _unlock(descriptor, number * _ENTRY)
        if full is not None:
            return full
        os.pwrite(descriptor, entry, free[0] * _ENTRY)
        self._held.add((name, free[0]))
        return partial(self._give_back, name, free[0])

    def _opened(self, name: str) -> int:
        descriptor = self._files.get(name)
        if descriptor is None:
            descriptor = self._files[name] = open_or_create_file(self._folder / slot_file(name), writes=True)
        return descriptor

    def _give_back(self, name: str, number: int) -> None:
        if (name, number) in self._held:
            self._held.discard((name, number))
            _unlock(self._files[name], number * _ENTRY)


def slot_file(name: str) -> str:
    """The name of the file of these slots."""
    return f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.slots"


def _entry_of(holder: Holder | None) -> bytes:
    if holder is None:
        return bytes(_ENTRY)
    key = _digest(f"{holder.tenant}\0{holder.key}") if holder.key else bytes(_NAME)
    return _digest(holder.tenant) + key


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:_NAME]


def _holder_in(entry: bytes) -> Holder | None:
    """For whom a slot is held, by digests in place of names."""
    tenant, key = entry[:_NAME], entry[_NAME:]
    return Holder(tenant.hex(), key.hex() if any(key) else "") if any(tenant) else None


def _is_locked(descriptor: int, place: int) -> bool:
    """Lock a byte for this process, unless another one has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):  # POSIX allows either.
        return False
    return True


def _unlock(descriptor: int, place: int) -> None:
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)

"""Where ids come from, so that a test can say what they are."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Ids(Protocol):
    """Makes ids that no two things share."""

    def run_id(self) -> str:
        """A fresh id for one invocation of a tool."""
        ...

    def correlation_id(self) -> str:
        """A fresh id for a request that brought none."""
        ...

    def connection_correlation_id(self) -> str:
        """A fresh id for a connection."""
        ...


# A UUID of version 4; the first digit of its fourth group may be 8, 9, a or b, and is always a here.
_FORM = b"00000000-0000-4000-a000-000000000000\n"
_FREE = [place for place, digit in enumerate(_FORM) if digit == ord("0")]
_BATCH = 512


class RandomIds:
    """UUIDs, version 4, of random digits from the operating system.

    They are made a page at a time, one column of digits after the other: two for every call, one by one, would cost as
    much as validating its arguments.
    """

    def __init__(self) -> None:
        self._made: list[str] = []
        _sources.add(self)

    def _uuid4(self) -> str:
        try:
            return self._made.pop()
        except IndexError:
            self._made += _page()
            return self._made.pop()

    run_id = _uuid4
    correlation_id = _uuid4
    connection_correlation_id = _uuid4


_sources: WeakSet[RandomIds] = WeakSet()


def _forget_ids() -> None:
    for source in _sources:
        source._made.clear()


if hasattr(os, "register_at_fork"):  # A forked child must not hand out its parent's ids.
    os.register_at_fork(after_in_child=_forget_ids)


def _page() -> list[str]:
    digits = os.urandom(_BATCH * len(_FREE) // 2).hex().encode()
    page = bytearray(_FORM * _BATCH)
    for column, place in enumerate(_FREE):
        page[place :: len(_FORM)] = digits[column * _BATCH : (column + 1) * _BATCH]
    return page.decode().splitlines()

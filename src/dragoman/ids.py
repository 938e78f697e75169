"""Where ids come from, so that a test can say what they are."""

from __future__ import annotations

import os
from typing import Protocol


class Ids(Protocol):
    def run_id(self) -> str:
        """A fresh id for one invocation of a tool."""
        ...

    def correlation_id(self) -> str:
        """A fresh id for a request that brought none."""
        ...

    def connection_correlation_id(self) -> str:
        """A fresh id for a connection."""
        ...


_BATCH = 256
_DIGITS = 30  # Of the 32, one says the version and one, here always the same, the variant.


class RandomIds:
    """UUIDs, version 4. They are made many at a time: a system call for each would cost as much as a call does."""

    def __init__(self) -> None:
        self._pool: list[str] = []
        if hasattr(os, "register_at_fork"):  # a forked child must not hand out its parent's ids
            os.register_at_fork(after_in_child=self._pool.clear)

    def _uuid4(self) -> str:
        try:
            return self._pool.pop()
        except IndexError:
            h = os.urandom(_BATCH * _DIGITS // 2).hex()
            self._pool += [
                f"{h[i : i + 8]}-{h[i + 8 : i + 12]}-4{h[i + 12 : i + 15]}-a{h[i + 15 : i + 18]}-{h[i + 18 : i + 30]}"
                for i in range(0, len(h), _DIGITS)
            ]
            return self._pool.pop()

    run_id = _uuid4
    correlation_id = _uuid4
    connection_correlation_id = _uuid4

"""An agent's state: JSON values by key, of which only what a handling changed is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import NoneType
from typing import Any

import msgspec

from dragoman.errors import InternalFailure, ResourceExhausted

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_SCALARS = (str, int, float, bool, NoneType)


class AgentState(MutableMapping[str, Any]):
    """Behaves as a dictionary. Values are decoded when they are first looked at, and encoded again if they changed."""

    def __init__(self, stored: Mapping[str, bytes], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.reset(stored)

    def reset(self, stored: Mapping[str, bytes]) -> None:
        """Begin again with what is stored."""
        self._stored = dict(stored)
        self._size = sum(len(key) + len(value) for key, value in stored.items())
        self._values: dict[str, Any] = {}
        self._touched: dict[str, None] = {}
        """The keys that may have changed since the last `take_changes` or `undo`."""
        self._gone: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            if key in self._gone:
                raise KeyError(key)
            self._values[key] = _decode(self._stored[key])
        value = self._values[key]
        if isinstance(value, list | dict):  # Whoever has it may change it.
            self._touched[key] = None
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"the keys of a state are strings, not {type(key).__name__}")
        self._touched[key] = None
        self._gone.discard(key)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._touched[key] = None
        self._values.pop(key, None)
        self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._values or (key in self._stored and key not in self._gone)

    def __iter__(self) -> Iterator[str]:
        yield from [key for key in self._stored if key not in self._gone]
        yield from [key for key in self._values if key not in self._stored]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"AgentState({dict(self)!r})"

    def snapshot(self) -> dict[str, Any]:
        """A copy of the state as the last handling left it."""
        return {key: _decode(value) for key, value in self._stored.items()}

    def take_changes(self) -> dict[str, bytes | None]:
        """Take the changes of a handling: JSON by key, None for a removed key. Later `undo`s go back to this point.

        Raises `ToolError` for a state that cannot be stored, or weighs too much.
        """
        changes: dict[str, bytes | None] = {}
        if not self._touched:
            return changes
        size = self._size
        for key in self._touched:
            before = self._stored.get(key)
            after = None if key in self._gone else self._encode(key)
            if before != after:
                changes[key] = after
                size += (0 if after is None else len(key) + len(after)) - (
                    0 if before is None else len(key) + len(before)
                )
        if size > self._max_bytes:
            raise ResourceExhausted(
                f"The agent's state would weigh {size} bytes, and at most {self._max_bytes} are kept",
                {"reason": "state_too_large", "limit": self._max_bytes, "actual": size, "retryable": False},
            )
        for key, value in changes.items():
            if value is None:
                del self._stored[key]
                continue
            self._stored[key] = value
            if not isinstance(self._values[key], _SCALARS):
                del self._values[key]  # It is read again as JSON, and nobody else can change it.
        self._size = size
        self._touched.clear()
        self._gone.clear()
        return changes

    def undo(self) -> None:
        """Forget what was changed since the last `take_changes`."""
        for key in self._touched:
            self._values.pop(key, None)
        self._touched.clear()
        self._gone.clear()

    def _encode(self, key: str) -> bytes:
        try:
            return _encode(self._values[key])
        except (TypeError, ValueError, RecursionError) as error:
            failure = InternalFailure(f"The value of {key!r} in the agent's state is not JSON", {"reason": "bad_state"})
            failure.__cause__ = error
            raise failure from error

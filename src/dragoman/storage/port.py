"""The port to an engine that keeps what must outlive a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from dragoman.findings import Finding

P = TypeVar("P")


class PurgeClock(Protocol):
    """What time it is for purges, which nobody can undo."""

    async def now(self) -> float:
        """Seconds since 1970. What had expired by then was found so at two looks, an hour apart or on both sides of a
        restart of the machine, and at all looks between. One to two hours late; 0 before there were two looks.

        Raises `StorageError`s.
        """
        ...


class Storage(Protocol):
    """One engine, as one runtime uses it. Nothing is created, opened or started before a port is used.

    Ports raise `StorageError`s, which say nothing about the engine; their causes do.
    """

    tell_trouble: Callable[[str], None]
    """Is called when there is trouble, on any thread."""
    is_shared: bool
    """Whether the other processes of the server store in the same place."""

    def trouble(self) -> str | None:
        """Why the engine cannot be relied on until the process is restarted; None while it can.

        `damaged`: a statement has found damage. `replaced`: what it writes to was deleted, moved or replaced, and every
        write raises `StorageLost`.
        """
        ...

    def note_damage(self) -> None:
        """Be in trouble, `damaged`: another process has found that."""
        ...

    def port(self, kind: type[P]) -> P:
        """The engine's implementation of a port, such as `Memories`: always the same one.

        Raises `ConfigError` for settings that leave the engine no place, and `KeyError` for a port that it lacks.
        """
        ...

    def examine(self) -> Iterable[Finding]:
        """Check whether the engine can be used here. Changes nothing and never raises."""
        ...

    async def close(self) -> None:
        """Finish the work that is queued, and take no more. Closing again does nothing."""
        ...

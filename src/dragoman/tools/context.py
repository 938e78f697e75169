"""What a handler is told about the call it serves, and how it learns that nobody waits any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.errors import Aborted
from dragoman.telemetry.log import Logger
from dragoman.tools.client import Client

Progress: TypeAlias = Callable[[float, float | None, str | None], None]


class Cancellation(Struct, eq=False):
    """A flag that is raised once, with a reason: `deadline`, `disconnect`, `client` or `shutdown`.

    It asks; it does not kill. A handler polls it, waits for it, or lets it raise, and then stops. It can be polled and
    raised on from any thread, and awaited on the event loop.
    """

    reason: str | None = None
    _waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether the handler should stop."""
        return self.reason is not None

    def raise_if_set(self) -> None:
        """Raise `Aborted` when the handler should stop."""
        if self.reason is not None:
            raise Aborted(self.reason)

    async def wait(self) -> None:
        """Return when the handler should stop."""
        if self.reason is not None:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def set(self, reason: str) -> None:
        """Raise the flag; the first reason stays. Called on the event loop."""
        if self.reason is not None:
            return
        self.reason = reason
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)


def raise_if_cancelled(cancellation: Cancellation) -> None:
    """Raise `Aborted` (code `ABORTED`) when the call was cancelled: at the start, between steps and inside loops."""
    cancellation.raise_if_set()


class ToolContext:
    """The call as its handler sees it. Ask for it by annotating a parameter: `def tool(x: int, ctx: ToolContext)`."""

    __slots__ = (
        "_client",
        "_logger",
        "_progress",
        "_root",
        "caller",
        "cancellation",
        "correlation_id",
        "run_id",
        "transport",
    )

    def __init__(
        self,
        run_id: str,
        correlation_id: str,
        logger: Logger,
        cancellation: Cancellation,
        caller: Caller,
        progress: Progress | None = None,
        transport: str = "local",
        client: Client | None = None,
    ) -> None:
        self.run_id = run_id
        self.correlation_id = correlation_id
        self.cancellation = cancellation
        self.caller = caller
        self.transport = transport
        self._root = logger
        self._logger: Logger | None = None
        self._progress = progress
        self._client = client

    @property
    def logger(self) -> Logger:
        """Logs to the server's log under this call's ids."""
        if self._logger is None:
            self._logger = self._root.child({"runId": self.run_id, "correlationId": self.correlation_id})
        return self._logger

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the work is, if it asked to be told. Safe from any thread; never waits."""
        if self._progress is not None:
            self._progress(progress, total, message)

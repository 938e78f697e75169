"""The HTTP sessions of the handshake era: the SDK serves them, and is loaded when the first one is opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dragoman.access.callers import Caller
from dragoman.access.quota import Quota
from dragoman.edge.asgi import Receive, Scope, Send, ServerStopping
from dragoman.edge.sdk.kernel import SdkKernel
from dragoman.edge.settings import HttpConfig
from dragoman.errors import InternalError
from dragoman.ids import Ids
from dragoman.protocol.session import Session, handshake_reader
from dragoman.telemetry.log import Logger, exception_facts

if TYPE_CHECKING:
    from dragoman.edge.sdk.lane_session import LaneSession, SseSession
    from dragoman.edge.sdk.open_sessions import OpenSessions


class SdkSessions:
    """The sessions on the kernel's server; none before it is loaded."""

    def __init__(
        self,
        kernel: SdkKernel,
        http: HttpConfig,
        most: int,
        ids: Ids,
        logger: Logger,
        *,
        is_authenticated: bool,
        prefix: str = "",
    ) -> None:
        self._kernel = kernel
        self._http = http
        self._most = most
        self._ids = ids
        self._logger = logger
        self._is_authenticated = is_authenticated
        self._prefix = prefix
        self._running: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[OpenSessions] | None = None
        self._stopping = asyncio.Event()
        self._are_ending = False
        self.open: OpenSessions | None = None

    @property
    def count(self) -> int:
        """How many sessions are past their handshake."""
        return 0 if self.open is None else self.open.count

    def find(self, session_id: str, caller: Caller) -> LaneSession | None:
        """A session of this caller; none once they end."""
        return None if self.open is None or self._are_ending else self.open.find(session_id, caller)

    def find_sse(self, scope: Scope, caller: Caller) -> SseSession | None:
        """The session of this caller that a request to the deprecated transport names; none once they end."""
        return None if self.open is None or self._are_ending else self.open.find_sse(scope, caller)

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve a request at the endpoint of streamable HTTP."""
        await (await self._load()).handle(scope, receive, send, caller)

    async def handle_sse(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve the stream that opens a session of the deprecated transport, for as long as it lasts."""
        await (await self._load()).handle_sse(scope, receive, send, caller)

    async def handle_sse_message(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Take a message in a session of the deprecated transport."""
        await (await self._load()).handle_sse_message(scope, receive, send, caller)

    def list_changed(self, kind: str) -> None:
        """Tell every session to list the tools, resources or prompts again."""
        if self.open is not None:
            self.open.list_changed(kind)

    async def stop(self) -> None:
        """End every session, its streams included, once what there is to say on them is said."""
        self._are_ending = True
        if self._ready is not None and not self._ready.done():  # Requests do not wait for an import to be refused.
            self._ready.set_exception(ServerStopping())
            self._ready.exception()  # Whoever waited may have left.
        if self.open is not None:
            await self.open.end()
        self._stopping.set()
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=2.0)

    async def _load(self) -> OpenSessions:
        """Import the SDK and start its session manager, once; raises `ServerStopping`."""
        if self._are_ending:
            raise ServerStopping
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._ready))
        sessions = await asyncio.shield(self._ready)
        if self._are_ending:  # Since: loading takes a while.
            raise ServerStopping
        return sessions

    async def _run(self, ready: asyncio.Future[OpenSessions]) -> None:
        try:
            server = await self._kernel.load()
            per_caller = self._per_caller()
            sessions = server.open_sessions(
                self._http, self._most, self._new_reader, self._logger, per_caller, self._prefix
            )
            async with sessions.running():
                self.open = sessions
                if not ready.done():
                    ready.set_result(sessions)
                await self._stopping.wait()
        except Exception as error:
            self._logger.error("HTTP sessions cannot be served", exception_facts(error, InternalError.code))
            if not ready.done():
                self._ready = None  # The next request may have better luck.
                ready.set_exception(error)

    def _new_reader(self) -> Session:
        return handshake_reader(self._kernel.identity, self._ids.connection_correlation_id())

    def _per_caller(self) -> Quota:
        """How many sessions one caller may have; without authentication all clients are one caller."""
        http = self._http
        if not self._is_authenticated:
            return Quota(http.max_sessions)
        return Quota(http.max_sessions_per_caller or max(1, http.max_sessions // 2))

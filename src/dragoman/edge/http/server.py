"""The HTTP server: it accepts connections, looks after slow clients, and comes to an orderly end.

1. A client that takes too long to send a request, or to read its answer, is disconnected. Connections beyond the limit
   are refused with 503, and those within it are not.
2. A signal makes `/ready` say 503 and new calls be refused as retryable, while what is running finishes; then streams
   end, and every answer that was made is sent before the process ends.
3. From that signal on, an answer that no other request waits behind says `Connection: close`, and its connection ends.
   Connections that the kernel has accepted by the time that the address is given up are served too.
4. No other process keeps the address or a connection: programs that tools start do not inherit them, and forked
   children drop them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from email.utils import format_datetime
from typing import TYPE_CHECKING

from dragoman.clock import Clock, SystemClock, Timer
from dragoman.edge.asgi import HttpApplication
from dragoman.edge.http.listening import BACKLOG, accept_all, is_near
from dragoman.edge.http.protocol import ClientPatience, HttpProtocol, ServerShared
from dragoman.edge.http.proxies import TrustedProxies
from dragoman.forks import drop, in_forked_children
from dragoman.process.signals import on_signals, start_or_stop

if TYPE_CHECKING:
    from dragoman.edge.http.app import HttpApp
    from dragoman.edge.settings import HttpConfig

_SWEEP_EVERY = 0.5
_LAST_ANSWERS = 2.0
_LAST_REQUESTS = 0.1
"""Seconds for requests that are on their way when the address is given up."""
_UNHOOKS = sys.platform == "linux"
"""Whether shutting down a listening socket frees its address, even if another process has a copy of the descriptor.
Elsewhere it does not, or workers share the socket, as they share a Unix socket everywhere."""


class HttpServer:
    """Serves an application to all who connect to its socket."""

    def __init__(self, app: HttpApplication, settings: HttpConfig, clock: Clock | None = None) -> None:
        proxies = TrustedProxies(settings.trusted_proxies)
        self._shared = ServerShared(app, clock or SystemClock(), proxies, settings.max_connections)
        milliseconds = (settings.read_timeout_ms, settings.write_timeout_ms, settings.keep_alive_ms)
        self._patience = ClientPatience(*(each / 1000 for each in milliseconds))
        self._server: asyncio.AbstractServer | None = None
        self._listening: socket.socket
        self._sweeping: Timer | None = None
        """None while there are no connections: an idle server sleeps."""

    @property
    def connections(self) -> set[HttpProtocol]:
        """The clients that it has."""
        return self._shared.connections

    @property
    def descriptors(self) -> list[int]:
        """Of the connections there are."""
        return [each.line.descriptor for each in (*self._shared.connections, *self._shared.leaving)]

    async def start(self, listening: socket.socket) -> None:
        """Accept connections at a socket, which is closed when the server stops."""
        self._listening = listening
        # Not `create_unix_server`: its end would remove the file, which other workers may serve, from Python 3.13 on.
        server = await asyncio.get_running_loop().create_server(
            self._connect, sock=listening, start_serving=False, backlog=BACKLOG
        )
        self._server = server
        await server.start_serving()

    def finish(self) -> None:
        """From now on, let each answer be the last on its connection."""
        self._shared.is_finishing = True
        for connection in self._shared.connections:
            connection.finish()

    async def stop(self) -> None:
        """Give up the address, answer what has been asked by then, and close all connections."""
        self.finish()
        await self._stop_listening()
        connections, tasks = self._shared.connections, self._shared.tasks
        if connections:
            await asyncio.sleep(_LAST_REQUESTS)
        for connection in tuple(connections):
            connection.shut_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS):
                while connections or tasks:
                    self._shared.gone.clear()
                    await self._shared.gone.wait()
        self.close()

    def close(self) -> None:
        """End at once what `stop` has not ended."""
        if self._server is None:
            return
        self._server.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in (*self._shared.connections, *self._shared.leaving):
            connection.line.transport.abort()
        for task in tuple(self._shared.tasks):
            task.cancel()

    async def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._server is not None
        with self._listening.dup() as copy:  # The loop closes the socket itself.
            self._server.close()
            # Closing the socket would reset the connections that wait to be accepted.
            waiting = accept_all(copy)
            if _UNHOOKS and copy.family != socket.AF_UNIX:
                copy.shutdown(socket.SHUT_RDWR)
        for each in waiting:
            with contextlib.suppress(OSError):  # The client has left.
                await loop.connect_accepted_socket(self._connect, each)

    def _connect(self) -> HttpProtocol:
        if self._sweeping is None:
            self._sweep_later()
        return HttpProtocol(self._shared)

    def _sweep(self) -> None:
        """Drop clients that are too slow, as long as there are any."""
        shared, self._sweeping = self._shared, None
        connections = (*shared.connections, *shared.leaving)
        if connections:
            self._sweep_later()  # First: it goes on even if this fails.
        now = shared.clock.monotonic()
        for connection in connections:
            connection.check(now, self._patience)

    def _sweep_later(self) -> None:
        clock = self._shared.clock
        self._sweeping = clock.call_later(_SWEEP_EVERY, self._sweep)
        self._shared.heads.set_date(format_datetime(clock.now(), usegmt=True))


async def serve(
    app: HttpApp,
    listening: socket.socket,
    settings: HttpConfig,
    shutdown_timeout: float,
    on_started: Callable[[], None] = lambda: None,
    *,
    beside: Sequence[tuple[HttpServer, socket.socket]] = (),
    until: Awaitable[object] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; how many calls were abandoned. `on_started` is called once it can be stopped.

    Servers `beside` it live and end with it. When `until` is done, the server stops as on a signal.
    """
    app.listens_at(is_near=is_near(settings))
    stopping = asyncio.Event()
    stopper = on_signals(stopping.set, shutdown_timeout + 2 * _LAST_ANSWERS)
    servers = ((HttpServer(app, settings, app.clock), listening), *beside)

    def drop_all() -> None:
        drop(*(each.fileno() for _, each in servers))
        for server, _ in servers:
            drop(*server.descriptors)

    stop_dropping = in_forked_children(drop_all)
    if until is not None:
        asyncio.ensure_future(until).add_done_callback(lambda _: stopper.stop())
    try:
        if not await start_or_stop(app.start(), stopping):
            return await app.stop(shutdown_timeout)
        for server, each in servers:
            await server.start(each)
        on_started()
        await stopping.wait()
        for server, _ in servers:
            server.finish()
        abandoned = await app.stop(shutdown_timeout)
        await asyncio.gather(*(server.stop() for server, _ in servers))
        return abandoned
    finally:
        for server, each in servers:
            server.close()
            each.close()
        stopper.restore()
        stop_dropping()

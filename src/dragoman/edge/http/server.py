"""The HTTP server process: binding, slow clients, signals and an orderly end.

1. A client that takes too long to send a request, or to read its answer, is disconnected; so is one whose head is too
   large. Connections beyond the limit are refused with 503.
2. A signal makes `/ready` say 503 and new calls be refused as retryable, while what is running finishes; then streams
   end, and every answer that was made is sent before the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.edge.signals import on_signals
from dragoman.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.config import AuthConfig, HttpConfig
    from dragoman.edge.http.app import HttpApp

MOST_HEAD_BYTES = 64 * 1024
_UNBOUNDED = 1 << 62
_LARGE = 32 * 1024
_SWEEP_EVERY = 0.5
_LAST_ANSWERS = 2.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ValueError` for a port that there is not, and `OSError` for one that is taken."""
    if not 0 <= port <= 65_535:
        raise ValueError(f"port must be between 0 and 65535, not {port}")
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind(address)
        listening.set_inheritable(True)
    except BaseException:
        listening.close()
        raise
    return listening


def raise_file_limit() -> None:
    """Let the process open as many files as it may: each connection is one."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with the times and sizes that it does not watch."""

    reading_since: float | None = None
    paused_since: float | None = None
    _head_size = 0

    def connection_made(self, transport: Any) -> None:
        self.reading_since = self.loop.time()
        super().connection_made(_Transport(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._head_size > MOST_HEAD_BYTES:
            self.refuse(431, "Request Header Fields Too Large")
            return
        self._head_size += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.reading_since is None:
            self.reading_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._head_size = -_UNBOUNDED
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.reading_since = None
        self._head_size = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        self.paused_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.paused_since = None
        super().resume_writing()

    def refuse(self, status: int, reason: str) -> None:
        """Answer on the connection itself, if nothing was answered yet, and close it."""
        if not self.transport.is_closing():
            if self.cycle is None or not self.cycle.response_started:
                self.transport.write(_last_words(status, reason))
            self.transport.close()


class _Transport:
    """Sends at once what is written within one turn of the loop, so that a head and its body are one packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        for name in ("get_extra_info", "pause_reading", "resume_reading", "is_closing", "set_protocol", "abort"):
            setattr(self, name, getattr(transport, name))

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        if len(data) > _LARGE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))


def _last_words(status: int, reason: str) -> bytes:
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    return f"{head}content-length: {len(reason)}\r\n\r\n{reason}".encode()


class HttpServer(Server):
    """uvicorn's server, which leaves the signals to us and drops clients that are too slow."""

    def __init__(self, app: Any, settings: HttpConfig) -> None:
        super().__init__(
            Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=max(1, settings.keep_alive_ms // 1000),
                limit_concurrency=settings.max_connections,
                timeout_graceful_shutdown=int(_LAST_ANSWERS),
                backlog=2048,
            )
        )
        self._read_timeout = settings.read_timeout_ms / 1000
        self._write_timeout = settings.write_timeout_ms / 1000

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: the process has a way of its own to stop."""
        yield

    async def watch(self) -> None:
        """Drop those who are too slow, for as long as it runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            now = loop.time()
            for connection in tuple(self.server_state.connections):
                if not isinstance(connection, _Protocol):
                    continue
                reading, paused = connection.reading_since, connection.paused_since
                if reading is not None and now - reading > self._read_timeout:
                    connection.refuse(408, "Request Timeout")
                elif paused is not None and now - paused > self._write_timeout:
                    connection.transport.abort()


async def serve(app: HttpApp, listening: socket.socket, settings: HttpConfig, shutdown_timeout: float) -> int:
    """Serve until SIGTERM or SIGINT; how many calls had to be abandoned."""
    stopping = asyncio.Event()
    restore = on_signals(stopping.set, shutdown_timeout + 2 * _LAST_ANSWERS)
    server = HttpServer(app, settings)
    serving = watching = None
    try:
        await app.start()
        serving = asyncio.create_task(server.serve([listening]))
        watching = asyncio.create_task(server.watch())
        asked = asyncio.create_task(stopping.wait())
        await asyncio.wait((asked, serving), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        abandoned = await app.stop(shutdown_timeout)
        server.should_exit = True
        await serving
        return abandoned
    finally:
        for task in (serving, watching):
            if task is not None:
                task.cancel()
        restore()


def check_address(host: str, auth: AuthConfig) -> None:
    """Raise `ConfigError` for an address that others can reach while anybody may call."""
    if not (is_loopback(host) or auth.allow_unauthenticated or auth.callers or auth.takes_jwts):
        reason = f"{host} can be reached from other machines, and nobody is authenticated"
        raise ConfigError([("http.host", f"{reason}; set up auth, or say --allow-unauthenticated")])


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    from ipaddress import ip_address

    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

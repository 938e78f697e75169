"""One request over HTTP and its one answer.

1. The answer is JSON. Only when there is something to say before it, or when it takes so long that a proxy would lose
   patience, does the response become an event stream that ends with the answer.
2. Nobody watches for a client that leaves until the call has taken a while: most calls are over before that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from dragoman.access.callers import Caller
from dragoman.edge.clients import ModernClient
from dragoman.edge.http.asgi import JSON, STREAM, Header, Receive, Send, answer
from dragoman.errors import MethodNotFound
from dragoman.protocol import jsonrpc

WATCH_AFTER = 0.05
"""Seconds, at least, before somebody watches whether the client is still there; at most twice as many."""
PING_EVERY = 15.0
"""Seconds of silence on a stream, or before there is one."""
MOST_QUEUED = 256
"""Notifications that a slow client may be behind with; further ones are dropped until it has caught up."""


class Watch:
    """Looks after exchanges that take a while: one timer for all of them, and none while there are none.

    An exchange that was there at one tick and still is at the next is watched from then on.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._young: set[Exchange] = set()
        self._old: set[Exchange] = set()
        self._ticking = False

    def add(self, exchange: Exchange) -> None:
        """An exchange has begun."""
        self._young.add(exchange)
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(WATCH_AFTER, self._tick)

    def discard(self, exchange: Exchange) -> None:
        """An exchange is over."""
        self._young.discard(exchange)
        self._old.discard(exchange)

    def _tick(self) -> None:
        for exchange in self._old:
            exchange.watch()
        self._old, self._young = self._young, set()
        self._ticking = bool(self._old)
        if self._ticking:
            self.loop.call_later(WATCH_AFTER, self._tick)


class Exchange:
    """Collects what is to be sent while somebody works on the request, and sends it."""

    transport = "http"
    session = protocol_version = session_id = None
    """There was no handshake."""
    on_gone: Callable[[], object] | None = None
    """What to do when the client leaves before it is answered; called once."""

    # What most exchanges never need.
    _status = 200
    _headers: tuple[Header, ...] = ()
    _body: bytes | None = None
    _gone = False
    _drained: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _watcher: asyncio.Task[None] | None = None

    def __init__(self, caller: Caller, watch: Watch, *, streams: bool) -> None:
        self.caller = caller
        self._streams = streams
        self._watch = watch
        self._loop = watch.loop
        self._queue: list[bytes] = []
        self._woken: asyncio.Future[None] = watch.loop.create_future()
        self._receive: Receive

    @property
    def is_gone(self) -> bool:
        return self._gone

    @property
    def listener(self) -> NoReturn:
        """Beyond the request there is nobody: in this era a request of its own asks to be told."""
        raise MethodNotFound("Method not found")

    def client_for(self, meta: Mapping[str, Any], *, modern: bool) -> ModernClient:
        """The client as the function sees it that serves a request with this `_meta`."""
        return ModernClient(meta, self.notify)

    def finish(self, body: bytes, status: int = 200, headers: tuple[Header, ...] = ()) -> None:
        """The answer. On a stream the status is 200 already, and the error in the body has to do."""
        if self._body is None:
            self._body, self._status, self._headers = body, status, headers
            self._wake()

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification ahead of the answer, where the client takes streams. From any thread; never waits."""
        if self._streams:
            line = jsonrpc.encode_notification(method, params)
            if threading.get_ident() == self._watch.thread:
                self._put(line)
            else:
                self._loop.call_soon_threadsafe(self._put, line)

    async def drained(self) -> None:
        """Wait until a client that is behind has caught up; for those who must not lose a notification."""
        while len(self._queue) >= MOST_QUEUED and not self._gone:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    async def run(self, receive: Receive, send: Send) -> None:
        """Send what there is to send, until the answer is sent or the client is gone."""
        self._receive = receive
        self._watch.add(self)
        try:
            if self._body is None:
                await self._woken
            if self._gone:
                return
            if self._body is not None and not self._queue:
                await answer(send, self._status, self._body, (JSON, *self._headers))
            else:
                await self._stream(send)
        finally:
            self._watch.discard(self)
            if self._timer is not None:
                self._timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()
            self._leave()
            self.on_gone = None  # It leads back here: without this, only the garbage collector would end it.

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*STREAM]})
        while not self._gone:
            lines, self._queue = self._queue, []
            if self._drained is not None:
                self._drained.set_result(None)
                self._drained = None
            if ended := self._body is not None:
                lines.append(self._body)
            chunk = b"".join([b"event: message\ndata: %b\n\n" % line.rstrip() for line in lines]) or b": ping\n\n"
            await send({"type": "http.response.body", "body": chunk, "more_body": not ended})
            if ended:
                return
            if not self._queue and self._body is None:
                self._woken = self._loop.create_future()
                await asyncio.wait((self._woken,), timeout=PING_EVERY)

    def _put(self, line: bytes) -> None:
        if self._body is None and len(self._queue) < MOST_QUEUED:
            self._queue.append(line)
            self._wake()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def watch(self) -> None:
        """It takes a while: see whether the client stays, and keep proxies patient."""
        self._watcher = self._loop.create_task(self._until_gone())
        if self._streams:
            self._timer = self._loop.call_later(PING_EVERY - WATCH_AFTER, self._wake)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._leave()
        self._wake()

    def _leave(self) -> None:
        if self._body is None:
            self._gone = True
            if self._drained is not None:
                self._drained.set_result(None)
                self._drained = None
            if self.on_gone is not None:
                on_gone, self.on_gone = self.on_gone, None
                on_gone()

"""One request over HTTP and its one answer.

1. The answer is JSON. Only when there is something to say before it, or when it takes so long that a proxy would lose
   patience, does the response become an event stream that ends with the answer.
2. Nobody watches for a client that leaves until the call has taken a while: most calls are over before that.
3. A call in a session that takes a while goes on as one of the session's own streams, which can be resumed.
4. A stream ends when its caller's token does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.calls.call import Withdrawal
from dragoman.calls.origin import Origin
from dragoman.clock import Clock
from dragoman.edge.asgi import JSON, STREAM, Header, Post, Receive, Scope, Send, until_gone
from dragoman.edge.clients import ModernClient
from dragoman.edge.http.expiry import until_expired
from dragoman.errors import MethodNotFound
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Id

if TYPE_CHECKING:
    from dragoman.edge.sdk.lane_session import LaneSession

WATCH_AFTER = 0.05
"""Seconds, at least, before somebody watches whether the client is still there; at most twice as many."""
STREAM_AFTER = 0.25
"""Seconds before a call in a session goes on as a stream; at most `WATCH_AFTER` more."""
PING_EVERY = 15.0
"""Seconds of silence on a stream, or before there is one."""
MOST_QUEUED = 256
MOST_QUEUED_BYTES = 1024 * 1024
"""Notifications that a slow client may be behind with; further ones are dropped until it has caught up."""

_JUST_JSON = (JSON,)


class _Watched(Protocol):
    def watch(self) -> None:
        """It takes a while."""
        ...


class Watch:
    """Looks after exchanges that take a while: one timer for all of them, and none while there are none.

    An exchange that was there at one tick and still is at the next is watched from then on.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop
        self.thread: int
        """Of the loop; both are known from the first exchange on."""
        self._young: set[_Watched] = set()
        self._old: set[_Watched] = set()
        self._ticking = False

    def add(self, exchange: _Watched) -> None:
        """An exchange has begun."""
        self._young.add(exchange)
        if not self._ticking:
            self._ticking = True
            self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
            self.loop.call_later(WATCH_AFTER, self._tick)

    def discard(self, exchange: _Watched) -> None:
        """An exchange is over."""
        self._young.discard(exchange)
        if self._old:
            self._old.discard(exchange)

    def _tick(self) -> None:
        for exchange in self._old:
            exchange.watch()
        self._old, self._young = self._young, set()
        self._ticking = bool(self._old)
        if self._ticking:
            self.loop.call_later(WATCH_AFTER, self._tick)


class Exchange(Struct, eq=False):
    """A request of the modern era: collects what is to be sent while somebody works on it, and sends it."""

    transport: ClassVar = "http"
    session: ClassVar = None
    """There was no handshake."""

    _post: Post
    caller: Caller
    _watch: Watch
    _streams: bool
    """Whether the client takes event streams."""
    headers: Sequence[Header] = ()
    """Of the request."""
    on_gone: Callable[[Withdrawal], object] | None = None
    """What to do when the client leaves before it is answered; called once."""
    _queue: list[bytes] = []
    _queued_bytes: int = 0
    _body: bytes | None = None
    _gone: bool = False
    _woken: asyncio.Future[None] | None = None
    _drained: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._watch.add(self)
        self._post.on_gone = self._leave

    @property
    def listener(self) -> NoReturn:
        """Beyond the request there is nobody: in this era a request of its own asks to be told."""
        raise MethodNotFound("Method not found")

    def origin_for(self, meta: Mapping[str, Any], *, modern: bool) -> Origin:
        """Where the call comes from that a request with this `_meta` asks for."""
        client = ModernClient(meta, self.notify)
        return Origin(self.caller, self.transport, client, True, None, None, self.headers)

    def why_cancelled(self) -> Withdrawal:
        """In this era a client cancels by leaving."""
        return "disconnect"

    def finish(self, body: bytes, status: int = 200, headers: tuple[Header, ...] = ()) -> None:
        """The answer. On a stream the status is 200 already, and the error in the body has to do."""
        if self._body is None and not self._gone:
            self._body = body
            if self._woken is None:
                self._end()
                self._post.answer(status, body, (JSON, *headers) if headers else _JUST_JSON)
            else:
                self._wake()

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification ahead of the answer, where the client takes streams. From any thread; never waits."""
        if self._streams:
            line = jsonrpc.encode_notification(method, params)
            if threading.get_ident() == self._watch.thread:
                self._put(line)
            else:
                self._watch.loop.call_soon_threadsafe(self._put, line)

    async def drained(self) -> None:
        """Wait until a client that is behind has caught up; for those who must not lose a notification."""
        while self._is_full and not self._gone:
            if self._drained is None:
                self._drained = self._watch.loop.create_future()
            await asyncio.shield(self._drained)

    def watch(self) -> None:
        """It takes a while: see whether the client stays, and keep proxies patient."""
        self._post.watch()
        if self._streams:
            self._timer = self._watch.loop.call_later(PING_EVERY - WATCH_AFTER, self._become_stream)

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= MOST_QUEUED or self._queued_bytes >= MOST_QUEUED_BYTES

    def _put(self, line: bytes) -> None:
        if self._body is None and not self._gone and not self._is_full and len(line) <= MOST_QUEUED_BYTES:
            self._queue.append(line)
            self._queued_bytes += len(line)
            if self._woken is None:
                self._become_stream()
            else:
                self._wake()

    def _become_stream(self) -> None:
        self._woken = self._watch.loop.create_future()
        self._end()
        self._post.go_on(until_expired(self._stream, self.caller, self._watch.clock))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is to send, until the answer is sent or the client is gone."""
        watcher = self._watch.loop.create_task(self._until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*STREAM]})
            while not self._gone:
                lines, self._queue, self._queued_bytes = self._queue, [], 0
                self._let_drain()
                if ended := self._body is not None:
                    lines.append(self._body)
                chunk = b"".join([b"event: message\ndata: %b\n\n" % line.rstrip() for line in lines]) or b": ping\n\n"
                await send({"type": "http.response.body", "body": chunk, "more_body": not ended})
                if ended:
                    return
                if not self._queue and self._body is None:
                    self._woken = self._watch.loop.create_future()
                    await asyncio.wait((self._woken,), timeout=PING_EVERY)
        finally:
            watcher.cancel()
            self._leave()

    async def _until_gone(self, receive: Receive) -> None:
        await until_gone(receive)
        self._leave()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _let_drain(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def _leave(self) -> None:
        self._end()
        if self._body is None:
            self._gone = True
            self._let_drain()
            if self.on_gone is not None:
                on_gone, self.on_gone = self.on_gone, None
                on_gone("disconnect")
        self.on_gone = None  # It leads back here: without this, only the garbage collector would end it.

    def _end(self) -> None:
        """There is nothing to watch any more: it is answered, or looks after itself."""
        self._watch.discard(self)
        self._post.on_gone = None
        if self._timer is not None:
            self._timer.cancel()
        if self._body is not None:
            self.on_gone = None


class SessionCall(Struct, eq=False):
    """A call in a session. That a client leaves does not end it."""

    _post: Post
    request_id: Id
    caller: Caller
    session: LaneSession
    _watch: Watch
    _answered: asyncio.Future[bytes] | None = None
    _timer: asyncio.TimerHandle | None = None
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._watch.add(self)

    def finish(self, line: bytes, status: int = 200, headers: tuple[Header, ...] = ()) -> None:
        """The answer; the first one counts."""
        if self._is_over:
            return
        self._is_over = True
        if self._answered is not None:
            self._answered.set_result(line)
            return
        self._watch.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._post.answer(status, line, self.session.headers + headers)

    def watch(self) -> None:
        """It takes a while."""
        self._timer = self._watch.loop.call_later(STREAM_AFTER - WATCH_AFTER, self._become_stream)

    def _become_stream(self) -> None:
        self._answered = self._watch.loop.create_future()
        self._post.go_on(until_expired(self._stream, self.caller, self._watch.clock))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._answered is not None
        await self.session.stream(self.request_id, self._answered, scope, receive, send)

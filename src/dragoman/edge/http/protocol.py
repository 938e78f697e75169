"""One client over a socket: drives `HttpConnection`, gives requests to the application and sends what it answers.

1. A POST to the endpoint that came whole, as nearly all do, is given to the application as it is. Any other request,
   and an answer that has more to say or takes long, is an ASGI cycle of request and response.
2. Nothing new is begun for a client that does not read its answers, and no more is read than `MOST_AHEAD` bytes before
   their turn. Until then a client that leaves is noticed, and its call withdrawn.
3. How long a client takes is looked at now and then, by the server's clock: to send a request, to read an answer, to
   ask again. There is no timer for each request.
4. A connection that ends while its client still sends is first ended in one direction: closed with bytes unread, a
   socket is reset, and its client may never see what was written last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, MutableMapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec import Struct

from dragoman.clock import Clock
from dragoman.edge.asgi import JSON, Application, Header, HttpApplication, Scope
from dragoman.edge.http.connection import (
    BadRequest,
    BodyEnd,
    BodyPart,
    ConnectionEvent,
    HttpConnection,
    HttpState,
    RequestBegun,
    WholeRequest,
)
from dragoman.edge.http.messages import AnswerError, AnswerHeads, RequestHead
from dragoman.edge.http.proxies import TrustedProxies
from dragoman.errors import InternalError, InvalidRequest

if TYPE_CHECKING:
    from dragoman.telemetry.metrics import Metrics

MOST_AHEAD = 64 * 1024
"""Bytes of a body that the application has not asked for, or of requests that wait for their turn, before no more is
read. One packet may bring more."""
_LINGER = 5.0
"""Seconds in which a client that was refused may go on sending before it notices."""
_AT_ONCE = 0.1
"""Seconds after a request in which its client may say that it was the last one, and not that it leaves."""
_HALF_CLOSED = 1.0
"""Seconds in which such a client is answered: it may be gone all the same."""
_JSON: tuple[Header, ...] = (JSON,)
_RETRY: tuple[Header, ...] = (JSON, (b"retry-after", b"1"))
_IDLE, _CLOSED = HttpState.IDLE, HttpState.CLOSED  # Looking them up there costs more than what is done with them.
_READING = (HttpState.HEAD, HttpState.BODY, HttpState.BODY_ANSWERING, HttpState.BODY_ANSWERED)
_ANSWERED_LATER = (HttpState.WHOLE, HttpState.WHOLE_ANSWERING)
_CAN_BE_REFUSED = (HttpState.IDLE, HttpState.HEAD, HttpState.BODY, HttpState.REFUSED)

_logger = logging.getLogger(__name__)


@dataclass
class ServerShared:
    """The state that the connections of a server share."""

    app: HttpApplication
    clock: Clock
    proxies: TrustedProxies
    max_connections: int
    heads: AnswerHeads = field(default_factory=AnswerHeads)
    connections: set[HttpProtocol] = field(default_factory=set)
    leaving: set[HttpProtocol] = field(default_factory=set)
    """Those that were refused because there are too many: they take no place."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one of them has ended."""
    is_finishing: bool = False

    def end_task(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.gone.set()


@dataclass(frozen=True)
class ClientPatience:
    """Seconds that a client may take."""

    to_send: float
    to_read: float
    to_ask: float


class SocketLine:
    """The socket: what goes out, and how both ends are kept from being given more than they take."""

    def __init__(self, transport: asyncio.Transport, metrics: Metrics | None) -> None:
        self.transport = transport
        self.is_read = True
        """Whether what the client sends is read as it comes."""
        self.lingers = False
        self.unread_since: float | None = None
        """Since when the client does not read."""
        self._metrics = metrics
        self._writable: asyncio.Future[None] | None = None

    @property
    def descriptor(self) -> int:
        """Of the socket; -1 when it is closed."""
        found: int = self.transport.get_extra_info("socket").fileno()
        return found

    def write(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            if self._metrics is not None:
                self._metrics.sent_bytes += len(data)
            self.transport.write(data)

    async def until_writable(self) -> None:
        """Wait for a client that does not read."""
        while self.unread_since is not None and not (self.lingers or self.transport.is_closing()):
            if self._writable is None:
                self._writable = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._writable)

    def wake(self) -> None:
        """Let those who wait look again."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def pause_reading(self) -> None:
        if self.is_read and not self.transport.is_closing():
            self.is_read = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_read and not self.transport.is_closing():
            self.is_read = True
            self.transport.resume_reading()

    def close(self, *, lingers: bool) -> None:
        """Send what is left, and close. A line that `lingers` goes on reading until the client ends, or `close`."""
        if lingers and not self.lingers and self.transport.can_write_eof() and not self.transport.is_closing():
            self.lingers = True
            with contextlib.suppress(OSError):  # The client has left, and that was not noticed yet.
                self.transport.write_eof()
            self.resume_reading()
        else:
            self.lingers = False
            self.transport.close()


class HttpProtocol(asyncio.Protocol):
    """A client's connection, as asyncio sees it."""

    line: SocketLine

    def __init__(self, shared: ServerShared) -> None:
        self._shared = shared
        self._app = shared.app
        self._metrics = shared.app.metrics
        self._endpoint = shared.app.endpoint.encode()
        self._now = shared.clock.monotonic
        self.connection = HttpConnection(shared.heads)
        self._since = 0.0  # Since when the state is what it is, as far as its time is limited.
        self._current: _Post | _Cycle | None = None
        self._is_reading_on = False
        self._has_asked = False
        self._is_half_closed = False
        # The code that answers one request goes on with the next, which must see none of its context variables.
        self._context = copy_context()

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        shared = self._shared
        self.line = SocketLine(transport, self._metrics)
        self._since = self._now()
        self.connection.is_finishing = shared.is_finishing
        if len(shared.connections) < shared.max_connections:
            shared.connections.add(self)
        else:
            shared.leaving.add(self)
            self._refuse(503, "There are too many connections")

    def connection_lost(self, error: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.leaving.discard(self)
        self._shared.gone.set()
        self.connection.close()
        self._give_up()

    def data_received(self, data: bytes) -> None:
        if self._metrics is not None:
            self._metrics.received_bytes += len(data)
        connection = self.connection
        if self.line.unread_since is None and (body := connection.receive_again(data)) is not None:
            self._since = self._now()
            self._context.run(self._serve, connection.head, body)
            return
        if connection.state is _IDLE and not data.isspace():  # Empty lines begin no request.
            self._since = self._now()
        connection.receive(data)
        self._read_on()
        if connection.ahead > MOST_AHEAD:
            self.line.pause_reading()

    def eof_received(self) -> bool:
        """Whether the connection is kept: a client that has nothing more to ask may still read its answers.

        A client that is gone looks the same until something is sent to it, and its calls are to be cancelled; but one
        that has not waited at all has hardly given up waiting.
        """
        state = self.connection.state
        self.connection.end()
        if state in _ANSWERED_LATER or self.line.unread_since is not None:
            self._is_half_closed = self._now() - self._since <= _AT_ONCE
            if not self._is_half_closed:
                self._leave()
            return self._is_half_closed
        self._read_on()
        return False

    def pause_writing(self) -> None:
        self.line.unread_since = self._now()

    def resume_writing(self) -> None:
        self.line.unread_since = None
        self.line.wake()
        self._read_on()
        if self._current is None:
            self.take_more()

    # What the server calls.

    def check(self, now: float, patience: ClientPatience) -> None:
        """Drop the client if it takes too long."""
        state, waited, line = self.connection.state, now - self._since, self.line
        if line.unread_since is not None and now - line.unread_since > patience.to_read:
            line.transport.abort()  # First: it may be late or idle as well, and on its way out for that.
        elif state is HttpState.CLOSED:
            if waited > patience.to_read:
                line.transport.abort()  # What it was sent last it has to read in time as well.
            elif line.lingers and waited > _LINGER:
                line.close(lingers=False)
        elif self._is_half_closed and waited > _HALF_CLOSED:
            self._leave()
        elif state in _READING or (state is HttpState.IDLE and not self._has_asked):
            if waited > patience.to_send and line.is_read:
                self._refuse(408, "The request took too long to arrive")
        elif state is HttpState.IDLE and waited > patience.to_ask:
            self._leave()

    def finish(self) -> None:
        """Let the answer to the last request that has come be the last one on this connection."""
        self.connection.is_finishing = True

    def shut_down(self) -> None:
        """The same, and do not wait for a request that has not begun."""
        self.finish()
        if self.connection.state in (HttpState.IDLE, HttpState.HEAD, HttpState.BODY_ANSWERED):
            self._leave()

    # Requests.

    def _read_on(self) -> None:
        """Do what the bytes so far ask for, one after the other, for as long as the client reads its answers."""
        if self._is_reading_on:
            return
        self._is_reading_on = True
        try:
            while self.line.unread_since is None and (event := self.connection.next_event()) is not None:
                self._context.run(self._handle, event)
        finally:
            self._is_reading_on = False

    def _handle(self, event: ConnectionEvent) -> None:
        if isinstance(event, WholeRequest):
            self._since = self._now()
            self._serve(event.head, event.body)
        elif isinstance(event, RequestBegun):
            self._start(_Cycle(self, event.head), self._app)
        elif isinstance(event, BodyPart):
            if isinstance(self._current, _Cycle):
                self._current.feed(event.data)
        elif isinstance(event, BodyEnd):
            self._since = self._now()
            if isinstance(self._current, _Cycle):
                self._current.end()
        elif isinstance(event, BadRequest):
            self._refuse(event.status, event.reason)
        else:
            self._leave()

    def _serve(self, head: RequestHead, body: bytes) -> None:
        if head.target == self._endpoint and head.method == "POST" and head.version == "1.1":
            post = self._current = _Post(self, head)
            try:
                if self._app.take(post, head, body):
                    return
            except Exception:  # It may be the one before that is being answered, and not to blame.
                _logger.exception("an application failed to take a request")
                self._leave()
                return
        cycle = _Cycle(self, head)
        cycle.feed(body)
        cycle.end()
        self._start(cycle, self._app)

    def go_on(self, head: RequestHead, app: Application) -> None:
        """Have an application answer what was taken as it is."""
        cycle = _Cycle(self, head)
        cycle.end(is_known=True)
        self._start(cycle, partial(self._app.run, app))

    def _start(self, cycle: _Cycle, app: Application) -> None:
        self._current = cycle
        scope = scope_of(cycle.head, self.line.transport, self._shared.proxies)
        task = asyncio.get_running_loop().create_task(cycle.run(app, scope))
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.end_task)

    # Answers.

    def answer(self, status: int, headers: tuple[Header, ...], body: bytes) -> None:
        """Send a whole answer. Raises `AnswerError`, and has sent nothing then."""
        self.line.write(self.connection.answer(status, headers, body))
        self.end_answer()

    def break_off(self, *, has_begun: bool) -> None:
        """An application has failed: say so, or let the client see that the answer has no end."""
        if has_begun:
            self._leave()
        else:
            body = self._app.refuse(500, InternalError("Internal error"))
            head = self.connection.begin_answer(500, (JSON, (b"content-length", b"%d" % len(body))))
            self.line.write(head + self.connection.continue_answer(body, more=False))
            self.end_answer()

    def take_more(self) -> None:
        """Read on, unless too much waits for its turn."""
        if self.connection.ahead <= MOST_AHEAD:
            self.line.resume_reading()

    def end_answer(self) -> None:
        """An answer is complete."""
        connection = self.connection
        self._current = None
        self._has_asked = True
        self._since = self._now()
        if connection.state is _CLOSED:
            self.line.close(lingers=connection.has_unread or not self.line.is_read)
            return
        if connection.ahead or connection.state is not _IDLE:
            self._read_on()
        if not self.line.is_read:
            self.take_more()

    # Ends.

    def _refuse(self, status: int, reason: str) -> None:
        """Answer on the connection itself, unless another answer would be taken for this one, and close it."""
        if self._metrics is not None:
            self._metrics.refused_request(status)
        if self.connection.state in _CAN_BE_REFUSED:
            error = InvalidRequest(reason) if status < 500 else InternalError(reason)
            headers = _RETRY if status == 503 else _JSON
            self.line.write(self.connection.refuse(status, headers, self._app.refuse(status, error)))
        else:
            self.connection.close()
        self._since = self._now()
        self.line.close(lingers=True)
        self._give_up()

    def _leave(self) -> None:
        """Close, and give up now: what nobody reads may keep the connection from being lost for long."""
        self.connection.close()
        self._since = self._now()
        self.line.close(lingers=False)
        self._give_up()

    def _give_up(self) -> None:
        """Tell the application that nobody is there."""
        self.line.wake()
        if self._current is not None:
            current, self._current = self._current, None
            current.leave()


class _Post(Struct, eq=False):
    """A request that came whole, and its answer. Implements `Post`."""

    _protocol: HttpProtocol | None
    _head: RequestHead
    on_gone: Callable[[], object] | None = None

    def answer(self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)) -> None:
        protocol = self._protocol
        if protocol is not None:
            protocol.answer(status, headers, body)
            self._protocol = None

    def go_on(self, app: Application) -> None:
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            protocol.go_on(self._head, app)

    def watch(self) -> None:
        """Nothing is to be done: a client that leaves is noticed for as long as the connection is read."""

    def leave(self) -> None:
        """The client is gone."""
        self._protocol = None
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()


class _Cycle:
    """A request and its response, as an ASGI application has them."""

    def __init__(self, protocol: HttpProtocol, head: RequestHead) -> None:
        self.head = head
        self._protocol = protocol
        self._connection = protocol.connection
        self._line = protocol.line
        self._parts: list[bytes] = []
        self._held = 0
        self._news = asyncio.Event()
        self._is_whole = self._is_given = False
        self._must_tell = head.expects
        self._has_begun = self._is_over = False

    def feed(self, data: bytes) -> None:
        """More of the body has come."""
        self._parts.append(data)
        self._held += len(data)
        if self._held > MOST_AHEAD and not self._is_over:
            self._line.pause_reading()
        self._news.set()

    def end(self, *, is_known: bool = False) -> None:
        """The body is there to its end; if it `is_known`, the application has it already."""
        self._is_whole, self._is_given = True, is_known
        self._must_tell = False
        self._news.set()

    def leave(self) -> None:
        """The client is gone."""
        self._is_over = True
        self._parts.clear()
        self._news.set()

    async def run(self, app: Application, scope: Scope) -> None:
        """Have the application answer. One that leaves a request without a whole answer has failed."""
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            _logger.exception("an ASGI application failed")
        finally:
            if not self._is_over:
                self._is_over = True
                self._protocol.break_off(has_begun=self._has_begun)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._must_tell and not self._is_over:
            self._must_tell = False
            self._line.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._is_over or self._parts or self._is_whole > self._is_given):
            self._protocol.take_more()
            self._news.clear()
            await self._news.wait()
        if self._is_over:
            return {"type": "http.disconnect"}
        body = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        self._is_given = self._is_whole
        self._protocol.take_more()
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self._line.until_writable()
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self._line.write(self._connection.begin_answer(message["status"], message.get("headers", ())))
            self._has_begun, self._must_tell = True, False
            return
        if message["type"] != "http.response.body":
            raise AnswerError(f"An application sends {message['type']}, which means nothing here")
        more = message.get("more_body", False)
        self._line.write(self._connection.continue_answer(message.get("body", b""), more=more))
        if not more:
            self._is_over = True
            self._news.set()
            self._protocol.end_answer()


def scope_of(head: RequestHead, transport: asyncio.Transport, proxies: TrustedProxies) -> Scope:
    """A request as ASGI has it."""
    path, _, query = head.target.partition(b"?")
    if not path.startswith(b"/") and path != b"*":
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    server: Any = transport.get_extra_info("sockname")
    client, scheme = proxies.seen_through(head.headers, _address(transport.get_extra_info("peername")))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method,
        "scheme": scheme,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [*head.headers],
        "client": client,
        "server": _address(server) or (server, None),
    }


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port; None for a Unix socket."""
    return (name[0], name[1]) if isinstance(name, tuple) else None

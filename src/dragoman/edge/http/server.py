"""The HTTP server process: binding, slow clients, signals and an orderly end.

1. A client that takes too long to send a request, or to read its answer, is disconnected; so is one whose head is too
   large. Connections beyond the limit are refused with 503, and those within it are not.
2. A POST to the endpoint that comes whole, as nearly all do, is given to the application as it is. Only what takes
   long, or has more to say than one answer, becomes one of uvicorn's cycles of request and response.
3. A signal makes `/ready` say 503 and new calls be refused as retryable, while what is running finishes; then streams
   end, and every answer that was made is sent before the process ends.
4. From that signal on, each answer says `Connection: close`, and its connection ends. Connections that the kernel has
   accepted by the time that the address is given up are served too.
5. No other process keeps the address or a connection: programs that tools start do not inherit them, and forked
   children drop them.
6. A request that others on the way may have understood differently is refused and its connection closed: one whose
   target names another host than `Host` does, or whose body is in a transfer coding other than `chunked`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.edge.asgi import JSON, Application, Header, unknown_refusal
from dragoman.errors import ConfigError, InternalError, InvalidRequest
from dragoman.forks import drop, in_forked_children
from dragoman.process.address import is_loopback
from dragoman.process.signals import on_signals, start_or_stop

if TYPE_CHECKING:
    from dragoman.access.settings import AuthConfig
    from dragoman.edge.http.app import HttpApp
    from dragoman.edge.settings import HttpConfig
    from dragoman.telemetry.metrics import Metrics

MOST_HEAD_BYTES = 64 * 1024
"""Of a head, and of anything else that is not body: trailers, sizes of chunks and what is written beside them."""
_LINGER = 5.0
"""Seconds in which a client that was refused may go on sending before it notices."""
_AT_ONCE = 0.1
"""Seconds after a request in which its client may say that it was the last one, and not that it leaves."""
_HALF_CLOSED = 1.0
"""Seconds in which such a client is answered: it may be gone all the same."""
_BACKLOG = 2048
_SWEEP_EVERY = 0.5
_LAST_ANSWERS = 2.0
_LAST_REQUESTS = 0.1
"""Seconds for requests that are on their way when the address is given up."""
_UNHOOKS = sys.platform == "linux"
"""Whether shutting down a listening socket frees its address, even if another process has a copy of the descriptor.
Elsewhere it does not, or workers share the socket."""
_MOST_HEADS = 8
_MOST_WAITING = 16
"""Requests on one connection that wait for their turn before no more are read; one packet may still bring many. Bodies
that are large together keep it from being read as well, and a client that leaves from being missed."""


def bind(host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
    """A listening socket. Raises `ValueError` for a port that there is not, and `OSError` for one that is taken.

    Where it is `shared`, others of this user may listen there as well, and the kernel deals connections out to them.
    One that does not listen only keeps the address.
    """
    if not 0 <= port <= 65_535:
        raise ValueError(f"port must be between 0 and 65535, not {port}")
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind(address)
        if listens:
            listening.listen(_BACKLOG)  # At once: until somebody listens, others may bind to the address as well.
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


_TARGET = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_CODING = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")


class _BadHead(Exception):
    """A head that must not be acted upon, and how it is refused."""

    def __init__(self, status: int, phrase: str, reason: str) -> None:
        super().__init__(reason)
        self.refusal = (status, phrase, reason)


def _check_head(target: bytes, version: str, pairs: list[Header]) -> None:
    """Raise `_BadHead` for a target or a transfer coding that is not served."""
    codings = [value for name, value in pairs if name == b"transfer-encoding"]
    if codings:
        _check_codings(b",".join(codings).lower(), version)
    if not target.startswith(b"/") and target != b"*":
        # RFC 9112, 3.2.2: the authority in the target counts, and Host has to be the same.
        found = _TARGET.match(target)
        hosts = [value.lower() for name, value in pairs if name == b"host"]
        if found is None or hosts != [found[1].lower()]:
            raise _BadHead(400, "Bad Request", "The target of the request is not at the host that Host names")


def _check_codings(codings: bytes, version: str) -> None:
    *before, last = [each.strip(b" \t") for each in codings.split(b",")]
    if version != "1.1" or b"chunked" in before or not all(map(_CODING.fullmatch, (*before, last))):
        raise _BadHead(400, "Bad Request", "Transfer-Encoding is malformed")
    if before or last != b"chunked":
        raise _BadHead(501, "Not Implemented", "Of transfer codings only chunked is understood")


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with the times, sizes and ends that it does not watch, and a shorter way for most of it."""

    reading_since: float | None = None
    """When the client began to send what it has not sent all of; None while nothing is expected of it."""
    asked_at = 0.0
    """When the last request was there as a whole."""
    paused_since: float | None = None
    """When the client stopped reading, or when it was left to read the rest."""
    idle_since: float | None = None
    """When its last request was answered; None while there is another."""
    is_in_body = False
    """Whether the head of a request has come, and its end has not."""
    is_finishing = False
    """Whether the next answer is the last on this connection."""
    metrics: Metrics | None = None
    heads: _Heads
    _endpoint: bytes | None = None
    _pairs: list[Header]
    _parts: list[bytes] | None = None
    """The body of a request that may be whole when all is read that there is to read."""
    _overhead = 0
    _is_deaf = False
    _is_last = False
    """Whether an answer has said that the connection ends after it."""
    _objection: _BadHead | None = None
    _answering: Any = None

    def connection_made(self, transport: Any) -> None:
        self.reading_since = self.loop.time()
        self.is_finishing = getattr(self.server_state, "is_finishing", False)
        app: Any = self.app
        self.metrics = getattr(app, "metrics", None)
        if hasattr(app, "take"):
            self._endpoint = app.endpoint.encode()
            self.heads = _Heads(self.server_state)
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]
        self.flow = _Flow(self.transport, self.pipeline)
        # uvicorn would refuse every request of those who are in already, too.
        most, self.limit_concurrency = self.limit_concurrency, None
        if most is not None and len(self.connections) > most:
            self.connections.discard(self)  # While it takes its leave, it is in nobody's place.
            self.refuse(503, "Service Unavailable", "There are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._give_up()

    def data_received(self, data: bytes) -> None:
        if self.metrics is not None:
            self.metrics.received_bytes += len(data)
        if self.reading_since is None and not self._is_busy:
            self.reading_since = self.loop.time()
        room = MOST_HEAD_BYTES - self._overhead
        if len(data) < room and not self._is_deaf and not self.transport.is_closing():
            self._overhead += len(data)
            super().data_received(data)
        else:
            self._receive_in_parts(data)
        if self._parts is not None and not self.transport.is_closing():
            try:
                self._begin_cycle()  # The rest is yet to come, and who sends it may have to be refused before that.
            except _BadHead:
                self.send_400_response("")

    def _receive_in_parts(self, data: bytes) -> None:
        while data and not self._is_deaf and not self.transport.is_closing():
            part, data = data[: MOST_HEAD_BYTES - self._overhead], data[MOST_HEAD_BYTES - self._overhead :]
            self._overhead += len(part)
            super().data_received(part)
            if self._overhead >= MOST_HEAD_BYTES:
                reason = f"The head is longer than {MOST_HEAD_BYTES} bytes"
                self.refuse(431, "Request Header Fields Too Large", reason)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection is kept: who has nothing more to ask may still read what it is answered.

        Who is gone looks the same until something is sent to it, and its calls are to be cancelled; but who has not
        waited at all has hardly given up waiting.
        """
        has_waited = self.loop.time() - self.asked_at > _AT_ONCE
        if self.transport.is_closing() or has_waited or not self._reads_ahead:
            if self.is_in_body or self._overhead:
                self.refuse(400, "Bad Request", "The request has no end")
            else:
                self._leave()
            return False
        self.is_in_body = False
        self.shutdown()  # After the last answer.
        self.loop.call_later(_HALF_CLOSED, self._leave)
        return True

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.is_in_body = False
        self.idle_since = None  # What came before in the same packet may have been answered already.
        if self.reading_since is None:
            self.reading_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._overhead = 0
        # What comes after the body is nothing that anybody on the way has looked at.
        self._pairs, self.headers = self.headers, []
        self._parts = []
        if not (
            self.url == self._endpoint
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
        ):
            self._begin_cycle(expects=self.expect_100_continue)
        self.is_in_body = True  # Not before: a head that is refused here must not be taken for that of an earlier one.

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if self._parts is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self.asked_at = self.loop.time()
        self.reading_since = None
        self._overhead = 0
        self.is_in_body = False
        if self._parts is not None:
            if self._is_taken(b"".join(self._parts)):
                return
            self._begin_cycle()
        if not self.parser.should_keep_alive():
            self.cycle.keep_alive = False  # Even if only a trailer says so: the parser reads nothing after that.
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.idle_since = (
                self.loop.time()
            )  # It was answered before it was read, and what came since has ended that.

    def _is_taken(self, body: bytes) -> bool:
        """Give the application the request; False: it does not take it like this."""
        app: Any = self.app
        before = self.cycle
        post: Any = _Post(self, self._pairs, self.parser.should_keep_alive() and not self.is_finishing)
        self.cycle = self._answering = post
        if app.take(post, self._pairs, body):
            self._parts = None
            return True
        self.cycle = self._answering = before
        return False

    def _begin_cycle(self, *, expects: bool = False) -> None:
        """Have uvicorn do what it would have done with the head when that was complete, and with the body so far.

        `expects`: the head says that the client waits to be told to go on. A trailer may say so too, and is not heard.
        """
        self._check_head()
        parts, self._parts = self._parts or (), None
        url = self.url
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += self._pairs
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()  # Who waits for its turn does not keep us from seeing that the client leaves.
        self.headers = []
        for part in parts:
            super().on_body(part)

    def _unset_keepalive_if_required(self) -> None:
        self.idle_since = None

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        if self.transport.is_closing():
            return
        if self._is_last:
            self.transport.close()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.reading_since is not None:
            self.reading_since = self.loop.time()  # Until now nobody waited for what was sent ahead.
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.reading_since is None:
            self.idle_since = self.loop.time()  # Whoever sweeps looks at it: a timer for every request is too many.

    def finish(self) -> None:
        """Let the next answer be the last on this connection; requests that wait for their turn are answered first."""
        self.is_finishing = True
        if isinstance(self._answering, _Post) and not self.pipeline:
            self._answering.keep_alive = False

    def last(self, head: bytes) -> bytes:
        """A head that says `Connection: close` if its answer is the last on this connection."""
        if self.pipeline or head.startswith(b"HTTP/1.1 1") or b"\r\nconnection: close\r\n" in head:
            return head
        self._is_last = True
        status, _, rest = head.partition(b"\r\n")
        return b"%b\r\nconnection: close\r\n%b" % (status, rest)

    @property
    def descriptor(self) -> int:
        """Of the connection; -1 when it is closed."""
        found: int = self.transport.get_extra_info("socket").fileno()
        return found

    def pause_writing(self) -> None:
        self.paused_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self.paused_since = None
        super().resume_writing()

    def _unsupported_upgrade_warning(self) -> None:
        # The parser takes what follows for the other protocol, and would read the next packet as a request.
        self._is_deaf = True
        self.cycle.keep_alive = False

    def _check_head(self) -> None:
        try:
            _check_head(self.url, self.parser.get_http_version(), self._pairs)
        except _BadHead as error:
            self._objection = error
            raise  # Within the parser's callbacks this ends the parsing, and it is refused then.

    def send_400_response(self, msg: str) -> None:
        if self.is_in_body and self._parts is not None:  # The parser objects to a head that nobody has looked at yet.
            with contextlib.suppress(_BadHead):
                self._check_head()
        self.refuse(*((400, "Bad Request", msg) if self._objection is None else self._objection.refusal))

    def refuse(self, status: int, phrase: str, reason: str) -> None:
        """Answer on the connection itself, unless another answer would be taken for this one, and close it."""
        if self.transport.is_closing():
            return
        if self.metrics is not None:
            self.metrics.refused_request(status)
        is_answered = self.is_in_body and self._parts is None and self.cycle.response_started
        if not (is_answered or self._reads_ahead):
            error = InvalidRequest(reason) if status < 500 else InternalError(reason)
            refuse = getattr(self.app, "refuse", unknown_refusal)
            self.transport.write(_last_words(status, phrase, refuse(status, error)))
        self.transport.linger()  # type: ignore[attr-defined]
        self._give_up()

    def is_late(self, now: float, patience: float) -> bool:
        """Whether the client takes too long to send what is answered next, and it is not us who did not read it."""
        since = self.reading_since
        return since is not None and now - since > patience and not (self.flow.read_paused or self._reads_ahead)

    @property
    def _is_busy(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    @property
    def _reads_ahead(self) -> bool:
        """Whether what is read now has to wait until an earlier request is answered."""
        return self._is_busy and not (self.is_in_body and self.cycle is self._answering)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def go_on(self, post: _Post, pairs: list[Header], app: Application) -> None:
        """Have an application answer what was taken as it is."""
        http_app: Any = self.app
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": "POST",
            "root_path": self.root_path,
            "path": http_app.endpoint,
            "raw_path": self._endpoint,
            "query_string": b"",
            "headers": pairs,
            "state": self.app_state.copy(),
        }
        cycle = RequestResponseCycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            expect_100_continue=False,
            keep_alive=post.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.more_body, cycle.disconnected = False, post.disconnected
        current: Any = self.cycle
        if current is post:
            self.cycle = cycle
        self._start_asgi_task(cycle, partial(http_app.run, app))

    def _leave(self) -> None:
        """Close, and give up now: what nobody reads may keep the connection from being lost for long."""
        self.transport.close()
        self._give_up()

    def _give_up(self) -> None:
        """Tell whoever answers that nobody is there: uvicorn tells the last of several requests only."""
        if self._is_busy:
            self._answering.disconnected = True
            self._answering.message_event.set()


class _Post:
    """A request that came whole, and its answer. To the protocol it is a cycle, so that the next one waits for it."""

    on_gone: Callable[[], object] | None = None
    disconnected = response_started = response_complete = False

    def __init__(self, protocol: _Protocol, pairs: list[Header], keep_alive: bool) -> None:
        self._protocol = protocol
        self._pairs = pairs
        self.keep_alive = keep_alive

    def answer(self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)) -> None:
        if self.response_complete or self.disconnected:
            return
        protocol = self._protocol
        transport: Any = protocol.transport
        head = protocol.heads.get(status, headers)  # First: what cannot be sent leaves room for another answer.
        self.response_started = self.response_complete = True
        if self.keep_alive:
            transport.send(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        else:
            transport.send(b"%b%d\r\nconnection: close\r\n\r\n%b" % (head, len(body), body))
            transport.close()
        protocol.on_response_complete()

    def go_on(self, app: Application) -> None:
        if not self.response_complete:
            self.response_complete = True
            self._protocol.go_on(self, self._pairs, app)

    def watch(self) -> None:
        """Who keeps the connection knows, and says so; but not while a request that waits keeps it from being read."""
        if not self._protocol.transport.is_closing():
            self._protocol.flow.resume_reading()

    # As the protocol sees it.

    @property
    def message_event(self) -> _Post:
        return self

    def set(self) -> None:
        """Something has happened; the only thing that matters is that the client is gone."""
        if self.disconnected and self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()


class _Heads:
    """Heads of answers, up to the number that their content-length is. Most are like the one before but for that."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._defaults: list[Header] | None = None
        self._known: dict[tuple[int, tuple[Header, ...]], bytes] = {}

    def get(self, status: int, headers: tuple[Header, ...]) -> bytes:
        defaults = self._state.default_headers
        if defaults is not self._defaults or len(self._known) > _MOST_HEADS:
            self._defaults = defaults  # The date is one of them: uvicorn makes new ones every second.
            self._known.clear()
        head = self._known.get((status, headers))
        if head is None:
            lines = [b"%b: %b\r\n" % header for header in (*defaults, *headers)]
            head = b"%b%bcontent-length: " % (STATUS_LINE[status], b"".join(lines))
            if head.count(b"\n") != len(lines) + 1:
                raise ValueError("a header has more than one line")
            self._known[status, headers] = head
        return head


class _Flow(FlowControl):
    """uvicorn's, which reads on with every answer: who asks in large packets would be remembered without end."""

    def __init__(self, transport: asyncio.Transport, waiting: Collection[tuple[RequestResponseCycle, Any]]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        ahead = self._waiting
        if not ahead or (len(ahead) <= _MOST_WAITING and sum(len(each.body) for each, _ in ahead) <= HIGH_WATER_LIMIT):
            super().resume_reading()


class _Transport:
    """Sends the head of a response that is not streamed together with its body, as one packet."""

    def __init__(self, transport: asyncio.Transport, protocol: _Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._loop = protocol.loop
        self._head = b""
        self._lingers = False
        for name in ("get_extra_info", "pause_reading", "resume_reading", "set_protocol", "abort"):
            setattr(self, name, getattr(transport, name))

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._lingers:
            return
        if self._protocol.is_finishing and not self._head and data.startswith(b"HTTP/1.1 "):
            data = self._protocol.last(data)
        if not self._head and data.startswith(b"HTTP/1.1 ") and b"\r\ncontent-length: " in data:
            self._head = data
        else:
            self.send(self._head + data)

    def flush(self) -> None:
        """The response is complete, and may have had no body."""
        if self._head:
            self.send(self._head)

    def send(self, data: bytes) -> None:
        """Now, and whole."""
        self._head = b""
        if not self._transport.is_closing():
            if self._protocol.metrics is not None:
                self._protocol.metrics.sent_bytes += len(data)
            self._transport.write(data)

    def close(self) -> None:
        if self._protocol.is_in_body and not self.is_closing():
            self.linger()
        else:
            self._close()

    def linger(self) -> None:
        """Close after the client has stopped sending: closed with bytes unread, a socket is reset, and what was written
        last may never be seen."""
        self.flush()
        if self._transport.can_write_eof():
            self._lingers = True
            self._transport.write_eof()
            self._protocol.pipeline.clear()  # Nobody is answered any more, and what is still sent has to be read.
            self._protocol.flow.resume_reading()
            self._loop.call_later(_LINGER, self._close)
        else:
            self._close()

    def _close(self) -> None:
        self.flush()
        if self._protocol.paused_since is None:
            self._protocol.paused_since = self._loop.time()  # The rest has to be read in time as well.
        self._transport.close()


def _last_words(status: int, phrase: str, body: bytes) -> bytes:
    later = "retry-after: 1\r\n" if status == 503 else ""
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n{later}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class _State(ServerState):
    """What the connections of a server share."""

    is_finishing = False


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
                limit_concurrency=settings.max_connections,
                timeout_graceful_shutdown=int(_LAST_ANSWERS),
                backlog=_BACKLOG,
            )
        )
        self.server_state: _State = _State()
        self._keep_alive = settings.keep_alive_ms / 1000
        self._read_timeout = settings.read_timeout_ms / 1000
        self._write_timeout = settings.write_timeout_ms / 1000

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: the process has a way of its own to stop."""
        yield

    @property
    def descriptors(self) -> list[int]:
        """Of the connections there are."""
        return [each.descriptor for each in self.server_state.connections if isinstance(each, _Protocol)]

    def finish(self) -> None:
        """From now on, let each answer be the last on its connection."""
        self.server_state.is_finishing = True
        for connection in self.server_state.connections:
            if isinstance(connection, _Protocol):
                connection.finish()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Give up the address, answer what has been asked by then, and close all connections."""
        self.finish()
        copies = [each.dup() for each in sockets or ()]  # The loop closes the sockets themselves.
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for copy in copies:
            with copy:
                # Closing the socket would reset the connections that wait to be accepted.
                waiting = _accept_all(copy)
                if _UNHOOKS:
                    copy.shutdown(socket.SHUT_RDWR)
            for each in waiting:
                with contextlib.suppress(OSError):  # The client has left.
                    await loop.connect_accepted_socket(self._protocol, each)
        if self.server_state.connections:
            await asyncio.sleep(_LAST_REQUESTS)
        await super().shutdown(sockets)

    def _protocol(self) -> _Protocol:
        return _Protocol(self.config, self.server_state, self.lifespan.state)

    async def watch(self) -> None:
        """Drop those who are too slow, for as long as it runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            now = loop.time()
            for connection in tuple(self.server_state.connections):
                if not isinstance(connection, _Protocol):
                    continue
                paused, idle = connection.paused_since, connection.idle_since
                if paused is not None and now - paused > self._write_timeout:
                    connection.transport.abort()  # First: it may be late or idle as well, and on its way out for that.
                elif connection.is_late(now, self._read_timeout):
                    connection.refuse(408, "Request Timeout", "The request took too long to arrive")
                elif idle is not None and now - idle > self._keep_alive:
                    connection.timeout_keep_alive_handler()


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted at a socket that does not block."""
    accepted: list[socket.socket] = []
    with contextlib.suppress(OSError):  # There are no more.
        while len(accepted) < _BACKLOG:
            accepted.append(listening.accept()[0])
            accepted[-1].setblocking(False)
    return accepted


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
    stopping = asyncio.Event()
    stopper = on_signals(stopping.set, shutdown_timeout + 2 * _LAST_ANSWERS)
    servers = ((HttpServer(app, settings), listening), *beside)

    def drop_all() -> None:
        drop(*(each.fileno() for _, each in servers))
        for server, _ in servers:
            drop(*server.descriptors)

    stop_dropping = in_forked_children(drop_all)
    if until is not None:
        asyncio.ensure_future(until).add_done_callback(lambda _: stopper.stop())
    serving: list[asyncio.Task[None]] = []
    watching: list[asyncio.Task[None]] = []
    try:
        if not await start_or_stop(app.start(), stopping):
            return await app.stop(shutdown_timeout)
        on_started()
        serving += [asyncio.create_task(server.serve([each])) for server, each in servers]
        watching += [asyncio.create_task(server.watch()) for server, _ in servers]
        asked = asyncio.create_task(stopping.wait())
        await asyncio.wait((asked, *serving), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        for server, _ in servers:
            server.finish()
        abandoned = await app.stop(shutdown_timeout)
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*serving)
        return abandoned
    finally:
        for task in (*serving, *watching):
            task.cancel()
        for _, each in servers:
            each.close()
        stopper.restore()
        stop_dropping()


def check_address(host: str, auth: AuthConfig) -> None:
    """Raise `ConfigError` for an address that others can reach while anybody may call."""
    if not (is_loopback(host) or auth.allow_unauthenticated or auth.callers or auth.takes_jwts):
        reason = f"{host} can be reached from other machines, and nobody is authenticated"
        raise ConfigError([("http.host", f"{reason}; set up auth, or say --allow-unauthenticated")])


def root_of(http: HttpConfig, listening: socket.socket) -> str:
    """The address that clients use, without a path."""
    host = f"[{http.host}]" if ":" in http.host else http.host
    return f"http://{host}:{listening.getsockname()[1]}"

"""One client: its session, its calls under way, and the lane that answers most of what it asks.

The handshake, `ping`, `server/discover`, `tools/list`, `tools/call` and requests about tasks are answered here, in
microseconds. Every other method goes to the kernel, which is the official SDK.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Raw

from dragoman.access.callers import LOCAL, Caller
from dragoman.calls.call import Call, Dialect, Outcome, Withdrawal
from dragoman.calls.intake import Intake
from dragoman.calls.origin import Origin
from dragoman.edge.clients import HandshakeClient, ModernClient, Questions
from dragoman.edge.listing import Listing
from dragoman.edge.peer import Kernel, id_in_use, log_refusal
from dragoman.errors import InternalError, ProtocolError
from dragoman.ids import Ids
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, Id, encode_result
from dragoman.protocol.results import INTERIM, ToolResult
from dragoman.protocol.session import (
    Cancel,
    Era,
    Identity,
    Initialized,
    Refusal,
    Reply,
    Request,
    Session,
    State,
    ToolCall,
    correlation_id_in,
)
from dragoman.protocol.shape import Shape
from dragoman.protocol.versions import TASK_METHODS
from dragoman.replies.encoding import meta_of
from dragoman.telemetry.log import Logger, exception_facts
from dragoman.tools.catalogue import Catalogue

TransportType: TypeAlias = Literal["stdio", "sse", "http"]
_MOST_KERNEL_REQUESTS = 1024
_DRAIN_POLL = 0.01
_CLOSED = State.CLOSED


AnswerTask: TypeAlias = Callable[[Caller, Request], Awaitable[Mapping[str, Any]]]


class Wire(Protocol):
    """Where a connection's lines go."""

    type: TransportType

    def send(self, line: bytes, *, more: bool) -> None:
        """Queue a line; with `more`, others are about to follow and may share its trip."""
        ...

    def flush(self) -> None:
        """Send what is queued."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the peer is so far behind that only answers should be sent."""
        ...


@dataclass(frozen=True)
class Services:
    """What every connection of a server shares."""

    intake: Intake
    catalogue: Catalogue
    listing: Listing
    identity: Identity
    dialect: Dialect[ToolResult]
    kernel: Kernel
    ids: Ids
    logger: Logger
    max_message_bytes: int
    shape: Shape
    answer_task: AnswerTask
    """Answers `tasks/get`, `tasks/update` and `tasks/cancel`; raises `ProtocolError`."""


class Connection:
    """Feeds a session with bytes and does what its events ask for. Lives on the event loop."""

    def __init__(self, services: Services, wire: Wire, caller: Caller = LOCAL) -> None:
        self.correlation_id = services.ids.connection_correlation_id()
        self.wire = wire
        self.caller = caller
        self.logger = services.logger.child({"connectionCorrelationId": self.correlation_id})
        self.session = Session(services.identity, self.correlation_id, services.max_message_bytes, services.shape)
        self._services = services
        self._calls: dict[Id, Call] = {}
        self._withdrawn: set[Call] = set()
        self._receiving = False
        self._kernel_requests: dict[Id, asyncio.Task[None]] = {}
        self._questions = Questions(self._send)
        self.client = HandshakeClient(self._questions, self._tell)
        self._origin = Origin(caller, wire.type, self.client)
        """Of the calls of the handshake era."""
        # Bound once: these are needed for every call.
        self._make = services.intake.make
        self._submit = services.intake.submit
        self._render = services.dialect.render
        self.transport = wire.type
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._act: dict[type, Callable[[Any], None]] = {
            Reply: self._reply,
            Refusal: self._refuse,
            Request: self._request,
            Cancel: self._cancel,
            Initialized: self._initialized,
            Answer: self._questions.answered,
        }

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def is_listening(self) -> bool:
        """Whether it can be told things that it did not ask about: those of the modern era ask for a stream."""
        return self.session.era is Era.HANDSHAKE and self.session.state is State.RUNNING

    @property
    def listener(self) -> Connection:
        return self

    def origin_for(self, meta: Mapping[str, Any], *, modern: bool) -> Origin:
        """Where the call comes from that a request with this `_meta` asks for."""
        return Origin(self.caller, self.transport, ModernClient(meta, self._tell), True) if modern else self._origin

    def why_cancelled(self) -> Withdrawal:
        """Why a request of its was cancelled."""
        return "disconnect" if self.session.state is _CLOSED else "client"

    @property
    def log_level(self) -> str | None:
        """The least important log messages that a client of the handshake era wants."""
        return self.client.log_level

    @log_level.setter
    def log_level(self, level: str | None) -> None:
        self.client.log_level = level

    @property
    def is_idle(self) -> bool:
        """Whether everything that was asked has been answered."""
        return not self._calls and not self._kernel_requests

    def receive(self, data: bytes) -> None:
        """Take in what the peer sent."""
        self._receiving = True
        for event in self.session.receive(data):
            try:
                if type(event) is ToolCall:
                    self._tool_call(event)
                else:
                    self._act[type(event)](event)
            except Exception as error:  # The boundary: a defect of ours costs one message, not the connection.
                self._failed(event, error)
        self._receiving = False
        self.wire.flush()

    def disconnect(self) -> None:
        """The peer is gone: write nothing more, and ask what is under way to stop."""
        if self.session.state is State.CLOSED:
            return
        self.session.close()
        for call in (*self._calls.values(), *self._withdrawn):
            call.withdraw("disconnect")
        self._questions.close()
        for task in self._kernel_requests.values():
            task.cancel()
        self._kernel_requests.clear()  # One that had not begun will never say that it has ended.
        self._calls.clear()
        self.logger.debug("connection closed")

    async def drained(self) -> None:
        """Wait while the client is far behind with reading."""
        while self.wire.is_full and self.session.state is not State.CLOSED:  # noqa: ASYNC110 -- a pipe tells nobody.
            await asyncio.sleep(_DRAIN_POLL)

    async def finish_requests(self, timeout: float) -> None:
        """Wait a little for what the kernel still has to say."""
        if self._kernel_requests:
            await asyncio.wait(self._kernel_requests.values(), timeout=timeout)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, if the peer is there to get it."""
        if self.session.state is not State.CLOSED:
            self._send(jsonrpc.encode_notification(method, params))

    def _tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a call's own news, from any thread. When the peer does not keep up, older news is worth nothing."""
        line = jsonrpc.encode_notification(method, params)
        if threading.get_ident() == self._thread:
            self._send_news(line)
        else:
            self._loop.call_soon_threadsafe(self._send_news, line)

    def _send_news(self, line: bytes) -> None:
        if self.session.state is not _CLOSED and not self.wire.is_full:
            self._send(line)

    def _send(self, line: bytes) -> None:
        self.wire.send(line, more=self._receiving or bool(self._calls))

    def _reply(self, reply: Reply) -> None:
        self._send(reply.line)

    def _initialized(self, event: Initialized) -> None:
        assert self.session.client is not None
        self.client.capabilities = self.session.client["capabilities"]
        self._origin = Origin(self.caller, self.transport, self.client, protocol_version=self.session.version)
        self.logger.debug("connection initialized", {"protocolVersion": self.session.version})

    def _failed(self, event: Any, error: Exception) -> None:
        meta: Mapping[str, Any] = event.meta if isinstance(event, ToolCall | Request) else {}
        self.logger.error(
            "message failed",
            {
                "correlationId": correlation_id_in(meta) or self.correlation_id,
                **exception_facts(error, InternalError.code),
            },
        )
        if isinstance(event, ToolCall | Request) and self.session.state is not _CLOSED:
            self._refuse(self.session.refuse(InternalError("Internal error"), event.id, meta))

    def _refuse(self, refusal: Refusal) -> None:
        log_refusal(self.logger, refusal)
        self._send(refusal.line)

    def _tool_call(self, event: ToolCall) -> None:
        request_id = event.id
        if request_id in self._calls or request_id in self._kernel_requests:
            self._refuse(self.session.refuse(id_in_use(), request_id, event.meta))
            return
        if event.modern:
            call = self._make(event, self.origin_for(event.meta, modern=True), self._answer_modern)
        else:
            call = self._make(event, self._origin, self._answer)
        self._calls[request_id] = call
        self._submit(call)

    def _answer(self, call: Call, outcome: Outcome, modern: bool = False) -> None:
        request_id: Any = call.request_id
        self._calls.pop(request_id, None)
        if self.session.state is _CLOSED:
            return
        if outcome.error is not None and isinstance(outcome.error, ProtocolError):
            line = jsonrpc.encode_error(outcome.error, request_id, call.correlation_id)
        elif not modern:
            line = encode_result(request_id, self._render(call, outcome))
        elif type(outcome.value) in INTERIM:
            line = self.session.interim(request_id, outcome.value, meta_of(call))
        else:
            line = self.session.tool_result(request_id, self._render(call, outcome))
        self.wire.send(line, more=self._receiving or bool(self._calls))

    def _answer_modern(self, call: Call, outcome: Outcome) -> None:
        self._answer(call, outcome, modern=True)

    def _cancel(self, event: Cancel) -> None:
        call = self._calls.pop(event.id, None)
        if call is not None:
            call.withdraw("client")
            self._withdrawn.add(call)
            call.undo.append(self._withdrawn.discard)  # It is under way until its handler has ended.
            self.logger.info(
                "call cancelled by its client",
                {"runId": call.run_id, "correlationId": call.correlation_id, "reason": (event.reason or "")[:200]},
            )
        task = self._kernel_requests.pop(event.id, None)
        if task is not None:
            task.cancel()

    def _request(self, event: Request) -> None:
        listing = self._services.listing
        try:
            if event.id in self._calls or event.id in self._kernel_requests:
                raise id_in_use()
            if event.method == "tools/list":
                tools = listing.encoded_tools(event.params, modern=event.modern, caller=self.caller)
                self._send(jsonrpc.encode_result(event.id, Raw(tools)))
            elif event.method == "ping":
                self._send(self.session.result(event.id, {}, modern=event.modern))
            elif event.method == "server/discover":
                self._send(self.session.result(event.id, listing.discovery(), modern=True))
            else:
                if len(self._kernel_requests) >= _MOST_KERNEL_REQUESTS:
                    raise InternalError("Too many requests under way")
                self._kernel_requests[event.id] = self._loop.create_task(self._hand_over(event))
        except ProtocolError as error:
            self._refuse(self.session.refuse(error, event.id, event.meta))

    async def _hand_over(self, event: Request) -> None:
        try:
            is_about_task = event.modern and event.method in TASK_METHODS
            if is_about_task:
                result = await self._services.answer_task(self.caller, event)
            else:
                result = await self._services.kernel.handle(self, event)
            if self.session.state is not _CLOSED:
                self._send(self.session.result(event.id, result, modern=is_about_task))
        except ProtocolError as error:
            if self.session.state is not _CLOSED:
                self._refuse(self.session.refuse(error, event.id, event.meta))
        except Exception as error:
            self._failed(event, error)
        finally:
            # Once cancelled, the id may belong to another request.
            if self._kernel_requests.get(event.id) is asyncio.current_task():
                del self._kernel_requests[event.id]

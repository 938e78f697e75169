"""The official SDK as the kernel: it serves the methods that the lane does not answer itself.

This is the only module that touches the SDK, its internals included; they are those of mcp 2.3. It takes about a second
to import, so it is imported when the first request needs it, on a thread, while the lane goes on answering.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.access.callers import Caller
from dragoman.calls.call import Withdrawal
from dragoman.calls.intake import progress_params
from dragoman.calls.origin import Origin
from dragoman.calls.threads import Threads
from dragoman.edge.listing import Listing
from dragoman.edge.peer import Peer
from dragoman.edge.requests import Asked, Handle
from dragoman.errors import ClientCannotBeAsked, ClientRefused, InternalError, MethodNotFound, ProtocolError
from dragoman.protocol.results import ToolResult
from dragoman.protocol.session import Identity, Request
from dragoman.protocol.versions import VERSION_KEY

if TYPE_CHECKING:
    from mcp.server.connection import Connection as SdkConnection
    from mcp.server.lowlevel import Server
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

CALLER = "dragoman.caller"
TRANSPORT = "dragoman.transport"
"""What an HTTP request's scope says about whose it is, and how it came."""
_LISTENER = "dragoman.listener"
"""Where a session's state keeps whoever is at its other end."""
_MOST_QUEUED = 256
_MOST_QUEUED_BYTES = 1024 * 1024
"""What a slow client may be behind with, on one stream; further notifications are dropped until it has caught up."""
_LAST_WORDS = 1.0
"""Seconds, at most, between the end of a call and that of its stream."""

_channel: ContextVar[_Channel | None] = ContextVar("channel", default=None)
"""The request that this task serves: the SDK's handlers are not told. None: one of an HTTP session."""


def _served() -> Peer | None:
    """Whose request this task serves; None: somebody with an HTTP session."""
    channel = _channel.get()
    return None if channel is None else channel.peer


class SdkError(ProtocolError):
    """An error in the SDK's own words."""

    def __init__(self, code: int, message: str, data: Any) -> None:
        super().__init__(message, data if isinstance(data, dict) else None)
        self.code = code


class SdkKernel:
    """A low-level SDK server that shares the runtime's tools and pipeline."""

    def __init__(
        self,
        identity: Identity,
        listing: Listing,
        handlers: Mapping[str, Handle],
        may_read: Callable[[Caller, str], bool],
    ) -> None:
        """`handlers` serve calls of tools and what else is offered; they have the names that the SDK gives them.

        `may_read` tells whether a caller may read what is at a URI.
        """
        self._may_read = may_read
        self.identity = identity
        self._listing = listing
        self._handlers = handlers
        self._threads = Threads()
        self._exit = AsyncExitStack()
        self._loading: asyncio.Task[None] | None = None
        self._server: Server[Any] | None = None
        self._lifespan: Any = None
        self._bus: InMemorySubscriptionBus | None = None
        self._listen: ListenHandler | None = None

    @property
    def server(self) -> Server[Any]:
        """The SDK's server, once it is loaded."""
        assert self._server is not None
        return self._server

    async def handle(self, peer: Peer, request: Request) -> dict[str, Any]:
        """Serve one request as the era it came in has it; raises `ProtocolError`."""
        await self.load()
        return await self.serve(peer, request)

    async def load(self) -> None:
        """Import the SDK and build the server, once."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        try:
            await asyncio.shield(self._loading)
        except Exception:
            self._loading = None  # The next request may have better luck.
            raise

    async def list_changed(self, kind: str) -> None:
        """Tell the clients of the modern era that listen for it; `kind` is `tools`, `resources` or `prompts`."""
        await self._publish(f"{kind.capitalize()}ListChanged")

    async def resource_updated(self, uri: str) -> None:
        """Tell the clients of the modern era that listen for what is at `uri`."""
        await self._publish("ResourceUpdated", uri)

    async def _publish(self, event: str, *facts: str) -> None:
        if self._bus is not None:
            from mcp.shared import subscriptions

            await self._bus.publish(getattr(subscriptions, event)(*facts))

    def end_streams(self) -> None:
        """Let every stream that is open end with its last word."""
        if self._listen is not None:
            self._listen.close()

    async def close(self) -> None:
        """Leave the SDK's server."""
        self._threads.stop()
        await self._exit.aclose()

    async def _load(self) -> None:
        await self._threads.run(_import_sdk)
        from mcp.server.lowlevel import NotificationOptions, Server
        from mcp.server.subscriptions import ListenHandler
        from mcp_types import SetLevelRequestParams

        self._bus = _bus_class(self._may_read)()
        self._listen = ListenHandler(self._bus)
        info = self.identity.server_info
        # The SDK takes results as plain dictionaries too, which its annotations do not say.
        on_list_tools: Any = self._on_list_tools
        on_listen: Any = self._on_listen
        handlers: dict[str, Any] = {name: _serving(handle) for name, handle in self._handlers.items()}
        server: Server[Any] = Server(
            info["name"],
            version=info["version"],
            instructions=self.identity.instructions,
            on_list_tools=on_list_tools,
            on_subscriptions_listen=on_listen,
            **handlers,
        )
        # A call has a span of its own where spans are wanted, whichever way it came: the SDK's would be a second one.
        server.middleware.clear()
        # Every list may change, and clients are told; the SDK would say that none does.
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        server.create_initialization_options = partial(server.create_initialization_options, changing)  # type: ignore[method-assign]
        # Not with the others: the SDK would warn that the modern era has it no more.
        on_set_level: Any = self._on_set_level
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, on_set_level)
        self._lifespan = await self._exit.enter_async_context(server.lifespan(server))
        self._server = server

    async def serve(self, peer: Peer, request: Request) -> dict[str, Any]:
        """Serve one request, with the SDK loaded."""
        from mcp.server.connection import Connection as SdkConnection
        from mcp.server.runner import ServerRunner, aclose_shielded, serve_one
        from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request

        assert self._server is not None
        channel = _Channel(peer, request)
        _channel.set(channel)
        try:
            if request.modern:
                route = classify_inbound_request({"method": request.method, "params": request.params})
                if isinstance(route, InboundLadderRejection):
                    raise SdkError(route.code, route.message, route.data)
                connection = SdkConnection.from_envelope(
                    route.protocol_version, route.client_info, route.client_capabilities, outbound=channel
                )
                return await serve_one(
                    self._server,
                    channel,
                    request.method,
                    request.params,
                    connection=connection,
                    lifespan_state=self._lifespan,
                )
            assert peer.session is not None
            connection = SdkConnection.for_loop(channel)
            connection.client_params = _client_params(peer.session.client)
            connection.protocol_version = peer.session.version or connection.protocol_version
            connection.initialized.set()
            try:
                runner = ServerRunner(self._server, connection, self._lifespan)
                return await runner.on_request(channel, request.method, request.params)
            finally:
                await aclose_shielded(connection)
        except ProtocolError:
            raise
        except Exception as error:
            worded = protocol_error_of(error, request.method, modern=request.modern)
            if worded is None:
                raise  # The connection logs it under the request's ids, and answers.
            raise worded from None
        finally:
            channel.close()

    async def _on_list_tools(self, context: Any, params: Any) -> dict[str, Any]:
        caller = _caller_in(context)
        listed = self._listing.tools({"cursor": params.cursor}, modern=_is_modern(context), caller=caller)
        return _plain(listed, context)

    async def _on_listen(self, context: Any, params: Any) -> Any:
        """As the SDK, but of the resources that the client names only those count that it may read."""
        assert self._listen is not None
        caller, wanted = _caller_in(context), params.notifications
        if caller.scopes is not None and wanted.resource_subscriptions:
            allowed = [uri for uri in wanted.resource_subscriptions if self._may_read(caller, str(uri))]
            wanted = wanted.model_copy(update={"resource_subscriptions": allowed})
            params = params.model_copy(update={"notifications": wanted})
        return await self._listen(context, params)

    async def _on_set_level(self, context: Any, params: Any) -> dict[str, Any]:
        peer = _served() or SessionClient(context)
        peer.listener.log_level = params.level
        return {}


def protocol_error_of(error: Exception, method: str, *, modern: bool) -> ProtocolError | None:
    """The error that answers a request which raised `error`; None for a defect, whose text is only for the log."""
    from mcp.server.runner import modern_error_data
    from mcp.shared.exceptions import MCPError
    from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data

    if isinstance(error, ProtocolError):
        return error
    if isinstance(error, MCPError):
        if error.code == MethodNotFound.code:
            return MethodNotFound(f"Method not found: {method}")
        return SdkError(error.code, error.message, error.data)
    data = modern_error_data(error) if modern else handler_exception_to_error_data(error)
    if data is None or data.code == InternalError.code:
        return None
    return SdkError(data.code, data.message, data.data)


def _caller_in(context: Any) -> Caller:
    served = _served()
    caller: Caller = context.request.scope[CALLER] if served is None else served.caller
    return caller


def _bus_class(may_read: Callable[[Caller, str], bool]) -> Any:
    """The SDK's bus, which tells nobody of a resource that they may not read; here, as the SDK is imported late."""
    from mcp.server.subscriptions import InMemorySubscriptionBus
    from mcp.shared.subscriptions import ResourceUpdated

    class Bus(InMemorySubscriptionBus):
        def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
            served = _served()
            if served is None or served.caller.scopes is None:
                return super().subscribe(listener)
            caller = served.caller

            def tell(event: Any) -> None:
                # Again: the resource may have been registered after the client began to listen.
                if not isinstance(event, ResourceUpdated) or may_read(caller, event.uri):
                    listener(event)

            return super().subscribe(tell)

    return Bus


def _serving(handle: Handle) -> Any:
    """A handler as the SDK calls it."""

    async def serve(context: Any, params: Any) -> dict[str, Any]:
        peer = _served() or SessionClient(context)
        asked = Asked(peer, params, context.params or {}, _is_modern(context), context.request_id)
        try:
            return _plain(await handle(asked), context)
        except asyncio.CancelledError:
            if isinstance(peer, SessionClient):
                await peer.questions_withdrawn()
            raise
        finally:
            if isinstance(peer, SessionClient):
                await peer.told()

    return serve


def _plain(result: dict[str, Any] | ToolResult, context: Any) -> dict[str, Any]:
    """A result as the SDK takes it: nothing in it is encoded yet, and in the modern era it says that it is complete."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return {"resultType": "complete", **plain} if _is_modern(context) else plain


def _client_params(client: Mapping[str, Any] | None) -> Any:
    from mcp_types import InitializeRequestParams
    from pydantic import ValidationError

    try:
        return InitializeRequestParams.model_validate(client, by_name=False)
    except ValidationError:  # The lane looks at less than the SDK does, and let the client in.
        assert client is not None
        info = {key: client["clientInfo"][key] for key in ("name", "version")}
        version = client["protocolVersion"]
        known = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        return InitializeRequestParams.model_validate(known, by_name=False)


def _is_modern(context: Any) -> bool:
    return VERSION_KEY in ((context.params or {}).get("_meta") or {})


def _import_sdk() -> None:
    import mcp.server.lowlevel
    import mcp.server.runner
    import mcp.server.subscriptions  # noqa: F401


class _Channel:
    """The SDK's view of one request: its ids, and the way back to the client for notifications."""

    def __init__(self, peer: Peer, request: Request) -> None:
        import anyio
        from mcp.shared.transport_context import TransportContext

        self.peer: Peer | None = peer
        self._token = request.meta.get("progressToken")
        self.request_id = request.id
        self.transport = TransportContext(kind=peer.transport, can_send_request=False)
        self.can_send_request = False
        self.message_metadata = None
        self.cancel_requested = anyio.Event()

    def close(self) -> None:
        """The request has been served. The SDK's parts lead to each other, and timers to this task's variables."""
        self.peer = None

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        from mcp.shared.exceptions import NoBackChannelError

        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        if self.peer is not None:
            await self.peer.drained()
        if self.peer is not None:
            self.peer.notify(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._token is not None and self.peer is not None:
            self.peer.notify("notifications/progress", progress_params(self._token, progress, total, message))


class SessionListener:
    """The client of an HTTP session, beyond any one request."""

    def __init__(self, connection: SdkConnection) -> None:
        self._connection = connection
        self._telling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.log_level: str | None = "info"

    @property
    def is_listening(self) -> bool:
        return self._connection.initialized.is_set()

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """On the session's own stream, or kept for when the client opens one; once, while it is still to be read."""
        said = method, str(params)
        if said not in self._telling and len(self._telling) < _MOST_QUEUED:
            telling = asyncio.get_running_loop().create_task(self._connection.notify(method, params))
            self._telling[said] = telling
            telling.add_done_callback(lambda _: self._telling.pop(said, None))


def listener_of(connection: SdkConnection) -> SessionListener:
    """The one listener that a session has."""
    found: SessionListener | None = connection.state.get(_LISTENER)
    if found is None:
        found = connection.state[_LISTENER] = SessionListener(connection)
    return found


class SessionClient:
    """The client of an HTTP session, during one call: the SDK carries what it is told and asked."""

    session = None

    def __init__(self, context: Any) -> None:
        self._context = context
        self._session = context.session
        scope = context.request.scope
        self.caller: Caller = scope[CALLER]
        self.transport: str = scope[TRANSPORT]
        self.can_be_asked: bool = context.session.can_send_request
        self.listener = listener_of(context.session._connection)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._queue: list[tuple[str, Mapping[str, Any] | None, int]] = []
        self._queued_bytes = 0
        self._telling: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[Any]] = set()

    @property
    def capabilities(self) -> Mapping[str, Any]:
        declared = self._session.client_capabilities
        return {} if declared is None else declared.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def log_level(self) -> str | None:
        return self.listener.log_level

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send in order and ahead of the answer; what a slow client cannot take is dropped. From any thread."""
        size = len(msgspec.json.encode(params))
        if threading.get_ident() == self._thread:
            self._put(method, params, size)
        else:
            self._loop.call_soon_threadsafe(self._put, method, params, size)

    def origin_for(self, meta: Mapping[str, Any], *, modern: bool) -> Origin:
        """Where the call comes from; not kept, because it leads back here."""
        context = self._context
        return Origin(
            self.caller,
            self.transport,
            self,
            modern,
            context.protocol_version,
            self._session._connection.session_id,
            context.request.scope["headers"],
        )

    def why_cancelled(self) -> Withdrawal:
        """That a stream ends cancels nothing: the client may be back for the answer. The end of its session does."""
        return "client" if self._session._request_outbound.cancel_requested.is_set() else "disconnect"

    async def drained(self) -> None:
        """Wait until the client has been told everything."""
        await self.told()

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request on the call's own stream, and wait for the result."""
        from mcp.shared.exceptions import MCPError, NoBackChannelError
        from mcp_types import CONNECTION_CLOSED

        asking = asyncio.current_task()
        assert asking is not None
        self._asking.add(asking)
        try:
            answer: dict[str, Any] = await self._session._request_outbound.send_raw_request(method, params)
        except NoBackChannelError:
            raise ClientCannotBeAsked(method) from None
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ClientRefused(error.code, error.message[:200]) from None
            await asyncio.sleep(_LAST_WORDS)  # The call is about to be withdrawn, which says better what happened.
            raise ClientCannotBeAsked(method) from None
        finally:
            self._asking.discard(asking)
        return answer

    async def questions_withdrawn(self) -> None:
        """The call is cancelled: its stream must not end before the client knows that its questions are, too."""
        import anyio

        with anyio.move_on_after(_LAST_WORDS, shield=True):
            while self._asking:
                await asyncio.wait(self._asking)

    async def told(self) -> None:
        """Wait until everything that was to be said has been."""
        await asyncio.sleep(0)  # What another thread said a moment ago is still on its way here.
        if self._telling is not None:
            await self._telling

    def _put(self, method: str, params: Mapping[str, Any] | None, size: int) -> None:
        if len(self._queue) < _MOST_QUEUED and self._queued_bytes + size <= _MOST_QUEUED_BYTES:
            self._queue.append((method, params, size))
            self._queued_bytes += size
            if self._telling is None or self._telling.done():
                self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        import anyio

        while self._queue:
            method, params, size = self._queue.pop(0)
            try:
                await self._session._request_outbound.notify(method, params)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._queue.clear()
                self._queued_bytes = size
            self._queued_bytes -= size

"""The SDK's low-level server, with handlers that share the runtime's tools and pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
from mcp.server.connection import Connection as SdkConnection
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import ServerRunner, aclose_shielded, serve_one
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp_types import InitializeRequestParams, SetLevelRequestParams
from pydantic import ValidationError

from dragoman.access.callers import Caller
from dragoman.access.quota import Quota
from dragoman.edge.listing import Listing
from dragoman.edge.peer import Peer
from dragoman.edge.requests import Asked, Handle, ListenForTasks
from dragoman.edge.sdk.channel import Channel, current_channel, served_peer
from dragoman.edge.sdk.errors import SdkError, protocol_error_of
from dragoman.edge.sdk.open_sessions import OpenSessions
from dragoman.edge.sdk.session_client import CALLER, SessionClient
from dragoman.edge.settings import HttpConfig
from dragoman.errors import ProtocolError
from dragoman.protocol.results import ToolResult
from dragoman.protocol.session import Identity, Request, Session
from dragoman.protocol.versions import CAPABILITIES_KEY, VERSION_KEY
from dragoman.tasks.keeping import declares_tasks, missing_extension
from dragoman.telemetry.log import Logger

_LIST_CHANGED: dict[str, Callable[[], ToolsListChanged | ResourcesListChanged | PromptsListChanged]] = {
    "tools": ToolsListChanged,
    "resources": ResourcesListChanged,
    "prompts": PromptsListChanged,
}


class SdkServer:
    """Serves requests of the lane, and is the server of the HTTP sessions."""

    def __init__(
        self,
        identity: Identity,
        listing: Listing,
        handlers: Mapping[str, Handle],
        may_read: Callable[[Caller, str], bool],
        listen_for_tasks: ListenForTasks,
    ) -> None:
        self._listing = listing
        self._may_read = may_read
        self._listen_for_tasks = listen_for_tasks
        self._bus = _Bus(may_read)
        self._listen = ListenHandler(self._bus)
        self._exit = AsyncExitStack()
        self._lifespan: Any = None
        # The SDK takes results as plain dictionaries too, which its annotations do not say.
        ours: dict[str, Any] = {name: _serving(handle) for name, handle in handlers.items()}
        ours["on_list_tools"] = self._on_list_tools
        ours["on_subscriptions_listen"] = self._on_listen
        info = identity.server_info
        self._sdk: Server[Any] = Server(
            info["name"], version=info["version"], instructions=identity.instructions, **ours
        )
        # A call has a span of its own where spans are wanted, whichever way it came: the SDK's would be a second one.
        self._sdk.middleware.clear()
        # Every list may change, and clients are told; the SDK would say that none does.
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        make_options = partial(self._sdk.create_initialization_options, changing)
        self._sdk.create_initialization_options = make_options  # type: ignore[method-assign]
        # Not with the others: the SDK would warn that the modern era has it no more.
        on_set_level: Any = _on_set_level
        self._sdk.add_request_handler("logging/setLevel", SetLevelRequestParams, on_set_level)

    async def start(self) -> None:
        """Enter the SDK's lifespan."""
        self._lifespan = await self._exit.enter_async_context(self._sdk.lifespan(self._sdk))

    async def close(self) -> None:
        """Leave it."""
        await self._exit.aclose()

    def open_sessions(
        self,
        http: HttpConfig,
        most: int,
        new_reader: Callable[[], Session],
        logger: Logger,
        per_caller: Quota,
        prefix: str,
    ) -> OpenSessions:
        """The HTTP sessions on this server."""
        return OpenSessions(self._sdk, http, most, new_reader, logger, per_caller, prefix)

    async def list_changed(self, kind: str) -> None:
        """Tell the clients of the modern era that listen for it."""
        await self._bus.publish(_LIST_CHANGED[kind]())

    async def resource_updated(self, uri: str) -> None:
        """Tell the clients of the modern era that listen for what is at `uri`."""
        await self._bus.publish(ResourceUpdated(uri))

    def end_streams(self) -> None:
        """Let every stream that is open end with its last word."""
        self._listen.close()

    async def serve(self, peer: Peer, request: Request) -> dict[str, Any]:
        """Serve one request of the lane; raises `ProtocolError`."""
        channel = Channel(peer, request)
        serve = self._serve_modern if request.modern else self._serve_in_handshake
        try:
            return await serve(channel, peer, request)
        except ProtocolError:
            raise
        except Exception as error:
            worded = protocol_error_of(error, request.method, modern=request.modern)
            if worded is None:
                raise  # The connection logs it under the request's ids, and answers.
            raise worded from None
        finally:
            channel.close()

    async def _serve_modern(self, channel: Channel, peer: Peer, request: Request) -> dict[str, Any]:
        method, params = request.method, request.params
        route = classify_inbound_request({"method": method, "params": params})
        if isinstance(route, InboundLadderRejection):
            raise SdkError(route.code, route.message, route.data)
        client = route.client_info, route.client_capabilities
        connection = SdkConnection.from_envelope(route.protocol_version, *client, outbound=channel)
        return await serve_one(self._sdk, channel, method, params, connection=connection, lifespan_state=self._lifespan)

    async def _serve_in_handshake(self, channel: Channel, peer: Peer, request: Request) -> dict[str, Any]:
        assert peer.session is not None
        connection = SdkConnection.for_loop(channel)
        connection.client_params = _client_params(peer.session.client)
        connection.protocol_version = peer.session.version or connection.protocol_version
        connection.initialized.set()
        try:
            runner = ServerRunner(self._sdk, connection, self._lifespan)
            return await runner.on_request(channel, request.method, request.params)
        finally:
            await aclose_shielded(connection)

    async def _on_list_tools(self, context: Any, params: Any) -> dict[str, Any]:
        caller = _caller_in(context)
        listed = self._listing.tools({"cursor": params.cursor}, modern=_is_modern(context), caller=caller)
        return _plain(listed, context)

    async def _on_listen(self, context: Any, params: Any) -> Any:
        """As the SDK, but of the resources that the client names only those count that it may read, and tasks count."""
        caller, wanted = _caller_in(context), params.notifications
        if caller.scopes is not None and wanted.resource_subscriptions:
            allowed = [uri for uri in wanted.resource_subscriptions if self._may_read(caller, str(uri))]
            wanted = wanted.model_copy(update={"resource_subscriptions": allowed})
            params = params.model_copy(update={"notifications": wanted})
        task_ids, channel = (wanted.model_extra or {}).get("taskIds"), current_channel()
        if task_ids is None or channel is None:
            return await self._listen(context, params)
        if not declares_tasks(context.params["_meta"].get(CAPABILITIES_KEY)):
            raise missing_extension("notifications/tasks")
        channel.task_ids, stop = await self._listen_for_tasks(caller, task_ids, channel.tell_task)
        try:
            return await self._listen(context, params)
        finally:
            stop()


async def _on_set_level(context: Any, params: Any) -> dict[str, Any]:
    peer = served_peer() or SessionClient(context)
    peer.listener.log_level = params.level
    return {}


def _serving(handle: Handle) -> Any:
    """A handler as the SDK calls it."""

    async def serve(context: Any, params: Any) -> dict[str, Any]:
        peer = served_peer() or SessionClient(context)
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


def _is_modern(context: Any) -> bool:
    return VERSION_KEY in ((context.params or {}).get("_meta") or {})


def _caller_in(context: Any) -> Caller:
    peer = served_peer()
    caller: Caller = context.request.scope[CALLER] if peer is None else peer.caller
    return caller


def _client_params(client: Mapping[str, Any] | None) -> InitializeRequestParams:
    try:
        return InitializeRequestParams.model_validate(client, by_name=False)
    except ValidationError:  # The lane looks at less than the SDK does, and let the client in.
        assert client is not None
        info = {key: client["clientInfo"][key] for key in ("name", "version")}
        version = client["protocolVersion"]
        known = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        return InitializeRequestParams.model_validate(known, by_name=False)


class _Bus(InMemorySubscriptionBus):
    """The SDK's bus, which tells nobody of a resource that they may not read."""

    def __init__(self, may_read: Callable[[Caller, str], bool]) -> None:
        super().__init__()
        self._may_read = may_read

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        peer = served_peer()
        if peer is None or peer.caller.scopes is None:
            return super().subscribe(listener)
        caller = peer.caller

        def tell(event: Any) -> None:
            # Again: the resource may have been registered after the client began to listen.
            if not isinstance(event, ResourceUpdated) or self._may_read(caller, event.uri):
                listener(event)

        return super().subscribe(tell)

"""The kernel: it serves the methods that the lane does not answer itself, with the official SDK.

The SDK takes about a second to import. `kernel.py` and `sessions.py` are what the rest of the server needs before then;
every other module of this package imports the SDK, and is imported when the first request needs it, on a thread, while
the lane goes on answering. The SDK's internals are touched in this package alone; `fit.py` lists them,
and names a version of the SDK that has others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dragoman.access.callers import Caller
from dragoman.calls.threads import Threads
from dragoman.edge.listing import Listing
from dragoman.edge.peer import Peer
from dragoman.edge.requests import Handle, ListenForTasks
from dragoman.protocol.session import Identity, Request

if TYPE_CHECKING:
    from dragoman.edge.sdk.server import SdkServer


class SdkKernel:
    """The SDK's server, which shares the runtime's tools and pipeline, loaded when it is first needed."""

    def __init__(
        self,
        identity: Identity,
        listing: Listing,
        handlers: Mapping[str, Handle],
        may_read: Callable[[Caller, str], bool],
        listen_for_tasks: ListenForTasks,
    ) -> None:
        """`handlers` serve calls of tools and what else is offered; they have the names that the SDK gives them.

        `may_read` tells whether a caller may read what is at a URI.
        """
        self.identity = identity
        self._make: Callable[[type[SdkServer]], SdkServer]
        self._make = lambda server: server(identity, listing, handlers, may_read, listen_for_tasks)
        self._threads = Threads()
        self._loading: asyncio.Task[SdkServer] | None = None
        self._server: SdkServer | None = None

    async def handle(self, peer: Peer, request: Request) -> dict[str, Any]:
        """Serve one request as the era it came in has it; raises `ProtocolError`."""
        server = await self.load()
        return await server.serve(peer, request)

    async def load(self) -> SdkServer:
        """Import the SDK and build the server, once."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        try:
            return await asyncio.shield(self._loading)
        except Exception:
            self._loading = None  # The next request may have better luck.
            raise

    async def list_changed(self, kind: str) -> None:
        """Tell the clients of the modern era that listen for it; `kind` is `tools`, `resources` or `prompts`."""
        if self._server is not None:
            await self._server.list_changed(kind)

    async def resource_updated(self, uri: str) -> None:
        """Tell the clients of the modern era that listen for what is at `uri`."""
        if self._server is not None:
            await self._server.resource_updated(uri)

    def end_streams(self) -> None:
        """Let every stream that is open end with its last word."""
        if self._server is not None:
            self._server.end_streams()

    async def close(self) -> None:
        """Leave the SDK's server."""
        self._threads.stop()
        if self._server is not None:
            await self._server.close()

    async def _load(self) -> SdkServer:
        server = self._make(await self._threads.run(_import_server))
        await server.start()
        self._server = server
        return server


def _import_server() -> type[SdkServer]:
    from dragoman.edge.sdk.fit import check_sdk

    check_sdk()
    from dragoman.edge.sdk.server import SdkServer

    return SdkServer

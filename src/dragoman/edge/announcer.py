"""Tells clients that a list has changed, or something that they have subscribed to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dragoman.changes import Change, ResourceUpdated
from dragoman.edge.connection import Connection
from dragoman.edge.interests import Interests
from dragoman.edge.sdk.kernel import SdkKernel
from dragoman.offers.catalogue import OfferKind, Offers
from dragoman.tools.catalogue import Catalogue

if TYPE_CHECKING:
    from dragoman.edge.sdk.sessions import SdkSessions

List: TypeAlias = OfferKind | Literal["tools"]


class Announcer:
    """Speaks to every client, from `start` to `stop`; before and after that, there is nobody to tell."""

    def __init__(self, catalogue: Catalogue, offers: Offers, interests: Interests, kernel: SdkKernel) -> None:
        self._catalogue = catalogue
        self._offers = offers
        self.interests = interests
        self._kernel = kernel
        self.connections: set[Connection] = set()
        self.sessions: SdkSessions | None = None
        """Those of the handshake era over HTTP."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._stop_listening: tuple[Callable[[], None], ...] = ()

    def start(self) -> None:
        """Listen to the catalogues."""
        self._loop = asyncio.get_running_loop()
        self._stop_listening = (
            self._catalogue.on_change(lambda: self._from_any_thread(self._announce_list, "tools")),
            self._offers.on_change(lambda kind: self._from_any_thread(self._announce_list, kind)),
        )

    def stop(self) -> None:
        """Be silent."""
        self._loop = None
        for stop in self._stop_listening:
            stop()

    def resource_updated(self, uri: str) -> None:
        """Tell the subscribers of a resource. From any thread."""
        self._from_any_thread(self._announce_update, uri)

    def on_change(self, change: Change) -> None:
        """Another process of the server has changed something."""
        if isinstance(change, ResourceUpdated):
            self.resource_updated(change.uri)

    def _from_any_thread(self, announce: Callable[[Any], None], what: str) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(announce, what)

    def _announce_list(self, kind: List) -> None:
        for connection in tuple(self.connections):
            if connection.is_listening:
                connection.notify(f"notifications/{kind}/list_changed")
        self._tell(self._kernel.list_changed(kind))
        if self.sessions is not None:
            self.sessions.list_changed(kind)

    def _announce_update(self, uri: str) -> None:
        for listener, caller in self.interests.subscribers(uri):
            if self._offers.may_read(caller, uri):  # It may have been registered after the client subscribed.
                listener.notify("notifications/resources/updated", {"uri": uri})
        self._tell(self._kernel.resource_updated(uri))

    def _tell(self, telling: Coroutine[Any, Any, None]) -> None:
        """Tell the clients of the modern era, which listen through the kernel."""
        task = asyncio.create_task(telling)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

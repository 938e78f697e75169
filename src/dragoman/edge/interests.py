"""Which resources each client of the handshake era has asked about. In the modern era a stream of its own says that."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from dragoman.access.callers import Caller
from dragoman.edge.peer import Listener
from dragoman.errors import InvalidParams
from dragoman.offers.template import LONGEST_URI
from dragoman.protocol.kept import MOST_SUBSCRIPTIONS


class Interests:
    """By listener, for as long as it lives. Belongs to the event loop."""

    def __init__(self) -> None:
        self._uris: WeakKeyDictionary[Listener, dict[str, Caller]] = WeakKeyDictionary()

    def subscribe(self, listener: Listener, uri: str, caller: Caller) -> None:
        """Tell the client of changes at `uri`, whether or not there is something to read yet."""
        if len(uri) > LONGEST_URI:
            raise InvalidParams(f"Invalid params: a URI has at most {LONGEST_URI} characters")
        uris = self._uris.setdefault(listener, {})
        if len(uris) >= MOST_SUBSCRIPTIONS and uri not in uris:
            raise InvalidParams(f"Invalid params: at most {MOST_SUBSCRIPTIONS} subscriptions")
        uris[uri] = caller

    def unsubscribe(self, listener: Listener, uri: str) -> None:
        """Tell it no more."""
        self._uris.get(listener, {}).pop(uri, None)

    def subscribers(self, uri: str) -> list[tuple[Listener, Caller]]:
        """The clients to tell when something at `uri` has changed, each with the caller that subscribed."""
        found = [(each, uris.get(uri)) for each, uris in tuple(self._uris.items()) if each.is_listening]
        return [(each, caller) for each, caller in found if caller is not None]

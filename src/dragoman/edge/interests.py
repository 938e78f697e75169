"""Which resources each client of the handshake era has asked about. In the modern era a stream of its own says that."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from dragoman.edge.peer import Listener
from dragoman.errors import InvalidParams
from dragoman.offers.template import LONGEST_URI
from dragoman.protocol.kept import MOST_SUBSCRIPTIONS


class Interests:
    """By listener, for as long as it lives. Belongs to the event loop."""

    def __init__(self) -> None:
        self._uris: WeakKeyDictionary[Listener, set[str]] = WeakKeyDictionary()

    def subscribe(self, listener: Listener, uri: str) -> None:
        """Tell the client of changes at `uri`, whether or not there is something to read yet."""
        if len(uri) > LONGEST_URI:
            raise InvalidParams(f"Invalid params: a URI has at most {LONGEST_URI} characters")
        uris = self._uris.setdefault(listener, set())
        if len(uris) >= MOST_SUBSCRIPTIONS and uri not in uris:
            raise InvalidParams(f"Invalid params: at most {MOST_SUBSCRIPTIONS} subscriptions")
        uris.add(uri)

    def unsubscribe(self, listener: Listener, uri: str) -> None:
        """Tell it no more."""
        self._uris.get(listener, set()).discard(uri)

    def subscribers(self, uri: str) -> list[Listener]:
        """Who is told when something at `uri` has changed."""
        return [each for each, uris in tuple(self._uris.items()) if uri in uris and each.is_listening]

"""What `tools/list` and `server/discover` say; the list is encoded once for as long as it stays true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import InvalidParams
from dragoman.protocol.session import Identity, complete
from dragoman.protocol.versions import MODERN_VERSIONS
from dragoman.tools.catalogue import Catalogue

# Clients may keep neither: both can change at any moment, and may come to differ by caller.
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}


class Listing:
    """The answers of a server that do not depend on who asks."""

    def __init__(self, catalogue: Catalogue, identity: Identity) -> None:
        self._catalogue = catalogue
        self._identity = identity
        self._encoded: dict[bool, tuple[int, bytes]] = {}

    def tools(self, params: Mapping[str, Any] | None, *, modern: bool) -> dict[str, Any]:
        """All tools, sorted by name, on one page; raises `InvalidParams` for a cursor, as none is ever given out."""
        if (params or {}).get("cursor") is not None:
            raise InvalidParams("Invalid params: the list has one page, and no cursor was given out")
        result: dict[str, Any] = {"tools": [registered.definition.listing() for registered in self._catalogue]}
        return {**result, **_UNCACHED} if modern else result

    def encoded_tools(self, params: Mapping[str, Any] | None, *, modern: bool) -> bytes:
        """`tools`, ready to send."""
        version, encoded = self._encoded.get(modern, (-1, b""))
        if version != self._catalogue.version or (params and "cursor" in params):
            version = self._catalogue.version
            tools = self.tools(params, modern=modern)
            encoded = msgspec.json.encode(complete(self._identity, tools) if modern else tools)
            self._encoded[modern] = (version, encoded)
        return encoded

    def discovery(self) -> dict[str, Any]:
        """What a client of the modern era learns in place of a handshake."""
        result: dict[str, Any] = {
            "supportedVersions": list(MODERN_VERSIONS),
            "capabilities": self._identity.capabilities,
            **_UNCACHED,
        }
        if self._identity.instructions is not None:
            result["instructions"] = self._identity.instructions
        return result

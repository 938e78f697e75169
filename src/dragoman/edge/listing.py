"""What `tools/list` and `server/discover` say; the list is encoded once for as long as it stays true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.access.callers import LOCAL, Caller
from dragoman.errors import InvalidParams
from dragoman.protocol.session import Identity, complete
from dragoman.protocol.versions import MODERN_VERSIONS, TASKS_EXTENSION
from dragoman.tools.catalogue import Catalogue

UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
"""Clients may keep nothing of it: it can change at any moment, and may differ by caller."""
_MOST_ENCODED = 64


class Listing:
    """The answers of a server that depend on nothing but its tools, and on which of them a caller may call."""

    def __init__(self, catalogue: Catalogue, identity: Identity) -> None:
        self._catalogue = catalogue
        self._identity = identity
        self._encoded: dict[tuple[bool, frozenset[str] | None, frozenset[str]], tuple[int, bytes]] = {}

    def tools(self, params: Mapping[str, Any] | None, *, modern: bool, caller: Caller = LOCAL) -> dict[str, Any]:
        """What the caller may call, sorted by name, on one page.

        Raises `InvalidParams` for a cursor, as none is ever given out.
        """
        refuse_cursor((params or {}).get("cursor"))
        listed = [each.definition.listing() for each in self._catalogue if each.may_be_called_by(caller)]
        result: dict[str, Any] = {"tools": listed}
        return {**result, **UNCACHED} if modern else result

    def encoded_tools(self, params: Mapping[str, Any] | None, *, modern: bool, caller: Caller = LOCAL) -> bytes:
        """`tools`, ready to send."""
        key = (modern, caller.scopes, self._catalogue.hidden_from(caller))
        version, encoded = self._encoded.get(key, (-1, b""))
        if version != self._catalogue.version or (params and "cursor" in params):
            version = self._catalogue.version
            tools = self.tools(params, modern=modern, caller=caller)
            encoded = msgspec.json.encode(complete(self._identity, tools) if modern else tools)
            if key not in self._encoded and len(self._encoded) >= _MOST_ENCODED:
                del self._encoded[next(iter(self._encoded))]
            self._encoded[key] = (version, encoded)
        return encoded

    def discovery(self) -> dict[str, Any]:
        """What a client of the modern era learns in place of a handshake."""
        result: dict[str, Any] = {
            "supportedVersions": list(MODERN_VERSIONS),
            # There is no `logging/setLevel` any more: who wants log messages says so in each request.
            "capabilities": {key: each for key, each in self._identity.capabilities.items() if key != "logging"},
            **UNCACHED,
        }
        if self._catalogue.has_tasks:
            result["capabilities"]["extensions"] = {TASKS_EXTENSION: {}}
        if self._identity.instructions is not None:
            result["instructions"] = self._identity.instructions
        return result


def refuse_cursor(cursor: Any) -> None:
    """Raise `InvalidParams` for any cursor: every list has one page."""
    if cursor is not None:
        raise InvalidParams("Invalid params: the list has one page, and no cursor was given out")

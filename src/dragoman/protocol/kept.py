"""What is kept of a request beyond its answer: of `initialize` while the session lives, of `subscriptions/listen` while
its stream is open. Only what is known is kept, and nothing of it can be large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from dragoman.protocol.versions import CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, VERSION_KEY

MOST_PARAMS = 64 * 1024
"""Bytes of the params of such a request."""
MOST_SUBSCRIPTIONS = 1024
"""Resources that one client may be told about."""
_MOST_TEXT = 1024
_MOST_EXTENSIONS = 64

_CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "experimental": {},
    "extensions": {},
    "roots": {"listChanged": {}},
    "sampling": {"context": {}, "tools": {}},
    "tasks": {
        "cancel": {},
        "list": {},
        "requests": {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}},
    },
}
_CLIENT_INFO: Final[Mapping[str, Any]] = {"name": {}, "title": {}, "version": {}}
_META: Final[Mapping[str, Any]] = {
    VERSION_KEY: {},
    CLIENT_INFO_KEY: _CLIENT_INFO,
    CAPABILITIES_KEY: _CAPABILITIES,
    LOG_LEVEL_KEY: {},
    "correlationId": {},
    "progressToken": {},
}
_NOTIFICATIONS: Final[Mapping[str, Any]] = {
    "promptsListChanged": {},
    "resourcesListChanged": {},
    "toolsListChanged": {},
}


class ClientInfo(Struct):
    """What a client is called."""

    name: str
    version: str


class InitializeParams(Struct, rename="camel"):
    """What every `initialize` has to say."""

    protocol_version: str
    capabilities: dict[str, Any]
    client_info: ClientInfo


_validate = msgspec.json.Decoder(InitializeParams).decode


def known_params(params: bytes) -> dict[str, Any]:
    """The params of an `initialize` without what nothing here knows.

    Raises `msgspec.ValidationError` where something is missing, and `ValueError` where they are too long.
    """
    _weigh("initialize", params)
    version = _validate(params).protocol_version
    given = msgspec.json.decode(params)
    capabilities: dict[str, Any] = _outline(given["capabilities"], _CAPABILITIES)
    extensions = given["capabilities"].get("extensions")
    if isinstance(extensions, dict):
        capabilities["extensions"] = {name[:_MOST_TEXT]: {} for name in list(extensions)[:_MOST_EXTENSIONS]}
    return {
        "protocolVersion": version[:_MOST_TEXT],
        "capabilities": capabilities,
        "clientInfo": _outline(given["clientInfo"], _CLIENT_INFO),
    }


def known_subscription(params: bytes) -> dict[str, Any]:
    """The params of a `subscriptions/listen`, likewise; raises `msgspec.DecodeError` and `ValueError`."""
    _weigh("subscriptions/listen", params)
    given = msgspec.json.decode(params, type=dict[str, Any])
    wanted = given.get("notifications")
    known = {"notifications": _outline(wanted, _NOTIFICATIONS), "_meta": _outline(given.get("_meta"), _META)}
    if isinstance(wanted, dict) and "resourceSubscriptions" in wanted:
        uris = wanted["resourceSubscriptions"]
        if isinstance(uris, list) and len(uris) > MOST_SUBSCRIPTIONS:
            raise ValueError(f"at most {MOST_SUBSCRIPTIONS} subscriptions")
        is_plain = isinstance(uris, list) and all(isinstance(uri, str) for uri in uris)
        known["notifications"]["resourceSubscriptions"] = uris if is_plain else _outline(uris, {})
    return {name: value for name, value in known.items() if name in given}


def _weigh(method: str, params: bytes) -> None:
    if len(params) > MOST_PARAMS:
        raise ValueError(f"{method} takes at most {MOST_PARAMS} bytes of params")


def _outline(given: Any, known: Mapping[str, Any]) -> Any:
    """What is `given`, as far as it is known; nothing that is left can be large."""
    if isinstance(given, dict):
        return {name: _outline(given[name], inner) for name, inner in known.items() if name in given}
    if isinstance(given, list):
        return []
    return given[:_MOST_TEXT] if isinstance(given, str) else given

"""What is kept of a request beyond its answer: of `initialize` while the session lives, of `subscriptions/listen` while
its stream is open. Only what is known is kept, and nothing of it can be large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from dragoman.protocol.versions import CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, VERSION_KEY

MOST_BYTES = 64 * 1024
"""Of the part of such a request that something is kept of."""
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


class ClientInfo(Struct, omit_defaults=True):
    """What a client is called."""

    name: str
    version: str
    title: Any = UNSET


class InitializeParams(Struct, rename="camel"):
    """What every `initialize` has to say."""

    protocol_version: str
    capabilities: Raw
    client_info: ClientInfo


_decode_params = msgspec.json.Decoder(InitializeParams).decode
_decode_capabilities = msgspec.json.Decoder(dict[str, Any]).decode


def known_params(params: bytes) -> dict[str, Any]:
    """The params of an `initialize` without what nothing here knows.

    Raises `msgspec.ValidationError` where something is missing, and `ValueError` where capabilities are too long.
    """
    given = _decode_params(params)
    _weigh("the capabilities of a client", given.capabilities)
    try:
        declared = _decode_capabilities(given.capabilities)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error} - at `$.capabilities`") from None
    return {
        "protocolVersion": given.protocol_version[:_MOST_TEXT],
        "capabilities": _with_extensions(declared),
        "clientInfo": _outline(msgspec.to_builtins(given.client_info), _CLIENT_INFO),
    }


def _with_extensions(declared: dict[str, Any]) -> dict[str, Any]:
    """Capabilities as far as they are known, with the names of extensions."""
    capabilities: dict[str, Any] = _outline(declared, _CAPABILITIES)
    extensions = declared.get("extensions")
    if isinstance(extensions, dict):
        capabilities["extensions"] = {name[:_MOST_TEXT]: {} for name in list(extensions)[:_MOST_EXTENSIONS]}
    return capabilities


def known_capabilities(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The declared capabilities that let a server ask the client something."""
    known: dict[str, Any] = _outline(declared, _CAPABILITIES)
    return {name: known[name] for name in ("elicitation", "roots", "sampling") if name in known}


def known_subscription(params: bytes) -> dict[str, Any]:
    """The params of a `subscriptions/listen`, likewise; raises `msgspec.DecodeError` and `ValueError`."""
    _weigh("the params of subscriptions/listen", params)
    given = msgspec.json.decode(params, type=dict[str, Any])
    wanted = given.get("notifications")
    known = {"notifications": _outline(wanted, _NOTIFICATIONS), "_meta": _outline(given.get("_meta"), _META)}
    declared = given["_meta"].get(CAPABILITIES_KEY) if isinstance(given.get("_meta"), dict) else None
    if isinstance(declared, dict):
        known["_meta"][CAPABILITIES_KEY] = _with_extensions(declared)
    if isinstance(wanted, dict) and "resourceSubscriptions" in wanted:
        uris = wanted["resourceSubscriptions"]
        if isinstance(uris, list) and len(uris) > MOST_SUBSCRIPTIONS:
            raise ValueError(f"at most {MOST_SUBSCRIPTIONS} subscriptions")
        is_plain = isinstance(uris, list) and all(isinstance(uri, str) for uri in uris)
        known["notifications"]["resourceSubscriptions"] = uris if is_plain else _outline(uris, {})
    if isinstance(wanted, dict) and "taskIds" in wanted:
        known["notifications"]["taskIds"] = _task_ids(wanted["taskIds"])
    return {name: value for name, value in known.items() if name in given}


def _task_ids(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ValueError("notifications.taskIds must be a list of strings")
    if len(given) > MOST_SUBSCRIPTIONS:
        raise ValueError(f"at most {MOST_SUBSCRIPTIONS} subscriptions")
    return given


def _weigh(what: str, given: bytes) -> None:
    if len(given) > MOST_BYTES:
        raise ValueError(f"{what} take more than {MOST_BYTES} bytes")


def _outline(given: Any, known: Mapping[str, Any]) -> Any:
    """What is `given`, as far as it is known; nothing that is left can be large."""
    if isinstance(given, dict):
        return {name: _outline(given[name], inner) for name, inner in known.items() if name in given}
    if isinstance(given, list):
        return []
    return given[:_MOST_TEXT] if isinstance(given, str) else given

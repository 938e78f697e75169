"""Whether the SDK that is installed has what this package touches of its insides.

The SDK ships fixes as minor versions, so none is pinned. One whose insides are others is named before it is used,
instead of failing in the middle of a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from typing import Any, Final

INSIDES: Final[Mapping[str, tuple[str, ...]]] = {
    "mcp.server.streamable_http:StreamableHTTPServerTransport": (
        "_clean_up_memory_streams",
        "_create_error_response",
        "_create_event_data",
        "_create_session_message",
        "_event_store",
        "_handle_get_request",
        "_idle_timeout",
        "_mint_priming_event",
        "_replay_events",
        "_request_streams",
        "_requests_in_flight",
        "_run_sse_writer",
        "_sse_stream_writers",
        "_write_stream",
    ),
    "mcp.server.streamable_http_manager:StreamableHTTPSessionManager": (
        "_admit_session",
        "_discard_session",
        "_lifespan_state",
        "_server_instances",
        "_session_owners",
    ),
    "mcp.server.session:ServerSession": ("_connection", "_request_outbound"),
    "mcp.server.sse:SseServerTransport": ("_read_stream_writers",),
}
"""By class, the members without a promise that the modules beside this one use."""
_MODULES: Final = ("open_sessions", "server", "transport")
"""They import everything that is used besides."""


class SdkDoesNotFit(ImportError):
    """The installed version of the SDK cannot be used. The message names it, and what it does not have."""


def check_sdk() -> None:
    """Raise `SdkDoesNotFit`."""
    missing = [*_missing(INSIDES)]
    if missing:
        raise SdkDoesNotFit(
            f"mcp {metadata.version('mcp')} does not fit this version of Dragoman: there is no {', '.join(missing)}. "
            "Install another version of mcp 2, or a newer Dragoman"
        )


def _missing(insides: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for place, names in insides.items():
        module, _, kind = place.partition(":")
        try:
            known = _names_in(getattr(import_module(module), kind))
        except (ImportError, AttributeError):
            yield place
            continue
        yield from (f"{kind}.{name}" for name in names if name not in known)
    for name in _MODULES:
        try:
            import_module(f"{__package__}.{name}")
        except (ImportError, AttributeError) as error:
            yield str(error)


def _names_in(kind: type[Any]) -> set[str]:
    """The members of a class, and what its methods set on themselves."""
    names = {*dir(kind)}
    for each in kind.__mro__:
        names |= getattr(each, "__annotations__", {}).keys()
        for function in vars(each).values():
            code = getattr(function, "__code__", None)
            names |= set() if code is None else {*code.co_names}
    return names

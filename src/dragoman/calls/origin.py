"""The origin of calls."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.access.callers import LOCAL, Caller
from dragoman.tools.client import Client

LOCAL_TRANSPORT = "local"
"""Of calls from Python, whose errors keep their tracebacks: the caller may raise them."""


class Origin(Struct, frozen=True, eq=False):
    """The facts that all calls of one peer share. Made once for a handshake connection, once per request elsewhere."""

    caller: Caller = LOCAL
    transport: str = LOCAL_TRANSPORT
    client: Client | None = None
    """The way back to the client, where there is one."""
    is_modern: bool = False
    """Whether the client is asked by answering its call with an `InputRequired`, and answers by repeating the call."""
    protocol_version: str | None = None
    """The one that a handshake agreed on; in the modern era each request's `_meta` names its own."""
    session_id: str | None = None
    """The HTTP session."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """The headers of the HTTP request, as they came."""
    is_counted: bool = False
    """Whether its calls were counted against a rate before they were made, and need not be counted again."""
    max_payload_bytes: int | None = None
    """How much the arguments of its calls may weigh, where that is more than others' may."""
    payload_bytes: int | None = None
    """The bytes of its arguments as JSON, if they are known: to encode large ones takes time."""
    waits_for_slot: bool = False
    """Whether its calls wait for a free slot instead of being refused: nobody waits for their answers."""

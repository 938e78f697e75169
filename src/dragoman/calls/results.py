"""Results that can be given again: kept by caller, tool and arguments, until they expire or something changes.

1. Only tools that say that they are read-only or idempotent, and ask for it, have their results kept.
2. Of identical calls in flight one is executed; the others wait for it, each under its own deadline.
3. A tool that changes things names tags. When it has ended, however it ended, the results with these tags are dropped;
   what was being worked out at that moment is not kept, and nobody who asks afterwards is given it.
4. Errors are not kept. A call that was cancelled settles nothing for those that wait: one of them takes its place.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.cache import BoundedCache
from dragoman.calls.call import Call, Service
from dragoman.calls.run_handler import meaning_of
from dragoman.errors import Aborted, ToolError
from dragoman.tools.content import content_blocks, encode_json

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


class _Settled(Struct):
    """What a call in flight has come to: neither, when it was cancelled and somebody else must try."""

    encoded: bytes | None = None
    error: ToolError | None = None


class Results:
    """The kept results, and the calls that are working one out."""

    def __init__(self, cache: BoundedCache[bytes]) -> None:
        self._cache = cache
        self._flights: dict[str, asyncio.Future[_Settled]] = {}
        self._changes: dict[str, int] = {}
        """How often what carries a tag has changed."""

    def changed(self, call: Call) -> None:
        """A call that changes things has ended."""
        for tag in call.tool.definition.invalidates:
            self._changes[tag] = self._changes.get(tag, 0) + 1
            self._cache.invalidate(tag)

    async def get(self, call: Call, proceed: Service) -> Any:
        """The call's value: kept, being worked out by another, or worked out now."""
        digest = _digest(call)
        while True:
            key = f"{digest}:{self._version(call)}"
            found = self._cache.get(key)
            if found.value is not None:
                call.cached = True
                return msgspec.json.decode(found.value)
            flight = self._flights.get(key)
            if flight is None:
                return await self._lead(key, call, proceed)
            settled = await _follow(flight, call)
            if settled.error is not None:
                raise settled.error
            if settled.encoded is not None:
                call.cached = True
                return msgspec.json.decode(settled.encoded)

    async def _lead(self, key: str, call: Call, proceed: Service) -> Any:
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        settled, version = _Settled(), self._version(call)
        try:
            value = await proceed(call)
            settled.encoded = _encoded(value)
            if settled.encoded is not None and self._version(call) == version:
                definition = call.tool.definition
                self._cache.set(key, settled.encoded, ttl_ms=definition.cache_ttl_ms, tags=definition.cache_tags)
            return value
        except BaseException as error:
            meaning = meaning_of(error, call)
            if isinstance(meaning, ToolError):
                settled.error = meaning
            raise
        finally:
            del self._flights[key]
            flight.set_result(settled)

    def _version(self, call: Call) -> str:
        """What the tool's results depend on, as far as it has changed."""
        return ".".join(str(self._changes.get(tag, 0)) for tag in call.tool.definition.cache_tags)


def _digest(call: Call) -> str:
    """Of everything that the result may depend on besides what has changed."""
    tool, caller = call.tool, call.caller
    parts = (caller.name, sorted(caller.roles), tool.definition.name, tool.serial, call.given)
    return hashlib.blake2b(_encode_sorted(parts), digest_size=24).hexdigest()


def _encoded(value: Any) -> bytes | None:
    """The value as it is kept; None when it is not one to keep."""
    try:
        return encode_json(value) if content_blocks(value) is None else None
    except Exception:  # It cannot be sent either, and whoever tries will say so.
        return None


async def _follow(flight: asyncio.Future[_Settled], call: Call) -> _Settled:
    """What the one in flight comes to. Stops when the call itself is cancelled."""
    cancelled = asyncio.ensure_future(call.cancellation.wait())
    try:
        await asyncio.wait((flight, cancelled), return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancelled.cancel()
    if not flight.done():
        raise Aborted(call.cancellation.reason)
    return flight.result()

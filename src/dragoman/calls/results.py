"""Results that can be given again: kept by caller, tool and arguments, until they expire or something changes.

1. Only tools that say that they are read-only or idempotent, and ask for it, have their results kept.
2. Of identical calls in flight one is executed; the others wait for it, each under its own deadline.
3. A tool that changes things names tags. When it has ended, however it ended, the results with these tags are dropped;
   what was being worked out at that moment is not kept, and nobody who asks afterwards is given it.
4. Errors are not kept, nor is what could not be sent. A call that was told to stop settles nothing, for those that wait
   or that come later, whatever it returns or raises: that may be half of a result. One that waits takes its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.cache.bounded import BoundedCache
from dragoman.calls.call import Call, Service
from dragoman.calls.run_handler import meaning_of
from dragoman.changes import Change, Publish, ResultsOutdated, keep_to_itself
from dragoman.errors import ToolError
from dragoman.tools.content import content_blocks, encode_within

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


class _Settled(Struct):
    """What a call in flight has come to."""

    encoded: bytes | None = None
    error: ToolError | None = None
    is_shared: bool = True
    """False: it has a value, and everybody must work out their own."""

    def fail(self, error: BaseException, call: Call) -> None:
        """Note how the call failed that was executed, if that says anything about the others."""
        if isinstance(error, ToolError) and not call.cancellation.is_set():
            self.error = error


class _Flight(Struct, eq=False):
    """A call that works out a result, and what it will come to."""

    leader: Call
    settled: asyncio.Future[_Settled]


class Results:
    """The kept results, and the calls that are working one out."""

    def __init__(
        self, cache: BoundedCache[bytes], publish: Publish = keep_to_itself, most_bytes: int = sys.maxsize
    ) -> None:
        """`most_bytes`: what a result may weigh that is kept or shared; a longer one could not be sent."""
        self._cache = cache
        self._publish = publish
        self._most = most_bytes
        self._flights: dict[str, _Flight] = {}
        self._changes: dict[str, int] = {}
        """How often what carries a tag has changed."""

    def changed(self, call: Call) -> None:
        """A call that changes things has ended."""
        tags = tuple(call.tool.definition.invalidates)
        self.outdate(tags)
        self._publish(ResultsOutdated(tags))

    def on_change(self, change: Change) -> None:
        """Another process of the server has changed something."""
        if isinstance(change, ResultsOutdated):
            self.outdate(change.tags)

    def outdate(self, tags: Iterable[str]) -> None:
        """Drop what carries one of these tags; it has changed."""
        for tag in tags:
            self._changes[tag] = self._changes.get(tag, 0) + 1
            self._cache.invalidate(tag)

    async def get(self, call: Call, proceed: Service) -> Any:
        """The call's value as JSON has it: kept, being worked out by another, or worked out now."""
        while True:
            key = _digest(call, self._version(call))
            found = self._cache.get(key)
            if found.value is not None:
                call.cached = True
                return msgspec.json.decode(found.value)
            flight = self._flights.get(key)
            if flight is None or flight.leader.cancellation.is_set():  # Who was told to stop may never come to an end.
                return await self._lead(key, call, proceed)
            settled = await _follow(flight, call)
            if not settled.is_shared:
                return await proceed(call)
            if settled.error is not None:
                call.ran = True
                raise _copied(settled.error)
            if settled.encoded is not None:
                call.ran = call.cached = True
                return msgspec.json.decode(settled.encoded)

    async def _lead(self, key: str, call: Call, proceed: Service) -> Any:
        flight = self._flights[key] = _Flight(call, asyncio.get_running_loop().create_future())
        settled, version = _Settled(), self._version(call)
        try:
            value = await proceed(call)
            encoded = _encoded(call, value, self._most)
            if encoded is None:
                settled.is_shared = False
                return value
            if not call.cancellation.is_set():
                settled.encoded = encoded
                if self._version(call) == version:
                    definition = call.tool.definition
                    self._cache.set(key, encoded, ttl_ms=definition.cache_ttl_ms, tags=definition.cache_tags)
            return msgspec.json.decode(encoded)
        except BaseException as error:
            settled.fail(meaning_of(error, call), call)
            raise
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]
            flight.settled.set_result(settled)
            del flight, settled  # An error in them leads back here, through its traceback.

    def _version(self, call: Call) -> list[int]:
        """How often each of the things has changed that the tool's results depend on."""
        return [self._changes.get(tag, 0) for tag in call.tool.definition.cache_tags]


def _digest(call: Call, version: list[int]) -> str:
    """Of everything that the result may depend on."""
    tool, caller = call.tool, call.origin.caller
    scopes = None if caller.scopes is None else sorted(caller.scopes)
    parts = (
        caller.principal,
        caller.client_id,
        sorted(caller.roles),
        scopes,
        tool.definition.name,
        tool.serial,
        call.raw_arguments,
        version,
    )
    return hashlib.blake2b(_encode_sorted(parts), digest_size=24).hexdigest()


def _encoded(call: Call, value: Any, most: int) -> bytes | None:
    """The value as it is kept and shared; None when it is not one for that, or could not even be sent."""
    try:
        if content_blocks(value) is not None:
            return None
        encoded = encode_within(value, most)
        if encoded is not None and call.tool.output_validator is not None:
            content = call.tool.returns.content(msgspec.json.decode(encoded))
            if not call.tool.output_validator.allows(content):
                return None
    except Exception:  # Whoever answers with it will say what is wrong.
        return None
    return None if encoded is None else bytes(encoded)


def _copied(error: ToolError) -> ToolError:
    """The same for another call. It is raised once each, and whose fault it was is in the log already."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy


async def _follow(flight: _Flight, call: Call) -> _Settled:
    """What the one in flight comes to; nothing, when it is told to stop. Raises when the call itself is."""
    tokens = (call.cancellation, flight.leader.cancellation)
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(token.wait()) for token in tokens]
    try:
        await asyncio.wait((flight.settled, *waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiting:
            waiter.cancel()
    if flight.settled.done():
        return flight.settled.result()
    call.cancellation.raise_if_set()
    return _Settled()

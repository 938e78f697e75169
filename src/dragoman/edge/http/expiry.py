"""Streams that end when the token does that opened them.

A stream ends as if its client had left: a call of the modern era is cancelled, and one in a session goes on, so that
the client can resume its stream with a new token.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from dragoman.access.callers import Caller
from dragoman.clock import Clock
from dragoman.edge.asgi import Application, Receive, Scope, Send

_GONE = "http.disconnect"


def until_expired(app: Application, caller: Caller, clock: Clock) -> Application:
    """`app`, if the caller's token does not expire; else one that ends with it. An answer that is no stream is not cut
    short."""
    if caller.expires_at is None:
        return app

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_open = False

        def expire() -> None:
            if not expired.done():
                expired.set_result(None)

        async def receive_until() -> MutableMapping[str, Any]:
            receiving = asyncio.ensure_future(receive())
            try:
                await asyncio.wait((receiving, expired), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not receiving.done():
                    receiving.cancel()
            return {"type": _GONE} if receiving.cancelling() else receiving.result()

        async def send_until(message: MutableMapping[str, Any]) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        left = caller.seconds_left(clock.now().timestamp())
        timer = clock.call_later(left or 0.0, expire)
        try:
            await app(scope, receive_until, send_until)
        finally:
            timer.cancel()
        if expired.done() and is_open:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return run

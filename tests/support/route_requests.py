"""Requests to the handler of a route, as the HTTP application hands them over."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.parts.route import HttpRequest


def request_to(
    path: str,
    method: str = "GET",
    *,
    caller: Caller = ANONYMOUS,
    headers: dict[bytes, bytes] | None = None,
    **scope: Any,
) -> HttpRequest:
    """A request without a body, of a client that stays."""
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await asyncio.get_running_loop().create_future()
        is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def body() -> bytes:
        return b""

    async def collect(most: int, holder: str) -> bytes:
        return b""

    given = headers or {}
    whole = {"type": "http", "method": method, "path": path, "scheme": "http", "headers": list(given.items()), **scope}
    return HttpRequest(path, given, caller, caller is not ANONYMOUS, "/mcp", whole, receive, body, collect)

"""A runtime with the process to itself: served, by a call that blocks, until it is told to stop."""

from __future__ import annotations

import asyncio
import os

from dragoman.app import Runtime
from dragoman.edge.loop import new_event_loop
from dragoman.edge.stdio import Streams, give_back, start_server, take_standard_streams

_LAST_WORDS = 0.5  # Seconds for what was cancelled to end.


def serve_until_stopped(runtime: Runtime, transport: str = "stdio") -> int:
    """Serve until the client leaves, or SIGTERM or SIGINT arrives; how many calls had to be abandoned.

    `transport` is `stdio`, `streamable-http` or `sse`.
    Raises `RuntimeError` where there are no standard streams, `OSError` for an address that cannot be had, and
    `ConfigError` for one that others can reach while nobody is authenticated.
    """
    streams = _standard_streams() if transport == "stdio" else None  # First: what is opened now may take their place.
    loop = new_event_loop(runtime.config.resources.max_concurrent_executions)
    try:
        if streams is not None:
            return loop.run_until_complete(start_server(runtime, streams))
        return _over_http(runtime, loop, sse=transport == "sse")
    finally:
        _close(loop)
        if streams is not None:
            give_back(streams)


def _standard_streams() -> Streams:
    try:
        for descriptor in (0, 1):
            os.fstat(descriptor)
        return take_standard_streams()
    except OSError as error:
        raise RuntimeError(f"the standard streams cannot be used: {error.strerror}") from error


def _over_http(runtime: Runtime, loop: asyncio.AbstractEventLoop, *, sse: bool) -> int:
    from dragoman.edge.http.server import bind, check_address, raise_file_limit, root_of, serve, show_the_way

    config = runtime.config
    http = config.http
    check_address(http.host, config.auth)
    listening = bind(http.host, http.port)
    app = runtime.http(sse=sse)
    raise_file_limit()

    def on_started() -> None:
        if app.explorer is not None:
            root = root_of(http, listening)
            show_the_way(root + app.explorer.address, root + ("/sse" if sse else http.path), config.server.name)

    return loop.run_until_complete(serve(app, listening, http, config.server.shutdown_timeout_ms / 1000, on_started))


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what was abandoned, as far as it lets itself be ended."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LAST_WORDS))
    loop.close()

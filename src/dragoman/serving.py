"""A runtime with the process to itself: served, by a call that blocks, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from dragoman.edge.stdio import Streams, give_back, start_server, take_standard_streams
from dragoman.extras import install_command
from dragoman.process.loop import new_event_loop, run_to_end
from dragoman.process.pages import show_pages
from dragoman.runtime import Runtime

_LAST_WORDS = 0.5  # Seconds for what was cancelled to end.


def serve_until_stopped(runtime: Runtime, transport: str = "stdio") -> int:
    """Serve until the client leaves, or SIGTERM or SIGINT arrives; how many calls had to be abandoned.

    `transport` is `stdio`, `streamable-http` or `sse`.
    Raises `RuntimeError` where there are no standard streams, `OSError` for an address that cannot be had, and
    `ConfigError` for one that others can reach while nobody is authenticated.
    """
    if transport == "stdio":
        with standard_streams_taken() as streams:
            return _run(runtime, lambda loop: run_to_end(loop, start_server(runtime, streams)))
    if find_spec("prometheus_client") is None:
        raise RuntimeError(f"HTTP needs the extra `http`: {install_command('http')}")
    return _run(runtime, lambda loop: _over_http(runtime, loop, sse=transport == "sse"))


@contextmanager
def standard_streams_taken() -> Iterator[Streams]:
    """Keep stdin and stdout for the protocol: what anybody prints meanwhile goes where the log goes.

    Raises `RuntimeError` where there are none. Take them early: what is opened before may have taken their place.
    """
    try:
        for descriptor in (0, 1):
            os.fstat(descriptor)
        streams = take_standard_streams()
    except OSError as error:
        raise RuntimeError(f"the standard streams cannot be used: {error.strerror}") from error
    try:
        yield streams
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # Before it is the client's again.
        give_back(streams)


def _run(runtime: Runtime, serve: Callable[[asyncio.AbstractEventLoop], int]) -> int:
    loop = new_event_loop(runtime.config.resources.max_concurrent_executions)
    try:
        return serve(loop)
    finally:
        _close(loop)


def _over_http(runtime: Runtime, loop: asyncio.AbstractEventLoop, *, sse: bool) -> int:
    from dragoman.edge.http.listening import (
        check_address,
        open_listening,
        raise_file_limit,
        removed_at_the_end,
        root_of,
    )
    from dragoman.edge.http.server import serve

    config = runtime.config
    http = config.http
    check_address(http, config.auth)
    listening = open_listening(http)
    with removed_at_the_end(listening):
        app = runtime.http(sse=sse)
        raise_file_limit()

        def on_started() -> None:
            endpoint = "/sse" if sse else http.path
            show_pages(root_of(http, listening), app.pages, endpoint, config.server.name, app.local_secret)

        timeout = config.server.shutdown_timeout_ms / 1000
        return run_to_end(loop, serve(app, listening, http, timeout, on_started))


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what was abandoned, as far as it lets itself be ended."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LAST_WORDS))
    loop.close()

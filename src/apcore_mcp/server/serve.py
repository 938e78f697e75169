"""`serve`: a registry as an MCP server, until it is told to stop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from apcore_mcp.server.approval import let_clients_approve
from apcore_mcp.server.descriptors import quicken
from apcore_mcp.server.factory import MCPServerFactory
from apcore_mcp.server.listener import RegistryListener
from apcore_mcp.server.router import ExecutionRouter
from dragoman.app import Runtime, ServerOptions, create_server
from dragoman.config import Config, make_config
from dragoman.edge.loop import new_event_loop
from dragoman.edge.stdio import give_back, start_server, take_standard_streams
from dragoman.errors import ConfigError
from dragoman.offers.catalogue import Offers
from dragoman.telemetry.log import Entry, EntryWriter, Logger, StructuredLogger
from dragoman.version import __version__

if TYPE_CHECKING:
    from apcore import Executor, Registry

logger = logging.getLogger(__name__)
runtime_logger = logging.getLogger("apcore_mcp.runtime")

TRANSPORTS = ("stdio", "streamable-http", "sse")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LONGEST_NAME = 255
SLOTS = 100
SHUTDOWN_MS = 5000
_LAST_WORDS = 0.5  # Seconds for what was cancelled to end.


def serve(
    registry_or_executor: Registry | Executor,
    *,
    transport: str = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "apcore-mcp",
    version: str | None = None,
    on_startup: Callable[[], Any] | None = None,
    on_shutdown: Callable[[], Any] | None = None,
    tags: list[str] | None = None,
    prefix: str | None = None,
    log_level: str | None = None,
    dynamic: bool = False,
    validate_inputs: bool = False,
    explorer: bool = False,
    explorer_prefix: str = "/explorer",
    allow_execute: bool = False,
) -> None:
    """Serve modules over MCP until the client leaves, or SIGINT or SIGTERM arrives.

    What is to be done when the server has started, and when its last call has ended, may be sync or async.

    `transport` is `stdio`, `streamable-http` or `sse`; `host`, `port` and what is about the explorer are for the latter
    two. Only modules with all of `tags` and an id that begins with `prefix` are served. With `dynamic`, modules that
    are registered or unregistered later come and go for every client. With `validate_inputs`, arguments are checked
    against the schema before the executor checks them.

    Raises `TypeError` and `ValueError` for what cannot be served, and `OSError` for an address that cannot be had.
    """
    executor = executor_of(registry_or_executor)
    config = settings(
        transport=transport,
        host=host,
        port=port,
        name=name,
        version=version,
        explorer=explorer,
        explorer_prefix=explorer_prefix,
        allow_execute=allow_execute,
    )
    check_filters(tags, prefix)
    for each, hook in (("on_startup", on_startup), ("on_shutdown", on_shutdown)):
        if hook is not None and not callable(hook):
            raise TypeError(f"{each} must be callable or None, got {type(hook).__name__}")
    if log_level is not None:
        _set_log_level(log_level)
    run(
        executor,
        transport.lower(),
        config,
        _logger(config),
        on_startup=on_startup,
        on_shutdown=on_shutdown,
        tags=tags,
        prefix=prefix,
        dynamic=dynamic,
        validate_inputs=validate_inputs,
    )


def executor_of(registry_or_executor: Any) -> Executor:
    """The executor that was given, or one for the registry that was; raises `TypeError` for anything else."""
    if all(hasattr(registry_or_executor, name) for name in ("call_async", "registry")):
        executor: Executor = registry_or_executor
        return executor
    if all(hasattr(registry_or_executor, name) for name in ("list", "get_definition", "on")):
        from apcore import Executor

        return Executor(registry_or_executor)
    raise TypeError(f"Expected Registry or Executor instance, got {type(registry_or_executor).__name__}")


def settings(
    *,
    transport: str,
    host: str,
    port: int,
    name: str,
    version: str | None,
    explorer: bool = False,
    explorer_prefix: str = "/explorer",
    allow_execute: bool = False,
) -> Config:
    """The runtime's settings for a server of modules; raises `ValueError` for what it cannot be told."""
    if transport.lower() not in TRANSPORTS:
        raise ValueError(f"Unknown transport: {transport!r}. Must be one of: {', '.join(TRANSPORTS)}")
    if not name:
        raise ValueError("name must not be empty")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"name must not exceed {LONGEST_NAME} characters")
    if version == "":
        raise ValueError("version must not be empty")
    unlimited = ("max_array_size", "max_string_length", "max_object_depth", "max_object_members")
    chosen: dict[str, Any] = {
        "server": {"name": name, "version": version or __version__, "shutdown_timeout_ms": SHUTDOWN_MS},
        "resources": {"max_concurrent_executions": SLOTS},
        "limits": {**dict.fromkeys(unlimited), "tool_array_limits": {}},
        "response": {"dialect": "plain"},
    }
    if transport.lower() != "stdio":
        if not host:
            raise ValueError("Host must not be empty")
        if not 1 <= port <= 65_535:
            raise ValueError(f"Port must be between 1 and 65535, got {port}")
        if not explorer_prefix.startswith("/"):
            raise ValueError(f"explorer_prefix must start with '/', got {explorer_prefix!r}")
        chosen["http"] = {"host": host, "port": port}
        chosen["auth"] = {"allow_unauthenticated": True}  # Whom a module is for, the executor's access rules say.
        chosen["explorer"] = {"enabled": explorer, "prefix": explorer_prefix, "allow_execute": allow_execute}
    try:
        return make_config(chosen)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def check_filters(tags: list[str] | None, prefix: str | None) -> None:
    """Raise `ValueError` for what no module can have."""
    if tags is not None and not all(tags):
        raise ValueError("Tag values must not be empty")
    if prefix == "":
        raise ValueError("prefix must not be empty")


def attach(
    runtime: Runtime,
    registry_or_executor: Registry | Executor,
    *,
    tags: list[str] | None = None,
    prefix: str | None = None,
    dynamic: bool = False,
    validate_inputs: bool = False,
) -> RegistryListener:
    """Put modules beside whatever tools a runtime has; with `dynamic`, they come and go until the listener is stopped.

    Their documentation is listed only if the runtime was made to have resources: `ServerOptions(offers=Offers())`.
    """
    executor = executor_of(registry_or_executor)
    quicken(executor)
    asks = let_clients_approve(executor)
    factory = MCPServerFactory(ExecutionRouter(executor), validate_inputs=validate_inputs, asks=asks)
    listener = RegistryListener(executor.registry, factory, tags=tags, prefix=prefix, runtime=runtime)
    if dynamic:
        listener.start()
    else:
        listener.load()
    return listener


def run(
    executor: Executor,
    transport: str,
    config: Config,
    log: Logger,
    *,
    on_startup: Callable[[], Any] | None = None,
    on_shutdown: Callable[[], Any] | None = None,
    tags: list[str] | None = None,
    prefix: str | None = None,
    dynamic: bool = False,
    validate_inputs: bool = False,
    log_is_full: Callable[[], bool] = lambda: False,
) -> None:
    """Serve with settings that have been checked."""

    @asynccontextmanager
    async def lifespan(runtime: Runtime) -> AsyncIterator[None]:
        logger.info("apcore-mcp server started: %d tools registered, transport=%s", len(runtime.catalogue), transport)
        await _call(on_startup)
        try:
            yield
        finally:
            listener.stop()
            await _call(on_shutdown)

    offers = Offers(config.tools, config.timeouts, expected=["resources"])
    runtime = create_server(
        ServerOptions(config=config, logger=log, offers=offers, has_health=False, lifespan=lifespan)
    )
    listener = attach(runtime, executor, tags=tags, prefix=prefix, dynamic=dynamic, validate_inputs=validate_inputs)
    if not listener.tools:
        logger.warning("No modules registered; server starting with zero tools")
    loop = new_event_loop(SLOTS)
    try:
        if transport == "stdio":
            _serve_stdio(runtime, loop, log_is_full)
        else:
            _serve_http(runtime, loop, sse=transport == "sse")
    finally:
        listener.stop()
        _close(loop)


def _serve_stdio(runtime: Runtime, loop: asyncio.AbstractEventLoop, log_is_full: Callable[[], bool]) -> None:
    try:
        for descriptor in (0, 1):
            os.fstat(descriptor)
        streams = take_standard_streams()
    except OSError as error:
        raise RuntimeError(f"The standard streams cannot be used: {error}") from error
    try:
        loop.run_until_complete(start_server(runtime, streams, log_is_full=log_is_full))
    finally:
        give_back(streams)


def _serve_http(runtime: Runtime, loop: asyncio.AbstractEventLoop, *, sse: bool) -> None:
    from dragoman.edge.http.server import bind, is_loopback, raise_file_limit, root_of, show_the_way
    from dragoman.edge.http.server import serve as serve_http

    http = runtime.config.http
    if sse:
        logger.warning("SSE transport is deprecated; use streamable-http instead")
    if not is_loopback(http.host):
        logger.warning("%s can be reached from other machines, and nobody is authenticated", http.host)
    listening = bind(http.host, http.port)
    app = runtime.http(sse=sse)
    raise_file_limit()

    def on_started() -> None:
        if app.explorer is not None:
            root = root_of(http, listening)
            show_the_way(root + app.explorer.address, root + ("/sse" if sse else http.path), runtime.config.server.name)

    timeout = runtime.config.server.shutdown_timeout_ms / 1000
    loop.run_until_complete(serve_http(app, listening, http, timeout, on_started))


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what was abandoned, as far as it lets itself be ended."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LAST_WORDS))
    loop.close()


async def _call(hook: Callable[[], Any] | None) -> None:
    if hook is not None:
        value = hook()
        if inspect.isawaitable(value):
            await value


def _set_log_level(level: str) -> None:
    if level.upper() not in LOG_LEVELS:
        raise ValueError(f"Unknown log level: {level!r}. Must be one of: {', '.join(LOG_LEVELS)}")
    logging.basicConfig(level=level.upper())
    logging.getLogger("apcore_mcp").setLevel(level.upper())


def _logger(config: Config) -> Logger:
    """The runtime's log as Python has logs: what it only records is for whoever debugs."""
    write = EntryWriter(config.logging)
    levels = {"warn": logging.WARNING, "error": logging.ERROR}

    def put(entry: Entry) -> None:
        level = entry["level"] if isinstance(entry, dict) else entry.level
        runtime_logger.log(levels.get(level, logging.DEBUG), "%s", write([entry]).decode().rstrip())

    least = "info" if runtime_logger.isEnabledFor(logging.DEBUG) else "warn"
    return StructuredLogger(put, config=make_config({"logging": {"level": least}}).logging)

"""`serve`: a registry as an MCP server, until it is told to stop."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from apcore_mcp.server.approval import let_clients_approve
from apcore_mcp.server.factory import MCPServerFactory
from apcore_mcp.server.listener import RegistryListener
from apcore_mcp.server.quicken import quicken
from apcore_mcp.server.router import ExecutionRouter
from dragoman.app import Runtime, ServerOptions, create_server
from dragoman.config import Config, make_config
from dragoman.edge.address import is_loopback
from dragoman.errors import ConfigError
from dragoman.offers.catalogue import Offers
from dragoman.serving import serve_until_stopped
from dragoman.telemetry.python_logging import log_to_python
from dragoman.version import __version__

if TYPE_CHECKING:
    from apcore import Executor, Registry

logger = logging.getLogger(__name__)

Hook: TypeAlias = Callable[[], Any]

TRANSPORTS = ("stdio", "streamable-http", "sse")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LONGEST_NAME = 255


def serve(
    registry_or_executor: Registry | Executor,
    *,
    transport: str = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "apcore-mcp",
    version: str | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
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

    `transport` is `stdio`, `streamable-http` or `sse`; `host`, `port` and what is about the explorer are for the latter
    two. What is to be done when the server has started, and when its last call has ended, may be sync or async. Only
    modules with all of `tags` and an id that begins with `prefix` are served. With `dynamic`, modules that are
    registered or unregistered later come and go for every client. With `validate_inputs`, arguments are checked against
    the schema before the executor checks them.

    Raises `TypeError` and `ValueError` for what cannot be served, and `OSError` for an address that cannot be had.
    """
    executor, kind = executor_of(registry_or_executor), transport.lower()
    is_http, level = kind != "stdio", None if log_level is None else log_level.upper()
    _refuse(
        (kind not in TRANSPORTS, f"Unknown transport: {transport!r}. Must be one of: {', '.join(TRANSPORTS)}"),
        (is_http and not host, "Host must not be empty"),
        (is_http and not 1 <= port <= 65_535, f"Port must be between 1 and 65535, got {port}"),
        (is_http and not explorer_prefix.startswith("/"), "explorer_prefix must start with '/'"),
        (not name, "name must not be empty"),
        (len(name) > LONGEST_NAME, f"name must not exceed {LONGEST_NAME} characters"),
        (version == "", "version must not be empty"),
        (not all(tags or ()), "Tag values must not be empty"),
        (prefix == "", "prefix must not be empty"),
        (level not in (None, *LEVELS), f"Unknown log level: {log_level!r}. Must be one of: {', '.join(LEVELS)}"),
    )
    for hook, which in ((on_startup, "on_startup"), (on_shutdown, "on_shutdown")):
        if not (hook is None or callable(hook)):
            raise TypeError(f"{which} must be callable or None, got {type(hook).__name__}")
    page = {"enabled": explorer, "prefix": explorer_prefix, "allow_execute": allow_execute}
    config = settings(name, version, {"http": {"host": host, "port": port}, "explorer": page} if is_http else {})
    if level is not None:
        logging.basicConfig(level=level)
        logging.getLogger("apcore_mcp").setLevel(level)

    @asynccontextmanager
    async def lifespan(runtime: Runtime) -> AsyncIterator[None]:
        count = len(runtime.catalogue)
        logger.info("apcore-mcp server started: %d tools registered, transport=%s", count, kind)
        await _call(on_startup)
        try:
            yield
        finally:
            listener.stop()
            await _call(on_shutdown)

    log, offers = log_to_python("apcore_mcp.runtime"), Offers(config.tools, config.timeouts, expected=["resources"])
    options = ServerOptions(config=config, logger=log, offers=offers, has_health=False, lifespan=lifespan)
    runtime = create_server(options)
    listener = attach(runtime, executor, tags=tags, prefix=prefix, dynamic=dynamic, validate_inputs=validate_inputs)
    for is_so, warning in (
        (not listener.tools, "No modules registered; server starting with zero tools"),
        (kind == "sse", "SSE transport is deprecated; use streamable-http instead"),
        (is_http and not is_loopback(host), "Others can reach this address, and nobody is authenticated"),
    ):
        if is_so:
            logger.warning(warning)
    try:
        serve_until_stopped(runtime, kind)
    finally:
        listener.stop()


def _refuse(*rules: tuple[bool, str]) -> None:
    for is_broken, rule in rules:
        if is_broken:
            raise ValueError(rule)


def settings(name: str, version: str | None, more: dict[str, Any]) -> Config:
    """The runtime's settings for a server of modules. Whom a module is for, the executor's access rules say."""
    server = {"name": name, "version": version or __version__, "shutdown_timeout_ms": 5000}
    limits = dict.fromkeys(("max_array_size", "max_string_length", "max_object_depth", "max_object_members"))
    chosen = {
        "server": server,
        "resources": {"max_concurrent_executions": 100},
        "limits": {**limits, "tool_array_limits": {}},
        "response": {"dialect": "plain"},
        "auth": {"allow_unauthenticated": True},
    }
    try:
        return make_config({**chosen, **more})
    except ConfigError as error:
        raise ValueError(str(error)) from None


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
    router = ExecutionRouter(executor, runtime.config.response.max_value_bytes)
    factory = MCPServerFactory(router, validate_inputs=validate_inputs, asks=let_clients_approve(executor))
    listener = RegistryListener(executor.registry, factory, tags=tags, prefix=prefix, runtime=runtime)
    listener.start(follow=dynamic)
    runtime.log_calls(logger, "apcore_mcp")
    return listener


def executor_of(registry_or_executor: Any) -> Executor:
    """The executor that was given, or one for the registry that was; raises `TypeError` for anything else."""
    if hasattr(registry_or_executor, "call_async"):
        executor: Executor = registry_or_executor
        return executor
    if hasattr(registry_or_executor, "get_definition"):
        from apcore import Executor

        return Executor(registry_or_executor)
    raise TypeError(f"Expected Registry or Executor instance, got {type(registry_or_executor).__name__}")


async def _call(hook: Hook | None) -> None:
    value = None if hook is None else hook()
    if inspect.isawaitable(value):
        await value

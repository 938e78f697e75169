"""Servers with the tools of another framework: what its users tell it, checked and made a runtime."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from dragoman.app import ServerOptions, create_server
from dragoman.config import Config, Settings
from dragoman.errors import ConfigError
from dragoman.offers.catalogue import Offers
from dragoman.parts.installed import sections_of_installed
from dragoman.parts.part import Contribution, Facilities, Part
from dragoman.process.address import is_loopback
from dragoman.runtime import Runtime
from dragoman.serving import serve_until_stopped
from dragoman.telemetry.python_logging import log_to_python
from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.access.authenticator import Identify
    from dragoman.edge.http.app import HttpApp

TRANSPORTS = ("stdio", "streamable-http", "sse")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LONGEST_NAME = 255

Framework: TypeAlias = tuple[str, Mapping[str, Any]]
"""Its name, and the settings in which it differs from Dragoman's defaults."""
Hook: TypeAlias = Callable[..., Any]
"""May be sync or async."""


def make_runtime(
    framework: Framework,
    part: Part,
    *,
    name: str,
    version: str | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    is_http: bool = True,
    explorer: bool = False,
    explorer_prefix: str = "/explorer",
    allow_execute: bool = False,
    flags: Mapping[str, Any] | None = None,
    **sources: Any,
) -> tuple[Runtime, Hook]:
    """A runtime with the tools of `part` alone, and a function that stops the part if the runtime is never started.

    `flags` and `sources` are as for `framework_settings`. When the part has started, `on_startup` is called; when the
    last call has ended, the part is stopped, once, and `on_shutdown` is called. The `stop` of the part is sync. The log
    goes to Python's, as `<framework>.runtime`. Raises `TypeError` and `ValueError` for what cannot be served.
    """
    refuse(
        (is_http and not explorer_prefix.startswith("/"), "explorer_prefix must start with '/'"),
        (not name, "name must not be empty"),
        (len(name) > LONGEST_NAME, f"name must not exceed {LONGEST_NAME} characters"),
        (version == "", "version must not be empty"),
    )
    for hook, which in ((on_startup, "on_startup"), (on_shutdown, "on_shutdown")):
        if not (hook is None or callable(hook)):
            raise TypeError(f"{which} must be callable or None, got {type(hook).__name__}")
    page = {"enabled": explorer, "prefix": explorer_prefix, "allow_execute": allow_execute} if is_http else {}
    shown = {f"explorer.{setting}": value for setting, value in page.items()}
    config = framework_settings(framework, name, version, {**shown, **(flags or {})}, **sources)
    ending = ExitStack()

    def build(given: Facilities) -> Contribution:
        built = part.build(given)
        if built.stop is not None:
            ending.callback(built.stop)
        return replace(built, stop=ending.close)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await call_hook(on_startup)
        try:
            yield
        finally:
            ending.close()
            await call_hook(on_shutdown)

    log = log_to_python(f"{framework[0]}.runtime")
    offers = Offers(config.tools, config.timeouts, expected=["resources"])
    told: Any = {"config": config, "logger": log, "offers": offers, "has_health": False, "lifespan": lifespan}
    try:
        return create_server(ServerOptions(parts=[replace(part, build=build)], **told)), ending.close
    except BaseException:
        ending.close()
        raise


def make_app(framework: Framework, part: Part, *, identify: Identify | None = None, **options: Any) -> HttpApp:
    """An ASGI application of such a runtime; `identify` is as for `Runtime.http`, `options` for `make_runtime`."""
    runtime, end = make_runtime(framework, part, **options)
    try:
        return runtime.http(identify=identify)
    except ConfigError as error:
        end()
        raise ValueError(str(error)) from None


def serve_framework(
    framework: Framework,
    part: Part,
    *,
    transport: str,
    host: str,
    port: int,
    log_level: str | None,
    nothing: str,
    allowed_hosts: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Serve such a runtime until it is told to stop; `options` are those of `make_runtime`.

    Settings are read from the environment too. `log_level` sets up Python's logging. `nothing` is logged if there are
    no tools. Raises `OSError` for an address that cannot be had, and what `make_runtime` raises.
    """
    kind, level = transport.lower(), None if log_level is None else log_level.upper()
    is_http = kind != "stdio"
    refuse(
        (kind not in TRANSPORTS, f"Unknown transport: {transport!r}. Must be one of: {', '.join(TRANSPORTS)}"),
        (is_http and not host, "Host must not be empty"),
        (is_http and not 1 <= port <= 65_535, f"Port must be between 1 and 65535, got {port}"),
        (level not in (None, *LEVELS), f"Unknown log level: {log_level!r}. Must be one of: {', '.join(LEVELS)}"),
    )
    logger = logging.getLogger(framework[0])
    if level is not None:
        logging.basicConfig(level=level)
        logger.setLevel(level)
    flags = {"http.host": host, "http.port": port, "http.allowed_hosts": allowed_hosts} if is_http else {}
    told = {"is_http": is_http, "flags": flags, "environ": os.environ, **options}
    runtime, end = make_runtime(framework, part, **told)
    is_open = is_http and not (is_loopback(host) or runtime.config.auth.is_set)
    for is_so, warning in (
        (not len(runtime.catalogue), f"{nothing}; server starting with zero tools"),
        (kind == "sse", "SSE transport is deprecated; use streamable-http instead"),
        (is_open, "Others can reach this address, and nobody is authenticated"),
    ):
        if is_so:
            logger.warning(warning)
    try:
        serve_until_stopped(runtime, kind)
    finally:
        end()


def framework_settings(
    framework: Framework,
    name: str,
    version: str | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    **sources: Any,
) -> Config:
    """A framework's settings, `config` over them, then what `sources` (`file`, `environ`) and `flags` have.

    Without `environ`, no variables are read. Raises `ValueError` with everything that is wrong.
    """
    given = {"server.name": name, "server.version": version or __version__, **(flags or {})}
    below = (framework, ("config", config or {}))
    try:
        sources = {"environ": {}, "find_sections": sections_of_installed, **sources}
        return Settings.load(flags=given, below=below, searches=False, **sources).config
    except ConfigError as error:
        raise ValueError(str(error)) from None


def refuse(*rules: tuple[bool, str]) -> None:
    """Raise `ValueError` for the first rule that is broken."""
    for is_broken, rule in rules:
        if is_broken:
            raise ValueError(rule)


async def call_hook(hook: Hook | None, *arguments: Any) -> Any:
    """What a function returns that may be async; None if there is none."""
    value = None if hook is None else hook(*arguments)
    return await value if inspect.isawaitable(value) else value

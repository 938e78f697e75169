"""`serve`: a registry as an MCP server, until it is told to stop."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from apcore_mcp.server.approval import let_clients_approve
from apcore_mcp.server.factory import MCPServerFactory
from apcore_mcp.server.listener import RegistryListener
from apcore_mcp.server.quicken import quicken
from apcore_mcp.server.router import ExecutionRouter
from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.calls.call_log import call_log
from dragoman.config import Config
from dragoman.frameworks import Framework, Hook, call_hook, framework_settings, make_app, refuse, serve_framework
from dragoman.parts.part import Contribution, Facilities, Part
from dragoman.runtime import Runtime

if TYPE_CHECKING:
    from apcore import ACL, Executor, Identity, Middleware, Registry

    from dragoman.edge.http.app import HttpApp

logger = logging.getLogger(__name__)


class HeaderAuthenticator(Protocol):
    """Tells who sends a request, by its headers, whose names are in lower case."""

    def authenticate(self, headers: dict[str, str], /) -> Identity | Awaitable[Identity | None] | None: ...


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
    run(**locals())


def run(registry_or_executor: Registry | Executor, *, transport: str, **more: Any) -> None:
    """`serve`, which may be given a `file` of settings too, and `allowed_hosts`, the names that it is reached by."""
    parts = _parts(registry_or_executor, transport.lower(), more)
    serve_framework(*parts, transport=transport, nothing="No modules registered", **more)


def app(
    registry_or_executor: Registry | Executor,
    *,
    name: str = "apcore-mcp",
    version: str | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    tags: list[str] | None = None,
    prefix: str | None = None,
    dynamic: bool = False,
    validate_inputs: bool = False,
    explorer: bool = False,
    explorer_prefix: str = "/explorer",
    allow_execute: bool = False,
    authenticator: HeaderAuthenticator | None = None,
    require_auth: bool = True,
    acl: ACL | None = None,
    middleware: Sequence[Middleware] = (),
    allowed_hosts: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> HttpApp:
    """Modules as an ASGI application with MCP at `/mcp`: for any ASGI server, or to be mounted in another application.

    Give its `lifespan` to the application that it is mounted in, so that it ends in order.

    `authenticator` has a method `authenticate(headers)`, sync or async, that returns apcore's `Identity` of the caller,
    or None. A request without an identity is refused or, if `require_auth` is False, served without one. `acl` and
    `middleware` are added to the executor, also to one that is given. `allowed_hosts` are the names that the server is
    reached by. `config` holds other settings, nested as in a file. The other parameters are those of `serve`.

    Raises `TypeError` and `ValueError` for what cannot be served.
    """
    given = dict(locals())  # A copy: from Python 3.12 on, the names in a comprehension may become part of `locals()`.
    shared = {each: value for each, value in given.items() if each not in _OWN}
    executor = executor_of(registry_or_executor)

    async def identify(headers: dict[str, str]) -> Caller | None:
        identity = None if authenticator is None else await call_hook(authenticator.authenticate, headers)
        if identity is None:
            return None if require_auth else ANONYMOUS
        return Caller(str(identity.id), frozenset(identity.roles), identity=identity)

    shared |= {"flags": {"http.allowed_hosts": allowed_hosts}, "identify": None if authenticator is None else identify}
    made = make_app(*_parts(executor, "streamable-http", shared), **shared)
    for each in middleware:
        executor.use(each)
    if acl is not None:
        executor.set_acl(acl)
    return made


_OWN = ("registry_or_executor", "authenticator", "require_auth", "acl", "middleware", "allowed_hosts")
"""The parameters of `app` that are not for `make_runtime`."""


@asynccontextmanager
async def async_serve(registry_or_executor: Registry | Executor, **options: Any) -> AsyncIterator[HttpApp]:
    """What `app` makes with these options, started; at the end of the block it is stopped in order."""
    made = app(registry_or_executor, **options)
    async with made.lifespan():
        yield made


def _parts(source: Registry | Executor, kind: str, given: dict[str, Any]) -> tuple[Framework, Part]:
    """The arguments that make a runtime serve modules. Removes the ones about modules from `given`."""
    which = {each: given.pop(each) for each in ("tags", "prefix", "dynamic", "validate_inputs") if each in given}
    refuse(
        (not all(which.get("tags") or ()), "Tag values must not be empty"),
        (which.get("prefix") == "", "prefix must not be empty"),
    )
    # With `sse` every result is an event, and clients end the connection when one is above a mebibyte.
    framework = ("apcore_mcp", {**_DEFAULTS, "response": _SMALL}) if kind == "sse" else _FRAMEWORK
    return framework, modules_part(source, transport=kind, **which)


def settings(name: str) -> Config:
    """The settings of a runtime for modules that is not served."""
    return framework_settings(_FRAMEWORK, name)


_SMALL = {"dialect": "plain"}
# A result has the output twice: as text, in which JSON takes up to twice its length, and as structured content.
_LARGE = {**_SMALL, "max_response_bytes": 4 * 1024 * 1024}
# Where a server of modules differs from Dragoman's defaults. The executor's access rules decide who may call what.
_DEFAULTS = {
    "server": {"shutdown_timeout_ms": 5000},
    "resources": {"max_concurrent_executions": 100},
    "limits": dict.fromkeys(("max_array_size", "max_string_length", "max_object_depth", "max_object_members")),
    "response": _LARGE,
    "auth": {"allow_unauthenticated": True},
}
_FRAMEWORK: Framework = ("apcore_mcp", _DEFAULTS)


def modules_part(source: Registry | Executor, *, transport: str | None = None, **which: Any) -> Part:
    """Modules as a part of a server; `which` is for `attach`. With `transport`, the log says that it has started."""
    executor = executor_of(source)

    def build(given: Facilities) -> Contribution:
        def announce() -> None:
            count = len(given.catalogue)
            logger.info("apcore-mcp server started: %d tools registered, transport=%s", count, transport)

        return Contribution(start=announce if transport else None, stop=attach(given, executor, **which).stop)

    return Part(name="apcore_mcp", build=build)


def attach(
    runtime: Runtime | Facilities,
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
    given = runtime.facilities if isinstance(runtime, Runtime) else runtime
    executor = executor_of(registry_or_executor)
    quicken(executor)
    router = ExecutionRouter(executor, given.max_value_bytes)
    factory = MCPServerFactory(router, validate_inputs=validate_inputs, asks=let_clients_approve(executor))
    listener = RegistryListener(executor.registry, factory, tags=tags, prefix=prefix, given=given)
    listener.start(follow=dynamic)
    given.on_submit.append(call_log(given.catalogue, logger, "apcore_mcp"))
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

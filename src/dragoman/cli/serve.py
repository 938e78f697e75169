"""`dragoman serve`: run tools for a client."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import sys
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dragoman.cli.options import ConfigFile, ExtensionsDir, LogLevelOption, Target, settings_from
from dragoman.cli.output import refuse
from dragoman.config import Config
from dragoman.edge.settings import HttpConfig
from dragoman.errors import ConfigError, PartFailed, TargetError
from dragoman.extras import install_command
from dragoman.process.exit_codes import ABANDONED, UNUSABLE
from dragoman.process.signals import leave
from dragoman.sections import nearest
from dragoman.workers.control import Source

if TYPE_CHECKING:
    from dragoman.cli.reload import Reloader
    from dragoman.runtime import Runtime
    from dragoman.telemetry.log import StructuredLogger
    from dragoman.telemetry.sink import DescriptorSink
    from dragoman.workers.siblings import SocketSiblings


class Transport(StrEnum):
    """How clients connect."""

    STDIO = "stdio"
    STREAMABLE_HTTP = "streamable-http"
    SSE = "sse"


def _transport(text: str) -> Transport:
    """The transport of that name."""
    try:
        return Transport(text)
    except ValueError:
        meant = Transport.STREAMABLE_HTTP if text == "http" else None
        hint = f"; did you mean {meant}?" if meant is not None else nearest(text, Transport)
        raise typer.BadParameter(f"there is no transport {text!r}{hint} There are {', '.join(Transport)}.") from None


_OVER_HTTP = {
    "http.host": "--host",
    "http.port": "--port",
    "http.uds": "--uds",
    "explorer.prefix": "--explorer-prefix",
    "auth.allow_unauthenticated": "--allow-unauthenticated",
    "explorer.enabled": "--explorer",
    "explorer.allow_execute": "--allow-execute",
}
"""The settings that only HTTP has, and their options."""


def serve(
    target: Target = None,
    transport: Annotated[
        Transport,
        typer.Option(parser=_transport, metavar="|".join(Transport), help="How clients connect."),
    ] = Transport.STDIO,
    host: Annotated[str | None, typer.Option(help="The address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on. [default: 8000]")] = None,
    uds: Annotated[str | None, typer.Option(help="The path of a Unix socket to listen on instead.")] = None,
    config: ConfigFile = None,
    log_level: LogLevelOption = None,
    allow_unauthenticated: Annotated[
        bool, typer.Option("--allow-unauthenticated", help="Let anybody call who can reach the address.")
    ] = False,
    explorer: Annotated[
        bool, typer.Option("--explorer", help="Serve a page to look at the tools, beside MCP over HTTP.")
    ] = False,
    explorer_prefix: Annotated[str | None, typer.Option(help="The path of that page. [default: /explorer]")] = None,
    allow_execute: Annotated[
        bool, typer.Option("--allow-execute", help="Let tools be run from that page, by who has the printed address.")
    ] = False,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Serve signed actions on documents, and the same as tools.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Load the tools anew when their files change, for development.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=999, help="Processes that serve, with streamable-http.")] = 1,
    extensions_dir: ExtensionsDir = None,
    app_dir: Annotated[
        str | None,
        typer.Option(
            "--app-dir",
            help="Where to look for a TARGET that is a module and not installed. Without it, the working directory.",
        ),
    ] = None,
) -> None:
    """Serve the tools in TARGET: to one client over standard input and output, or to many over HTTP.

    Log lines go to stderr. With stdio, stdout carries only the protocol, and options for HTTP are refused.

    Exit codes: 0 after an orderly stop, 1 when a worker died before it was ready, 2 when the settings, TARGET or the
    address cannot be used, 3 when calls had to be abandoned.
    """
    switches = (each or None for each in (allow_unauthenticated, explorer, allow_execute))
    over_http = dict(zip(_OVER_HTTP, (host, port, uds, explorer_prefix, *switches), strict=True))
    _check_transport(transport, over_http)
    flags = {"logging.level": log_level, "gateway.enabled": gateway or None, **over_http}
    settings = settings_from(config, flags).config
    _check_explorer(settings, over_http)
    if reload and target is None and extensions_dir is None:
        refuse("--reload needs a TARGET, or --extensions-dir")
    _check_workers(workers, transport)
    source = Source(target, extensions_dir, reload, app_dir)
    if transport is Transport.STDIO:
        _serve_stdio(source, settings)
    elif workers > 1:
        _serve_with(workers, source, settings)
    else:
        _serve_http(source, settings, sse=transport is Transport.SSE)


def _check_transport(transport: Transport, over_http: Mapping[str, Any]) -> None:
    """End the command if HTTP is not installed, or if options were given that only HTTP has."""
    if transport is not Transport.STDIO:
        if find_spec("prometheus_client") is None:
            refuse(f"HTTP needs the extra `http`: {install_command('http')}")
        return
    if given := [option for setting, option in _OVER_HTTP.items() if over_http[setting] is not None]:
        refuse(f"{', '.join(given)}: only with --transport streamable-http; stdio has no address and no page")


def _check_explorer(settings: Config, over_http: Mapping[str, Any]) -> None:
    """End the command if options were given that only the explorer has, and there is none."""
    for setting in ("explorer.allow_execute", "explorer.prefix"):
        if over_http[setting] is not None and not settings.explorer.enabled:
            refuse(f"{_OVER_HTTP[setting]} is for the explorer: add --explorer")


def _serve_stdio(source: Source, settings: Config) -> None:
    # Everything slow is imported after the command line has been understood, and before the client is answered.
    from dragoman.edge.stdio import start_server, take_standard_streams

    streams = take_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # What tools print is for whoever reads the log now.
    if os.isatty(streams.input):
        sys.stderr.write("dragoman: waiting for an MCP client on stdin; type JSON-RPC lines, or end with Ctrl-D.\n")
        if source.is_builtin:
            sys.stderr.write("dragoman: there is no TARGET, so only the built-in tools are served.\n")
    prepared = prepare(source, settings)
    server, logger, sink = prepared.server, prepared.logger, prepared.sink

    def on_started() -> None:
        logger.info("server started", {"tools": len(server.catalogue), "transport": "stdio"})

    serving = start_server(server, streams, log_is_full=lambda: sink.is_full, on_started=on_started)
    abandoned = run(prepared, serving)
    finish(prepared, abandoned)


def _serve_http(source: Source, settings: Config, *, sse: bool) -> None:
    from dragoman.edge.http.listening import (
        check_address,
        open_listening,
        raise_file_limit,
        removed_at_the_end,
        root_of,
    )
    from dragoman.edge.http.server import serve
    from dragoman.process.pages import show_pages

    http = settings.http
    with ExitStack() as at_end:
        try:
            check_address(http, settings.auth)
            listening = open_listening(http)
            at_end.enter_context(removed_at_the_end(listening))
            prepared = prepare(source, settings)
            server, logger = prepared.server, prepared.logger
            app = server.http(sse=sse)
        except ConfigError as error:
            refuse("The settings cannot be used:", *str(error).splitlines())
        except (OSError, UnicodeError) as error:
            _refuse_address(http, error)
        raise_file_limit()
        if sse:
            logger.warn("SSE transport is deprecated; use streamable-http instead")
        root = root_of(http, listening)
        endpoint = "/sse" if sse else http.path
        facts = {
            "tools": len(server.catalogue),
            "transport": "sse" if sse else "streamable-http",
            "address": root + endpoint,
        }
        timeout = settings.server.shutdown_timeout_ms / 1000

        def on_started() -> None:
            logger.info("server started", facts)
            show_pages(root, app.pages, endpoint, settings.server.name, app.local_secret)

        abandoned = run(prepared, serve(app, listening, http, timeout, on_started))
    finish(prepared, abandoned)


def _refuse_address(http: HttpConfig, error: OSError | UnicodeError) -> NoReturn:
    """A name that is too long for one is a `UnicodeError`."""
    address = f"{http.host} port {http.port}" if http.uds is None else http.uds
    said = f"Cannot listen on {address}: {getattr(error, 'strerror', None) or error}"
    if http.uds is None and getattr(error, "errno", None) == errno.EADDRINUSE:
        from dragoman.cli.port_holder import holder_of

        holder = holder_of(http.port)
        refuse(said, f"{'it is taken' if holder is None else f'{holder}, listens there'}; choose another with --port")
    refuse(said)


def _check_workers(workers: int, transport: Transport) -> None:
    if workers == 1:
        return
    if transport is not Transport.STREAMABLE_HTTP:
        why = "stdin has one reader" if transport is Transport.STDIO else "its sessions cannot move between them"
        refuse(f"--workers needs --transport streamable-http; with {transport.value} there is one process: {why}")
    if sys.platform == "win32":
        refuse("--workers needs sockets that processes share, which Windows does not have; start one server per port")


def _serve_with(workers: int, source: Source, settings: Config) -> None:
    from dragoman.access.local_secret import find_local_secret
    from dragoman.edge.http.listening import check_address, is_near, removed_at_the_end, root_of
    from dragoman.process.pages import show_pages
    from dragoman.storage.settings import data_directory
    from dragoman.telemetry.python_logging import take_over_logging
    from dragoman.telemetry.stderr import log_to_stderr
    from dragoman.workers.folder import LOG_TURNS, private_folder
    from dragoman.workers.parent import Processes, check_settings, reserve, supervise

    http = settings.http
    try:
        check_address(http, settings.auth)
        check_settings(settings, workers, has_memories=source.is_builtin or settings.tools.memory_enabled)
        secret: str | None = None
        if settings.has_local_secret() and is_near(http):
            secret = find_local_secret(data_directory(settings.storage, os.environ))
        listening = reserve(http)
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    except (OSError, UnicodeError) as error:
        _refuse_address(http, error)
    with private_folder() as folder, removed_at_the_end(listening):
        logger, sink = log_to_stderr(settings.logging, turns=folder / LOG_TURNS)
        take_over_logging(logger)

        def say() -> None:
            facts = {
                "transport": "streamable-http",
                "address": root_of(http, listening) + http.path,
                "workers": workers,
            }
            logger.info("server started", facts)
            if secret is not None:
                show_pages(root_of(http, listening), ["/knowledge/"], http.path, settings.server.name, secret)

        processes = Processes(workers, "dragoman.cli.worker", listening, folder)
        code = asyncio.run(supervise(processes, source, settings, logger, say))
    logger.info("server stopped", {"exitCode": code})
    sink.close()
    leave(code)


@dataclass(frozen=True)
class Prepared:
    """A server that is ready to run, and what it runs with."""

    server: Runtime
    logger: StructuredLogger
    sink: DescriptorSink
    loop: asyncio.AbstractEventLoop


def prepare(source: Source, settings: Config, siblings: SocketSiblings | None = None) -> Prepared:
    """The server with its tools, its log and the loop it will run on; `siblings`, if it is one of several workers."""
    from dragoman.cli.target import server_with, tools_for, with_space
    from dragoman.clock import SystemClock
    from dragoman.process.collector import collect_less
    from dragoman.process.loop import new_event_loop
    from dragoman.telemetry.python_logging import take_over_logging
    from dragoman.telemetry.stderr import log_to_stderr

    clock, settings = SystemClock(), with_space(settings, source)
    options: dict[str, Any] = {"has_durable_agents": True}
    if siblings is None:
        logger, sink = log_to_stderr(settings.logging)
    else:
        from dragoman.workers.folder import LOG_TURNS

        turns = siblings.folder / LOG_TURNS
        logger, sink = log_to_stderr(settings.logging, worker=siblings.index, turns=turns)
        options |= {"is_owner": siblings.index == 0, "cursor_mark": siblings.mark}
    take_over_logging(logger)
    _set_up_spans(logger, settings.server.name)
    reloader: Reloader | None = None
    if source.reload:
        from dragoman.agents.coordinator import Coordinator
        from dragoman.cli.reload import Reloader
        from dragoman.offers.catalogue import Offers

        reloader = Reloader(source, settings)
        # What it has not yet, it may have soon.
        options |= {"offers": Offers(settings.tools, settings.timeouts), "agents": Coordinator()}
    tools = tools_for(source, settings)
    server = server_with(tools, settings, clock=clock, logger=logger, memory_tools=source.is_builtin, **options)
    if server.agents is not None and siblings is not None and settings.storage.engine == "memory":
        refuse("storage.engine: each worker would have agents of its own; use sqlite, or one worker")
    collect_less(has_agents=server.agents is not None)
    loop = new_event_loop(settings.resources.max_concurrent_executions)
    if reloader is not None:
        reloader.watch(server, tools, loop)
    return Prepared(server, logger, sink, loop)


def run(prepared: Prepared, serving: Coroutine[Any, Any, int]) -> int:
    """How many calls had to be abandoned; or the end of the process, if a part or the target's lifespan fails."""
    from dragoman.cli.target import refuse_target
    from dragoman.process.loop import run_to_end

    try:
        return run_to_end(prepared.loop, serving)
    except (ConfigError, PartFailed, TargetError) as error:
        prepared.sink.close()
        with suppress(typer.Exit):
            if isinstance(error, ConfigError):
                refuse("The settings cannot be used:", *str(error).splitlines())
            refuse_target(error, prepared.server.config)
        leave(UNUSABLE)  # A thread that the lifespan has started must not keep the process.


def _set_up_spans(logger: StructuredLogger, name: str) -> None:
    """Before the server is made, which looks whether there are any."""
    from dragoman.telemetry.spans import NoSpans, set_up_spans

    try:
        set_up_spans(os.environ, name)
    except NoSpans as error:  # The variables may be the whole machine's: no reason not to serve.
        logger.warn("there are no traces", {"reason": str(error)})


def finish(prepared: Prepared, abandoned: int) -> NoReturn:
    """Write the rest of the log, and end the process."""
    prepared.logger.info("server stopped", {"abandonedCalls": abandoned})
    prepared.sink.close()  # If nobody reads it by now, there is nobody to be told either.
    leave(ABANDONED if abandoned else 0)

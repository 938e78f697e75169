"""`dragoman serve`: run tools for a client."""

from __future__ import annotations

import asyncio
import atexit
import gc
import io
import os
import sys
import threading
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from dragoman.cli.options import ConfigFile, LogLevel, Target, settings_from
from dragoman.cli.output import ABANDONED, refuse
from dragoman.config import Config

_LAST_MOMENT = 2.0


class Transport(StrEnum):
    """How clients connect."""

    STDIO = "stdio"


def serve(
    target: Target = None,
    transport: Annotated[Transport, typer.Option(help="How clients connect.")] = Transport.STDIO,
    config: ConfigFile = None,
    log_level: LogLevel = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Load the tools anew when TARGET's files change, for development.")
    ] = False,
) -> None:
    """Serve the tools in TARGET to one client over standard input and output.

    Log lines go to stderr; stdout carries the protocol and nothing else.

    Exit codes: 0 after an orderly stop, 2 when the settings or TARGET cannot be used, 3 when calls had to be abandoned.
    """
    settings = settings_from(config, {"logging.level": log_level}).config
    if reload and target is None:
        refuse("--reload needs a TARGET")
    match transport:
        case Transport.STDIO:
            _serve_stdio(target, settings, reload)


def _serve_stdio(target: str | None, settings: Config, reload: bool) -> None:
    # Everything slow is imported after the command line has been understood, and before the client is answered.
    from dragoman.cli.target import server_with, tools_for
    from dragoman.clock import SystemClock
    from dragoman.edge.stdio import start_server, take_standard_streams
    from dragoman.telemetry.log import EntryWriter, StructuredLogger
    from dragoman.telemetry.python_logging import take_over_logging
    from dragoman.telemetry.sink import DescriptorSink

    streams = take_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # What tools print is for whoever reads the log now.
    if os.isatty(streams.input):
        sys.stderr.write("dragoman: waiting for an MCP client on stdin; type JSON-RPC lines, or end with Ctrl-D.\n")
    wanted = settings.logging.format
    text = os.isatty(2) if wanted == "auto" else wanted == "text"
    sink = DescriptorSink(2, EntryWriter(settings.logging, text=text))
    clock = SystemClock()
    logger = StructuredLogger(sink.put, clock, settings.logging)
    take_over_logging(logger)
    reloader = None
    if reload and target is not None:
        from dragoman.cli.reload import Reloader

        reloader = Reloader(target)
    tools = tools_for(target)
    server = server_with(tools, settings, clock=clock, logger=logger, memory_tools=target is None)
    gc.freeze()  # What is loaded now stays; there is no point in looking through it again and again.
    logger.info("server started", {"tools": len(server.catalogue), "transport": "stdio"})
    loop = _new_event_loop()
    if reloader is not None:
        reloader.watch(server.catalogue, tools, logger, loop)
    abandoned = loop.run_until_complete(start_server(server, streams, log_is_full=lambda: sink.is_full))
    logger.info("server stopped", {"abandonedCalls": abandoned})
    sink.close()  # If nobody reads it by now, there is nobody to be told either.
    _leave(ABANDONED if abandoned else 0)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where there is one: it takes a seventh off the cost of a call."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _leave(code: int) -> NoReturn:
    """End the process: exit handlers have a moment to run, but no thread that a tool left behind is waited for."""
    late = threading.Timer(_LAST_MOMENT, os._exit, (code,))
    late.daemon = True
    late.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Python has none where the descriptor was closed.
            stream.flush()
    os._exit(code)

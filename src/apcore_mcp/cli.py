"""`python -m apcore_mcp`: a folder of apcore modules as an MCP server, without a line of Python.

Exit codes: 0 after an orderly stop, 1 for values that cannot be used, 2 when the command line cannot be understood or
the server cannot start.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.telemetry.log import StructuredLogger
    from dragoman.telemetry.sink import DescriptorSink

_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, serve, and end the process."""
    from dragoman.edge.signals import leave

    leave(_serve(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apcore-mcp",
        description="Serve the apcore modules in a folder over MCP.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--extensions-dir", required=True, metavar="PATH", help="the folder with the modules", default=argparse.SUPPRESS
    )
    add("--transport", choices=("stdio", "streamable-http", "sse"), default="stdio", help="how clients connect")
    add("--host", default="127.0.0.1", metavar="STR", help="the address to listen on, unless the transport is stdio")
    add("--port", type=int, default=8000, metavar="INT", help="the port to listen on, unless the transport is stdio")
    add("--name", default="apcore-mcp", metavar="STR", help="the name that clients are told, of at most 255 characters")
    add("--version", default=__version__, metavar="STR", help="the version that clients are told")
    add("--log-level", choices=tuple(_LEVELS), default="INFO", help="the least that is logged, on stderr")
    add("--explorer", action="store_true", help="serve a page to look at the tools, unless the transport is stdio")
    add("--explorer-prefix", default="/explorer", metavar="STR", help="the path of that page")
    add("--allow-execute", action="store_true", help="let tools be run from that page")
    return parser


def _serve(chosen: argparse.Namespace) -> int:
    directory = Path(chosen.extensions_dir)
    if not directory.exists():
        return _refuse(f"extensions directory does not exist: {chosen.extensions_dir}")
    if not directory.is_dir():
        return _refuse(f"extensions path is not a directory: {chosen.extensions_dir}")
    if not chosen.name:
        return _refuse("server name must not be empty")
    if chosen.transport != "stdio" and not 1 <= chosen.port <= 65_535:
        return _refuse("port must be between 1 and 65535")
    from apcore_mcp.server.serve import executor_of, run, settings

    try:
        config = settings(
            transport=chosen.transport,
            host=chosen.host,
            port=chosen.port,
            name=chosen.name,
            version=chosen.version,
            explorer=chosen.explorer,
            explorer_prefix=chosen.explorer_prefix,
            allow_execute=chosen.allow_execute,
        )
    except ValueError as error:
        return _refuse(str(error))
    log, sink = _log(chosen.log_level)
    try:
        from apcore_mcp.server.extensions import load_extensions

        executor = executor_of(load_extensions(directory))
        run(executor, chosen.transport, config, log, log_is_full=lambda: sink.is_full)
        return 0
    except Exception as error:
        return _refuse(f"the server cannot start: {error}", 2)
    finally:
        sink.close()


def _log(level: str) -> tuple[StructuredLogger, DescriptorSink]:
    """The log on stderr, which nobody has to read for the server to go on; what is logged elsewhere goes there too."""
    from dragoman.clock import SystemClock
    from dragoman.config import make_config
    from dragoman.telemetry.log import EntryWriter, StructuredLogger
    from dragoman.telemetry.python_logging import LoggingBridge
    from dragoman.telemetry.sink import DescriptorSink

    config = make_config({"logging": {"level": _LEVELS[level]}}).logging
    sink = DescriptorSink(2, EntryWriter(config, text=os.isatty(2)))
    log = StructuredLogger(sink.put, SystemClock(), config)
    logging.basicConfig(handlers=[LoggingBridge(log)], level=logging.WARNING, force=True)
    logging.getLogger("apcore_mcp").setLevel(level)
    logging.captureWarnings(True)
    return log, sink


def _refuse(reason: str, code: int = 1) -> int:
    sys.stderr.write(f"Error: {reason}\n")
    return code

"""`python -m apcore_mcp`: a folder of apcore modules as an MCP server, without a line of Python.

Exit codes: 0 after an orderly stop, 1 for values that cannot be used, 2 when the command line cannot be understood or
the server cannot start.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.extras import install_command
from dragoman.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.telemetry.settings import Level

_LEVELS: dict[str, Level] = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, serve, and end the process."""
    from dragoman.process.signals import leave

    leave(_serve(**vars(_parser().parse_args(arguments))))


def _parser() -> argparse.ArgumentParser:
    about = "Serve the apcore modules in a folder over MCP."
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser("apcore-mcp", description=about, formatter_class=show_defaults)
    add, http = parser.add_argument, "unless the transport is stdio"
    add(
        "--extensions-dir", required=True, default=argparse.SUPPRESS, metavar="PATH", help="the folder with the modules"
    )
    add("--transport", choices=("stdio", "streamable-http", "sse"), default="stdio", help="how clients connect")
    add("--host", default="127.0.0.1", metavar="STR", help=f"the address to listen on, {http}")
    add("--port", type=int, default=8000, metavar="INT", help=f"the port to listen on, {http}")
    optional: dict[str, Any] = {"default": argparse.SUPPRESS}
    listed = f"a DNS name that clients reach the server by, {http}; may be given several times"
    add("--allowed-host", action="append", dest="allowed_hosts", metavar="NAME", help=listed, **optional)
    add("--name", default="apcore-mcp", metavar="STR", help="the name that clients are told, of at most 255 characters")
    add("--version", default=__version__, metavar="STR", help="the version that clients are told")
    add(
        "--config",
        type=Path,
        dest="file",
        metavar="PATH",
        help="a file with settings of Dragoman",
        **optional,
    )
    add("--log-level", choices=tuple(_LEVELS), default="INFO", help="the least that is logged, on stderr")
    add("--explorer", action="store_true", help=f"serve a page to look at the tools, {http}")
    add("--explorer-prefix", default="/explorer", metavar="STR", help="the path of that page")
    add("--allow-execute", action="store_true", help="let tools be run from that page")
    return parser


def _serve(extensions_dir: str, log_level: str, **chosen: Any) -> int:
    if not (directory := Path(extensions_dir)).exists():
        return _refuse(f"extensions directory does not exist: {extensions_dir}")
    if not directory.is_dir():
        return _refuse(f"extensions path is not a directory: {extensions_dir}")
    if find_spec("apcore") is None:
        return _refuse(f"the extra `apcore` is not installed: {install_command('apcore')}", 2)
    # What is slow to load comes after the command line has been understood.
    from apcore_mcp.server.extensions import load_extensions
    from apcore_mcp.server.serve import run
    from dragoman.serving import standard_streams_taken
    from dragoman.telemetry.python_logging import take_over_logging
    from dragoman.telemetry.settings import LoggingConfig
    from dragoman.telemetry.stderr import log_to_stderr

    log, sink = log_to_stderr(LoggingConfig(level=_LEVELS[log_level]))
    take_over_logging(log)
    logging.getLogger("apcore_mcp").setLevel(log_level)
    try:
        # What files print when they are loaded is no more for the client than what modules print.
        with standard_streams_taken() if chosen["transport"] == "stdio" else nullcontext():
            registry = load_extensions(directory)
        run(registry, log_level=None, **chosen)
    except ValueError as error:
        return _refuse(_WORDS.get(str(error).partition(",")[0], str(error)))
    except Exception as error:
        return _refuse(f"the server cannot start: {error}", 2)
    finally:
        sink.close()
    return 0


_WORDS = {
    "name must not be empty": "server name must not be empty",
    "Port must be between 1 and 65535": "port must be between 1 and 65535",
}
"""Where the command line says it differently."""


def _refuse(reason: str, code: int = 1) -> int:
    sys.stderr.write(f"Error: {reason}\n")
    return code

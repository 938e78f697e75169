"""`dragoman top`: a live view of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import ConfigFile, settings_from
from dragoman.cli.output import refuse
from dragoman.extras import install_command
from dragoman.process.exit_codes import FAILED


def top(
    url: Annotated[
        str | None,
        typer.Argument(help="Where the server is, as http://127.0.0.1:8000. Without it, where the settings say."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print what happened in one interval, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As --once, as JSON, for scripts.")] = False,
    token: Annotated[
        str | None,
        typer.Option(envvar="DRAGOMAN_TOKEN", help="A bearer token, where the server wants one."),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Watch a server that is served over HTTP: calls, latency, load and refusals.

    It reads the server's /metrics, /health and /ready. End it with Ctrl-C. Where stdout is no terminal, it is --once.
    """
    from dragoman.cli.scrape import Unreachable
    from dragoman.cli.watching import watch

    place = _base(url) if url is not None else _settled_place(config)
    try:
        watch(place, token, every, once=once, as_json=as_json)
    except ImportError:
        refuse(f"dragoman top needs the extra `http`: {install_command('http')}")
    except Unreachable as error:
        refuse(str(error), code=FAILED)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _base(url: str) -> str:
    """What the paths are added to, whatever page of the server was given."""
    base = (url if "://" in url else f"http://{url}").rstrip("/")
    for page in ("/mcp", "/sse", "/metrics"):
        base = base.removesuffix(page)
    return base


def _settled_place(config: Path | None) -> str:
    http = settings_from(config).config.http
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.host, http.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{http.port}"

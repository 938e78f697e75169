"""`dragoman top`: a live view of a server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import ConfigFile, settings_from
from dragoman.cli.output import print_json, refuse
from dragoman.process.exit_codes import FAILED

if TYPE_CHECKING:
    from rich.console import Console


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
    from rich.console import Console

    from dragoman.cli.scrape import Unreachable, compare, look
    from dragoman.cli.top_page import page

    place = _base(url) if url is not None else _settled_place(config)
    console = Console()
    try:
        if as_json or once or not console.is_terminal:
            before = look(place, token)
            time.sleep(every)
            view = compare(before, look(place, token))
            if as_json:
                print_json(view)
            else:
                console.print(page(view, place, console))
        else:
            _watch(place, token, every, console)
    except ImportError:
        refuse("dragoman top needs prometheus-client: pip install 'dragoman[http]'")
    except Unreachable as error:
        refuse(str(error), code=FAILED)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _watch(place: str, token: str | None, every: float, console: Console) -> None:
    """Look and show, until somebody ends it. A server that goes away may come back."""
    from rich.live import Live

    from dragoman.cli.scrape import Unreachable, compare, look, since_start
    from dragoman.cli.top_page import page

    now = look(place, token)
    view, trouble = compare(since_start(now), now), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(page(view, place, console, trouble), refresh=True)
            time.sleep(every)
            try:
                before, now = now, look(place, token)
                view, trouble = compare(before, now), ""
            except Unreachable as error:
                trouble = str(error)


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

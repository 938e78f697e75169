"""What `dragoman top` does: it looks at a server, waits, and looks again."""

from __future__ import annotations

import time
from typing import NoReturn

from rich.console import Console
from rich.live import Live

from dragoman.cli.output import print_json
from dragoman.cli.scrape import Unreachable, compare, look, since_start
from dragoman.cli.top_page import page


def watch(place: str, token: str | None, every: float, *, once: bool, as_json: bool) -> None:
    """Show what happens, until somebody ends it, or in one interval; raises `Unreachable`."""
    console = Console()
    if not (as_json or once) and console.is_terminal:
        _watch(place, token, every, console)
    before = look(place, token)
    time.sleep(every)
    view = compare(before, look(place, token))
    if as_json:
        print_json(view)
    else:
        console.print(page(view, place, console))


def _watch(place: str, token: str | None, every: float, console: Console) -> NoReturn:
    """Look and show, until somebody ends it. A server that goes away may come back."""
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

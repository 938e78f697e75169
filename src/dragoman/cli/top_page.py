"""What `dragoman top` shows, on any terminal from 80 by 24 on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dragoman.cli.scrape import View
from dragoman.telemetry.clean import sanitize

_FIXED_LINES = 9
_MOST_REASONS = 5
_MB = 1 << 20


def page(view: View, place: str, console: Console, trouble: str = "") -> Group:
    """All of it, in as many lines as the terminal has."""
    reasons = view.refusals[:_MOST_REASONS]
    room = max(3, console.height - _FIXED_LINES - max(1, len(reasons)))
    state = Text(view.state, "green" if view.state == "running" else "yellow")
    last = f"last {view.interval_seconds:.1f} s"
    about = f"dragoman {view.version} at {place}"
    head = Text.assemble((sanitize(about), "bold"), "  ", state, f"  up {_duration(view.uptime_seconds)}  {last}")
    calls = _table("tool", "calls/s", "failed/s", "p50", "p95", "calls")
    for tool in view.tools[:room]:
        calls.add_row(
            Text(sanitize(tool.name)),
            f"{tool.calls_per_second:,.1f}",
            Text(f"{tool.failures_per_second:,.1f}", "red" if tool.failures_per_second >= 0.05 else ""),
            _latency(tool.p50_ms),
            _latency(tool.p95_ms),
            f"{tool.calls:,}",
        )
    refusals = _table("refused", "/s", "refusals")
    for reason in reasons:
        refusals.add_row(Text(sanitize(reason.reason)), f"{reason.refusals_per_second:,.1f}", f"{reason.refusals:,}")
    parts: list[RenderableType] = [head, *_load(view), "", calls, ""]
    parts.append(refusals if reasons else Text("nothing refused", "dim"))
    if trouble:
        parts.append(Text(sanitize(trouble), "red"))
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def _load(view: View) -> Iterator[Text]:
    busy = view.slots_in_use / view.slots if view.slots else 0.0
    color = "red" if busy >= 1 else "yellow" if busy > 0.8 else "green"
    yield Text.assemble(
        f"calls/s {view.calls_per_second:,.1f}   p50 {_latency(view.p50_ms)}   p95 {_latency(view.p95_ms)}   ",
        f"in flight {view.in_flight}   slots ",
        (f"{view.slots_in_use} of {view.slots}", color),
    )
    lag = "red" if view.lag_ms > 500 else "yellow" if view.lag_ms > 100 else ""
    cache = "–" if view.cache_hit_share is None else f"{view.cache_hit_share:.0%}"
    yield Text.assemble(
        "lag ",
        (_latency(view.lag_ms), lag),
        f"   memory {view.memory_bytes / _MB:,.0f} MB   sessions {view.sessions}   found in cache {cache}",
    )


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    table.add_column(first, ratio=1, no_wrap=True, overflow="ellipsis")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _latency(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:,.0f} s"
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.2g} ms"


def _duration(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"

"""The figures as text for a terminal, and as a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cache import EVICT, GET, REPLACE, RIVALS
from bench.http_load import Era
from bench.measure import BARE, DRAGOMAN, FASTMCP, LOADED, SDK
from bench.over_http import ECHO, ONE_WORKER
from bench.protection import METRICS
from bench.rounds import Figures

_SOURCE_HEADLINE = 331_027
_MILLION = 1_000_000
_SPOKEN = {SDK: "the SDK", ECHO: "the bare echo"}
_ABOVE_A_MILLION = "above a million operations a second"


@dataclass(frozen=True)
class Target:
    """A figure, and what it should be: at least `goal`, or at most."""

    name: str
    figure: float
    goal: float
    unit: str = "x"
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        return self.figure >= self.goal if self.at_least else self.figure <= self.goal

    def facts(self) -> Figures:
        return {
            "name": self.name,
            "figure": self.figure,
            "at_least" if self.at_least else "at_most": self.goal,
            "unit": self.unit,
            "reached": self.is_reached,
        }

    def row(self) -> tuple[str, ...]:
        bound = "at least" if self.at_least else "at most"
        verdict = "reached" if self.is_reached else "missed"
        return self.name, _number(self.figure, self.unit), f"{bound} {_number(self.goal, self.unit)}", verdict


def targets(results: Figures) -> list[Target]:
    """What we want to be true, beside what is. Missing one is news, not an error."""
    many, one = results["side_by_side"]["in_flight_32"], results["side_by_side"]["in_flight_1"]
    sync = results["side_by_side"]["variants"]["sync"]
    memory, growth = results["memory"], results["growth"]
    found = [Target("calls/s, 32 in flight, against the SDK", many["ratios"][SDK], 50, at_least=True)]
    if FASTMCP in many["ratios"]:
        found.append(Target("calls/s, 32 in flight, against FastMCP", many["ratios"][FASTMCP], 70, at_least=True))
    return [
        *found,
        Target("calls/s, 32 in flight, against the bare loop", many["ratios"][BARE], 0.12, at_least=True),
        Target("p50, 1 in flight, against the bare loop", one["p50_ratios"][BARE], 2),
        Target("calls/s, sync handler, against the SDK", sync["ratios"][SDK], 15, at_least=True),
        Target("CPU per call, against the SDK", many["cpu_ratios"][SDK], 1 / 40),
        Target("start-up to first answer, against the SDK", results["start_up"]["ratio_to_sdk"], 0.5),
        Target("memory, against the SDK", memory[DRAGOMAN] / memory[SDK], 1),
        Target("memory with the SDK loaded, against the SDK", memory[LOADED] / memory[SDK], 1),
        Target(f"memory growth over {growth['calls']:,} calls", growth["grown_mb"], 10, "MB"),
        *_watching_targets(results["protection"]["settings"]["calls"]),
        Target("CPU per call among 1,000 tools, against 3", results["many_tools"]["dearer_per_cent"], 10, "%"),
        Target(f"cache: {_ABOVE_A_MILLION}", _slowest(results["cache"], "lru"), _MILLION, "/s", at_least=True),
        *http_targets(results["over_http"]),
        *bridge_targets(results["bridge"]),
    ]


def _watching_targets(calls: Mapping[str, Figures]) -> list[Target]:
    return [Target("metrics, per call", calls[METRICS]["more_us"], 3, "µs")] if METRICS in calls else []


def http_targets(figures: Figures) -> list[Target]:
    """The ratios are the lowest among the numbers of connections: one good one is not enough.

    One connection has rows of its own: there, most of the time goes to waking up who sleeps, at both ends and whatever
    the server, and even the bare echo may not be as many times as fast as is wanted of us.
    """
    eras = {era: dict(figures["eras"][era]) for era in (Era.MODERN, Era.HANDSHAKE)}
    client = max(work["servers"][ECHO]["client_share"] for work in eras[Era.MODERN].values())
    found = [Target("HTTP: CPU of the client, against the bare echo", client, 0.75)]
    for era, goals_of in ((Era.MODERN, {FASTMCP: 12.0, SDK: 4.0, ECHO: 0.55}), (Era.HANDSHAKE, {SDK: 3.0})):
        alone = eras[era].pop("1", None)
        for which, works in (("", list(eras[era].values())), (", 1 connection", [alone] if alone else [])):
            for name, goal in goals_of.items():
                ratios = [work["ratios"].get(work["sdk"] if name == SDK else name) for work in works]
                if ratios and None not in ratios:
                    what = f"HTTP, {era}{which}: calls/s against {_SPOKEN.get(name, name)}"
                    found.append(Target(what, min(ratios), goal, at_least=True))
    return [*found, *_worker_targets(figures["workers"])]


def _worker_targets(by_tool: Mapping[str, Mapping[str, Figures]]) -> list[Target]:
    """Only of the tool that works: with one that does nothing, what is left for a second core is the client's."""
    ratios = [work["ratios"][ONE_WORKER] for work in by_tool.get("work", {}).values()]
    name = "HTTP, modern: calls/s of 2 workers against 1, of a tool that works"
    return [Target(name, min(ratios), 1.6, at_least=True)] if ratios else []


def bridge_targets(figures: Figures) -> list[Target]:
    """Against the public bridge at whatever it does best, and against apcore by itself."""
    alone = figures["alone"][DRAGOMAN]
    ratios: dict[str, list[float]] = {}
    for way in ("stdio", "http"):
        for work in figures[way]["works"].values():
            for name, ratio in work["ratios"].items():
                ratios.setdefault(f"{way}, {name}", []).append(ratio)
    return [
        *(
            Target(f"bridge, {way}: calls/s against the public one", min(each), 10, at_least=True)
            for way, each in ratios.items()
        ),
        Target("bridge: routing, beyond the executor", alone["routing_us"] / 1e3, 0.1, "ms"),
        Target(f"bridge: {figures['modules']} tools, beyond their definitions", alone["beyond_ms"], 20, "ms"),
        Target(f"bridge: memory of {figures['modules']} tools", alone["tools_mb"], 10, "MB"),
    ]


def text(results: Figures) -> str:
    """Everything, as tables."""
    about = results["about"]
    title = (
        f"Dragoman {about['versions']['dragoman']}, {about['date']}, Python {about['python']}, {about['cores']} cores, "
        f"load {about['load_before']:.1f} before\n"
        f"calls/s: median (best) of {about['rounds']} rounds; ratios: Dragoman's figure by theirs, median of the rounds"
    )
    sections = (_servers, _variants, _payloads, over_http, bridge, _alone, _cache, _stages, _settings, _memories, _page)
    return "\n\n".join([title, *(section(results) for section in sections), goals(targets(results))])


def goals(targets: Sequence[Target]) -> str:
    return _table(("target", "figure", "wanted", ""), [target.row() for target in targets])


def _page(results: Figures) -> str:
    rows = [
        (f"{int(count):,} tools", f"{figures['median_ms']:,.0f}", f"{figures['best_ms']:,.0f}")
        for count, figures in results.get("page", {}).items()
    ]
    return _table(("the explorer's page", "usable after ms", "best"), rows or [("no browser here", "", "")])


def _servers(results: Figures) -> str:
    many, one = results["side_by_side"]["in_flight_32"], results["side_by_side"]["in_flight_1"]
    rows = [
        (
            name,
            _rate(figures),
            _number(many["ratios"].get(name)),
            f"{figures['cpu_us']:,.1f}",
            _rate(one["servers"][name]),
            *(f"{one['servers'][name][cut]:,.0f}" for cut in ("p50_us", "p95_us", "p99_us")),
            f"{results['start_up']['seconds'][name]['median']:.2f}",
            f"{results['memory'][name]:.0f}",
        )
        for name, figures in many["servers"].items()
    ]
    head = ("no-op tool", "32 in flight", "ratio", "CPU µs", "1 in flight", "p50 µs", "p95", "p99", "start s", "MB")
    return f"{_table(head, rows)}\n{LOADED}: {results['memory'][LOADED]:.0f} MB"


def _variants(results: Figures) -> str:
    both = results["side_by_side"]
    kinds = {"async": both["in_flight_32"], "awaits once": both["variants"]["once"], "sync": both["variants"]["sync"]}
    return _comparison("handler, 32 in flight", kinds, (DRAGOMAN, SDK))


def _payloads(results: Figures) -> str:
    return _comparison("arguments, 32 in flight", results["side_by_side"]["payloads"], (DRAGOMAN, BARE, SDK))


def _comparison(title: str, kinds: Mapping[str, Figures], names: Sequence[str]) -> str:
    others = [name for name in names if name != DRAGOMAN]
    rows = [
        (
            kind,
            *(_rate(figures["servers"][name]) for name in names),
            *(_number(figures["ratios"][name]) for name in others),
        )
        for kind, figures in kinds.items()
    ]
    return _table((title, *names, *(f"to {name}" for name in others)), rows)


def over_http(results: Figures) -> str:
    """A table for each era, and one of what sessions leave behind."""
    figures = results["over_http"]
    tables = [_era(f"HTTP, {era} era, {figures['rounds']} rounds", works) for era, works in figures["eras"].items()]
    rows = [
        (
            name,
            *(f"{facts[key]:,.0f}" for key in ("sessions", "before_mb", "after_mb")),
            f"{facts['ms_per_session']:.2f}",
        )
        for name, facts in figures["sessions"].items()
    ]
    head = ("HTTP, sessions, every other one ended", "sessions", "MB before", "MB after", "ms each")
    return "\n\n".join([*tables, _table(head, rows), *_workers(figures["workers"])])


def _workers(by_tool: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    tables = [_era(f"HTTP, workers, {tool}", works) for tool, works in by_tool.items()]
    if tables:
        tables[-1] += "\nthe client needs a core, too: with fewer than three, two workers cannot give twice as much"
    return tables


def _era(title: str, works: Mapping[str, Figures]) -> str:
    rows = [
        (
            name,
            connections,
            _rate(facts),
            _number(work["ratios"].get(name)),
            *(f"{facts[key]:,.0f}" for key in ("cpu_us", "p50_us", "p95_us", "p99_us", "client_us")),
        )
        for connections, work in works.items()
        for name, facts in work["servers"].items()
    ]
    head = (title, "connections", "calls/s", "ratio", "CPU µs", "p50 µs", "p95", "p99", "client's CPU µs")
    return _table(head, rows)


def bridge(results: Figures) -> str:
    """A table of calls, and one of what there is to each bridge besides."""
    figures = results["bridge"]
    calls = [
        (
            name,
            f"{way}, {number}",
            _rate(facts),
            _number(work["ratios"].get(name)) if work["ratios"] else "",
            f"{facts['cpu_us']:,.0f}",
            *(f"{facts[key]:,.0f}" if key in facts else "" for key in ("p50_us", "p95_us", "p99_us")),
        )
        for way in ("stdio", "http")
        for number, work in figures[way]["works"].items()
        for name, facts in work["servers"].items()
    ]
    head = (f"bridge, {figures['modules']} modules", "in flight", "calls/s", "ratio", "CPU µs", "p50 µs", "p95", "p99")
    alone = [
        (
            name,
            *(f"{facts[key]:,.0f}" for key in ("executor_us", "served_us", "routing_us", "definitions_ms", "tools_ms")),
            f"{facts['tools_mb']:.1f}",
            f"{figures['stdio']['processes'][name]['start_s']:.2f}",
            f"{figures['stdio']['processes'][name]['mb']:.0f}",
        )
        for name, facts in figures["alone"].items()
    ]
    parts = ("executor µs", "as served", "routing", "definitions ms", "tools ms", "tools MB", "start s", "MB")
    return f"{_table(head, calls)}\n\n{_table(('bridge, without a connection', *parts), alone)}"


def _alone(results: Figures) -> str:
    growth = results["growth"]
    rows = [(f"in process, {way}", _rate(figures)) for way, figures in results["in_process"].items()]
    rows += [(f"among {name}", _rate(figures)) for name, figures in results["many_tools"]["calls_per_second"].items()]
    rows.append((f"{growth['calls']:,} calls on end", f"{growth['calls_per_second']:,.0f}"))
    return (
        f"{_table(('Dragoman alone', 'calls/s'), rows)}\n"
        f"in process, the source document's headline: {_SOURCE_HEADLINE:,}/s\n"
        f"memory over {growth['calls']:,} calls: {growth['before_mb']:.1f} to {growth['after_mb']:.1f} MB"
    )


def _cache(results: Figures) -> str:
    cache = results["cache"]
    ours = {name: kinds for name, kinds in cache["per_second"].items() if name not in RIVALS}
    rows = [
        (f"{policy}: {kind}", _rate(figures), *_rivals(cache, policy, kind))
        for policy, kinds in ours.items()
        for kind, figures in kinds.items()
    ]
    head = ("cache, operations/s", DRAGOMAN, "cachetools", "ratio", "its TTLCache", "ratio")
    lowest = ", ".join(f"{policy} {_slowest(cache, policy):,.0f}" for policy in ours)
    return f"{_table(head, rows)}\n{_ABOVE_A_MILLION} is wanted of each; the slowest get or set: {lowest}"


def _rivals(cache: Figures, policy: str, kind: str) -> list[str]:
    """Theirs and the ratio to it, of the same policy and of the one with times to live, which is an lru."""
    cells: list[str] = []
    for is_timed in (False, True):
        names = [name for name, its in RIVALS.items() if its == policy and (name == "TTLCache") is is_timed]
        figures = cache["per_second"].get(names[0], {}).get(kind) if names else None
        cells += ["", ""] if figures is None else [_rate(figures), _number(cache["ratios"][names[0]][kind])]
    return cells


def _slowest(cache: Figures, policy: str) -> float:
    """Of each operation its best round: what it takes when nobody else is at the processor's caches."""
    return float(min(cache["per_second"][policy][kind]["best"] for kind in (GET, REPLACE, EVICT)))


def _stages(results: Figures) -> str:
    rows = [
        (f"{'  ' if cost['kind'] == 'stage' else ''}{cost['name']}", f"{cost['us']:.2f}", f"{cost['share']:.1%}")
        for cost in results["protection"]["stages"]
    ]
    return _table(("what a call consists of", "µs", "of the whole"), rows)


def _settings(results: Figures) -> str:
    settings = results["protection"]["settings"]
    rows = [
        (
            name,
            f"{facts['us']:.2f}",
            *((f"{facts['more_us']:+.2f}", f"{facts['more_share']:+.1%}") if "more_us" in facts else ("", "")),
            facts.get("against", ""),
        )
        for name, facts in settings["calls"].items()
    ]
    head = (f"in process, {settings['argument_bytes']} bytes", "µs", "more", "of a call", "than")
    left_out = [f"{name} is left out: {reason}" for name, reason in settings["left_out"].items()]
    return "\n".join([_table(head, rows), *left_out])


def _memories(results: Figures) -> str:
    memories = results["memories"]
    rows = [
        (f"{adapter}: {name}", f"{rates['few']:,.0f}", f"{rates['many']:,.0f}", _number(rates["ratio"]))
        for adapter, operations in memories["adapters"].items()
        for name, rates in operations.items()
    ]
    return _table(("memories, operations/s", f"of {memories['few']:,}", f"of {memories['many']:,}", "ratio"), rows)


def _rate(figures: Figures) -> str:
    return f"{figures['median']:,.0f} ({figures['best']:,.0f})"


def _number(value: float | None, unit: str = "x") -> str:
    if value is None:
        return "1 x"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 720, 44, 120, 190, 44
_DECADES = (100, 1_000, 10_000, 100_000, 1_000_000)
# Colours that can be read on white and on GitHub's dark page; a style sheet would follow the browser, not the page.
_TEXT, _GRID, _QUIET, _OURS = "#6e7781", "#6e778140", "#8b949e", "#2f81f7"


def chart(results: Figures) -> str:
    """Calls a second with 32 in flight, on a logarithmic scale, as an SVG that needs nothing else."""
    many = results["side_by_side"]["in_flight_32"]
    rates = {name: figures["median"] for name, figures in many["servers"].items()}
    height = _TOP + _ROW * len(rates) + 42
    about = results["about"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">',
        "<title>Tool calls per second over stdio, 32 in flight</title>",
        _label(_LEFT, 20, "Tool calls per second over stdio, 32 in flight (logarithmic)", weight=600),
    ]
    bottom = _TOP + _ROW * len(rates)
    for decade in _DECADES:
        x = _x(decade)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="{_GRID}"/>')
        parts.append(_label(x, bottom + 15, f"{decade:,}", anchor="middle", size=11))
    for row, (name, rate) in enumerate(rates.items()):
        y = _TOP + _ROW * row
        ours = name == DRAGOMAN
        color = _OURS if ours else _QUIET
        parts.append(_label(_LEFT - 10, y + 19, name, anchor="end", weight=600 if ours else 400))
        width = _x(rate) - _LEFT
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="28" rx="3" fill="{color}"/>')
        parts.append(_label(_x(rate) + 8, y + 13, f"{float(f'{rate:.3g}'):,.0f}/s", weight=600))
        parts.append(_label(_x(rate) + 8, y + 27, _remark(name, many["ratios"]), size=11))
    facts = (
        f"Median of {about['rounds']} rounds, {about['cores']} cores, Python {about['python']}, {about['date'][:10]}"
    )
    parts.append(_label(_LEFT, height - 4, facts, size=11))
    return "\n".join([*parts, "</svg>\n"])


def _x(rate: float) -> float:
    first, last = math.log10(_DECADES[0]), math.log10(_DECADES[-1])
    share = (math.log10(max(rate, _DECADES[0])) - first) / (last - first)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _remark(name: str, ratios: dict[str, float]) -> str:
    if name == DRAGOMAN:
        return "every call limited, timed and recorded"
    if name == BARE:
        return f"the limit; Dragoman reaches {ratios[name]:.0%} of it"
    return f"Dragoman answers {ratios[name]:.0f} × as many"


def _label(x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{_TEXT}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{words}</text>"
    )

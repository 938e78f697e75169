"""The figures as text for a terminal. Each table is there if its section was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.cache import RIVALS
from bench.measure import DRAGOMAN
from bench.rounds import ENOUGH_ROUNDS, Figures
from bench.targets import number, slowest_of, targets

_SOURCE_HEADLINE = 331_027


def text(results: Figures) -> str:
    """Everything that was measured, as tables, and the targets at the end."""
    about = results["about"]
    title = (
        f"Dragoman {about['versions']['dragoman']}, {about['date']}, Python {about['python']}, {about['cores']} cores, "
        f"load {about['load_before']:.1f} before\n"
        f"medians of {about['rounds']} rounds (quartiles); "
        "ratios: Dragoman's CPU per call by theirs, within a round"
    )
    tables = [word(results[name]) for name, word in _BY_SECTION.items() if name in results]
    return "\n\n".join([title, *calls(results), *tables, *goals(results)])


def goals(results: Figures) -> list[str]:
    """The targets, if there are any, how many are missed, and whether there were enough rounds to tell."""
    found = targets(results)
    if not found:
        return []
    missed = [target.name for target in found if not target.is_reached]
    parts = [_table(("target", "figure", "wanted", ""), [target.row() for target in found])]
    if results["about"]["rounds"] < ENOUGH_ROUNDS:
        parts.append(f"Fewer than {ENOUGH_ROUNDS} rounds do not tell: this run shows only that everything still runs.")
    return [*parts, f"{len(missed)} of {len(found)} targets are missed" + "".join(f"\n  {name}" for name in missed)]


def calls(results: Figures) -> list[str]:
    """A table for each section that measures calls."""
    tables = []
    for name, figures in results.items():
        rows = [
            (path, server, *call_row(facts))
            for path, servers in figures.get("works", {}).items()
            for server, facts in servers.items()
        ]
        if rows:
            tables.append(_table((name.replace("_", " "), "", *CALL_HEAD), rows))
    return tables


CALL_HEAD = ("CPU µs", "ratio", "calls/s", "p50 µs", "p95 µs", "p99 µs", "client's CPU µs")


def call_row(facts: Figures) -> tuple[str, ...]:
    """The cells of a server's figures."""
    return (
        _spread(facts["cpu_us"], ",.2f" if facts["cpu_us"]["median"] < 10 else ",.0f"),
        number(facts["ratio"]["median"]) if "ratio" in facts else "",
        _spread(facts["per_second"]),
        *(f"{facts[key]:,.0f}" if key in facts else "" for key in ("p50_us", "p95_us", "p99_us")),
        f"{facts['client_us']:,.0f}" if facts["client_us"] else "",
    )


def _spread(spread: Figures, form: str = ",.0f") -> str:
    low, median, high = (format(spread[key], form) for key in ("low", "median", "high"))
    return f"{median} ({low}–{high})"


def _start_up(figures: Figures) -> str:
    rows = [(name, _spread(seconds, ".2f")) for name, seconds in figures["seconds"].items()]
    return _table(("start-up to the first answer", "s"), rows)


def _starts(figures: Figures) -> str:
    ratios = figures["ratios"]
    rows = [
        (name, _spread(spread, ".1f"), number(ratios[name]["median"]) if name in ratios else "")
        for name, spread in figures["cpu_ms"].items()
    ]
    return _table(("start of a process", "CPU ms", "ratio"), rows)


def _memory(figures: Figures) -> str:
    return _table(("memory after 1,000 calls", "MB"), [(name, f"{mb:.0f}") for name, mb in figures.items()])


def _growth(figures: Figures) -> str:
    return f"memory over {figures['calls']:,} calls: {figures['before_mb']:.1f} to {figures['after_mb']:.1f} MB"


def _idle(figures: Figures) -> str:
    rows = [
        (name, f"{found['busiest']:.1f}", f"{found['together']:.1f}", str(found["processes"]))
        for name, found in figures.get("kinds", {}).items()
    ]
    return _table(("idle, wake-ups a second", "busiest process", "together", "processes"), rows)


def _in_process(figures: Figures) -> str:
    return f"in process, the source document's headline: {_SOURCE_HEADLINE:,}/s"


def _over_http(figures: Figures) -> str:
    rows = [
        (
            name,
            *(f"{facts[key]:,.0f}" for key in ("sessions", "before_mb", "after_mb")),
            f"{facts['ms_per_session']:.2f}",
        )
        for name, facts in figures["sessions"].items()
    ]
    return (
        _table(("HTTP, sessions, every other one ended", "sessions", "MB before", "MB after", "ms each"), rows)
        + "\nthe client needs a core, too: with fewer than three, two workers cannot give twice as many calls"
    )


def _tasks(figures: Figures) -> str:
    rows = [
        (
            name,
            *(f"{facts[key]:,.0f}" for key in ("tasks", "before_mb", "after_mb")),
            f"{facts['ms_per_task']:.2f}",
        )
        for name, facts in figures["waiting"].items()
    ]
    return _table(("tasks that wait", "tasks", "MB before", "MB after", "ms each"), rows)


def _actions(figures: Figures) -> str:
    growth, imports = figures["growth"], figures["imports"]
    sizes = " to ".join(f"{growth[key]:.1f}" for key in ("before_mb", "after_mb"))
    return (
        f"actions, memory over {growth['documents']:,} documents, as many as before: {sizes} MB\n"
        f"actions, `knowledge import`, {imports['documents']:,} documents: {_spread(imports['per_second'])} a second"
    )


def _later(figures: Figures) -> str:
    accepted = [(name, _spread(rate)) for name, rate in figures["accepted"].items()]
    small = [
        (f"beside {facts['waiting']:,} waiting", f"{facts['p50_ms']:,.1f}", f"{facts['p99_ms']:,.1f}")
        for facts in figures["small"].values()
    ]
    return (
        _table(("later, accepted", "a second"), accepted)
        + "\n\n"
        + _table(("later, a small tenant, from the request to the reply", "p50 ms", "p99 ms"), small)
    )


def _artifacts(figures: Figures) -> str:
    growth = figures["growth"]
    sizes = " to ".join(f"{growth[key]:.1f}" for key in ("before_mb", "after_mb"))
    rows = [(path, _spread(ratio, ".2f")) for path, ratio in figures["rate_ratios"].items()]
    return (
        _table(("artifacts", "a second against the bare handler's"), rows)
        + f"\nartifacts, memory over {growth['uploaded_mb']:,} MiB of uploads: {sizes} MB"
    )


def _bridge(figures: Figures) -> str:
    rows = [
        (
            name,
            *(f"{facts[key]:,.0f}" for key in ("executor_us", "served_us", "routing_us", "definitions_ms", "tools_ms")),
            f"{facts['tools_mb']:.1f}",
            f"{figures['processes'][name]['start_s']:.2f}",
            f"{figures['processes'][name]['mb']:.0f}",
        )
        for name, facts in figures["alone"].items()
    ]
    parts = ("executor µs", "as served", "routing", "definitions ms", "tools ms", "tools MB", "start s", "MB")
    return _table((f"bridge, {figures['modules']} modules, without a connection", *parts), rows)


def _cache(cache: Figures) -> str:
    ours = {name: kinds for name, kinds in cache["per_second"].items() if name not in RIVALS}
    rows = [
        (f"{policy}: {kind}", _spread(figures), *_rivals(cache, policy, kind))
        for policy, kinds in ours.items()
        for kind, figures in kinds.items()
    ]
    head = ("cache, operations/s", DRAGOMAN, "cachetools", "ratio", "its TTLCache", "ratio")
    lowest = ", ".join(f"{policy} {slowest_of(cache, policy):,.0f}" for policy in ours)
    return f"{_table(head, rows)}\na million is wanted of each; the slowest get or set, in its best round: {lowest}"


def _rivals(cache: Figures, policy: str, kind: str) -> list[str]:
    """Theirs and the ratio to it, of the same policy and of the one with times to live, which is an lru."""
    cells: list[str] = []
    for is_timed in (False, True):
        names = [name for name, its in RIVALS.items() if its == policy and (name == "TTLCache") is is_timed]
        figures = cache["per_second"].get(names[0], {}).get(kind) if names else None
        cells += ["", ""] if figures is None else [_spread(figures), number(cache["ratios"][names[0]][kind])]
    return cells


def _protection(figures: Figures) -> str:
    return f"{_stages(figures)}\n\n{_settings(figures['settings'])}"


def _stages(figures: Figures) -> str:
    rows = [
        (f"{'  ' if cost['kind'] == 'stage' else ''}{cost['name']}", f"{cost['us']:.2f}", f"{cost['share']:.1%}")
        for cost in figures["stages"]
    ]
    return _table(("what a call consists of", "µs", "of the whole"), rows)


def _settings(settings: Figures) -> str:
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


def _memories(memories: Figures) -> str:
    rows = [
        (f"{adapter}: {name}", f"{rates['few']:,.0f}", f"{rates['many']:,.0f}", number(rates["ratio"]))
        for adapter, operations in memories["adapters"].items()
        for name, rates in operations.items()
    ]
    return _table(("memories, operations/s", f"of {memories['few']:,}", f"of {memories['many']:,}", "ratio"), rows)


def _queries(figures: Figures) -> str:
    rows = [
        (
            f"{int(size):,} passages, {tenants} tenant{'s' * (tenants != '1')}: {kind}",
            *(f"{found[kind][key]:,.2f}" for key in ("p50_ms", "p95_ms", "bare_p50_ms", "bare_p95_ms")),
            number(found[kind]["ratio"]),
        )
        for size, measured in figures.items()
        for tenants, found in measured["tenants"].items()
        for kind in ("words", "vectors")
    ]
    table = _table(("queries", "p50 ms", "p95 ms", "bare p50 ms", "bare p95 ms", "ratio"), rows)
    filled = [
        f"queries, {int(size):,} passages: {each['per_second']:,.0f} indexed/s; {each['grown_mb']:,.0f} MB for vectors"
        for size, each in figures.items()
    ]
    return "\n".join([table, *filled])


def _lock(figures: Figures) -> str:
    rows = [
        (
            name,
            _spread(found["longest_ms"], ",.1f"),
            _spread(found["longest_cpu_ms"], ",.1f"),
            f"{found['transactions']:,}",
            _spread(found["together_ms"]),
        )
        for name, found in figures.items()
    ]
    return _table(("write lock", "longest hold, ms", "of it CPU", "transactions", "together, ms"), rows)


def _page(figures: Figures) -> str:
    rows = [(f"{int(count):,} tools", _spread(each)) for count, each in figures.items()]
    return _table(("the explorer's page", "usable after ms"), rows or [("no browser here", "")])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


_BY_SECTION: dict[str, Callable[[Figures], str]] = {
    "start_up": _start_up,
    "starts": _starts,
    "memory": _memory,
    "growth": _growth,
    "idle": _idle,
    "in_process": _in_process,
    "over_http": _over_http,
    "bridge": _bridge,
    "tasks": _tasks,
    "actions": _actions,
    "later": _later,
    "artifacts": _artifacts,
    "queries": _queries,
    "lock": _lock,
    "cache": _cache,
    "protection": _protection,
    "memories": _memories,
    "page": _page,
}

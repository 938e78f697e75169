"""The processor's time of a call as bars on a logarithmic scale: an SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bench.measure import DRAGOMAN
from bench.rounds import Figures
from bench.targets import number

_WIDTH, _ROW, _GROUP, _LEFT, _RIGHT, _TOP = 800, 34, 34, 210, 200, 34
_DECADES = (1, 10, 100, 1_000, 10_000)
# Colours that can be read on white and on GitHub's dark page; a style sheet would follow the browser, not the page.
_TEXT, _GRID, _QUIET, _OURS = "#6e7781", "#6e778140", "#8b949e", "#2f81f7"


def chart(title: str, groups: Mapping[str, Mapping[str, Figures]], remark: str) -> str:
    """For each group its servers, each with the median of its CPU time per call, and a line from low to high."""
    bottom = _TOP + sum(_GROUP + _ROW * len(servers) for servers in groups.values())
    height = bottom + 42
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">',
        f"<title>{title}</title>",
        _label(_LEFT, 20, f"{title}, µs (logarithmic; less is better)", weight=600),
    ]
    for decade in _DECADES:
        x = _x(decade)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_GRID}"/>')
        parts.append(_label(x, bottom + 15, f"{decade:,}", anchor="middle", size=11))
    y = _TOP
    for name, servers in groups.items():
        parts.append(_label(_LEFT, y + 22, name, weight=600))
        y += _GROUP
        for server, facts in servers.items():
            parts += _bar(y, server, facts)
            y += _ROW
    parts.append(_label(_LEFT, height - 4, remark, size=11))
    return "\n".join([*parts, "</svg>\n"])


def _bar(y: int, server: str, facts: Figures) -> list[str]:
    cost, is_ours = facts["cpu_us"], server == DRAGOMAN
    low, middle, high = (_x(cost[key]) for key in ("low", "median", "high"))
    words = "every call limited, timed and recorded" if is_ours else _remark(number(facts["ratio"]["median"]))
    end = max(middle, high) + 8
    return [
        _label(_LEFT - 10, y + 17, server, anchor="end", weight=600 if is_ours else 400),
        f'<rect x="{_LEFT}" y="{y}" width="{middle - _LEFT:.1f}" height="24" rx="3" '
        f'fill="{_OURS if is_ours else _QUIET}"/>',
        f'<line x1="{low:.1f}" y1="{y + 12}" x2="{high:.1f}" y2="{y + 12}" stroke="{_TEXT}" stroke-width="3"/>',
        _label(end, y + 11, f"{float(format(cost['median'], '.3g')):,g} µs", weight=600),
        _label(end, y + 24, words, size=11),
    ]


def _remark(ratio: str) -> str:
    return f"Dragoman takes {ratio} of it" if "/" in ratio else f"Dragoman takes {ratio} as much"


def _x(cost: float) -> float:
    first, last = math.log10(_DECADES[0]), math.log10(_DECADES[-1])
    share = (math.log10(max(cost, _DECADES[0])) - first) / (last - first)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _label(x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{_TEXT}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{words}</text>"
    )

"""The runs that are kept, and what the documents show of them: `python -m bench.published` writes it anew.

1. Each full run is a file in docs/bench-runs. Remove those of code that is no longer comparable.
2. A document shows the median of all runs on one Python. Its spread is from the lowest of their lower quartiles to the
   highest of their upper ones.
3. What is shown stands between `<!-- bench: NAME -->` and `<!-- /bench -->`. Without a run nothing is written.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.chart import chart
from bench.measure import IN_FLIGHT, ROOT
from bench.measure import path_of as stdio_path
from bench.over_http import in_session
from bench.over_http import path_of as http_path
from bench.report import CALL_HEAD, call_row
from bench.rounds import Figures
from bench.targets import Target, targets

RUNS = ROOT / "docs" / "bench-runs"
CHART = "docs/bench.svg"
DOCUMENTS = ("README.md", "docs/benchmark.md")
HEADLINES = (
    "stdio, 32 in flight: CPU per call against the SDK's",
    "stdio, 32 in flight: CPU per call against the bare loop's",
    "HTTP, 16 connections: CPU per call against the SDK's",
    "HTTP, 16 connections: CPU per call against the bare ASGI echo's",
    "in process: CPU per call",
)
"""The targets that the README shows."""
_BLOCK = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_ENDS = {"low": min, "least": min, "high": max, "most": max}


def kept(results: Figures) -> Figures:
    """What is kept of a run: the figures of all calls, and the targets."""
    works = [figures.get("works", {}) for figures in results.values()]
    return {
        "about": results["about"],
        "calls": {path: servers for each in works for path, servers in each.items()},
        "targets": [asdict(target) for target in targets(results)],
    }


def read(folder: Path = RUNS) -> dict[str, list[Figures]]:
    """The runs by version of Python, the oldest version first."""
    runs: dict[str, list[Figures]] = {}
    for path in sorted(folder.glob("*.json")):
        run: Figures = json.loads(path.read_text("utf-8"))
        runs.setdefault(run["about"]["python"].rpartition(".")[0], []).append(run)
    return dict(sorted(runs.items(), key=lambda item: [int(part) for part in item[0].split(".")]))


def pages(runs: Mapping[str, Sequence[Figures]], root: Path = ROOT) -> dict[str, str]:
    """The text of each document that shows figures, by its path; none without a run."""
    if not runs:
        return {}
    blocks = {"headlines": _headline_block(runs), "targets": _target_block(runs), "calls": _call_block(runs)}
    texts = {name: (root / name).read_text("utf-8") for name in DOCUMENTS}
    return {CHART: _drawn(runs)} | {
        name: _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}\n{match[3]}", text)
        for name, text in texts.items()
    }


def merged(found: Sequence[Any]) -> Any:
    """The same figures of several runs as one; a figure may be missing in some of them."""
    if not isinstance(found[0], dict):
        return statistics.median(found)
    keys = dict.fromkeys(key for each in found for key in each)
    parts = {key: [each[key] for each in found if key in each] for key in keys}
    return {key: _ENDS[key](each) if key in _ENDS else merged(each) for key, each in parts.items()}


def merged_targets(runs: Sequence[Figures]) -> dict[str, Target]:
    """By name, the targets of several runs as one, with the goal of the last run."""
    by_name: dict[str, list[Target]] = {}
    for run in runs:
        for facts in run["targets"]:
            by_name.setdefault(facts["name"], []).append(Target(**facts))
    return {
        name: replace(
            each[-1],
            figure=statistics.median(target.figure for target in each),
            low=min(target.low for target in each),
            high=max(target.high for target in each),
        )
        for name, each in by_name.items()
    }


def _target_block(runs: Mapping[str, Sequence[Figures]]) -> str:
    by_python = {f"Python {version}, {_number_of(each)}": merged_targets(each) for version, each in runs.items()}
    every = {name: target for found in by_python.values() for name, target in found.items()}
    rows = [
        (name, target.wanted, *(_verdict(found.get(name)) for found in by_python.values()))
        for name, target in every.items()
    ]
    return _markdown(("Target", "Wanted", *by_python), rows)


def _verdict(target: Target | None) -> str:
    if target is None:
        return ""
    return target.found if target.is_reached else f"{target.found}, **missed**"


def _call_block(runs: Mapping[str, Sequence[Figures]]) -> str:
    parts = []
    for each in runs.values():
        rows = [
            (path, server, *call_row(facts))
            for path, servers in merged([run["calls"] for run in each]).items()
            for server, facts in servers.items()
        ]
        parts.append(f"{_conditions(each)}:\n\n{_markdown(('Path', 'Server', *CALL_HEAD), rows)}")
    return "\n\n".join(parts)


def _headline_block(runs: Mapping[str, Sequence[Figures]]) -> str:
    first = next(iter(runs.values()))
    found = merged_targets(first)
    rows = [(name, found[name].found) for name in HEADLINES]
    return f"{_markdown(('', 'Dragoman'), rows)}\n\n{_conditions(first)}."


def _drawn(runs: Mapping[str, Sequence[Figures]]) -> str:
    first = next(iter(runs.values()))
    calls = merged([run["calls"] for run in first])
    shown = {"Over stdio, 32 in flight": stdio_path(IN_FLIGHT), "Over HTTP, 16 connections": http_path(16)}
    groups = {
        title: {name: facts for name, facts in calls[path].items() if not name.endswith(in_session(""))}
        for title, path in shown.items()
    }
    return chart("CPU time per call", groups, _conditions(first))


def _conditions(runs: Sequence[Figures]) -> str:
    about = runs[-1]["about"]
    rounds = min(run["about"]["rounds"] for run in runs)
    return (
        f"Medians of {_number_of(runs)} of {rounds} rounds, {about['cores']} cores, Python {about['python']}, "
        f"{about['date'][:10]}"
    )


def _number_of(runs: Sequence[Figures]) -> str:
    return f"{len(runs)} full run{'s' * (len(runs) > 1)}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write() -> None:
    """Write every document that shows figures."""
    for name, text in pages(read()).items():
        (ROOT / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write()

"""The documents show the median of all runs that are kept, with its spread."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bench import published
from bench.measure import DRAGOMAN, ROOT, SDK
from bench.over_http import in_session
from bench.rounds import Figures, Run, compared
from bench.targets import Target

PATHS = ("stdio, 32 in flight", "HTTP, 16 connections")


def _run(costs: tuple[float, ...], python: str = "3.11.7", goal: float = 0.25) -> Figures:
    """A made-up run of as many rounds, in each of which a call of ours takes so many µs, and one of the SDK's 100."""
    rounds = {
        name: {turn: Run(1, 0.01, cost / 1e6, [0.001, 0.002]) for turn, cost in enumerate(each)}
        for name, each in {
            DRAGOMAN: costs,
            SDK: [100.0] * len(costs),
            in_session(DRAGOMAN): costs,
        }.items()
    }
    servers = compared(rounds, DRAGOMAN)
    ratio = servers[SDK]["ratio"]
    return {
        "about": {"python": python, "date": "2026-11-17 18:00 UTC", "rounds": len(costs), "cores": 2},
        "calls": dict.fromkeys(PATHS, servers),
        "targets": [asdict(Target.of(name, ratio, goal)) for name in published.HEADLINES],
    }


RUNS = {
    "3.11": [_run((8.0, 10.0, 12.0)), _run((20.0, 20.0, 20.0)), _run((10.0, 11.0, 30.0))],
    "3.13": [_run((40.0, 40.0, 40.0), "3.13.0")],
}


def _documents(folder: Path) -> Path:
    (folder / "docs").mkdir()
    (folder / "README.md").write_text("Before.\n\n<!-- bench: headlines -->\nold\n<!-- /bench -->\n\nAfter.\n")
    (folder / "docs" / "benchmark.md").write_text(
        "<!-- bench: targets -->\n<!-- /bench -->\nBetween.\n<!-- bench: calls -->\nold\n<!-- /bench -->\n"
    )
    return folder


@pytest.mark.requirement("FND-TEST-08")
def test_figures_of_several_runs_are_their_median_from_the_lowest_quartile_to_the_highest() -> None:
    cost = published.merged([run["calls"] for run in RUNS["3.11"]])[PATHS[0]][DRAGOMAN]["cpu_us"]
    assert {key: cost[key] for key in ("median", "low", "high")} == pytest.approx(
        {"median": 11.0, "low": 9.0, "high": 20.5}
    )
    (target, *_) = published.merged_targets(RUNS["3.11"]).values()
    assert (target.figure, target.low, target.high) == pytest.approx((0.11, 0.09, 0.205))


def test_a_server_that_some_runs_do_not_have_is_the_median_of_the_others() -> None:
    assert published.merged([{"a": 1, "b": 5}, {"a": 3}]) == {"a": 2, "b": 5}


def test_documents_have_the_figures_of_each_python_between_their_marks(tmp_path: Path) -> None:
    pages = published.pages(RUNS, _documents(tmp_path))
    readme, page = pages["README.md"], pages["docs/benchmark.md"]
    assert readme.startswith("Before.\n\n<!-- bench: headlines -->\n| ")
    assert readme.endswith("<!-- /bench -->\n\nAfter.\n")
    assert "old" not in readme + page
    assert "Medians of 3 full runs of 3 rounds, 2 cores, Python 3.11.7, 2026-11-17." in readme
    assert f"| {published.HEADLINES[0]} | 1/9.09 (1/11.1 to 1/4.88) |" in readme
    assert "| Target | Wanted | Python 3.11, 3 full runs | Python 3.13, 1 full run |" in page
    assert f"| {published.HEADLINES[0]} | at most 1/4 | 1/9.09 (1/11.1 to 1/4.88) | 1/2.5, **missed** |" in page
    assert f"| {PATHS[0]} | {DRAGOMAN} | 11 (9–20) |" in page
    assert "Medians of 1 full run of 3 rounds, 2 cores, Python 3.13.0, 2026-11-17:" in page
    assert pages == published.pages(RUNS, tmp_path)


def test_the_chart_shows_the_oldest_python_without_sessions(tmp_path: Path) -> None:
    drawn = published.pages(RUNS, _documents(tmp_path))[published.CHART]
    assert "Medians of 3 full runs of 3 rounds, 2 cores, Python 3.11.7" in drawn
    assert [drawn.count(f">{words}<") for words in (DRAGOMAN, "11 µs", "Dragoman takes 1/9.09 of it")] == [2, 2, 2]
    assert in_session(DRAGOMAN) not in drawn


def test_runs_are_read_by_python_and_the_oldest_python_comes_first(tmp_path: Path) -> None:
    for name, python in (("1.json", "3.13.0"), ("2.json", "3.9.1"), ("3.json", "3.13.0")):
        (tmp_path / name).write_text(f'{{"about": {{"python": "{python}"}}}}')
    assert {version: len(runs) for version, runs in published.read(tmp_path).items()} == {"3.9": 1, "3.13": 2}
    assert list(published.read(tmp_path)) == ["3.9", "3.13"]


def test_what_is_kept_of_a_run_are_its_calls_and_its_targets() -> None:
    results = {"about": {"rounds": 15}, "growth": {"calls": 1_000, "grown_mb": 12.0}, "any": {"works": {"path": {}}}}
    assert published.kept(results) == {
        "about": {"rounds": 15},
        "calls": {"path": {}},
        "targets": [asdict(Target.once("memory growth over 1,000 calls", 12.0, 10, "MB"))],
    }


@pytest.mark.requirement("FND-TEST-08")
def test_the_documents_show_the_runs_that_are_kept() -> None:
    for name, text in published.pages(published.read()).items():
        assert (ROOT / name).read_text("utf-8") == text, f"{name}: make docs"


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    assert published.pages(published.read(tmp_path), tmp_path) == {}

"""Starts of processes are measured beside one that does nothing."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import about, measured
from bench.process import BenchError, Command
from bench.rounds import Plan, spread_of
from bench.starts import CALL, HELP, SERVE, VERSION, to_the_end
from bench.targets import targets


def plan_in(folder: Path) -> Plan:
    return Plan(
        rounds=1, seconds=0.02, start_ups=1, growth_calls=1, is_short=True, folder=folder, say=lambda words: None
    )


@pytest.mark.slow
def test_every_start_is_a_multiple_of_one_that_does_nothing(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    figures = measured(plan, ["starts"])["starts"]
    least = figures["cpu_ms"]["python -c pass"]["median"]
    assert list(figures["ratios"]) == [SERVE, HELP, CALL, VERSION]
    for name, ratio in figures["ratios"].items():
        assert ratio["median"] == pytest.approx(figures["cpu_ms"][name]["median"] / least)
    results = {"about": about(datetime.now(UTC), plan, 1.0, 0.5), "starts": figures}
    text = report.text(json.loads(json.dumps(results)))
    assert [name for name in (SERVE, HELP, CALL, VERSION, "python -c pass") if name not in text] == []


def test_targets_of_starts_are_multiples_of_one_that_does_nothing() -> None:
    ratios = {SERVE: spread_of([17.0]), HELP: spread_of([19.5]), CALL: spread_of([18.0]), VERSION: spread_of([2.0])}
    assert [(target.wanted, target.is_reached) for target in targets({"starts": {"ratios": ratios}})] == [
        ("at most 17 x", True),
        ("at most 19 x", False),
        ("at most 19 x", True),
    ]


@pytest.mark.slow
def test_a_start_that_fails_spoils_the_run(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="failing ended with 3"):
        to_the_end(Command("failing", (sys.executable, "-c", "raise SystemExit(3)")), plan_in(tmp_path))

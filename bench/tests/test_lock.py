"""Holds of the write lock are measured for each kind of change, and are among the targets."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import about, measured
from bench.lock import LARGE, LATER, MEDIUM, SMALL, TAGS, TITLE, TREE
from bench.rounds import plan_for, spread_of
from bench.targets import targets


@pytest.mark.slow
def test_each_kind_of_change_has_its_longest_hold(tmp_path: Path) -> None:
    plan = replace(plan_for(short=True), folder=tmp_path)
    figures = measured(plan, ["lock"])["lock"]
    assert [*figures] == [SMALL, MEDIUM, LARGE, TITLE, TAGS, TREE, LATER]
    assert all(0 < each["longest_ms"]["median"] <= each["together_ms"]["median"] for each in figures.values())
    assert figures[TITLE]["transactions"] < 6 < figures[TREE]["transactions"]
    text = report.text({"about": about(datetime.now(UTC), plan, 1.0, 0.0), "lock": figures})
    assert LARGE in text
    assert f"write lock, {TREE}: the longest hold" in text


def test_the_lock_is_to_be_held_for_50_ms_at_most() -> None:
    found = {name: {"longest_ms": spread_of([hold])} for name, hold in ((TITLE, 50.0), (TREE, 51.0))}
    assert [target.is_reached for target in targets({"lock": found})] == [True, False]

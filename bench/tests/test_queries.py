"""Queries are measured beside bare statements, and are in the report and among the targets."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import about, measured
from bench.queries import SHORT
from bench.rounds import Figures, plan_for
from bench.targets import targets

ABOUT = about(datetime.now(UTC), plan_for(short=True), 1.0, 0.0)


def found(*ratios: float) -> Figures:
    tenants = {
        name: {kind: {"ratio": ratio} for kind in ("words", "vectors")}
        for name, ratio in zip(("1", "10", "100"), ratios, strict=True)
    }
    return {"queries": {"1000": {"tenants": tenants}}}


@pytest.mark.slow
def test_queries_are_measured_by_passages_and_tenants(tmp_path: Path) -> None:
    results = measured(replace(plan_for(short=True), folder=tmp_path), ["queries"])
    figures = results["queries"]
    assert [*figures] == [str(size) for size in SHORT.sizes]
    for each in figures.values():
        assert [*each["tenants"]] == [str(number) for number in SHORT.tenants]
    text = report.text({"about": ABOUT, **results})
    assert "1,000 passages, 3 tenants: vectors" in text
    assert "1,000 passages: " in text
    assert len(targets(results)) == 4 * len(SHORT.sizes)


def test_the_targets_of_queries_are_the_bare_statements_and_the_same_tenant_alone() -> None:
    assert all(target.is_reached for target in targets(found(2, 9, 2.5)))
    assert not any(target.is_reached for target in targets(found(2.1, 1, 2.7)))

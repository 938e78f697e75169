"""The published conformance figures are those of the suite, and what may fail there can only become less."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
SCORES = msgspec.json.decode((ROOT / "docs" / "conformance.json").read_bytes())["scores"]
EXPECTED = tomllib.loads((ROOT / "conformance" / "expected-failures.toml").read_text())


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_the_readme_shows_what_the_suite_found(revision: str) -> None:
    score = SCORES[revision]
    assert f"| {revision} | {score['passed']} of {score['checks']} |" in (ROOT / "README.md").read_text()
    assert score["failing"] == EXPECTED[revision]


def test_nothing_fails_and_nothing_is_left_out() -> None:
    assert EXPECTED == {"2025-11-25": {}, "2026-07-28": {}}
    assert SCORES["2025-11-25"]["checks"] >= 81
    # The suite has one more, which warns: `input-required-result-ignore-extra-params` answers what was not asked.
    assert SCORES["2026-07-28"]["checks"] >= 195

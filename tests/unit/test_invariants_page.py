"""The page of invariants lists what the requirements list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.cache.bounded import PRESSURE_FROM
from tests import requirements

PAGE = (Path(__file__).parents[2] / "docs/invariants.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.requirement("PRD-ARCH-02")
def test_every_invariant_is_on_the_page_under_its_heading_and_no_other_is() -> None:
    listed = {
        id: heading.lower()
        for heading, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
        for id in re.findall(r"^\| (INV-MCP-\w+-\d+) \| \S", text, re.MULTILINE)
    }
    assert listed == {id: area for id, area in requirements.load().areas.items() if id.startswith("INV-MCP-")}


@pytest.mark.requirement("PRD-CACHE-07")
def test_page_says_where_each_level_of_pressure_begins() -> None:
    medium, high, critical = (PRESSURE_FROM[level] for level in ("medium", "high", "critical"))
    assert f"`low`, from {medium} `medium`, from {high} `high`, from {critical} `critical`" in PAGE

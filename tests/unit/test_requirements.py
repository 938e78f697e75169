"""The requirements, the tests and the list of exceptions agree with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import requirements


@pytest.mark.slow
def test_every_requirement_is_tested_or_listed_as_pending_or_settled() -> None:
    assert requirements.load().problems() == []


def ledger(**changes: dict[str, object]) -> requirements.Ledger:
    facts: dict[str, object] = {"areas": {"A-1": "a"}, "tested": {"A-1": ["t.py:1"]}, "pending": {}, "settled": {}}
    return requirements.Ledger(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"tested": {"A-1": ["t.py:1"], "A-2": ["t.py:5"]}}, "t.py:5: A-2 is not a requirement"),
        ({"pending": {"B-1": "later"}}, "pending.toml: B-1 is not a requirement"),
        ({"pending": {"A-1": "later"}}, "A-1 is pending, and t.py:1 names it"),
        ({"tested": {}}, "A-1 is neither tested, nor pending, nor settled"),
        ({"tested": {}, "pending": {"A-1": "x"}, "settled": {"A-1": "y"}}, "A-1 is both pending and settled"),
    ],
)
def test_what_does_not_add_up_is_reported(changes: dict[str, dict[str, object]], problem: str | None) -> None:
    assert ledger(**changes).problems() == ([] if problem is None else [problem])


def test_marks_are_found_in_source_wherever_they_stand(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.requirement('X-1', 'X-2')\ndef test_a(): ...\n"
    assert list(requirements.marks_in(source)) == [("X-1", 2), ("X-2", 2)]

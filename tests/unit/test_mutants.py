"""The listed breaches can be made, their requirements have tests, and a breach that no test finds is reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import mutants, requirements
from tests.mutants import FOUND, LATE, SURVIVED, Mutant

HARMLESS = Mutant(
    id="MC-DELETE-02",
    breach="only a comment changes",
    file="src/dragoman/knowledge/port.py",
    old="from __future__ import annotations",
    new="from __future__ import annotations  # Changed.",
)


def test_each_breach_has_one_place() -> None:
    listed = mutants.listed()
    assert len({each.id for each in listed}) >= 120
    assert [problem for each in listed if (problem := each.problem(mutants.ROOT)) is not None] == []
    assert [each for each in listed if each.old == each.new or "|" in each.breach] == []


@pytest.mark.slow
def test_each_breach_is_of_a_requirement_that_tests_name() -> None:
    tested = requirements.load().tested
    assert [each.id for each in mutants.listed() if each.id not in tested] == []


def test_a_place_that_is_gone_or_there_twice_is_named(tmp_path: Path) -> None:
    place = Mutant(id="X-1", breach="it is gone", file="a.py", old="b", new="c")
    assert place.problem(tmp_path) == "X-1: a.py has the place 0 times: it is gone"
    for text, times in (("abcb", 2), ("a", 0)):
        (tmp_path / "a.py").write_text(text)
        assert place.problem(tmp_path) == f"X-1: a.py has the place {times} times: it is gone"
    (tmp_path / "a.py").write_text("ab")
    assert place.problem(tmp_path) is None


def test_the_page_has_each_breach_that_is_listed() -> None:
    rows = re.findall(r"^\| (\S+) \| (.+) \| \S+ \|$", mutants.PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == [(each.id, each.breach) for each in mutants.listed()]


@pytest.mark.slow
def test_a_breach_is_found_or_survives_and_the_copy_is_whole_again(tmp_path: Path) -> None:
    copy = mutants.Copy(tmp_path)
    found = next(each for each in mutants.listed() if each.id == HARMLESS.id)
    files = ["tests/contract/test_documents.py"]
    assert copy.judge(found, files).outcome == FOUND
    assert copy.judge(HARMLESS, files).outcome == SURVIVED
    for each in (found, HARMLESS):
        assert each.problem(tmp_path) is None


@pytest.mark.slow
def test_tests_that_do_not_end_find_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "SECONDS", 0.0)
    assert mutants.Copy(tmp_path).judge(HARMLESS, ["tests/contract/test_documents.py"]).outcome == LATE

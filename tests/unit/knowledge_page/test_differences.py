"""What two texts differ in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import Aborted
from dragoman.knowledge_page.differences import LONGEST_LINE, MOST_COMPARED, MOST_LINES, MOST_ROWS, difference
from dragoman.knowledge_page.work import Work
from dragoman.tools.context import Cancellation
from tests.support.cost import work_of

LINES = st.lists(st.sampled_from(["", "a", "b", "a b", "c d e"]), max_size=30).map("\n".join)


def rows(before: str, after: str) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in difference(before, after)["rows"]]


def test_changed_words_are_marked_and_lines_around_them_are_shown() -> None:
    before = "\n".join(["1", "2", "3", "4", "5", "the old word is here", "6", "7", "8", "9", "10"])
    after = before.replace("old word", "new thing")
    assert rows(before, after) == [
        ("…", 2),
        (" ", 3, 3, "3"),
        (" ", 4, 4, "4"),
        (" ", 5, 5, "5"),
        ("-", 6, "the old word is here", [[4, 12]]),
        ("+", 6, "the new thing is here", [[4, 13]]),
        (" ", 7, 7, "6"),
        (" ", 8, 8, "7"),
        (" ", 9, 9, "8"),
        ("…", 2),
    ]


def test_lines_that_come_and_go_are_counted() -> None:
    found = difference("a\nb\nc", "a\nc\nd\ne")
    assert (found["added"], found["removed"], found["isCut"]) == (2, 1, False)
    assert rows("", "a\nb") == [("+", 1, "a"), ("+", 2, "b")]
    assert rows("a", "") == [("-", 1, "a")]
    assert rows("", "") == []
    assert rows("a\nb", "a\nb") == [("…", 2)]


def test_characters_that_turn_others_around_are_named_in_what_is_shown() -> None:
    turned = "a \N{RIGHT-TO-LEFT OVERRIDE}b"
    assert rows("a", turned) == [("-", 1, "a", []), ("+", 1, "a [U+202E]b", [[2, 11]])]
    assert rows("", turned) == [("+", 1, "a [U+202E]b")]


@given(LINES, LINES)
def test_the_rows_lead_from_one_text_to_the_other(before: str, after: str) -> None:
    old, new = ([] if not text else text.split("\n") for text in (before, after))
    found = difference(before, after)["rows"]
    assert [each["text"] for each in found if each["op"] == "-"] == [
        old[each["old"] - 1] for each in found if each["op"] == "-"
    ]
    left_out = sum(each["count"] for each in found if each["op"] == "…")
    kept = left_out + sum(each["op"] == " " for each in found)
    assert kept + sum(each["op"] == "-" for each in found) == len(old)
    assert kept + sum(each["op"] == "+" for each in found) == len(new)
    for each in found:
        if each["op"] in " +":
            assert new[each["new"] - 1] == each["text"]
        for start, end in each.get("marks", ()):
            assert 0 <= start <= end <= len(each["text"])


def test_texts_of_any_length_are_compared_in_bounded_space() -> None:
    line = "x" * 1_000_000
    found = rows(line, line + "y")
    assert [len(each[2]) for each in found] == [LONGEST_LINE + 1] * 2
    many = [str(number) for number in range(3 * MOST_COMPARED)]
    found_all = difference("\n".join(many), "\n".join(f"{each} more" for each in many))
    assert (len(found_all["rows"]), found_all["isCut"], found_all["added"]) == (MOST_ROWS, True, len(many))
    # What is the same at both ends does not count.
    edited = [*many]
    edited[MOST_COMPARED] = "another"
    assert [each[0] for each in rows("\n".join(many), "\n".join(edited))] == ["…", *"   -+   ", "…"]


def hostile(word: str, lines: int) -> str:
    """A text whose lines differ from another one's in every second word, so that each word is alike to half of them."""
    return "\n".join(" ".join(["y", word] * 40) + f" {number}" for number in range(lines))


def test_a_comparison_takes_the_steps_that_it_has_and_then_lines_as_a_whole() -> None:
    """Without the bound it is the third power: 43 seconds for two texts of 128 KiB."""
    steps = 2_000
    found: list[dict[str, Any]] = []
    work = work_of(lambda: found.append(difference(hostile("u", 2), hostile("v", 2), Work(steps))))
    assert work.lines < 10 * steps
    assert found[0]["rows"][-1] == {"op": "+", "new": 2, "text": hostile("v", 2).split("\n")[-1], "marks": [[0, 161]]}


def test_a_comparison_stops_when_nobody_waits_for_it() -> None:
    cancellation = Cancellation()
    cancellation.set("disconnect")
    with pytest.raises(Aborted):
        difference("a b", "a c", Work(1_000, cancellation))


def test_texts_of_too_many_lines_are_counted_and_their_first_lines_are_shown() -> None:
    many = "x\n" * MOST_LINES
    found = difference(many, many + "y")
    assert (len(found["rows"]), found["isCut"]) == (MOST_ROWS, True)
    assert (found["removed"], found["added"]) == (MOST_LINES + 1, MOST_LINES + 1)
    assert difference(many, many) == {
        "rows": [{"op": "…", "count": MOST_LINES + 1}],
        "isCut": False,
        "removed": 0,
        "added": 0,
    }

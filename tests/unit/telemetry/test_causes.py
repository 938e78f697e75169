"""What is kept of the exception behind an attempt that failed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dragoman.errors import InternalFailure
from dragoman.telemetry.causes import MOST_CAUSES, Cause, cause_of, causes_in, hidden_cause, with_causes, without_causes

STORED = b'{"code":"INTERNAL","message":"It failed"}'


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_cause_has_type_text_and_the_last_own_frame() -> None:
    cause = cause_of(raised(ValueError("no such order")), 2, 5.0)
    assert (cause.attempt, cause.at, cause.type, cause.message) == (2, 5.0, "ValueError", "no such order")
    assert cause.place is not None
    file, line, function = cause.place.replace(" in ", ":").rsplit(":", 2)
    assert (Path(file).name, int(line) > 0, function) == ("test_causes.py", True, "raised")
    assert cause.line == f"ValueError: no such order ({cause.place})"


def test_the_frame_is_one_of_the_authors_and_not_one_of_a_library() -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(b"{")
    place = cause_of(caught.value, 1, 0.0).place
    assert place is not None
    assert place.endswith("in test_the_frame_is_one_of_the_authors_and_not_one_of_a_library")


def test_an_exception_that_was_never_raised_or_has_no_text_is_named_all_the_same() -> None:
    assert cause_of(KeyError(), 1, 0.0).line == "KeyError"


def test_text_that_is_long_or_hides_lines_is_shown_as_the_log_shows_it() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert cause_of(Mute(), 1, 0.0).message == "<str() of Mute failed>"
    assert cause_of(ValueError("a\nb\x1b[31m\u202e"), 1, 0.0).message == "a\\u000ab\\u001b[31m\\u202e"
    assert len(cause_of(ValueError("x" * 10_000_000), 1, 0.0).message) == 1000


def test_causes_are_kept_beside_the_error_and_the_last_ones_stay() -> None:
    causes = [Cause(number, float(number), "ValueError", "x") for number in range(1, MOST_CAUSES + 4)]
    stored = with_causes(STORED, causes)
    assert causes_in(stored) == causes[3:]
    assert without_causes(msgspec.json.decode(stored)) == msgspec.json.decode(STORED)
    assert with_causes(STORED, []) == STORED
    assert causes_in(STORED) == causes_in(None) == []


def test_the_exception_behind_an_error_is_its_cause_and_there_may_be_none() -> None:
    failure = InternalFailure("The tool failed")
    assert hidden_cause(failure, 1, 0.0) is hidden_cause(None, 1, 0.0) is None
    failure.__cause__ = OSError("disk full")
    assert hidden_cause(failure, 1, 0.0) == Cause(1, 0.0, "OSError", "disk full")

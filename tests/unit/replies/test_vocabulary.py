"""One table with the words of every dialect for every tool error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dragoman import errors
from dragoman.calls.call import Call, Dialect, Outcome
from dragoman.calls.origin import Origin
from dragoman.errors import ToolError
from dragoman.replies.vocabulary import VOCABULARY, words_for


def tree(kind: type[ToolError]) -> Iterator[type[ToolError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from tree(each)


def test_every_class_of_the_tree_has_a_row_and_no_other_class() -> None:
    assert list(VOCABULARY) == list(tree(ToolError))


@pytest.mark.parametrize("kind", VOCABULARY)
def test_every_sentence_can_be_filled_in(kind: type[ToolError]) -> None:
    facts = {"code": "C", "message": "m", "timeout": 1, "whether_to_repeat": "r"}
    assert "{" not in words_for(kind).plain.format(**facts)


def test_a_class_that_is_not_in_the_tree_has_the_words_of_the_nearest_class_above_it() -> None:
    class Gone(errors.ResultTooLarge):
        """Of a user's own."""

    assert words_for(Gone) is VOCABULARY[errors.ResultTooLarge]


class Envelope:
    """A dialect of another surface: it renders a dictionary."""

    def render(self, call: Call, outcome: Outcome) -> dict[str, Any]:
        if outcome.error is not None:
            return {"ok": False, "error": str(outcome.error.code)}
        return {"ok": True, "data": outcome.value, "usage": {"durationMs": call.duration_ms}}


def test_a_dialect_can_render_something_else_than_a_tool_result() -> None:
    dialect: Dialect[dict[str, Any]] = Envelope()
    call = Call(Origin(), "t", {}, "run-1", "corr-1", lambda call, outcome: None)
    assert dialect.render(call, Outcome(5)) == {"ok": True, "data": 5, "usage": {"durationMs": 0.0}}
    assert dialect.render(call, Outcome(error=errors.NotFound("m"))) == {"ok": False, "error": "NOT_FOUND"}

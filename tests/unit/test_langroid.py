"""Langroid is imported by those who ask for it, and no dependency. `tests/langroid` has the tests with it."""

from __future__ import annotations

import sys
from subprocess import run

import pytest

from dragoman.errors import NotFound
from dragoman.langroid import action_message, wrap


def test_without_langroid_messages_are_refused_and_the_error_says_where_to_read_on() -> None:
    with pytest.raises(ImportError, match=r"needs Langroid, which is not installed; see docs/langroid\.md") as missing:
        wrap("knowledge.create_document", {})
    assert missing.value.name == "langroid"


def test_an_unknown_action_has_no_message() -> None:
    with pytest.raises(NotFound, match=r"There is no action knowledge\.burn_document"):
        action_message("knowledge.burn_document")


@pytest.mark.slow
def test_langroid_is_not_imported_unless_a_message_is_asked_for() -> None:
    code = (
        "import sys, dragoman.app, dragoman.langroid; sys.exit('langroid' in sys.modules or 'pydantic' in sys.modules)"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0

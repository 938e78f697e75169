"""Questions about Python's own reference, and the topics that answer them: the labelled set of `bench/retrieval.py`.

The texts differ between versions of Python; their names do not. 3.11, 3.12 and 3.13 were read to label them.
"""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import msgspec
from msgspec import Struct

from dragoman.search.words import words_in

TEXTS: dict[str, str] = topics
"""By the name of the topic."""
_FILE = Path(__file__).with_name("retrieval_questions.toml")


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that a user might ask."""

    text: str
    topics: tuple[str, ...]
    """Each of them answers it: some texts contain others."""
    shares_words: bool
    """Whether a content word of it is in one of those."""
    held_back: bool = False
    """Whether nothing about the search was chosen by it."""


class LabelledSet(Struct, frozen=True, forbid_unknown_fields=True):
    """All the questions, and the words that are no content words."""

    stop_words: frozenset[str]
    question: tuple[Question, ...]

    def shared(self, question: Question) -> set[str]:
        """The content words of a question that are in a text that answers it."""
        content = set(words_in(question.text)) - self.stop_words
        return content & {word for name in question.topics for word in words_in(TEXTS[name])}


def load_questions() -> LabelledSet:
    """The labelled set as the file has it."""
    return msgspec.toml.decode(_FILE.read_bytes(), type=LabelledSet)


def title_of(name: str) -> str:
    """The heading of a topic."""
    return TEXTS[name].partition("\n")[0]

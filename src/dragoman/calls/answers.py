"""What is known of the answers to a tool's questions while its call is on its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from dragoman.protocol.results import InputRequest


class Answers(Struct):
    """The client's results by question, and what it was asked, as `digest` tells it."""

    results: dict[str, Any] = field(default_factory=dict)
    """A text in place of a result is the reason why there is none."""
    asked: dict[str, str] | None = None
    """None: it is not known, and every answer counts."""

    def counts(self, question: str, digest: str) -> bool:
        """Whether there is an answer to the question as it would be asked now."""
        return question in self.results and (self.asked is None or self.asked.get(question) == digest)


class InputNeeded(Exception):
    """The call cannot go on before its client has answered `requests`."""

    def __init__(self, requests: Mapping[str, InputRequest], answers: Answers) -> None:
        super().__init__(", ".join(requests))
        self.requests = requests
        self.answers = answers
        """Those that counted, with the digests of theirs and of the requests."""

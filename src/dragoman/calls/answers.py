"""What is known of the answers to a tool's questions while its call is on its way."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct, field

from dragoman.tools.catalogue import RegisteredTool


class Answers(Struct, frozen=True):
    """The client's results by question, and what it was asked, as `digest` tells it."""

    results: dict[str, Any] = field(default_factory=dict)
    """A text in place of a result is the reason why there is none."""
    asked: dict[str, str] | None = None
    """None: the handshake era, in which an answer belongs to its request."""
    id: str = ""
    """Identifies all rounds of one call; only in the modern era, as are the fields below."""
    ends: float = 0.0
    """When the last state of these rounds expires, in seconds since 1970."""
    keeper: str = ""
    """The `keeper` of the `Claims` of the server that asked."""

    def counts(self, question: str, digest: str) -> bool:
        """Whether there is an answer to the question as it would be asked now."""
        return question in self.results and (self.asked is None or self.asked.get(question) == digest)


NO_ANSWERS = Answers()
"""Of a call whose tool has no questions."""


class Claims(Protocol):
    """Remembers which ids were used. All processes that share a `keeper` share what is remembered."""

    @property
    def keeper(self) -> str:
        """A random word, new with every start."""
        ...

    async def claim(self, id: str, until: float, holder: str = "") -> bool:
        """Use an id, atomically; False: it was used before. It is remembered until a time, in seconds since 1970.

        Raises `ResourceExhausted`, retryable, when there is no room to remember it. A named holder can take half of
        that room.
        """
        ...


def is_repeatable(tool: RegisteredTool) -> bool:
    """Whether a tool may run again with the same answers, as when the client did not receive the first result."""
    hints = tool.definition.hints
    return not needs_approval(tool) and bool(hints.read_only or hints.idempotent)


def needs_approval(tool: RegisteredTool) -> bool:
    """Whether one of its questions is an approval."""
    return any(question.is_approval for question in tool.questions)

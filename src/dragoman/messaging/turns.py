"""The turns of subjects: in their own order, round and round, from behind the one that had the last turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dragoman.messaging.subjects import ANY, matches


def bounds_of(pattern: str) -> tuple[str, str]:
    """The first subject that a pattern may match, and the first one behind all that it may match."""
    if not pattern.endswith(f".{ANY}"):
        return pattern, pattern + "\0"
    first = pattern.removesuffix(ANY)
    return first + "\0", first[:-1] + "/"  # The character that follows the dot.


def subjects_in_turn(find: Callable[[str, str], str | None], pattern: str, last: str) -> Iterator[str]:
    """The subjects that a pattern matches, from behind `last` around to it, each once.

    `find(low, high)` is the first subject with something to deliver that is not before `low`, and is before `high`.
    """
    low, high = bounds_of(pattern)
    behind = last + "\0"
    for start, end in ((max(low, behind), high), (low, min(behind, high))):
        position = start
        while (subject := find(position, end)) is not None:
            if matches(pattern, subject):
                yield subject
                position = subject + "\0"
            else:  # It goes on after a dot, as do all others that begin with the same word.
                position = subject[: subject.index(".", len(low) - 1)] + "/"

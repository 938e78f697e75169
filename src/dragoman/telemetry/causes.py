"""Why an attempt failed, for operators: clients and other agents are told less."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.clock import iso_milliseconds
from dragoman.telemetry.clean import one_line, sanitize, text_of
from dragoman.telemetry.tracebacks import is_own_code

MOST_CAUSES = 20
"""The last ones are kept."""
_LONGEST = 1_000
"""Characters of an exception's text, and of a place."""
_MEMBER = "causes"


class Cause(Struct, frozen=True, omit_defaults=True):
    """One attempt that failed."""

    attempt: int
    at: float
    """Seconds of the epoch."""
    type: str
    """The class of the exception."""
    message: str
    """Its text, as the log has it."""
    place: str | None = None
    """Where it was raised: the last frame of code that is neither the server's nor an installed package's."""

    @property
    def line(self) -> str:
        """All of it but the time."""
        said = f"{self.type}: {self.message}" if self.message else self.type
        return said if self.place is None else f"{said} ({self.place})"


def cause_of(error: BaseException, attempt: int, at: float) -> Cause:
    """The cause that an exception is, even one that cannot say what it is."""
    message = one_line(sanitize(text_of(error)), _LONGEST)
    return Cause(attempt, at, one_line(type(error).__qualname__, 100), message, _place_of(error))


def _place_of(error: BaseException) -> str | None:
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_own_code(frame.f_code.co_filename):
            found = f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
    return None if found is None else one_line(sanitize(found), _LONGEST)


def hidden_cause(error: BaseException | None, attempt: int, at: float) -> Cause | None:
    """The exception behind an error that says nothing of it; None if there is none."""
    behind = None if error is None else error.__cause__
    return None if behind is None else cause_of(behind, attempt, at)


def with_causes(error: bytes, causes: Sequence[Cause]) -> bytes:
    """The JSON of a stored error, together with the causes of all attempts."""
    return msgspec.json.encode({**msgspec.json.decode(error), _MEMBER: causes[-MOST_CAUSES:]}) if causes else error


def causes_in(error: bytes | None) -> list[Cause]:
    """The causes that were stored with an error."""
    if error is None:
        return []
    kept: list[Cause] = msgspec.convert(msgspec.json.decode(error).get(_MEMBER, ()), list[Cause])
    return kept


def described_causes(causes: Iterable[Cause]) -> list[dict[str, Any]]:
    """Causes as operators see them."""
    moment = datetime.fromtimestamp
    return [{**msgspec.to_builtins(each), "at": iso_milliseconds(moment(each.at, UTC))} for each in causes]


def without_causes(error: Mapping[str, Any]) -> dict[str, Any]:
    """A stored error as clients are told it."""
    return {name: fact for name, fact in error.items() if name != _MEMBER}

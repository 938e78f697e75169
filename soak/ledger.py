"""The account of a run: the calls that were made, the record that each must leave, and everything that went wrong.

1. A call has a correlation id of its own, and a set of outcomes that its record may have.
2. A call that the server accepted has exactly one record. A call that was cut off before its end has none.
3. Only calls whose connection was reset right after the request may have a record or none: the server may not have
   read the request.
4. Each line of a log is JSON, and its message is one that this load brings about.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

Outcomes = frozenset[str]

NO_RECORD: Outcomes = frozenset({"no record"})
SUCCESS: Outcomes = frozenset({"success"})
ERROR: Outcomes = frozenset({"tool_error"})
LATE: Outcomes = frozenset({"late_completed"})
ABORTED: Outcomes = frozenset({"aborted"})
DISCONNECTED: Outcomes = frozenset({"disconnected_completed"})

RECORD = "tool call completed"
PREFIX = "soak-"
ANY = "any tool"
EXPECTED_LINES = {
    "server started": ANY,
    "server stopping": ANY,
    "server stopped": ANY,
    "message refused": ANY,
    "call cancelled by its client": ANY,
    RECORD: ANY,
    "tool failed": "crash",
    "tool call passed its deadline": "overrun",
}
"""What a server logs under this load, and of which tool."""
_MOST_PROBLEMS = 100


class Ledger:
    """What was asked, what was recorded, and what does not fit."""

    def __init__(self) -> None:
        self._due: list[Outcomes] = []
        self._came: list[str | None] = []
        self._checked = 0
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.refused_for_slots = 0

    @property
    def calls(self) -> int:
        return len(self._due)

    def open(self, due: Outcomes) -> str:
        """The correlation id of a new call, whose record must have one of these outcomes."""
        self._due.append(due)
        self._came.append(None)
        return f"{PREFIX}{len(self._due) - 1}"

    def settle(self, correlation_id: str, due: Outcomes) -> None:
        """The answer has shown which outcome the record must have."""
        self._due[_number(correlation_id)] = due

    def complain(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem[:500])

    def take(self, line: bytes) -> None:
        """A line of a server's log."""
        try:
            entry: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            self.complain(f"a line of the log is not JSON: {line!r}")
            return
        if EXPECTED_LINES.get(entry["message"]) not in (ANY, entry.get("toolName", "none")):
            self.complain(f"an unexpected line in the log: {line.decode()}")
        if entry["message"] == RECORD:
            self._take_record(entry)

    def check(self, before: int | None = None) -> None:
        """Complain of each of the first `before` calls, or of all, whose record is missing or a wrong one.

        A call is checked once. A second record of it is found when it comes.
        """
        last = self.calls if before is None else before
        for number in range(self._checked, last):
            due, came = self._due[number], self._came[number]
            if (came or "no record") not in due:
                words = " or ".join(sorted(due))
                self.complain(f"the record of {PREFIX}{number}: {came or 'none'}, and it must be {words}")
        self._checked = max(self._checked, last)

    def _take_record(self, entry: dict[str, Any]) -> None:
        correlation_id, outcome = entry["correlationId"], entry["outcome"]
        self.outcomes[outcome] += 1
        number = _number(correlation_id)
        if not 0 <= number < len(self._due):
            self.complain(f"a record of a call that nobody made: {correlation_id}")
        elif self._came[number] is not None:
            self.complain(f"a second record of {correlation_id}: {outcome} after {self._came[number]}")
        else:
            self._came[number] = outcome


class LogReader:
    """Reads a log while it is written, whole lines only."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._file = path.open("rb")
        self._ledger = ledger
        self._rest = b""

    def read(self) -> None:
        while data := self._file.read(1 << 20):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._ledger.take(line)

    def close(self) -> None:
        """Read the rest, which must end with a whole line."""
        self.read()
        self._file.close()
        if self._rest:
            self._ledger.complain(f"the log ends within a line: {self._rest!r}")


def _number(correlation_id: str) -> int:
    digits = correlation_id.removeprefix(PREFIX)
    return int(digits) if correlation_id != digits and digits.isdigit() else -1

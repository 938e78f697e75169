"""Python's own logging ends up in the structured log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.telemetry.python_logging import LoggingBridge, log_to_python
from dragoman.testing import ManualClock


@pytest.fixture
def entries() -> list[Entry]:
    return []


@pytest.fixture
def log(entries: list[Entry]) -> Iterator[logging.Logger]:
    log = logging.getLogger("somebody.elses")
    bridge = LoggingBridge(StructuredLogger(entries.append, ManualClock()))
    log.addHandler(bridge)
    log.propagate = False
    yield log
    log.removeHandler(bridge)


def facts(entry: dict[str, Any]) -> tuple[str, str, str]:
    return entry["level"], entry["message"], entry["logger"]


def test_records_keep_their_level_message_and_name(log: logging.Logger, entries: list[Entry]) -> None:
    log.warning("%d of %d", 1, 2)
    log.critical("over")
    assert [facts(entry) for entry in entries] == [
        ("warn", "1 of 2", "somebody.elses"),
        ("error", "over", "somebody.elses"),
    ]


def test_an_exception_is_logged_with_its_traceback(log: logging.Logger, entries: list[Entry]) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    assert entries[0]["traceback"].endswith("ValueError: why\n")


def test_a_format_that_does_not_fit_loses_nothing(entries: list[Entry]) -> None:
    record = logging.LogRecord("somebody.elses", logging.ERROR, "file", 1, "%d", ("not a number",), None)
    LoggingBridge(StructuredLogger(entries.append, ManualClock())).emit(record)
    assert facts(entries[0]) == ("error", "%d", "somebody.elses")


# The other way round


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.DEBUG, ["debug", "info", "warn", "error"]),
        (logging.INFO, ["info", "warn", "error"]),
        (logging.ERROR, ["error"]),
        (logging.CRITICAL + 1, []),
    ],
)
def test_entries_go_to_the_applications_own_log_as_lines(
    level: int, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level, "an.application")
    logger = log_to_python("an.application")
    for each in ("debug", "info", "warn", "error"):
        getattr(logger, each)(f"said {each}", {"token": "secret", "line": "a\nb"})
    found = [json.loads(record.getMessage()) for record in caplog.records]
    assert [entry["level"] for entry in found] == expected
    assert all(entry["token"] == "[REDACTED]" for entry in found)
    assert [record.name for record in caplog.records] == ["an.application"] * len(expected)


def test_an_entry_that_comes_back_is_the_entry_that_it_was() -> None:
    entries: list[Entry] = []
    theirs = logging.getLogger("there.and.back")
    theirs.setLevel(logging.INFO)
    handler = LoggingBridge(StructuredLogger(entries.append, ManualClock()))
    theirs.addHandler(handler)
    try:
        log_to_python("there.and.back").info("hello", {"count": 3})
    finally:
        theirs.removeHandler(handler)
    (entry,) = entries
    assert isinstance(entry, dict)
    assert {key: entry[key] for key in ("level", "message", "count", "logger")} == {
        "level": "info",
        "message": "hello",
        "count": 3,
        "logger": "there.and.back",
    }

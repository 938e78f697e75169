"""Python's own logging ends up in the structured log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.telemetry.python_logging import LoggingBridge
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

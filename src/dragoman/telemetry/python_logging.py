"""What libraries and tools log with Python's own `logging` becomes entries of ours, so that stderr stays one format."""

from __future__ import annotations

import logging
import traceback

from dragoman.config import Level
from dragoman.telemetry.log import Logger


class LoggingBridge(logging.Handler):
    """A handler that passes records on to a logger."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on; what it was logged with is its message, its name and its exception."""
        facts = {"logger": record.name}
        if record.exc_info is not None and record.exc_info[1] is not None:
            facts["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        try:
            message = record.getMessage()
        except Exception:  # A format that does not fit its arguments is no reason to lose the record.
            message = str(record.msg)
        getattr(self._logger, _level(record.levelno))(message, facts)


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def take_over_logging(logger: Logger) -> None:
    """Send warnings, and everything that is logged at WARNING or above, to `logger`."""
    logging.basicConfig(handlers=[LoggingBridge(logger)], level=logging.WARNING, force=True)
    logging.captureWarnings(True)

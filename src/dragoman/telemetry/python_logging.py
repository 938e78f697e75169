"""Python's own `logging` and ours: what others log there becomes our entries, or what we log goes there."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import msgspec

from dragoman.telemetry.log import Entry, EntryWriter, Logger, StructuredLogger
from dragoman.telemetry.settings import Level, LoggingConfig
from dragoman.telemetry.tracebacks import Traceback


class LoggingBridge(logging.Handler):
    """A handler that passes records on to a logger."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on; what it was logged with is its message, its name and its exception."""
        if isinstance(record.msg, _Line):
            entry = record.msg.entry
            facts = {**(entry if isinstance(entry, dict) else msgspec.to_builtins(entry)), "logger": record.name}
            _, level, message = (facts.pop(key) for key in ("timestamp", "level", "message"))
            getattr(self._logger, level)(message, facts)
            return
        facts = {"logger": record.name}
        if record.exc_info is not None and record.exc_info[1] is not None:
            facts["traceback"] = Traceback.of(record.exc_info[1])
        elif record.exc_text:
            facts["traceback"] = record.exc_text
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


def log_failure(
    log: logging.Logger, text: str, error: BaseException | None, hide: Callable[[str], str] | None = None
) -> None:
    """Log an error, with the trace of an exception if one is given, and without what `hide` takes out of both."""
    if hide is None:
        log.error("%s", text, exc_info=error)
    elif log.isEnabledFor(logging.ERROR):
        record = log.makeRecord(log.name, logging.ERROR, __file__, 0, "%s", (hide(text),), None)
        if error is not None:
            # In place of `exc_info`, which every handler would make a text of by itself.
            record.exc_text = hide("".join(traceback.format_exception(error)).rstrip())
        log.handle(record)


def take_over_logging(logger: Logger) -> None:
    """Send warnings, and everything that is logged at WARNING or above, to `logger`."""
    logging.basicConfig(handlers=[LoggingBridge(logger)], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def log_to_python(name: str) -> StructuredLogger:
    """For a server within an application that has a log of its own: each entry is a line of JSON there, under `name`.

    What is not wanted there now is not made, so set its level first.
    """
    theirs = logging.getLogger(name)

    def put(entry: Entry) -> None:
        level: Level = entry["level"] if isinstance(entry, dict) else entry.level
        theirs.log(_NUMBERS[level], _Line(entry))

    wanted = [level for level, number in _NUMBERS.items() if theirs.isEnabledFor(number)]
    return StructuredLogger(put, config=LoggingConfig(level=wanted[0] if wanted else "error"))


class _Line(msgspec.Struct):
    """An entry that is made a line where somebody wants one, and is passed on as it is where it becomes ours again."""

    entry: Entry

    def __str__(self) -> str:
        return _write([self.entry]).decode().rstrip()


_write = EntryWriter()
_NUMBERS: dict[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}

"""The structured log: a logger makes entries, a sink takes them, and `EntryWriter` turns them into clean lines.

An entry is a constant message plus facts. Making one is cheap, because it happens for every call; redacting,
sanitising and encoding happen later, many entries at a time, on the sink's thread.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman.clock import Clock, SystemClock
from dragoman.telemetry.clean import MULTILINE, Cleaner, sanitize
from dragoman.telemetry.settings import DEFAULT_REDACT_KEYS, Level, LoggingConfig
from dragoman.telemetry.tracebacks import Traceback


class CompletionRecord(msgspec.Struct, rename="camel", gc=False):
    """The entry that every call leaves. A struct, because there is one for every call: it is made and encoded in C."""

    timestamp: str
    level: Level
    message: str
    run_id: str
    correlation_id: str
    tool_name: str
    duration_ms: float
    outcome: str
    payload_bytes: int
    error_code: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    hint: str | msgspec.UnsetType = msgspec.UNSET
    cached: bool | msgspec.UnsetType = msgspec.UNSET
    asked: int | msgspec.UnsetType = msgspec.UNSET
    waited_ms: float | msgspec.UnsetType = msgspec.UNSET
    guards: tuple[Any, ...] | msgspec.UnsetType = msgspec.UNSET
    trace_id: str | msgspec.UnsetType = msgspec.UNSET
    span_id: str | msgspec.UnsetType = msgspec.UNSET


Entry: TypeAlias = dict[str, Any] | CompletionRecord
Sink: TypeAlias = Callable[[Entry], None]
"""Takes an entry that nobody will change any more."""
Facts: TypeAlias = Mapping[str, Any]

_RANK: dict[str, int] = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_FLAT = frozenset({str, int, float, bool, type(None)})
_encoder = msgspec.json.Encoder()


class Logger(Protocol):
    """What the runtime and tool authors log with."""

    def debug(self, message: str, facts: Facts | None = None, /) -> None: ...
    def info(self, message: str, facts: Facts | None = None, /) -> None: ...
    def warn(self, message: str, facts: Facts | None = None, /) -> None: ...
    def error(self, message: str, facts: Facts | None = None, /) -> None: ...
    def record(self, record: CompletionRecord, /) -> None:
        """Log the end of a call."""
        ...

    def child(self, facts: Facts, /) -> Logger:
        """A logger that adds `facts` to each entry, and keeps what this one adds."""
        ...


class StructuredLogger:
    """Gives entries of at least `level` to `sink`."""

    def __init__(self, sink: Sink, clock: Clock | None = None, config: LoggingConfig | None = None) -> None:
        config = config or LoggingConfig()
        self._sink = sink
        self._clock = clock or SystemClock()
        self._threshold = _RANK[config.level]
        self._cleaner = make_cleaner(config)
        self._context: dict[str, Any] = {}
        if self._threshold <= _RANK["info"]:
            self.record = sink  # type: ignore[method-assign]  # There is one for every call, and each is wanted.

    def child(self, facts: Facts, /) -> StructuredLogger:
        child = object.__new__(StructuredLogger)
        child.__dict__.update(self.__dict__)
        child.__dict__.pop("record", None)
        child._context = {**self._context, **self._settled(facts)}
        return child

    def debug(self, message: str, facts: Facts | None = None, /) -> None:
        self.log("debug", message, facts)

    def info(self, message: str, facts: Facts | None = None, /) -> None:
        self.log("info", message, facts)

    def warn(self, message: str, facts: Facts | None = None, /) -> None:
        self.log("warn", message, facts)

    def error(self, message: str, facts: Facts | None = None, /) -> None:
        self.log("error", message, facts)

    def log(self, level: Level, message: str, facts: Facts | None = None, /) -> None:
        """Make one entry, if `level` is logged at all."""
        if _RANK[level] < self._threshold:
            return
        entry: dict[str, Any] = {"timestamp": self._clock.timestamp(), "level": level, "message": message}
        if self._context:
            entry.update(self._context)
        if facts:
            entry.update(self._settled(facts))
        if len(entry) < 3 + len(self._context) + len(facts or ()):  # Some key came twice: make sure which of them won.
            entry.update({"timestamp": self._clock.timestamp(), "level": level, "message": message})
        self._sink(entry)

    def record(self, record: CompletionRecord, /) -> None:
        """Log the end of a call."""
        if _RANK[record.level] >= self._threshold:
            self._sink({**msgspec.to_builtins(record), **self._context} if self._context else record)

    def redact(self, value: Any) -> Any:
        """A copy of `value` without what the redact keys name."""
        return self._cleaner.redact(value)

    def sanitize(self, text: str) -> str:
        """`text` as a log line would show it."""
        return sanitize(text)

    def _settled(self, facts: Facts) -> Facts:
        """The facts as they are now: what could change before it is written is copied, and cleaned on the way."""
        if _FLAT.issuperset(map(type, facts.values())):
            return facts
        cleaned: dict[str, Any] = self._cleaner.clean(facts)
        return cleaned


def exception_facts(error: BaseException, code: str | int) -> dict[str, Any]:
    """What to log about an exception, even about one that cannot say what it is."""
    said = traceback.format_exception_only(error)[-1].strip()
    return {"error": {"code": str(code), "message": said}, "traceback": Traceback.of(error)}


def make_cleaner(config: LoggingConfig) -> Cleaner:
    """Redaction as configured. The defaults stay in force: leaving one out of a list must not leak it."""
    return Cleaner((*DEFAULT_REDACT_KEYS, *config.redact_keys))


class EntryWriter:
    """Entries to lines: redacted, sanitised, one line each, as JSON or as text for a person at a terminal."""

    def __init__(self, config: LoggingConfig | None = None, *, text: bool = False, worker: int | None = None) -> None:
        config = config or LoggingConfig()
        self._cleaner = make_cleaner(config)
        self._text = text
        self._all_frames = not text or config.level == "debug"
        self._worker = worker
        self._end = b"}\n" if worker is None else b',"worker":%d}\n' % worker

    def __call__(self, entries: Sequence[Entry]) -> bytes:
        """The lines of all `entries`."""
        if not self._text:
            lines = self._plain_lines(entries)
            if lines is not None:  # Within a line there is no line break: this is where each of them ends.
                return lines if self._worker is None else lines.replace(b"}\n", self._end)
        return b"".join(map(self._line, entries))

    def _plain_lines(self, entries: Sequence[Entry]) -> bytes | None:
        """The lines of entries that have nothing to redact or sanitise, None when one of them may have.

        Nearly all entries are flat, and plain text. To see that on the encoded lines takes a few scans in C; to walk
        through every value takes longer than everything else about it.
        """
        keys = set(CompletionRecord.__struct_encode_fields__)
        keys.update(*(entry for entry in entries if type(entry) is dict))
        if not self._cleaner.has_no_secret_keys(keys):
            return None
        try:
            lines = _encoder.encode_lines(entries)
        except (TypeError, ValueError, RecursionError, OverflowError):
            return None
        if not lines.isascii() or b"\\" in lines or b"\x7f" in lines or b"[" in lines:
            return None
        return lines if lines.count(b"{") == len(entries) else None

    def _line(self, entry: Entry) -> bytes:
        clean = self._cleaner.clean(msgspec.to_builtins(entry) if isinstance(entry, CompletionRecord) else entry)
        trace = clean.get("traceback")
        if isinstance(trace, Traceback):
            clean["traceback"] = str(trace) if self._all_frames else trace.own
        if self._worker is not None:
            clean["worker"] = self._worker
        return _text_line(clean) if self._text else _encoder.encode(clean) + b"\n"


_PAINT = {"debug": "\x1b[2m", "info": "", "warn": "\x1b[33m", "error": "\x1b[31m"}


def _text_line(entry: dict[str, Any]) -> bytes:
    """Time, level, message, then the facts; facts of many lines are below, indented: they cannot pass for entries."""
    time = entry.pop("timestamp")[11:-1]
    level = entry.pop("level")
    message = entry.pop("message")
    below = [line for key in MULTILINE if isinstance(entry.get(key), str) for line in entry.pop(key).splitlines()]
    facts = " ".join(f"{key}={_fact(value)}" for key, value in entry.items())
    heading = f"{time} {_PAINT[level]}{level.upper():5} {message}\x1b[0m {facts}".rstrip()
    return "\n  ".join((heading, *below)).encode() + b"\n"


def _fact(value: Any) -> str:
    return value if isinstance(value, str) else _encoder.encode(value).decode()

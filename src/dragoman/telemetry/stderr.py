"""The log on stderr, of a process that is a server and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.clock import SystemClock
from dragoman.telemetry.log import EntryWriter, StructuredLogger
from dragoman.telemetry.settings import LoggingConfig
from dragoman.telemetry.sink import DescriptorSink


def log_to_stderr(
    config: LoggingConfig, *, worker: int | None = None, turns: Path | None = None
) -> tuple[StructuredLogger, DescriptorSink]:
    """A log that nobody has to read for the server to go on. Several processes take turns to write to it."""
    text = os.isatty(2) if config.format == "auto" else config.format == "text"
    sink = DescriptorSink(2, EntryWriter(config, text=text, worker=worker), turns=turns)
    return StructuredLogger(sink.put, SystemClock(), config), sink

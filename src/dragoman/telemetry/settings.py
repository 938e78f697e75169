"""What is logged."""

from __future__ import annotations

from typing import Annotated, Literal

from dragoman.sections import Section, about

Level = Literal["debug", "info", "warn", "error"]


DEFAULT_REDACT_KEYS = (
    "token",
    "key",
    "secret",
    "password",
    "apiKey",
    "authorization",
    "bearer",
    "session",
    "cookie",
)


class LoggingConfig(Section, frozen=True):
    """What is logged, and what must never be."""

    level: Annotated[Level, about("The least that is logged.", is_harmless=True)] = "info"
    redact_keys: Annotated[
        tuple[str, ...], about("Keys whose values are never logged, besides the default ones.", is_harmless=True)
    ] = DEFAULT_REDACT_KEYS
    format: Annotated[
        Literal["auto", "json", "text"],
        about("JSON lines, text for a person, or text only on a terminal.", is_harmless=True),
    ] = "auto"

"""The official Inspector's command line."""

from __future__ import annotations

from typing import Any, NamedTuple

PACKAGE, VERSION = "@modelcontextprotocol/inspector", "2.12.0"


class Inspection(NamedTuple):
    """What the Inspector printed: a result, a complaint, or both."""

    exit_code: int
    result: dict[str, Any] | None
    error: dict[str, Any] | None

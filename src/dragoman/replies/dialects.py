"""Which dialect is spoken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.calls.call import Dialect
from dragoman.protocol.results import ToolResult, bytes_added_later
from dragoman.replies.artifacts import Artifacts
from dragoman.replies.encoding import SizeLimit
from dragoman.replies.envelope import Envelope
from dragoman.replies.plain import Plain
from dragoman.replies.settings import ResponseConfig
from dragoman.replies.structured import Structured


def make_dialect(
    config: ResponseConfig, artifacts: Artifacts | None = None, server_info: Mapping[str, Any] | None = None
) -> Dialect[ToolResult]:
    """The dialect that the settings name.

    `artifacts` are what `envelope` keeps truncated results in. `server_info` is what sessions add to results; without
    it, results in the modern era may be longer than the limit by so much.
    """
    size = SizeLimit(config.max_response_bytes, 0 if server_info is None else bytes_added_later(server_info))
    match config.dialect:
        case "structured":
            return Structured(size)
        case "envelope":
            return Envelope(config, size, artifacts)
        case "plain":
            return Plain(size)

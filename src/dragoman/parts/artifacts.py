"""The part that lets clients read on in results that were cut."""

from __future__ import annotations

from dragoman.parts.part import Contribution, Part
from dragoman.replies.artifacts import Artifacts
from dragoman.replies.result_continue import result_continue_tool
from dragoman.replies.settings import ResponseConfig


def artifacts_part(artifacts: Artifacts, config: ResponseConfig) -> Part:
    """The tool `result_continue`."""
    return Part(name="artifacts", build=lambda _: Contribution(tools=(result_continue_tool(artifacts, config),)))

"""Files of tools that servers in other processes load."""

from __future__ import annotations

from pathlib import Path


def path_of(name: str) -> str:
    """The path of one of the files here; an absolute path stays as it is."""
    return str(Path(__file__).parent / name)


TOOLS = path_of("tools_under_test.py")

"""Source code as a tree, for tests that look at how the project is written."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parsed(path: Path, feature_version: tuple[int, int] | None = None) -> ast.Module:
    """The tree of a file, if it is written in that version of Python.

    CPython 3.11 fails to build one if a finaliser runs Python code in the meantime, so the collector waits.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"), feature_version=feature_version)
    finally:
        if is_collecting:
            gc.enable()

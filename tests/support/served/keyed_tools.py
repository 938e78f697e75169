"""Tools whose effects are lines of a file, so that they can be counted from outside of the server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from dragoman import tool
from dragoman.errors import NotFound

PATIENCE = 60.0
"""Seconds. Nothing takes this long but a failure."""


def _effect(folder: str) -> int:
    """Leave a line behind, and wait for the file `gate` if there is to be one; returns which process this is."""
    with (Path(folder) / "effects").open("a") as effects:
        effects.write(f"{os.getpid()}\n")
    deadline = time.monotonic() + PATIENCE
    while (Path(folder) / "gated").exists() and not (Path(folder) / "gate").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return os.getpid()


@tool
def pay(folder: str, amount: int = 1) -> dict[str, Any]:
    return {"amount": amount, "process": _effect(folder)}


@tool(idempotent=True)
def put(folder: str) -> dict[str, Any]:
    return {"process": _effect(folder)}


@tool
def fail(folder: str) -> None:
    _effect(folder)
    raise NotFound("no such account")

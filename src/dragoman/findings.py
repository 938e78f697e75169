"""Findings of checks of this machine, as `dragoman doctor` prints them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a check, and advice."""

    check: str
    verdict: Literal["ok", "warning", "problem"]
    message: str
    advice: str | None = None

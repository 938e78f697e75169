"""What checks of this machine find; `dragoman doctor` prints it."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check found, and what to do about it."""

    check: str
    verdict: Literal["ok", "warning", "problem"]
    message: str
    advice: str | None = None

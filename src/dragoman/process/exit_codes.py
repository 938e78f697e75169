"""The codes that the process ends with, besides 0 for success."""

from __future__ import annotations

FAILED = 1
UNUSABLE = 2
"""A usage or configuration error: nothing was tried."""
ABANDONED = 3
"""Calls were still running when the server had to stop."""
INTERRUPTED = 130

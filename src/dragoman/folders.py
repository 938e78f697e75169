"""Folders among the platform's temporary files: each is locked while a process uses it, and removed when none does.

1. A lock ends with its process, however that ends. A folder without a lock was left by a process that was killed.
2. A folder that has anything in it but what is expected there is not touched.
3. systemd-tmpfiles, which removes old temporary files, leaves a locked folder alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.forks import drop, in_forked_children

fcntl: Any
try:
    import fcntl
except ImportError:  # On Windows, what a process leaves that was killed stays.
    fcntl = None


def hold(folder: Path) -> Callable[[], None]:
    """Lock a folder for this process, beside others that use it; returns how to let go of it. Raises `OSError`."""
    if fcntl is None:
        return lambda: None
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    stop_dropping = in_forked_children(lambda: drop(held))

    def let_go() -> None:
        stop_dropping()
        os.close(held)

    return let_go


def remove_if_unused(folder: Path, expected: re.Pattern[str]) -> None:
    """Remove a folder of this user, unless somebody uses it, or something in it has no `expected` name."""
    if fcntl is None:
        return
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(opened).st_uid != os.getuid():
                return
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if all(map(expected.fullmatch, os.listdir(opened))):
                remove(folder)
        finally:
            os.close(opened)


def remove(folder: Path) -> None:
    """Remove a folder with everything in it, as far as that is possible."""
    import shutil  # It loads five compression modules.

    shutil.rmtree(folder, ignore_errors=True)

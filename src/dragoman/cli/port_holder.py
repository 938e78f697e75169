"""The process that listens on a port, for the message that the port is taken. Known on Linux alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"


def holder_of(port: int) -> str | None:
    """The id and the name of a process of this user that listens on a TCP port; None if it cannot be told."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for folder in _PROC.glob("[0-9]*"):
        try:
            if any(os.readlink(each) in wanted for each in (folder / "fd").iterdir()):
                return f"process {folder.name}, {(folder / 'comm').read_text('utf-8').strip()}"
        except OSError:  # Another user's, or gone meanwhile.
            continue
    return None


def _inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]

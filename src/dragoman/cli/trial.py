"""A server started for a moment, as a client would start it, to hear its first words."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from functools import partial
from typing import IO

import msgspec

_PATIENCE = 20.0
_REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "dragoman-doctor", "version": "1"},
    },
}


def first_answer(command: list[str], patience: float = _PATIENCE) -> tuple[list[bytes], float]:
    """All that the server wrote to stdout, and how many seconds its first line took.

    Raises `OSError` when it cannot be started, and `TimeoutError` when it does not answer or does not end.
    """
    environ = {**os.environ, "DRAGOMAN_STORAGE__ENGINE": "memory"}  # A trial leaves nothing behind.
    begun = time.monotonic()
    with subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = _read_in_background(process.stdout)
        try:
            process.stdin.write(msgspec.json.encode(_REQUEST) + b"\n")
            first = lines.get(timeout=patience)
            took = time.monotonic() - begun
            process.stdin.close()
            rest = list(iter(partial(lines.get, timeout=patience), None)) if first is not None else []
        except (queue.Empty, BrokenPipeError):
            process.kill()
            raise TimeoutError("the server did not answer") from None
    if first is None:
        raise TimeoutError(f"the server ended at once, with exit code {process.returncode}")
    return [first, *rest], took


def _read_in_background(stream: IO[bytes]) -> queue.Queue[bytes | None]:
    """The lines of a stream as they come, and None at its end."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def is_protocol_line(line: bytes) -> bool:
    """Whether a line of stdout is the protocol's."""
    try:
        message = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(message, dict) and message.get("jsonrpc") == "2.0"

"""`dragoman serve` in a process of its own, and a raw client for it. Every wait ends, in an answer or in a failure."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from dragoman.testing import is_json_rpc
from dragoman.testing.connection import CLIENT_INFO, ENVELOPE
from tests.support.forking import DRAGOMAN, Process, start
from tests.support.waiting import PATIENCE

LONG = {"server.shutdown_timeout_ms": int(PATIENCE * 10_000)}
"""A server that waits for its calls, or for its clients, when it stops then outlasts the patience of a test."""

T = TypeVar("T")


def command(*arguments: str) -> list[str]:
    """The command line of a server."""
    return [*DRAGOMAN, "serve", *arguments]


def environment(settings: Mapping[str, Any] | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, with settings such as `server.shutdown_timeout_ms`."""
    hidden = ("PYTHONUNBUFFERED", "COVERAGE")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    named = {f"DRAGOMAN_{name.replace('.', '__').upper()}": str(value) for name, value in (settings or {}).items()}
    return {**inherited, **named, **(extra or {})}


def line(method: str, params: Mapping[str, Any] | None = None, request_id: int | str | None = None) -> bytes:
    """A request, or a notification when it has no id."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if request_id is not None:
        message["id"] = request_id
    if params is not None:
        message["params"] = params
    return msgspec.json.encode(message) + b"\n"


@contextmanager
def running(arguments: Sequence[str], **options: Any) -> Iterator[Process]:
    """A process that is killed at the end of the block, if it has not ended by then."""
    with start(arguments, bufsize=0, **options) as process:
        try:
            yield process
        finally:
            process.kill()


INITIALIZE = line("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT_INFO}, 0)
INITIALIZED = line("notifications/initialized")
HANDSHAKE = INITIALIZE + INITIALIZED


class Lines:
    """What comes out of a pipe, read by a thread of its own from the moment it is started."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor  # A copy from the start on: whoever made the pipe may close it while it is read.
        self._changed = threading.Condition()
        self._rest = b""
        self._has_ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.lines: list[bytes] = []

    def start(self) -> None:
        self._descriptor = os.dup(self._descriptor)
        self._thread.start()

    def wait_until(self, found: Callable[[list[bytes]], T | None], patience: float = PATIENCE) -> T:
        """What `found` finds in the lines, as soon as it does; fails when the pipe ends without it."""
        deadline = time.monotonic() + patience
        with self._changed:
            while (result := found(self.lines)) is None:
                left = deadline - time.monotonic()
                assert not self._has_ended, f"the pipe ended after {self.lines[-5:]}"
                assert left > 0, f"nothing more came after {self.lines[-5:]}"
                self._changed.wait(left)
        return result

    def all(self) -> list[bytes]:
        """Every line there ever was: waits for the end."""
        self._thread.join(PATIENCE)
        assert self._has_ended, "the pipe is still open"
        assert self._rest == b"", f"the last line has no end: {self._rest!r}"
        return self.lines

    def _read(self) -> None:
        while data := os.read(self._descriptor, 1 << 20):
            *lines, rest = (self._rest + data).split(b"\n")
            with self._changed:
                self._rest = rest
                self.lines += lines
                self._changed.notify_all()
        os.close(self._descriptor)
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


class ServerProcess:
    """A server on three pipes. Left running at the end of the `with` block, it is killed."""

    def __init__(
        self,
        *arguments: str,
        settings: Mapping[str, Any] | None = None,
        extra: Mapping[str, str] | None = None,
        is_modern: bool = False,
        is_read: bool = True,
        cwd: Path | None = None,
    ) -> None:
        self._process = start(
            command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(settings, extra),
            bufsize=0,
            cwd=cwd,
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self.stdin, self.stdout, self.stderr = (stream for stream in streams if stream is not None)
        self._is_modern = is_modern
        self._ids = count(1)
        self.pid = self._process.pid
        os.set_blocking(self.stdin.fileno(), False)
        self.output, self.errors = Lines(self.stdout.fileno()), Lines(self.stderr.fileno())
        if is_read:
            self.read()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdin.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
        self.stdout.close()
        self.stderr.close()

    def read(self) -> None:
        """Begin to read stdout and stderr."""
        self.output.start()
        self.errors.start()

    def offer(self, data: bytes, patience: float) -> int:
        """How many bytes of `data` went in before the pipe stayed full for `patience` seconds."""
        taken = 0
        while taken < len(data) and select.select([], [self.stdin], [], patience)[1]:
            taken += os.write(self.stdin.fileno(), data[taken : taken + (1 << 20)])
        return taken

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self.offer(data, PATIENCE) == len(data), "the server stopped reading"

    def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request without waiting for its answer; returns its id."""
        request_id = next(self._ids)
        if self._is_modern:
            params = {**(params or {}), "_meta": {**ENVELOPE, **(params or {}).get("_meta", {})}}
        self.send(line(method, params, request_id))
        return request_id

    def begin_call(self, name: str, **arguments: Any) -> int:
        """Send a call without waiting for its answer; returns its id."""
        return self.begin("tools/call", {"name": name, "arguments": arguments})

    def answer(self, request_id: int | None) -> dict[str, Any]:
        """The answer to a request, when it comes."""

        def find(lines: list[bytes]) -> dict[str, Any] | None:
            messages = map(decode, lines)
            return next((each for each in messages if "method" not in each and each["id"] == request_id), None)

        return self.output.wait_until(find)

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return self.answer(self.begin(method, params))

    def handshake(self) -> dict[str, Any]:
        """Both halves of the handshake; the answer to the first."""
        self.send(HANDSHAKE)
        return self.answer(0)

    def list_tools(self) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = self.request("tools/list")["result"]["tools"]
        return tools

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call."""
        result: dict[str, Any] = self.answer(self.begin_call(name, **arguments))["result"]
        return result

    def wait_for_log(self, message: str, times: int = 1) -> None:
        """Return when the log has had `message` so many times."""
        wanted = b'"message":"%s"' % message.encode()
        self.errors.wait_until(lambda lines: sum(wanted in each for each in lines) >= times or None)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def leave(self) -> int:
        """Close stdin, and wait for the exit code."""
        self.stdin.close()
        return self.wait()

    def wait(self, patience: float = PATIENCE) -> int:
        """The exit code, when the process has ended."""
        return self._process.wait(patience)

    def messages(self) -> list[dict[str, Any]]:
        """Everything on stdout until its end; each line is checked to be JSON-RPC."""
        return [decode(each) for each in self.output.all()]

    def log(self) -> list[dict[str, Any]]:
        """The log until its end; each line is checked to be JSON."""
        return [msgspec.json.decode(each, type=dict[str, Any]) for each in self.errors.all()]

    def records(self) -> dict[str, list[str]]:
        """The outcomes of the completion records, by tool."""
        outcomes: dict[str, list[str]] = {}
        for entry in self.log():
            if entry["message"] == "tool call completed":
                outcomes.setdefault(entry["toolName"], []).append(entry["outcome"])
        return outcomes


def decode(data: bytes) -> dict[str, Any]:
    """A line of stdout as the message it must be."""
    message = msgspec.json.decode(data)
    assert is_json_rpc(message), message
    assert isinstance(message, dict)
    return message


def free_port() -> int:
    """A loopback port that nobody listens on, and which the system gives to nobody who asks for any."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

"""Processes of `python -P -m dragoman` that are forked, for a sixth to a third of what an interpreter costs.

A helper that has imported the command line and the runtime forks each of them. Each is a process of its own: its pid,
environment, working directory, descriptors, signals and exit code are those that an interpreter would have. What is
imported, and in which order, is not: tests of that start interpreters.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired
from types import TracebackType
from typing import IO, Any, TypeAlias

from tests.support.fork_helper import ENDED, STARTED

DRAGOMAN, BRIDGE = ((sys.executable, "-P", "-m", module) for module in ("dragoman", "apcore_mcp"))
"""The beginnings of the command lines that can be forked."""
INTERPRETED = {"PYTHONHASHSEED": "random"}
"""A variable that changes nothing, but that only an interpreter reads: with it, a process is not forked."""

_HELPER = Path(__file__).with_name("fork_helper.py")
_OPTIONS = {"stdin", "stdout", "stderr", "env", "cwd", "text", "bufsize"}
_READ_EARLY = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "TYPER_", "_TYPER_")
"""How variables begin that are read when an interpreter starts or a module is imported."""


_spent: list[float] = []


def spent_by_forks() -> float:
    """Seconds of processor time of the forked processes that have been waited for: `resource` does not count them."""
    return sum(_spent)


class ForkedProcess:
    """As much of `subprocess.Popen` as tests use."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        text: bool = False,
        bufsize: int = -1,
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self.cpu_seconds = 0.0
        self._is_text = text
        self._link, link = socket.socketpair()
        weakref.finalize(self, self._link.close)
        kind = "" if text else "b"
        environ = dict(os.environ if env is None else env)
        asked = {"command": [*command], "folder": os.path.abspath(cwd or "."), "environ": environ}
        sys.audit("subprocess.Popen", command[0], command, cwd, env)  # As for a process that is not forked.
        with link, ExitStack() as theirs:

            def connect(given: int | IO[Any] | None, number: int) -> tuple[Any, int]:
                """Our end of a pipe, and the descriptor that the process gets."""
                ours = None
                if given == PIPE:
                    reading, writing = os.pipe()
                    end, other, mode = (writing, reading, "w") if number == 0 else (reading, writing, "r")
                    ours = open(end, mode + kind, bufsize)  # noqa: SIM115
                    theirs.callback(os.close, other)
                elif given == DEVNULL:
                    theirs.callback(os.close, other := os.open(os.devnull, os.O_RDWR))
                else:
                    other = _descriptor(given, number)
                return ours, other

            self.stdin, source = connect(stdin, 0)
            self.stdout, output = connect(stdout, 1)
            self.stderr, errors = (None, output) if stderr == STDOUT else connect(stderr, 2)
            socket.send_fds(_helper()[0], [b"+"], [link.fileno(), source, output, errors])
        self._link.sendall(json.dumps(asked).encode())
        self._link.shutdown(socket.SHUT_WR)
        (self.pid,) = STARTED.unpack(self._link.recv(STARTED.size))

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, if the process has ended; a negative number names the signal that ended it."""
        with suppress(TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when the process has ended. Several threads may wait."""
        if self.returncode is None:
            with selectors.DefaultSelector() as ended:
                ended.register(self._link, selectors.EVENT_READ)
                if not ended.select(timeout):
                    raise TimeoutExpired(self.args, timeout or 0.0)
            self.returncode, self.cpu_seconds = ENDED.unpack(self._link.recv(ENDED.size, socket.MSG_PEEK))
            _spent.append(self.cpu_seconds)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close stdin, and wait for the end; returns the rest of stdout and stderr."""
        deadline = time.monotonic() + (86_400.0 if timeout is None else timeout)
        if self.stdin is not None:
            self.stdin.close()
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        read = {stream.fileno(): b"" for stream in streams}
        with selectors.DefaultSelector() as reading:
            for descriptor in read:
                reading.register(descriptor, selectors.EVENT_READ)
            while reading.get_map():
                if not (ready := reading.select(deadline - time.monotonic())):
                    raise TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    read[key.fd] += data
                    if not data:
                        reading.unregister(key.fd)
        self.wait(max(0.0, deadline - time.monotonic()))
        stdout, stderr = (stream and self._as_asked(read[stream.fileno()]) for stream in (self.stdout, self.stderr))
        return stdout, stderr

    def _as_asked(self, data: bytes) -> Any:
        return io.TextIOWrapper(io.BytesIO(data)).read() if self._is_text else data

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = ForkedProcess | subprocess.Popen[Any]


def start(command: Sequence[str], **options: Any) -> Process:
    """Start a process: a forked one where that makes no difference to it, and else an interpreter."""
    return (ForkedProcess if _can_be_forked(command, **options) else subprocess.Popen)(command, **options)


def run(command: Sequence[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[Any]:
    """What a command comes to that is started so, and what it says."""
    with start(command, stdout=PIPE, stderr=PIPE, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.wait(), stdout, stderr)


def _can_be_forked(command: Sequence[str], **options: Any) -> bool:
    """The variable is for a run of all tests with interpreters."""
    if not hasattr(os, "pidfd_open") or os.environ.get("DRAGOMAN_TESTS_INTERPRETERS") == "1":
        return False
    if tuple(command[:4]) not in (DRAGOMAN, BRIDGE) or not options.keys() <= _OPTIONS:
        return False
    given = [_descriptor(options.get(name), number) for number, name in enumerate(("stdin", "stdout", "stderr"))]
    if any(each >= 0 and os.isatty(each) for each in given):  # The streams of the helper have the buffers of pipes.
        return False
    return _early(options.get("env", os.environ)) == _helper()[1]


def _descriptor(given: int | IO[Any] | None, inherited: int) -> int:
    """The number of what a process is given; negative where `subprocess` has a word for it."""
    return inherited if given is None else given if isinstance(given, int) else given.fileno()


def _early(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_EARLY)}


@cache
def _helper() -> tuple[socket.socket, Mapping[str, str]]:
    """The socket of the helper of this process, which ends with it, and what its interpreter has read."""
    requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with theirs:
        command = [sys.executable, "-P", str(_HELPER), str(theirs.fileno())]
        helper = subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, env=environ, pass_fds=[theirs.fileno()])

    def end() -> None:
        requests.shutdown(socket.SHUT_RDWR)  # Forked children of this process may have copies of it.
        helper.wait()

    atexit.register(end)
    return requests, _early(environ)

"""A raw MCP client on pipes, so cheap that what is measured is the server.

1. Requests are encoded before the clock starts, and answers are counted by their newlines while it runs.
2. After the clock has stopped every answer is read: each id once, and none an error.
3. Every run has a limit; a server that passes it is killed, so a pipe can never hang the benchmark.
4. Processor time is read when the log has been written too, so that work put off is not work left out.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import psutil

RECORD = b'"message":"tool call completed"'
_CHUNK = 1 << 20
_MOST_BYTES = 64 << 20  # Of requests in one run: they are all held in memory.
_PIECE = 50_000  # No longer than the shipped limits take.
_RUN_LIMIT = 60.0
_LOG_LIMIT = 10.0
_SETTLE = 0.05
_INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class BenchError(Exception):
    """The figures cannot be trusted: an answer or a record is missing, or wrong, or one too many."""


class _Result(msgspec.Struct, rename="camel"):
    is_error: bool = False


class _Answer(msgspec.Struct):
    id: int
    result: _Result


_decode_answer = msgspec.json.Decoder(_Answer).decode


@dataclass(frozen=True)
class Command:
    """How a server is started. `records` says whether its log has one record per call."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    records: bool = False


@dataclass(frozen=True)
class Work:
    """What is asked of a server: one tool, with `text` in pieces as its argument if there is one, so many in flight."""

    tool: str = "noop"
    in_flight: int = 32
    text: str = ""

    def lines(self, calls: int) -> list[bytes]:
        pieces = [self.text[start : start + _PIECE] for start in range(0, len(self.text), _PIECE)]
        arguments = msgspec.json.encode({"text": pieces} if pieces else {})
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"'
        tail = self.tool.encode() + b'","arguments":' + arguments + b"}}\n"
        return [head % number + tail for number in range(1, calls + 1)]

    @property
    def most_calls(self) -> int:
        return max(1, _MOST_BYTES // (len(self.text) + 100))


@dataclass(frozen=True)
class Run:
    """What one run took: seconds on the clock, seconds of the server's processor time, seconds of each call."""

    calls: int
    seconds: float
    cpu: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    @property
    def cpu_per_call(self) -> float:
        return self.cpu / self.calls


class Server:
    """A server process that has been shaken hands with. Its stderr goes to a file in `folder`."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.name = command.name
        self._records = command.records
        self._log = folder / f"{command.name.replace(' ', '-')}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
        started = time.perf_counter()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                cwd=folder,
                env=environment | command.environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._usage = psutil.Process(self._process.pid)
        try:
            self.request("initialize", _INITIALIZE)
            self.start_up = time.perf_counter() - started
            self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        surplus = self.close()
        if self._records and surplus and error is None:
            raise BenchError(f"{self.name}: {surplus} records in its log that no call accounts for")

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(self._usage.memory_info().rss)

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask for something with nothing else in flight; the whole answer, which may be an error."""
        line = msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}) + b"\n"
        with self._limited():
            data, _ = self._one_by_one([line])
        answer: dict[str, Any] = msgspec.json.decode(data)
        return answer

    def run(self, work: Work, calls: int) -> Run:
        """Make `calls` calls, and check that each was answered, and recorded if this server keeps records."""
        lines = work.lines(calls)
        cpu = self._cpu()
        with self._limited():
            started = time.perf_counter()
            if work.in_flight == 1:
                data, latencies = self._one_by_one(lines)
            else:
                data, latencies = self._windowed(lines, work.in_flight), []
            seconds = time.perf_counter() - started
        self._check_answers(data, calls)
        self._check_records(calls)
        return Run(calls, seconds, self._cpu() - cpu, latencies)

    def close(self) -> int:
        """End the process, politely at first; how many records are in its log that have not been counted."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        surplus = self._count_records()
        self._log.unlink()
        return surplus

    def _windowed(self, lines: list[bytes], window: int) -> bytes:
        calls = len(lines)
        ends = [0, *accumulate(map(len, lines))]
        requests = memoryview(b"".join(lines))
        chunks: list[bytes] = []
        sent = answered = 0
        while answered < calls:
            due = min(answered + window, calls)
            if due > sent:
                self._write(requests[ends[sent] : ends[due]])
                sent = due
            data = self._read()
            chunks.append(data)
            answered += data.count(b"\n")
        return b"".join(chunks)

    def _one_by_one(self, lines: list[bytes]) -> tuple[bytes, list[float]]:
        clock = time.perf_counter
        chunks: list[bytes] = []
        latencies: list[float] = []
        for line in lines:
            started = clock()
            self._write(line)
            data = self._read()
            while not data.endswith(b"\n"):
                data += self._read()
            latencies.append(clock() - started)
            chunks.append(data)
        return b"".join(chunks), latencies

    def _write(self, data: bytes | memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._in, data) :]
        except BrokenPipeError:
            raise BenchError(self._ended()) from None

    def _read(self) -> bytes:
        data = os.read(self._out, _CHUNK)
        if not data:
            raise BenchError(self._ended())
        return data

    def _ended(self) -> str:
        last = b"\n".join(self._log.read_bytes().splitlines()[-5:]).decode(errors="replace")
        return f"{self.name} ended, or took longer than {_RUN_LIMIT:.0f} s; the end of its log:\n{last}"

    @contextmanager
    def _limited(self) -> Iterator[None]:
        timer = threading.Timer(_RUN_LIMIT, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cpu(self) -> float:
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def _check_answers(self, data: bytes, calls: int) -> None:
        try:
            answers = [_decode_answer(line) for line in data.splitlines()]
        except msgspec.DecodeError as error:
            raise BenchError(f"{self.name}: an answer is an error, or no answer: {error}") from None
        ids = {answer.id for answer in answers}
        if len(answers) != calls or ids != set(range(1, calls + 1)) or any(a.result.is_error for a in answers):
            errors = sum(a.result.is_error for a in answers)
            raise BenchError(f"{self.name}: {len(answers)} answers to {len(ids)} of {calls} calls, {errors} errors")

    def _check_records(self, calls: int) -> None:
        time.sleep(_SETTLE)
        if not self._records:
            return
        deadline = time.monotonic() + _LOG_LIMIT
        while (found := self._count_records()) < calls and time.monotonic() < deadline:
            time.sleep(_SETTLE)
        if found != calls:
            raise BenchError(f"{self.name}: {found} records of {calls} calls in its log")
        os.truncate(self._log, 0)  # It is open for appending: the next run starts at the beginning.

    def _count_records(self) -> int:
        return self._log.read_bytes().count(RECORD)

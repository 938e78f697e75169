"""A raw MCP client on pipes, so cheap that what is measured is the server.

1. Requests are encoded before the clock starts, and answers are counted by their newlines while it runs.
2. After the clock has stopped every answer is read: each id once, and none an error.
3. Every run has a limit; a server that passes it is killed, so a pipe can never hang the benchmark.
4. Processor time is read when the log has been written too, so that work put off is not work left out.
5. A call's latency is from the write of its request to the read that brought the end of its answer.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from bench.process import BenchError, Command, Process
from bench.rounds import Run
from dragoman.calls.repeats import IDEMPOTENCY_KEY

_CHUNK = 1 << 20
_MOST_BYTES = 64 << 20  # Of requests in one run: they are all held in memory.
_PIECE = 50_000  # No longer than the shipped limits take.
_RUN_LIMIT = 60.0
_INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class _Result(msgspec.Struct, rename="camel"):
    is_error: bool = False


class _Answer(msgspec.Struct):
    id: int
    result: _Result


_decode_answer = msgspec.json.Decoder(_Answer).decode


@dataclass(frozen=True)
class Work:
    """What is asked of a server: one tool, so many in flight, with `arguments`, or `text` in pieces if there is one.

    With `is_keyed`, each call has an idempotency key that no other has."""

    tool: str = "noop"
    in_flight: int = 32
    text: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    is_keyed: bool = False

    def lines(self, calls: int) -> list[bytes]:
        pieces = [self.text[start : start + _PIECE] for start in range(0, len(self.text), _PIECE)]
        arguments = msgspec.json.encode({"text": pieces} if pieces else self.arguments)
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"'
        tail = self.tool.encode() + b'","arguments":' + arguments
        lines = [head % number + tail for number in range(1, calls + 1)]
        if not self.is_keyed:
            return [line + b"}}\n" for line in lines]
        keyed = b',"_meta":{"%b":"%b %%d"}}}\n' % (IDEMPOTENCY_KEY.encode(), uuid.uuid4().hex.encode())
        return [line + keyed % number for number, line in enumerate(lines)]

    @property
    def most_calls(self) -> int:
        return max(1, _MOST_BYTES // (len(self.text) + 100))


@dataclass(frozen=True)
class _Talk:
    """What came back, when each request was sent, and when each answer came, in the order of the answers."""

    data: bytes
    sent: list[float]
    arrived: list[float]


class Server:
    """A server process that has been shaken hands with."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.name = command.name
        self.every = command.every
        started = time.perf_counter()
        self._process = Process(command, folder, stream=subprocess.PIPE)
        pipes = self._process.popen
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        self._in, self._out = pipes.stdin.fileno(), pipes.stdout.fileno()
        try:
            self.request("initialize", _INITIALIZE)
            self.first_answer = Run(1, time.perf_counter() - started, self._process.cpu, [])
            self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close()
        if error is None:
            self._process.check_surplus()

    @property
    def pid(self) -> int:
        return self._process.popen.pid

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return self._process.memory

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask for something with nothing else in flight; the whole answer, which may be an error."""
        line = msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}) + b"\n"
        with self._limited():
            talk = self._windowed([line], 1)
        answer: dict[str, Any] = msgspec.json.decode(talk.data)
        return answer

    def run(self, work: Work, calls: int) -> Run:
        """Make `calls` calls, and check that each was answered, and recorded if this server keeps records."""
        lines = work.lines(calls)
        cpu = self._process.cpu
        with self._limited():
            started, client_cpu = time.perf_counter(), time.process_time()
            talk = self._windowed(lines, work.in_flight)
            seconds, client_cpu = time.perf_counter() - started, time.process_time() - client_cpu
        ids = self._check_answers(talk.data, calls)
        latencies = [at - talk.sent[number - 1] for number, at in zip(ids, talk.arrived, strict=True)]
        self._process.check_records(calls)
        return Run(calls, seconds, self._process.cpu - cpu, latencies, client_cpu)

    def close(self) -> None:
        """End the process, politely at first."""
        for stream in (self._process.popen.stdin, self._process.popen.stdout):
            if stream is not None:
                stream.close()
        self._process.end()

    def _windowed(self, lines: list[bytes], window: int) -> _Talk:
        calls, clock = len(lines), time.perf_counter
        ends = [0, *accumulate(map(len, lines))]
        requests = memoryview(b"".join(lines))
        chunks: list[bytes] = []
        sent: list[float] = []
        arrived: list[float] = []
        while len(arrived) < calls:
            already, due = len(sent), min(len(arrived) + window, calls)
            if due > already:
                sent += [clock()] * (due - already)
                self._write(requests[ends[already] : ends[due]])
            data = self._read()
            chunks.append(data)
            arrived += [clock()] * data.count(b"\n")
        return _Talk(b"".join(chunks), sent, arrived)

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
        last = self._process.last_words()
        return f"{self.name} ended, or took longer than {_RUN_LIMIT:.0f} s; the end of its log:\n{last}"

    @contextmanager
    def _limited(self) -> Iterator[None]:
        timer = threading.Timer(_RUN_LIMIT, self._process.popen.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _check_answers(self, data: bytes, calls: int) -> list[int]:
        """The ids in the order of the answers; each once, and none of an error."""
        try:
            answers = [_decode_answer(line) for line in data.splitlines()]
        except msgspec.DecodeError as error:
            raise BenchError(f"{self.name}: an answer is an error, or no answer: {error}") from None
        ids = {answer.id for answer in answers}
        if len(answers) != calls or ids != set(range(1, calls + 1)) or any(a.result.is_error for a in answers):
            errors = sum(a.result.is_error for a in answers)
            raise BenchError(f"{self.name}: {len(answers)} answers to {len(ids)} of {calls} calls, {errors} errors")
        return [answer.id for answer in answers]

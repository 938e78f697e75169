"""Load over HTTP: many keep-alive connections, one request at a time on each, and every answer checked.

1. A connection follows a script: a generator that yields a request and is sent the whole answer to it, as it came.
2. While the clock runs an answer is looked at only to see where it ends: Content-Length, or the last chunk.
3. After the clock has stopped every answer is read: the status, the id that was asked for, the very result.
4. Whoever closes a connection, says more than was asked, or takes too long, spoils the run.
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from bench.process import BenchError

Script: TypeAlias = Generator[bytes, bytes, None]

FIRST_ID = 1_000_000  # All ids are of one length, so all requests are.
HANDSHAKE_VERSION, MODERN_VERSION = "2025-11-25", "2026-07-28"
_CLIENT = {"name": "bench", "version": "1"}
_CHUNK = 1 << 14
_RUN_LIMIT = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class Era(StrEnum):
    """How a client makes itself known: in every request, or once."""

    MODERN = "modern"
    HANDSHAKE = "handshake"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, with header names in small letters and chunks put together."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, data: bytes) -> Answer:
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" not in headers:
            body = b"".join(_chunks(body))
        return cls(int(status.split()[1]), headers, body)

    @property
    def message(self) -> bytes:
        """The JSON-RPC message; of a stream the last one, as what comes before it are notifications."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return self.body
        data = [line[5:].strip() for line in self.body.splitlines() if line.startswith(b"data:")]
        return data[-1] if data else b""


def is_whole(data: bytes) -> bool:
    """Whether an answer has arrived to its end."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return False
    if length := _LENGTH.search(data, 0, head + 2):
        missing = head + 4 + int(length[1]) - len(data)
    elif _CHUNKED.search(data, 0, head + 2):
        missing = _missing_of_chunks(data, head + 4)
    else:
        missing = head + 4 - len(data)  # Nothing but a head, as with 204.
    if missing < 0:
        raise BenchError(f"{-missing} bytes more than one answer: {data[missing:][:100]!r}")
    return missing == 0


def _missing_of_chunks(data: bytes, start: int) -> int:
    """At least how many bytes are still to come; less than 0 if there are too many."""
    while (line := data.find(b"\r\n", start)) >= 0:
        size = _size(data[start:line])
        start = line + 2 + size + 2
        if size == 0 or start > len(data):
            return start - len(data)
    return 1


def _chunks(data: bytes) -> Iterator[bytes]:
    while data:
        line, _, data = data.partition(b"\r\n")
        length = _size(line)
        yield data[:length]
        data = data[length + 2 :]


def _size(line: bytes) -> int:
    try:
        return int(line, 16)
    except ValueError:
        raise BenchError(f"not the size of a chunk: {line[:100]!r}") from None


class _Result(msgspec.Struct, rename="camel"):
    content: list[dict[str, Any]]
    is_error: bool = False


class _Called(msgspec.Struct):
    id: int
    result: _Result


_decode_called = msgspec.json.Decoder(_Called).decode


@dataclass(frozen=True)
class Expected:
    """What a server has to answer to a call: these texts under the same id, or always `constant`."""

    texts: tuple[str, ...] = ()
    constant: bytes | None = None

    def check(self, number: int, data: bytes) -> None:
        answer = Answer.read(data)
        if answer.status != 200:
            raise BenchError(f"call {number} was answered with {answer.status}: {answer.body[:200]!r}")
        if self.constant is not None:
            if answer.body != self.constant:
                raise BenchError(f"call {number} was answered with {answer.body[:200]!r}")
            return
        try:
            called = _decode_called(answer.message)
        except msgspec.DecodeError as error:
            raise BenchError(f"call {number} was answered with {answer.message[:200]!r}: {error}") from None
        texts = tuple(block.get("text") for block in called.result.content)
        if called.id != number or called.result.is_error or texts != self.texts:
            raise BenchError(f"call {number} was answered with {answer.message[:200]!r}")


@dataclass(frozen=True)
class Ask:
    """What is called, and where."""

    tool: str = "noop"
    arguments: dict[str, Any] = field(default_factory=dict)
    path: str = "/mcp"


NOOP = Ask()


class Requests:
    """The requests of both eras, as bytes, for a server on this port."""

    def __init__(self, port: int, path: str = NOOP.path) -> None:
        self._port = port
        self._path = path
        self.initialize = self._post(
            {
                "jsonrpc": "2.0",
                "id": FIRST_ID,
                "method": "initialize",
                "params": {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": _CLIENT},
            }
        )

    def initialized(self, session: str) -> bytes:
        return self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, **_in_session(session))

    def delete(self, session: str) -> bytes:
        return self._head("DELETE", _in_session(session))

    def call(self, session: str | None = None, ask: Ask = NOOP) -> tuple[bytes, bytes]:
        """What comes before the id and what comes after it; of the modern era if there is no session."""
        params: dict[str, Any] = {"name": ask.tool, "arguments": ask.arguments}
        if session is None:
            request = self.modern("tools/call", params, ask.tool)
        else:
            message = {"jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call", "params": params}
            request = self._post(message, **_in_session(session))
        before, _, after = request.rpartition(b"%d" % FIRST_ID)  # From the end: a session may be named anything.
        return before, after

    def modern(
        self, method: str, params: dict[str, Any], name: str, capabilities: dict[str, Any] | None = None
    ) -> bytes:
        """A request of the modern era, of a client that can do what is said; its id is the first one."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
            "io.modelcontextprotocol/clientInfo": _CLIENT,
            "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        }
        headers = {"MCP-Protocol-Version": MODERN_VERSION, "Mcp-Method": method, "Mcp-Name": name}
        message = {"jsonrpc": "2.0", "id": FIRST_ID, "method": method, "params": {**params, "_meta": meta}}
        return self._post(message, **headers)

    def _post(self, message: dict[str, Any], **headers: str) -> bytes:
        body = msgspec.json.encode(message)
        return (
            self._head("POST", {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}) + body
        )

    def _head(self, method: str, headers: dict[str, str]) -> bytes:
        lines = {
            "Host": f"127.0.0.1:{self._port}",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        return "\r\n".join(
            [f"{method} {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
        ).encode()


def _in_session(session: str) -> dict[str, str]:
    return {"MCP-Protocol-Version": HANDSHAKE_VERSION, "Mcp-Session-Id": session}


@dataclass(frozen=True)
class Load:
    """What the calls of a run looked like from here. `cpu` is what making them took of the processor's time."""

    seconds: float
    cpu: float
    latencies: list[float]


def call_for(
    seconds: float, port: int, sessions: Sequence[str | None], ids: Iterator[int], expected: Expected, ask: Ask = NOOP
) -> Load:
    """Call for so long on as many connections as there are sessions, `None` being none, then check the answers."""
    requests = Requests(port, ask.path)
    latencies: list[float] = []
    answers: list[tuple[int, bytes]] = []
    clock = time.perf_counter

    def calls(before: bytes, after: bytes) -> Script:
        deadline = clock() + seconds
        while (started := clock()) < deadline or len(latencies) < 2:  # Fewer have no percentiles.
            number = next(ids)
            data = yield before + b"%d" % number + after
            latencies.append(clock() - started)
            answers.append((number, data))

    load = drive(port, [calls(*requests.call(session, ask)) for session in sessions])
    for number, data in answers:
        expected.check(number, data)
    return Load(*load, latencies)


def open_session(requests: Requests, opened: list[str]) -> Script:
    """Shake hands, and note the session."""
    answer = Answer.read((yield requests.initialize))
    session = answer.headers.get("mcp-session-id")
    if answer.status != 200 or session is None or b'"protocolVersion"' not in answer.message:
        raise BenchError(f"initialize was answered with {answer.status}: {answer.body[:200]!r}")
    answer = Answer.read((yield requests.initialized(session)))
    if answer.status != 202:
        raise BenchError(f"initialized was answered with {answer.status}: {answer.body[:200]!r}")
    opened.append(session)


def close_session(requests: Requests, session: str) -> Script:
    answer = Answer.read((yield requests.delete(session)))
    if answer.status not in (200, 204):
        raise BenchError(f"DELETE was answered with {answer.status}: {answer.body[:200]!r}")


def drive(port: int, scripts: Iterable[Script]) -> tuple[float, float]:
    """Follow each script on a connection of its own; seconds from the first request to the last answer, on the clock
    and of this process."""
    with ExitStack() as stack:
        connections = [stack.enter_context(_Connection(port, script)) for script in scripts]
        selector = stack.enter_context(selectors.DefaultSelector())
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, connection.proceed)
        started, cpu = time.perf_counter(), time.process_time()
        underway = sum([connection.start() for connection in connections])
        if len(connections) == 1 and underway:  # There is nothing to choose from: who asks just waits.
            while connections[0].proceed():
                pass
            underway = 0
        while underway:
            ready = selector.select(_RUN_LIMIT)
            if not ready:
                raise BenchError(f"no answer on {underway} connections for {_RUN_LIMIT:.0f} s")
            for key, _ in ready:
                if not key.data():
                    selector.unregister(key.fileobj)
                    underway -= 1
        return time.perf_counter() - started, time.process_time() - cpu


class _Connection:
    """One script on one connection."""

    def __init__(self, port: int, script: Script) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _RUN_LIMIT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)  # Requests are too small to be held up; and a limit in Python costs a call.
        limit = struct.pack("ll", int(_RUN_LIMIT), int(_RUN_LIMIT % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._script = script
        self._held = b""
        self.fileno = self._socket.fileno

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def start(self) -> bool:
        """Send the first request; false if there is none."""
        request = next(self._script, None)
        if request is not None:
            self._socket.sendall(request)
        return request is not None

    def proceed(self) -> bool:
        """Take what has come, and send the next request if that was a whole answer; false after the last."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            raise BenchError(f"no answer for {_RUN_LIMIT:.0f} s") from None
        if not data:
            raise BenchError(f"the server closed a connection, after {self._held[:100]!r}")
        data = self._held + data
        if not is_whole(data):
            self._held = data
            return True
        self._held = b""
        try:
            self._socket.sendall(self._script.send(data))
        except StopIteration:
            return False
        return True

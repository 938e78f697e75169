"""`dragoman serve --workers` in processes of its own, and a raw client that knows which worker it talks to."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import msgspec
import psutil

from dragoman.testing.connection import CLIENT_INFO, ENVELOPE
from tests.support.answers import value_in
from tests.support.forking import start
from tests.support.processes import Lines, command, environment, free_port
from tests.support.served import path_of
from tests.support.waiting import PATIENCE

TOOLS = path_of("worker_tools.py")
TOKENS = {"alice": "alice-has-a-long-token", "bob": "bob-has-a-long-token-too"}
BOTH = "application/json, text/event-stream"


class Server:
    """A parent and its workers."""

    def __init__(self, *arguments: str, settings: Mapping[str, Any] | None = None, count: int = 2) -> None:
        self.port = free_port()
        self._process = start(
            command(
                *(arguments or (TOOLS,)),
                *("--transport", "streamable-http", "--port", str(self.port), "--workers", str(count)),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment({"resources.max_concurrent_executions": 400, **(settings or {})}),
            bufsize=0,
        )
        assert self._process.stderr is not None
        self.errors = Lines(self._process.stderr.fileno())
        self.errors.start()
        self._parent = psutil.Process(self._process.pid)

    def pids(self) -> set[int]:
        """Of the workers that live."""
        alive = set()
        for each in self._parent.children():
            with suppress(psutil.NoSuchProcess):  # It may end between the list and the look at it.
                if each.status() != psutil.STATUS_ZOMBIE:
                    alive.add(each.pid)
        return alive

    def wait_for_log(self, message: str, times: int = 1) -> None:
        self.errors.wait_until(lambda _: self.count_in_log(message) >= times or None)

    def count_in_log(self, message: str) -> int:
        wanted = b'"message":"%s"' % message.encode()
        return sum(wanted in each for each in self.errors.lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def log(self) -> list[dict[str, Any]]:
        """To its end; every line is checked to be whole."""
        return [msgspec.json.decode(each, type=dict[str, Any]) for each in self.errors.all()]

    def close(self) -> None:
        family = [*self._parent.children(), self._parent] if self._process.poll() is None else []
        for each in reversed(family):  # The parent first: it would start others.
            each.kill()
        self._process.wait(PATIENCE)
        with suppress(AssertionError):  # Whoever was killed may have been in the middle of a line.
            self.errors.all()
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def served(*arguments: str, **options: Any) -> Iterator[Server]:
    """A server that is ready, for as long as the block takes."""
    server = Server(*arguments, **options)
    try:
        server.wait_for_log("server started")
        yield server
    finally:
        server.close()


class Wire:
    """A connection, and which worker is at its other end."""

    _open: ClassVar[list[Wire]] = []

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._port, self._reader, self._writer = port, reader, writer
        self._open.append(self)
        self.worker = -1
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def open(cls, port: int, worker: int | None = None) -> Wire:
        """Chance decides which worker takes a connection: try until it is the right one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # A worker that dies had not accepted it yet.
                wire = cls(port, *await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
                await wire.send("GET", {}, path="/version")
                wire.worker = msgspec.json.decode(await wire.body())["worker"]
                if worker in (None, wire.worker):
                    return wire
                wire.close()
            await asyncio.sleep(0.001)
        raise AssertionError(f"worker {worker} takes no connections")

    async def send(self, method: str, headers: Mapping[str, str], body: bytes = b"", path: str = "/mcp") -> int:
        """Send a request; the status, once the answer begins."""
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}", f"Content-Length: {len(body)}", *lines]
        self._writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        first, *rest = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        return self.status

    async def chunk(self) -> bytes:
        """The next one; empty at the end."""
        size = int(await self._reader.readline(), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def body(self) -> bytes:
        if "content-length" in self.headers:
            return await self._reader.readexactly(int(self.headers["content-length"]))
        return b"".join([chunk async for chunk in aiter_until(self.chunk)])

    async def event(self) -> tuple[str | None, dict[str, Any] | None]:
        """The id and the message of the next event on a stream; None at its end."""
        while chunk := await self.chunk():
            lines = chunk.decode().replace("\r\n", "\n").splitlines()
            fields = dict(line.split(": ", 1) for line in lines if ": " in line and line[0] != ":")
            if fields:
                data = fields.get("data")
                return fields.get("id"), msgspec.json.decode(data) if data else None
        return None, None

    async def message(self) -> dict[str, Any]:
        """The next message of the answer, however it comes."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return dict(msgspec.json.decode(await self.body()))
        while True:
            event_id, message = await self.event()
            if message is not None:
                return message
            assert event_id is not None, "the stream ended"

    async def answer(self) -> dict[str, Any]:
        """The answer itself, to the end of the stream if it comes on one."""
        while "method" in (message := await self.message()):
            pass
        if "content-length" not in self.headers:
            while await self.chunk():
                pass
        return message

    def close(self) -> None:
        with suppress(RuntimeError):  # It may be of a test whose event loop is closed, and the connection with it.
            self._writer.transport.abort()

    @classmethod
    def close_all(cls) -> None:
        while cls._open:
            cls._open.pop().close()


async def aiter_until(step: Callable[[], Any]) -> AsyncIterator[bytes]:
    while piece := await step():
        yield piece


def encoded(method: str, params: Mapping[str, Any] | None = None, request_id: int | str | None = None) -> bytes:
    ids = {} if request_id is None else {"id": request_id}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, **ids, "params": params or {}})


def as_caller(name: str | None) -> dict[str, str]:
    return {} if name is None else {"Authorization": f"Bearer {TOKENS[name]}"}


class Session:
    """A session of the handshake era, whose requests go to whichever worker one likes."""

    def __init__(self, port: int, session_id: str, caller: str | None) -> None:
        self.port, self.id, self.owner = port, session_id, int(session_id.split("-")[0])
        self.headers = {"Mcp-Session-Id": session_id, "MCP-Protocol-Version": "2025-11-25", **as_caller(caller)}

    @classmethod
    async def open(
        cls, port: int, worker: int | None = None, caller: str | None = None, capabilities: Any = None
    ) -> Session:
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}, "clientInfo": CLIENT_INFO}
        wire = await Wire.open(port, worker)
        headers = {"Content-Type": "application/json", "Accept": BOTH, **as_caller(caller)}
        assert await wire.send("POST", headers, encoded("initialize", params, 0)) == 200
        await wire.answer()
        session = cls(port, wire.headers["mcp-session-id"], caller)
        assert session.owner == wire.worker
        wire.close()
        assert await (await session.post(encoded("notifications/initialized"))).body() == b""
        return session

    async def post(self, body: bytes, via: int | None = None, caller: str | None = None) -> Wire:
        """Send a message over a fresh connection, `via` this worker."""
        wire = await Wire.open(self.port, via)
        headers = {**self.headers, "Content-Type": "application/json", "Accept": BOTH, **as_caller(caller)}
        await wire.send("POST", headers, body)
        return wire

    async def begin_call(self, name: str, via: int | None = None, token: int | None = None, **arguments: Any) -> Wire:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        return await self.post(encoded("tools/call", {"name": name, "arguments": arguments, **meta}, 7), via)

    async def call(self, name: str, via: int | None = None, **arguments: Any) -> Any:
        """The value of a call."""
        wire = await self.begin_call(name, via, **arguments)
        assert wire.status == 200, await wire.body()
        answer = await wire.answer()
        wire.close()
        return value_of(answer)

    async def get(self, via: int | None = None, last_event_id: str | None = None) -> Wire:
        wire = await Wire.open(self.port, via)
        resumed = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        await wire.send("GET", {**self.headers, "Accept": "text/event-stream", **resumed})
        return wire

    async def end(self, via: int | None = None) -> int:
        wire = await Wire.open(self.port, via)
        status = await wire.send("DELETE", self.headers)
        wire.close()
        return status


def value_of(answer: Mapping[str, Any]) -> Any:
    """What a call came to, as the `structured` dialect has it."""
    return value_in(answer["result"])


async def modern(
    port: int,
    method: str,
    params: Mapping[str, Any],
    via: int | None = None,
    caller: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The answer to a request of the modern era, on a fresh connection."""
    wire = await Wire.open(port, via)
    name = {"Mcp-Name": params["name"]} if "name" in params else {}
    headers = {
        "Content-Type": "application/json",
        "Accept": BOTH,
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
        **name,
        **as_caller(caller),
        **(headers or {}),
    }
    meta = {**ENVELOPE, **params.get("_meta", {})}
    assert await wire.send("POST", headers, encoded(method, {**params, "_meta": meta}, 1)) in (200, 400)
    answer = await wire.answer()
    wire.close()
    return answer


async def modern_call(
    port: int, name: str, via: int | None = None, caller: str | None = None, **arguments: Any
) -> dict[str, Any]:
    return await modern(port, "tools/call", {"name": name, "arguments": arguments}, via, caller)

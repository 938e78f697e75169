"""The servers: real processes over stdio on one data directory, and the calls that wait for their answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec

from chaos.served.agents import OUTSIDE
from dragoman.testing.connection import ENVELOPE
from tests.support.processes import command, environment

SERVED = Path(__file__).parent / "served"
AGENTS, SERVER = SERVED / "agents.py", SERVED / "server.py"
SPACE = "chaos"
LEASE_MS = 2000
SETTINGS = {
    "storage.space": SPACE,
    "aacp.lease_ms": LEASE_MS,
    "aacp.base_delay_ms": 20,
    "aacp.max_delay_ms": 100,
    "tools.max_state_bytes": 1 << 24,
    "resources.max_concurrent_executions": 64,
}
_MOST_LINE = 1 << 22
_STOP_LIMIT = 60.0


class Gone(Exception):
    """The server ended before it answered: the call may have been made, or not."""


@dataclass(frozen=True)
class Place:
    """A data directory, the file outside of the ledger, and the logs."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: Path = AGENTS
    """The file with what is served."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    def environment(self) -> dict[str, str]:
        settings = {**SETTINGS, "storage.data_dir": self.data, **self.settings}
        clean = {key: text for key, text in environment().items() if not key.startswith(("DRAGOMAN_", "COVERAGE"))}
        return {**clean, **environment_of(settings), OUTSIDE: str(self.outside)}


def environment_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by dotted names, as variables."""
    return {f"DRAGOMAN_{name.replace('.', '__').upper()}": str(value) for name, value in settings.items()}


class Served:
    """A server, and the calls that were sent to it and are not answered."""

    _numbers = count(1)

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.log = process, log
        self._stdin, self._stdout = process.stdin, process.stdout
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self.has_begun = asyncio.Event()
        """It has answered a call, or ended."""

    @classmethod
    async def start(cls, place: Place, *arguments: str) -> Self:
        """Start `dragoman serve`, or with arguments the server that dies at a point."""
        return await cls._started(place, arguments)

    @classmethod
    async def _started(cls, place: Place, arguments: Sequence[str], transport: Sequence[str] = ()) -> Self:
        place.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = str(place.target)
        line = [sys.executable, str(SERVER), target, *arguments] if arguments else command(target)
        line += transport
        log = place.folder / f"server-{next(cls._numbers)}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *line,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                limit=_MOST_LINE,
                cwd=place.folder,
                env=place.environment(),
            )
        return cls(process, log)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call; raises `Gone` if the server ends first."""
        if self._reader.done() or self._stdin.is_closing():
            raise Gone
        number = next(self._ids)
        params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        with contextlib.suppress(OSError):  # The end of its output says the same.
            self._stdin.write(msgspec.json.encode(message) + b"\n")
            await self._stdin.drain()
        told = await answer
        if "result" not in told:
            raise AssertionError(f"{tool}: {told}")
        result: dict[str, Any] = told["result"]
        return result

    async def request(self, target: str, item: str, request_id: str) -> dict[str, Any]:
        """The result of `agent/sendRequest`."""
        message = {"type": "work", "payload": item}
        return await self.call("agent/sendRequest", targetAgentId=target, message=message, requestId=request_id)

    async def end(self, number: int) -> int:
        """Send a signal; the exit code, when the process has ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        """The exit code, when the process has ended and everybody who waits for it was told."""
        async with asyncio.timeout(_STOP_LIMIT):
            code = await self.process.wait()
            await self._reader
        return code

    def logged(self) -> Counter[str]:
        """How often each message was logged."""
        found: Counter[str] = Counter()
        for line in self.log.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):  # The last line of a process that was killed.
                found[msgspec.json.decode(line)["message"]] += 1
        return found

    def _hear(self, line: bytes) -> None:
        """Take a line of the server's stdout."""
        message = msgspec.json.decode(line)
        waiting = self._waiting.pop(message.get("id"), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
            self.has_begun.set()

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            if not line.endswith(b"\n"):
                break
            self._hear(line)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone())
        self._waiting.clear()
        self.has_begun.set()

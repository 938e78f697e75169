"""`dragoman serve` over HTTP in a process of its own, and sessions with it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, Response, Wire, message, modern_call, request
from tests.support.processes import ServerProcess, free_port
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

_ids = count(1_000_000)


class HttpProcess(ServerProcess):
    """A server that listens on a free port of this machine. Left running at the end of the block, it is stopped."""

    def __init__(
        self,
        target: str | None = TOOLS,
        *arguments: str,
        settings: Mapping[str, Any] | None = None,
        extra: Mapping[str, str] | None = None,
        transport: str = "streamable-http",
        cwd: Path | None = None,
    ) -> None:
        self.port = free_port()
        targets = () if target is None else (target,)
        super().__init__(
            *targets, "--transport", transport, "--port", str(self.port), *arguments,
            settings=settings, extra=extra, cwd=cwd,
        )  # fmt: skip
        self.wait_for_log("server started")

    def __enter__(self) -> HttpProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # It is killed then.
                self._process.wait(PATIENCE)
        super().__exit__(kind, error, trace)

    def wire(self) -> Wire:
        return Wire(self.port)

    def ask(self, data: bytes, *, is_head: bool = False) -> Response:
        """The response to one request on a connection of its own."""
        with self.wire() as wire:
            return wire.ask(data, is_head=is_head)

    def get(self, path: str) -> Response:
        return self.ask(request(None, method="GET", path=path))

    def check_health(self) -> None:
        """The server is well, and answers calls of both eras correctly."""
        assert self.get("/health").json["status"] == "ok"
        word = f"still well {next(_ids)}"
        answered = self.ask(modern_call("echo", id=word, message=word))
        assert (answered.status, answered.json["id"]) == (200, word)
        assert msgspec.json.decode(answered.json["result"]["content"][0]["text"]) == {"message": word}

    def open(self, headers: Mapping[str, str | None] | None = None, *, is_running: bool = True) -> HttpSession:
        """A session of the handshake era."""
        opened = self.ask(request(INITIALIZE, headers or {}))
        assert (opened.status, opened.message["id"]) == (200, "the handshake"), opened
        session = HttpSession(self, opened.headers["mcp-session-id"], headers or {})
        if is_running:
            assert session.post(INITIALIZED).status == 202
        return session


class HttpSession:
    """A session of the handshake era; each request has a connection of its own."""

    def __init__(self, server: HttpProcess, id: str, headers: Mapping[str, str | None]) -> None:
        self._server = server
        self.id = id
        self.headers = {"mcp-session-id": id, "mcp-protocol-version": LATEST, **headers}

    def request(self, body: Any, headers: Mapping[str, str | None] | None = None, **options: Any) -> bytes:
        return request(body, {**self.headers, **(headers or {})}, **options)

    def post(self, body: Any, headers: Mapping[str, str | None] | None = None) -> Response:
        return self._server.ask(self.request(body, headers))

    def call(self, name: str, id: Any = 1, **arguments: Any) -> Response:
        return self.post(message("tools/call", {"name": name, "arguments": arguments}, id))

    def delete(self, headers: Mapping[str, str | None] | None = None) -> Response:
        return self._server.ask(self.request(None, headers, method="DELETE"))

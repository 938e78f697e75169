"""A server under attack, as each transport reaches it: the same request, with raw bytes for its params."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from dragoman.testing.connection import ENVELOPE
from tests.support.http_process import HttpProcess, HttpSession
from tests.support.http_wire import INITIALIZE, INITIALIZED, MODERN, Response, events_in, request
from tests.support.processes import ServerProcess


def body_of(method: str, members: bytes, meta: Mapping[str, Any] | None = None, id: Any = 1) -> bytes:
    """A request whose params have these members, given as JSON."""
    head = b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":{' % (msgspec.json.encode(id), method.encode())
    return head + b'"_meta":%b%b%b}}' % (msgspec.json.encode(meta or {}), b"," if members else b"", members)


class Target(Protocol):
    """One way to a server."""

    pid: int
    meta: Mapping[str, Any]

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request."""
        ...


class StdioTarget:
    meta: Mapping[str, Any] = {}

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.pid = server.pid

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        before = len(self._server.output.lines)
        self._server.send(body_of(method, members, meta) + b"\n")
        found = self._server.output.wait_until(lambda lines: lines[before:] or None)
        return dict(msgspec.json.decode(found[0]))


class ModernTarget:
    meta = ENVELOPE

    def __init__(self, server: HttpProcess, *, has_headers: bool = True) -> None:
        self._server = server
        self._has_headers = has_headers
        self.pid = server.pid

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method} if self._has_headers else {}
        if method == "tools/call":
            headers["mcp-name"] = members.split(b'"')[3].decode()
        body = body_of(method, members, {**ENVELOPE, **(meta or {})})
        return self._server.ask(request(body, headers if self._has_headers else {})).message


class SessionTarget:
    meta: Mapping[str, Any] = {}

    def __init__(self, server: HttpProcess, session: HttpSession) -> None:
        self._session = session
        self.pid = server.pid

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._session.post(body_of(method, members, meta)).message


class SseTarget:
    meta: Mapping[str, Any] = {}

    def __init__(self, server: HttpProcess) -> None:
        self._server = server
        self.pid = server.pid
        self._stream = server.wire()
        self._stream.send(request(None, {"accept": "text/event-stream"}, method="GET", path="/sse"))
        assert self._stream.head()[0] == 200
        self._path = self._event()
        assert self._post(msgspec.json.encode(INITIALIZE)).status == 202
        self._event()
        assert self._post(msgspec.json.encode(INITIALIZED)).status == 202

    def close(self) -> None:
        self._stream.close()

    def ask(self, method: str, members: bytes, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        posted = self._post(body_of(method, members, meta))
        return posted.message if posted.status != 202 else dict(msgspec.json.decode(self._event()))

    def _post(self, body: bytes) -> Response:
        return self._server.ask(request(body, path=self._path))

    def _event(self) -> str:
        """The data of the next event."""
        text = b""
        while not (found := events_in(text)):
            text += self._stream.chunk()
        return found[0][1]

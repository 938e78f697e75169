"""HTTP byte by byte: requests as a test wants them, a connection to send them on, and the responses."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.testing import is_json_rpc
from dragoman.testing.connection import CLIENT_INFO, ENVELOPE
from tests.support.tcp_queues import ends_of, is_read
from tests.support.waiting import PATIENCE, wait_until

BOTH = "application/json, text/event-stream"
MODERN = "2026-07-28"
LATEST = "2025-11-25"


@dataclass(frozen=True)
class Response:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be JSON and say so."""
        assert self.headers["content-type"].startswith("application/json"), self
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The JSON-RPC error in the body."""
        message = self.message
        assert is_json_rpc(message), message
        error: dict[str, Any] = message["error"]
        return error

    @property
    def code(self) -> int:
        code: int = self.error["code"]
        return code

    @property
    def message(self) -> dict[str, Any]:
        """The answer: the body itself, or the last event of the stream that it is."""
        if self.headers["content-type"].startswith("text/event-stream"):
            return self.messages[-1]
        message: dict[str, Any] = self.json
        return message

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages on a stream."""
        return [msgspec.json.decode(data) for _, data in events_in(self.body) if data]


def events_in(body: bytes) -> list[tuple[str | None, str]]:
    """The id and the data of the events of a stream; comments are left out."""
    found = []
    for block in body.decode().replace("\r\n", "\n").split("\n\n"):
        fields = [line.partition(":") for line in block.split("\n") if line and not line.startswith(":")]
        values = {name: value.removeprefix(" ") for name, _, value in fields}
        if values:
            found.append((values.get("id"), values.get("data", "")))
    return found


class Wire:
    """A connection to a server, byte by byte."""

    def __init__(self, port: int, host: str = "127.0.0.1", patience: float = PATIENCE) -> None:
        self.port = port
        self.socket = socket.create_connection((host, port), timeout=patience)
        self._file = self.socket.makefile("rb")
        self._ends = ends_of(self.socket)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def wait_until_read(self) -> None:
        """Return when the server has read all that was sent, so that it will read what follows by itself."""
        wait_until(lambda: is_read(self._ends))

    def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the next response."""
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("closed without a response")
        assert line.startswith(b"HTTP/1.1 "), f"no response: {line!r}"
        headers = {}
        while (field := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers

    def chunk(self) -> bytes:
        """The next chunk of a body that comes in chunks; empty at its end."""
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        assert self._file.readline() == b"\r\n"
        return data

    def read(self, *, is_head: bool = False) -> Response:
        """The next response, whole."""
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        if is_head or status == 204:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        elif "content-length" in headers:
            body = self._file.read(int(headers["content-length"]))
            assert len(body) == int(headers["content-length"])
        else:
            body = self._file.read()
        return Response(status, headers, body)

    @property
    def is_ended(self) -> bool:
        """Whether the server has closed the connection; waits for it, or for more to come."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def ask(self, data: bytes, *, is_head: bool = False) -> Response:
        self.send(data)
        return self.read(is_head=is_head)


def request(
    body: bytes | Mapping[str, Any] | list[Any] | None = None,
    headers: Mapping[str, str | None] | Iterable[tuple[str, str]] = (),
    *,
    method: str = "POST",
    path: str = "/mcp",
    version: str = "HTTP/1.1",
) -> bytes:
    """A request as a well-behaved client sends it, but for what is said; None leaves a header out."""
    if body is not None and not isinstance(body, bytes):
        body = msgspec.json.encode(body)
    usual: dict[str, str | None] = {"host": "127.0.0.1", "accept": BOTH}
    if body is not None:
        usual |= {"content-type": "application/json", "content-length": str(len(body))}
    if isinstance(headers, Mapping):
        fields = [*(usual | {name.lower(): value for name, value in headers.items()}).items()]
    else:
        given = list(headers)
        fields = [*(each for each in usual.items() if each[0] not in {name.lower() for name, _ in given}), *given]
    lines = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in fields if value is not None)]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")


def modern(
    method: str,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str | None] | None = None,
    *,
    id: Any = 1,
    meta: Mapping[str, Any] | None = None,
) -> bytes:
    """A request of the modern era, with the headers that it must have."""
    body = {
        "jsonrpc": "2.0",
        "id": id,
        "method": method,
        "params": {**(params or {}), "_meta": {**ENVELOPE, **(meta or {})}},
    }
    named = {"mcp-name": (params or {})["name"]} if method == "tools/call" else {}
    return request(body, {"mcp-protocol-version": MODERN, "mcp-method": method, **named, **(headers or {})})


def modern_call(name: str, headers: Mapping[str, str | None] | None = None, *, id: Any = 1, **arguments: Any) -> bytes:
    return modern("tools/call", {"name": name, "arguments": arguments}, headers, id=id)


def message(method: str, params: Mapping[str, Any] | None = None, id: Any = None) -> dict[str, Any]:
    """A message of the handshake era."""
    found: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        found["id"] = id
    if params is not None:
        found["params"] = params
    return found


INITIALIZE = message(
    "initialize", {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": CLIENT_INFO}, "the handshake"
)
INITIALIZED = message("notifications/initialized")
MISSHAPEN = [
    ({"jsonrpc": "2.0", "method": "notifications/x", "params": ["secret"]}, "params must be an object"),
    ({"jsonrpc": "2.0", "id": 7, "result": "secret"}, "result must be an object"),
    ({"jsonrpc": "2.0", "id": 7, "error": {"code": "secret"}}, "error must have an integer code and a message"),
]
"""Messages of the wrong shape, and the reason that each is refused with."""

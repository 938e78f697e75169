"""Artifacts that are sent and read, beside a bare handler that keeps files: `python -m bench artifacts`.

1. Each body is another one, and is signed before the clock runs. One connection sends one after the other.
2. What is read is what was sent, with the link in the answer.
3. The limits that would refuse such a load are raised by settings: requests a minute, and the bytes of a tenant.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from bench.actions import LIMITS
from bench.handing_in import Sender, keep_keys, site_of
from bench.http_load import Answer, Load
from bench.measure import DRAGOMAN, SERVERS
from bench.over_http import HttpServer, Site, started
from bench.process import BenchError
from bench.rounds import Figures, Plan, Rounds, Way, compared, rate_of, ratio_of, take_turns
from tests.support.gateway import Signer

T = TypeVar("T")

BARE_FILES = "bare ASGI file handler"
UPLOAD, DOWNLOAD = "upload", "download"
SIZES = {1: 8, 16: 2}
"""How many a run has, by their size in MiB."""
UPLOADED_MB = 1024
_SHORT_UPLOADED_MB = 64
_ROOM = {"DRAGOMAN_GATEWAY__ARTIFACT_BYTES_PER_TENANT": str(1 << 33)}
_PATH = "/mcp/artifacts"
_MB = 1 << 20
_PIECE = 1 << 18
_LIMIT = 30.0


def path_of(kind: str, size: int) -> str:
    return f"artifacts, {kind}, {size} MiB"


class FileClient:
    """Sends bodies to one server, and reads them."""

    def __init__(self, signer: Signer | None) -> None:
        self._signer = signer
        self._sent: dict[int, tuple[str, bytes]] = {}
        """By size, the last body that was sent, and its path."""

    def upload(self, size: int, number: int, port: int) -> Load:
        bodies = [_body(size) for _ in range(number)]
        requests = [(self._head(body, port), body) for body in bodies]
        load, answers = _exchanged(port, requests)
        for body, answer in zip(bodies, answers, strict=True):
            self._sent[size] = _place_of(answer, body), body
        return load

    def download(self, size: int, number: int, port: int) -> Load:
        path, body = self._sent[size]
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        load, answers = _exchanged(port, [(head, b"")] * number)
        if any(answer.body != body for answer in answers):
            raise BenchError("a body that was read is not the one that was sent")
        return load

    def _head(self, body: bytes, port: int) -> bytes:
        token = "" if self._signer is None else self._signer.token(body, f"http://127.0.0.1:{port}{_PATH}", "PUT")
        return (
            f"PUT {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: text/plain\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()


def _body(size: int) -> bytes:
    """Text of so many MiB that nobody has sent before."""
    line = f"{uuid.uuid4()} {'x' * 1000}\n".encode()
    return (line * (size * _MB // len(line) + 1))[: size * _MB]


def _place_of(answer: Answer, body: bytes) -> str:
    """The path at which a body can be read that was kept under its hash. Raises `BenchError`."""
    name = hashlib.sha256(body).hexdigest()
    if answer.status != 201:
        raise BenchError(f"an upload was answered with {answer.status}: {answer.body[:300]!r}")
    if answer.body == name.encode():
        return f"/{name}"
    link = urlsplit(msgspec.json.decode(answer.body)["data"]["artifact_uri"])
    if not link.path.endswith(name):
        raise BenchError(f"an upload was kept as {link.path}")
    return f"{link.path}?{link.query}"


def _exchanged(port: int, requests: Sequence[tuple[bytes, bytes]]) -> tuple[Load, list[Answer]]:
    """The answers to requests, each a head and a body, one after the other on one connection."""
    latencies: list[float] = []
    answers: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port), _LIMIT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began, cpu = time.perf_counter(), time.process_time()
        for head, body in requests:
            started_at = time.perf_counter()
            connection.sendall(head)
            connection.sendall(body)
            answers.append(_answer_on(connection))
            latencies.append(time.perf_counter() - started_at)
        load = Load(time.perf_counter() - began, time.process_time() - cpu, latencies)
    return load, [Answer.read(answer) for answer in answers]


def _answer_on(connection: socket.socket) -> bytes:
    """A whole answer, which says how long it is."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _received(connection.recv(_PIECE), data)
    length = Answer.read(data[: end + 4]).headers.get("content-length")
    if length is None:
        raise BenchError(f"an answer without a length: {data[:300]!r}")
    whole = bytearray(end + 4 + int(length))
    whole[: len(data)] = data
    place, view = len(data), memoryview(whole)
    while place < len(whole):
        place += _received(connection.recv_into(view[place:]), data)
    return bytes(whole)


def _received(found: T, data: bytes) -> T:
    if not found:
        raise BenchError(f"the server closed a connection, after {data[:100]!r}")
    return found


def artifacts(plan: Plan) -> Figures:
    """Uploads and downloads by size, and the memory that many uploads leave."""
    sender = Sender("acme")
    ours, bare = (plan.folder / f"artifacts-{kind}" for kind in ("ours", "bare"))
    keep_keys(ours, [sender])
    bare.mkdir()
    sites = [
        site_of(DRAGOMAN, ours, LIMITS | _ROOM, records=False),
        Site(BARE_FILES, (sys.executable, str(SERVERS / "http_files_bare.py"), str(bare))),
    ]
    works: dict[str, Rounds] = {}
    with started(plan, sites) as servers:
        clients = {DRAGOMAN: FileClient(sender.signer), BARE_FILES: FileClient(None)}
        for server in servers:
            server.under(partial(clients[server.name].upload, 1, 1))
        for size, number in SIZES.items():
            for kind in (UPLOAD, DOWNLOAD):
                ways = [_way(server, clients[server.name], kind, size, number) for server in servers]
                works[path_of(kind, size)] = take_turns(plan, ways, path_of(kind, size))
        growth = _growth(plan, servers[0], clients[DRAGOMAN])
    return {
        "works": {path: compared(rounds, DRAGOMAN) for path, rounds in works.items()},
        "rate_ratios": {
            path: ratio_of(rounds[DRAGOMAN], rounds[BARE_FILES], rate_of) for path, rounds in works.items()
        },
        "growth": growth,
    }


def _way(server: HttpServer, client: FileClient, kind: str, size: int, number: int) -> Way:
    put = partial(client.upload if kind == UPLOAD else client.download, size, number)
    return Way(server.name, lambda: server.under(put))


def _growth(plan: Plan, server: HttpServer, client: FileClient) -> Figures:
    """Resident megabytes before and after many uploads, to a server that has taken some before."""
    size, uploaded = max(SIZES), _SHORT_UPLOADED_MB if plan.is_short else UPLOADED_MB
    before = server.memory
    for _ in range(uploaded // size):
        server.under(partial(client.upload, size, 1))
    after = server.memory
    plan.say(f"artifacts, {uploaded:,} MiB of uploads: {before / _MB:.1f} to {after / _MB:.1f} MB")
    return {"uploaded_mb": uploaded, "before_mb": before / _MB, "after_mb": after / _MB}

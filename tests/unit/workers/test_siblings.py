"""Two workers in one process, with the socket files between them, and what their links do when something breaks."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import tool
from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.edge.asgi import PlainApplication, RequestRefused, answer
from dragoman.edge.http.app import HttpApp
from dragoman.edge.http.server import HttpServer
from dragoman.edge.http.siblings import LOCAL_ONLY
from dragoman.edge.settings import HttpConfig
from dragoman.runtime import Runtime
from dragoman.testing.connection import ENVELOPE
from dragoman.workers.forwarding import Head, Link, LinkBroken
from dragoman.workers.siblings import SECRET, SocketSiblings
from tests.support.waiting import PATIENCE, until

NAMES = ("0-aaaaaaaa", "1-bbbbbbbb")
SESSION = "0" * 32


@tool
async def many() -> list[int]:
    """More than fits into an answer."""
    return list(range(1000))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dragoman-") as name:  # pytest's own are too long for a socket.
        yield Path(name)


class Worker:
    """An application, its siblings, and a server on its socket file."""

    def __init__(self, name: str, folder: Path) -> None:
        self.siblings = SocketSiblings(name, folder, "the secret")
        config = make_config({"response": {"dialect": "envelope", "maxListItems": 10}})
        options = ServerOptions(config=config, tools=[many], cursor_mark=self.siblings.mark)
        self.runtime: Runtime = create_server(options)
        self.app: HttpApp = self.runtime.http(siblings=self.siblings)
        self.seen: list[dict[str, Any]] = []

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            self.seen.append(dict(scope))
            await self.app(scope, receive, send)

        self.server = HttpServer(PlainApplication(self.siblings.entrance(noting)), HttpConfig())

    async def ask(
        self, method: str, path: str = "/mcp", body: bytes = b"", **headers: str
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """What the application answers to a request; the client stays."""
        pairs = [(b"host", b"localhost"), *((n.replace("_", "-").encode(), v.encode()) for n, v in headers.items())]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": pairs,
        }
        sent: list[dict[str, Any]] = []
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(parts, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), b"".join(each["body"] for each in sent[1:])

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments, "_meta": ENVELOPE}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": name}
        status, _, said = await self.ask("POST", body=body, content_type="application/json", **headers)
        assert status == 200
        return dict(msgspec.json.decode(msgspec.json.decode(said)["result"]["content"][0]["text"]))


@pytest.fixture
async def workers(folder: Path) -> AsyncIterator[list[Worker]]:
    made = [Worker(name, folder) for name in NAMES]
    for each in made:
        await each.app.start()
        await each.server.start(each.siblings.listen())
    yield made
    for each in made:
        await each.server.stop()
        await each.app.stop(0.1)


async def test_what_one_worker_cut_another_can_continue(workers: list[Worker]) -> None:
    one, other = workers
    cut = await one.call("many")
    cursor = cut["metadata"]["continuations"][0]["cursor"]
    assert cursor.startswith(one.siblings.mark)
    for worker in (one, other):
        part = await worker.call("result_continue", cursor=cursor)
        assert part["data"]["items"] == list(range(10, 20))
    assert [scope["path"] for scope in one.seen] == ["/mcp"]
    for nowhere in ("cccccccc" + cursor[8:], one.siblings.mark + "0" * 14 + ".0.0"):
        assert (await other.call("result_continue", cursor=nowhere))["error"]["code"] == "NOT_FOUND"


async def test_a_path_can_be_asked_of_every_other_worker(workers: list[Worker], folder: Path) -> None:
    one, other = workers
    (folder / "2-cccccccc").touch()  # Not a socket.
    ((status, body),) = await one.siblings.get("/version")
    assert (status, msgspec.json.decode(body)["worker"]) == (200, 1)
    assert await one.siblings.get("/nowhere") == [(404, (await other.ask("GET", "/nowhere"))[2])]
    assert other.seen[0][LOCAL_ONLY] is True
    assert all(SECRET not in dict(scope["headers"]) for scope in other.seen)
    assert await other.siblings.get("/health", [(b"host", b"localhost")]) != []


async def test_a_worker_that_is_gone_is_not_asked(workers: list[Worker], folder: Path) -> None:
    one, other = workers
    other.siblings.leave()
    assert await one.siblings.get("/version") == []
    status, _, _ = await one.ask("GET", mcp_session_id=f"{NAMES[1]}-{SESSION}", accept="text/event-stream")
    assert status == 404
    one.siblings.leave()
    assert os.listdir(folder) == []


async def test_a_connection_that_was_closed_while_it_was_idle_is_made_anew(workers: list[Worker]) -> None:
    one, other = workers
    session = f"{NAMES[1]}-{SESSION}"
    for _ in range(3):
        status, _, _ = await one.ask("DELETE", mcp_session_id=session)
        assert status == 404
        for connection in tuple(other.server.connections):
            connection.line.transport.abort()
    assert len(other.seen) == 3


async def test_what_is_passed_on_is_reused_and_counted(workers: list[Worker]) -> None:
    one, other = workers
    for _ in range(5):
        await one.ask("DELETE", mcp_session_id=f"{NAMES[1]}-{SESSION}", x_dragoman_worker="forged")
    assert len(other.server.connections) == 1
    assert len(other.seen) == 5
    await one.siblings.drained(0.01)


@asynccontextmanager
async def saying(folder: Path, *pieces: bytes) -> AsyncIterator[Path]:
    """Somebody who answers so to whatever is asked, and is gone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    path = folder / "said"
    async with await asyncio.start_unix_server(answer, str(path)):
        yield path


async def asked(path: Path) -> tuple[Head, bytes]:
    link = await Link.open(path)
    assert link is not None
    try:
        head = await link.ask("GET", b"/", [(b"host", b"x"), (b"connection", b"keep-alive")], b"")
        return head, b"".join([piece async for piece in link.pieces()])
    finally:
        link.close()


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", b"llo"), b"hello"),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r", b"\nhel\r\n2\r\nlo\r\n0\r\n\r\n"), b"hello"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
    ],
)
async def test_an_answer_is_read_however_it_is_cut(folder: Path, pieces: tuple[bytes, ...], body: bytes) -> None:
    async with saying(folder, *pieces) as path:
        assert (await asked(path))[1] == body


@pytest.mark.parametrize(
    ("said", "was_answering"),
    [
        (b"", False),
        (b"HTTP/1.1 200", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", True),
    ],
)
async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(
    folder: Path, said: bytes, was_answering: bool
) -> None:
    async with saying(folder, said) as path:
        with pytest.raises(LinkBroken) as broken:
            await asked(path)
        assert broken.value.was_answering is was_answering


async def test_a_request_that_was_never_read_is_known_to_have_done_nothing(folder: Path) -> None:
    heard = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "deaf"))
        listening.listen()
        for is_read in (False, True):
            link = await Link.open(folder / "deaf")
            assert link is not None
            with listening.accept()[0] as accepted:
                asking = asyncio.create_task(link.ask("GET", b"/", [], b"body"))
                await until(lambda accepted=accepted: select.select([accepted], [], [], 0)[0])  # type: ignore[misc]
                if is_read:
                    accepted.recv(1 << 16)
            with pytest.raises(LinkBroken) as broken:
                await asking
            heard.append(broken.value.was_heard)
            link.close()
    assert heard == [False, True]


async def test_the_other_end_sees_that_a_link_is_closed_whoever_has_a_copy_of_it(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "other"))
        listening.listen()
        link = await Link.open(folder / "other")
        assert link is not None
        with listening.accept()[0] as accepted, link._socket.dup():
            link.close()
            accepted.settimeout(PATIENCE)
            assert accepted.recv(1) == b""


async def test_headers_of_a_connection_are_not_passed_on(folder: Path) -> None:
    said = b"HTTP/1.1 200 OK\r\nDate: now\r\nconnection: close\r\nX-One: 1\r\ncontent-length: 0\r\n\r\n"
    async with saying(folder, said) as path:
        head, _ = await asked(path)
    assert head == Head(200, [(b"x-one", b"1"), (b"content-length", b"0")], 0, True)


async def test_nobody_is_there(folder: Path) -> None:
    assert await Link.open(folder / "nobody") is None


def scope_of(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    pairs = [(b"host", b"localhost"), *headers]
    return {"type": "http", "method": "GET", "path": "/mcp", "raw_path": b"/mcp", "query_string": b"", "headers": pairs}


async def test_a_request_that_a_worker_heard_before_it_died_is_not_sent_again(folder: Path) -> None:
    heard = []

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_unix_server(die, str(folder / NAMES[1])):
        receive: Any = asyncio.Event().wait
        with pytest.raises(RequestRefused) as refused:
            await SocketSiblings(NAMES[0], folder, "").forward(NAMES[1], scope_of(), receive, not_expected, b"")
    assert (refused.value.status, len(heard)) == (502, 1)


async def test_a_client_that_leaves_is_noticed_by_the_worker_that_answers(folder: Path) -> None:
    left = asyncio.Event()

    async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        left.set()
        writer.close()

    asked = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await asked.wait()
        return {"type": "http.disconnect"}

    siblings = SocketSiblings(NAMES[0], folder, "")
    async with asyncio.timeout(PATIENCE), await asyncio.start_unix_server(stay, str(folder / NAMES[1])):
        assert await siblings.forward(NAMES[1], scope_of(), receive, not_expected, b"")
        await left.wait()


async def not_expected(message: Any) -> None:
    raise AssertionError(message)


async def test_nobody_comes_in_with_more_than_one_secret(folder: Path) -> None:
    async def served(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200)

    entrance = SocketSiblings(NAMES[0], folder, "the secret").entrance(served)
    statuses = []
    for brought in ([], [b"the secret"], [b"other"], [b"the secret", b"other"], [b"the secret"] * 2):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await entrance(scope_of(*((SECRET, secret) for secret in brought)), not_expected, send)  # type: ignore[arg-type]
        statuses.append(sent[0]["status"])
    assert statuses == [403, 200, 403, 403, 403]


def test_only_this_user_can_enter_by_the_socket_file(folder: Path) -> None:
    siblings = SocketSiblings(NAMES[0], folder, "")
    with siblings.listen():
        assert stat.S_IMODE((folder / NAMES[0]).stat().st_mode) == 0o600

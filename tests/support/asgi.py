"""A server of ASGI applications in memory: requests go in as bytes, and what comes out is looked at as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from dragoman.edge.asgi import JSON, Application, Header, Headers, answer
from dragoman.protocol.headers import by_name
from tests.support.http_wire import Response
from tests.support.waiting import PATIENCE

Message = MutableMapping[str, Any]


def scope_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A request as bytes, as a scope and its body."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.decode().split(" ")
    path, _, query = target.partition("?")
    fields = [line.partition(b":") for line in lines]
    headers = [(name.strip().lower(), value.strip()) for name, _, value in fields]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    return scope, body


class Asked:
    """A request under way."""

    def __init__(self, body: bytes = b"") -> None:
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self._changed = asyncio.Event()
        self.is_gone = False
        self.reads = asyncio.Event()
        """Cleared, the client does not read, and whoever sends has to wait."""
        self.reads.set()
        self.sent: list[Message] = []
        self.task: asyncio.Task[None]

    async def receive(self) -> Message:
        if self.is_gone:
            return {"type": "http.disconnect"}
        return await self._incoming.get()

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        if not self.is_gone:
            self.sent.append(message)
            self._changed.set()

    def leave(self) -> None:
        """The client goes away."""
        self.is_gone = True
        self._incoming.put_nowait({"type": "http.disconnect"})
        self.reads.set()

    @property
    def is_complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", self.sent[-1]["type"] == "http.response.start")

    @property
    def response(self) -> Response:
        """What has been sent so far."""
        start, *parts = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Response(start["status"], headers, b"".join(part.get("body", b"") for part in parts))

    async def wait_for(self, count: int) -> None:
        """Return when so many messages have been sent."""
        async with asyncio.timeout(PATIENCE):
            while len(self.sent) < count:
                self._changed.clear()
                await self._changed.wait()


@dataclass
class TakenHead:
    """The headers of a request that an application is given whole. Implements `WholeHead`."""

    headers: list[Header]
    named: Headers
    known: Any = None


class TakenPost:
    """A request that an application is given whole, as the HTTP server does it. Implements `Post`."""

    on_gone: Callable[[], object] | None = None

    def __init__(self, app: Any, scope: dict[str, Any]) -> None:
        self._app = app
        self._scope = scope
        self.asked = Asked()
        self.asked.task = asyncio.create_task(self.asked.wait_for(2))

    def answer(self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)) -> None:
        self.go_on(lambda scope, receive, send: answer(send, status, body, headers))

    def go_on(self, app: Application) -> None:
        self.asked.task.cancel()
        self.asked.task = asyncio.create_task(self._app.run(app, self._scope, self.asked.receive, self.asked.send))

    def watch(self) -> None:
        """Nobody leaves."""


class Driver:
    """Asks an application."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._heads: list[TakenHead] = []

    def _head_of(self, headers: list[Header]) -> TakenHead:
        """The same for the same headers, as on a connection."""
        for head in self._heads:
            if head.headers == headers:
                return head
        self._heads.append(TakenHead(headers, by_name(headers)))
        return self._heads[-1]

    async def give(self, data: bytes) -> Response | None:
        """The whole response to a request that is given to the application whole; None if it does not take it."""
        scope, body = scope_of(data)
        post = TakenPost(self.app, scope)
        asked = post.asked
        if not self.app.take(post, self._head_of(scope["headers"]), body):
            asked.task.cancel()
            return None
        async with asyncio.timeout(PATIENCE):
            while not asked.is_complete:
                await asyncio.wait((asked.task,))
        return asked.response

    def begin(self, data: bytes) -> Asked:
        scope, body = scope_of(data)
        asked = Asked(body)
        asked.task = asyncio.create_task(self.app(scope, asked.receive, asked.send))
        return asked

    async def ask(self, data: bytes) -> Response:
        """The whole response to a request."""
        asked = self.begin(data)
        async with asyncio.timeout(PATIENCE):
            await asked.task
        assert asked.is_complete, asked.sent
        return asked.response

"""The explorer of a runtime in this process, and requests to it as a browser makes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.edge.http.app import HttpApp
from dragoman.runtime import Runtime
from tests.support.waiting import PATIENCE


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Page:
    """What a browser would do, and what it would not."""

    def __init__(self, app: HttpApp, runtime: Runtime) -> None:
        self.app = app
        self.runtime = runtime

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        leaves: asyncio.Event | None = None,
        root: str = "",
    ) -> Answer:
        path, _, query = path.partition("?")
        named = {"host": "127.0.0.1:8000", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root,
            "query_string": query.encode(),
            "headers": [(key.encode(), value.encode("latin-1")) for key, value in named.items()],
        }
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await (leaves or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        if not sent:
            return Answer(0, {}, b"")
        found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:]))

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.request("GET", path, headers=headers)

    def credentials(self) -> dict[str, str]:
        token = self.app.pages[0].partition("#token=")[2].partition("&")[0]
        return {"content-type": "application/json", "x-explorer-token": token}

    async def call(self, name: str, arguments: Any, prefix: str = "/explorer", **headers: str) -> Answer:
        body = arguments if isinstance(arguments, bytes) else msgspec.json.encode(arguments)
        return await self.request("POST", f"{prefix}/tools/{name}/call", body, {**self.credentials(), **headers})

    async def details(self, answer: Answer) -> Any:
        return (await self.get(f"/explorer/calls/{answer.headers['x-run-id']}")).json


async def eventually(look: Callable[[], Awaitable[Any]], found: Callable[[Any], object]) -> Any:
    """What there is to see, as soon as it is what was looked for."""
    deadline = time.monotonic() + PATIENCE
    while not found(seen := await look()):
        assert time.monotonic() < deadline, f"{seen} is all there was"
        await asyncio.sleep(0.005)
    return seen


@asynccontextmanager
async def open_explorer(
    tools: Any, sections: Mapping[str, Any] | None = None, *, sse: bool = False, **settings: Any
) -> AsyncIterator[Page]:
    """A server with these tools and settings; `settings` are the explorer's own. Everything may be run."""
    values = {"explorer": {"enabled": True, "allow_execute": True, **settings}, **(sections or {})}
    runtime = create_server(ServerOptions(config=make_config(values), tools=tools))
    app = runtime.http(sse=sse)
    await app.start()
    try:
        yield Page(app, runtime)
    finally:
        await app.stop(1)

"""What several HTTP servers take the same bytes for."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import h11

from dragoman.edge.asgi import PlainApplication
from dragoman.edge.http.server import HttpServer
from dragoman.edge.settings import HttpConfig
from tests.support.http_serving import hosting, listening
from tests.support.tcp_queues import ends_of, is_quiet
from tests.support.waiting import until

MOST_HEAD_BYTES = 64 * 1024
NOT_FOUND = 404
"""The answer to everything: one that no tunnel is made by."""
_TURNS = 50
"""Turns of the loop in which a server that has read all that was sent answers all that it will."""


class Request(NamedTuple):
    """A request as an application sees it."""

    method: str
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes


def make_request(method: str, target: bytes, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> Request:
    """A request with a target in the origin form and codings in lower case, as some servers make them."""
    path = re.sub(rb"^https?://[^/]*", b"", target, flags=re.IGNORECASE)
    same = ((name, value.lower() if name == b"transfer-encoding" else value) for name, value in fields)
    return Request(method, path, tuple(same), body)


Understood = tuple[Request, ...]
"""The whole requests on a connection."""


class Echo:
    """An application that remembers what it was asked, by the port of the client."""

    def __init__(self) -> None:
        self.asked: defaultdict[int, list[Request]] = defaultdict(list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        body, has_more = b"", True
        while has_more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event.get("body", b"")
            has_more = event.get("more_body", False)
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        self.asked[scope["client"][1]].append(make_request(scope["method"], target, scope["headers"], body))
        await send({"type": "http.response.start", "status": NOT_FOUND, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class Served:
    """A server of the echo on a real socket."""

    def __init__(self, port: int, echo: Echo) -> None:
        self._port = port
        self._echo = echo

    async def __call__(self, pieces: Sequence[bytes]) -> Understood:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        ends = ends_of(writer.get_extra_info("socket"))
        answers = asyncio.create_task(reader.read())
        for piece in pieces:
            writer.write(piece)
            await _take_turns(answers)
        if not answers.done():  # The server waits for more, or has not read all of it.
            await until(lambda: answers.done() or is_quiet(ends))
            await _take_turns(answers)
            if not answers.done():
                writer.write_eof()
        await asyncio.wait((answers,))
        answers.exception()  # A reset is an end as well.
        writer.transport.abort()
        return tuple(self._echo.asked.pop(ends.here[1], ()))


async def _take_turns(answers: asyncio.Task[bytes]) -> None:
    for _ in range(_TURNS):
        if answers.done():
            return
        await asyncio.sleep(0)


async def parsed_by_h11(pieces: Sequence[bytes]) -> Understood:
    """Not a server: h11's parser, and answers as short as possible."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
    understood: list[Request] = []
    asked: h11.Request | None = None
    body = b""
    for piece in pieces:
        try:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                match event:
                    case h11.Request():
                        asked, body = event, b""
                    case h11.Data():
                        body += bytes(event.data)
                    case h11.EndOfMessage() if asked is not None:
                        understood.append(make_request(asked.method.decode(), asked.target, asked.headers, body))
                        connection.send(h11.Response(status_code=NOT_FOUND, headers=[("content-length", "0")]))
                        connection.send(h11.EndOfMessage())
                        if connection.our_state is not h11.DONE:
                            return tuple(understood)
                        connection.start_next_cycle()
        except h11.RemoteProtocolError:
            break
    return tuple(understood)


@asynccontextmanager
async def all_servers() -> AsyncIterator[dict[str, Callable[[Sequence[bytes]], Any]]]:
    """This server first, then those that it is compared with."""
    async with AsyncExitStack() as stack:
        echo = Echo()
        ours = await stack.enter_async_context(listening(HttpServer(PlainApplication(echo), HttpConfig())))
        servers: dict[str, Any] = {"dragoman": Served(ours, echo)}
        for http in ("httptools", "h11"):
            echo = Echo()
            address = await stack.enter_async_context(
                hosting(echo, http=http, ws="none", lifespan="off", proxy_headers=False)
            )
            servers[f"uvicorn with {http}"] = Served(int(address.rpartition(":")[2]), echo)
        yield {**servers, "h11": parsed_by_h11}

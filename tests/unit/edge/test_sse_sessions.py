"""Sessions of the deprecated transport: which request an id stands for, and which session a message is for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman.app import ServerOptions, create_server
from tests.support.asgi import Driver
from tests.support.http_wire import INITIALIZE, INITIALIZED, MISSHAPEN, Response, events_in, message, request
from tests.support.waiting import PATIENCE

seen: asyncio.Queue[str] = asyncio.Queue()


@dragoman.tool
async def wait(ctx: dragoman.ToolContext) -> str:
    """Ends when nobody wants the answer any longer."""
    seen.put_nowait("begun")
    await ctx.cancellation.wait()
    seen.put_nowait("cancelled")
    return "cancelled"


class SseClient:
    """One session; its answers are read from the stream that opened it."""

    def __init__(self, here: Driver) -> None:
        self._here = here
        self.stream = here.begin(request(None, {"accept": "text/event-stream"}, method="GET", path="/sse"))
        self.path = ""

    async def open(self, *, is_running: bool = True) -> SseClient:
        self.path = (await self._data(0)).strip()
        if is_running:
            await self.post(INITIALIZE)
            await self.answer(0)
            await self.post(INITIALIZED)
        return self

    async def post(self, body: Any, path: str | None = None) -> Response:
        return await self._here.ask(request(body, path=path or self.path))

    async def answer(self, number: int) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(await self._data(1 + number))
        return answer

    async def _data(self, number: int) -> str:
        await self.stream.wait_for(2 + number)
        return events_in(self.stream.response.body)[number][1]


@asynccontextmanager
async def sse_server() -> AsyncIterator[Driver]:
    app = create_server(ServerOptions(tools=[wait])).http(sse=True)
    yield Driver(app)
    await app.stop(0)


async def test_a_request_whose_id_was_sent_again_can_still_be_cancelled() -> None:
    async with sse_server() as here:
        client = await SseClient(here).open()
        call = message("tools/call", {"name": "wait"}, 5)
        assert (await client.post(call)).status == 202
        async with asyncio.timeout(PATIENCE):
            assert await seen.get() == "begun"
        assert (await client.post(call)).status == 202
        assert (await client.answer(1))["error"]["message"] == "Invalid request: a request with this id is under way"
        await client.post(message("notifications/cancelled", {"requestId": 5}))
        async with asyncio.timeout(PATIENCE):
            assert await seen.get() == "cancelled"
        client.stream.leave()


async def test_a_message_that_names_two_sessions_is_read_in_the_one_that_answers_it() -> None:
    async with sse_server() as here:
        running, new = await SseClient(here).open(), await SseClient(here).open(is_running=False)
        both = f"{running.path}&{new.path.partition('?')[2]}"
        await new.post(message("tools/list", None, 1), both)
        assert (await new.answer(0))["error"]["code"] == -32002
        for client in (running, new):
            client.stream.leave()


@pytest.mark.parametrize(("body", "reason"), MISSHAPEN)
async def test_a_message_of_the_wrong_shape_is_refused_before_the_sdk_logs_it(
    body: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with sse_server() as here:
        client = await SseClient(here).open()
        refused = await client.post(body)
        assert (refused.status, refused.error["message"]) == (400, f"Invalid request: {reason}")
        assert "secret" not in caplog.text
        client.stream.leave()

"""Responses in pieces: to a client that reads, that does not read, and that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dragoman.parts.streaming import StreamedResponse
from tests.support.asgi import Asked
from tests.support.waiting import PATIENCE


class Pieces:
    """The pieces of a body, how many of them were made, and whether its maker has been told that it is over."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made = 0
        self.is_closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(self.count):
                self.made += 1
                yield b"%d " % number
        finally:
            self.is_closed = True


def ask(response: StreamedResponse, method: str = "GET") -> Asked:
    asked = Asked()
    scope: dict[str, Any] = {"type": "http", "method": method}
    asked.task = asyncio.ensure_future(response(scope, asked.receive, asked.send))
    return asked


def of(pieces: Any) -> StreamedResponse:
    return StreamedResponse(200, pieces, ((b"content-type", b"text/plain"),))


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_all_pieces_are_sent_in_order(count: int) -> None:
    asked = ask(of(Pieces(count)))
    await asked.task
    assert asked.is_complete
    assert asked.response.body == b"".join(b"%d " % number for number in range(count))
    assert asked.response.headers == {"content-type": "text/plain"}


async def test_for_a_client_that_does_not_read_one_piece_is_made_and_none_when_it_has_left() -> None:
    pieces = Pieces(1_000)
    asked = ask(of(pieces))
    asked.reads.clear()
    for _ in range(100):
        await asyncio.sleep(0)
    assert pieces.made == 1
    asked.leave()
    async with asyncio.timeout(PATIENCE):
        await asked.task
    assert pieces.made <= 3
    assert pieces.is_closed


async def test_a_head_has_no_body() -> None:
    pieces = Pieces(1_000)
    asked = ask(of(pieces), "HEAD")
    await asked.task
    assert (asked.response.status, asked.response.body, pieces.made) == (200, b"", 1)


async def test_a_body_that_cannot_be_begun_is_no_response() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        raise LookupError
        yield b""

    asked = ask(of(broken))
    with pytest.raises(LookupError):
        await asked.task
    assert asked.sent == []

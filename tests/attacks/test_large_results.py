"""A tool that returns far more than may be sent holds nobody up: its result is refused for the price of a small one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from dragoman import resource, tool
from tests.support.targets import opened, work_for

pytestmark = pytest.mark.slow

MOST = 20_000
ROWS = [{"id": 123_456, "name": "x" * 20, "numbers": [1, 2, 3]}] * 100_000


@tool
async def large() -> list:  # type: ignore[type-arg]
    return ROWS


@resource("rows://large")
async def rows() -> list:  # type: ignore[type-arg]
    return ROWS


@pytest.mark.parametrize("dialect", ["structured", "envelope"])
@pytest.mark.parametrize(
    ("transport", "method", "members"),
    [
        ("stdio", "tools/call", b'"name":"large"'),
        ("modern", "tools/call", b'"name":"large"'),
        ("session", "tools/call", b'"name":"large"'),
        ("stdio", "resources/read", b'"uri":"rows://large"'),
    ],
)
async def test_result_that_is_too_large_is_refused_for_far_less_than_it_takes_to_encode_it(
    transport: str, method: str, members: bytes, dialect: str
) -> None:
    settings = {"response": {"dialect": dialect, "max_response_bytes": MOST, "max_kept_bytes": MOST}}
    async with opened(transport, [large, rows], settings) as target:
        answer = await asyncio.to_thread(target.ask, method, members)
        assert b"too large" in msgspec.json.encode(answer)
        work = await work_for(target, method, members)
    assert work.lines <= len(ROWS) / 10
    assert work.allocated <= len(msgspec.json.encode(ROWS)) / 2  # A client's buffers are a megabyte of that.

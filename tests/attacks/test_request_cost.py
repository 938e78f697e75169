"""A request costs little before its caller is known, and nothing of it is kept once it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import psutil
import pytest

from tests.support.cost import MEGABYTE, Work, counting, growth_of, work_of
from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, message, modern, request
from tests.support.served import path_of
from tests.support.served.attack_tools import echo
from tests.support.targets import TRANSPORTS, SseTarget, Target, opened, opened_http, work_for

pytestmark = pytest.mark.slow

SETTINGS = {"server.shutdown_timeout_ms": 500, "http.max_replay_bytes": 4 * MEGABYTE}
NIGHTLY = pytest.mark.nightly
MOST_CONTAINERS, MOST_ELEMENTS, MOST_LONG_NUMBERS = 100_000, 524_288, 10_000


@pytest.fixture(
    params=[pytest.param(each, marks=NIGHTLY if each == "modern without headers" else ()) for each in TRANSPORTS]
)
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    async with opened(request.param, [echo]) as target:
        yield target


def decoding(data: bytes) -> Work:
    """The work of decoding JSON once."""
    return work_of(lambda: msgspec.json.decode(data))


def many(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


MUCH_TO_DECODE = b"[%b,%b]" % (many(b"1e-320", MOST_LONG_NUMBERS + 1_000), many(b"[]", MOST_CONTAINERS - 100))
"""Within the limits, but for its numbers."""


def unknown_tool(arguments: bytes) -> bytes:
    return b'"name":"nobody","arguments":{"a":%b}' % arguments


@pytest.mark.requirement("FND-CALL-01", "PRD-LIMIT-06")
async def test_violations_cost_no_more_than_the_arguments_that_they_are_in(target: Target) -> None:
    """5,000 containers that are too deep, each at the end of a path of 32,000 characters."""
    members = unknown_tool(b'{"%b":' % (b"k" * 4_000) * 8 + many(b"[]", 5_000) + b"}" * 8)
    work = await work_for(target, "tools/call", members)
    assert work.lines <= 4 * len(members)
    assert work.allocated <= 1_000 * len(members)  # 150 to 200 are usual; with every path written out it is thousands.


@pytest.mark.parametrize(
    ("method", "item", "most"),
    [
        ("tools/call", b"[]", 1),
        pytest.param("no/such", b"[]", 1, marks=NIGHTLY),
        pytest.param("tools/call", b'"[",[]', 2.2, marks=NIGHTLY),
        pytest.param("tools/call", b'{"a":1}', 1, marks=NIGHTLY),
    ],
)
async def test_more_containers_than_are_allowed_are_refused_without_being_decoded(
    target: Target, method: str, item: bytes, most: float
) -> None:
    """`most` is how many times what decoding takes is allowed; with the decoding it would be at least one more."""
    members = unknown_tool(many(item, MOST_CONTAINERS + 10_000))
    answer = await asyncio.to_thread(target.ask, method, members)
    assert (answer["error"]["code"], answer["error"]["message"]) == (
        -32600,
        f"Invalid request: the message has more than {MOST_CONTAINERS} arrays and objects",
    )
    assert answer["id"] == 1
    work = await work_for(target, method, members)
    assert work.lines <= len(members) / 20
    assert work.allocated <= most * decoding(b"{%b}" % members).allocated


@pytest.mark.parametrize("item", [b"1", pytest.param(b'"ab"', marks=NIGHTLY)], ids=["numbers", "strings"])
async def test_more_elements_than_are_allowed_are_refused(target: Target, item: bytes) -> None:
    members = unknown_tool(many(item, MOST_ELEMENTS + 2))
    answer = await asyncio.to_thread(target.ask, "tools/call", members)
    assert f"more than {MOST_ELEMENTS} items and members" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "item", "count"),
    [
        ("tools/call", b"[]", MOST_CONTAINERS // 2),
        pytest.param("tools/call", b"[]", MOST_CONTAINERS - 100, marks=NIGHTLY),
        pytest.param("tools/call", b"[[1]]", MOST_CONTAINERS // 2 - 100, marks=NIGHTLY),
        pytest.param("no/such", b'{"a":1}', MOST_CONTAINERS - 100, marks=NIGHTLY),
        pytest.param("tools/call", b'"[],"', MOST_ELEMENTS - 100, marks=NIGHTLY),
    ],
)
async def test_message_within_the_limits_costs_little_more_than_its_decoding(
    target: Target, method: str, item: bytes, count: int
) -> None:
    members = unknown_tool(many(item, count)) + b',"unread":1'
    work = await work_for(target, method, members)
    assert work.lines <= len(members)
    # Six times is usual, and nine over SSE: it is copied, looked at, decoded and checked, and by the SDK once more.
    most = 10.5 if isinstance(target, SseTarget) else 7.5
    assert work.allocated <= most * decoding(b"{%b}" % members).allocated


async def test_numbers_that_take_long_to_read_are_refused(target: Target) -> None:
    members = unknown_tool(MUCH_TO_DECODE)
    answer = await asyncio.to_thread(target.ask, "tools/call", members)
    assert f"{MOST_LONG_NUMBERS} numbers with a long exponent" in answer["error"]["message"]
    work = await work_for(target, "tools/call", members)
    assert work.allocated <= decoding(MUCH_TO_DECODE).allocated


@pytest.mark.parametrize("where", ["id", "_meta"])
async def test_nothing_of_a_message_that_is_refused_is_decoded(where: str) -> None:
    id, meta = (MUCH_TO_DECODE, b"{}") if where == "id" else (b"1", b'{"a":%b}' % MUCH_TO_DECODE)
    body = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"_meta":%b}}' % (id, meta)
    async with opened_http([echo]) as server:
        assert (await asyncio.to_thread(server.ask, request(body))).status == 413
        with counting() as work:
            await asyncio.to_thread(server.ask, request(body))
    assert work.allocated <= decoding(body).allocated


@pytest.mark.parametrize("most", [100, 1])
async def test_arrays_beyond_a_limit_cost_no_more_for_being_many(most: int) -> None:
    """A tool with a schema, whose own limits are looked up for each of them."""
    row = b"[%b]" % b",".join([b"0"] * (most + 1))
    works = []
    async with opened("modern", [echo], {"limits": {"max_array_size": most}}) as target:
        for count in (500, 1_000):
            members = b'"name":"echo","arguments":{"message":%b}' % many(row, count)
            works.append(await work_for(target, "tools/call", members))
    few, twice = works
    assert twice.lines <= 3 * few.lines
    assert twice.allocated <= 3 * few.allocated


async def test_message_of_ten_megabytes_is_still_taken(target: Target) -> None:
    text = b'"%b"' % (b"x" * (10 * MEGABYTE - 1_000))
    answer = await asyncio.to_thread(target.ask, "tools/call", unknown_tool(text))
    if "error" not in answer:  # Without headers it is told that they are missing.
        assert "payload_too_large" in answer["result"]["content"][0]["text"]


# What is kept


@pytest.fixture(scope="module")
def server() -> Iterator[HttpProcess]:
    with HttpProcess(path_of("attack_tools.py"), settings=SETTINGS) as process:
        process.check_health()
        yield process


def initialize(capabilities: Any) -> dict[str, Any]:
    return {**INITIALIZE, "params": {**INITIALIZE["params"], "capabilities": capabilities}}


@pytest.mark.parametrize(
    "capabilities",
    [
        {"experimental": {"x": "y" * 9 * MEGABYTE}},
        {"sampling": {"tools": {"x": ["ab"] * 500_000}}},
    ],
    ids=["experimental", "sampling"],
)
def test_handshake_that_says_too_much_opens_no_session(server: HttpProcess, capabilities: Any) -> None:
    refused = server.ask(request(initialize(capabilities)))
    assert (refused.status, refused.code) == (400, -32602)
    assert "mcp-session-id" not in refused.headers


def test_session_keeps_little_of_its_handshake(server: HttpProcess) -> None:
    process, count = psutil.Process(server.pid), 40
    junk = {"experimental": {"x": [[]] * 20_000}, "extensions": {str(n): {"y": [[]]} for n in range(100)}}

    def growth(capabilities: Any) -> int:
        before = process.memory_info().rss
        for _ in range(count):
            assert server.ask(request(initialize(capabilities))).status == 200
        return process.memory_info().rss - before

    growth({})
    assert growth(junk) <= growth({}) + 15 * MEGABYTE  # Kept whole, it would be 50.


# What is sent


@pytest.mark.parametrize("transport", [each for each in TRANSPORTS if each != "modern without headers"])
@pytest.mark.parametrize(("method", "members"), [("tools/call", b'"name":"echo"'), ("resources/list", b"")])
async def test_progress_token_that_every_notification_would_repeat_is_refused(
    transport: str, method: str, members: bytes
) -> None:
    async with opened(transport, [echo]) as target:
        answer = await asyncio.to_thread(target.ask, method, members, {"progressToken": "t" * 257})
    assert answer["error"]["code"] == -32602


@pytest.mark.parametrize("era", ["modern", "session"])
def test_stream_that_nobody_reads_holds_a_bounded_number_of_bytes(server: HttpProcess, era: str) -> None:
    params = {"name": "chatter", "arguments": {"times": 400, "size": 900_000}}
    if era == "modern":
        data = modern("tools/call", params, meta={"progressToken": 1})
    else:
        session = server.open()
        data = session.request(message("tools/call", {**params, "_meta": {"progressToken": 1}}, 1))
    said = len([each for each in server.errors.lines if b"has said everything" in each])
    with growth_of(server.pid) as growth, server.wire() as wire:
        wire.send(data)
        server.wait_for_log("has said everything", said + 1)
    assert growth.memory <= 64 * MEGABYTE  # Of 360; two hundred and fifty notifications would be 225.

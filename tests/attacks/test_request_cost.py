"""A request costs little before its caller is known, and nothing of it is kept once it is answered."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest

from tests.support.cost import LEAST_CPU, MEGABYTE, bare_decode, cheapest, cost_for, cpu_of
from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, message, modern, request
from tests.support.processes import ServerProcess
from tests.support.served import path_of
from tests.support.targets import ModernTarget, SessionTarget, SseTarget, StdioTarget, Target

pytestmark = pytest.mark.slow

TOOLS = path_of("attack_tools.py")
SETTINGS = {"tools.memory_enabled": "true", "server.shutdown_timeout_ms": 500, "http.max_replay_bytes": 4 * MEGABYTE}
PER_MEGABYTE = 0.005
"""CPU seconds to read a megabyte from a pipe or a socket, in many pieces."""
TRANSPORTS = ("stdio", "modern", "modern without headers", "session", "sse")


@pytest.fixture(scope="module")
def server() -> Iterator[HttpProcess]:
    with HttpProcess(TOOLS, settings=SETTINGS, is_measured=False) as process:
        process.check_health()
        yield process


@pytest.fixture(scope="module")
def targets(server: HttpProcess) -> Iterator[dict[str, Target]]:
    with (
        ServerProcess(TOOLS, is_measured=False) as stdio,
        HttpProcess(TOOLS, transport="sse", is_measured=False) as deprecated,
        closing(SseTarget(deprecated)) as sse,
    ):
        stdio.handshake()
        yield {
            "stdio": StdioTarget(stdio),
            "modern": ModernTarget(server),
            "modern without headers": ModernTarget(server, has_headers=False),
            "session": SessionTarget(server, server.open()),
            "sse": sse,
        }


@pytest.fixture(params=TRANSPORTS)
def target(request: pytest.FixtureRequest, targets: dict[str, Target]) -> Target:
    return targets[request.param]


UNDECODED = 0.5
"""How many times the bare decoding a message may cost that is refused undecoded: about a twentieth is usual."""
BY_SDK = 25
"""How many times the bare decoding a message may cost over SSE, where the SDK decodes it several times."""


def check_cost(target: Target, method: str, members: bytes, most: float, times: int = 1) -> None:
    """A request costs a server at most `most` times the CPU seconds of decoding it, beyond those of reading it.

    `most` is far from what the server costs, and from what it would cost with the defect.
    """
    body = b"{%b}" % members
    target.ask(method, members)
    allowed = reading(times * len(body)) + times * most * bare_decode(body)
    assert cheapest(target.pid, lambda: [target.ask(method, members) for _ in range(times)], allowed) <= allowed


def reading(size: int) -> float:
    """CPU seconds that reading so many bytes may take, whatever they are."""
    return LEAST_CPU + PER_MEGABYTE * size / MEGABYTE


def many(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def unknown_tool(arguments: bytes) -> bytes:
    return b'"name":"nobody","arguments":{"a":%b}' % arguments


@pytest.mark.requirement("FND-CALL-01", "PRD-LIMIT-06")
def test_violations_cost_no_more_than_the_arguments_that_they_are_in(target: Target) -> None:
    """126 KB with 22,000 containers that are too deep, each at the end of a path of 60,000 characters."""
    deep = b'{"%b":' % (b"k" * 7_500) * 8 + many(b"[]", 22_000) + b"}" * 8
    # Five times is usual; with every path written out it is hundreds of times.
    check_cost(target, "tools/call", unknown_tool(deep), most=40, times=10)


@pytest.mark.parametrize(
    ("method", "item"),
    [("tools/call", b"[]"), ("no/such", b"[]"), ("tools/call", b'"[",[]'), ("tools/call", b'{"a":1}')],
)
def test_millions_of_small_containers_are_refused_without_being_decoded(
    target: Target, method: str, item: bytes
) -> None:
    members = unknown_tool(many(item, 10 * MEGABYTE // (len(item) + 1) - 500))
    answer = target.ask(method, members)
    assert (answer["error"]["code"], answer["error"]["message"]) == (
        -32600,
        "Invalid request: the message has more than 100000 arrays and objects",
    )
    assert answer["id"] == 1
    check_cost(target, method, members, UNDECODED)


@pytest.mark.parametrize("item", [b"1", b'"ab"'], ids=["numbers", "strings"])
def test_millions_of_elements_are_refused_before_they_become_objects(target: Target, item: bytes) -> None:
    members = unknown_tool(many(item, 10 * MEGABYTE // (len(item) + 1) - 500))
    assert "more than 524288 items and members" in target.ask("tools/call", members)["error"]["message"]


@pytest.mark.parametrize(
    ("method", "item", "count"),
    [
        ("tools/call", b"[]", 99_900),
        ("tools/call", b"[[1]]", 49_000),
        ("no/such", b'{"a":1}', 99_900),
        ("tools/call", b'"[],"', 500_000),
    ],
)
def test_message_within_the_limits_costs_little_more_than_its_decoding(
    target: Target, method: str, item: bytes, count: int
) -> None:
    # At most three times is usual (the message is looked at, decoded and checked).
    most = BY_SDK if isinstance(target, SseTarget) else 8
    check_cost(target, method, unknown_tool(many(item, count)) + b',"unread":1', most, times=3)


def test_numbers_that_take_long_to_read_are_refused(target: Target) -> None:
    members = unknown_tool(many(b"1e-320", 500_000))
    assert "10000 numbers with a long exponent" in target.ask("tools/call", members)["error"]["message"]
    check_cost(target, "tools/call", members, UNDECODED)


@pytest.mark.parametrize("where", ["id", "_meta"])
def test_nothing_of_a_message_that_is_refused_is_decoded(server: HttpProcess, where: str) -> None:
    much = many(b"1e-320", 500_000)
    id, meta = (much, b"{}") if where == "id" else (b"1", b'{"a":%b}' % much)
    body = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"_meta":%b}}' % (id, meta)
    assert server.ask(request(body)).status == 413
    allowed = reading(len(body)) + UNDECODED * bare_decode(body)
    assert cheapest(server.pid, lambda: server.ask(request(body)), allowed) <= allowed


@pytest.mark.parametrize("settings", [{}, {"limits.max_array_size": 1}], ids=["default", "lowered"])
def test_arrays_beyond_a_limit_cost_no_more_for_being_many(settings: dict[str, int]) -> None:
    """A tool with a schema, whose own limits are looked up for each of them."""
    rows = many(b"[%b]" % b",".join([b"0"] * 101), 4_000) if not settings else many(b"[0,0]", 49_000)
    with HttpProcess(TOOLS, settings=settings, is_measured=False) as server:
        target = ModernTarget(server)
        members = b'"name":"echo","arguments":{"message":%b}' % rows
        # Looked up through their parents, they would cost thousands of times as much.
        check_cost(target, "tools/call", members, most=150)


def test_message_of_ten_megabytes_is_still_taken(target: Target) -> None:
    text = b'"%b"' % (b"x" * (10 * MEGABYTE - 1_000))
    answer = target.ask("tools/call", unknown_tool(text))
    if "error" not in answer:  # Without headers it is told that they are missing.
        assert "payload_too_large" in answer["result"]["content"][0]["text"]


def test_runs_of_marks_are_normalised_in_linear_time(targets: dict[str, Target], server: HttpProcess) -> None:
    marks = "\u0315\u0300\u0327\u0591" * 20_000
    store = {"name": "memory_store", "arguments": {"key": "k", "value": [marks, marks]}}
    server.ask(modern("tools/call", {"name": "memory_store", "arguments": {"key": "k", "value": "é"}}))
    assert server.ask(modern("tools/call", store)).message["result"]["isError"] is False
    plain = "д" * 2 * len(marks)
    allowed = LEAST_CPU + 100 * cpu_of(lambda: [unicodedata.normalize(form, plain) for form in ("NFKD", "NFC")])
    assert cheapest(server.pid, lambda: server.ask(modern("tools/call", store)), allowed) <= allowed


# What is kept


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
def test_progress_token_that_every_notification_would_repeat_is_refused(
    targets: dict[str, Target], transport: str, method: str, members: bytes
) -> None:
    answer = targets[transport].ask(method, members, {"progressToken": "t" * 257})
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
    with cost_for(server.pid) as cost, server.wire() as wire:
        wire.send(data)
        server.wait_for_log("has said everything", said + 1)
    assert cost.memory <= 64 * MEGABYTE  # Of 360; two hundred and fifty notifications would be 225.

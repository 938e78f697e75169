"""The limits of size and depth on a real server: exactly at a limit passes, one more is refused, on every transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from tests.support.answers import error_in
from tests.support.http_process import HttpProcess
from tests.support.processes import ServerProcess
from tests.support.served import path_of
from tests.support.targets import ModernTarget, SessionTarget, SseTarget, StdioTarget, Target, body_of

pytestmark = pytest.mark.slow

TOOLS = path_of("attack_tools.py")
MOST_BYTES, DEEPEST = 2000, 6
SETTINGS = {"limits.max_request_bytes": MOST_BYTES, "limits.max_object_depth": DEEPEST}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpProcess]:
    with HttpProcess(TOOLS, settings=SETTINGS) as process:
        yield process


@pytest.fixture(scope="module", params=["stdio", "modern", "session", "sse", "workers"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    match request.param:
        case "modern":
            yield ModernTarget(request.getfixturevalue("server"))
        case "session":
            process = request.getfixturevalue("server")
            yield SessionTarget(process)
        case "stdio":
            with ServerProcess(TOOLS, settings=SETTINGS) as stdio:
                stdio.handshake()
                yield StdioTarget(stdio)
        case "sse":
            with (
                HttpProcess(TOOLS, settings=SETTINGS, transport="sse") as process,
                closing(SseTarget(process)) as sse,
            ):
                yield sse
        case "workers":
            with HttpProcess(TOOLS, "--workers", "2", settings=SETTINGS) as process:
                yield ModernTarget(process)


def echo_of(target: Target, size: int) -> bytes:
    """The members of a call that makes a request of `size` bytes."""
    members = b'"name":"echo","arguments":{"message":"%b"}'
    return members % (b"x" * (size - len(body_of("tools/call", members % b"", target.meta))))


@pytest.mark.requirement("PRD-LIMIT-05")
def test_a_request_of_exactly_the_most_bytes_is_answered_and_one_byte_more_is_refused(target: Target) -> None:
    answered = target.ask("tools/call", echo_of(target, MOST_BYTES))
    assert answered["result"]["isError"] is False
    refused = target.ask("tools/call", echo_of(target, MOST_BYTES + 1))
    assert refused["error"]["code"] == -32600
    assert target.ask("tools/call", echo_of(target, MOST_BYTES))["result"]["isError"] is False


def nested(depth: int) -> Any:
    """Arguments of so many levels, the object of the arguments included."""
    value: Any = []
    for _ in range(depth - 2):
        value = {"a": value}
    return {"data": value}


@pytest.mark.requirement("PRD-LIMIT-03")
def test_arguments_of_exactly_the_deepest_level_are_taken_and_one_level_more_is_refused(target: Target) -> None:
    def call(depth: int) -> dict[str, Any]:
        members = b'"name":"take","arguments":%b' % msgspec.json.encode(nested(depth))
        result: dict[str, Any] = target.ask("tools/call", members)["result"]
        return result

    assert call(DEEPEST)["isError"] is False
    (violation,) = error_in(call(DEEPEST + 1))["details"]["errors"]
    assert (violation["code"], violation["limit"], violation["actual"]) == ("TOO_DEEP", DEEPEST, DEEPEST + 1)

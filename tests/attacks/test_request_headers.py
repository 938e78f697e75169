"""`ctx.headers`, on real servers: the same in both eras and through every door, and never a credential."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.support.answers import text_in
from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, INITIALIZED, message, modern, modern_call, request
from tests.support.processes import ServerProcess

pytestmark = pytest.mark.slow

TOOLS = """
from dragoman import ToolContext, prompt, resource, tool

@tool
async def headers(ctx: ToolContext) -> dict:
    "Gives the request's headers."
    return dict(ctx.headers)

@tool
def headers_on_a_thread(ctx: ToolContext) -> dict:
    "Gives the request's headers."
    try:
        ctx.headers["x-mine"] = "changed"
    except TypeError:
        return dict(ctx.headers)

@resource("headers://all")
async def read(ctx: ToolContext) -> dict:
    return dict(ctx.headers)
"""
SENT = {
    "X-Mine": "caf\xe9",
    "Authorization": "Bearer a-secret-token",
    "Proxy-Authorization": "Basic a-secret",
    "Cookie": "session=a-secret",
    "X-Api-Key": "a-secret",
    "X-Explorer-Token": "a-secret",
    "X-Dragoman-Worker": "a-secret",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("headers") / "header_tools.py"
    path.write_text(TOOLS)
    return str(path)


@pytest.fixture(scope="module")
def server(target: str) -> Iterator[HttpProcess]:
    with HttpProcess(target, "--explorer", "--allow-execute") as server:
        yield server


def check(found: dict[str, str]) -> None:
    assert found["x-mine"] == "caf\xe9"
    assert "host" in found
    assert "secret" not in json.dumps(found)
    assert not {"authorization", "proxy-authorization", "cookie", "mcp-session-id"} & found.keys()


@pytest.mark.parametrize("name", ["headers", "headers_on_a_thread"])
def test_in_the_modern_era_a_tool_reads_the_headers_through_both_doors(server: HttpProcess, name: str) -> None:
    check(text_in(server.ask(modern_call(name, SENT))))
    whole = modern_call(name, SENT)
    head, _, body = whole.partition(b"\r\n\r\n")
    in_parts = re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", head)
    check(text_in(server.ask(in_parts + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))))


def test_a_header_that_is_there_twice_has_both_values(server: HttpProcess) -> None:
    twice = modern_call("headers", SENT).replace(b"\r\n\r\n", b"\r\nX-Mine: more\r\n\r\n", 1)
    assert text_in(server.ask(twice))["x-mine"] == "caf\xe9, more"


def test_in_a_session_a_tool_reads_the_headers_of_its_own_request(server: HttpProcess) -> None:
    session = server.open()
    call = message("tools/call", {"name": "headers", "arguments": {}}, 1)
    check(text_in(session.post(call, SENT)))
    assert "x-mine" not in text_in(session.call("headers", 2))


def test_resources_read_the_headers_too(server: HttpProcess) -> None:
    asked = {"uri": "headers://all"}
    for response in (
        server.ask(modern("resources/read", asked, {**SENT, "mcp-name": "headers://all"})),
        server.open().post(message("resources/read", asked, 1), SENT),
    ):
        check(msgspec.json.decode(response.message["result"]["contents"][0]["text"]))


def test_a_call_of_the_explorer_has_the_headers_of_the_page(server: HttpProcess) -> None:
    (address,) = server.output.wait_until(lambda lines: [each for each in lines if b"#token=" in each] or None)
    token = address.decode().rpartition("#token=")[2].strip()
    sent = {**SENT, "X-Explorer-Token": token}
    answered = server.ask(request({}, sent, path="/explorer/tools/headers/call"))
    assert token not in answered.body.decode()
    check(answered.json["result"])


def test_over_sse_a_tool_reads_the_headers_of_the_post(target: str) -> None:
    with HttpProcess(target, transport="sse") as server, server.wire() as stream:
        stream.send(request(None, method="GET", path="/sse"))
        assert stream.head()[0] == 200
        (endpoint,) = re.findall(r"data: (\S+)", stream.chunk().decode())

        def post(body: dict[str, Any]) -> None:
            assert server.ask(request(body, SENT, path=endpoint)).status == 202

        post(INITIALIZE)
        stream.chunk()
        post(INITIALIZED)
        post(message("tools/call", {"name": "headers", "arguments": {}}, 7))
        (data,) = re.findall(r"data: (.+)", stream.chunk().decode())
        check(msgspec.json.decode(msgspec.json.decode(data)["result"]["content"][0]["text"]))


def test_with_workers_a_request_that_is_handed_on_keeps_its_headers(target: str) -> None:
    with HttpProcess(target, "--workers", "2") as server:
        session = server.open()
        for number in range(12):  # Each is a connection of its own: some meet the other worker.
            call = message("tools/call", {"name": "headers", "arguments": {}}, number)
            check(text_in(session.post(call, SENT)))


@pytest.mark.parametrize("is_modern", [False, True], ids=["handshake", "modern"])
def test_on_stdio_there_are_no_headers(target: str, is_modern: bool) -> None:
    with ServerProcess(target, is_modern=is_modern) as server:
        if not is_modern:
            server.handshake()
        assert msgspec.json.decode(server.call("headers")["content"][0]["text"]) == {}

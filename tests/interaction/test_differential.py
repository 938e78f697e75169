"""The lane against the SDK: the same requests, and the same answers but for the differences that are listed here.

Two comparisons. Requests go through the lane and through the SDK's kernel of one runtime, which share tools and
pipeline. Conversations go to a runtime and to a plain SDK server, which share nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any, NamedTuple, TypeAlias

import mcp_types as types
import msgspec
import pytest
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from dragoman.errors import ProtocolError
from dragoman.protocol.session import Request
from dragoman.protocol.versions import HANDSHAKE_VERSIONS
from dragoman.testing import ManualClock, MemoryClient, TestServer, open_server
from dragoman.testing.connection import CLIENT_INFO, ENVELOPE
from tests.support.served import tools_under_test
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

Message: TypeAlias = dict[str, Any]
TOOLS = [vars(tools_under_test)[name] for name in ("add", "echo", "fail", "picture", "refuse")]


class SameIds:
    """Ids that say what they are for and nothing else, so that answers can be compared whole."""

    def run_id(self) -> str:
        return "run"

    def correlation_id(self) -> str:
        return "correlation"

    def connection_correlation_id(self) -> str:
        return "connection"


@asynccontextmanager
async def serving() -> AsyncIterator[TestServer]:
    async with asyncio.timeout(PATIENCE), open_server(TOOLS, ids=SameIds(), clock=ManualClock()) as server:
        yield server


class Difference(NamedTuple):
    """Answers that are meant to differ, and why; each is the code of an error, or `result`."""

    reason: str
    ours: str
    sdk: str


def drop_words(answer: Message) -> None:
    answer.get("error", {}).pop("message", None)


def drop_correlation_id(answer: Message) -> None:
    data = answer.get("error", {}).get("data")
    if isinstance(data, dict):
        data.pop("correlationId", None)


def drop_data_without_facts(answer: Message) -> None:
    if not isinstance(answer.get("error", {}).get("data"), dict) or not answer["error"]["data"]:
        answer.get("error", {}).pop("data", None)


def drop_tool_versions(answer: Message) -> None:
    for tool in answer.get("result", {}).get("tools", ()):
        tool.pop("version", None)


def drop_logging_from_discovery(answer: Message) -> None:
    if "supportedVersions" in answer.get("result", {}):
        answer["result"]["capabilities"].pop("logging", None)


ALWAYS = {
    drop_words: "The SDK says `Invalid request parameters` to everything; the lane says which, and what about it.",
    drop_correlation_id: "Every error of ours says under which id it was logged.",
    drop_data_without_facts: "The SDK repeats the method's name as data; ours is in the message.",
    drop_tool_versions: "The Foundation lists tools with their version. MCP has no such field, and the SDK drops it.",
    drop_logging_from_discovery: "The modern era has no `logging/setLevel`; the SDK advertises it in both.",
}


def normal(answer: Message) -> Message:
    """An answer without what may differ in any."""
    copy: Message = deepcopy({key: answer[key] for key in ("result", "error") if key in answer})
    for drop in ALWAYS:
        drop(copy)
    return copy


def verdict(answer: Message) -> str:
    return str(answer["error"]["code"]) if "error" in answer else "result"


def check(ours: Message, sdk: Message, intended: Difference | None) -> None:
    if intended is None:
        assert normal(ours) == normal(sdk)
    else:
        assert (verdict(ours), verdict(sdk)) == (intended.ours, intended.sdk), intended.reason


FND_CALL_03 = "`arguments`, if present, must be an object (FND-CALL-03). The SDK takes null for none."
GATE = "Before RUNNING every method but `initialize` and `initialized`, `ping` too, is answered -32002 (K1)."
SECOND = "A second `initialize` is answered -32600 (K1). The SDK negotiates again."
UNREAD = "The lane reads what it acts upon. The SDK reads everything, and minds a mistake where nobody would look."


# Requests: through the lane, and through the kernel.


def call(name: Any, arguments: Any = None, **rest: Any) -> tuple[str, Message]:
    return "tools/call", {"name": name, **({} if arguments is None else {"arguments": arguments}), **rest}


REQUESTS: dict[str, tuple[str, Message | None]] = {
    "list": ("tools/list", None),
    "list-empty-params": ("tools/list", {}),
    "list-null-cursor": ("tools/list", {"cursor": None}),
    "list-foreign-cursor": ("tools/list", {"cursor": "page 2"}),
    "list-bad-cursor": ("tools/list", {"cursor": 5}),
    "call": call("echo", {"message": "hi"}),
    "call-structured": call("add", {"a": 1, "b": 2}),
    "call-content": call("picture"),
    "call-tool-error": call("refuse"),
    "call-exception": call("fail"),
    "call-bad-arguments": call("add", {"a": "one"}),
    "call-unknown-tool": call("nothing"),
    "call-null-arguments": ("tools/call", {"name": "echo", "arguments": None}),
    "call-list-of-arguments": call("echo", ["hi"]),
    "call-name-not-a-string": call(5),
    "call-no-name": ("tools/call", {"arguments": {}}),
    "call-no-params": ("tools/call", None),
    "call-bad-progress-token": call("echo", {"message": "hi"}, _meta={"progressToken": 1.5}),
    "call-null-progress-token": call("echo", {"message": "hi"}, _meta={"progressToken": None}),
    "call-own-correlation-id": call("echo", {"message": "hi"}, _meta={"correlationId": "mine"}),
    "ping": ("ping", None),
    "ping-with-meta": ("ping", {"_meta": {}}),
    "discover": ("server/discover", None),
    "listen-bad-params": ("subscriptions/listen", {}),
    "prompts": ("prompts/list", None),
    "set-level": ("logging/setLevel", {"level": "info"}),
    "set-bad-level": ("logging/setLevel", {"level": "loud"}),
    "read-no-uri": ("resources/read", {}),
    "unknown-method": ("no/such", {}),
}

LANE_AND_KERNEL = {
    "call-null-arguments": Difference(FND_CALL_03, ours="-32602", sdk="result"),
    "call-null-progress-token": Difference(UNREAD, ours="result", sdk="-32602"),
}


async def through_kernel(server: TestServer, client: MemoryClient, request: Request) -> Message:
    kernel = await server.runtime.kernel.load()
    try:
        result = await kernel.serve(client.connection, request)
    except ProtocolError as error:
        return {"error": {"code": error.code, "data": error.data}}
    return {"result": msgspec.json.decode(msgspec.json.encode(result))}


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_lane_and_kernel_give_the_same_answer(name: str, modern: bool) -> None:
    method, params = REQUESTS[name]
    async with serving() as server:
        client = server.connect(modern=True) if modern else await server.client()
        lane = await client.request(method, params)
        enveloped = {**(params or {}), "_meta": {**ENVELOPE, **(params or {}).get("_meta", {})}} if modern else params
        kernel = await through_kernel(server, client, Request(99, method, enveloped, modern))
    check(lane, kernel, LANE_AND_KERNEL.get(name))


async def test_a_client_that_the_lane_let_in_is_served_by_the_kernel_too() -> None:
    async with serving() as server:
        client = server.connect()
        odd = {"protocolVersion": "2025-11-25", "capabilities": {"roots": 5}, "clientInfo": CLIENT_INFO}
        assert "result" in await client.request("initialize", odd)
        client.initialized()
        assert verdict(await client.request("prompts/list")) == "-32601"


# Conversations: messages in order, of which the last one's answers are compared.


def request(method: str, params: Message | None = None, **meta: Any) -> Message:
    message: Message = {"jsonrpc": "2.0", "id": 1, "method": method}
    if meta:
        params = {**(params or {}), "_meta": meta}
    return message if params is None else {**message, "params": params}


def initialize(version: str = "2025-11-25", **changes: Any) -> Message:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT_INFO, **changes}
    return request("initialize", {key: value for key, value in params.items() if value is not None})


def modern_list(**changes: Any) -> Message:
    """`tools/list` with another envelope: keys are the ends of the reserved names, and `...` leaves one out."""
    meta = {**ENVELOPE, **{f"io.modelcontextprotocol/{key}": value for key, value in changes.items()}}
    return request("tools/list", **{key: value for key, value in meta.items() if value is not ...})


INITIALIZED: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
OPEN = [initialize(), INITIALIZED]
LIST, PING = request("tools/list"), request("ping")
ODD_CLIENT = {**CLIENT_INFO, "title": 5}

CONVERSATIONS: dict[str, list[Message]] = {
    **{f"initialize-{version}": [initialize(version)] for version in HANDSHAKE_VERSIONS},
    "initialize-unknown-version": [initialize("1999-01-01")],
    "initialize-modern-version": [initialize("2026-07-28")],
    "initialize-no-client": [initialize(clientInfo=None)],
    "initialize-bad-client": [initialize(clientInfo={"name": "nameless"})],
    "initialize-odd-client": [initialize(clientInfo=ODD_CLIENT)],
    "initialize-no-capabilities": [initialize(capabilities=None)],
    "initialize-bad-capabilities": [initialize(capabilities=[])],
    "initialize-odd-capabilities": [initialize(capabilities={"roots": 5})],
    "initialize-bad-meta": [initialize(_meta=5)],
    "initialize-with-envelope": [initialize(_meta=ENVELOPE)],
    "list-first": [LIST],
    "ping-first": [PING],
    "unknown-first": [request("no/such")],
    "list-before-initialized": [initialize(), LIST],
    "ping-before-initialized": [initialize(), PING],
    "list": [*OPEN, LIST],
    "list-bad-token": [*OPEN, request("tools/list", progressToken=[])],
    "ping": [*OPEN, PING],
    "ping-bad-meta": [*OPEN, request("ping", {"_meta": 5})],
    "unknown": [*OPEN, request("no/such")],
    "discover-after-handshake": [*OPEN, request("server/discover")],
    "envelope-after-handshake": [*OPEN, modern_list()],
    "initialize-twice": [*OPEN, initialize()],
    "modern-discover": [request("server/discover", **ENVELOPE)],
    "modern-list": [modern_list()],
    "modern-ping": [request("ping", **ENVELOPE)],
    "modern-unknown": [request("no/such", **ENVELOPE)],
    "modern-subscribe": [request("resources/subscribe", {"uri": "a:b"}, **ENVELOPE)],
    "modern-no-client": [modern_list(clientInfo=...)],
    "modern-null-client": [modern_list(clientInfo=None)],
    "modern-bad-client": [modern_list(clientInfo={"name": 5})],
    "modern-odd-client": [modern_list(clientInfo=ODD_CLIENT)],
    "modern-no-capabilities": [modern_list(clientCapabilities=...)],
    "modern-null-capabilities": [modern_list(clientCapabilities=None)],
    "modern-bad-capabilities": [modern_list(clientCapabilities=[])],
    "modern-odd-capabilities": [modern_list(clientCapabilities={"roots": 5})],
    "modern-bad-log-level": [modern_list(logLevel="loud")],
    "modern-null-version": [modern_list(protocolVersion=None)],
    "modern-bad-version": [modern_list(protocolVersion=2026)],
    "modern-unknown-version": [modern_list(protocolVersion="2099-01-01")],
    "modern-handshake-version": [modern_list(protocolVersion="2025-11-25")],
    "modern-then-no-envelope": [modern_list(), LIST],
    "modern-then-bad-meta": [modern_list(), request("tools/list", {"_meta": 5})],
    "modern-then-initialize": [modern_list(), initialize()],
    "modern-then-bad-initialize": [modern_list(), request("initialize", {})],
}

US_AND_THE_SDK = {
    "list-first": Difference(GATE, ours="-32002", sdk="-32602"),
    "ping-first": Difference(GATE, ours="-32002", sdk="result"),
    "unknown-first": Difference(GATE, ours="-32002", sdk="-32601"),
    "list-before-initialized": Difference(GATE, ours="-32002", sdk="result"),
    "ping-before-initialized": Difference(GATE, ours="-32002", sdk="result"),
    "initialize-twice": Difference(SECOND, ours="-32600", sdk="result"),
    "initialize-odd-client": Difference(UNREAD, ours="result", sdk="-32602"),
    "initialize-odd-capabilities": Difference(UNREAD, ours="result", sdk="-32602"),
    "modern-odd-client": Difference(UNREAD, ours="result", sdk="-32602"),
    "modern-odd-capabilities": Difference(UNREAD, ours="result", sdk="-32602"),
    "modern-bad-log-level": Difference(UNREAD, ours="result", sdk="-32602"),
}


@asynccontextmanager
async def plain_sdk(tools: list[types.Tool]) -> AsyncIterator[Callable[[Message], Awaitable[Message | None]]]:
    """How to send a message to a plain SDK server and get its answer."""

    async def on_list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def on_set_level(context: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    server: Server[Any] = Server(
        "dragoman",
        version="0.1.0",
        on_list_tools=on_list_tools,
        on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus()),
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, on_set_level)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with asyncio.timeout(PATIENCE), create_client_server_memory_streams() as ((receive, send), streams):
        running = asyncio.create_task(server.run(*streams, options))

        async def ask(message: Message) -> Message | None:
            await send.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(message)))
            if "id" not in message:
                return None
            answer = await receive.receive()
            assert isinstance(answer, SessionMessage)
            return answer.message.model_dump(by_alias=True, mode="json", exclude_none=True)

        yield ask
        await send.aclose()
        await running


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_goes_as_it_would_with_a_plain_sdk_server(name: str) -> None:
    ours: Message | None = None
    theirs: Message | None = None
    async with serving() as server:
        tools = [types.Tool.model_validate(tool.listing()) for tool in server.runtime.catalogue.list()]
        client = server.connect()
        async with plain_sdk(tools) as ask:
            for message in CONVERSATIONS[name]:
                theirs = await ask(message)
                client.send(msgspec.json.encode(message) + b"\n")
                ours = client.received()[-1]
    assert ours is not None
    assert theirs is not None
    check(ours, theirs, US_AND_THE_SDK.get(name))

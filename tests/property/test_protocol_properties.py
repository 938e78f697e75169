"""What holds for every input of the protocol: the numbered properties are those of the Foundation document.

Circular values cannot arrive as bytes; the properties of results and of the log meet them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.protocol.framing import Line, LineBuffer, Oversized
from dragoman.protocol.session import (
    Era,
    Event,
    Identity,
    Initialized,
    Refusal,
    Reply,
    Request,
    Session,
    State,
    ToolCall,
)
from dragoman.protocol.versions import (
    CAPABILITIES_KEY,
    HANDSHAKE_METHODS,
    HANDSHAKE_VERSIONS,
    MODERN_METHODS,
    VERSION_KEY,
)
from dragoman.testing import is_json_rpc, open_server
from tests.support.json_values import json_values

LIMIT = 50_000
IDENTITY = Identity({"name": "s", "version": "1"}, {"tools": {}})
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
ENVELOPE = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}
METHODS = sorted(HANDSHAKE_METHODS | MODERN_METHODS | {"initialized", "notifications/cancelled", "no/such"})


def encoded(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=True).encode() + b"\n"


def request(method: Any, params: Any, id: Any = 1) -> bytes:
    return encoded({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def starting() -> Session:
    return Session(IDENTITY, "conn", LIMIT)


def initializing() -> Session:
    session = starting()
    session.receive(request("initialize", CLIENT))
    return session


def running() -> Session:
    session = initializing()
    session.receive(b'{"jsonrpc":"2.0","method":"initialized"}\n')
    return session


def modern() -> Session:
    session = starting()
    session.receive(request("server/discover", {"_meta": ENVELOPE}))
    return session


sessions = st.sampled_from([starting, initializing, running, modern])

# Generators that mean harm

text = st.text(max_size=20)  # All of Unicode, lone surrogates included: `encoded` escapes them.
INJECTIONS = [
    "'; DROP TABLE tools; --",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "%s%n",
    "\x1b[2J",
    'x"}\n{"jsonrpc":"2.0","id":9,"method":"initialized"}',
    "__proto__",
    "\u202e",
    "\x00",
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**60), 10**60),
    st.floats(allow_nan=False, allow_infinity=False),
    text,
    st.sampled_from(INJECTIONS),
)
values = json_values(scalars, text)
correlation_ids = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128)
metas = st.fixed_dictionaries({}, optional={"correlationId": values, "progressToken": values, VERSION_KEY: values})
params = st.one_of(
    values,
    st.fixed_dictionaries({}, optional={"name": values, "arguments": values, "_meta": values | metas}),
    st.just({"_meta": ENVELOPE}),
    st.just(CLIENT),
)
shapes = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]) | values,
        "id": st.integers() | text | values,
        "method": st.sampled_from(METHODS) | values,
        "params": params,
        "result": values,
        "error": values,
    },
).map(encoded)
damaged = st.tuples(shapes, st.integers(0, 200), st.binary(max_size=3)).map(
    lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
)
deep = st.sampled_from(
    [
        b"[" * 10_000,
        b"[" * 10_000 + b"]" * 10_000 + b"\n",
        b'{"a":' * 8_000 + b"1" + b"}" * 8_000 + b"\n",
        request("tools/list", 0).replace(b"0}", b"[" * 10_000 + b"]" * 10_000 + b"}"),
        request("tools/call", {"name": "a", "arguments": 0}).replace(b"0}", b'{"x":' * 5_000 + b"1" + b"}" * 5_001),
    ]
)
huge = st.sampled_from(
    [b"x" * (LIMIT + 1), request("ping", "x" * LIMIT), b"9" * 20_000 + b"\n", b'{"id":' + b"9" * 20_000 + b"}\n"]
)
confused = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"Content-Length: 2\r\n\r\n{}",
        b"data: {}\n\n",
        b"\x16\x03\x01\x02\x00",
        b"\xef\xbb\xbf{}\n",
        b"{}{}\n",
        b'{"jsonrpc":"2.0","id":1,"id":{},"method":"ping"}\n',
        b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}\n',
        encoded([{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}]),
        request("initialize", {**CLIENT, "_meta": ENVELOPE}),
        request("ping", {"_meta": {VERSION_KEY: "2099-01-01", CAPABILITIES_KEY: {}}}),
    ]
)
hostile = st.one_of(st.binary(max_size=60), shapes, damaged, deep, huge, confused)


def check_answer(event: Event) -> None:
    """What is to be sent is one line of JSON-RPC, and an error carries a correlation id."""
    if isinstance(event, Reply | Refusal):
        assert event.line.count(b"\n") == 1
        message = msgspec.json.decode(event.line)
        assert is_json_rpc(message)
        assert ("error" not in message) or message["error"]["data"]["correlationId"]


def works(session: Session) -> bool:
    """Whether the next valid message is answered as it should be."""
    if session.era is Era.MODERN:
        params = {"_meta": ENVELOPE}
        return session.receive(request("tools/list", params, "p")) == [Request("p", "tools/list", params, True)]
    if session.state is State.STARTING:
        (reply,) = session.receive(request("initialize", CLIENT, "p"))
        assert isinstance(reply, Reply)
    if session.state is State.INITIALIZING:
        assert session.receive(b'{"jsonrpc":"2.0","method":"initialized"}\n') == [Initialized()]
    return session.receive(request("ping", {}, "p")) == [Request("p", "ping", {}, False)]


@pytest.mark.slow
@pytest.mark.requirement("FND-LIFE-10", "FND-TEST-03")
@given(sessions, st.lists(hostile, max_size=6))
def test_no_bytes_make_a_session_raise_or_stop_answering(begin: Callable[[], Session], chunks: list[bytes]) -> None:
    session = begin()
    for chunk in (*chunks, b"\n"):
        for event in session.receive(chunk):
            check_answer(event)
    assert works(session)


@pytest.mark.slow
@pytest.mark.requirement("FND-LIFE-10", "FND-TEST-03")
@given(sessions, st.lists(hostile, max_size=4), st.lists(st.integers(0, 3_000), max_size=8))
@example(running, [b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'], list(range(41)))
@example(running, [b"x" * (LIMIT + 1), b"\n\n", request("ping", {})], [LIMIT, LIMIT + 1, LIMIT + 2])
def test_events_do_not_depend_on_where_the_chunks_end(
    begin: Callable[[], Session], pieces: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(pieces) + b"\n"
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    whole, chunked = begin(), begin()
    events = [event for start, end in pairwise(edges) for event in chunked.receive(data[start:end])]
    assert events == whole.receive(data)
    assert (chunked.state, chunked.era, chunked.version) == (whole.state, whole.era, whole.version)


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"\r")), max_size=6), st.integers(1, 8))
def test_lines_are_those_of_a_plain_split_except_that_long_ones_are_marked(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    buffer = LineBuffer(6)
    fed: list[Line] = [line for start in range(0, len(data), size) for line in buffer.feed(data[start : start + size])]
    assert fed == [line if len(line) <= 6 else Oversized.LINE for line in lines]


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-02", "FND-LIFE-04")
@given(
    name=st.text(st.characters(codec="utf-8"), min_size=1),
    version=st.text(st.characters(codec="utf-8")),
    asked=st.sampled_from(HANDSHAKE_VERSIONS) | st.text(st.characters(codec="utf-8"), max_size=20),
    request_id=st.integers() | st.text(st.characters(codec="utf-8")),
    capabilities=st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(), max_size=3),
)
def test_every_initialize_is_answered_with_a_complete_result(
    name: str, version: str, asked: str, request_id: int | str, capabilities: dict[str, int]
) -> None:
    """Property 1: the initialize result is complete, whatever the server is called and whoever asks."""
    server = create_server(ServerOptions(config=make_config({"server": {"name": name, "version": version}})))
    params = {"protocolVersion": asked, "capabilities": capabilities, "clientInfo": {"name": asked, "version": ""}}
    (reply,) = Session(server.identity, "conn", LIMIT).receive(request("initialize", params, request_id))
    assert isinstance(reply, Reply)
    assert msgspec.json.decode(reply.line) == {
        "jsonrpc": "2.0",
        "id": request_id,
        "result": {
            "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else "2025-11-25",
            "serverInfo": {"name": name, "version": version},
            "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        },
    }


utf8 = st.text(st.characters(codec="utf-8"), max_size=20)
gated = (st.sampled_from(METHODS) | st.sampled_from(INJECTIONS) | utf8).filter(lambda method: method != "initialize")
plain_values = json_values(st.none() | st.booleans() | st.integers() | utf8, utf8)


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03", "FND-LIFE-03", "FND-RPC-09", "FND-CORR-07")
@given(
    begin=st.sampled_from([starting, initializing]),
    method=gated,
    params=plain_values,
    correlation_id=correlation_ids,
    request_id=st.integers() | utf8,
)
def test_before_running_every_request_is_refused_under_the_connections_id(
    begin: Callable[[], Session], method: str, params: Any, correlation_id: str, request_id: int | str
) -> None:
    """Property 2: the strict gate. No request passes it, whatever its method and params, and the state stays."""
    if isinstance(params, dict):
        params = {**params, "_meta": {"correlationId": correlation_id}}
    session = begin()
    before = session.state
    (event,) = session.receive(request(method, params, request_id))
    assert isinstance(event, Refusal)
    message = msgspec.json.decode(event.line)
    data = message["error"].pop("data")
    assert message == {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32002, "message": "Not initialized"}}
    assert (data.keys(), data["code"]) == ({"code", "message", "correlationId"}, "NOT_INITIALIZED")
    assert (data["correlationId"], session.state) == ("conn", before)


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03", "FND-CORR-06")
@given(begin=st.sampled_from([running, modern]), line=hostile)
def test_every_protocol_error_carries_the_id_that_can_be_derived(begin: Callable[[], Session], line: bytes) -> None:
    """Property 3: protocol error correlation. The request's id where there is one, else the connection's."""
    line = line.replace(b"\n", b" ")
    for event in begin().receive(line + b"\n"):
        if isinstance(event, Refusal):
            data = msgspec.json.decode(event.line)["error"]["data"]
            assert data["correlationId"] == event.correlation_id == derived(line, event.code)
            assert "runId" not in data


def derived(line: bytes, code: int) -> str:
    """The correlation id that a refusal of `line` should carry."""
    if code in (-32700, -32002) or len(line) > LIMIT:
        return "conn"
    try:
        value = json.loads(line)
    except RecursionError:  # The session reads no more of it than it needs, and may get further.
        reject()
    for key in ("params", "_meta", "correlationId"):
        value = value.get(key) if isinstance(value, dict) else None
    is_id = isinstance(value, str) and 0 < len(value) <= 128 and value.isascii() and value.isprintable()
    return value if is_id else "conn"


@pytest.mark.requirement("FND-TEST-02", "FND-CORR-06")
@given(
    begin=st.sampled_from([running, modern]),
    correlation_id=correlation_ids,
    defect=st.sampled_from(
        [{"jsonrpc": "1.0"}, {"method": 5}, {"id": None}, {"id": 1.5}, {"method": "no/such"}, {"method": "initialize"}]
    ),
)
def test_whatever_is_wrong_with_a_request_its_own_correlation_id_is_used(
    begin: Callable[[], Session], correlation_id: str, defect: dict[str, Any]
) -> None:
    """Property 3, for requests that bring an id: protocol error correlation."""
    params = {"_meta": {**(ENVELOPE if begin is modern else {}), "correlationId": correlation_id}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params, **defect}
    (event,) = begin().receive(encoded(message))
    assert isinstance(event, Refusal)
    assert msgspec.json.decode(event.line)["error"]["data"]["correlationId"] == correlation_id


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03", "FND-RPC-07", "FND-CALL-03")
@given(
    begin=st.sampled_from([running, modern]),
    arguments=plain_values.filter(lambda value: not isinstance(value, dict)),
    name=utf8,
    request_id=st.integers() | utf8,
)
def test_arguments_that_are_no_object_are_invalid_params(
    begin: Callable[[], Session], arguments: Any, name: str, request_id: int | str
) -> None:
    """Property 6: arguments of any other shape are answered -32602, with the id, and never become a call."""
    params = {"name": name, "arguments": arguments, "_meta": ENVELOPE if begin is modern else {}}
    (event,) = begin().receive(request("tools/call", params, request_id))
    assert isinstance(event, Refusal)
    assert (event.code, msgspec.json.decode(event.line)["id"]) == (-32602, request_id)


@pytest.mark.requirement("FND-CALL-03")
@given(begin=st.sampled_from([running, modern]), arguments=st.dictionaries(utf8, plain_values, max_size=4), name=utf8)
def test_arguments_that_are_an_object_reach_the_call_as_they_are(
    begin: Callable[[], Session], arguments: dict[str, Any], name: str
) -> None:
    """Property 6, the other way round: an object is never refused for its shape."""
    meta = ENVELOPE if begin is modern else {}
    (event,) = begin().receive(request("tools/call", {"name": name, "arguments": arguments, "_meta": meta}))
    assert event == ToolCall(1, name, arguments, meta, begin is modern)


@pytest.mark.slow
@pytest.mark.requirement("FND-TEST-03")
@given(st.lists(hostile, max_size=5))
def test_the_modern_era_never_sees_the_state_error(chunks: list[bytes]) -> None:
    events = modern().receive(b"".join(chunks) + b"\n")
    assert -32002 not in [event.code for event in events if isinstance(event, Refusal)]


@pytest.mark.slow
@pytest.mark.requirement("FND-LIFE-10", "FND-TEST-03")
@given(st.lists(hostile, min_size=1, max_size=6))
def test_a_server_answers_the_next_request_after_any_bytes(chunks: list[bytes]) -> None:
    async def converse() -> None:
        async with open_server(config={"limits": {"max_request_bytes": LIMIT}}) as server:
            client = await server.client()
            for chunk in chunks:
                client.send(chunk)
            client.send(b"\n")
            assert (await client.answer(client.begin("ping", id="after-all")))["result"] == {}
            # With ids that no such bytes have: an answer to one of theirs is no answer to ours.
            called = client.begin("tools/call", {"name": "health"}, id="the call after all")
            assert (await client.answer(called))["result"]["isError"] is False

    asyncio.run(converse())

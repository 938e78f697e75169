"""Bytes in, events out: the state gate, both eras, and the answer to everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import mcp_types
import msgspec
import pytest
from mcp_types import jsonrpc as sdk_jsonrpc
from mcp_types import methods as sdk_methods
from mcp_types import version as sdk_version

from dragoman.errors import MissingCapability, UnsupportedVersion
from dragoman.protocol import versions
from dragoman.protocol.jsonrpc import Answer
from dragoman.protocol.results import InputRequest, InputRequired, ResultMeta
from dragoman.protocol.session import (
    TRANSITIONS,
    Cancel,
    Era,
    Event,
    Identity,
    Initialized,
    Move,
    Refusal,
    Reply,
    Request,
    Session,
    State,
    ToolCall,
    complete,
)
from dragoman.protocol.shape import Shape
from dragoman.protocol.versions import CAPABILITIES_KEY, CLIENT_INFO_KEY, SERVER_INFO_KEY, VERSION_KEY
from dragoman.tools import context

IDENTITY = Identity({"name": "test-server", "version": "9.9"}, {"tools": {"listChanged": True}})
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
ENVELOPE = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}
DEEP = b"[" * 10_000 + b"]" * 10_000


def request(method: str, params: Any = None, id: Any = 1) -> bytes:
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return msgspec.json.encode(message if params is None else {**message, "params": params}) + b"\n"


def notification(method: str, params: Any = None) -> bytes:
    message = {"jsonrpc": "2.0", "method": method}
    return msgspec.json.encode(message if params is None else {**message, "params": params}) + b"\n"


INITIALIZE = request("initialize", CLIENT)
INITIALIZED = notification("notifications/initialized")


def starting(limit: int = 1_000_000) -> Session:
    return Session(IDENTITY, "conn-1", limit)


def initializing() -> Session:
    session = starting()
    session.receive(INITIALIZE)
    return session


def running(limit: int = 1_000_000) -> Session:
    session = starting(limit)
    session.receive(INITIALIZE + INITIALIZED)
    return session


def modern(limit: int = 1_000_000) -> Session:
    session = starting(limit)
    session.receive(request("server/discover", {"_meta": ENVELOPE}))
    return session


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


def refusal(events: list[Event]) -> dict[str, Any]:
    """The one message that refuses, checked to say on the wire what it says to the log."""
    event = only(events)
    assert isinstance(event, Refusal)
    message: dict[str, Any] = msgspec.json.decode(event.line)
    error = message["error"]
    assert message.keys() == {"jsonrpc", "id", "error"}
    assert (message["jsonrpc"], error["code"], error["message"]) == ("2.0", event.code, event.message)
    assert error["data"]["correlationId"] == event.correlation_id
    return message


def code_and_id(events: list[Event]) -> tuple[int, Any]:
    message = refusal(events)
    return message["error"]["code"], message["id"]


# The state machine


@pytest.mark.requirement("FND-LIFE-01", "FND-LIFE-02", "FND-LIFE-06")
@pytest.mark.parametrize(("state", "move"), list(product(State, Move)))
def test_only_the_moves_of_the_table_change_the_state(state: State, move: Move) -> None:
    session = {State.STARTING: starting, State.INITIALIZING: initializing}.get(state, running)()
    if state is State.CLOSED:
        session.close()
    assert session.state is state
    if move is Move.CLOSE:
        session.close()
    else:
        session.receive(INITIALIZE if move is Move.INITIALIZE else INITIALIZED)
    assert session.state is TRANSITIONS.get((state, move), state)


@pytest.mark.requirement("FND-LIFE-02", "FND-LIFE-06")
def test_the_table_leads_to_running_in_two_moves_and_nowhere_from_closed() -> None:
    assert dict(TRANSITIONS) == {
        (State.STARTING, Move.INITIALIZE): State.INITIALIZING,
        (State.INITIALIZING, Move.INITIALIZED): State.RUNNING,
        (State.STARTING, Move.CLOSE): State.CLOSED,
        (State.INITIALIZING, Move.CLOSE): State.CLOSED,
        (State.RUNNING, Move.CLOSE): State.CLOSED,
    }


@pytest.mark.requirement("FND-LIFE-02")
@pytest.mark.parametrize("method", ["initialized", "notifications/initialized"])
def test_both_spellings_of_initialized_open_the_gate_and_get_no_answer(method: str) -> None:
    session = initializing()
    assert session.receive(notification(method)) == [Initialized()]
    assert (session.state, session.receive(notification(method))) == (State.RUNNING, [])


@pytest.mark.requirement("FND-LIFE-02")
@pytest.mark.parametrize(
    "line",
    [
        request("initialized"),
        request("notifications/initialized"),
        request("ping"),
        notification("initialize", CLIENT),
        notification("notifications/cancelled", {"requestId": 1}),
        notification("notifications/running"),
        b'{"jsonrpc":"2.0","id":1,"result":{}}\n',
        b"RUNNING\n",
    ],
)
@pytest.mark.parametrize("begin", [starting, initializing])
def test_nothing_else_moves_the_state_towards_running(begin: Any, line: bytes) -> None:
    session = begin()
    before = session.state
    session.receive(line)
    assert session.state is before


@pytest.mark.requirement("FND-LIFE-02")
def test_initialized_before_initialize_counts_for_nothing() -> None:
    session = starting()
    assert session.receive(INITIALIZED) == []
    session.receive(INITIALIZE)
    assert session.state is State.INITIALIZING


@pytest.mark.requirement("FND-LIFE-04")
def test_initialize_is_answered_with_who_the_server_is() -> None:
    event = only(starting().receive(INITIALIZE))
    assert isinstance(event, Reply)
    assert msgspec.json.decode(event.line) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "test-server", "version": "9.9"},
        },
    }


def test_instructions_are_part_of_the_answer_when_there_are_any() -> None:
    identity = Identity(IDENTITY.server_info, IDENTITY.capabilities, "Be kind.")
    event = only(Session(identity, "conn-1", 1000).receive(INITIALIZE))
    assert isinstance(event, Reply)
    assert msgspec.json.decode(event.line)["result"]["instructions"] == "Be kind."


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        *((version, version) for version in versions.HANDSHAKE_VERSIONS),
        ("2026-07-28", "2025-11-25"),
        ("x", "2025-11-25"),
    ],
)
def test_a_known_revision_is_spoken_and_an_unknown_one_is_countered_with_the_latest(asked: str, spoken: str) -> None:
    session = starting()
    session.receive(request("initialize", {**CLIENT, "protocolVersion": asked}))
    assert (session.version, session.era, session.state) == (spoken, Era.HANDSHAKE, State.INITIALIZING)


@pytest.mark.requirement("FND-RPC-07", "FND-LIFE-02")
@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {**CLIENT, "protocolVersion": 1},
        {**CLIENT, "capabilities": []},
        {**CLIENT, "clientInfo": {"name": "c"}},
        {**CLIENT, "_meta": 5},
    ],
)
def test_initialize_with_wrong_params_leaves_the_connection_as_it_was(params: Any) -> None:
    session = starting()
    assert code_and_id(session.receive(request("initialize", params))) == (-32602, 1)
    assert (session.state, session.era, session.version, session.client) == (State.STARTING, Era.UNDECIDED, None, None)
    assert isinstance(only(session.receive(INITIALIZE)), Reply)


@pytest.mark.requirement("FND-RPC-04")
@pytest.mark.parametrize("begin", [initializing, running])
def test_a_second_initialize_is_an_invalid_request(begin: Any) -> None:
    session = begin()
    before = session.state
    assert code_and_id(session.receive(request("initialize", CLIENT, id="again"))) == (-32600, "again")
    assert session.state is before


@pytest.mark.requirement("FND-LIFE-06")
def test_a_closed_session_is_silent_whatever_arrives() -> None:
    session = running()
    session.close()
    assert session.receive(INITIALIZE + INITIALIZED + request("ping") + b"garbage\n") == []
    assert session.state is State.CLOSED


# The gate


@pytest.mark.requirement("FND-LIFE-03", "FND-RPC-09", "FND-CORR-07")
@pytest.mark.parametrize(
    "method", [*sorted(versions.HANDSHAKE_METHODS - {"initialize"}), "server/discover", "no/such", "", "Initialize"]
)
@pytest.mark.parametrize("begin", [starting, initializing])
def test_before_running_every_other_method_gets_the_canonical_state_error(begin: Any, method: str) -> None:
    params = {"name": "echo", "arguments": [], "_meta": {"correlationId": "mine"}}
    assert refusal(begin().receive(request(method, params, id="q"))) == {
        "jsonrpc": "2.0",
        "id": "q",
        "error": {
            "code": -32002,
            "message": "Not initialized",
            "data": {
                "code": "NOT_INITIALIZED",
                "message": "The connection is not initialized: send `initialize`, then the `initialized` notification, "
                "first.",
                "correlationId": "conn-1",
            },
        },
    }


@pytest.mark.requirement("FND-LIFE-03")
def test_an_enveloped_request_between_initialize_and_initialized_stays_behind_the_gate() -> None:
    session = initializing()
    assert code_and_id(session.receive(request("tools/list", {"_meta": ENVELOPE}))) == (-32002, 1)
    assert session.era is Era.HANDSHAKE


@pytest.mark.requirement("FND-LIFE-05")
def test_lists_and_calls_pass_right_after_initialized() -> None:
    session = initializing()
    lines = request("tools/list", id=2) + request("tools/call", {"name": "echo"}, id=3)
    assert [code_and_id([event]) for event in session.receive(lines)] == [(-32002, 2), (-32002, 3)]
    assert session.receive(INITIALIZED + lines) == [
        Initialized(),
        Request(2, "tools/list", None, False),
        ToolCall(3, "echo", {}, {}, False),
    ]


# Requests once RUNNING


@pytest.mark.requirement("FND-RPC-06", "FND-CORR-06")
def test_an_unknown_method_is_named_in_the_answer() -> None:
    params = {"_meta": {"correlationId": "mine"}}
    assert refusal(running().receive(request("tools/destroy", params, id="q"))) == {
        "jsonrpc": "2.0",
        "id": "q",
        "error": {"code": -32601, "message": "Method not found: tools/destroy", "data": {"correlationId": "mine"}},
    }


@pytest.mark.requirement("FND-RPC-06")
@pytest.mark.parametrize("method", sorted(versions.MODERN_METHODS - versions.HANDSHAKE_METHODS))
def test_what_only_the_modern_era_knows_is_not_found_after_a_handshake(method: str) -> None:
    assert code_and_id(running().receive(request(method))) == (-32601, 1)


def test_a_method_name_of_any_length_is_named_in_short() -> None:
    message = refusal(running().receive(request("x" * 100_000)))
    assert message["error"]["message"] == "Method not found: " + "x" * 200


@pytest.mark.parametrize("method", sorted(versions.HANDSHAKE_METHODS - {"initialize", "tools/call"}))
def test_every_method_of_the_handshake_era_passes(method: str) -> None:
    params = {"a": 1, "_meta": {"progressToken": 1}}
    assert running().receive(request(method, params)) == [Request(1, method, params, False)]


def test_a_call_arrives_with_its_arguments_and_its_meta_apart() -> None:
    params = {"name": "echo", "arguments": {"a": [1, "ü"]}, "_meta": {"correlationId": "mine"}}
    expected = [ToolCall("x", "echo", {"a": [1, "ü"]}, {"correlationId": "mine"}, False)]
    assert running().receive(request("tools/call", params, id="x")) == expected


@pytest.mark.requirement("FND-RPC-07", "FND-CORR-06")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": 5},
        {"name": None},
        {"name": "echo", "arguments": None},
        {"name": "echo", "arguments": []},
        {"name": "echo", "arguments": "{}"},
        {"name": "echo", "arguments": 0},
        {"name": "echo", "_meta": {"correlationId": "mine", "progressToken": 1.5}},
        {"name": "echo", "_meta": {"correlationId": "mine", "progressToken": True}},
    ],
)
def test_a_call_of_the_wrong_shape_is_invalid_params_under_its_own_correlation_id(params: dict[str, Any]) -> None:
    params = {"_meta": {"correlationId": "mine"}, **params}
    message = refusal(running().receive(request("tools/call", params, id="q")))
    assert (message["id"], message["error"]["code"]) == ("q", -32602)
    assert message["error"]["data"] == {"correlationId": "mine"}
    assert message["error"]["message"].startswith("Invalid params: ")


@pytest.mark.requirement("FND-RPC-07")
@pytest.mark.parametrize("params", [[], "x", 5, True, {"_meta": None}, {"_meta": []}, {"_meta": "x"}])
@pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call", "resources/read"])
def test_params_and_meta_must_be_objects(method: str, params: Any) -> None:
    if isinstance(params, dict):
        params = {"name": "echo", **params}
    assert code_and_id(running().receive(request(method, params))) == (-32602, 1)


@pytest.mark.requirement("FND-RPC-07")
@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
@pytest.mark.parametrize("number", [b"1e999", b"9" * 5_000], ids=["1e999", "5000 digits"])
def test_a_number_that_nothing_can_hold_is_refused_and_named_under_params(method: str, number: bytes) -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{"name":"a","arguments":{"x":%s}}}\n'
    message = refusal(running().receive(line % (method.encode(), number)))
    assert (message["id"], message["error"]["code"]) == (1, -32602)
    assert "`params" in message["error"]["message"]


def test_a_number_beyond_64_bits_keeps_every_digit() -> None:
    event = only(running().receive(request("tools/call", {"name": "a", "arguments": {"x": 10**40 + 1}}, id=10**30 + 1)))
    assert event == ToolCall(10**30 + 1, "a", {"x": 10**40 + 1}, {}, False)


def test_of_a_key_given_twice_the_last_one_counts() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"a","name":"b"}}\n'
    assert running().receive(line) == [ToolCall(2, "b", {}, {}, False)]


@pytest.mark.parametrize("token", ["t", 7])
def test_a_cancellation_is_passed_on_and_a_meaningless_one_is_not(token: str | int) -> None:
    session = running()
    assert session.receive(notification("notifications/cancelled", {"requestId": token, "reason": "r"})) == [
        Cancel(token, "r")
    ]
    for params in (None, [], {}, {"requestId": None}, {"requestId": 1.5}):
        assert session.receive(notification("notifications/cancelled", params)) == []


def test_the_peers_answer_is_an_event_and_no_request() -> None:
    assert running().receive(b'{"jsonrpc":"2.0","id":1,"result":{}}\n') == [Answer(1, {})]


def test_notifications_are_never_answered() -> None:
    lines = [notification(method) for method in ("no/such", "tools/list", "tools/call", "ping", "initialize")]
    for session in (starting(), initializing(), running(), modern()):
        assert session.receive(b"".join(lines)) == []


# What is not a request at all

GARBAGE = [
    (b"{", -32700, None),
    (b"\x00\xff\xfe", -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"\xc3\x28"}', -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"unread":"\xff"}', -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\\ud800"}}', -32700, None),
    (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":' + DEEP + b"}}}",
        -32700,
        None,
    ),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":' + DEEP + b"}", -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","unread":' + DEEP + b"}", -32700, None),
    (DEEP, -32700, None),
    (b"[]", -32600, None),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":[],"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":[],"method":"tools/call","params":{"name":"a"}}', -32600, None),
    (b'{"jsonrpc":"1.1","id":"q","method":"ping"}', -32600, "q"),
    (b'{"jsonrpc":"2.0","id":"q","method":null}', -32600, "q"),
    (b"GET / HTTP/1.1\r", -32700, None),
    (b"Content-Length: 46\r", -32700, None),
]


@pytest.mark.parametrize("begin", [running, modern])
@pytest.mark.parametrize("limit", [150, 1_000_000])
def test_lines_that_arrive_together_mean_what_they_mean_one_by_one(begin: Any, limit: int) -> None:
    params = {"name": "a", "arguments": {"k": 1}, "_meta": ENVELOPE} if begin is modern else {"name": "a"}
    call, cancel = request("tools/call", params), notification("notifications/cancelled", {"requestId": 1})
    halves = [call[:40] + b"\n", call[40:]]
    others = [cancel, b"\n", b" \n", call[:-1] + call, call[:-1] + b" \r\n", *halves, call.replace(b'"a"', b"7")]
    long = request("tools/call", {**params, "arguments": {"k": "x" * 200}})
    chunks = [b"".join(lines) for lines in product([call, long, b"".join(halves), *others], repeat=3)]
    for chunk in chunks:
        together, apart = begin(limit), begin(limit)
        events = [
            event
            for line in chunk.splitlines(keepends=True)
            for event in apart.receive(line[:-1]) + apart.receive(line[-1:])
        ]
        assert together.receive(chunk) == events
        together.close()
        assert together.receive(call) == []


@pytest.mark.parametrize("begin", [running, modern])
@pytest.mark.parametrize("wrong", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80"], ids=["no lead", "overlong", "half a pair"])
def test_bytes_that_are_no_utf_8_are_refused_wherever_they_are_in_a_call(begin: Any, wrong: bytes) -> None:
    params = {
        "name": "a",
        "arguments": {"k": ["text", {"ä": "€"}], "k" * 70: '\n"'},
        "unread": {"a": ["b"]},
        "_meta": {**ENVELOPE, "a": "b"} if begin is modern else {"a": "b"},
        "inputResponses": {"a": {"b": "c"}},
        "requestState": "s",
    }
    for known in (params, {name: value for name, value in params.items() if name != "unread"}):
        line = request("tools/call", known, "i")[:-1]
        assert isinstance(begin().receive(line + b"\n")[0], ToolCall)
        for place in range(len(line)):
            message = refusal(begin().receive(line[:place] + wrong + line[place:] + b"\n"))
            assert (message["error"]["code"], message["id"]) == (-32700, None)


@pytest.mark.requirement("FND-LIFE-10", "FND-RPC-01", "FND-RPC-03", "FND-RPC-04", "FND-RPC-05")
@pytest.mark.parametrize(("line", "code", "request_id"), GARBAGE, ids=[repr(line[:70]) for line, *_ in GARBAGE])
@pytest.mark.parametrize("begin", [starting, initializing, running, modern])
def test_garbage_is_answered_in_every_state_and_changes_nothing(
    begin: Any, line: bytes, code: int, request_id: str | None
) -> None:
    session = begin()
    before = (session.state, session.era)
    message = refusal(session.receive(line + b"\n"))
    assert (message["error"]["code"], message["id"]) == (code, request_id)
    assert message["error"]["data"] == {"correlationId": "conn-1"}
    assert (session.state, session.era) == before


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"   \n", b"\t\r\n"])
@pytest.mark.parametrize("begin", [starting, running, modern])
def test_blank_lines_mean_nothing(begin: Any, line: bytes) -> None:
    assert begin().receive(line) == []


def test_lines_may_end_as_on_windows() -> None:
    lines = INITIALIZE + INITIALIZED + request("tools/call", {"name": "a"}) + request("ping", id=2)
    events = starting().receive(lines.replace(b"\n", b"\r\n"))
    assert events[1:] == [Initialized(), ToolCall(1, "a", {}, {}, False), Request(2, "ping", None, False)]


@pytest.mark.requirement("FND-LIFE-10", "FND-RPC-04")
def test_a_message_at_the_limit_passes_one_byte_more_is_refused_and_the_connection_lives_on() -> None:
    limit = 400

    def padded(size: int) -> bytes:
        bare = len(request("tools/call", {"name": "a", "arguments": {"x": ""}})) - 1
        return request("tools/call", {"name": "a", "arguments": {"x": "y" * (size - bare)}})

    session = running(limit)
    assert len(padded(limit)) == limit + 1  # The line's end does not count.
    assert isinstance(only(session.receive(padded(limit))), ToolCall)
    assert refusal(session.receive(padded(limit + 1))) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {
            "code": -32600,
            "message": "Invalid request: the message is longer than 400 bytes",
            "data": {"correlationId": "conn-1"},
        },
    }
    assert session.receive(request("ping")) == [Request(1, "ping", None, False)]


# The modern era


@pytest.mark.parametrize("method", sorted(versions.MODERN_METHODS - {"tools/call"}))
def test_an_enveloped_request_opens_the_modern_era_without_a_handshake(method: str) -> None:
    session = starting()
    params = {"_meta": ENVELOPE}
    assert session.receive(request(method, params)) == [Request(1, method, params, True)]
    assert (session.era, session.state) == (Era.MODERN, State.STARTING)


def test_an_enveloped_call_is_a_modern_call() -> None:
    meta = {**ENVELOPE, CLIENT_INFO_KEY: {"name": "c", "version": "1"}, "correlationId": "mine"}
    line = request("tools/call", {"name": "a", "arguments": {"x": 1}, "_meta": meta})
    session = starting()
    assert session.receive(line + line) == [ToolCall(1, "a", {"x": 1}, meta, True)] * 2


def test_a_modern_call_brings_answers_and_the_state_that_goes_with_them() -> None:
    answers = {"sure": {"action": "accept", "content": {"sure": True}}}
    params = {"name": "a", "inputResponses": answers, "requestState": "sealed"}
    call = ToolCall(1, "a", {}, ENVELOPE, True, answers, "sealed")
    line = request("tools/call", {**params, "_meta": ENVELOPE})
    assert starting().receive(line + line) == [call, call]
    assert running().receive(request("tools/call", params)) == [ToolCall(1, "a", {}, {}, False)]


@pytest.mark.parametrize("bad", [{"inputResponses": bad} for bad in (None, 5, [], {"a": 1})] + [{"requestState": None}])
def test_answers_and_states_of_the_wrong_shape_are_the_modern_eras_to_mind(bad: dict[str, Any]) -> None:
    (refusal,) = modern().receive(request("tools/call", {"name": "a", **bad, "_meta": ENVELOPE}))
    assert isinstance(refusal, Refusal)
    assert refusal.code == -32602
    assert next(iter(bad)) in refusal.message
    assert running().receive(request("tools/call", {"name": "a", **bad})) == [ToolCall(1, "a", {}, {}, False)]


def test_a_question_goes_out_as_a_result_that_says_what_it_is() -> None:
    asked = InputRequired({"sure": InputRequest("elicitation/create", {"message": "Sure?"})}, "sealed")
    line = starting().interim(7, asked, ResultMeta("run", "corr", 1.5))
    message = msgspec.json.decode(line)
    assert message == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {
            "resultType": "input_required",
            "inputRequests": {"sure": {"method": "elicitation/create", "params": {"message": "Sure?"}}},
            "requestState": "sealed",
            "_meta": {
                "dragoman/runId": "run",
                "dragoman/correlationId": "corr",
                "dragoman/durationMs": 1.5,
                SERVER_INFO_KEY: IDENTITY.server_info,
            },
        },
    }


@pytest.mark.parametrize(
    ("meta", "lacking"),
    [
        ({}, f"{VERSION_KEY}, {CAPABILITIES_KEY}"),
        ({VERSION_KEY: "2026-07-28"}, CAPABILITIES_KEY),
        ({CAPABILITIES_KEY: {}}, VERSION_KEY),
    ],
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call", "no/such"])
def test_a_modern_request_that_lacks_part_of_its_envelope_is_told_which(
    method: str, meta: dict[str, Any], lacking: str
) -> None:
    params = {"name": "a", "arguments": {}, "_meta": {**meta, "correlationId": "mine"}}
    assert refusal(modern().receive(request(method, params))) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {
            "code": -32602,
            "message": f"Invalid params: params._meta lacks {lacking}",
            "data": {"correlationId": "mine"},
        },
    }


@pytest.mark.parametrize(
    "change",
    [
        {VERSION_KEY: 20260728},
        {VERSION_KEY: None},
        {CAPABILITIES_KEY: None},
        {CAPABILITIES_KEY: []},
        {CLIENT_INFO_KEY: "c"},
        {CLIENT_INFO_KEY: {"name": "c"}},
    ],
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
def test_an_envelope_of_the_wrong_shape_is_invalid_params(method: str, change: dict[str, Any]) -> None:
    params = {"name": "a", "_meta": {**ENVELOPE, **change}}
    assert code_and_id(modern().receive(request(method, params))) == (-32602, 1)


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "no/such"])
@pytest.mark.parametrize("begin", [starting, modern])
def test_a_version_that_is_not_served_is_answered_with_those_that_are(begin: Any, method: str) -> None:
    params = {"name": "a", "_meta": {**ENVELOPE, VERSION_KEY: "2099-01-01"}}
    assert refusal(begin().receive(request(method, params))) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {
            "code": -32022,
            "message": "Unsupported protocol version",
            "data": {"supported": ["2026-07-28"], "requested": "2099-01-01", "correlationId": "conn-1"},
        },
    }


@pytest.mark.parametrize("extra", [{}, {"_meta": ENVELOPE}])
def test_initialize_on_a_modern_connection_is_an_unsupported_version(extra: dict[str, Any]) -> None:
    session = modern()
    message = refusal(session.receive(request("initialize", {**CLIENT, **extra})))
    assert (message["id"], message["error"]["code"]) == (1, -32022)
    assert message["error"]["data"] == {
        "supported": ["2026-07-28"],
        "requested": "2025-11-25",
        "correlationId": "conn-1",
    }
    assert session.era is Era.MODERN


def test_initialize_opens_the_handshake_era_even_with_an_envelope() -> None:
    session = starting()
    assert isinstance(only(session.receive(request("initialize", {**CLIENT, "_meta": ENVELOPE}))), Reply)
    assert session.era is Era.HANDSHAKE


@pytest.mark.requirement("FND-RPC-04")
@pytest.mark.parametrize("method", ["tools/list", "tools/call", "ping"])
def test_an_enveloped_request_on_a_handshake_connection_is_an_invalid_request(method: str) -> None:
    session = running()
    meta = {**ENVELOPE, "correlationId": "mine"}
    message = refusal(session.receive(request(method, {"name": "a", "_meta": meta})))
    assert (message["error"]["code"], message["error"]["data"]) == (-32600, {"correlationId": "mine"})
    assert session.era is Era.HANDSHAKE


@pytest.mark.requirement("FND-RPC-06")
@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/subscribe", "no/such"])
def test_what_the_modern_era_does_not_know_is_not_found_in_it(method: str) -> None:
    message = refusal(modern().receive(request(method, {"_meta": ENVELOPE})))
    assert (message["error"]["code"], message["error"]["message"]) == (-32601, f"Method not found: {method}")


def test_the_state_error_is_never_sent_in_the_modern_era() -> None:
    methods = (*versions.HANDSHAKE_METHODS, *versions.MODERN_METHODS, "no/such")
    shapes = (None, {}, {"_meta": {}}, {"_meta": ENVELOPE}, [], {"name": "a"})
    session = modern()
    events = session.receive(b"".join(request(method, params) for method in methods for params in shapes))
    assert len(events) == len(methods) * len(shapes)
    assert -32002 not in {event.code for event in events if isinstance(event, Refusal)}


def test_initialized_does_nothing_in_the_modern_era() -> None:
    session = modern()
    assert session.receive(INITIALIZED) == []
    assert (session.era, session.state) == (Era.MODERN, State.STARTING)


def test_a_modern_connection_can_cancel() -> None:
    assert modern().receive(notification("notifications/cancelled", {"requestId": 5})) == [Cancel(5, None)]


def test_a_modern_result_says_that_it_is_complete_and_who_answers() -> None:
    whole = {"resultType": "complete", "a": 1, "_meta": {"k": 2, SERVER_INFO_KEY: IDENTITY.server_info}}
    assert complete(IDENTITY, {"a": 1, "_meta": {"k": 2}}) == whole
    line = starting().result(1, {"a": 1, "_meta": {"k": 2}}, modern=True)
    assert msgspec.json.decode(line) == {"jsonrpc": "2.0", "id": 1, "result": whole}


# The SDK is the authority


def test_protocol_revisions_are_the_sdks() -> None:
    assert versions.HANDSHAKE_VERSIONS == sdk_version.HANDSHAKE_PROTOCOL_VERSIONS
    assert versions.MODERN_VERSIONS == sdk_version.MODERN_PROTOCOL_VERSIONS
    assert versions.LATEST_HANDSHAKE == sdk_version.LATEST_HANDSHAKE_VERSION


def test_methods_are_the_sdks_in_each_era() -> None:
    asked = sdk_methods.CLIENT_REQUESTS
    handshake = {method for method, version in asked if version in sdk_version.HANDSHAKE_PROTOCOL_VERSIONS}
    modern_ones = {method for method, version in asked if version in sdk_version.MODERN_PROTOCOL_VERSIONS}
    assert (handshake, modern_ones) == (versions.HANDSHAKE_METHODS, versions.MODERN_METHODS)


def test_reserved_keys_and_codes_are_the_sdks() -> None:
    assert (VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, SERVER_INFO_KEY, versions.LOG_LEVEL_KEY) == (
        mcp_types.PROTOCOL_VERSION_META_KEY,
        mcp_types.CLIENT_CAPABILITIES_META_KEY,
        mcp_types.CLIENT_INFO_META_KEY,
        mcp_types.SERVER_INFO_META_KEY,
        mcp_types.LOG_LEVEL_META_KEY,
    )
    assert MissingCapability.code == sdk_jsonrpc.MISSING_REQUIRED_CLIENT_CAPABILITY
    assert get_args(mcp_types.LoggingLevel) == context.LOG_LEVELS
    assert UnsupportedVersion.code == sdk_jsonrpc.UNSUPPORTED_PROTOCOL_VERSION


# What a message may cost


def shaped() -> Session:
    session = Session(IDENTITY, "conn-1", 1_000_000, Shape(20, 50))
    session.receive(INITIALIZE + INITIALIZED)
    return session


@pytest.mark.parametrize(
    ("value", "excess"), [([[]] * 20, "20 arrays and objects"), ([0] * 60, "50 items and members")], ids=str
)
@pytest.mark.parametrize("piece", [1_000_000, 10])
def test_message_of_too_many_parts_is_refused_under_its_ids(value: Any, excess: str, piece: int) -> None:
    params = {"name": "x", "arguments": {"a": value}, "_meta": {"correlationId": "mine"}}
    line, session = request("tools/call", params, "seven"), shaped()
    events = [event for start in range(0, len(line), piece) for event in session.receive(line[start : start + piece])]
    message = refusal(events)
    assert (message["id"], message["error"]["code"]) == ("seven", -32600)
    assert message["error"]["message"] == f"Invalid request: the message has more than {excess}"
    assert message["error"]["data"]["correlationId"] == "mine"


def test_brackets_and_commas_within_strings_do_not_count() -> None:
    event = only(shaped().receive(request("tools/call", {"name": "x", "arguments": {"a": '[{,"\\' * 200}})))
    assert isinstance(event, ToolCall)


@pytest.mark.parametrize("where", ["id", "method", "meta", "correlation"])
def test_refusal_of_a_message_does_not_read_what_it_has_too_much_of(where: str) -> None:
    much = b"[%b]" % b",".join([b"[]"] * 100)
    parts = {"id": b"7", "method": b'"tools/call"', "correlation": b'"mine"', "meta": b"1", where: much}
    line = (
        b'{"jsonrpc":"2.0","id":%(id)b,"method":%(method)b,'
        b'"params":{"_meta":{"correlationId":%(correlation)b,"x":%(meta)b}}}\n'
    ) % {name.encode(): part for name, part in parts.items()}
    assert code_and_id(shaped().receive(line)) == (-32600, None if where in ("id", "method") else 7)


def test_notification_of_too_many_parts_is_not_answered() -> None:
    assert shaped().receive(notification("notifications/cancelled", {"requestId": 1, "reason": [[]] * 30})) == []


def test_request_of_too_many_parts_with_an_invalid_id_is_answered_without_it() -> None:
    line = msgspec.json.encode({"jsonrpc": "2.0", "id": 1.5, "method": "x", "params": {"a": [[]] * 30}}) + b"\n"
    assert code_and_id(shaped().receive(line)) == (-32600, None)


def test_answer_of_too_many_parts_is_refused_without_an_id() -> None:
    line = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "result": {"a": [[]] * 30}}) + b"\n"
    assert code_and_id(shaped().receive(line)) == (-32600, None)


@pytest.mark.parametrize("begin", [running, modern])
@pytest.mark.parametrize("method", ["tools/call", "tools/list", "resources/list"])
@pytest.mark.parametrize("token", ["t" * 257, 2**64, -(2**70), True, [], 1.5])
def test_progress_token_that_notifications_should_not_carry_is_refused(
    begin: Callable[[], Session], method: str, token: Any
) -> None:
    session = begin()
    meta = {**(ENVELOPE if session.era is Era.MODERN else {}), "progressToken": token}
    assert code_and_id(session.receive(request(method, {"name": "x", "_meta": meta}))) == (-32602, 1)


@pytest.mark.parametrize("token", ["t" * 256, 2**64 - 1, 0, ""])
def test_progress_token_of_the_longest_kind_is_taken(token: Any) -> None:
    event = only(running().receive(request("tools/call", {"name": "x", "_meta": {"progressToken": token}})))
    assert isinstance(event, ToolCall)


@pytest.mark.parametrize("method", ["tools/call", "ping", "initialize", "no/such"])
def test_id_that_is_too_long_is_not_repeated(method: str) -> None:
    assert code_and_id(running().receive(request(method, {"name": "x"}, "i" * 1025))) == (-32600, None)
    assert only(running().receive(request("tools/call", {"name": "x"}, "i" * 1024))).id == "i" * 1024  # type: ignore[union-attr]


@pytest.mark.parametrize("version", ["v" * 100_000])
def test_version_that_is_not_spoken_is_repeated_in_part(version: str) -> None:
    message = refusal(modern().receive(request("tools/list", {"_meta": {**ENVELOPE, VERSION_KEY: version}})))
    assert message["error"]["data"]["requested"] == "v" * 100


def test_initialize_that_says_too_much_leaves_the_connection_as_it_was() -> None:
    session = starting()
    much = {**CLIENT, "capabilities": {"experimental": {"x": "y" * 70_000}}}
    assert code_and_id(session.receive(request("initialize", much))) == (-32602, 1)
    assert (session.state, session.client) == (State.STARTING, None)
    session.receive(INITIALIZE + INITIALIZED)
    assert session.state is State.RUNNING


def test_stream_of_changes_keeps_only_what_is_to_be_told() -> None:
    params = {"notifications": {"toolsListChanged": True, "x": [[]] * 100}, "y": [[]] * 100, "_meta": ENVELOPE}
    event = only(modern().receive(request("subscriptions/listen", params)))
    assert isinstance(event, Request)
    assert event.params == {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}
    many = {**params, "notifications": {"resourceSubscriptions": ["x"] * 1025}}
    assert code_and_id(modern().receive(request("subscriptions/listen", many))) == (-32602, 1)


@pytest.mark.requirement("FND-RPC-06")
def test_params_of_an_unknown_method_are_not_read() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"no/such","params":{"a":1e999,"_meta":{"correlationId":"mine"}}}\n'
    message = refusal(running().receive(line))
    assert (message["error"]["code"], message["error"]["data"]["correlationId"]) == (-32601, "mine")

"""One line is one message, or there is a reason why not; and errors go out in one shape."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from dragoman import errors
from dragoman.errors import InvalidRequest, ParseError, ProtocolError
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, RpcMessage, decode, to_json_rpc_error


def refusal_of(line: bytes) -> tuple[int, Any]:
    """The code that a line is refused with, and the id that goes with it."""
    with pytest.raises(ProtocolError) as caught:
        decode(line)
    return caught.value.code, getattr(caught.value, "id", None)


@pytest.mark.parametrize("request_id", [0, -1, 7, 2**53 + 1, 10**30, "", "a", "7", "é\u0000😀"])
def test_a_request_keeps_the_value_and_the_type_of_its_id(request_id: int | str) -> None:
    line = msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "method": "ping"})
    message = decode(line)
    assert message == RpcMessage("ping", "2.0", request_id)
    assert type(message.id) is type(request_id)


def test_the_longest_id_is_read_from_a_heading_however_it_is_written() -> None:
    for written in (b"a", b"\\u0061"):
        assert jsonrpc.heading(b'{"id":"%b"}' % (written * jsonrpc.MOST_ID)).id == "a" * jsonrpc.MOST_ID


def test_a_message_without_an_id_is_a_notification() -> None:
    message = decode(b'{"jsonrpc":"2.0","method":"initialized"}')
    assert isinstance(message, RpcMessage)
    assert (message.id, message.has_params) == (UNSET, False)


def test_params_are_left_unread() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1e999, {"a": 1}]}')
    assert isinstance(message, RpcMessage)
    assert bytes(message.params) == b'[1e999, {"a": 1}]'


@pytest.mark.parametrize(
    "line", [b' {"jsonrpc":"2.0","id":1,"method":"m"} ', b'{"jsonrpc":"2.0","id":1,"method":"m"}\r']
)
def test_whitespace_around_a_message_means_nothing(line: bytes) -> None:
    assert decode(line) == RpcMessage("m", "2.0", 1)


@pytest.mark.requirement("FND-RPC-03")
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"not json",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}{}',
        b"{'jsonrpc':'2.0'}",
        b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","unread":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xed\xa0\x80"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a\x00b"}',
        b"\x00",
        b"\xef\xbb\xbf{}",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"jsonrpc":"2.0","method":5,"id":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
    ids=lambda line: repr(line[:50]),
)
def test_a_line_that_is_not_json_is_a_parse_error(line: bytes) -> None:
    assert refusal_of(line) == (ParseError.code, None)


def test_a_parse_error_says_where_the_line_is_wrong() -> None:
    with pytest.raises(ParseError, match=r"^Parse error: invalid UTF-8 \(byte 2\)$"):
        decode(b'["\xff"]')
    with pytest.raises(ParseError, match=r"^Parse error: nested too deeply$"):
        decode(b"[" * 10_000)


@pytest.mark.requirement("FND-RPC-04")
@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None),
        (b"null", None),
        (b"5", None),
        (b'"initialize"', None),
        (b"{}", None),
        (b'{"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","method":5}', None),
        (b'{"jsonrpc":"2.0","id":1}', 1),
        (b'{"jsonrpc":"2.0","id":"a","method":null}', "a"),
        (b'{"jsonrpc":"2.0","id":1,"method":["ping"]}', 1),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 1),
        (b'{"jsonrpc":2.0,"id":1,"method":"ping"}', 1),
        (b'{"id":"a","method":"ping"}', "a"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"error":"text"}', 1),
        (b'{"jsonrpc":"2.0","result":{}}', None),
    ],
)
def test_json_that_is_no_request_is_invalid_and_its_id_is_echoed_when_it_has_one(
    line: bytes, request_id: int | str | None
) -> None:
    assert refusal_of(line) == (InvalidRequest.code, request_id)


@pytest.mark.requirement("FND-RPC-05")
@pytest.mark.parametrize(
    "request_id", [b"null", b"1.5", b"1.0", b"1e2", b"true", b"false", b"{}", b'{"a":1}', b"[]", b"[1]"]
)
def test_an_id_of_a_wrong_type_is_invalid_and_never_echoed(request_id: bytes) -> None:
    line = b'{"jsonrpc":"2.0","id":' + request_id + b',"method":"ping"}'
    assert refusal_of(line) == (InvalidRequest.code, None)


@pytest.mark.requirement("FND-RPC-04")
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":{},"id":1,"method":"ping"}',
        b'{"jsonrpc":"1.0","jsonrpc":"2.0","id":1,"method":"ping"}',
    ],
)
def test_a_member_given_twice_is_not_blamed_on_the_method(line: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(line)
    assert "method" not in caught.value.message


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}', Answer(1, {"a": 1})),
        (
            b'{"jsonrpc":"2.0","id":"x","error":{"code":-1,"message":"no"}}',
            Answer("x", None, {"code": -1, "message": "no"}),
        ),
    ],
)
def test_an_answer_of_the_peer_is_no_request(line: bytes, answer: Answer) -> None:
    assert decode(line) == answer


@pytest.mark.requirement("FND-RPC-02")
def test_the_error_codes_are_those_of_the_table() -> None:
    codes = {kind.__name__: kind.code for kind in ProtocolError.__subclasses__() if kind.__module__ == errors.__name__}
    assert codes == {
        "ParseError": -32700,
        "InvalidRequest": -32600,
        "MethodNotFound": -32601,
        "InvalidParams": -32602,
        "InternalError": -32603,
        "NotInitialized": -32002,
        "ResourceNotFound": -32002,
        "UnsupportedVersion": -32022,
        "HeaderMismatch": -32020,
        "MissingCapability": -32021,
        "RequestCancelled": -32800,
    }


@pytest.mark.requirement("FND-RPC-10")
@pytest.mark.parametrize("request_id", [0, 1, "1", "", None])
def test_an_error_message_keeps_its_id_as_given(request_id: int | str | None) -> None:
    built = to_json_rpc_error(-32601, "Method not found: x", {"a": 1}, request_id)
    error = {"code": -32601, "message": "Method not found: x", "data": {"a": 1}}
    assert built == {"jsonrpc": "2.0", "id": request_id, "error": error}
    assert type(built["id"]) is type(request_id)


@pytest.mark.requirement("FND-RPC-10")
def test_an_error_message_without_an_id_has_null_and_without_data_no_data() -> None:
    assert to_json_rpc_error(-32700, "Parse error") == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "Parse error"},
    }


@pytest.mark.requirement("FND-RPC-01", "FND-CORR-06")
def test_an_error_line_holds_the_whole_error_object_and_the_correlation_id() -> None:
    error = errors.UnsupportedVersion("No", {"supported": ["2026-07-28"]})
    line = jsonrpc.encode_error(error, "a", "corr-1")
    data = b'{"supported":["2026-07-28"],"correlationId":"corr-1"}'
    assert line == b'{"jsonrpc":"2.0","id":"a","error":{"code":-32022,"message":"No","data":' + data + b"}}\n"


def test_results_and_notifications_are_one_line_each() -> None:
    assert jsonrpc.encode_result(1, {"a": "x\ny"}) == b'{"jsonrpc":"2.0","id":1,"result":{"a":"x\\ny"}}\n'
    assert jsonrpc.encode_notification("n") == b'{"jsonrpc":"2.0","method":"n"}\n'
    assert jsonrpc.encode_notification("n", {}) == b'{"jsonrpc":"2.0","method":"n","params":{}}\n'

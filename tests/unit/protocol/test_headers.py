"""The headers of a modern request say what its body says, or it is refused."""

from __future__ import annotations

import base64
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import HeaderMismatch
from dragoman.protocol.headers import (
    ParameterHeader,
    check_parameters,
    check_routing,
    decode_header,
    is_plainly_said,
    parameter_headers,
    routing_in,
)

VERSION = "2026-07-28"
GOOD = [(b"mcp-protocol-version", VERSION.encode()), (b"mcp-method", b"tools/call"), (b"mcp-name", b"echo")]


def wrapped(text: str) -> bytes:
    return b"=?base64?" + base64.b64encode(text.encode()) + b"?="


def route(pairs: list[tuple[bytes, bytes]], method: str = "tools/call", name: object = "echo") -> None:
    check_routing(dict(pairs), pairs, VERSION, method, name)


def is_plain(pairs: list[tuple[bytes, bytes]], name: str = "echo") -> bool:
    return is_plainly_said(routing_in(dict(pairs), pairs), VERSION, "tools/call", name)


def replaced(name: bytes, value: bytes | None) -> list[tuple[bytes, bytes]]:
    kept = [pair for pair in GOOD if pair[0] != name]
    return kept if value is None else [*kept, (name, value)]


def test_headers_that_say_what_the_body_says_pass() -> None:
    route(GOOD)
    route([*GOOD, (b"x-other", b"1"), (b"x-other", b"2")])
    route(replaced(b"mcp-name", wrapped("echo")))
    route(replaced(b"mcp-name", wrapped("wörld")), name="wörld")
    route([GOOD[0], (b"mcp-method", b"tools/list")], "tools/list", None)


def test_what_is_said_plainly_is_seen_at_once_and_all_else_is_looked_at() -> None:
    assert is_plain(GOOD)
    assert is_plain([*GOOD, (b"x-other", b"1")])
    long = "n" * 1000
    for pairs, name in (
        (GOOD, "other"),
        (GOOD[:2], "echo"),
        ([*GOOD, (b"mcp-name", b"echo")], "echo"),
        ([*GOOD, (b"x-other", b"1"), (b"x-other", b"2")], "echo"),
        ([*GOOD, (b"mcp-name", b"echo")], "wörld"),
        (replaced(b"mcp-name", wrapped("wörld")), "wörld"),
        (replaced(b"mcp-name", long.encode()), long),
        ([], "wörld"),
    ):
        assert not is_plain(pairs, name)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (b"mcp-protocol-version", None, "MCP-Protocol-Version"),
        (b"mcp-protocol-version", b"2025-11-25", "MCP-Protocol-Version"),
        (b"mcp-protocol-version", b"2026-07-28x", "MCP-Protocol-Version"),
        (b"mcp-protocol-version", wrapped(VERSION), "MCP-Protocol-Version"),
        (b"mcp-method", None, "Mcp-Method"),
        (b"mcp-method", b"tools/list", "Mcp-Method"),
        (b"mcp-method", b"TOOLS/CALL", "Mcp-Method"),
        (b"mcp-method", b"", "Mcp-Method"),
        (b"mcp-name", None, "Mcp-Name is not params.name"),
        (b"mcp-name", b"other", "Mcp-Name is not params.name"),
        (b"mcp-name", b"Echo", "Mcp-Name is not params.name"),
        (b"mcp-name", wrapped("other"), "Mcp-Name is not params.name"),
        (b"mcp-name", b"=?base64?ZWNobw?=", "Mcp-Name is not params.name"),
    ],
)
def test_headers_that_say_something_else_are_refused(name: bytes, value: bytes | None, said: str) -> None:
    with pytest.raises(HeaderMismatch, match=said):
        route(replaced(name, value))


@pytest.mark.parametrize("pair", GOOD, ids=[name.decode() for name, _ in GOOD])
def test_a_routing_header_that_is_there_twice_is_refused_even_if_both_agree(pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(HeaderMismatch, match=f"{pair[0].decode()} is there more than once"):
        route([*GOOD, pair])


def test_the_name_is_the_uri_where_resources_are_read() -> None:
    pairs = [GOOD[0], (b"mcp-method", b"resources/read"), (b"mcp-name", b"file:///a")]
    route(pairs, "resources/read", "file:///a")
    with pytest.raises(HeaderMismatch, match=r"params\.uri"):
        route(pairs, "resources/read", "file:///b")


@pytest.mark.parametrize("name", [5, True, [], {}, 1.5])
def test_a_name_that_is_no_text_agrees_with_nothing(name: object) -> None:
    with pytest.raises(HeaderMismatch):
        route(replaced(b"mcp-name", str(name).encode()), name=name)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (b"", ""),
        (b"plain", "plain"),
        (b"\xe9", "é"),
        (wrapped(""), ""),
        (wrapped("日本"), "日本"),
        (wrapped("=?base64?eA==?="), "=?base64?eA==?="),
        (b"=?base64?eA==", "=?base64?eA=="),
        (b"=?BASE64?eA==?=", "=?BASE64?eA==?="),
        (b"=?base64?eA?=", None),
        (b"=?base64?eB==?=", None),
        (b"=?base64?e A==?=", None),
        (b"=?base64?!!!!?=", None),
        (b"=?base64?/w==?=", None),
    ],
)
def test_a_value_is_text_or_wrapped_text_or_nothing(value: bytes | None, text: str | None) -> None:
    assert decode_header(value) == text


@given(st.text())
def test_any_text_can_be_wrapped(text: str) -> None:
    assert decode_header(wrapped(text)) == text


@given(st.binary(max_size=60))
def test_no_value_makes_it_fail(value: bytes) -> None:
    assert isinstance(decode_header(value), str | None)
    assert isinstance(decode_header(b"=?base64?" + value + b"?="), str | None)


# Parameters in headers.


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


REGION = {"type": "string", "x-mcp-header": "Region"}


def test_annotated_properties_are_found_wherever_only_properties_lead_to_them() -> None:
    found = parameter_headers(
        schema(
            region=REGION,
            plain={"type": "string"},
            where=schema(
                zone={"type": "integer", "x-mcp-header": "X-Zone"},
                deep=schema(on={"type": "boolean", "x-mcp-header": "on"}),
            ),
        )
    )
    assert set(found) == {
        ParameterHeader(b"mcp-param-region", ("region",), "string"),
        ParameterHeader(b"mcp-param-x-zone", ("where", "zone"), "integer"),
        ParameterHeader(b"mcp-param-on", ("where", "deep", "on"), "boolean"),
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "string", "x-mcp-header": ""},
        {"type": "string", "x-mcp-header": "two words"},
        {"type": "string", "x-mcp-header": "a:b"},
        {"type": "string", "x-mcp-header": "ünï"},
        {"type": "string", "x-mcp-header": "line\r\nbreak"},
        {"type": "string", "x-mcp-header": 5},
        {"type": "string", "x-mcp-header": None},
        {"type": "string", "x-mcp-header": "REGION"},
        {"type": "number", "x-mcp-header": "n"},
        {"type": "object", "x-mcp-header": "o"},
        {"type": ["string", "null"], "x-mcp-header": "u"},
        {"x-mcp-header": "untyped"},
        {"type": "array", "items": {"type": "string", "x-mcp-header": "item"}},
        {"anyOf": [{"type": "string", "x-mcp-header": "any"}]},
        {"type": "object", "additionalProperties": {"type": "string", "x-mcp-header": "more"}},
        {"type": "object", "patternProperties": {"x": {"type": "string", "x-mcp-header": "more"}}},
    ],
    ids=str,
)
def test_one_bad_annotation_spoils_all_of_a_tools(bad: dict[str, Any]) -> None:
    assert parameter_headers(schema(region=REGION)) != ()
    assert parameter_headers(schema(region=REGION, bad=bad)) == ()


def test_annotations_on_the_root_and_behind_references_are_bad_too() -> None:
    assert parameter_headers({**schema(region=REGION), "x-mcp-header": "root", "type": "string"}) == ()
    assert parameter_headers({**schema(region=REGION), "$defs": {"a": {"type": "string", "x-mcp-header": "a"}}}) == ()


@pytest.mark.parametrize("keyword", ["default", "const", "examples", "enum"])
def test_what_is_data_is_no_annotation(keyword: str) -> None:
    value: Any = {"x-mcp-header": "not one"}
    data = [value] if keyword in ("examples", "enum") else value
    assert len(parameter_headers(schema(region=REGION, other={"type": "object", keyword: data}))) == 1


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    assert parameter_headers(schema(properties=REGION, default={**REGION, "x-mcp-header": "d"}))


ON = ParameterHeader(b"mcp-param-on", ("on",), "boolean")
NUMBER = ParameterHeader(b"mcp-param-n", ("n",), "integer")
TEXT = ParameterHeader(b"mcp-param-t", ("t",), "string")
DEEP = ParameterHeader(b"mcp-param-d", ("a", "b"), "string")


def agree(wanted: ParameterHeader, arguments: dict[str, Any], *values: bytes) -> bool:
    pairs = [(wanted.header, value) for value in values]
    try:
        check_parameters([wanted], arguments, dict(pairs), pairs)
    except HeaderMismatch:
        return False
    return True


@pytest.mark.parametrize(
    ("wanted", "arguments", "value"),
    [
        (TEXT, {"t": "x"}, b"x"),
        (TEXT, {"t": "x"}, wrapped("x")),
        (TEXT, {"t": "日本"}, wrapped("日本")),
        (TEXT, {"t": ""}, b""),
        (TEXT, {"t": " padded "}, wrapped(" padded ")),
        (NUMBER, {"n": 42}, b"42"),
        (NUMBER, {"n": 42}, b"42.0"),
        (NUMBER, {"n": 42.0}, b"42"),
        (NUMBER, {"n": 42.0}, b"42.000"),
        (NUMBER, {"n": -7}, b"-7"),
        (NUMBER, {"n": 2**70}, str(2**70).encode()),
        (ON, {"on": True}, b"true"),
        (ON, {"on": False}, b"false"),
        (DEEP, {"a": {"b": "x"}}, b"x"),
    ],
)
def test_an_argument_and_its_header_agree(wanted: ParameterHeader, arguments: dict[str, Any], value: bytes) -> None:
    assert agree(wanted, arguments, value)


@pytest.mark.parametrize(
    ("wanted", "arguments", "values"),
    [
        (TEXT, {"t": "x"}, ()),
        (TEXT, {"t": "x"}, (b"y",)),
        (TEXT, {"t": "x"}, (b"X",)),
        (TEXT, {"t": "x"}, (b"x", b"x")),
        (TEXT, {"t": "42"}, (b"42.0",)),
        (TEXT, {}, (b"x",)),
        (TEXT, {"t": None}, (b"null",)),
        (TEXT, {"t": ["x"]}, (b"x",)),
        (TEXT, {"t": "é"}, ("é".encode(),)),
        (NUMBER, {"n": 42}, (b"43",)),
        (NUMBER, {"n": 42}, (b"42.5",)),
        (NUMBER, {"n": 42}, (b"042",)),
        (NUMBER, {"n": 42}, (b"+42",)),
        (NUMBER, {"n": 42}, (b"4.2e1",)),
        (NUMBER, {"n": 42}, (b"42.",)),
        (NUMBER, {"n": 42}, ("４２".encode(),)),
        (NUMBER, {"n": 42.5}, (b"42",)),
        (NUMBER, {"n": True}, (b"1",)),
        (ON, {"on": True}, (b"True",)),
        (ON, {"on": True}, (b"1",)),
        (ON, {"on": 1}, (b"true",)),
        (DEEP, {"a": "b"}, (b"b",)),
        (DEEP, {"a": {"b": "x"}}, ()),
        (DEEP, {"a": [{"b": "x"}]}, (b"x",)),
    ],
)
def test_an_argument_and_its_header_disagree(
    wanted: ParameterHeader, arguments: dict[str, Any], values: tuple[bytes, ...]
) -> None:
    assert not agree(wanted, arguments, *values)


@pytest.mark.parametrize("arguments", [{}, {"a": None}, {"a": {}}, {"a": {"b": None}}, {"a": 5}])
def test_an_argument_that_is_not_there_needs_no_header(arguments: dict[str, Any]) -> None:
    assert agree(DEEP, arguments)


@given(st.integers())
def test_every_integer_agrees_with_itself_and_not_with_its_neighbour(number: int) -> None:
    assert agree(NUMBER, {"n": number}, str(number).encode())
    assert agree(NUMBER, {"n": number}, f"{number}.0".encode())
    assert not agree(NUMBER, {"n": number}, str(number + 1).encode())


def test_names_that_somebody_made_up_are_not_kept_however_long_they_are() -> None:
    tracemalloc.start()
    try:
        for number in range(20):
            with pytest.raises(HeaderMismatch):
                route(GOOD, name=f"{number}" + "x" * 1_000_000)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [255, 256, 257, 10_000])
def test_a_name_of_any_length_is_compared(length: int) -> None:
    name = "x" * length
    route(replaced(b"mcp-name", name.encode()), name=name)
    with pytest.raises(HeaderMismatch):
        route(replaced(b"mcp-name", name.encode()), name=name + "x")

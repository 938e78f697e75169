"""What arguments may look like: every element counts, exactly at a limit passes, and a refusal says where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.calls.limits import (
    ARRAY_TOO_LARGE,
    MOST_VIOLATIONS,
    OBJECT_TOO_LARGE,
    STRING_TOO_LONG,
    TOO_DEEP,
    Limits,
    Violation,
    encode_arguments,
)
from dragoman.testing import MemoryClient, open_server
from tests.support.answers import error_in
from tests.support.calls import Spy
from tests.support.examples import examples
from tests.support.json_values import json_values


def limits(**given: Any) -> Limits:
    general = {"max_array_size": 3, "max_string_length": 5, "max_object_depth": 3, "max_object_members": 3}
    return Limits(**{"max_payload_bytes": 1_000_000} | general | given)


async def refusal(client: MemoryClient, arguments: dict[str, Any], name: str = "spy") -> dict[str, Any]:
    return error_in(await client.call_tool(name, arguments))


SHORT_ARRAYS: dict[str, Any] = {"limits": {"max_array_size": 100}}


# Through the whole pipeline


def nested(depth: int) -> dict[str, Any]:
    """An object of so many levels, itself included."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


@pytest.mark.requirement("INV-MCP-LIMIT-001", "INV-MCP-LIMIT-002", "INV-MCP-LIMIT-004", "PRD-LIMIT-06", "PRD-P4")
@pytest.mark.requirement("PRD-LIMIT-01", "PRD-LIMIT-02", "PRD-LIMIT-03")
@pytest.mark.parametrize(
    ("passes", "fails", "told"),
    [
        (
            {"list": [0] * 10_000},
            {"list": [0] * 10_001},
            {"path": "/list", "code": ARRAY_TOO_LARGE, "limit": 10_000, "actual": 10_001},
        ),
        (
            {"a": {"b": [[0] * 10_000]}},
            {"a": {"b": [[0] * 10_001]}},
            {"path": "/a/b/0", "code": ARRAY_TOO_LARGE, "limit": 10_000, "actual": 10_001},
        ),
        (
            {"text": "ü" * 100_000},
            {"text": "ü" * 100_001},
            {"path": "/text", "code": STRING_TOO_LONG, "limit": 100_000, "actual": 100_001},
        ),
        (
            {"k" * 100_000: 1},
            {"k" * 100_001: 1},
            {"path": "", "code": STRING_TOO_LONG, "limit": 100_000, "actual": 100_001},
        ),
        (
            {str(n): 0 for n in range(1000)},
            {str(n): 0 for n in range(1001)},
            {"path": "", "code": OBJECT_TOO_LARGE, "limit": 1000, "actual": 1001},
        ),
        (nested(10), nested(11), {"path": "/a" * 10, "code": TOO_DEEP, "limit": 10, "actual": 11}),
    ],
    ids=["array", "array within", "string", "key", "members", "depth"],
)
async def test_exactly_at_the_limit_passes_and_one_more_is_refused_before_the_handler(
    passes: dict[str, Any], fails: dict[str, Any], told: dict[str, Any]
) -> None:
    spy = Spy()
    async with open_server([spy.tool]) as server:
        client = await server.client()
        assert (await client.call_tool("spy", passes))["isError"] is False
        assert spy.calls == 1
        error = await refusal(client, fails)
        assert spy.calls == 1
        assert error["code"] == "INVALID_ARGUMENT"
        (violation,) = error["details"]["errors"]
        setting = violation["setting"]
        assert {key: value for key, value in violation.items() if key not in ("message", "setting")} == told
        assert error["details"]["setting"] == setting
        assert setting in violation["message"]
        assert str(told["limit"]) in violation["message"]
        assert server.runtime.slots.in_use == 0


@pytest.mark.requirement("INV-MCP-LIMIT-002", "FND-CALL-05")
async def test_exactly_the_most_bytes_pass_and_one_more_is_refused_before_the_handler() -> None:
    spy = Spy()
    async with open_server([spy.tool], {"tools": {"max_payload_bytes": 20}}) as server:
        client = await server.client()
        assert (await client.call_tool("spy", {"x": "ü" * 6}))["isError"] is False
        error = await refusal(client, {"x": "ü" * 6 + "x"})
        assert error["code"] == "RESOURCE_EXHAUSTED"
        facts = {"reason": "payload_too_large", "limit": 20, "actual": 21, "retryable": False}
        assert error["details"] == {**facts, "setting": "tools.max_payload_bytes"}
        assert spy.calls == 1


@pytest.mark.requirement("INV-MCP-LIMIT-001")
@pytest.mark.parametrize("place", [0, 99, 4_950, 9_998, 9_999])
async def test_every_element_is_looked_at_not_only_the_first_ones(place: int) -> None:
    rows: list[list[Any]] = [[{"cell": 0} for _ in range(100)] for _ in range(100)]
    rows[place // 100][place % 100] = {"cell": [0] * 101}
    spy = Spy()
    async with open_server([spy.tool], SHORT_ARRAYS) as server:
        error = await refusal(await server.client(), {"rows": rows})
        assert [one["path"] for one in error["details"]["errors"]] == [f"/rows/{place // 100}/{place % 100}/cell"]
        assert spy.calls == 0


@pytest.mark.requirement("INV-MCP-LIMIT-001")
@pytest.mark.parametrize("place", [0, 99, 100, 4_999])
async def test_long_array_that_a_tool_may_be_given_is_looked_at_to_its_end(place: int) -> None:
    rows: list[Any] = [0] * 5_000
    rows[place] = {"cell": [0] * 5_001}
    spy = Spy()
    async with open_server([spy.tool], {"limits": {"tools": {"spy": {"max_array_size": 5_000}}}}) as server:
        error = await refusal(await server.client(), {"rows": rows})
        assert [one["path"] for one in error["details"]["errors"]] == [f"/rows/{place}/cell"]
        assert spy.calls == 0


@pytest.mark.requirement("PRD-LIMIT-01")
@pytest.mark.parametrize(
    ("config", "passes", "named"),
    [
        ({"response": {"dialect": "envelope"}}, 100, "limits.max_array_size"),
        ({}, 10_000, "limits.max_array_size"),
        ({"limits": {"tools": {"spy": {"max_array_size": 5}}}}, 5, "limits.tools.spy.max_array_size"),
        ({"limits": {"tool_array_limits": {"spy": 5}}}, 5, "limits.tool_array_limits.spy"),
    ],
)
async def test_a_refusal_of_an_array_names_the_setting_whose_default_the_dialect_decides(
    config: dict[str, Any], passes: int, named: str
) -> None:
    spy = Spy()
    async with open_server([spy.tool], config) as server:
        call = server.runtime.call
        assert (await call("spy", {"a": [0] * passes})).error is None
        error = (await call("spy", {"a": [0] * (passes + 1)})).error
    assert error is not None
    (told,) = error.details["errors"]
    assert told["message"] == f"has {passes + 1} items, and at most {passes} are allowed ({named})"
    assert told["setting"] == error.details["setting"] == named


@pytest.mark.requirement("PRD-LIMIT-06")
async def test_all_violations_are_listed_each_with_its_path() -> None:
    spy = Spy()
    async with open_server([spy.tool], SHORT_ARRAYS) as server:
        error = await refusal(await server.client(), {"a": [0] * 101, "b": {"c": [0] * 102}, "d": "fine"})
        found = {one["path"]: one["actual"] for one in error["details"]["errors"]}
        assert found == {"/a": 101, "/b/c": 102}


async def test_refusal_does_not_grow_with_the_number_of_violations() -> None:
    spy = Spy()
    async with open_server([spy.tool], SHORT_ARRAYS) as server:
        arguments = {f"k{i}": [[0] * 101, "x" * 100_001] for i in range(8)} | {f"l{i}": [0] * 101 for i in range(50)}
        error = await refusal(await server.client(), arguments)
        assert len(error["details"]["errors"]) == MOST_VIOLATIONS
        assert error["details"]["total"] == 58


async def test_refusal_says_how_many_violations_of_all_kinds_there_are() -> None:
    spy = Spy()
    async with open_server([spy.tool]) as server:
        deep = {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": [[] for _ in range(100)]}}}}}}}}}
        error = await refusal(await server.client(), {**deep, "k": "x" * 100_001})
        codes = [one["code"] for one in error["details"]["errors"]]
        assert codes == [STRING_TOO_LONG, *[TOO_DEEP] * MOST_VIOLATIONS]
        assert error["details"]["total"] == 101


@pytest.mark.requirement("INV-MCP-LIMIT-003")
@pytest.mark.parametrize(
    ("limit", "size", "refused"), [(5, 5, False), (5, 6, True), (500, 500, False), (500, 501, True)]
)
async def test_limit_of_the_tool_wins_whether_higher_or_lower(limit: int, size: int, refused: bool) -> None:
    for config in (
        {"limits": {"max_array_size": 100, "toolArrayLimits": {"spy": limit}}},
        {"limits": {"max_array_size": 100, "tools": {"spy": {"maxArraySize": limit}}}},
    ):
        spy, other = Spy(), Spy("other")
        async with open_server([spy.tool, other.tool], config) as server:
            client = await server.client()
            assert (await client.call_tool("spy", {"list": [0] * size}))["isError"] is refused
            assert (await client.call_tool("other", {"list": [0] * 101}))["isError"] is True
            assert (await client.call_tool("other", {"list": [0] * 100}))["isError"] is False


@pytest.mark.requirement("PRD-LIMIT-04")
@pytest.mark.parametrize(
    ("name", "limit"),
    [("bugfix_scan", 100), ("refactor_scan", 100), ("memory_bulk_delete", 1000), ("ability_inject", 20)],
)
async def test_well_known_tools_have_an_array_limit_of_their_own(name: str, limit: int) -> None:
    spy = Spy(name)
    async with open_server([spy.tool], {"limits": {"max_array_size": 50}}) as server:
        client = await server.client()
        assert (await client.call_tool(name, {"list": [0] * limit}))["isError"] is False
        (violation,) = (await refusal(client, {"list": [0] * (limit + 1)}, name))["details"]["errors"]
        assert (violation["limit"], spy.calls) == (limit, 1)


@pytest.mark.parametrize(
    ("setting", "passes", "fails"),
    [
        ({"max_payload_bytes": 20}, {"x": "a" * 12}, {"x": "a" * 13}),
        ({"max_string_length": 3}, {"x": "abc"}, {"x": "abcd"}),
        ({"max_object_depth": 2}, {"x": {}}, {"x": {"y": {}}}),
    ],
)
async def test_other_limits_can_be_set_for_one_tool_too(
    setting: dict[str, int], passes: dict[str, Any], fails: dict[str, Any]
) -> None:
    spy, other = Spy(), Spy("other")
    async with open_server([spy.tool, other.tool], {"limits": {"tools": {"spy": setting}}}) as server:
        client = await server.client()
        assert (await client.call_tool("spy", passes))["isError"] is False
        assert (await client.call_tool("spy", fails))["isError"] is True
        assert (await client.call_tool("other", fails))["isError"] is False


LONG_LIST = {
    "type": "object",
    "properties": {
        "ids": {"type": "array", "maxItems": 500},
        "deep": {"type": "object", "additionalProperties": {"$ref": "#/definitions/many"}},
        "either": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 300}]},
        "text": {"type": "string", "maxLength": 200_000},
        "rows": {"type": "array", "items": {"type": "array", "maxItems": 200}},
        "again": {"$ref": "#"},
        "named": {"type": "object", "patternProperties": {"^x": {"type": "array", "maxItems": 300}}},
        "perhaps": {"if": {"type": "array"}, "then": {"maxItems": 300}, "else": {"maxLength": 150_000}},
        "spaced": {"$ref": "#/definitions/as%20many"},
        "pair": {"prefixItems": [{"type": "array"}], "items": {"type": "array", "maxItems": 300}},
    },
    "definitions": {"many": {"type": "array", "maxItems": 400}, "as many": {"type": "array", "maxItems": 400}},
}


@pytest.mark.parametrize(
    ("passes", "fails"),
    [
        ({"ids": [0] * 500}, {"ids": [0] * 501}),
        ({"deep": {"x": [0] * 400}}, {"deep": {"x": [0] * 401}}),
        ({"either": [0] * 300}, {"either": [0] * 301}),
        ({"text": "x" * 200_000}, {"text": "x" * 200_001}),
        ({"rows": [[0] * 200]}, {"rows": [[0] * 201]}),
        ({"rows": [[0]] * 100}, {"rows": [[0]] * 101}),
        ({"again": {"ids": [0] * 500}}, {"again": {"ids": [0] * 501}}),
        ({"named": {"xs": [0] * 300}}, {"named": {"xs": [0] * 301}}),
        ({"perhaps": [0] * 300}, {"perhaps": [0] * 301}),
        ({"perhaps": "x" * 150_000}, {"perhaps": "x" * 150_001}),
        ({"spaced": [0] * 400}, {"spaced": [0] * 401}),
        ({"pair": [[0] * 100, [0] * 300]}, {"pair": [[0] * 101, [0] * 300]}),
        ({"pair": [[0], [0] * 300]}, {"pair": [[0], [0] * 301]}),
    ],
    ids=[
        *("property", "reference", "alternative", "string", "items", "general"),
        *("itself", "pattern", "then", "else", "escaped", "first item", "item after the first ones"),
    ],
)
async def test_explicit_limit_in_the_schema_wins_over_the_general_one(
    passes: dict[str, Any], fails: dict[str, Any]
) -> None:
    spy = Spy(schema=LONG_LIST)
    async with open_server([spy.tool], SHORT_ARRAYS) as server:
        client = await server.client()
        assert (await client.call_tool("spy", passes))["isError"] is False
        assert (await client.call_tool("spy", fails))["isError"] is True
        assert spy.calls == 1


async def test_limit_that_the_operator_sets_for_the_tool_wins_over_its_schema() -> None:
    spy = Spy(schema=LONG_LIST)
    async with open_server([spy.tool], {"limits": {"tools": {"spy": {"max_array_size": 10}}}}) as server:
        client = await server.client()
        assert (await client.call_tool("spy", {"ids": [0] * 11}))["isError"] is True
        assert (await client.call_tool("spy", {"ids": [0] * 10}))["isError"] is False


async def test_limits_can_be_turned_off() -> None:
    off = {"max_array_size": None, "max_string_length": None, "max_object_depth": None}
    spy = Spy()
    async with open_server([spy.tool], {"limits": off}) as server:
        client = await server.client()
        for arguments in ({"a": [0] * 5000}, {"a": "x" * 200_000}, nested(50)):
            assert (await client.call_tool("spy", arguments))["isError"] is False


async def test_limit_of_more_levels_than_the_validator_has_is_kept() -> None:
    spy = Spy()
    async with open_server([spy.tool], {"limits": {"max_object_depth": 100}}) as server:
        client = await server.client()
        assert (await client.call_tool("spy", nested(100)))["isError"] is False
        (violation,) = (await refusal(client, nested(101)))["details"]["errors"]
        assert (violation["code"], violation["limit"], spy.calls) == (TOO_DEEP, 100, 1)


@pytest.mark.requirement("PRD-METRIC-04")
async def test_every_tool_is_covered_built_in_and_unknown_ones_included() -> None:
    spy = Spy()
    config = {
        "tools": {"memory_enabled": True, "adminRegistrationEnabled": True},
        "security": {"dynamicRegistrationEnabled": True},
        "storage": {"engine": "memory"},
    }
    async with open_server([spy.tool], config) as server:
        client = await server.client()
        names = [each["name"] for each in await client.list_tools()]
        assert {"spy", "health", "memory_store", "admin/registerTool"} < {*names}
        for name in (*names, "nobody"):
            result = await client.call_tool(name, {"x": "y" * 2_000_000})
            assert error_in(result)["details"]["reason"] == "payload_too_large"
            if name != "health":  # A server under pressure must still answer it.
                error = await refusal(client, {"x": [0] * 10_001}, name)
                assert [each["code"] for each in error["details"]["errors"]] == [ARRAY_TOO_LARGE]


async def test_arguments_from_python_are_measured_as_the_json_that_they_are() -> None:
    spy = Spy()
    async with open_server([spy.tool], SHORT_ARRAYS) as server:
        for arguments in ({"t": (0,) * 101}, {"t": {1: [0] * 101}}):
            outcome = await server.runtime.call("spy", arguments)
            assert outcome.error is not None
            assert outcome.error.code == "INVALID_ARGUMENT"
        outcome = await server.runtime.call("spy", {"t": {1, 2}, "u": object()})
        assert outcome.error is not None
        assert outcome.error.details == {"reason": "arguments_not_serializable"}
        assert spy.calls == 0


# The validator of the limits


values = json_values(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=9),
    st.text(max_size=7),
    max_size=6,
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=7), values, max_size=4))
@settings(max_examples=examples(4))
def test_validator_allows_exactly_what_has_no_violation(arguments: dict[str, Any]) -> None:
    size = len(json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass"))
    rules = limits()
    assert rules.surely_fit(arguments, size) == (not rules.violations(arguments).listed)
    if size <= rules.sure_bytes:
        assert rules.violations(arguments).listed == []


@pytest.mark.parametrize(
    ("limit", "arguments"),
    [
        ("max_array_size", {"": [0] * 8}),
        ("max_object_members", {str(n) if n else "": 0 for n in range(8)}),
        ("max_string_length", {"": "x" * 8}),
        ("max_object_depth", {"": [[[[[[[]]]]]]]}),
    ],
)
def test_no_argument_beyond_a_limit_is_so_short_that_it_is_not_looked_at(limit: str, arguments: dict[str, Any]) -> None:
    rules = limits(**dict.fromkeys(Limits.__struct_fields__[1:5]) | {limit: 7})
    assert len(encode_arguments(arguments)) > rules.sure_bytes > 7


def test_violation_says_where_by_how_much_and_what_is_allowed() -> None:
    found = limits().violations({"a": [1, 2, 3, 4]}).listed
    message = "has 4 items, and at most 3 are allowed (limits.max_array_size)"
    assert found == [Violation("/a", ARRAY_TOO_LARGE, message, 3, 4, "limits.max_array_size")]


def test_elements_of_an_array_that_is_too_large_are_looked_at_too() -> None:
    found = limits().violations({"a": [0, 0, 0, "x" * 6, [[]]]}).listed
    assert {(each.path, each.code) for each in found} == {
        ("/a", ARRAY_TOO_LARGE),
        ("/a/3", STRING_TOO_LONG),
        ("/a/4/0", TOO_DEEP),
    }


def test_many_violations_of_one_kind_do_not_hide_another() -> None:
    found = limits(max_object_members=None).violations({**{f"k{n}": [0] * 4 for n in range(50)}, "z": "x" * 6}).listed
    assert [each.path for each in found if each.code == STRING_TOO_LONG] == ["/z"]
    assert len(found) == MOST_VIOLATIONS + 1


def test_path_is_a_json_pointer() -> None:
    assert limits().violations({"a/b~c": [0] * 4}).listed[0].path == "/a~1b~0c"


@pytest.mark.parametrize("step", ["k" * 100_000, "~" * 600, 0])
def test_path_is_cut_where_it_grows_too_long(step: str | int) -> None:
    value: Any = [0] * 4
    for _ in range(900):
        value = {step: value} if isinstance(step, str) else [value]
    off = limits(max_object_depth=None, max_string_length=None)
    assert [len(each.path) for each in off.violations({"a": value}).listed] == [500]


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=7), values, max_size=4))
@settings(max_examples=examples(4))
def test_each_listed_path_leads_to_an_element_beyond_the_limit(arguments: dict[str, Any]) -> None:
    found = limits(max_object_depth=None).violations(arguments)
    assert found.total == sum(map(_counted, _elements(arguments)))
    for each in found.listed:
        element: Any = arguments
        for step in each.path.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            element = element[name if isinstance(element, dict) else int(name)]
        sizes = [len(element), *(map(len, element) if isinstance(element, dict) else ())]
        assert each.actual in sizes


def _elements(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(element for item in inner for element in _elements(item))]


def _counted(element: Any) -> int:
    """How many limits an element is beyond by itself."""
    if isinstance(element, str):
        return int(len(element) > 5)
    if isinstance(element, dict):
        return int(len(element) > 3) + sum(len(key) > 5 for key in element)
    return int(isinstance(element, list) and len(element) > 3)


def test_containers_beyond_a_limit_look_through_their_parents_once() -> None:
    class Counted(list[Any]):
        looks = 0

        def __iter__(self) -> Any:
            Counted.looks += 1
            return super().__iter__()

    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "array", "maxItems": 9}}}}
    rows = Counted([[0] * 4 for _ in range(1000)])
    assert limits(max_array_size=3).violations({"a": rows}, schema).counts == {ARRAY_TOO_LARGE: 1}
    assert Counted.looks <= 5


def test_schema_whose_branches_refer_to_each_other_is_looked_through_once() -> None:
    names = [f"k{n}" for n in range(8)]
    expression = {"anyOf": [{"$ref": f"#/definitions/{name}"} for name in names]}
    many = {"type": "object", "properties": {"args": {"type": "array", "maxItems": 7, "items": expression}}}
    schema = {"type": "object", "properties": {"e": expression}, "definitions": dict.fromkeys(names, many)}
    schema["definitions"] = {name: {**many, "title": name} for name in names}
    value: Any = 0
    for _ in range(12):
        value = {"args": [value, 0, 0, 0, 0, 0]}
    rules = limits(max_object_depth=None)
    assert rules.violations({"e": value}, schema).listed == []  # Eight branches to the twelfth would take years.
    assert rules.violations({"e": {"args": [0] * 8}}, schema).listed[0].limit == 7

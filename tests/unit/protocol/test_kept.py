"""What outlives a request is what is known of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.protocol.kept import MOST_BYTES, MOST_SUBSCRIPTIONS, known_params, known_subscription
from dragoman.protocol.versions import CAPABILITIES_KEY
from dragoman.testing.connection import CLIENT_INFO, ENVELOPE

EVERYTHING = {
    "elicitation": {"form": {}, "url": {}},
    "experimental": {},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}}},
}


def initialize(capabilities: Any, info: Any = CLIENT_INFO, **others: Any) -> dict[str, Any]:
    params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info, **others}
    return known_params(msgspec.json.encode(params))


def test_capabilities_that_are_known_are_kept() -> None:
    kept = initialize(EVERYTHING)
    assert kept == {"protocolVersion": "2025-11-25", "capabilities": EVERYTHING, "clientInfo": CLIENT_INFO}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"experimental": {"x": [[]] * 1000}}, {"experimental": {}}),
        ({"unknown": {"x": 1}}, {}),
        ({"sampling": {"tools": {"x": [1] * 1000}, "y": 1}}, {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": [1] * 1000}}, {"sampling": {"tools": []}}),
        ({"extensions": {"a": {"b": [1] * 1000}}}, {"extensions": {"a": {}}}),
        ({"elicitation": "x" * 5000}, {"elicitation": "x" * 1024}),
    ],
)
def test_capabilities_that_are_not_known_are_dropped(given: Any, kept: Any) -> None:
    assert initialize(given)["capabilities"] == kept


def test_client_is_known_by_name_and_version() -> None:
    info = {"name": "n" * 5000, "version": "1", "title": "T", "icons": [{"src": "data:,x"}] * 100}
    assert initialize({}, info, _meta={"x": [1] * 1000}) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "n" * 1024, "version": "1", "title": "T"},
    }


def test_capabilities_of_exactly_the_limit_pass_and_one_byte_more_is_too_much() -> None:
    padding = "x" * (MOST_BYTES - len('{"x":""}'))
    assert initialize({"x": padding})["capabilities"] == {}
    with pytest.raises(ValueError, match="more than 65536 bytes"):
        initialize({"x": padding + "x"})


def test_icons_of_a_client_do_not_count() -> None:
    icons = [{"src": f"data:image/png;base64,{'A' * 70_000}"}]
    assert initialize({}, {**CLIENT_INFO, "icons": icons})["clientInfo"] == CLIENT_INFO


@pytest.mark.parametrize("capabilities", [[], None, "x", 5])
def test_capabilities_that_are_no_object_are_refused_by_name(capabilities: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.capabilities"):
        initialize(capabilities)


def listen(notifications: Any, **others: Any) -> dict[str, Any]:
    return known_subscription(msgspec.json.encode({"notifications": notifications, **others}))


def test_subscription_keeps_what_is_to_be_told() -> None:
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["file:///a", "file:///b"]}
    given = {**wanted, "unknown": [[]] * 1000}
    kept = listen(given, _meta={**ENVELOPE, "x": [[]] * 1000}, more=[[]] * 1000)
    assert kept == {"notifications": wanted, "_meta": ENVELOPE}


def test_subscription_to_too_many_resources_is_refused() -> None:
    assert listen({"resourceSubscriptions": ["x"] * MOST_SUBSCRIPTIONS})
    with pytest.raises(ValueError, match="at most 1024 subscriptions"):
        listen({"resourceSubscriptions": ["x"] * (MOST_SUBSCRIPTIONS + 1)})


@pytest.mark.parametrize("uris", [[[[]] * 1000], {"x": []}, None, "x"])
def test_subscription_of_a_wrong_type_stays_wrong_and_small(uris: Any) -> None:
    kept = listen({"resourceSubscriptions": uris})["notifications"]["resourceSubscriptions"]
    assert kept in ([], {}, None, "x")


def test_subscription_to_tasks_keeps_their_ids_and_the_names_of_extensions() -> None:
    declared = {CAPABILITIES_KEY: {"extensions": {"io.modelcontextprotocol/tasks": {"x": [[]] * 1000}}}}
    kept = listen({"taskIds": ["a", "b"]}, _meta={**ENVELOPE, **declared})
    assert kept["notifications"] == {"taskIds": ["a", "b"]}
    assert kept["_meta"][CAPABILITIES_KEY] == {"extensions": {"io.modelcontextprotocol/tasks": {}}}


@pytest.mark.parametrize("ids", [None, "a", [1], {"a": 1}, ["a"] * (MOST_SUBSCRIPTIONS + 1)])
def test_subscription_to_tasks_that_is_no_list_of_a_few_ids_is_refused(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"taskIds|subscriptions"):
        listen({"taskIds": ids})

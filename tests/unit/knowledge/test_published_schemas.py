"""The published schemas of the actions: the contract's own, and no change without another version.

`released` has the schemas as they were last released, by action and version; those of 1.0.0 are the contract's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.knowledge.actions import ACTIONS
from tests.support.schema_changes import Change, change_between, is_fit, without_remarks

RELEASED = Path(__file__).with_name("released")


def released(action: str) -> tuple[str, dict[str, Any]]:
    """The version of an action that was last released, and its schema."""
    (path,) = RELEASED.glob(f"{action}@*.json")
    return path.stem.partition("@")[2], json.loads(path.read_bytes())


@pytest.mark.requirement("MC-CREATE-01", "MC-UPDATE-01", "MC-DELETE-01", "MC-MOVE-01", "MC-QUERY-01", "MC-ACT-01")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_published_schema_is_the_contracts_own_in_every_member(action: str) -> None:
    version, own = released(action)
    published = json.loads(ACTIONS[action].schema_bytes)
    assert version == "1.0.0", "compare with the contract's own, which is of this version"
    assert without_remarks(published) == without_remarks(own)


@pytest.mark.requirement("MC-VER-01")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_schema_does_not_change_without_another_version_of_its_action(action: str) -> None:
    version, before = released(action)
    change = change_between(before, json.loads(ACTIONS[action].schema_bytes))
    assert is_fit(change, version, ACTIONS[action].version), f"{change.name} after {version}"


def _set(*path: str, **keywords: Any) -> Callable[[dict[str, Any]], None]:
    def change(schema: dict[str, Any]) -> None:
        for step in path:
            schema = schema[step]
        for keyword, value in keywords.items():
            if value is None:
                del schema[keyword]
            else:
                schema[keyword] = value

    return change


QUERY = ("properties", "query")
CHANGES: list[tuple[Callable[[dict[str, Any]], None], Change]] = [
    (_set(description="Another one."), Change.NONE),
    (_set(*QUERY, title="T"), Change.NONE),
    (_set("properties", more={"type": "string"}), Change.ADDITION),
    (_set(*QUERY, maxLength=4096), Change.ADDITION),
    (_set(*QUERY, maxLength=None), Change.ADDITION),
    (_set(*QUERY, type=["string", "null"]), Change.ADDITION),
    (_set("properties", "top_k", minimum=0), Change.ADDITION),
    (_set("properties", "context_hints", "properties", "preferred_format", enum=["markdown", "plain", "x"]),
     Change.ADDITION),
    (_set("properties", filters=None), Change.BREAKING),
    (_set(*QUERY, maxLength=10), Change.BREAKING),
    (_set(*QUERY, minLength=1), Change.BREAKING),
    (_set(*QUERY, pattern="^.+$"), Change.BREAKING),
    (_set(*QUERY, type="integer"), Change.BREAKING),
    (_set(required=["query", "top_k"]), Change.BREAKING),
    (_set(additionalProperties=False), Change.BREAKING),
    (_set("properties", "top_k", default=6), Change.BREAKING),
    (_set("properties", "top_k", default=None), Change.BREAKING),
    (_set("properties", "filters", "properties", "tags", items={"type": "integer"}), Change.BREAKING),
    (_set("properties", "context_hints", "properties", "preferred_format", enum=["plain"]), Change.BREAKING),
]  # fmt: skip


@pytest.mark.requirement("MC-VER-01")
@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_what_an_old_request_could_send_and_a_new_server_refuses_is_breaking(
    change: Callable[[dict[str, Any]], None], expected: Change
) -> None:
    _, before = released("knowledge.query_knowledge")
    _, after = released("knowledge.query_knowledge")
    change(after)
    assert change_between(before, after) is expected
    fit = [version for version in ("1.0.0", "1.0.1", "1.1.0", "2.0.0") if is_fit(expected, "1.0.0", version)]
    assert fit == [["1.0.0", "1.0.1", "1.1.0", "2.0.0"], ["1.1.0", "2.0.0"], ["2.0.0"]][expected]

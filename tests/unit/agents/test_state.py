"""An agent's state: a dictionary of which only what changed is stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.agents.state import AgentState
from dragoman.errors import InternalFailure, ResourceExhausted
from tests.support.json_values import json_values


def state(most: int = 1000, **stored: bytes) -> AgentState:
    return AgentState(stored, most)


def test_only_what_changed_is_to_be_stored() -> None:
    kept = state(a=b"1", b=b"[1]", c=b'"x"')
    assert kept.take_changes() == {}
    assert (kept["a"], kept["b"], kept.get("z")) == (1, [1], None)
    assert kept.take_changes() == {}  # Reading changes nothing.
    kept["a"] = 1
    assert kept.take_changes() == {}
    kept["a"], kept["d"] = 2, None
    del kept["c"]
    assert kept.take_changes() == {"a": b"2", "d": b"null", "c": None}
    assert kept.take_changes() == {}
    assert dict(kept) == {"a": 2, "b": [1], "d": None}
    assert len(kept) == 3
    assert repr(kept) == "AgentState({'a': 2, 'b': [1], 'd': None})"


def test_a_change_inside_of_a_value_is_noticed() -> None:
    kept = state(a=b'{"list":[1]}')
    kept["a"]["list"].append(2)
    assert kept.take_changes() == {"a": b'{"list":[1,2]}'}
    kept["a"]["list"].append(3)
    kept.undo()
    assert kept["a"] == {"list": [1, 2]}


def test_a_value_that_was_stored_is_changed_by_nobody_who_still_has_it() -> None:
    kept, mine = state(), [1]
    kept["a"] = mine
    kept["t"] = (1, 2)
    assert kept.take_changes() == {"a": b"[1]", "t": b"[1,2]"}
    mine.append(2)
    assert dict(kept) == {"a": [1], "t": [1, 2]}  # As it would be after a restart.
    assert kept.take_changes() == {}


def test_what_is_undone_leaves_no_trace() -> None:
    kept = state(a=b"1", b=b"2")
    kept["a"], kept["new"] = 5, 6
    del kept["b"]
    assert "b" not in kept
    with pytest.raises(KeyError):
        kept["b"]
    kept.undo()
    assert dict(kept) == {"a": 1, "b": 2}
    assert kept.take_changes() == {}


def test_a_key_that_comes_and_goes_is_no_change() -> None:
    kept = state(a=b"1")
    kept["b"] = 1
    del kept["b"]
    with pytest.raises(KeyError):
        del kept["b"]
    del kept["a"]
    kept["a"] = 1
    assert kept.take_changes() == {}
    assert list(kept) == ["a"]


def test_a_state_that_is_too_large_is_refused_whole() -> None:
    kept = state(10, a=b'"12345"')
    kept["b"] = 1
    assert kept.take_changes() == {"b": b"1"}
    kept["c"] = 1
    with pytest.raises(ResourceExhausted) as refused:
        kept.take_changes()
    assert refused.value.details == {"reason": "state_too_large", "limit": 10, "actual": 12, "retryable": False}
    kept.undo()
    assert dict(kept) == {"a": "12345", "b": 1}
    kept["a"] = ""
    kept["c"] = 1
    assert kept.take_changes() == {"a": b'""', "c": b"1"}


@pytest.mark.parametrize("value", [object(), {1, object()}, "\ud800"])
def test_only_json_can_be_kept(value: Any) -> None:
    kept = state()
    kept["a"] = value
    with pytest.raises(InternalFailure) as refused:
        kept.take_changes()
    assert refused.value.details == {"reason": "bad_state"}
    with pytest.raises(TypeError):
        kept[1] = 1  # type: ignore[index]


values = json_values(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), st.text(max_size=3))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.tuples(values), st.booleans()), max_size=20))
def test_a_state_behaves_as_a_dictionary_and_its_changes_rebuild_it(steps: list[Any]) -> None:
    kept, model, committed, stored = state(100_000), dict[str, Any](), dict[str, Any](), dict[str, bytes]()
    for key, value, is_end in steps:
        if value is not None:
            kept[key] = model[key] = value[0]
        elif key in model:
            del kept[key], model[key]
        assert dict(kept) == model
        if is_end:
            for name, change in kept.take_changes().items():
                stored.pop(name, None) if change is None else stored.update({name: change})
            committed = dict(model)
            assert dict(AgentState(stored, 100_000)) == committed
    kept.undo()
    assert dict(kept) == committed

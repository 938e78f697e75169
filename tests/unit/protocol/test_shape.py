"""How many containers and elements a message has, told from its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.protocol.shape import Shape
from tests.support.cost import work_of
from tests.support.examples import examples
from tests.support.json_values import json_values

values = json_values(
    st.none() | st.integers(-5, 5) | st.text('[]{},:"\\/bnu0041 é', max_size=12),
    st.text('[]{},"\\ x', max_size=6),
    max_size=5,
    max_leaves=20,
)


def containers_in(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + sum(map(containers_in, value.values() if isinstance(value, dict) else value))


def elements_in(value: Any) -> int:
    """Items and members, but for the first of each container."""
    if not isinstance(value, list | dict):
        return 0
    return max(len(value) - 1, 0) + sum(map(elements_in, value.values() if isinstance(value, dict) else value))


@pytest.mark.slow
@given(values, st.booleans(), st.sampled_from([0, 1_000, 50_000]))
@settings(max_examples=examples(5))
def test_exactly_at_a_limit_passes_and_one_more_is_too_many(value: Any, is_escaped: bool, spaces: int) -> None:
    """In a long message with few quotes each of them is searched for; in others the marks are counted."""
    message = json.dumps(value, ensure_ascii=is_escaped).encode() + b" " * spaces
    containers, elements = containers_in(value), elements_in(value)
    assert Shape(containers, elements).excess(message) is None
    if containers:
        assert Shape(containers - 1, None).excess(message) == f"more than {containers - 1} arrays and objects"
    if elements:
        assert Shape(None, elements - 1).excess(message) == f"more than {elements - 1} items and members"


@pytest.mark.parametrize(
    "message", [b"[" * 300, b'{"a":' * 101 + b"[[[" + b'"', b'"\\\\' + b"[" * 50 + b'"' + b"[" * 160]
)
def test_message_that_is_no_json_is_counted_all_the_same(message: bytes) -> None:
    assert Shape(100, None).excess(message) is not None


@pytest.mark.parametrize("number", [b"1e-320", b"1.5E308", b"1e+000100", b"5e-324"])
def test_numbers_that_take_long_are_counted_outside_strings(number: bytes) -> None:
    array, text = (b"[%b]" % b",".join([one] * 20_000) for one in (number, b'"x %b"' % number))
    assert Shape().excess(array) == "more than 10000 numbers with a long exponent"
    assert Shape().excess(text) is None


def test_numbers_with_as_few_digits_as_can_take_long_are_counted_to_the_last() -> None:
    for count, is_refused in ((10_000, False), (10_001, True)):
        message = b"[%b]" % b",".join([b"0e000"] * count) + b" " * 100_000
        assert (Shape().excess(message) is not None) == is_refused


@pytest.mark.parametrize("number", [b"1e-32", b"1.5e12", b"123456.789", b"true"])
def test_other_numbers_are_not_counted(number: bytes) -> None:
    assert Shape().excess(b"[%b]" % b",".join([number] * 30_000)) is None


def test_what_stands_beside_a_number_does_not_make_it_a_long_one() -> None:
    text = b'"' + b"1e123 " * 12_000 + b'"'
    assert Shape().excess(b"[" + text + b",[1,true,1234]" * 12_000 + b"]") is None


def test_long_strings_cost_less_than_one_count_of_their_bytes() -> None:
    text = b"All the world's a stage, [and] all the men and women {merely} players.\\n"
    message = b'{"text":[%b]}' % b",".join([b'"%b"' % (text * 700)] * 20)
    shape = Shape(100_000, 500_000)
    searched, counted = work_of(lambda: shape.excess(message)), work_of(lambda: message.translate(None, b",[{"))
    assert searched.allocated < counted.allocated / 10  # What is not copied is only searched for quotes.
    assert searched.lines < 1_000


def test_short_messages_are_not_looked_at() -> None:
    assert Shape(100, 1000).sure_bytes == 201
    assert Shape(1000, 100).sure_bytes == 100
    assert Shape().excess(b"[" * 10_000) is None

"""What may stand in a log line: no secrets, and nothing that could forge or hide one."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import ItemsView
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from dragoman.telemetry.clean import REDACTED, Cleaner, one_line, sanitize, text_of
from dragoman.telemetry.log import make_cleaner
from dragoman.telemetry.settings import DEFAULT_REDACT_KEYS, LoggingConfig

CLEANER = make_cleaner(LoggingConfig())


@pytest.mark.requirement("FND-LOG-05", "FND-LOG-07")
@pytest.mark.parametrize(
    "key", ["token", "key", "secret", "password", "apiKey", "authorization", "bearer", "session", "cookie"]
)
def test_the_default_keys_are_redacted_in_any_case(key: str) -> None:
    assert key in DEFAULT_REDACT_KEYS
    for spelled in (key, key.lower(), key.upper(), key.title(), key.swapcase()):
        assert CLEANER.redact({spelled: "hunter2", "other": "shown"}) == {spelled: REDACTED, "other": "shown"}


@pytest.mark.requirement("FND-LOG-07")
def test_custom_keys_are_redacted_besides_the_default_ones() -> None:
    cleaner = make_cleaner(LoggingConfig(redact_keys=("Badge",)))
    assert cleaner.redact({"badge": 1, "BADGE": 2, "token": 3, "name": 4}) == {
        "badge": REDACTED,
        "BADGE": REDACTED,
        "token": REDACTED,
        "name": 4,
    }


@pytest.mark.requirement("FND-LOG-05")
def test_values_are_redacted_at_any_depth_in_objects_and_arrays() -> None:
    given = {"a": [{"b": ({"token": "hunter2"}, [{"Password": {"inner": "hunter2"}}])}], "c": {"key": ["hunter2"]}}
    assert CLEANER.redact(given) == {
        "a": [{"b": [{"token": REDACTED}, [{"Password": REDACTED}]]}],
        "c": {"key": REDACTED},
    }


@pytest.mark.requirement("FND-LOG-05")
@pytest.mark.parametrize("value", ["hunter2", 0, None, False, [], {}, ["hunter2"], {"a": "hunter2"}, object()])
def test_whatever_stands_under_a_secret_key_is_redacted(value: Any) -> None:
    assert CLEANER.redact({"secret": value}) == {"secret": "[REDACTED]"}


@pytest.mark.requirement("FND-LOG-05")
def test_keys_that_only_contain_a_secret_word_are_left_alone() -> None:
    facts = {"tokens": 5, "keyboard": "qwerty", "sessionId": "s", "monkey": 1, "": 2}
    assert CLEANER.redact(facts) == facts


@pytest.mark.requirement("FND-LOG-06")
def test_what_is_cleaned_is_a_copy() -> None:
    given = {"token": "hunter2", "text": "a\nb", "deep": [{"key": "hunter2", "text": "\x1b"}], "pair": (1, "\t")}
    before = copy.deepcopy(given)
    redacted, cleaned = CLEANER.redact(given), CLEANER.clean(given)
    assert given == before
    cleaned["deep"].append("changed")
    redacted["deep"][0]["text"] = "changed"
    assert given == before


@pytest.mark.requirement("FND-LOG-08")
@pytest.mark.parametrize("number", [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, 0xD800, 0xDFFF])
def test_control_characters_and_line_separators_are_escaped(number: int) -> None:
    assert sanitize(f"a{chr(number)}b") == f"a\\u{number:04x}b"


@pytest.mark.parametrize("number", [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF])
def test_characters_that_reorder_text_are_escaped(number: int) -> None:
    assert sanitize(f"a{chr(number)}b") == f"a\\u{number:04x}b"


@pytest.mark.parametrize("text", ["", "plain", "é", "日本語", "🙂", "a b", "\\n", "a\u0301", "¿", '"quoted"'])
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.requirement("FND-LOG-08")
def test_every_string_is_sanitised_keys_too() -> None:
    assert CLEANER.clean({"a\n": "b\n", "c": ["d\n", ("e\n", {"f": "g\r\n\t"})]}) == {
        "a\\u000a": "b\\u000a",
        "c": ["d\\u000a", ["e\\u000a", {"f": "g\\u000d\\u000a\\u0009"}]],
    }


def test_redaction_alone_leaves_characters_as_they_are() -> None:
    assert CLEANER.redact({"a": "b\n", "token": "c\n"}) == {"a": "b\n", "token": REDACTED}


class Word(StrEnum):
    HELLO = "hello\n"


class Odd:
    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (None, None),
        (True, True),
        (1, 1),
        (1.5, 1.5),
        (2**70, 2**70),
        (Word.HELLO, "hello\\u000a"),
        (MappingProxyType({"token": 1}), {"token": REDACTED}),
        (UserDict({"token": 1}), {"token": REDACTED}),
        ({1: {None: 2}}, {"1": {"None": 2}}),
        (frozenset({1}), [1]),
        (b"hunter2", "<bytes>"),
        (Odd(), "<Odd>"),
        (ValueError("hunter2"), "<ValueError>"),
    ],
)
def test_values_of_any_type_come_out_as_json_and_strangers_only_by_their_type(value: Any, cleaned: Any) -> None:
    assert CLEANER.clean(value) == cleaned


def test_what_is_nested_too_deeply_is_cut_off() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    text = str(CLEANER.clean(deep))
    assert "[too deep]" in text
    assert len(text) < 1000


def test_a_value_that_contains_itself_is_cut_off() -> None:
    circle: dict[str, Any] = {"token": "hunter2"}
    circle["again"] = circle
    text = str(CLEANER.clean(circle))
    assert "hunter2" not in text
    assert len(text) < 10_000


class Patient(dict):  # type: ignore[type-arg]
    """Lets itself be walked through so many times and no more."""

    walks = 0

    def items(self) -> ItemsView[Any, Any]:
        Patient.walks += 1
        assert Patient.walks < 100_000, "walked through without end"
        return super().items()


def test_a_value_that_contains_itself_twice_is_cut_off_before_the_end_of_time() -> None:
    Patient.walks = 0
    circle = Patient()
    circle["left"] = circle["right"] = circle
    assert CLEANER.clean({"facts": circle}).keys() == {"facts"}


def test_a_value_that_shares_its_parts_is_cut_off_before_the_end_of_time() -> None:
    Patient.walks = 0
    value: Any = "end"
    for _ in range(40):
        value = Patient(left=value, right=value)
    assert CLEANER.clean({"facts": value}).keys() == {"facts"}


def test_a_cleaner_knows_whether_keys_are_harmless() -> None:
    cleaner = Cleaner(["Badge"])
    assert cleaner.has_no_secret_keys(["a", "badges"])
    assert not cleaner.has_no_secret_keys(["a", "bADGE"])


def test_a_text_becomes_one_line_of_bounded_length() -> None:
    assert one_line("a\nb\x1b[2J\ud800c", 20) == "a b [2J c"
    assert one_line("x" * 20, 20) == "x" * 20
    assert one_line("x" * 21, 20) == "x" * 19 + "…"


def test_an_object_that_cannot_be_a_text_is_named_by_its_type() -> None:
    class Unspeakable:
        def __str__(self) -> str:
            raise RuntimeError

    assert (text_of(5), text_of(Unspeakable())) == ("5", "<str() of Unspeakable failed>")

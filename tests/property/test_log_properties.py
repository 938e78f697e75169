"""Property 9: the log is redacted and sanitised, whatever is put into it, and nothing that is put into it changes."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.telemetry.clean import Cleaner, sanitize
from dragoman.telemetry.log import Entry, EntryWriter, StructuredLogger, make_cleaner
from dragoman.telemetry.settings import DEFAULT_REDACT_KEYS, LoggingConfig
from dragoman.testing import ManualClock

pytestmark = pytest.mark.slow

MARK = "hunter2"
"""Stands only where it must not be seen."""
HEAD = {"timestamp": "2024-01-15T10:30:00.000Z", "level": "info"}
CUSTOM = ("badge", "Ünïcode")
CONFIG = LoggingConfig(redact_keys=CUSTOM)
SECRET = {key.lower() for key in (*DEFAULT_REDACT_KEYS, *CUSTOM)}
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

INJECTIONS = [
    '"}\n{"level":"error","message":"forged"}',
    "\r\nHTTP/1.1 200 OK\r\n",
    "\x1b[2J\x1b[31mred",
    "\x9b31m",
    "\u202etxt.exe",
    "\u2028\u2029\x85\x0b\x0c",
    "\x00\x7f",
    "\\n\\u000a",
    "%s %(token)s {token} ${token}",
    '{"jsonrpc":"2.0","id":1,"result":{}}',
    "\ud800 alone",
    "]}'\"`;--",
]

plain_text = st.text(max_size=30)
surrogates = st.text(st.characters(codec=None, categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Lu"]), max_size=20)
hostile = st.one_of(plain_text, surrogates, st.sampled_from(INJECTIONS), st.just("x" * 500)).filter(
    lambda text: MARK not in text
)
secret_keys = st.sampled_from(sorted(SECRET)).flatmap(
    lambda key: st.sampled_from([key, key.upper(), key.title(), key.swapcase()]).filter(
        lambda made: made.lower() == key
    )
)
harmless_keys = hostile.filter(
    lambda text: text.lower() not in SECRET and text not in ("timestamp", "level", "message")
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), hostile, st.just(2**100), st.binary(max_size=9)
)
secrets = st.sampled_from([MARK, [MARK], {"a": MARK}, (MARK, {"b": [MARK]}), MARK.encode(), f"{MARK}\n"])


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects in which the mark stands under secret keys and nowhere else."""
    harmless = st.dictionaries(harmless_keys, values, max_size=4)
    hidden = st.dictionaries(secret_keys, secrets, max_size=2)
    return st.builds(lambda first, second: {**first, **second}, harmless, hidden)


nested = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner, inner), objects(inner)), max_leaves=8
)
facts = objects(nested)


def deep(value: Any, depth: int) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"down": value}
    return value


def logged(entry: dict[str, Any], message: str = "m") -> tuple[list[Entry], bytes, bytes]:
    """The entries of a logger, and what both kinds of writer make of them."""
    entries: list[Entry] = []
    logger = StructuredLogger(entries.append, ManualClock(), CONFIG)
    logger.info(message, entry)
    logger.child(entry).info(message)
    return entries, EntryWriter(CONFIG)(entries), EntryWriter(CONFIG, text=True)(entries)


def redacted(value: Any) -> Any:
    """What redaction is meant to do, said as plainly as possible."""
    if isinstance(value, dict):
        return {key: "[REDACTED]" if key.lower() in SECRET else redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return "<bytes>" if isinstance(value, bytes) else value


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03")
@given(facts, hostile)
@example({"token": MARK}, "flat")
@example({"a": [{"b": ({"APIKEY": MARK},)}]}, "nested")
def test_no_secret_is_ever_written(entry: dict[str, Any], message: str) -> None:
    """Property 9: what stands under a redact key, at any depth and in any case, does not reach either format."""
    _, lines, text = logged(entry, message)
    assert MARK.encode() not in lines
    assert MARK.encode() not in text


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03")
@given(facts, hostile)
@example({text: text for text in INJECTIONS}, "".join(INJECTIONS))
@example({"huge": "\n" * 50_000, "wide": ["\x1b"] * 1_000}, "\u2028" * 50_000)
def test_one_entry_is_one_line_without_unsafe_characters(entry: dict[str, Any], message: str) -> None:
    """Property 9: no string, wherever it stands, can break a line or command a terminal."""
    _, lines, text = logged(entry, message)
    for written in (lines, text):
        decoded = re.sub("\x1b\\[(2|33|31|0)m", "", written.decode("utf-8"))
        assert decoded.count("\n") == len(decoded.splitlines()) == 2
        assert UNSAFE.findall(decoded.replace("\n", "")) == []
    for line in lines.splitlines():
        parsed = json.loads(line)
        assert {key: parsed[key] for key in HEAD} == HEAD
        assert parsed["message"] == sanitize(message)


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03")
@given(facts, hostile)
def test_nothing_that_is_logged_is_changed(entry: dict[str, Any], message: str) -> None:
    """Property 9: logging, redacting and sanitising leave runtime objects as they were."""
    before = copy.deepcopy(entry)
    logged(entry, message)
    cleaner = make_cleaner(CONFIG)
    cleaner.redact(entry)
    cleaner.clean(entry)
    assert repr(entry) == repr(before)


@given(facts)
def test_redaction_takes_out_what_it_must_and_nothing_else(entry: dict[str, Any]) -> None:
    """Property 9: the redacted copy differs from the original under redact keys only."""
    assert repr(make_cleaner(CONFIG).redact(entry)) == repr(redacted(entry))


@pytest.mark.requirement("FND-TEST-03")
@given(hostile)
def test_sanitising_is_done_after_one_time(text: str) -> None:
    """Property 9: a sanitised string is safe, reads back as the original, and sanitising it again changes nothing."""
    clean = sanitize(text)
    assert UNSAFE.search(clean) is None
    assert sanitize(clean) == clean
    if "\\u" not in text:
        assert re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), clean) == text


@given(st.lists(st.tuples(facts, hostile), max_size=4))
def test_a_batch_is_written_as_its_entries_one_by_one(batch: list[tuple[dict[str, Any], str]]) -> None:
    """Property 9: that many entries are written at once is not to be seen in what is written."""
    entries = [entry for each, message in batch for entry in logged(each, message)[0]]
    for writer in (EntryWriter(CONFIG), EntryWriter(CONFIG, text=True)):
        assert writer(entries) == b"".join(writer([entry]) for entry in entries)


@pytest.mark.requirement("FND-TEST-03")
@given(facts, st.integers(min_value=0, max_value=300))
@example({"token": MARK}, 63)
@example({"token": MARK}, 64)
@example({"token": MARK}, 65)
def test_depth_hides_nothing_and_breaks_nothing(entry: dict[str, Any], depth: int) -> None:
    """Property 9: however deeply it is buried, a secret is not written and the entry stays one line."""
    _, lines, text = logged({"down": deep(entry, depth)})
    assert MARK.encode() not in lines + text
    assert lines.count(b"\n") == text.count(b"\n") == 2


@pytest.mark.requirement("FND-TEST-03")
@given(facts, st.sampled_from(["dict", "list", "both"]))
def test_a_value_that_contains_itself_is_cut_off(entry: dict[str, Any], kind: str) -> None:
    """Property 9: circular values are cut off, their secrets too, and they are still circular afterwards."""
    circle: dict[str, Any] = {"token": MARK, "inner": entry}
    if kind == "dict":
        circle["again"] = circle
    elif kind == "list":
        circle["again"] = [circle]
    else:
        other: list[Any] = [circle]
        circle["again"] = {"other": other}
    keys = list(circle)
    _, lines, text = logged({"circle": circle})
    assert MARK.encode() not in lines + text
    assert lines.count(b"\n") == text.count(b"\n") == 2
    assert list(circle) == keys
    assert circle["token"] == MARK
    assert circle["inner"] is entry


@given(st.text(min_size=1, max_size=10), st.text(min_size=1, max_size=10))
def test_a_key_is_redacted_if_and_only_if_it_equals_a_redact_key_but_for_case(key: str, other: str) -> None:
    """Property 9: custom keys are matched whole, ignoring case."""
    cleaner = Cleaner([key])
    assert cleaner.redact({key: 1, key.lower(): 1}) == dict.fromkeys((key, key.lower()), "[REDACTED]")
    assert cleaner.redact({other: 1})[other] == ("[REDACTED]" if other.lower() == key.lower() else 1)

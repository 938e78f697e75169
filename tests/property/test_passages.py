"""Properties of how documents are cut into passages."""

from __future__ import annotations

import json
import random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.knowledge import passages
from dragoman.knowledge.index import Passage
from dragoman.knowledge.passages import MOST, MOST_BYTES, TARGET, passages_of
from dragoman.search.words import MOST_LETTERS, words_in
from tests.support.examples import examples

MARKDOWN, PLAIN, JSON = "text/markdown", "text/plain", "application/json"

_WORD = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12)
_LINE = st.lists(_WORD, max_size=8).map(" ".join)
_LONG_LINE = st.tuples(_WORD, st.integers(50, 900)).map(lambda each: f"{each[0]} " * each[1])
_BEGINNING = st.sampled_from(
    ["", "", "", "# ", "## ", "###### ", "- ", "  - ", "1. ", "> ", "> - ", "    ", "```", "~~~", "| ", "|-|", "<div>",
     "---", "===", "\t", "[a]: ", "* * *", "<!--", "-->", "\0", "\u2028", "\r", "\f"]
)  # fmt: skip
_DOCUMENT = st.lists(st.tuples(_BEGINNING, st.one_of(_LINE, _LINE, _LINE, _LONG_LINE)), max_size=40).map(
    lambda lines: "\n".join("".join(line) for line in lines)
)
_VALUE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _LINE | _LONG_LINE,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_LINE | _LONG_LINE, inner, max_size=5),
    max_leaves=30,
)


def words_of(passages: list[Passage]) -> set[str]:
    return {word for each in passages for text in (*each.heading, each.text) for word in words_in(text)}


def check_bounds(passages: list[Passage]) -> None:
    assert passages
    for each in passages:
        assert len(each.text.encode()) <= MOST
        assert len(each.heading) <= 6
        assert all(len(heading) <= 120 for heading in each.heading)


@pytest.mark.slow
@given(_DOCUMENT, st.sampled_from([MARKDOWN, PLAIN]))
@settings(max_examples=examples(2))
def test_no_word_is_lost_and_no_passage_is_too_large(body: str, mime_type: str) -> None:
    passages = passages_of(mime_type, body)
    check_bounds(passages)
    assert passages == passages_of(mime_type, body)
    assert words_of(passages) >= {*words_in(body)}


@pytest.mark.slow
@given(_VALUE)
@example({"owls": [""]})
def test_no_word_of_json_is_lost(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False)
    passages = passages_of(JSON, body)
    check_bounds(passages)
    assert words_of(passages) >= {*words_in(body)}


@given(
    st.one_of(_VALUE.map(json.dumps), _DOCUMENT, st.text()), st.sampled_from([MARKDOWN, PLAIN, JSON]), st.integers(0, 9)
)
def test_what_is_behind_the_beginning_of_a_long_text_changes_nothing(body: str, mime_type: str, more: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passages, "MOST_BYTES", most := max(1, len(body) // 2))
        assert passages_of(mime_type, body[: most + 1 + more]) == passages_of(mime_type, body)


@given(st.text(), st.sampled_from([MARKDOWN, PLAIN, JSON]))
def test_any_text_can_be_cut(body: str, mime_type: str) -> None:
    check_bounds(passages_of(mime_type, body))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mime_type", [MARKDOWN, PLAIN])
def test_an_edit_changes_only_passages_nearby(seed: int, mime_type: str) -> None:
    chance = random.Random(seed)
    paragraphs = [" ".join(str(chance.random()) for _ in range(chance.randint(1, 30))) for _ in range(300)]
    before = {*passages_of(mime_type, "\n\n".join(paragraphs))}
    place = chance.randrange(300)
    paragraphs[place] += " " + "more " * chance.randint(1, 60)
    after = {*passages_of(mime_type, "\n\n".join(paragraphs))}
    assert len(before) > 60
    assert 1 <= len(after - before) <= 20


def test_headings_are_kept_with_what_stands_under_them() -> None:
    text = "Some text that is long enough for a section of its own, which it would not be if it were any shorter."
    headings = ("Intro", "# One\n\n", "## *Two* `code` a_b 2*3 ##\n\n", "Three\n=====\n\n", "#### Deep\n\n")
    body = "\n\n".join(f"{heading} {text}" for heading in headings)
    assert passages_of(MARKDOWN, body) == [
        Passage((), f"Intro {text}"),
        Passage(("One",), f" {text}"),
        Passage(("One", "Two code a_b 2*3"), f" {text}"),
        Passage(("Three",), f" {text}"),
        Passage(("Three", "Deep"), f" {text}"),
    ]


def test_paragraphs_are_joined_and_code_and_tables_stay_whole() -> None:
    code = "```python\n" + "\n\n".join(f"line {number}" for number in range(200)) + "\n```"
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| {number} | x |" for number in range(150))
    found = [each.text for each in passages_of(MARKDOWN, f"a\n\nb\n\n- c\n- d\n\n{code}\n\n{table}\n\ne")]
    assert code in found
    assert table in found
    assert TARGET < len(code) <= MOST
    assert TARGET < len(table) <= MOST
    assert len(found) <= 5


def test_a_heading_with_nothing_under_it_is_text() -> None:
    heading = "# " + "heading " * 20
    assert passages_of(MARKDOWN, heading) == [Passage((), heading)]


def test_small_sections_are_joined_with_their_headings() -> None:
    body = "# Terms\n\n## A\n\none\n\n## B\n\ntwo\n"
    assert {word for each in passages_of(MARKDOWN, body) for word in words_in(each.text)} >= {"a", "one", "b", "two"}
    assert len(passages_of(MARKDOWN, "# h\nx\n\n" * 2000)) < 50


def test_what_stands_before_the_text_between_dashes_is_no_heading() -> None:
    body = "---\ntitle: x\ntags: [y]\n---\n\n# Heading\n\n" + "text " * 50
    assert [each.heading for each in passages_of(MARKDOWN, body)] == [(), ("Heading",)]


def test_the_names_of_members_are_headings() -> None:
    value = {"server": {"host": "here", "ports": [1, 2], "empty": {}}, "on": True, "list": [{"a": "b"}, None]}
    assert passages_of(JSON, json.dumps(value)) == [
        Passage(("server",), "host: here"),
        Passage(("server", "ports"), "1\n2"),
        Passage(("server",), "empty: {}"),
        Passage((), "on: true"),
        Passage(("list",), "a: b\nnull"),
    ]


@pytest.mark.slow
def test_what_is_searched_of_a_document_is_measured_in_bytes() -> None:
    passages = passages_of(PLAIN, "鸮 " * MOST_BYTES)
    assert sum(len(each.text.encode()) for each in passages) == pytest.approx(MOST_BYTES, rel=0.01)
    assert words_of(passages) == {"鸮"}


@pytest.mark.parametrize("mime_type", [PLAIN, JSON, MARKDOWN])
def test_a_document_of_many_megabytes_is_found_by_its_beginning(mime_type: str) -> None:
    body = '["first ' + "word " * (MOST_BYTES // 5 - 4) + 'last", "' + "beyond " * 100_000 + '"]'
    passages = passages_of(mime_type, body)
    check_bounds(passages)
    assert words_of(passages) - {"be", "bey", "beyo", "beyon", "beyond", "b"} == {"first", "word", "last"}
    assert sum(len(each.text) for each in passages) <= MOST_BYTES


def _beginner() -> str:
    """A short text that is chosen by its hash to begin a passage."""
    texts = (f"{number:04}" for number in range(10_000))
    return next(text for text in texts if crc32(text.encode()) < (len(text) << 32) // (4 * TARGET))


@pytest.mark.parametrize(
    ("mime_type", "body", "most"),
    [
        (PLAIN, "\n\n".join([_beginner()] * 5_000), 1_000),
        (JSON, json.dumps([_beginner()] * 5_000), 1_000),
        (JSON, json.dumps({f"k{number}": {"x": 1} for number in range(30_000)}), 10_600),
    ],
)
def test_a_document_has_no_passage_for_each_few_bytes(mime_type: str, body: str, most: int) -> None:
    passages = passages_of(mime_type, body)
    assert len(passages) < most
    assert words_of(passages) >= {*words_in(body)}


def test_an_empty_document_has_one_passage() -> None:
    for body in ("", " \n\n\t", "\n" * 1000):
        for mime_type in (MARKDOWN, PLAIN):
            assert passages_of(mime_type, body) == [Passage((), "")]


def test_a_word_that_is_longer_than_a_passage_is_cut() -> None:
    passages = passages_of(PLAIN, "x" * 5000)
    check_bounds(passages)
    assert "".join(each.text for each in passages) == "x" * 5000
    assert words_of(passages) == {"x" * MOST_LETTERS}


COSTLY = {
    "one line": "word " * 200_000, "no spaces": "x" * 1_000_000, "headings": "# h\nx\n\n" * 100_000,
    "quotes": ">" * 1_000_000, "nested quotes": ("> " * 50 + "x\n") * 10_000, "items": "- a\n" * 250_000,
    "nested items": "- " * 500_000, "brackets": "[" * 1_000_000, "definitions": "[a]: b\n" * 100_000,
    "rows": "|a|b|\n|-|-|\n" + "|c|d|\n" * 100_000, "columns": "|" * 500_000 + "\n" + "|-" * 250_000 + "|\n",
    "fences": "```\n" * 250_000, "markup": "<div>\n" * 150_000, "underlines": "a\n" * 300_000 + "===\n",
    "comments": "<!--\n" * 200_000, "both": ("> - " * 12 + "x\n") * 10_000, "tabs": "\t" * 1_000_000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_a_megabyte_of_anything_is_cut(name: str) -> None:
    """A parser that takes time with the square of the length would not end within the limit of a test."""
    check_bounds(passages_of(MARKDOWN, COSTLY[name]))


def test_numbers_of_json_are_shown_as_they_are_written() -> None:
    body = '{"small": 1e-320, "large": [1e999, 1.50], "whole": 7}'
    assert [each.text for each in passages_of(JSON, body)] == ["small: 1e-320", "1e999\n1.50", "whole: 7"]


@pytest.mark.parametrize("value", ["[]", '{"a":1}', "1e-320"])
def test_json_of_very_many_values_is_no_more_than_text(value: str) -> None:
    body = f"[{','.join([value] * 530_000)}]"
    assert passages_of(JSON, body) == passages_of(PLAIN, body)

"""What counts as a word."""

from __future__ import annotations

import unicodedata
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.search.words import finds_longer_words, text_in, words_in
from tests.support.words import beginnings_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        (" -_.,!? \0\n", ()),
        ("Hello, hello WORLD", ("hello", "world")),
        ("user_name foo-bar a.b/c", ("user", "name", "foo", "bar", "a", "b", "c")),
        ("Ünïcode ＵＮＩＣＯＤＥ unicode ℌello", ("unicode", "hello")),
        ("İstanbul straße ﬁne", ("istanbul", "strasse", "fine")),
        ("東京タワー", ("東", "京", "タ", "ワ", "ー")),
        ("𠀀𠀁", ("𠀀", "𠀁")),
        ("한국어 검색", ("한국어", "검색")),
        ("हिन्दी भाषा", ("हिन्दी", "भाषा")),
        ("Ελλάδα Россия", ("ελλαδα", "россия")),
        ("3.14 1e5", ("3", "14", "1e5")),
        ("😀 \ue000\U000f0000", ()),
        ("a" * 20, ("a" * 16,)),
        ("' OR 1=1; --", ("or", "1")),
    ],
)
def test_words_are_runs_of_letters_and_digits_without_case_and_accents(text: str, words: tuple[str, ...]) -> None:
    assert words_in(text) == words


@given(st.text())
def test_the_words_of_words_are_themselves(text: str) -> None:
    words = words_in(text)
    assert words_in(" ".join(words)) == words
    assert all(word and word.split() == [word] and len(word) <= 16 for word in words)


@pytest.mark.parametrize("word", ["한국어", "が", "हिन्दी", "ко\u0308", "कि", "ক\u09c7\u09be", "日"])
@pytest.mark.parametrize("before", range(100, 140))
def test_long_text_has_the_words_of_its_parts(word: str, before: int) -> None:
    assert words_in("д" * before + " " + word * 300)[1:] == words_in(word * 300)
    assert set(words_in(f"{word} " * 300)) == set(words_in(word))


def test_marks_beyond_reason_keep_no_word_from_being_found() -> None:
    marks = "\u0591\u05b0\u0315\u0300" * 20_000
    found = words_in(f"before x{marks} after")
    assert (found[0], found[1][0], found[-1]) == ("before", "x", "after")


def test_a_long_run_of_marks_is_normalised_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """To sort one takes time that grows with the square of its length."""
    normalize, lengths = unicodedata.normalize, []

    def counted(form: Literal["NFC", "NFKD"], text: str) -> str:
        lengths.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", counted)
    words_in("x" + "\u0315\u0300\u0327\u0591" * 1_000)
    assert 0 < max(lengths) < 200


@given(st.text())
def test_words_have_nothing_in_them_that_an_index_could_take_for_syntax(text: str) -> None:
    assert all(letter.isalnum() for word in words_in(text) for letter in word if letter.isascii())


@pytest.mark.parametrize(
    ("word", "beginnings"),
    [("ab", ("ab",)), ("abc", ("abc",)), ("abcde", ("abc", "abcd", "abcde")), ("日", ("日",))],
)
def test_a_word_is_found_by_its_beginnings_of_three_letters_and_more(word: str, beginnings: tuple[str, ...]) -> None:
    assert beginnings_of(word) == beginnings
    assert [finds_longer_words(beginning) for beginning in beginnings] == [len(word) > 2] * len(beginnings)


def test_the_longest_words_find_only_themselves() -> None:
    assert (finds_longer_words("a" * 15), finds_longer_words("a" * 16)) == (True, False)
    assert len(beginnings_of("a" * 16)) == 14


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", {"a"}),
        (None, set()),
        (True, set()),
        (7, {"7"}),
        ({"name": ["x", {"y": 1.5}], "other": [[], {}, False]}, {"x", "1.5"}),
    ],
)
def test_the_text_of_a_value_is_its_strings_and_numbers(value: Any, text: set[str]) -> None:
    assert set(filter(None, text_in(value).split("\n"))) == text


def test_the_text_of_a_deep_value_is_found() -> None:
    value: Any = "bottom"
    for _ in range(100_000):
        value = [value]
    assert text_in(value) == "bottom"

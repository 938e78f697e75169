"""Texts as the tokens that BERT's uncased models know: words without accents and capitals, and pieces of words.

Unlike the reference, names of special tokens within a text, such as `[SEP]`, are plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final
from unicodedata import category, normalize

CLS: Final = "[CLS]"
SEP: Final = "[SEP]"
_UNKNOWN = "[UNK]"
_LONGEST_WORD = 100
_MOST_CHARACTERS_PER_TOKEN = 64
"""No text is read further than this many times the tokens that are wanted: a text may be of any length."""
_DROPPED = ("Cc", "Cf", "Co", "Cs")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Each of them is a word; the ranges are the reference's."""


class WordPiece:
    """The tokenizer of a vocabulary: words and pieces of words, which begin with `##`, by their numbers."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        """Raises `KeyError` if a special token is missing."""
        self._numbers: Mapping[str, int] = {word: number for number, word in enumerate(vocabulary)}
        self._first, self._last, self._unknown = (self._numbers[each] for each in (CLS, SEP, _UNKNOWN))

    def encode(self, text: str, most: int) -> list[int]:
        """The tokens of a text, the special ones at both ends among them; at most `most`, the rest is left out."""
        words = _words(text[: most * _MOST_CHARACTERS_PER_TOKEN])
        pieces = (number for word in words for number in self._pieces(word))
        return [self._first, *islice(pieces, most - 2), self._last]

    def _pieces(self, word: str) -> Sequence[int]:
        """The longest piece that begins the word, then the longest that begins the rest, and so on."""
        found: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST_WORD:
            for end in range(len(word), start, -1):
                number = self._numbers.get(f"##{word[start:end]}" if start else word[:end])
                if number is not None:
                    break
            else:
                return (self._unknown,)
            found.append(number)
            start = end
        return found or (self._unknown,)


def _words(text: str) -> Iterator[str]:
    """The words of a text in small letters; a punctuation mark or an ideograph is a word of its own."""
    if text.isascii():  # Most are, and this takes a fifth of the time.
        cleaned = "".join(each for each in text if each.isprintable() or each in "\t\n\r")
    else:
        cleaned = "".join(map(_clean, text))
        cleaned = "".join(each for each in normalize("NFD", cleaned) if category(each) != "Mn")
    for word in cleaned.split():
        start = 0
        for place, each in enumerate(word):
            if _is_punctuation(each):
                if start < place:
                    yield _lower(word[start:place])
                yield _lower(each)
                start = place + 1
        if start < len(word):
            yield _lower(word[start:])


def _lower(word: str) -> str:
    return "".join(map(str.lower, word))  # One by one: otherwise a sigma at the end of a word would be another letter.


def _clean(character: str) -> str:
    number = ord(character)
    if (character.isspace() and category(character) != "Cc") or character in "\t\n\r":
        return " "
    if number == 0xFFFD or category(character) in _DROPPED:
        return ""
    return f" {character} " if any(low <= number <= high for low, high in _IDEOGRAPHS) else character


def _is_punctuation(character: str) -> bool:
    number = ord(character)
    if number < 128:
        return 33 <= number <= 47 or 58 <= number <= 64 or 91 <= number <= 96 or 123 <= number <= 126
    return category(character)[0] == "P"

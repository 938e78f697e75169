"""What counts as a word when something is searched for.

1. Case, accents and typographic variants do not matter: `Ünïcode`, `unicode` and `ＵＮＩＣＯＤＥ` are one word.
2. A word is a run of letters, digits and the marks that belong to them. Scripts that do not put spaces between words
   give one word per character.
3. Only the first 16 characters of a word count.
4. A word that is looked for finds the words that begin with it, if it has at least three characters; a shorter one
   finds only itself.

5. A character has at most about 30 marks, as in the Stream-Safe Text Format of UAX #15. Further ones are taken by
   themselves, since to sort a run of marks takes time that grows with the square of its length.

Rules 3 and 4 together mean that every lookup is one entry of an index, whatever is asked: there are at most 14
beginnings of a word to keep.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Literal

MOST_LETTERS = 16
FEWEST_LETTERS_OF_A_BEGINNING = 3

_PIECE = 128
_MOST_MARKS = 30

_ACCENTS = re.compile("[\u0300-\u036f]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_FIRST_UNSPACED_PLANE = 0x20000  # From here on: ideographs only.


class _Letters(dict[int, str]):
    """For `str.translate`: letters stay, everything else is a space. Learns each character when it first occurs."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        category = unicodedata.category(letter)
        if category[0] == "C":
            return " "  # Not remembered: there are a million of them, and somebody might send them all.
        if category[0] not in "LNM":
            letter = " "
        elif _UNSPACED.match(letter) or code >= _FIRST_UNSPACED_PLANE:
            letter = f" {letter} "
        self[code] = letter
        return letter


_LETTERS = _Letters()


def words_in(text: str) -> tuple[str, ...]:
    """The words of `text`, each once, in the order of their first occurrence."""
    return tuple(dict.fromkeys(all_words_in(text)))


def all_words_in(text: str) -> list[str]:
    """The words of `text`, each as often as it occurs."""
    if text.isascii():
        text = text.lower()
    else:
        text = _ACCENTS.sub("", _normalized("NFKD", text).casefold())
        text = _normalized("NFC", text)
    return [word[:MOST_LETTERS] for word in text.translate(_LETTERS).split()]


def _normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """The text in a normal form, piece by piece; each ends after a character with its marks, if one is near."""
    pieces = []
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        last = min(end + _MOST_MARKS, len(text))
        while end < last and _joins(text[end]):
            end += 1
        pieces.append(unicodedata.normalize(form, text[begin:end]))
        begin = end
    return "".join(pieces)


def _joins(letter: str) -> bool:
    """Whether a normal form may join a character to the one before: marks, and vowels and finals of Hangul."""
    return unicodedata.category(letter)[0] == "M" or "\u1160" <= letter <= "\u11ff"


def finds_longer_words(word: str) -> bool:
    """Whether looking for `word` also finds words that only begin with it."""
    return FEWEST_LETTERS_OF_A_BEGINNING <= len(word) < MOST_LETTERS


def text_in(value: Any) -> str:
    """The strings and numbers in a JSON value, one per line; the names of members are not among them."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, int | float) and not isinstance(item, bool):
            found.append(str(item))
    return "\n".join(found)

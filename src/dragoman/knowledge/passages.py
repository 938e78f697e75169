"""How a document is cut into passages.

1. Every word of a document is in one of its passages, in the text or in the headings, up to `MOST_BYTES`: all
   passages of a document are written in one transaction, and nobody else writes meanwhile.
2. Text is cut where the document is: at headings, between paragraphs and items. Neighbours are joined up to `TARGET`
   bytes, about 200 tokens. Code and tables stay whole up to `MOST` bytes, which no passage exceeds.
3. A change of one paragraph changes passages nearby only: where a passage begins depends on what is joined, but some
   paragraphs, chosen by their hash, always begin one, unless the one before would be very short.
4. The time is linear in the length of the document, whatever is in it, and so is the number of passages: no text makes
   a passage of each few bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from dragoman.knowledge.index import Passage
from dragoman.protocol.shape import Shape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

TARGET = 800
MOST = 4 * TARGET
MOST_BYTES = 4 << 20
"""Of a document, which take a second or two to write. JSON that is longer is taken as plain text."""
MOST_CHARACTERS = MOST_BYTES + 1
"""Of a document, that are looked at: more tell nothing else about its passages."""
_TARGETS_BETWEEN_BEGINNINGS = 4
_SHORTEST = 32
"""Bytes of a passage that ends because of the hash of what follows."""
_SMALL_SECTION = 80
_MOST_HEADINGS = 6
_LONGEST_HEADING = 120
_MOST_NESTING = 20
_MOST_FRONT_LINES = 100
_MOST_LINES = 20_000
"""Of Markdown, a second's work at the worst; what follows is taken as plain text."""
_MOST_APART = 10_000
"""Passages of JSON. The names in what follows are no headings but text: below each, a few bytes could be a passage."""
_SHAPE = Shape(262_144, 524_288)
"""The most that JSON may consist of; other JSON is taken as plain text. No other thread runs while it is decoded."""
_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n\s*")
_MARKUP = re.compile(r"(?<!\w)[*`_]+|[*`_]+(?!\w)")
_decode = msgspec.json.Decoder(float_hook=str).decode
"""Numbers are shown as they are written. Some, such as `1e-320`, take as long to decode as a hundred others."""
_WHOLE = frozenset(("fence", "code_block", "table_open"))


def passages_of(mime_type: str, body: str) -> list[Passage]:
    """The passages of a document; one without text if there is nothing else, so that its title can be found."""
    joiner, length, body = _Joiner(), len(body), _beginning(body)
    if mime_type == "text/markdown":
        _add_markdown(joiner, body)
    elif mime_type == "application/json" and len(body) == length:
        _add_json(joiner, body)
    else:
        _add_paragraphs(joiner, (), body)
    return joiner.finish() or [Passage((), "")]


def _beginning(body: str) -> str:
    """What of a document is searched."""
    if body.isascii() or 4 * len(body) <= MOST_BYTES:
        return body[:MOST_BYTES]
    return body.encode(errors="replace")[:MOST_BYTES].decode(errors="ignore")


class _Joiner:
    """Makes passages of pieces of text, in order."""

    def __init__(self) -> None:
        self._found: list[Passage] = []
        self._heading: tuple[str, ...] = ()
        self._waiting: list[str] = []
        self._size = 0

    def add(self, heading: tuple[str, ...], text: str, *, between: str = "\n\n", whole: bool = False) -> None:
        text = text.strip("\n")
        if not text or text.isspace():
            return
        size = size_of(text)
        if heading != self._heading or self._size + size > TARGET or self._begins_anew(text, size):
            self._flush()
            self._heading = heading
        most = MOST if whole else TARGET
        if size > most:
            self._found += [Passage(heading, piece) for piece in _split(text, most)]
            return
        if self._waiting:
            self._waiting.append(between)
        self._waiting.append(text)
        self._size += size + len(between)

    @property
    def count(self) -> int:
        return len(self._found)

    def finish(self) -> list[Passage]:
        self._flush()
        return self._found

    def _begins_anew(self, text: str, size: int) -> bool:
        """Whether a passage begins here, whatever is in front of it: but not one after each of many short lines."""
        if self._size < _SHORTEST:
            return False
        return crc32(text.encode(errors="replace")) < (size << 32) // (_TARGETS_BETWEEN_BEGINNINGS * TARGET)

    def _flush(self) -> None:
        if self._waiting:
            self._found.append(Passage(self._heading, "".join(self._waiting)))
            self._waiting, self._size = [], 0


def size_of(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _split(text: str, most: int) -> Iterator[str]:
    """Pieces of at most `most` bytes: whole lines, or else parts of a line, which end with a word if possible."""
    waiting: list[str] = []
    total = 0
    for line in text.split("\n"):
        for piece in (line,) if size_of(line) <= most else _cut(line, most):
            size = size_of(piece) + 1
            if total + size > most + 1:
                yield "\n".join(waiting)
                waiting, total = [], 0
            waiting.append(piece)
            total += size
    if any(not line.isspace() for line in waiting if line):
        yield "\n".join(waiting)


def _cut(line: str, most: int) -> list[str]:
    letters = most if line.isascii() else most // 4  # Of up to four bytes each.
    return _cutter(letters).findall(line)


@cache
def _cutter(letters: int) -> re.Pattern[str]:
    return re.compile(rf"(?s).{{1,{letters}}}(?=\s|\Z)|.{{1,{letters}}}(?:(?<!\w)|(?!\w))|.{{1,{letters}}}")


def _add_paragraphs(joiner: _Joiner, heading: tuple[str, ...], text: str) -> None:
    for paragraph in _PARAGRAPHS.split(text):
        joiner.add(heading, paragraph)


# Markdown: the parser says where blocks begin and end; their text is that of the source.


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Links are defined by text like any other; what is within a block is not looked at.
    parser = MarkdownIt("commonmark", {"maxNesting": _MOST_NESTING}).enable("table")
    return parser.disable(["inline", "reference"])


class _Section:
    """A heading, and what is between it and the next one."""

    def __init__(self, level: int, title: str, begin: int) -> None:
        self.level = level
        self.title = title
        self.begin = begin
        self.end = begin
        self.blocks: list[Token] = []
        self.is_followed_by_deeper = False


def _add_markdown(joiner: _Joiner, body: str) -> None:
    lines = body.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = _front_matter(lines)
    if first:
        joiner.add((), "\n".join(lines[:first]), whole=True)
    rest = "\n".join(lines[first + _MOST_LINES :])
    lines = lines[first : first + _MOST_LINES]
    path: list[tuple[int, str]] = []
    for section in _sections(lines):
        while path and path[-1][0] >= section.level:
            path.pop()
        above = tuple(title for _, title in path[:_MOST_HEADINGS])
        text = "\n".join(lines[section.begin : section.end])
        is_small = not section.blocks or size_of(text) <= _SMALL_SECTION
        if section.level and is_small and not section.is_followed_by_deeper:
            joiner.add(above, text)
            continue
        if section.level:
            path.append((section.level, section.title[:_LONGEST_HEADING]))
        heading = tuple(title for _, title in path[:_MOST_HEADINGS])
        if section.level and len(section.title) > _LONGEST_HEADING:
            joiner.add(heading, section.title)
        for text, is_whole in _pieces(section.blocks, lines):
            joiner.add(heading, text, whole=is_whole)
    _add_paragraphs(joiner, (), rest)


def _front_matter(lines: Sequence[str]) -> int:
    """How many lines there are before the text, as many tools write them: between lines of three dashes."""
    if lines[0].rstrip() != "---":
        return 0
    ends = (place for place, line in enumerate(lines[1:_MOST_FRONT_LINES], 2) if line.rstrip() in ("---", "..."))
    return next(ends, 0)


def _sections(lines: Sequence[str]) -> list[_Section]:
    tokens = [token for token in _parser().parse("\n".join(lines)) if token.level <= 1]
    sections = [_Section(0, "", 0)]
    for place, token in enumerate(tokens):
        if token.map is None or token.type == "inline":
            continue
        if token.level == 0 and token.type == "heading_open":
            level = int(token.tag[1:])
            sections[-1].is_followed_by_deeper = level > sections[-1].level
            sections.append(_Section(level, _MARKUP.sub("", tokens[place + 1].content).strip(), token.map[0]))
        else:
            sections[-1].blocks.append(token)
        sections[-1].end = max(sections[-1].end, token.map[1])
    return sections


def _pieces(blocks: Sequence[Token], lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Texts, and whether each is to stay whole. Items of lists are among the blocks, behind their lists."""
    for place, token in enumerate(blocks):
        if token.level or token.map is None:
            continue
        begin, end = token.map
        text = "\n".join(lines[begin:end])
        if not token.type.endswith("_list_open") or size_of(text) <= TARGET:
            yield text, token.type in _WHOLE
            continue
        for item in _items(blocks, place + 1):
            yield "\n".join(lines[item[0] : item[1]]), False


def _items(blocks: Sequence[Token], place: int) -> Iterator[Sequence[int]]:
    while place < len(blocks) and blocks[place].level:
        if blocks[place].type == "list_item_open":
            lines = blocks[place].map
            assert lines is not None
            yield lines
        place += 1


# JSON: the names of members are headings, and each value that is no object or array is a line.


def _add_json(joiner: _Joiner, body: str) -> None:
    value = None
    if _SHAPE.excess(body.encode(errors="replace")) is None:
        with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            value = _decode(body)
    if value is None:
        _add_paragraphs(joiner, (), body)
        return
    waiting: list[tuple[tuple[str, ...], str, Any]] = [((), "", value)]
    while waiting:
        path, name, value = waiting.pop()
        has_room = len(path) < _MOST_HEADINGS and joiner.count < _MOST_APART
        if isinstance(value, dict | list) and value:
            if name and (not has_room or len(name) > _LONGEST_HEADING):
                joiner.add(path, f"{name}:", between="\n")
            if name and has_room:
                path = (*path, name[:_LONGEST_HEADING])
            waiting += reversed([(path, key, each) for key, each in _members(value)])
        else:
            # An empty text would be no passage, and its headings would not be found.
            joiner.add(path, f"{name}: {_text(value)}" if name else _text(value) or '""', between="\n")


def _members(value: dict[str, Any] | list[Any]) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else (("", each) for each in value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

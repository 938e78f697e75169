"""URI templates: RFC 6570 level 1, and `{+name}` for what may contain slashes.

1. `{name}` stands for one or more characters other than `/`, `?` and `#`, and ends where the text after it begins.
2. `{+name}` stands for one or more characters of any kind. There is at most one of them.
3. Two variables have text between them, and no name is there twice.

So there is one way at most to read a URI, and it is found without trying many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

LONGEST_URI = 2048
_VARIABLE = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f]+")


class UriTemplate:
    """A URI with variables in it, or without. Raises `ValueError` for what cannot be one."""

    def __init__(self, text: str) -> None:
        if not _ABSOLUTE.fullmatch(text) or len(text) > LONGEST_URI:
            raise ValueError(f"must be a URI with a scheme, without spaces, of at most {LONGEST_URI} characters")
        self.text = text
        self._pattern = re.compile("".join(_parts(text)), re.DOTALL)
        self.names = tuple(self._pattern.groupindex)

    def values_in(self, uri: str) -> dict[str, str] | None:
        """What the variables stand for in `uri`, percent-decoded; None when it does not have this form."""
        found = self._pattern.fullmatch(uri) if len(uri) <= LONGEST_URI else None
        if found is None:
            return None
        try:
            return {name: unquote(value, errors="strict") for name, value in found.groupdict().items()}
        except UnicodeDecodeError:
            return None


def _parts(text: str) -> Iterator[str]:
    """The pieces of the pattern."""
    variables = list(_VARIABLE.finditer(text))
    names = [each[2] for each in variables]
    if len(set(names)) < len(names):
        raise ValueError("a variable is there twice")
    if sum(each[1] == "+" for each in variables) > 1:
        raise ValueError("only one variable can be of the form {+name}")
    end = 0
    for each in variables:
        if end == each.start():
            raise ValueError("there must be text between two variables")
        yield _literal(text[end : each.start()])
        end = each.end()
        stop = re.escape(text[end : end + 1])
        yield rf"(?P<{each[2]}>.+)" if each[1] else rf"(?P<{each[2]}>[^/?#{stop}]+)"
    yield _literal(text[end:])


def _literal(text: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError("a variable is written {name} or {+name}, and named like a parameter")
    return re.escape(text)

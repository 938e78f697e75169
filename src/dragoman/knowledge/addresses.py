"""Addresses in texts: found, and compared whole with those that another text has.

An address is what a browser, or what shows a text, may make a link of, and some more: any scheme before `//`; the
schemes of the web with any slashes or none, of either kind; `www.`, and names behind two slashes or backslashes.
Finding them takes time in proportion to the text: a text may be made to take long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LEFT_OUT: Final = "…"
_ADDRESS: Final = re.compile(
    r"""
    \]\([^()\s]*+\)                                        # The target of a link, which is as it is to be.
    | ((?:
        (?<![a-z0-9+.-])[a-z0-9+.-]*+\\?:(?:\\?/){2}
      | (?<![a-z0-9])(?:https?|wss?|ftp|file|blob|mailto|tel|javascript|vbscript)\\?:
      | (?<![a-z0-9])data:(?=\w+/)
      | (?<![\w:/\\])[/\\]{2,}+(?=[\w.-]+(?:[./\\@]|:\d))
      | (?<![a-z0-9])www\.
      )(?:(?!\]\()[^\s<>])++)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_HOST: Final = re.compile(r"^(?:(?:[a-z][a-z0-9+.-]*+:)?[/\\]{2,}+|www\.)[^/\\?#]*+", re.IGNORECASE)
_AROUND: Final = ".,;:!?*_~|(){}[]`\"'"
"""These often stand behind an address and do not belong to it. Links are made without most of them."""
_DELIMITER: Final = re.compile(r"[|(){}\[\]`\"']")
_MOST_BEHIND: Final = 8


class Addresses:
    """The addresses of a text."""

    def __init__(self, text: str) -> None:
        found = [match[1] for match in _ADDRESS.finditer(text) if match[1] is not None]
        # Within code or data, an address ends at the next quotation mark.
        short = [_DELIMITER.split(address, maxsplit=1)[0] for address in found]
        self._known = {*map(_whole, found), *map(_whole, short)}

    def including(self, more: Iterable[str | None]) -> Addresses:
        """These, and more."""
        self._known.update(_whole(address) for address in more if address)
        return self

    def __contains__(self, address: str) -> bool:
        return bool(address) and _whole(address) in self._known

    def keep_in(self, text: str) -> str:
        """The text with these addresses only. Targets of Markdown's links, as in `](target)`, stay as they are."""

        def kept(match: re.Match[str]) -> str:
            address = match[1]
            if address is None:
                return match[0]
            behind = address[len(address.rstrip(_AROUND)) :]
            if address in self and len(behind) <= _MOST_BEHIND:
                return address
            return LEFT_OUT + behind[-_MOST_BEHIND:]

        return _ADDRESS.sub(kept, text)


def _whole(address: str) -> str:
    """The same for two addresses that browsers take for the same one, if they differ in the case of the host."""
    address = address.rstrip(_AROUND)
    found = _HOST.match(address)
    if found is None or "@" in found[0]:
        return address
    rest = address[found.end() :]
    return found[0].lower() + (rest if rest != "/" else "")

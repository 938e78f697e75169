"""Tracebacks as texts: all of one for the log, and the frames of the author's own files for a person at a terminal."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PACKAGES = Path(__file__).resolve().parents[2]
_SERVER = f"{_PACKAGES / 'dragoman'}{os.sep}"
_OTHERS = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(_PACKAGES / "dragoman"),
        str(_PACKAGES / "apcore_mcp"),
        *(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
    }
)


class Traceback(str):
    """A traceback with every frame. `own` is the same with the frames of the author's own files only.

    Encoders take no subclass of `str`: it is made plain where a line is written.
    """

    own: str

    @classmethod
    def of(cls, error: BaseException) -> Traceback:
        """The traceback of an exception and its causes."""
        described = traceback.TracebackException.from_exception(error)
        made = cls("".join(described.format()))
        every = list(_chain(described))
        if any(map(_is_about_own_code, every)):
            for each in every:
                own = [frame for frame in each.stack if is_own_code(frame.filename)]
                # Without frames there is no heading either.
                each.stack = traceback.StackSummary.from_list(own) if own else None  # type: ignore[assignment]
            made.own = "".join(described.format())
        elif all(frame.filename.startswith(_SERVER) for each in every for frame in each.stack):
            made.own = "".join(described.format_exception_only())  # Such as for a result that cannot be sent.
        else:  # Nothing points to the author's code: who looks for the cause needs all of it.
            made.own = str(made)
        return made

    def map(self, change: Callable[[str], str]) -> Traceback:
        """A copy with both texts changed."""
        made = type(self)(change(str(self)))
        made.own = change(self.own)
        return made


@lru_cache(maxsize=1024)  # A deep recursion has a thousand frames in one file, and each look goes to the disk.
def is_own_code(file: str) -> bool:
    """Whether a file is neither the server's, nor Python's, nor an installed package's."""
    if file.startswith("<frozen "):
        return False
    path = os.path.realpath(file)
    return not path.startswith(_OTHERS) and _INSTALLED.isdisjoint(Path(path).parts)


def _is_about_own_code(described: traceback.TracebackException) -> bool:
    at = getattr(described, "filename", None)  # Of a `SyntaxError`.
    return any(is_own_code(frame.filename) for frame in described.stack) or (at is not None and is_own_code(at))


def _chain(described: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, its causes, and the members of groups."""
    pending: list[traceback.TracebackException | None] = [described]
    while pending:
        each = pending.pop()
        if each is not None:
            yield each
            pending += (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))

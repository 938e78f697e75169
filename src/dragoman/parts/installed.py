"""Parts that installed packages bring, by the names that `server.parts` lists.

A package is imported only if it is named; if none is named, none is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dragoman.calls.interrupts import raise_interrupt
from dragoman.errors import ConfigError
from dragoman.parts.part import Part
from dragoman.sections import Problem, Section, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dragoman.parts"


def installed_parts(names: Sequence[str]) -> tuple[Part, ...]:
    """The parts of these names, in this order. Raises `ConfigError` with everything that is wrong."""
    if not names:
        return ()
    from importlib.metadata import entry_points  # It loads `email` and more, and most servers name no part.

    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    problems: list[Problem] = []
    parts = [_load(name, found, problems) for name in dict.fromkeys(names)]
    if problems:
        raise ConfigError(problems)
    return tuple(part for part in parts if part is not None)


def sections_of(parts: Iterable[Part]) -> dict[str, type[Section]]:
    """The sections that parts add to the settings, by name."""
    return {part.name: part.settings for part in parts if part.settings is not None}


def sections_of_installed(names: Sequence[str]) -> dict[str, type[Section]]:
    """The sections that the installed parts of these names add to the settings. Raises `ConfigError`."""
    return sections_of(installed_parts(names))


def _load(name: str, found: dict[str, EntryPoint], problems: list[Problem]) -> Part | None:
    if name not in found:
        hint = nearest(name, found) or (f"; there are {', '.join(sorted(found))}" if found else "")
        problems.append(("server.parts", f"no installed package has a part called {name!r}{hint}"))
        return None
    try:
        part = found[name].load()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise_interrupt(error)
        problems.append(("server.parts", f"{name} cannot be imported: {type(error).__name__}: {error}"))
        return None
    if not isinstance(part, Part) or part.name != name:
        problems.append(("server.parts", f"{found[name].value} is not a Part called {name!r}"))
        return None
    return part

"""The files beside a target, which are for the target's own imports and for nobody else's.

1. The folder is last on `sys.path`: a file in it never replaces a module that is installed, or one of Python's own.
2. The server and its packages import modules for as long as they run, and try some that may not be installed. Imports
   that do not come from code in the folder find nothing there.
3. A neighbour whose name an installed module has is reported, because the target gets the installed one.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import FrameType, ModuleType

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_BY_NAME = frozenset({"logging.config", "pickle"})
"""Modules of Python that import what they are told to, without `importlib`."""
_MOST_NAMED = 5
_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


class Neighbours(FileFinder):
    """Finds the modules in a target's folder for an import in that folder, and the target for everybody."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), *_LOADERS)
        self.folder = folder
        self.target: str | None = None

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in sys.stdlib_module_names:  # One that this platform does not have.
            return None
        spec = super().find_spec(fullname, target)
        if spec is None or fullname == self.target or _is_asked_from(self.folder, sys._getframe(1)):
            return spec
        return None


def _is_asked_from(folder: Path, frame: FrameType | None) -> bool:
    """Whether the import that led to this frame stands in a file of the folder.

    What is imported by name, with `importlib.import_module`, may have come from the folder further up: frameworks load
    the modules of an application that way. An entry point has not: it is found in files that merely lie there.
    """
    is_by_name = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("importlib.metadata"):
            return False
        if module in _BY_NAME:
            is_by_name = True
        elif module == "importlib" or module.startswith(("importlib.", "_frozen_importlib")):
            is_by_name |= "_bootstrap" not in module and "_frozen" not in module
        elif is_own_file(folder, frame.f_code.co_filename):
            return True
        elif not is_by_name:
            return False
        frame = frame.f_back
    return False


def look_in(folder: Path, target: str | None = None) -> None:
    """Let the code in a folder import its neighbours; `target` is a module in it that the server itself imports."""
    place = str(folder)
    if place not in sys.path:
        # Before the folders of other targets, and after everything else.
        at = next((index for index, entry in enumerate(sys.path) if _finder_of(entry)), len(sys.path))
        sys.path.insert(at, place)
        sys.path_importer_cache[place] = Neighbours(folder)
    if target is not None and (finder := _finder_of(place)):
        finder.target = target


def _finder_of(entry: str) -> Neighbours | None:
    finder = sys.path_importer_cache.get(entry)
    return finder if isinstance(finder, Neighbours) else None


def names_in(folder: Path) -> set[str]:
    """The modules and packages that a folder has."""
    files, packages = folder.glob("*.py"), folder.glob("*/__init__.py")
    return {path.stem for path in files} | {path.parent.name for path in packages}


def found_elsewhere(name: str, folder: Path) -> str | None:
    """Where an import of `name` finds a module that is not in the folder of a target; None: nowhere."""
    if name in sys.stdlib_module_names:
        return "Python itself"
    path = [entry for entry in sys.path if not _finder_of(entry) and os.path.realpath(entry) != str(folder)]
    spec = PathFinder.find_spec(name, path)
    return None if spec is None else spec.origin  # Which a folder without `__init__.py` does not have.


def report_unused(folder: Path) -> None:
    """Log which neighbours cannot be imported, because modules of the same names have been."""
    unused = [name for name in sorted(names_in(folder) & set(sys.modules)) if not _is_from(folder, name)]
    if unused:
        more = f" and {len(unused) - _MOST_NAMED} more" if len(unused) > _MOST_NAMED else ""
        logging.getLogger(__name__).warning(
            "modules beside the target are not used, because installed ones have their names; rename them: %s%s",
            ", ".join(unused[:_MOST_NAMED]),
            more,
        )


def _is_from(folder: Path, name: str) -> bool:
    return is_own_file(folder, getattr(sys.modules.get(name), "__file__", None))


def is_own_file(folder: Path, file: str | None) -> bool:
    """Whether a file is the folder's own, and not of a package that is installed in an environment within it."""
    if file is None or not os.path.isabs(file):  # Such as "<string>", for code that has no file.
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and _INSTALLED.isdisjoint(path.relative_to(folder).parts)

"""`dragoman serve --reload`: when the target's files change, what it offers is loaded anew; the connection lives on.

1. Clients are told which lists have changed. Calls under way end with the handlers that they began with.
2. Where the files cannot be loaded, or something in them cannot be registered, the log says why and all stays.
3. What is loaded anew is the target and whatever else it brought from its own folder, never an installed package.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from dragoman.app import Runtime
from dragoman.cli.target import is_file, load_tools, split_target
from dragoman.errors import RegistrationError, TargetError
from dragoman.offers.catalogue import Offer
from dragoman.telemetry.log import exception_facts
from dragoman.tools.tool import Tool

Snapshot: TypeAlias = dict[Path, tuple[int, int]]

_INTERVAL = 0.3
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class Reloader:
    """Loads a target, and again when it has changed. Made before the first time: what is there already stays."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._there_before = set(sys.modules)
        self._loaded: list[Tool | Offer] = []
        self._first = self.snapshot()
        sys.dont_write_bytecode = True  # Its age is kept in seconds: of two edits in one, the second would be lost.

    def watch(self, server: Runtime, tools: Iterable[Tool | Offer], loop: asyncio.AbstractEventLoop) -> None:
        """From now on, replace `tools` in `server`, on `loop`, whenever a file changes."""
        self._loaded = list(tools)
        # What changed while it was being loaded has changed.
        seen = {path: self._first.get(path, stamp) for path, stamp in self.snapshot().items()}
        threading.Thread(target=self._watch, args=(server, loop, seen), name="dragoman-reload", daemon=True).start()

    def snapshot(self) -> Snapshot:
        """Age and size of every file that the tools may depend on."""
        folder = self._folder()
        files = {*folder.glob("*.py"), *(Path(module.__file__ or "") for module in self._modules().values())}
        found: Snapshot = {}
        for path in files:
            try:
                status = path.stat()
            except OSError:  # Editors replace files: it will be back.
                continue
            found[path] = (status.st_mtime_ns, status.st_size)
        return found

    def load(self) -> list[Tool | Offer]:
        """What is offered now. Raises `TargetError`, and has then left the modules as they were."""
        before = self._modules()
        for name in before:
            del sys.modules[name]
        importlib.invalidate_caches()
        try:
            return load_tools(self._target)
        except TargetError:
            for name in self._modules():
                del sys.modules[name]
            sys.modules.update(before)
            raise

    def replace(self, server: Runtime, tools: Iterable[Tool | Offer]) -> None:
        """Put `tools` in the place of what was loaded before."""
        tools = list(tools)
        try:
            server.replace(self._loaded, tools)
        except RegistrationError as error:
            server.logger.error("tools not reloaded", {"target": self._target, **exception_facts(error, error.code)})
            return
        self._loaded = tools
        server.logger.info("tools reloaded", {"target": self._target, "tools": len(tools)})

    def _watch(self, server: Runtime, loop: asyncio.AbstractEventLoop, seen: Snapshot) -> None:
        for _ in self._changes(seen):
            try:
                tools = self.load()
            except Exception as error:  # Whatever it was, the next change may be better.
                facts = exception_facts(error.__cause__ or error, "TARGET")
                server.logger.error("tools not reloaded", {"target": self._target, **facts})
            else:
                # Between two events nobody can call a tool that is gone and not yet back.
                loop.call_soon_threadsafe(self.replace, server, tools)

    def _changes(self, seen: Snapshot) -> Iterator[None]:
        """One for each change, once it has settled: editors write in several steps."""
        pause = threading.Event()
        while not pause.wait(_INTERVAL):
            now = self.snapshot()
            if now == seen:
                continue
            while not pause.wait(_INTERVAL) and (then := self.snapshot()) != now:
                now = then
            seen = now
            yield

    def _folder(self) -> Path:
        """Where the target's own files are: beside a file or a module, and within a package."""
        place, _ = split_target(self._target)
        if is_file(place):
            return Path(place).resolve().parent
        top = sys.modules.get(place.partition(".")[0])
        return Path(top.__file__).resolve().parent if top is not None and top.__file__ else Path.cwd()

    def _modules(self) -> dict[str, ModuleType]:
        """What the target brought from its own folder, itself included."""
        folder = self._folder()
        return {
            name: module
            for name, module in tuple(sys.modules.items())  # Other threads import, too.
            if name not in self._there_before
            and name.partition(".")[0] != "dragoman"
            and _is_within(folder, getattr(module, "__file__", None))
        }


def _is_within(folder: Path, file: str | None) -> bool:
    """Whether a file is the folder's own, and not of a package that is installed in an environment within it."""
    if file is None:
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and _INSTALLED.isdisjoint(path.relative_to(folder).parts)

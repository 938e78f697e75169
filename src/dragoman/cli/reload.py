"""`dragoman serve --reload`: when the files of a source change, what it offers is loaded anew; the connection lives on.

1. Clients are told which lists have changed. Calls under way end with the handlers that they began with.
2. Where the files cannot be loaded, or something in them cannot be registered, the log says why and all stays.
3. The lifespan of the new file is entered first. That of the old one is left when its calls have ended.
4. The target, the folder of modules and the modules that these import from their own folders are loaded again.
   Installed packages are not.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from dragoman.agents.agent import Agent
from dragoman.cli.neighbours import is_own_file
from dragoman.cli.options import is_file, split_target
from dragoman.cli.target import load
from dragoman.config import Config
from dragoman.errors import RegistrationError
from dragoman.offers.catalogue import Offer
from dragoman.runtime import Runtime
from dragoman.telemetry.log import exception_facts
from dragoman.tools.tool import Tool
from dragoman.workers.control import Source

FileStamps: TypeAlias = dict[Path, tuple[int, int]]

_INTERVAL = 0.3
_OURS = frozenset({"dragoman", "apcore_mcp"})


class Reloader:
    """Loads a source, and again when it has changed. Made before the first time: what is there already stays."""

    def __init__(self, source: Source, config: Config) -> None:
        self._source = source
        self._config = config
        places = {"target": source.target, "extensions": source.extensions}
        self._facts = {name: place for name, place in places.items() if place is not None}
        self._there_before = set(sys.modules)
        self._loaded: list[Tool | Offer | Agent] = []
        self._replacing = asyncio.Lock()
        self._first = self.snapshot()
        sys.dont_write_bytecode = True  # Its age is kept in seconds: of two edits in one, the second would be lost.

    def watch(self, server: Runtime, tools: Iterable[Tool | Offer | Agent], loop: asyncio.AbstractEventLoop) -> None:
        """From now on, replace `tools` in `server`, on `loop`, whenever a file changes."""
        self._loaded = list(tools)
        # What changed while it was being loaded has changed.
        seen = {path: self._first.get(path, stamp) for path, stamp in self.snapshot().items()}
        threading.Thread(target=self._watch, args=(server, loop, seen), name="dragoman-reload", daemon=True).start()

    def snapshot(self) -> FileStamps:
        """Age and size of every file that the tools may depend on."""
        files = {Path(module.__file__ or "") for module in self._modules().values()}
        if self._source.target is not None:
            files.update(_folder_of(self._source).glob("*.py"))
        if self._source.extensions is not None:
            files.update(_files_within(Path(self._source.extensions).resolve()))
        found: FileStamps = {}
        for path in files:
            try:
                status = path.stat()
            except OSError:  # Editors replace files: it will be back.
                continue
            found[path] = (status.st_mtime_ns, status.st_size)
        return found

    def load(self) -> list[Tool | Offer | Agent]:
        """What is offered now. Raises as `load` does, and has then left the modules as they were."""
        before = self._modules()
        for name in before:
            del sys.modules[name]
        importlib.invalidate_caches()
        try:
            return load(self._source, self._config)
        except BaseException:
            for name in self._modules():
                del sys.modules[name]
            sys.modules.update(before)
            raise

    async def replace(self, server: Runtime, tools: Iterable[Tool | Offer | Agent]) -> None:
        """Put `tools` in the place of what was loaded before. One replacement at a time, in order."""
        tools = list(tools)
        async with self._replacing:
            try:
                await server.reload(self._loaded, tools)
            except Exception as error:  # A lifespan's, too.
                self._complain(server, error)
                return
            self._loaded = tools
        server.logger.info("tools reloaded", {**self._facts, "tools": sum(isinstance(each, Tool) for each in tools)})

    def _watch(self, server: Runtime, loop: asyncio.AbstractEventLoop, seen: FileStamps) -> None:
        for _ in self._changes(seen):
            try:
                tools = self.load()
            except BaseException as error:  # Whatever it was, the next change may be better.
                self._complain(server, error)
            else:
                asyncio.run_coroutine_threadsafe(self.replace(server, tools), loop)

    def _complain(self, server: Runtime, error: BaseException) -> None:
        code = error.code if isinstance(error, RegistrationError) else "TARGET"
        server.logger.error("tools not reloaded", {**self._facts, **exception_facts(error.__cause__ or error, code)})

    def _changes(self, seen: FileStamps) -> Iterator[None]:
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

    def _modules(self) -> dict[str, ModuleType]:
        """What the source brought from its own folders, itself included."""
        folders = [] if self._source.target is None else [_folder_of(self._source)]
        folders += [] if self._source.extensions is None else [Path(self._source.extensions).resolve()]
        return {
            name: module
            for name, module in tuple(sys.modules.items())  # Other threads import, too.
            if name not in self._there_before
            and name.partition(".")[0] not in _OURS
            and any(is_own_file(folder, getattr(module, "__file__", None)) for folder in folders)
        }


def _folder_of(source: Source) -> Path:
    """Where a target's own files are: beside a file or a module, and within a package."""
    place, _ = split_target(source.target or "")
    if is_file(place):
        return Path(place).resolve().parent
    top = sys.modules.get(place.partition(".")[0])
    return (
        Path(top.__file__).resolve().parent
        if top is not None and top.__file__
        else Path(source.app_dir or Path.cwd()).resolve()
    )


def _files_within(folder: Path) -> Iterator[Path]:
    """The files that modules in a folder, and in the folders in it, are made of."""
    for place, folders, names in os.walk(folder):  # Which does not mind if one is gone by then.
        folders[:] = [each for each in folders if not each.startswith(".")]
        yield from (Path(place, name) for name in names if name.endswith((".py", "_meta.yaml")))

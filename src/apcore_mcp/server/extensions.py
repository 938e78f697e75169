"""A folder of modules: classes, which apcore finds itself, and functions with `@module`, which it does not.

No file is run twice: one with a class that can be executed is apcore's to run, and its functions are looked for where
that class was made.
"""

from __future__ import annotations

import ast
import glob
import importlib.util
import inspect
import logging
import sys
from pathlib import Path
from typing import Any

import apcore
from apcore import Registry
from apcore.decorator import FunctionModule
from apcore.registry.scanner import scan_extensions

from dragoman.calls.interrupts import raise_interrupt

logger = logging.getLogger(__name__)

_PACKAGE = "apcore_extensions"
_BROKEN = "Extension %s cannot be loaded: %s: %s"


class _Registry(Registry):
    """Takes a file that ends the program for a broken one too, as a script is without a guard around its `main`."""

    def _resolve_all_entry_points(self, discovered: list[Any], raw_metadata: dict[str, Any]) -> dict[str, type]:
        resolved: dict[str, type] = {}
        for file in discovered:
            try:
                resolved |= super()._resolve_all_entry_points([file], raw_metadata)
            except (SystemExit, KeyboardInterrupt) as error:
                raise_interrupt(error)
                logger.warning(_BROKEN, file.file_path, type(error).__name__, error)
        return resolved


def load_extensions(directory: str | Path) -> Registry:
    """A registry with the modules in a folder. Files that cannot be loaded are left out, and the log says so.

    A function without an id of its own is known by its file and its name: `shout` in `text/tools.py` is
    `text.tools.shout`.
    """
    _forget(Path(directory).resolve())
    registry = _Registry(extensions_dir=str(directory))
    files = scan_extensions(Path(directory))
    found = [(each.file_path, each.canonical_id, *_look_into(each.file_path)) for each in files]
    for_apcore = [glob.escape(str(path)) for path, _, _, has_class in found if has_class]
    if for_apcore or not found:
        try:
            registry.discover(for_apcore or None)
        except (SystemExit, KeyboardInterrupt) as error:  # From a module's constructor or its `on_load`.
            raise_interrupt(error)
            raise RuntimeError(f"a file in {directory} ends the program when it is loaded") from error
    for path, name, has_functions, has_class in found:
        if has_functions:
            loaded = registry.get(name) if has_class else None
            names = _run(path, f"{_PACKAGE}.{name}") if loaded is None else type(loaded).execute.__globals__
            if names is not None:
                _register(registry, path, name, names)
    return registry


def _forget(folder: Path) -> None:
    """Take from apcore's global instance what files registered there when they were loaded before: they will again."""
    client: Any = vars(apcore).get("_CACHED_DEFAULT_CLIENT")  # To ask for it would make it.
    for module_id in [] if client is None else client.registry.list():
        function = inspect.unwrap(getattr(client.registry.get(module_id), "_func", None))  # type: ignore[arg-type]
        file = getattr(function, "__globals__", {}).get("__file__")
        if file is not None and Path(file).resolve().is_relative_to(folder):
            client.registry.unregister(module_id)


def _look_into(path: Path) -> tuple[bool, bool]:
    """Whether a file may have functions that are modules, and whether it is one that apcore should load."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # The last two: it is nested too deeply.
        return False, True  # apcore says what is wrong with it.
    has_functions = any(map(_is_decorator, ast.walk(tree)))
    methods = [each for node in tree.body if isinstance(node, ast.ClassDef) for each in node.body]
    has_class = any(getattr(each, "name", "") == "execute" for each in methods)
    return has_functions, has_class or not has_functions


def _is_decorator(node: ast.AST) -> bool:
    """Whether this brings `module` from apcore, as in `from apcore import module` and `@apcore.module()`."""
    match node:
        case ast.ImportFrom(module="apcore" | "apcore.decorator", names=names):
            return any(alias.name == "module" for alias in names)
        case ast.Attribute(value=ast.Name("apcore"), attr="module"):
            return True
    return False


def _run(path: Path, name: str) -> dict[str, Any] | None:
    """The names in a file; None if it cannot be loaded to its end."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)  # Type hints are looked up there.
    try:
        spec.loader.exec_module(loaded)
    except BaseException as error:
        raise_interrupt(error)
        logger.warning(_BROKEN, path, type(error).__name__, error)
        del sys.modules[name]
        return None
    return vars(loaded)


def _register(registry: Registry, path: Path, name: str, names: dict[str, Any]) -> None:
    made = (getattr(value, "apcore_module", value) for value in names.values())
    modules = [module for module in made if isinstance(module, FunctionModule)]
    if not modules:
        logger.warning("Extension %s has no function that is a module; write @module(…)", path)
    for module in modules:
        for loaded_as in (f"{_PACKAGE}.{name}.", f"apcore_ext_{path.stem}."):
            if module.module_id.startswith(loaded_as):
                module.module_id = f"{name}.{module.module_id.removeprefix(loaded_as)}"
        try:
            registry.register(module.module_id, module)
        except Exception as error:  # Its id is taken or not one, or its `on_load` fails.
            logger.warning("Module %s in %s cannot be registered: %s", module.module_id, path, error)

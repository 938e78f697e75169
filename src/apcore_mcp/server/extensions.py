"""A folder of modules: classes, which apcore finds itself, and functions with `@module`, which it does not.

A file with both is run twice, once by apcore and once for its functions.
"""

from __future__ import annotations

import ast
import glob
import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

from apcore import Registry
from apcore.decorator import FunctionModule
from apcore.registry.scanner import scan_extensions

logger = logging.getLogger(__name__)

_PACKAGE = "apcore_extensions"


def load_extensions(directory: str | Path) -> Registry:
    """A registry with the modules in a folder. Files that cannot be loaded are left out, and the log says so.

    A function without an id of its own is known by its file and its name: `shout` in `text/tools.py` is
    `text.tools.shout`.
    """
    registry = Registry(extensions_dir=str(directory))
    files = {each.file_path: each.canonical_id for each in scan_extensions(Path(directory))}
    found = {path: _look_into(path) for path in files}
    with_classes = [path for path, (_, has_classes) in found.items() if has_classes]
    if with_classes or not files:
        registry.discover([glob.escape(str(path)) for path in with_classes] or None)
    for path, (has_functions, _) in found.items():
        if has_functions:
            _register_functions(registry, path, files[path])
    return registry


def _look_into(path: Path) -> tuple[bool, bool]:
    """Whether a file may have functions that are modules, and whether it may have classes that are."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False, True  # apcore says what is wrong with it.
    nodes = list(ast.walk(tree))
    has_functions = any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "apcore"
        and any(alias.name == "module" for alias in node.names)
        for node in nodes
    ) or any(ast.unparse(node) == "apcore.module" for node in nodes if isinstance(node, ast.Attribute))
    has_classes = any(isinstance(node, ast.ClassDef) for node in nodes)
    return has_functions, has_classes or not has_functions


def _register_functions(registry: Registry, path: Path, canonical_id: str) -> None:
    try:
        loaded = _load(path, f"{_PACKAGE}.{canonical_id}")
    except Exception as error:
        logger.warning("Extension %s cannot be loaded: %s: %s", path, type(error).__name__, error)
        return
    for value in vars(loaded).values():
        module = value if isinstance(value, FunctionModule) else getattr(value, "apcore_module", None)
        if isinstance(module, FunctionModule):
            module.module_id = module.module_id.removeprefix(f"{_PACKAGE}.")
            try:
                registry.register(module.module_id, module)
            except Exception as error:  # Its id is taken or not one, or its `on_load` fails.
                logger.warning("Module %s in %s cannot be registered: %s", module.module_id, path, error)


def _load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # Type hints are looked up there.
    spec.loader.exec_module(loaded)
    return loaded

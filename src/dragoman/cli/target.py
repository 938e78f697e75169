"""What a file, a module, an object in a module, or a folder of apcore modules offers, and the server that has it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from dragoman.agents.agent import Agent
from dragoman.app import ServerOptions, builtin_tools, create_server
from dragoman.calls.interrupts import is_interrupt, raise_interrupt
from dragoman.cli.neighbours import found_elsewhere, look_in, names_in, report_unused
from dragoman.cli.options import is_file, split_target
from dragoman.cli.output import refuse
from dragoman.config import Config
from dragoman.errors import ConfigError, PartFailed, RegistrationError, StorageError, TargetError
from dragoman.lifespans import Lifespan
from dragoman.offers.catalogue import Offer
from dragoman.offers.prompt import Prompt
from dragoman.offers.resource import Resource
from dragoman.runtime import Runtime
from dragoman.sections import nearest
from dragoman.storage.settings import data_directory
from dragoman.telemetry.clean import sanitize, sanitize_lines
from dragoman.telemetry.tracebacks import Traceback
from dragoman.tools.attached import made_of
from dragoman.tools.tool import Tool
from dragoman.workers.control import Source

_FOLDER = "it is a folder; name a Python file in it, or a module"


def server_for(source: Source, config: Config, **options: Any) -> Runtime:
    """A server that has what a source offers; or the end of the command."""
    return server_with(tools_for(source, config), config, memory_tools=source.is_builtin, **options)


def tools_for(source: Source, config: Config) -> list[Tool | Offer | Agent]:
    """What a source offers; or the end of the command."""
    try:
        return load(source, config)
    except (PartFailed, TargetError) as error:
        refuse_target(error, config)
    except RegistrationError as error:
        refuse(str(error))


def refuse_target(error: TargetError | PartFailed, config: Config) -> NoReturn:
    """Say what the author's own code did, and end the command. With the log level `debug`, show every frame."""
    if isinstance(error.__cause__, ConfigError):
        refuse("The settings cannot be used:", *str(error.__cause__).splitlines())
    if isinstance(error.__cause__, StorageError) and config.logging.level != "debug":
        folder = sanitize(str(data_directory(config.storage, os.environ)))
        reason = sanitize(str(error.__cause__)) or type(error.__cause__).__name__
        refuse(
            f"the data directory {folder} cannot be used: {reason}",
            "set storage.data_dir, or the variable DRAGOMAN_STORAGE__DATA_DIR, to a folder that you can write to",
        )
    if error.__cause__ is not None:
        trace = Traceback.of(error.__cause__)
        sys.stderr.write(sanitize_lines(str(trace) if config.logging.level == "debug" else trace.own))
    refuse(str(error))


def server_with(tools: Iterable[Tool | Offer | Agent], config: Config, **options: Any) -> Runtime:
    """A server that has `tools`; or the end of the command."""
    try:
        return create_server(ServerOptions(config=config, tools=tools, **options))
    except PartFailed as error:
        refuse_target(error, config)
    except RegistrationError as error:
        refuse(str(error))
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())


def load(source: Source, config: Config) -> list[Tool | Offer | Agent]:
    """What a source offers: TARGET's, then the modules'; the built-in tools where nothing is named.

    Raises `TargetError`, and `RegistrationError` for tools that no server can have together. A module that a server
    cannot have beside them is left out, and the log says why.
    """
    if source.is_builtin:
        return list(builtin_tools())
    tools = [] if source.target is None else load_tools(source.target, source.app_dir)
    if source.extensions is None:
        return tools
    from apcore_mcp import attach, load_extensions

    try:
        registry = load_extensions(source.extensions)
    except BaseException as error:
        raise_interrupt(error)
        raise TargetError(source.extensions, f"{type(error).__name__}: {error}") from error
    trial = create_server(ServerOptions(config=config, tools=tools))
    modules = attach(trial, registry).tools.values()
    return [*tools, *(each for module in modules for each in (module, module.documentation) if each is not None)]


def with_space(config: Config, source: Source) -> Config:
    """The settings with a space: unless one is set, it is made of the server's name and what is served.

    Servers of the same targets share agents and messages, and others on the same data directory do not.
    """
    if config.storage.space is not None:
        return config
    places: list[str] = []
    if source.target is not None:
        place, name = split_target(source.target)
        places += [str(Path(place).resolve()) if is_file(place) else place, name]
    if source.extensions is not None:
        places.append(str(Path(source.extensions).resolve()))
    digest = sha256("\0".join(places).encode()).hexdigest()[:12]
    space = f"{config.server.name[:100]}-{digest}"
    return msgspec.structs.replace(config, storage=msgspec.structs.replace(config.storage, space=space))


def load_tools(target: str, app_dir: str | None = None) -> list[Tool | Offer | Agent]:
    """The tools, resources and prompts that TARGET names: `tools.py`, `package.module`, or either with `:object`.

    A module that is not installed is looked for in `app_dir`; None is the working directory.

    Raises `TargetError`. Whatever the file itself raises while it loads is the error's cause.
    """
    place, name = split_target(target)
    module = _load_file(Path(place), target) if is_file(place) else _load_module(place, target, app_dir or os.getcwd())
    if not name:
        tools = _tools_in(vars(module).values())
    elif not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise TargetError(target, f"there is no {name!r} in it{nearest(name, known)}")
    else:
        value = getattr(module, name)
        tools = _tools_in(value if isinstance(value, Iterable) else [value])
    if not tools:
        raise TargetError(target, "it has no tools; decorate a function with @tool")
    lifespan = _lifespan_in(module, target)
    return tools if lifespan is None else [_within(lifespan, each) for each in tools]


def _load_file(path: Path, target: str) -> ModuleType:
    if path.is_dir():
        raise TargetError(target, _FOLDER)
    if not path.is_file():
        raise TargetError(target, "there is no such file")
    name, folder = path.stem, path.resolve().parent
    if place := found_elsewhere(name, folder):
        raise TargetError(target, f"its name would hide the module {name!r} of {place}; give it another")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(target, "it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    look_in(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise_interrupt(error)
        raise TargetError(target, f"{type(error).__name__}: {error}") from error
    finally:
        report_unused(folder)
    return module


def _load_module(name: str, target: str, app_dir: str) -> ModuleType:
    if Path(name).is_dir() and not name.isidentifier():  # Such as a dot.
        raise TargetError(target, _FOLDER)
    folder, top = Path(app_dir).resolve(), name.partition(".")[0]
    if top in names_in(folder) and (place := found_elsewhere(top, folder)):
        raise TargetError(target, f"{top!r} is in {folder} and in {place}; rename it")
    look_in(folder, top)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise TargetError(target, f"{type(error).__name__}: {error}") from error
        if Path(name).is_file():
            raise TargetError(target, "it is not a Python file: its name must end with .py") from None
        raise TargetError(target, "there is no such module") from None
    except BaseException as error:
        raise_interrupt(error)
        raise TargetError(target, f"{type(error).__name__}: {error}") from error
    finally:
        report_unused(folder)


def _lifespan_in(module: ModuleType, target: str) -> Lifespan | None:
    """What the file calls `lifespan`, if that is a function and no tool; raises `TargetError` if it cannot be used."""
    make = vars(module).get("lifespan")
    if not callable(make) or _tools_in([make]):
        return None

    def explain(error: BaseException) -> BaseException:
        if is_interrupt(error):
            return error
        explained = TargetError(target, f"its lifespan failed: {type(error).__name__}: {error}")
        explained.__cause__ = error
        return explained

    try:
        return Lifespan(make, explain)
    except TypeError as error:
        raise TargetError(target, str(error)) from None


def _within(lifespan: Lifespan, offered: Tool | Offer | Agent) -> Tool | Offer | Agent:
    if isinstance(offered, Agent):
        return offered
    if isinstance(offered, Tool):
        return offered.within(lifespan)
    completers = {name: each.within(lifespan) for name, each in offered.completers.items()}
    return msgspec.structs.replace(offered, tool=offered.tool.within(lifespan), completers=completers)


def _tools_in(values: Iterable[Any]) -> list[Tool | Offer | Agent]:
    found: dict[int, Tool | Offer | Agent] = {}
    for value in values:
        for each in (value, *made_of(value)):
            if isinstance(each, Tool | Resource | Prompt | Agent):
                found[id(each)] = each
    return list(found.values())

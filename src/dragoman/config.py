"""Settings: frozen values, read once, each part given only its own section.

1. Flags win over the environment, the environment over the file, the file over the defaults, setting by setting.
2. Everything that is wrong is refused before anything starts, by name and all at once.
3. A file that is found in the working directory, and not named with `--config`, may lower limits and set what is marked
   as harmless. Any other key in it is an error: the person who unpacked the folder may not be the one who runs the
   server, and ignoring a key such as `auth` would open the server.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman import errors
from dragoman.access.settings import AuthConfig, SecurityConfig
from dragoman.cache.settings import CacheConfig
from dragoman.calls.settings import GuardsConfig, LimitsConfig, ResourcesConfig
from dragoman.edge.http.settings import HttpConfig
from dragoman.explorer.settings import ExplorerConfig
from dragoman.process.settings import ServerConfig
from dragoman.replies.settings import ResponseConfig
from dragoman.sections import (
    Problem,
    Section,
    ValidationResult,
    conflicts,
    kind_of,
    leaves,
    merge,
    read,
    respell,
)
from dragoman.storage.settings import StorageConfig
from dragoman.telemetry.settings import LoggingConfig
from dragoman.tools.settings import TimeoutsConfig, ToolsConfig

PREFIX = "DRAGOMAN_"
_MOST_FILE = 1_048_576
_NAME_IT = "name it with --config"
FLAGS = {"logging.level": "--log-level", "timeouts.tool_overrides": "--timeout"}
"""The settings that have a flag of their own, in some command."""


class Config(Section, frozen=True):
    """Everything that can be set."""

    server: ServerConfig = ServerConfig()
    tools: ToolsConfig = ToolsConfig()
    resources: ResourcesConfig = ResourcesConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    limits: LimitsConfig = LimitsConfig()
    response: ResponseConfig = ResponseConfig()
    cache: CacheConfig = CacheConfig()
    guards: GuardsConfig = GuardsConfig()
    logging: LoggingConfig = LoggingConfig()
    security: SecurityConfig = SecurityConfig()
    storage: StorageConfig = StorageConfig()
    http: HttpConfig = HttpConfig()
    auth: AuthConfig = AuthConfig()
    explorer: ExplorerConfig = ExplorerConfig()

    def conflicts(self) -> Iterator[Problem]:
        """What is wrong with settings of two sections together."""
        prefix, path = self.explorer.prefix.rstrip("/"), self.http.path
        if self.explorer.enabled and (path == prefix or path.startswith(f"{prefix}/")):
            yield "explorer.prefix", f"must be apart from http.path, {path}"

    def is_dynamic_registration_effective(self) -> bool:
        """Whether tools can be registered at run time: it takes both switches."""
        return self.tools.admin_registration_enabled and self.security.dynamic_registration_enabled


def make_config(values: Mapping[str, Any] | Config | None = None) -> Config:
    """Settings from nested values, as a file would hold them; what is not named keeps its default.

    Raises `ConfigError` with everything that is wrong.
    """
    if isinstance(values, Config):
        return values
    found: list[Problem] = []
    config = read(Config, respell(Config, values or {}, found), found)
    found += conflicts(config)
    if found:
        raise errors.ConfigError(found)
    return config


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """The settings in force, without where they came from: `Settings.load(…).config`."""
    return Settings.load(file, environ, flags).config


class Settings(msgspec.Struct, frozen=True):
    """The settings in force, and where they came from: what the documents call the config manager."""

    config: Config
    sources: dict[str, str]
    """By dotted name, the file, variable or flag that set it; what is not listed has its default."""
    file: Path | None
    """The file that was read."""

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
        *,
        below: Iterable[tuple[str, Mapping[str, Any]]] = (),
        searches: bool = True,
    ) -> Settings:
        """Layer a file, the environment and flags (by dotted name; None is not given) over the defaults.

        `below` are a program's own layers, the weakest first: where each comes from, and its values as a file holds
        them. The file comes after them. With `searches` False, no file is looked for in the working directory. Raises
        `ConfigError` with everything that is wrong, and where it stands.
        """
        path = file or (_found_file() if searches else None)
        found: list[Problem] = []
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        layers = _layers(path, os.environ if environ is None else environ, flags or {})
        for source, raw in (*below, *layers):
            _refuse_half_characters(raw, source)
            problems: list[Problem] = []
            layer = respell(Config, raw, problems)
            read(Config, layer, problems)
            if path is not None and file is None and source == str(path):
                problems += _refused_in(layer, path)
            found += [(name, f"{message} ({source})") for name, message in problems]
            sources.update((name, source) for name, _, _ in leaves(Config, layer))
            merge(values, layer)
        config = read(Config, values, [])  # Whatever is wrong with a layer has been found.
        found += [(name, f"{message} ({sources.get(name, 'default')})") for name, message in conflicts(config)]
        if found:
            raise errors.ConfigError(found)
        return cls(config, sources, path)

    @staticmethod
    def validate(partial: Mapping[str, Any]) -> ValidationResult:
        """Whether `partial`, as a file would hold it, can be used."""
        try:
            make_config(partial)
        except errors.ConfigError as error:
            return ValidationResult(False, [{"path": path, "message": message} for path, message in error.problems])
        return ValidationResult(True)

    def get(self, section: str) -> Section:
        """One section, by its name; raises `KeyError` when there is none."""
        if section not in Config.__struct_fields__:
            raise KeyError(section)
        found: Section = getattr(self.config, section)
        return found

    def is_dynamic_registration_effective(self) -> bool:
        """Whether tools can be registered at run time: it takes both switches."""
        return self.config.is_dynamic_registration_effective()


load_settings = Settings.load


def _layers(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where settings come from and what they are there, the weakest first."""
    if path is not None:
        yield str(path), _read_file(path)
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            continue
        names = variable[len(PREFIX) :].split("__")
        if len(names) > 1:
            yield variable, _nest(names, _from_text(text, kind_of(Config, names)))
            continue
        section, _, rest = names[0].partition("_")
        if section.lower() in Config.__struct_fields__:  # It would be ignored without a word.
            raise errors.ConfigError([(variable, f"is not a setting; did you mean {PREFIX}{section}__{rest}?")])
    for name, value in flags.items():
        if value is not None:
            yield FLAGS.get(name, name), _nest(name.split("."), value)


def _refused_in(layer: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    """What a file that was found in the working directory sets and may not set. A default is no change."""
    defaults = {name: value for name, value, _ in leaves(Config, msgspec.json.decode(msgspec.json.encode(Config())))}
    for name, value, marks in leaves(Config, layer):
        if "is_harmless" in marks or (name in defaults and value == defaults[name]):
            continue
        default = defaults.get(name)
        if "is_limit" not in marks:
            yield name, f"a file that is only found in the working directory cannot set this; {_NAME_IT} {path}"
        elif not _is_stricter(value, default):
            above = f"raise this above {json.dumps(default)}"
            yield name, f"a file that is only found in the working directory cannot {above}; {_NAME_IT} {path}"


def _is_stricter(value: Any, default: float | None) -> bool:
    """Whether a limit is a lower one; None is no limit, and so is 0 where it is allowed."""
    return isinstance(value, int | float) and value > 0 and (default is None or value <= default)


def _found_file() -> Path | None:
    return next((path for path in (Path("dragoman.toml"), Path("dragoman.json")) if path.is_file()), None)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE + 1)
        if len(content) > _MOST_FILE:
            raise ValueError(f"it is larger than {_MOST_FILE} bytes")
        text = content.decode("utf-8-sig")
        is_json = path.suffix == ".json"
        values = json.loads(text, object_pairs_hook=_without_repetition) if is_json else tomllib.loads(text)
    except OSError as error:
        raise errors.ConfigError([(str(path), error.strerror or "cannot be read")]) from None
    except RecursionError:
        raise errors.ConfigError([(str(path), "cannot be parsed: it is nested too deeply")]) from None
    except ValueError as error:
        raise errors.ConfigError([(str(path), f"cannot be parsed: {error}")]) from None
    if not isinstance(values, dict):
        raise errors.ConfigError([(str(path), "must hold an object of sections")])
    values.pop("$schema", None)  # For editors.
    return values


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {key!r} twice")
        found[key] = value
    return found


def _refuse_half_characters(values: Mapping[str, Any], source: str) -> None:
    """What JSON can escape, or a variable hold, and nobody could be shown or sent."""
    try:
        msgspec.json.encode(values)
    except UnicodeEncodeError:
        raise errors.ConfigError([(source, "has text that is not Unicode")]) from None


def _from_text(text: str, kind: Any) -> Any:
    # What a setting takes as text is the text; numbers, true, false, lists and objects are JSON.
    if kind is not Any:
        try:
            return msgspec.convert(text, kind)
        except (msgspec.ValidationError, UnicodeEncodeError):
            pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _nest(names: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(names):
        value = {name: value}
    assert isinstance(value, dict)
    return value

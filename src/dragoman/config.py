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
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from dragoman import errors
from dragoman.access.settings import AuthConfig, SecurityConfig
from dragoman.agents.settings import AacpConfig
from dragoman.cache.settings import CacheConfig
from dragoman.calls.settings import ARRAY_SIZE_OF_ENVELOPES, GuardsConfig, LimitsConfig, ResourcesConfig
from dragoman.edge.settings import HttpConfig
from dragoman.explorer.settings import ExplorerConfig
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.process.settings import ServerConfig
from dragoman.replies.settings import ResponseConfig
from dragoman.sections import (
    Problem,
    Section,
    ValidationResult,
    conflicts,
    fields_of,
    is_section,
    kind_of,
    leaves,
    merge,
    read,
    respell,
)
from dragoman.storage.settings import StorageConfig
from dragoman.tasks.settings import TasksConfig
from dragoman.telemetry.settings import LoggingConfig
from dragoman.tools.settings import TimeoutsConfig, ToolsConfig

PREFIX = "DRAGOMAN_"
_MOST_FILE = 1_048_576
_NAME_IT = "name it with --config"
_NAME = re.compile("[a-z][a-z0-9_]*")
GATEWAY_PATHS = ("/mcp/actions", "/mcp/capabilities", "/mcp/openapi.json", "/schemas/mcp", "/knowledge")
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
    aacp: AacpConfig = AacpConfig()
    tasks: TasksConfig = TasksConfig()
    gateway: GatewayConfig = GatewayConfig()
    knowledge: KnowledgeConfig = KnowledgeConfig()

    def conflicts(self) -> Iterator[Problem]:
        """What is wrong with settings of two sections together."""
        prefix, path = self.explorer.prefix.rstrip("/"), self.http.path
        if self.explorer.enabled and (path == prefix or path.startswith(f"{prefix}/")):
            yield "explorer.prefix", f"must be apart from http.path, {path}"
        if self.gateway.enabled and any(path == taken or path.startswith(f"{taken}/") for taken in GATEWAY_PATHS):
            yield "http.path", f"must be apart from what the gateway serves: {', '.join(GATEWAY_PATHS)}"

    def has_local_secret(self) -> bool:
        """Whether the secret of the data directory makes an owner, of a server that only its machine can reach."""
        is_open = not (self.auth.is_set or self.auth.local_owner)
        is_kept = self.storage.engine != "memory"  # Without a data directory there is no secret.
        return is_open and is_kept and self.gateway.enabled and self.gateway.public_url is None

    def is_dynamic_registration_effective(self) -> bool:
        """Whether tools can be registered at run time: it takes both switches."""
        return self.tools.admin_registration_enabled and self.security.dynamic_registration_enabled


FindSections: TypeAlias = Callable[[Sequence[str]], Mapping[str, type[Section]]]
"""Gives the sections of the parts that `server.parts` names, by name. Raises `ConfigError`."""


def _no_sections(names: Sequence[str]) -> Mapping[str, type[Section]]:
    return {}


def _unexplained(config: Config, found: Sequence[Problem]) -> list[Problem]:
    """The conflicts of settings whose values can be used: a default stands in for one that cannot."""
    unusable = {name for name, _ in found}
    return [(name, message) for name, message in conflicts(config) if name not in unusable]


def make_config(values: Mapping[str, Any] | Config | None = None, find_sections: FindSections = _no_sections) -> Config:
    """Settings from nested values, as a file would hold them; what is not named keeps its default.

    Raises `ConfigError` with everything that is wrong.
    """
    if isinstance(values, Config):
        return values
    found: list[Problem] = []
    kind = _with_parts([values or {}], find_sections, found)
    config = read(kind, _with_defaults_of_dialect(respell(kind, values or {}, found)), found)
    found += _unexplained(config, found)
    if found:
        raise errors.ConfigError(found)
    return config


def _with_defaults_of_dialect(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values, and what is another default in their dialect."""
    response, limits = values.get("response"), values.get("limits", {})
    if not (isinstance(response, Mapping) and response.get("dialect") == "envelope" and isinstance(limits, Mapping)):
        return values
    return {**values, "limits": {"max_array_size": ARRAY_SIZE_OF_ENVELOPES, **limits}}


def _with_parts(layers: Iterable[Mapping[str, Any]], find_sections: FindSections, found: list[Problem]) -> type[Config]:
    """`Config` with the sections of the parts that the last layer with `server.parts` names."""
    names: Sequence[str] = ()
    for layer in layers:
        section = respell(Config, layer, []).get("server") if isinstance(layer, Mapping) else None
        given = section.get("parts", names) if isinstance(section, Mapping) else names
        if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
            names = given
    try:
        sections = find_sections(names)
    except errors.ConfigError as error:
        found += error.problems
        return Config
    wrong = [(name, why) for name, section in sections.items() if (why := _why_not(name, section)) is not None]
    found += wrong
    if wrong or not sections:
        return Config
    return _config_with(tuple(sections.items()))


@lru_cache(maxsize=16)
def _config_with(sections: tuple[tuple[str, type[Section]], ...]) -> type[Config]:
    fields = [(name, section, section()) for name, section in sections]
    made: Any = msgspec.defstruct("Config", fields, bases=(Config,), frozen=True, kw_only=True)
    return made  # type: ignore[no-any-return]


def _why_not(name: str, section: type[Section]) -> str | None:
    """Why a part cannot have this section; None if it can."""
    if hasattr(Config, name):
        return "is a section of the server, and cannot be a part's"
    if not _NAME.fullmatch(name):
        return "is no name for a section: it takes lower-case letters, digits and _"
    if not is_section(section) or any(field.required for field in fields_of(section).values()):
        return "is no section that a part can have: it takes a Section whose settings all have defaults"
    return None


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
        find_sections: FindSections = _no_sections,
    ) -> Settings:
        """Layer a file, the environment and flags (by dotted name; None is not given) over the defaults.

        `below` are a program's own layers, the weakest first: where each comes from, and its values as a file holds
        them. The file comes after them. With `searches` False, no file is looked for in the working directory.
        `find_sections` gives the sections of parts. Raises `ConfigError` with everything that is wrong, and where it
        stands.
        """
        path = file or (_found_file() if searches else None)
        found: list[Problem] = []
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        below, environ = tuple(below), os.environ if environ is None else environ
        is_found = file is None and path is not None
        layers = (*below, *_layers(Config, path, environ, flags or {}))
        # A file that was only found decides about no import, not even before it is refused.
        trusted = [raw for source, raw in layers if not (is_found and source == str(path))]
        kind = _with_parts(trusted, find_sections, found)
        if kind is not Config:
            layers = (*below, *_layers(kind, path, environ, flags or {}))
        for source, raw in layers:
            _refuse_half_characters(raw, source)
            problems: list[Problem] = []
            layer = respell(kind, raw, problems)
            read(kind, layer, problems)
            if is_found and source == str(path):
                problems += _refused_in(kind, layer, source)
            found += [(name, f"{message} ({source})") for name, message in problems]
            sources.update((name, source) for name, _, _ in leaves(kind, layer))
            merge(values, layer)
        config = read(kind, _with_defaults_of_dialect(values), [])  # Whatever is wrong with a layer has been found.
        rest = _unexplained(config, found)
        found += [(name, f"{message} ({sources.get(name, 'default')})") for name, message in rest]
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
        if section not in self.config.__struct_fields__:
            raise KeyError(section)
        found: Section = getattr(self.config, section)
        return found

    def is_dynamic_registration_effective(self) -> bool:
        """Whether tools can be registered at run time: it takes both switches."""
        return self.config.is_dynamic_registration_effective()


def _layers(
    kind: type[Config], path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where settings come from and what they are there, the weakest first."""
    if path is not None:
        yield str(path), _read_file(path)
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            continue
        names = variable[len(PREFIX) :].split("__")
        if len(names) > 1:
            yield variable, _nest(names, _from_text(text, kind_of(kind, names)))
            continue
        section, _, rest = names[0].partition("_")
        if section.lower() in kind.__struct_fields__:  # It would be ignored without a word.
            raise errors.ConfigError([(variable, f"is not a setting; did you mean {PREFIX}{section}__{rest}?")])
    for name, value in flags.items():
        if value is not None:
            yield FLAGS.get(name, name), _nest(name.split("."), value)


def _refused_in(kind: type[Config], layer: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """What a file that was found in the working directory sets and may not set. A default is no change."""
    defaults = {name: value for name, value, _ in leaves(kind, msgspec.json.decode(msgspec.json.encode(kind())))}
    for name, value, marks in leaves(kind, layer):
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

"""Settings: frozen values, read once, each part given only its own section.

Flags win over the environment, the environment over the file, the file over the defaults, setting by setting. Unknown
keys are refused by name. Files and environment accept both `max_payload_bytes` and the documents' `maxPayloadBytes`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from dragoman import errors
from dragoman.version import __version__

PREFIX = "DRAGOMAN_"

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Bytes = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=1)]
Level = Literal["debug", "info", "warn", "error"]

DEFAULT_ARRAY_LIMITS = {"bugfix_scan": 100, "refactor_scan": 100, "memory_bulk_delete": 1000, "ability_inject": 20}

DEFAULT_REDACT_KEYS = (
    "token",
    "key",
    "secret",
    "password",
    "apiKey",
    "authorization",
    "bearer",
    "session",
    "cookie",
)


def _about(text: str) -> Meta:
    return Meta(description=text)


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named group of settings."""


class ServerConfig(Section, frozen=True):
    """Who the server says it is, and how it stops."""

    name: Annotated[str, Meta(min_length=1), _about("The name that clients are told.")] = "dragoman"
    version: Annotated[str, _about("The version that clients are told.")] = __version__
    instructions: Annotated[str | None, _about("What clients may tell their model about this server.")] = None
    shutdown_timeout_ms: Annotated[Milliseconds, _about("How long running calls may take to finish at the end.")] = (
        10_000
    )


class AdminPolicy(Section, frozen=True):
    """Who may use the admin tools."""

    mode: Annotated[
        Literal["deny_all", "local_stdio_only", "token"], _about("Nobody, the owner of stdin, or (reserved) a token.")
    ] = "deny_all"
    token_env_var: Annotated[str | None, _about("Reserved: the variable that holds the token.")] = None


class ToolsConfig(Section, frozen=True):
    """Limits of a single call, and which tools there are besides the user's."""

    default_timeout_ms: Annotated[Milliseconds, _about("The deadline of a tool that has none of its own.")] = 30_000
    max_payload_bytes: Annotated[Bytes, _about("The most that a call's arguments may weigh, as JSON.")] = 1_048_576
    max_state_bytes: Annotated[Bytes, _about("The most that an agent's state may weigh.")] = 262_144
    memory_enabled: Annotated[
        bool, _about("Whether the memory_* tools are served beside a target's own. Without a target they always are.")
    ] = False
    admin_registration_enabled: Annotated[
        bool, _about("One of the two switches for registering tools at run time.")
    ] = False
    admin_policy: AdminPolicy = AdminPolicy()


class CategoryTimeouts(Section, frozen=True):
    """Deadlines by what kind of work a tool does."""

    query: Annotated[Milliseconds, _about("Quick reads.")] = 10_000
    mutation: Annotated[Milliseconds, _about("Writes.")] = 30_000
    scan: Annotated[Milliseconds, _about("Analysis of many things.")] = 120_000
    execution: Annotated[Milliseconds, _about("Agents and workflows.")] = 1_200_000


class TimeoutsConfig(Section, frozen=True):
    """Deadlines: a tool's override wins over what the tool says itself, and that over its category's."""

    tool_timeouts: CategoryTimeouts = CategoryTimeouts()
    tool_overrides: Annotated[dict[str, Milliseconds], _about("Milliseconds by tool name.")] = field(
        default_factory=dict
    )


class ResourcesConfig(Section, frozen=True):
    """What the process may use at once."""

    max_concurrent_executions: Annotated[Count, _about("How many calls may run at the same time.")] = 10
    max_concurrent_per_caller: Annotated[
        Count | None, _about("How many of them may be one caller's; unset, all of them.")
    ] = None


class ToolLimits(Section, frozen=True):
    """Limits of one tool. What is unset is as for every tool."""

    max_payload_bytes: Annotated[Bytes | None, _about("As `tools.max_payload_bytes`.")] = None
    max_array_size: Annotated[Count | None, _about("As `limits.max_array_size`.")] = None
    max_string_length: Annotated[Count | None, _about("As `limits.max_string_length`.")] = None
    max_object_depth: Annotated[Count | None, _about("As `limits.max_object_depth`.")] = None
    max_concurrent: Annotated[Count | None, _about("How many calls of it may run at the same time.")] = None
    calls_per_minute: Annotated[Count | None, _about("How many calls of it one caller may make in a minute.")] = None


class LimitsConfig(Section, frozen=True):
    """What a request may look like, and how many of them there may be. Exactly at a limit passes."""

    max_request_bytes: Annotated[Bytes, _about("The most that one message may weigh, before it is parsed.")] = (
        10_485_760
    )
    max_array_size: Annotated[Count | None, _about("The most items of any array in the arguments; null: any.")] = 100
    max_string_length: Annotated[
        Count | None, _about("The most characters of any string in the arguments; null: any.")
    ] = 100_000
    max_object_depth: Annotated[
        Count | None, _about("How deeply objects and arrays may be nested in the arguments; null: any.")
    ] = 10
    tool_array_limits: Annotated[
        dict[str, Count], _about("`max_array_size` by tool name, whether higher or lower.")
    ] = field(default_factory=lambda: dict(DEFAULT_ARRAY_LIMITS))
    calls_per_minute_per_caller: Annotated[
        Count | None, _about("How many calls one caller may make in a minute; unset, any number.")
    ] = None
    tools: Annotated[dict[str, ToolLimits], _about("Limits by tool name.")] = field(default_factory=dict)


class ResponseConfig(Section, frozen=True):
    """How answers are worded, and how large they may be."""

    dialect: Annotated[
        Literal["structured", "envelope", "plain"], _about("The wording of answers; see the guide to dialects.")
    ] = "structured"
    max_response_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        _about("The most that a result may weigh. `envelope` shortens what is larger; elsewhere it is an error."),
    ] = 1_048_576
    max_list_items: Annotated[Count, _about("`envelope`: the most items of a list before it is shortened.")] = 100
    max_string_length: Annotated[
        Count, _about("`envelope`: the most characters of a string before it is shortened, the suffix included.")
    ] = 10_000
    truncation_suffix: Annotated[
        Annotated[str, Meta(max_length=100)], _about("`envelope`: what a shortened string ends with.")
    ] = "... [truncated]"


class CacheConfig(Section, frozen=True):
    """The bounded cache that holds results and artifacts."""

    max_size_bytes: Annotated[Bytes, _about("The most that all entries together may weigh.")] = 104_857_600
    max_entries: Annotated[Count, _about("The most entries.")] = 10_000
    default_ttl_ms: Annotated[
        Annotated[int, Meta(ge=0)], _about("How long an entry lives that has no time of its own; 0: for ever.")
    ] = 3_600_000
    eviction_policy: Annotated[
        Literal["lru", "lfu", "fifo"], _about("Who goes first: the least recently used, the least used, the oldest.")
    ] = "lru"
    high_water_mark: Annotated[
        Annotated[float, Meta(ge=0.5, le=1)], _about("The part of `max_size_bytes` above which entries are evicted.")
    ] = 0.9
    low_water_mark: Annotated[
        Annotated[float, Meta(ge=0.1, le=0.9)], _about("The part of `max_size_bytes` that eviction goes down to.")
    ] = 0.7
    cleanup_interval_ms: Annotated[Milliseconds, _about("How often expired entries are removed.")] = 60_000


class GuardsConfig(Section, frozen=True):
    """The gates that every call passes."""

    memory_budget_bytes: Annotated[
        Bytes | None, _about("What the process may use; unset, what the container or the machine has.")
    ] = None
    gates: Annotated[
        dict[str, Literal["enforce", "warn", "off"]],
        _about("By gate: refuse what fails (the default), let it pass with a warning, or do not look."),
    ] = field(default_factory=dict)


class LoggingConfig(Section, frozen=True):
    """What is logged, and what must never be."""

    level: Annotated[Level, _about("The least that is logged.")] = "info"
    redact_keys: Annotated[tuple[str, ...], _about("Keys whose values are never logged, besides the default ones.")] = (
        DEFAULT_REDACT_KEYS
    )
    format: Annotated[
        Literal["auto", "json", "text"], _about("JSON lines, text for a person, or text only on a terminal.")
    ] = "auto"


class SecurityConfig(Section, frozen=True):
    """Switches that are off until somebody turns them on."""

    dynamic_registration_enabled: Annotated[bool, _about("The other switch for registering tools at run time.")] = False
    allow_arbitrary_code_tools: Annotated[bool, _about("Reserved; changes nothing.")] = False


class StorageConfig(Section, frozen=True):
    """Where what must outlive the process is kept."""

    data_dir: Annotated[str | None, _about("The folder; unset, the platform's place for application data.")] = None
    engine: Annotated[
        Literal["sqlite", "memory"], _about("A database in the folder, or nothing that outlives the process.")
    ] = "sqlite"
    max_bytes_per_caller: Annotated[Bytes, _about("The most that one caller may keep with the memory_* tools.")] = (
        268_435_456
    )


class HttpConfig(Section, frozen=True):
    """Where HTTP clients connect. Reserved: HTTP is not served yet."""

    host: Annotated[str, Meta(min_length=1), _about("The address to listen on.")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=1, le=65_535)], _about("The port to listen on.")] = 8000


class AuthConfig(Section, frozen=True):
    """Who HTTP clients have to be. Reserved, as `http` is."""

    allow_unauthenticated: Annotated[
        bool, _about("Whether an address that others can reach may be served without authentication.")
    ] = False


class ExplorerConfig(Section, frozen=True):
    """The page that shows the tools. Reserved, as `http` is."""

    enabled: Annotated[bool, _about("Whether the page is served.")] = False
    prefix: Annotated[Annotated[str, Meta(pattern="^/")], _about("Where it is served.")] = "/explorer"
    allow_execute: Annotated[bool, _about("Whether tools can be run from it.")] = False


class AacpConfig(Section, frozen=True):
    """Messages between agents. Reserved: there are no agents yet."""

    default_ttl_ms: Annotated[
        Annotated[int, Meta(ge=1)], _about("How long a message without a time of its own is tried.")
    ] = 86_400_000


class BusConfig(Section, frozen=True):
    """The message bus. Reserved: there is nothing to set yet."""


class GatewayConfig(Section, frozen=True):
    """The action contract. Reserved: there is nothing to set yet."""


class KnowledgeConfig(Section, frozen=True):
    """The knowledge service. Reserved: there is nothing to set yet."""


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
    bus: BusConfig = BusConfig()
    gateway: GatewayConfig = GatewayConfig()
    knowledge: KnowledgeConfig = KnowledgeConfig()


def make_config(values: Mapping[str, Any] | Config | None = None) -> Config:
    """Settings from nested values, as a file would hold them; what is not named keeps its default.

    Raises `ConfigError` with every unknown key, or the first bad value.
    """
    if isinstance(values, Config):
        return values
    problems: list[tuple[str, str]] = []
    plain = _snake_keys(values or {}, Config, "", problems)
    if problems:
        raise errors.ConfigError(problems)
    try:
        return msgspec.convert(plain, Config)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise errors.ConfigError([(path.rstrip("`") or "config", message)]) from None


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Layer a file, the environment and flags (dotted names, such as `logging.level`) over the defaults."""
    values: dict[str, Any] = {}
    path = file or _found_file()
    if path is not None:
        _merge(values, _normal(_read_file(path)))
    for names, value in _settings_in(os.environ if environ is None else environ):
        _merge(values, _nest(names, value))
    for name, value in (flags or {}).items():
        if value is not None:
            _merge(values, _nest(name.split("."), value))
    return make_config(values)


def _found_file() -> Path | None:
    return next((path for path in (Path("dragoman.toml"), Path("dragoman.json")) if path.is_file()), None)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise errors.ConfigError([(str(path), error.strerror or "cannot be read")]) from None
    except ValueError as error:
        raise errors.ConfigError([(str(path), f"cannot be parsed: {error}")]) from None
    if not isinstance(values, dict):
        raise errors.ConfigError([(str(path), "must hold an object of sections")])
    return values


def _settings_in(environ: Mapping[str, str]) -> Iterator[tuple[list[str], Any]]:
    for variable, text in sorted(environ.items()):
        if variable.startswith(PREFIX) and "__" in variable:
            names = [_snake(part) for part in variable[len(PREFIX) :].split("__")]
            yield names, _from_text(text, _kind_of(names))


def _kind_of(names: list[str]) -> Any:
    """The type of the setting that `names` lead to; Any when there is none."""
    kind: Any = Config
    for name in names:
        if not _is_section(kind):
            return Any
        kind = {field.name: field.type for field in msgspec.structs.fields(kind)}.get(name, Any)
    return kind


def _from_text(text: str, kind: Any) -> Any:
    # What a setting takes as text is the text; numbers, true, false, lists and objects are JSON.
    if kind is not Any:
        try:
            return msgspec.convert(text, kind)
        except msgspec.ValidationError:
            pass
    try:
        return json.loads(text)
    except ValueError:
        return text


def _snake(key: str) -> str:
    if key.isupper() or "_" in key:
        return key.lower()
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()


def _nest(names: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(names):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _normal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Section and setting names in one spelling, so that layers override each other whichever spelling they use."""
    return {
        _snake(section): {_snake(name): value for name, value in settings.items()}
        if isinstance(settings, dict)
        else settings
        for section, settings in values.items()
    }


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _snake_keys(
    values: Mapping[str, Any], section: type[Section], path: str, problems: list[tuple[str, str]]
) -> dict[str, Any]:
    known = {field.name: field.type for field in msgspec.structs.fields(section)}
    plain: dict[str, Any] = {}
    for key, value in values.items():
        name = _snake(key)
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {path}{close[0]}?" if close else ""
            problems.append((f"{path}{key}", f"is not a setting{hint}"))
        elif isinstance(value, Mapping) and _is_section(known[name]):
            plain[name] = _snake_keys(value, known[name], f"{path}{name}.", problems)
        else:
            plain[name] = value
    return plain


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)

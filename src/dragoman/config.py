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
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, field

from dragoman import errors
from dragoman.sections import (
    Problem,
    Section,
    about,
    conflicts,
    join,
    kind_of,
    leaves,
    merge,
    nearest,
    read,
    respell,
)
from dragoman.version import __version__

PREFIX = "DRAGOMAN_"
_MOST_FILE = 1_048_576
_NAME_IT = "name it with --config"
FLAGS = {"logging.level": "--log-level", "timeouts.tool_overrides": "--timeout"}
"""The settings that have a flag of their own, in some command."""

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Bytes = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=1)]
Level = Literal["debug", "info", "warn", "error"]

DEFAULT_ARRAY_LIMITS = {"bugfix_scan": 100, "refactor_scan": 100, "memory_bulk_delete": 1000, "ability_inject": 20}

GATES = ("memory-pressure-check", "request-size-check", "array-size-check", "timeout-audit")

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


TOKEN_SHORTEST = 16
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What a bearer token can be made of."""


def is_token(text: str) -> bool:
    """Whether a text is long enough for a token, and can be sent as one."""
    return len(text) >= TOKEN_SHORTEST and TOKEN_PATTERN.fullmatch(text) is not None


def is_secure_url(url: str) -> bool:
    """Whether nobody on the way can change what is fetched: https, or http that does not leave the machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # Raises when it is none.
        if parts.scheme == "http":
            return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
    return parts.scheme == "https" and bool(host)


class ServerConfig(Section, frozen=True):
    """Who the server says it is, how long its workers may be silent, and how it stops."""

    name: Annotated[str, Meta(min_length=1), about("The name that clients are told.")] = "dragoman"
    version: Annotated[str, about("The version that clients are told.")] = __version__
    instructions: Annotated[str | None, about("What clients may tell their model about this server.")] = None
    parts: Annotated[tuple[str, ...], about("Parts of installed packages that the server has, by name.")] = ()
    shutdown_timeout_ms: Annotated[
        Milliseconds, about("How long running calls may take to finish at the end.", is_limit=True)
    ] = 10_000
    worker_timeout_ms: Annotated[
        Annotated[int, Meta(ge=0)],
        about(
            "How long one of several workers may give no sign of life before it is replaced; 0: for ever.",
            is_limit=True,
        ),
    ] = 30_000

    def conflicts(self) -> Iterator[Problem]:
        if 0 < self.worker_timeout_ms < 2000:
            yield "worker_timeout_ms", "must be 0, or at least 2000: less may be no more than a busy machine"


class AdminPolicy(Section, frozen=True):
    """Who may use the admin tools."""

    mode: Annotated[
        Literal["deny_all", "local_stdio_only", "token"],
        about("Nobody, the owner of stdin, or (reserved) a token."),
    ] = "deny_all"
    token_env_var: Annotated[str | None, about("Reserved: the variable that holds the token.")] = None


class ToolsConfig(Section, frozen=True):
    """Limits of a single call, and which tools there are besides the user's."""

    default_timeout_ms: Annotated[
        Milliseconds, about("The deadline of a tool that has none of its own.", is_limit=True)
    ] = 30_000
    max_payload_bytes: Annotated[
        Bytes, about("The most that a call's arguments may weigh, as JSON.", is_limit=True)
    ] = 1_048_576
    max_state_bytes: Annotated[Bytes, about("The most that an agent's state may weigh.", is_limit=True)] = 262_144
    memory_enabled: Annotated[
        bool, about("Whether the memory_* tools are served beside a target's own. Without a target they always are.")
    ] = False
    admin_registration_enabled: Annotated[bool, about("One of the two switches for registering tools at run time.")] = (
        False
    )
    admin_policy: AdminPolicy = AdminPolicy()


class CategoryTimeouts(Section, frozen=True):
    """Deadlines by what kind of work a tool does."""

    query: Annotated[Milliseconds, about("Quick reads.", is_limit=True)] = 10_000
    mutation: Annotated[Milliseconds, about("Writes.", is_limit=True)] = 30_000
    scan: Annotated[Milliseconds, about("Analysis of many things.", is_limit=True)] = 120_000
    execution: Annotated[Milliseconds, about("Agents and workflows.", is_limit=True)] = 1_200_000


class TimeoutsConfig(Section, frozen=True):
    """Deadlines: a tool's override wins over what the tool says itself, and that over its category's."""

    input_ms: Annotated[
        Milliseconds,
        about("How long a person may take to answer what a tool asks; no tool's deadline counts it.", is_limit=True),
    ] = 300_000
    tool_timeouts: CategoryTimeouts = CategoryTimeouts()
    tool_overrides: Annotated[dict[str, Milliseconds], about("Milliseconds by tool name.")] = field(
        default_factory=dict
    )


class ResourcesConfig(Section, frozen=True):
    """What the process may use at once."""

    max_concurrent_executions: Annotated[Count, about("How many calls may run at the same time.", is_limit=True)] = 10
    max_concurrent_per_caller: Annotated[
        Count | None, about("How many of them may be one caller's; unset, all of them.", is_limit=True)
    ] = None
    max_waiting_per_caller: Annotated[
        Count | None,
        about(
            "How many of the 1000 calls that may wait for their client's answer may be one caller's; unset, half of "
            "them. A caller that is not authenticated may have all."
        ),
    ] = None


class ToolLimits(Section, frozen=True):
    """Limits of one tool. What is unset is as for every tool."""

    max_payload_bytes: Annotated[Bytes | None, about("As `tools.max_payload_bytes`.")] = None
    max_array_size: Annotated[Count | None, about("As `limits.max_array_size`.")] = None
    max_string_length: Annotated[Count | None, about("As `limits.max_string_length`.")] = None
    max_object_depth: Annotated[Count | None, about("As `limits.max_object_depth`.")] = None
    max_object_members: Annotated[Count | None, about("As `limits.max_object_members`.")] = None
    max_concurrent: Annotated[Count | None, about("How many calls of it may run at the same time.", is_limit=True)] = (
        None
    )
    calls_per_minute: Annotated[
        Count | None, about("How many calls of it one caller may make in a minute.", is_limit=True)
    ] = None


class LimitsConfig(Section, frozen=True):
    """What a request may look like, and how many of them there may be. Exactly at a limit passes.

    TOML has no null; a variable or a JSON file has.
    """

    max_request_bytes: Annotated[
        Bytes, about("The most that one message may weigh, before it is parsed.", is_limit=True)
    ] = 10_485_760
    max_message_containers: Annotated[
        Count | None,
        about("The most arrays and objects of one message, before it is parsed; null: any.", is_limit=True),
    ] = 100_000
    max_message_elements: Annotated[
        Count | None, about("The most items and members of one message, before it is parsed; null: any.", is_limit=True)
    ] = 524_288
    max_array_size: Annotated[
        Count | None, about("The most items of any array in the arguments; null: any.", is_limit=True)
    ] = 100
    max_string_length: Annotated[
        Count | None, about("The most characters of any string in the arguments; null: any.", is_limit=True)
    ] = 100_000
    max_object_depth: Annotated[
        Count | None, about("How deeply objects and arrays may be nested in the arguments; null: any.", is_limit=True)
    ] = 10
    max_object_members: Annotated[
        Count | None, about("The most members of any object in the arguments; null: any.", is_limit=True)
    ] = 1_000
    tool_array_limits: Annotated[dict[str, Count], about("`max_array_size` by tool name, whether higher or lower.")] = (
        field(default_factory=lambda: dict(DEFAULT_ARRAY_LIMITS))
    )
    calls_per_minute_per_caller: Annotated[
        Count | None, about("How many calls one caller may make in a minute; unset, any number.", is_limit=True)
    ] = None
    tools: Annotated[dict[str, ToolLimits], about("Limits by tool name.")] = field(default_factory=dict)


class ResponseConfig(Section, frozen=True):
    """How answers are worded, and how large they may be."""

    dialect: Annotated[
        Literal["structured", "envelope", "plain"], about("The wording of answers; see the guide to dialects.")
    ] = "structured"
    max_response_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        about(
            "The most that a result may weigh. `envelope` shortens what is larger; elsewhere it is an error.",
            is_limit=True,
        ),
    ] = 1_048_576
    max_kept_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        about(
            "`envelope`: the most that a result may weigh to be shortened and kept. A larger one is an error, unless "
            "`max_response_bytes` allows it.",
            is_limit=True,
        ),
    ] = 4_194_304
    max_list_items: Annotated[
        Count, about("`envelope`: the most items of a list before it is shortened.", is_limit=True)
    ] = 100
    max_string_length: Annotated[
        Count,
        about(
            "`envelope`: the most characters of a string before it is shortened, the suffix included.", is_limit=True
        ),
    ] = 10_000
    truncation_suffix: Annotated[
        Annotated[str, Meta(max_length=100)], about("`envelope`: what a shortened string ends with.")
    ] = "... [truncated]"

    @property
    def max_value_bytes(self) -> int:
        """The most that the JSON of a value may weigh that can be answered with, in whole or in part."""
        return max(self.max_response_bytes, self.max_kept_bytes if self.dialect == "envelope" else 0)


class CacheConfig(Section, frozen=True):
    """The bounded cache that holds results and artifacts."""

    max_size_bytes: Annotated[Bytes, about("The most that all entries together may weigh.", is_limit=True)] = (
        104_857_600
    )
    max_entries: Annotated[Count, about("The most entries.", is_limit=True)] = 10_000
    default_ttl_ms: Annotated[
        Annotated[int, Meta(ge=0)],
        about("How long an entry lives that has no time of its own; 0: for ever.", is_limit=True),
    ] = 3_600_000
    eviction_policy: Annotated[
        Literal["lru", "lfu", "fifo"],
        about("Who goes first: the least recently used, the least used, the oldest.", is_harmless=True),
    ] = "lru"
    high_water_mark: Annotated[
        Annotated[float, Meta(ge=0.5, le=1)],
        about("The part of `max_size_bytes` above which entries are evicted.", is_limit=True),
    ] = 0.9
    low_water_mark: Annotated[
        Annotated[float, Meta(ge=0.1, le=0.9)],
        about("The part of `max_size_bytes` that eviction goes down to.", is_limit=True),
    ] = 0.7
    cleanup_interval_ms: Annotated[Milliseconds, about("How often expired entries are removed.", is_limit=True)] = (
        60_000
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.low_water_mark > self.high_water_mark:
            yield "low_water_mark", f"must not be above high_water_mark, {self.high_water_mark}"


class GuardsConfig(Section, frozen=True):
    """The gates that every call passes."""

    memory_budget_bytes: Annotated[
        Bytes | None, about("What the process may use; unset, what the container or the machine has.")
    ] = None
    gates: Annotated[
        dict[str, Literal["enforce", "warn", "off"]],
        about("By gate: refuse what fails (the default), let it pass with a warning, or do not look."),
        Meta(extra_json_schema={"propertyNames": {"enum": list(GATES)}}),
    ] = field(default_factory=dict)

    def conflicts(self) -> Iterator[Problem]:
        for gate in self.gates:
            if gate not in GATES:
                hint = nearest(gate, GATES) or f"; there are {', '.join(GATES)}"
                yield join("gates", gate), f"is not a gate{hint}"


class LoggingConfig(Section, frozen=True):
    """What is logged, and what must never be."""

    level: Annotated[Level, about("The least that is logged.", is_harmless=True)] = "info"
    redact_keys: Annotated[
        tuple[str, ...], about("Keys whose values are never logged, besides the default ones.", is_harmless=True)
    ] = DEFAULT_REDACT_KEYS
    format: Annotated[
        Literal["auto", "json", "text"],
        about("JSON lines, text for a person, or text only on a terminal.", is_harmless=True),
    ] = "auto"


class SecurityConfig(Section, frozen=True):
    """Switches that are off until somebody turns them on."""

    dynamic_registration_enabled: Annotated[bool, about("The other switch for registering tools at run time.")] = False
    state_key: Annotated[
        Annotated[str, Meta(min_length=32)] | None,
        about(
            "What seals the state that clients carry from question to answer. Processes that serve the same clients "
            "share it; unset, each has one of its own.",
            is_secret=True,
        ),
    ] = None
    allow_arbitrary_code_tools: Annotated[bool, about("Reserved; changes nothing.")] = False


class StorageConfig(Section, frozen=True):
    """Where what must outlive the process is kept."""

    data_dir: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about("The folder; unset, the platform's place for application data."),
    ] = None
    engine: Annotated[
        Literal["sqlite", "memory"], about("A database in the folder, or nothing that outlives the process.")
    ] = "sqlite"
    max_bytes_per_caller: Annotated[
        Bytes, about("The most that one caller may keep with the memory_* tools.", is_limit=True)
    ] = 268_435_456


class HttpConfig(Section, frozen=True):
    """Where HTTP clients connect, and what they may take up."""

    host: Annotated[str, Meta(min_length=1), about("The address to listen on.")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=1, le=65_535)], about("The port to listen on.")] = 8000
    path: Annotated[Annotated[str, Meta(pattern="^/[^?#]*[^/?#]$")], about("Where MCP is served.")] = "/mcp"
    allowed_hosts: Annotated[
        tuple[str, ...],
        about("Names that the server is reached by, besides addresses and `localhost`; `*` allows any."),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], about("Pages that may call from a browser, as `https://example.org`; `*` allows any.")
    ] = ()
    max_connections: Annotated[Annotated[int, Meta(ge=1)], about("Connections at a time.", is_limit=True)] = 4096
    max_sessions: Annotated[
        Annotated[int, Meta(ge=1)], about("Sessions of the handshake era at a time.", is_limit=True)
    ] = 10_000
    max_sessions_per_caller: Annotated[
        Count | None,
        about("How many of them may be one caller's; unset, half of them. Without authentication, all of them."),
    ] = None
    session_idle_ms: Annotated[
        Annotated[int, Meta(ge=1000)], about("How long a session is kept that nobody uses.", is_limit=True)
    ] = 1_800_000
    read_timeout_ms: Annotated[
        Annotated[int, Meta(ge=100)], about("How long a client may take to send a whole request.", is_limit=True)
    ] = 30_000
    write_timeout_ms: Annotated[
        Annotated[int, Meta(ge=100)], about("How long a client may leave its answer unread.", is_limit=True)
    ] = 60_000
    keep_alive_ms: Annotated[
        Annotated[int, Meta(ge=1000)], about("How long a connection without requests is kept.", is_limit=True)
    ] = 75_000
    max_replay_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        about("What is kept, for all sessions together, to resume broken streams.", is_limit=True),
    ] = 67_108_864
    metrics: Annotated[bool, about("Whether calls are counted, and `/metrics` is served.", is_harmless=True)] = True


class CallerConfig(Section, frozen=True):
    """Somebody who is known by a token of its own."""

    token: Annotated[
        Annotated[str, Meta(min_length=TOKEN_SHORTEST, pattern=rf"^{TOKEN_PATTERN.pattern}$")] | None,
        about("The token, 16 characters or more.", is_secret=True),
    ] = None
    token_env_var: Annotated[str | None, about("The variable that holds the token, in place of `token`.")] = None
    roles: Annotated[tuple[str, ...], about("What tools are told that the caller is.")] = ()
    scopes: Annotated[
        tuple[str, ...] | None, about("What it may call: `tool:<name>`, `tool:<beginning>*`; unset, every tool.")
    ] = None

    def conflicts(self) -> Iterator[Problem]:
        if (self.token is None) == (self.token_env_var is None):
            yield "token", "there must be either this or token_env_var"

    def __repr__(self) -> str:  # Sections are printed by debuggers and in tracebacks.
        return f"CallerConfig(token=…, roles={self.roles}, scopes={self.scopes})"


class AuthConfig(Section, frozen=True):
    """Who HTTP clients have to be; see the guide to authentication."""

    allow_unauthenticated: Annotated[
        bool, about("Whether an address that others can reach may be served without authentication.")
    ] = False
    callers: Annotated[dict[str, CallerConfig], about("Who is known by a token of its own, by name.")] = field(
        default_factory=dict
    )
    issuer: Annotated[
        str | None,
        about("Whose JSON Web Tokens are taken: the URL that they name as `iss`, where its keys are found."),
    ] = None
    jwks: Annotated[str | None, about("Where the keys are, if the issuer does not say: a URL, or a file.")] = None
    resource: Annotated[
        str | None,
        about("The URL that clients know this endpoint by. Tokens must be meant for it, unless `audience` is set."),
    ] = None
    audience: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about("What tokens must name as `aud`, if it is not `resource`."),
    ] = None
    require_scopes: Annotated[
        bool, about("Whether an issuer's token needs the scope `tool:<name>` to call a tool.")
    ] = True
    roles_claim: Annotated[
        Annotated[str, Meta(min_length=1)],
        about("The claim that holds the roles; `a.b` is b within a."),
    ] = "roles"

    @property
    def takes_jwts(self) -> bool:
        return self.issuer is not None or self.jwks is not None

    @property
    def is_set(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.callers) or self.takes_jwts

    def conflicts(self) -> Iterator[Problem]:
        if self.takes_jwts and self.resource is None and self.audience is None:
            yield "audience", "must be set, or resource: tokens that are meant for others must not be taken"
        for name, url in (("issuer", self.issuer), ("resource", self.resource)):
            if url is not None and not is_secure_url(url):
                yield name, "must be a URL with https, or with http on this machine"
        if self.jwks is not None and "://" in self.jwks and not is_secure_url(self.jwks):
            yield "jwks", "must be a file, or a URL with https, or with http on this machine"


class ExplorerConfig(Section, frozen=True):
    """The page that shows the tools, beside MCP over HTTP."""

    enabled: Annotated[bool, about("Whether the page is served.")] = False
    prefix: Annotated[
        Annotated[str, Meta(pattern=r"^(/[\w~-][\w.~-]*)+/?$")], about("Where it is served; `/` at the end is ignored.")
    ] = "/explorer"
    allow_execute: Annotated[bool, about("Whether tools can be run from it.")] = False


class AacpConfig(Section, frozen=True):
    """Messages between agents. Reserved: there are no agents yet."""

    default_ttl_ms: Annotated[
        Annotated[int, Meta(ge=1)], about("How long a message without a time of its own is tried.", is_limit=True)
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

    def conflicts(self) -> Iterator[Problem]:
        """What is wrong with settings of two sections together."""
        prefix, path = self.explorer.prefix.rstrip("/"), self.http.path
        if self.explorer.enabled and (path == prefix or path.startswith(f"{prefix}/")):
            yield "explorer.prefix", f"must be apart from http.path, {path}"

    def is_dynamic_registration_effective(self) -> bool:
        """Whether tools can be registered at run time: it takes both switches."""
        return self.tools.admin_registration_enabled and self.security.dynamic_registration_enabled


FindSections: TypeAlias = Callable[[Sequence[str]], Mapping[str, type[Section]]]
"""Gives the sections of the parts that `server.parts` names, by name. Raises `ConfigError`."""


def _no_sections(names: Sequence[str]) -> Mapping[str, type[Section]]:
    return {}


def make_config(values: Mapping[str, Any] | Config | None = None, find_sections: FindSections = _no_sections) -> Config:
    """Settings from nested values, as a file would hold them; what is not named keeps its default.

    Raises `ConfigError` with everything that is wrong.
    """
    if isinstance(values, Config):
        return values
    found: list[Problem] = []
    kind = _with_parts([values or {}], find_sections, found)
    config = read(kind, respell(kind, values or {}, found), found)
    found += conflicts(config)
    if found:
        raise errors.ConfigError(found)
    return config


def _with_parts(layers: Iterable[Mapping[str, Any]], find_sections: FindSections, found: list[Problem]) -> type[Config]:
    """`Config` with the sections of the parts that the last layer with `server.parts` names."""
    names: Sequence[str] = ()
    for layer in layers:
        section = respell(Config, layer, []).get("server")
        given = section.get("parts", names) if isinstance(section, Mapping) else names
        if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
            names = given
    try:
        sections = find_sections(names)
    except errors.ConfigError as error:
        found += error.problems
        return Config
    taken = [(name, "is a section of the server, and cannot be a part's") for name in sections if name in _OWN]
    found += taken
    if taken or not sections:
        return Config
    fields = [(name, section, section()) for name, section in sections.items()]
    made: Any = msgspec.defstruct("Config", fields, bases=(Config,), frozen=True, kw_only=True)
    return made  # type: ignore[no-any-return]


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """The settings in force, without where they came from: `Settings.load(…).config`."""
    return Settings.load(file, environ, flags).config


class ValidationResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether something can be used, and if not, why: `errors` holds `{path, message}` each."""

    valid: bool
    errors: list[dict[str, str]] | None = None


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
        config = read(kind, values, [])  # Whatever is wrong with a layer has been found.
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
        if section not in self.config.__struct_fields__:
            raise KeyError(section)
        found: Section = getattr(self.config, section)
        return found

    def is_dynamic_registration_effective(self) -> bool:
        """Whether tools can be registered at run time: it takes both switches."""
        return self.config.is_dynamic_registration_effective()


load_settings = Settings.load
_OWN = frozenset(Config.__struct_fields__)


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

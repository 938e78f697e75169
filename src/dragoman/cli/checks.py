"""The doctor's checks. Each gives one finding or more, changes nothing, and never raises."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman import errors
from dragoman.adapters.buckets import examine_bucket
from dragoman.adapters.embedders import examine_embedder
from dragoman.adapters.engines import make_storage
from dragoman.adapters.sqlite_ledger_overview import spaces_in
from dragoman.app import parts_of
from dragoman.cli.clients import (
    CLIENTS,
    ClientProgram,
    EntryScope,
    is_command,
    is_ours,
    own_command,
    parse,
    read,
    words_of,
)
from dragoman.cli.options import load_settings
from dragoman.cli.sharing import shared_database
from dragoman.cli.trial import first_answer, is_protocol_line
from dragoman.clock import SystemClock
from dragoman.config import Config, Settings
from dragoman.edge.settings import HttpConfig
from dragoman.findings import Finding
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.memories.migrations import MIGRATIONS
from dragoman.storage.settings import StorageConfig, data_directory

OLDEST_PYTHON = (3, 11)
_SLOW_START = 2.0
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[^]]*\])?(.*)")
_BOUND = re.compile(r"(>=|~=|<)\s*([\d.]+)")


def all_findings(config: Path | None) -> Iterator[Finding]:
    """Every check in turn; what depends on settings that cannot be used is left out."""
    yield python(sys.version_info[:3])
    yield from packages()
    yield from sdk()
    settings, finding = settings_in_force(config)
    yield finding
    if settings is not None:
        yield from make_storage(settings.config.storage, SystemClock(), MIGRATIONS).examine()
        yield from shared_database(settings.config.storage)
        yield from ledger(settings.config.storage)
        yield from examine_bucket(settings.config.gateway, os.environ)
        yield from embedder(settings.config)
        yield trial_start([*own_command(), "serve", *(("--config", str(config)) if config is not None else ())])
        yield port(settings.config.http)
        yield from of_parts(settings)
    for client in CLIENTS.values():
        yield from client_files(client)


def python(version: tuple[int, ...]) -> Finding:
    """Whether this Python is new enough."""
    said = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version >= OLDEST_PYTHON:
        return Finding("Python", "ok", said)
    return Finding("Python", "problem", said, f"Use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer.")


def packages() -> Iterator[Finding]:
    """Whether what Dragoman needs is installed, and new enough."""
    try:
        needed = metadata.requires("dragoman") or []
    except metadata.PackageNotFoundError:
        yield Finding("packages", "warning", "dragoman is not installed, only run", "Install it with pip.")
        return
    wrong: list[str] = []
    for requirement in needed:
        specifier, _, marker = requirement.partition(";")
        if "extra" not in marker and not ("sys_platform" in marker and not _applies(marker)):
            wrong += _missing(specifier)
    for each in wrong:
        is_optional = each.startswith("uvloop")
        advice = "Install it for faster calls." if is_optional else "Install Dragoman again: pip install dragoman"
        yield Finding("packages", "warning" if is_optional else "problem", each, advice)
    if not wrong:
        names = ("dragoman", "mcp", "msgspec", *(("uvloop",) if sys.platform != "win32" else ()))
        yield Finding("packages", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in names))


def sdk() -> Iterator[Finding]:
    """Whether the SDK has what is used of its insides; nothing without an SDK, which `packages` finds."""
    if find_spec("mcp") is None:
        return
    from dragoman.edge.sdk.fit import SdkDoesNotFit, check_sdk

    try:
        check_sdk()
    except SdkDoesNotFit as error:
        yield Finding("mcp", "problem", str(error), "Install Dragoman again: pip install --upgrade dragoman mcp")


def _applies(marker: str) -> bool:
    """Whether `sys_platform == 'x'` or `sys_platform != 'x'`, the only markers there are, holds here."""
    named = re.search(r"(==|!=)\s*['\"](\w+)['\"]", marker)
    return named is None or (sys.platform == named[2]) == (named[1] == "==")


def _missing(specifier: str) -> list[str]:
    parts = _REQUIREMENT.match(specifier.strip())
    assert parts is not None
    name, bounds = parts.groups()
    try:
        there = metadata.version(name)
    except metadata.PackageNotFoundError:
        return [f"{name} is not installed"]
    wanted = [
        (operator, version) for operator, version in _BOUND.findall(bounds) if not _is_met(there, operator, version)
    ]
    return [f"{name} {there} is installed; {''.join(bound)} is needed" for bound in wanted]


def _is_met(there: str, operator: str, wanted: str) -> bool:
    has, needs = ([int(part) for part in re.findall(r"\d+", version)] for version in (there, wanted))
    if operator == "<":
        return has < needs
    return has >= needs and (operator != "~=" or has[: len(needs) - 1] == needs[:-1])


def settings_in_force(config: Path | None) -> tuple[Settings | None, Finding]:
    """The settings, unless they cannot be used."""
    try:
        settings = load_settings(config)
    except errors.ConfigError as error:
        return None, Finding("settings", "problem", "; ".join(str(error).splitlines()), "See `dragoman config check`.")
    changed = f"{len(settings.sources)} set" if settings.sources else "all as they are by default"
    return settings, Finding("settings", "ok", f"{settings.file or 'no file'}; {changed}")


def ledger(config: StorageConfig) -> Iterator[Finding]:
    """Whether messages and tasks can be read. It reads no more than their spaces: the rest may be much."""
    try:
        spaces = spaces_in(data_directory(config, os.environ)) if config.engine == "sqlite" else []
    except errors.ConfigError:
        return  # The storage's own check says so.
    except errors.StorageError as error:
        advice = "Stop the servers, and put a backup back with `dragoman storage restore`."
        yield Finding("agents", "problem", f"the ledger cannot be read: {error}", advice)
        return
    count = f"{len(spaces)} {'space' if len(spaces) == 1 else 'spaces'}" if spaces else "no messages and no tasks"
    yield Finding("agents", "ok", f"the ledger has {count}")


def embedder(config: Config) -> Iterator[Finding]:
    """Whether passages can get vectors, if they are to."""
    try:
        folder = data_directory(config.storage, os.environ)
    except errors.ConfigError:
        return  # The storage's own check says so.
    yield from examine_embedder(config.knowledge, folder, os.environ)
    if config.gateway.enabled:
        yield queries(config.knowledge)


def queries(config: KnowledgeConfig) -> Finding:
    """Which of words, vectors and a model take part in answers to queries. The last two need a model of the user's."""
    vectors = "no vectors" if config.embedder == "none" else f"vectors of {config.embedder}"
    answer = "no model writes the answer" if config.answers_url is None else f"{config.answers_model} writes the answer"
    return Finding("queries", "ok", f"words are searched, {vectors}; {answer}")


def trial_start(command: list[str]) -> Finding:
    """Start a server with the built-in tools, as a client would, and look at what it says on stdout."""
    try:
        lines, took = first_answer(command)
    except TimeoutError as error:
        return Finding("trial start", "problem", str(error), f"Run `{' '.join(command)}` and see what it says.")
    except OSError as error:
        return Finding("trial start", "problem", f"{command[0]}: {error.strerror or error}")
    strange = [line for line in lines if not is_protocol_line(line)]
    if strange:
        said = f"stdout carries what is not JSON-RPC: {strange[0][:80]!r}"
        advice = "Something prints when Python starts, such as sitecustomize or a .pth file; make it use stderr."
        return Finding("trial start", "problem", said, advice)
    if took > _SLOW_START:
        advice = "Some clients give up soon; look at what Python loads when it starts."
        return Finding("trial start", "warning", f"first answer only after {took:.2f} s; stdout is clean", advice)
    return Finding("trial start", "ok", f"first answer after {took:.2f} s; stdout is clean")


def port(config: HttpConfig) -> Finding:
    """Whether HTTP could be served where the settings say."""
    place = f"{config.host}:{config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, ValueError) as error:  # A name that is too long for one is no `OSError`.
        said = f"{place} cannot be listened on: {getattr(error, 'strerror', None) or error}"
        return Finding("port", "warning", said, "It matters for HTTP only; set http.host and http.port.")
    return Finding("port", "ok", f"{place} is free")


def of_parts(settings: Settings) -> Iterator[Finding]:
    """What the checks of the parts find."""
    for part in parts_of(settings.config):
        section = None if part.settings is None else settings.get(part.name)
        for check in part.checks:
            try:
                yield from check(section)
            except Exception as error:
                yield Finding(part.name, "problem", f"the check itself failed: {type(error).__name__}: {error}")


def client_files(client: ClientProgram) -> Iterator[Finding]:
    """Whether a client's files can be read, and whether what they say of Dragoman can be started."""
    files = [path for scope in EntryScope if (path := client.file(scope)) is not None]
    found = [finding for path in files for finding in _client_file(client, path)]
    yield from found or [Finding(client.name, "ok", "no configuration here")]


def _client_file(client: ClientProgram, path: Path) -> Iterator[Finding]:
    try:
        content = read(path)
        if content is None:
            return
        document = parse(content)
    except OSError as error:
        yield Finding(client.name, "warning", f"{path}: {error.strerror}")
        return
    except ValueError as error:
        advice = "If that is a comment, all is well; `dragoman install` will print entries instead of adding them."
        yield Finding(client.name, "warning", f"{path}: {error}", advice)
        return
    servers = document.get(client.key)
    entries = servers.items() if isinstance(servers, dict) else ()
    ours = [(name, entry) for name, entry in entries if is_ours(entry)]
    for name, entry in ours:
        yield _entry(client, path, name, entry)
    if not ours:
        yield Finding(client.name, "ok", f"{path} does not mention dragoman")


def _entry(client: ClientProgram, path: Path, name: str, entry: Any) -> Finding:
    command, *arguments = words_of(entry)
    advice = f"Run `dragoman install {client.id}` again, with --force."
    if not is_command(command):
        return Finding(client.name, "problem", f"{path}: {name!r} starts {command}, which is not there", advice)
    files = [word.partition(".py:")[0] for word in arguments if os.path.isabs(word)]
    gone = [file for file in files if not os.path.exists(file) and not os.path.exists(f"{file}.py")]
    if gone:
        return Finding(client.name, "problem", f"{path}: {name!r} names {gone[0]}, which is not there", advice)
    return Finding(client.name, "ok", f"{path}: {name!r} can be started")

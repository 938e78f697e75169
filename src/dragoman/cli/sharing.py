"""The doctor's check of a database that several processes use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dragoman.adapters.leader_locks import JOB_PREFIX
from dragoman.adapters.process_locks import ProcessLocks, processes_with
from dragoman.adapters.sqlite_database import FILE_NAME, has_reset_defect
from dragoman.cli.clients import CLIENTS, ClientProgram, EntryScope, is_ours, parse, read
from dragoman.errors import ConfigError
from dragoman.findings import Finding
from dragoman.storage.settings import StorageConfig, data_directory

_ADVICE = (
    "Use a Python whose SQLite is 3.51.3 or newer, 3.50.7 or 3.44.6, or patched by its distribution; or give each "
    "process a storage.data_dir of its own. Make backups."
)


def shared_database(config: StorageConfig) -> Iterator[Finding]:
    """Whether an SQLite that can damage a database of several processes is used for one."""
    if config.engine != "sqlite" or not has_reset_defect():
        return
    try:
        folder = data_directory(config, os.environ)
    except ConfigError:
        return  # The storage's own check says so.
    held = [each for each in ProcessLocks(folder / "locks").held() if not each.startswith(JOB_PREFIX)]
    processes = max(len(held), processes_with(folder / FILE_NAME))
    clients = sum(len(_entries(client, scope)) for client in CLIENTS.values() for scope in EntryScope)
    if processes > 1 or clients > 1:
        by = f"{processes} processes use" if processes > 1 else f"{clients} entries of clients start processes that use"
        said = f"{by} {folder}, and this Python's SQLite has a rare defect that can damage it then"
        yield Finding("SQLite", "warning", said, _ADVICE)


def _entries(client: ClientProgram, scope: EntryScope) -> list[Any]:
    path = client.file(scope)
    try:
        content = None if path is None else read(path)
        servers = None if content is None else parse(content).get(client.key)
    except (OSError, ValueError):
        return []  # The check of the client's files says so.
    return [entry for entry in servers.values() if is_ours(entry)] if isinstance(servers, dict) else []

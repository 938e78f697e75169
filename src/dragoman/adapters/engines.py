"""The storage engines, by the name that the setting `storage.engine` has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dragoman.adapters.private_storage import PrivateStorage
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.clock import Clock
from dragoman.storage.migrations import Migration
from dragoman.storage.port import Storage
from dragoman.storage.settings import StorageConfig

ENGINES: Mapping[str, Callable[[StorageConfig, Clock, Iterable[Migration]], Storage]] = {
    "sqlite": SqliteStorage,
    "memory": PrivateStorage,
}


def make_storage(config: StorageConfig, clock: Clock, migrations: Iterable[Migration]) -> Storage:
    """The storage that the settings ask for; opened when it is used."""
    return ENGINES[config.engine](config, clock, migrations)

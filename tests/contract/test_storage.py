"""The contract of `Storage`, for every engine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

import pytest

from dragoman.adapters import engines
from dragoman.memories.port import Memories, MemoryEntry, Space
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import PLENTY, STORAGES

ADA = Space("ada", "default")


class Unknown(Protocol):
    """A port that no engine has."""


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return STORAGES[request.param](tmp_path / "data", PLENTY, ManualClock())


def test_every_engine_is_in_the_suite() -> None:
    assert set(STORAGES) == set(engines.ENGINES)


async def test_a_port_is_always_the_same(storage: Storage) -> None:
    await storage.port(Memories).store(ADA, "k", 1)
    assert storage.port(Memories) is storage.port(Memories)
    assert await storage.port(Memories).retrieve(ADA, "k") == MemoryEntry("k", 1, 9, "2024-01-15T10:30:00.000Z")
    await storage.close()


async def test_a_port_that_the_engine_lacks_is_an_error(storage: Storage) -> None:
    with pytest.raises(KeyError):
        storage.port(Unknown)


async def test_asking_for_a_port_and_examining_create_nothing(storage: Storage, tmp_path: Path) -> None:
    assert storage.port(Memories) is not None
    assert {finding.verdict for finding in storage.examine()} == {"ok"}
    await storage.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_storage_can_be_closed_twice(storage: Storage, is_used: bool) -> None:
    if is_used:
        await storage.port(Memories).list(ADA, 1)
    await storage.close()
    await storage.close()

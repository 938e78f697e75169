"""The storage of a process that keeps nothing: what it leaves behind, and what it removes that others left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from dragoman import tool
from dragoman.adapters.private_storage import PREFIX, PrivateFolder, PrivateStorage
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.errors import ConfigError, StorageClosed, StorageUnavailable
from dragoman.gateway.objects import ObjectStore, object_key
from dragoman.memories.port import Memories, Space
from dragoman.testing import open_server
from tests.contract.engines import memory

ADA = Space("ada", "default")
KEEPING = """
import asyncio, os, signal, sys
from dragoman.adapters.private_storage import PrivateStorage
from dragoman.clock import SystemClock
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Memories, Space
from dragoman.storage.settings import StorageConfig

storage = PrivateStorage(StorageConfig(), SystemClock(), MIGRATIONS)
asyncio.run(storage.port(Memories).store(Space("ada", "default"), "k", 1))
"""
"""A program with such a storage, which it does not close."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The platform's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
async def storage(temporary: Path) -> AsyncIterator[PrivateStorage]:
    made = memory(temporary)
    assert isinstance(made, PrivateStorage)
    yield made
    await made.close()


async def keep(store: ObjectStore) -> None:
    """Keep an artifact."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"content"

    draft = await store.write(pieces())
    await draft.commit(object_key("acme", draft.sha256))


def run_in(temporary: Path, program: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)


def those_in(place: Path) -> list[Path]:
    return list(place.iterdir())


async def test_the_folder_is_for_this_user_alone_and_gone_when_the_storage_is_closed(
    storage: PrivateStorage, temporary: Path
) -> None:
    await storage.port(Memories).store(ADA, "k", 1)
    await keep(storage.port(ObjectStore))
    (folder,) = those_in(temporary)
    assert [each.stat().st_mode & 0o777 for each in (folder, folder / FILE_NAME)] == [0o700, 0o600]
    await storage.close()
    assert those_in(temporary) == []


async def test_an_artifact_before_anything_else_makes_a_folder_for_this_user_alone(
    storage: PrivateStorage, temporary: Path
) -> None:
    await keep(storage.port(ObjectStore))
    (folder,) = those_in(temporary)
    assert folder.stat().st_mode & 0o777 == 0o700
    await storage.port(Memories).store(ADA, "k", 1)
    await storage.close()
    assert those_in(temporary) == []


async def test_two_storages_have_nothing_in_common(storage: PrivateStorage, temporary: Path) -> None:
    other = memory(temporary)
    await storage.port(Memories).store(ADA, "k", 1)
    assert await other.port(Memories).retrieve(ADA, "k") is None
    await other.close()
    assert await storage.port(Memories).retrieve(ADA, "k") is not None


async def test_no_write_waits_for_the_disk(storage: PrivateStorage) -> None:
    with closing(storage._opened().connect()) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (0,)


def test_a_folder_that_was_removed_is_not_made_again(temporary: Path) -> None:
    folder = PrivateFolder(temporary)
    folder.make()
    folder.remove()
    with pytest.raises(StorageClosed):
        folder.make()
    assert those_in(temporary) == []


async def test_a_temporary_folder_that_is_not_there_is_told_as_any_storage_that_fails(
    storage: PrivateStorage, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    memories = storage.port(Memories)
    with pytest.raises(StorageUnavailable):
        await memories.store(ADA, "k", 1)


def test_without_a_temporary_folder_it_cannot_be_used_and_examining_says_so(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    storage = memory(temporary)
    with pytest.raises(ConfigError, match="temporary folder"):
        storage.port(Memories)
    finding = next(iter(storage.examine()))
    assert (finding.verdict, finding.advice) == ("problem", "Set TMPDIR to a folder that can be written.")


@pytest.mark.slow
def test_a_process_that_ends_leaves_nothing_and_a_forked_child_leaves_it_alone(temporary: Path) -> None:
    in_a_child = """
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(len(os.listdir(os.environ["TMPDIR"])))
"""
    ended = run_in(temporary, KEEPING + in_a_child)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("1\n", "", 0)
    assert those_in(temporary) == []


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_by_the_next_one_and_nothing_else_is(temporary: Path) -> None:
    used = PrivateFolder(temporary)
    used.make()
    being_made, of_somebody = (temporary / f"{PREFIX}{name}" for name in ("new", "mine"))
    for folder, names in ((used.path, (FILE_NAME,)), (being_made, ()), (of_somebody, (FILE_NAME, "letters"))):
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).touch()
    before = set(those_in(temporary))
    run_in(temporary, KEEPING + "os.kill(os.getpid(), signal.SIGKILL)")
    (left,) = set(those_in(temporary)) - before
    link = temporary / f"{PREFIX}link"
    link.symlink_to(left)
    run_in(temporary, KEEPING)
    assert set(those_in(temporary)) == {*before, link}
    used.remove()


async def test_a_server_without_a_data_directory_makes_a_folder_for_its_first_task_and_removes_it(
    temporary: Path,
) -> None:
    @tool(task="optional")
    async def work() -> int:
        return 1

    async with open_server([work]) as server:
        client = await server.client()
        assert not (await client.call_tool("work"))["isError"]
        assert those_in(temporary) == []
        await server.runtime.create_task("work")
        assert len(those_in(temporary)) == 1
    assert those_in(temporary) == []

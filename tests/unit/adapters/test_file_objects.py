"""Files of artifacts: nothing half is ever found, and no link is followed."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.file_objects import FileObjects
from dragoman.errors import StorageFull, StorageUnavailable
from dragoman.gateway.objects import object_key
from tests.support.waiting import until

CONTENT = b"content " * 100_000
KEY = object_key("acme", sha256(CONTENT).hexdigest())


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for each in given or (CONTENT,):
        yield each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def store(folder: Path) -> FileObjects:
    return FileObjects(folder)


async def put(store: FileObjects) -> None:
    await (await store.write(pieces())).commit(KEY)


async def content_of(store: FileObjects) -> bytes:
    return b"".join([piece async for piece in store.read(KEY)])


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def files_and_folders_in(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


def modes_in(folder: Path) -> tuple[set[int], set[int]]:
    """Those of folders, and those of files."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    folder_modes, file_modes = (
        {stat.S_IMODE(path.stat().st_mode) for path in paths} for paths in (folders, files_in(folder))
    )
    return folder_modes, file_modes


async def test_everything_is_for_this_user_alone(store: FileObjects, folder: Path) -> None:
    await put(store)
    await store.write(pieces())
    assert modes_in(folder) == ({0o700}, {0o600})


async def test_nothing_is_made_before_something_is_kept(store: FileObjects, folder: Path) -> None:
    assert await store.size(KEY) is None
    await store.delete(KEY)
    assert await store.sweep(10.0**10, 10.0**10) == []
    assert folder not in files_and_folders_in(folder.parent)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
async def test_a_full_disk_leaves_nothing_half(
    store: FileObjects, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    function, written = getattr(os, call), 0

    def full(*arguments: Any) -> Any:
        nonlocal written
        written += 1
        if call == "write" and written == 1:
            return function(arguments[0], arguments[1][:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    async def send() -> None:
        draft = await store.write(pieces())
        try:
            await draft.commit(KEY)
        finally:
            draft.discard()

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(StorageFull):
            await send()
    assert (await store.size(KEY), files_in(folder)) == (None, [])
    await send()
    assert await content_of(store) == CONTENT


async def test_a_write_that_takes_less_than_it_was_given_goes_on(
    store: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:1000]))
    await put(store)
    assert await content_of(store) == CONTENT


async def test_content_is_synced_before_it_has_its_name_and_the_folder_after_it(
    store: FileObjects, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    draft = await store.write(pieces(b"first"))
    await draft.commit(KEY)
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_rename(*arguments: Any) -> None:
        steps.append("rename")
        replace(*arguments)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    await put(store)
    assert steps == ["file", "rename", "folder"]


@pytest.mark.parametrize("level", ["", "objects", f"objects/{KEY.partition('/')[0]}", f"objects/{KEY}"])
async def test_no_link_is_followed_at_any_level(store: FileObjects, folder: Path, tmp_path: Path, level: str) -> None:
    await put(store)
    place, elsewhere = folder / level, tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    if level:
        with pytest.raises(StorageUnavailable):
            await content_of(store)
        with pytest.raises(StorageUnavailable):
            await store.size(KEY)
    else:  # The data directory itself is the operator's to place.
        assert await content_of(store) == CONTENT


async def test_a_link_in_the_place_of_an_object_is_replaced_and_deleted_without_its_target(
    store: FileObjects, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("somebody's own")
    await put(store)
    place = folder / "objects" / KEY
    for change in (put, lambda store: store.delete(KEY)):
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        await change(store)
        assert (place.is_symlink(), target.read_text()) == (False, "somebody's own")


async def test_links_among_drafts_are_removed_and_those_in_place_of_folders_are_refused(
    store: FileObjects, folder: Path, tmp_path: Path
) -> None:
    await put(store)
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("somebody's own")
    (folder / "drafts/link").symlink_to(target / "file")
    await store.sweep(10.0**10, 10.0**10)
    assert (files_in(folder), (target / "file").exists()) == ([folder / "objects" / KEY], True)
    (folder / "drafts").rmdir()
    (folder / "drafts").symlink_to(target)
    with pytest.raises(StorageUnavailable):
        await store.sweep(10.0**10, 10.0**10)
    with pytest.raises(StorageUnavailable):
        await store.write(pieces())
    assert (target / "file").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
async def test_what_is_no_regular_file_is_not_read(store: FileObjects, folder: Path, kind: str) -> None:
    await put(store)
    place = folder / "objects" / KEY
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(StorageUnavailable):
        await content_of(store)


async def test_an_upload_that_is_cancelled_leaves_no_file_and_no_descriptor(
    store: FileObjects, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, under_way, go_on = os.write, threading.Event(), threading.Event()

    def slow(descriptor: int, data: bytes) -> int:
        under_way.set()
        assert go_on.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    before = len(os.listdir("/proc/self/fd"))
    task = asyncio.create_task(store.write(pieces()))
    await until(under_way.is_set)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()  # Its thread still uses the descriptor.
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (files_in(folder), len(os.listdir("/proc/self/fd"))) == ([], before)


async def test_a_reader_that_stops_early_leaves_no_descriptor_and_reads_on_what_was_deleted(store: FileObjects) -> None:
    await put(store)
    before = len(os.listdir("/proc/self/fd"))
    reading = store.read(KEY)
    first = await anext(reading)
    await store.delete(KEY)
    rest = await anext(reading)
    assert CONTENT.startswith(first + rest)
    await reading.aclose()
    assert len(os.listdir("/proc/self/fd")) == before

"""`dragoman storage`: backups that are whole, and restoring that takes nobody's database away."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from dragoman.adapters.sqlite_backup import back_up
from dragoman.cli.commands import app
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.gateway.objects import ObjectRecords, ObjectStore, StoredObject, object_key
from dragoman.memories.port import Memories, Space
from tests.support.processes import ServerProcess

T = TypeVar("T")
ADA = Space("ada", "default")
CONTENT = b"an artifact"
KEY = object_key("acme", sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def dragoman(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


def answer(*words: str) -> Any:
    return json.loads(dragoman(*words, "--json").stdout)


def stored(work: Callable[[OpenStorage], Awaitable[T]]) -> T:
    return with_storage(None, work)


def store(value: str) -> None:
    stored(lambda each: each.storage.port(Memories).store(ADA, "k", value))


def value() -> Any:
    entry = stored(lambda each: each.storage.port(Memories).retrieve(ADA, "k"))
    return None if entry is None else entry.value


def keep_artifact() -> None:
    entry = StoredObject(
        tenant="acme",
        sha256=sha256(CONTENT).hexdigest(),
        mime="text/plain",
        size=len(CONTENT),
        uploaded_at=time.time(),
        expires_at=time.time() + 60,
    )

    async def pieces() -> AsyncIterator[bytes]:
        yield CONTENT

    async def work(each: OpenStorage) -> None:
        records = each.storage.port(ObjectRecords)
        assert await records.claim(entry, 10**9, time.time())
        await (await each.storage.port(ObjectStore).write(pieces())).commit(KEY)
        assert await records.complete(entry)

    stored(work)


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_a_backup_is_put_back_whole_and_what_it_replaces_is_kept(tmp_path: Path, data: Path) -> None:
    store("before")
    keep_artifact()
    (data / "artifacts" / "objects" / "of nobody").write_bytes(b"")
    told = answer("storage", "backup", "copies/one")
    copy = tmp_path / "copies" / "one"
    size = (copy / "dragoman.db").stat().st_size
    counts = {"databaseBytes": size, "artifacts": 1, "missingArtifacts": 0, "keys": 0}
    assert told == {"from": str(data), "into": "copies/one", **counts}
    assert names(copy) == [f"artifacts/objects/{KEY}", "dragoman.db"]
    assert os.listdir(copy.parent) == ["one"]
    if os.name == "posix":
        assert [stat.S_IMODE(each.stat().st_mode) for each in (copy, copy / "dragoman.db")] == [0o700, 0o600]

    store("after")
    told = answer("storage", "restore", str(copy))
    kept = Path(told.pop("kept"))
    assert told == {"from": str(copy), "into": str(data), **counts}
    assert value() == "before"
    assert (data / "artifacts" / "objects" / KEY).read_bytes() == CONTENT
    assert kept.parent == data
    assert names(kept) == [f"artifacts/objects/{KEY}", "artifacts/objects/of nobody", "dragoman.db"]
    with closing(sqlite3.connect(kept / "dragoman.db")) as former:
        assert former.execute("SELECT value FROM memory_entry").fetchall() == [(b'"after"',)]

    told = dragoman("storage", "restore", str(copy)).stdout
    assert f"Restored {copy} to {data}: a database of {size} bytes, 1 artifacts, 0 keys." in told
    assert "What was there is in " in told


def test_a_backup_can_be_restored_where_there_is_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("before")
    dragoman("storage", "backup", "copy")
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", "new")
    assert answer("storage", "restore", "copy")["kept"] is None
    assert value() == "before"
    assert sorted(each.name for each in Path("new").iterdir()) == ["dragoman.db"]


@pytest.mark.slow
def test_keys_are_copied_when_they_are_asked_for(tmp_path: Path, data: Path) -> None:
    store("before")
    (data / "keys").mkdir()
    (data / "keys" / "local").write_text("secret")
    dragoman("storage", "backup", "without")
    assert not (tmp_path / "without" / "keys").exists()
    assert answer("storage", "backup", "with", "--with-keys")["keys"] == 1
    assert (tmp_path / "with" / "keys" / "local").read_text() == "secret"

    (data / "keys" / "local").write_text("another")
    dragoman("storage", "restore", "with")
    assert (data / "keys" / "local").read_text() == "another"
    kept = Path(answer("storage", "restore", "with", "--with-keys")["kept"])
    assert (data / "keys" / "local").read_text() == "secret"
    assert (kept / "keys" / "local").read_text() == "another"


@pytest.mark.slow
def test_a_backup_is_of_one_moment_however_often_others_commit(tmp_path: Path, data: Path) -> None:
    store("before")
    with closing(sqlite3.connect(data / "dragoman.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE ballast (number INTEGER, content BLOB)")
        other.execute("INSERT INTO ballast VALUES (0, zeroblob(40000000))")
        steps: list[int] = []

        def commit(left: int, whole: int) -> None:
            steps.append(left)
            if len(steps) < 20:
                other.execute("INSERT INTO ballast VALUES (?, 'later')", (len(steps),))

        back_up(data, tmp_path / "copy", with_artifacts=True, with_keys=False, tell=commit)
        assert other.execute("SELECT max(number) FROM ballast").fetchone() == (len(steps),)
    assert steps == sorted(set(steps), reverse=True)
    assert len(steps) == 3
    with closing(sqlite3.connect(tmp_path / "copy" / "dragoman.db")) as copy:
        assert copy.execute("SELECT number FROM ballast").fetchall() == [(0,)]
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def damage(file: Path) -> None:
    with open(file, "r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * (file.stat().st_size - 4096))


def test_a_damaged_database_makes_no_backup_and_is_replaced_by_one(tmp_path: Path, data: Path) -> None:
    store("before")
    dragoman("storage", "backup", "copy")
    damage(data / "dragoman.db")
    refused = dragoman("storage", "backup", "another", code=1)
    assert f"{data / 'dragoman.db'} is damaged: " in refused.stderr
    assert not (tmp_path / "another").exists()
    (data / "dragoman.db").write_bytes(b"no database at all")
    kept = Path(answer("storage", "restore", "copy")["kept"])
    assert (kept / "dragoman.db").read_bytes() == b"no database at all"
    assert value() == "before"


def test_a_damaged_backup_replaces_nothing(tmp_path: Path, data: Path) -> None:
    store("before")
    dragoman("storage", "backup", "copy")
    damage(tmp_path / "copy" / "dragoman.db")
    before = names(data)
    dragoman("storage", "restore", "copy", code=1)
    assert names(data) == before
    assert value() == "before"


def test_an_artifact_that_is_missing_or_altered_is_counted(data: Path) -> None:
    keep_artifact()
    (data / "artifacts" / "objects" / KEY).write_bytes(b"other than it was")
    told = dragoman("storage", "backup", "altered")
    assert "1 artifacts that the database names have no file with their content" in told.stderr
    (data / "artifacts" / "objects" / KEY).unlink()
    assert answer("storage", "backup", "missing")["missingArtifacts"] == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("backup", "."), 1, "is there already, and is not empty"),
        (("restore", "."), 1, "has no dragoman.db"),
        (("restore", "nowhere"), 1, "has no dragoman.db"),
    ],
)
def test_what_cannot_be_copied_is_said(words: tuple[str, ...], code: int, said: str) -> None:
    store("before")
    assert said in dragoman("storage", *words, code=code).stderr
    assert value() == "before"


def test_a_server_in_memory_has_nothing_to_back_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__ENGINE", "memory")
    assert "in the memory of the server alone" in dragoman("storage", "backup", "copy", code=2).stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Windows renames no file that is open")
def test_a_database_that_a_server_has_open_is_backed_up_and_not_restored(data: Path) -> None:
    settings = {"tools.memory_enabled": "true", "storage.data_dir": str(data)}
    with ServerProcess(settings=settings, is_modern=True) as server:
        server.call("memory_store", key="k", value="before")
        dragoman("storage", "backup", "copy")
        server.call("memory_store", key="k", value="after")
        refused = dragoman("storage", "restore", "copy", code=2)
        assert f"{data / 'dragoman.db'} is open in another process" in refused.stderr
        assert sorted(each.name for each in data.iterdir() if each.name.startswith((".", "replaced"))) == []
        assert server.leave() == 0
    with closing(sqlite3.connect(data / "dragoman.db")) as current:
        assert current.execute("SELECT value FROM memory_entry").fetchall() == [(b'"after"',)]
    dragoman("storage", "restore", "copy")
    with closing(sqlite3.connect(data / "dragoman.db")) as current:
        assert current.execute("SELECT value FROM memory_entry").fetchall() == [(b'"before"',)]


def test_a_lock_that_a_process_holds_keeps_a_backup_from_being_restored(data: Path) -> None:
    from dragoman.adapters.process_locks import ProcessLocks

    store("before")
    dragoman("storage", "backup", "copy")
    locks = ProcessLocks(data / "locks")
    locks.take("a-process")
    try:
        assert "1 locks in " in dragoman("storage", "restore", "copy", code=2).stderr
    finally:
        locks.give_back("a-process")
    dragoman("storage", "restore", "copy")


@contextmanager
def failing_renames(folder: Path, first: int, last: int) -> Iterator[list[int]]:
    """Makes renames of entries of a folder fail, from one to another, and counts all of them."""
    count, rename = [0], Path.rename

    def failing(source: Path, target: Path) -> Path:
        if folder in (source.parent, target.parent):
            count[0] += 1
            if first <= count[0] <= last:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        yield count


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


@pytest.fixture
def copy(data: Path) -> Path:
    """A backup with an artifact and a key; the data directory has changed since."""
    keep_artifact()
    (data / "keys").mkdir()
    (data / "keys" / "local").write_text("secret")
    dragoman("storage", "backup", "copy", "--with-keys")
    (data / "keys" / "local").write_text("another")
    (data / "dragoman.db-wal").write_bytes(b"log")
    return Path("copy")


@pytest.mark.slow
def test_a_restore_whose_rename_fails_puts_everything_back(data: Path, copy: Path) -> None:
    before = contents(data)
    for number in range(1, 8):  # Four entries are replaced by three.
        with failing_renames(data, number, number):
            assert "busy" in dragoman("storage", "restore", str(copy), "--with-keys", code=1).stderr
        assert contents(data) == before
        assert not [*data.glob("replaced-*"), *data.glob(".dragoman*")]
    with failing_renames(data, 8, 8) as count:
        dragoman("storage", "restore", str(copy), "--with-keys")
    assert (count, (data / "keys" / "local").read_text()) == ([7], "secret")


def test_a_restore_that_cannot_put_the_files_back_says_where_they_are(data: Path, copy: Path) -> None:
    with failing_renames(data, 3, 99):
        refused = dragoman("storage", "restore", str(copy), code=1)
    (kept,) = data.glob("replaced-*")
    assert f"previous files are in {kept}: " in refused.stderr
    assert names(kept) == [f"artifacts/objects/{KEY}", "dragoman.db"]


def test_a_backup_without_keys_replaces_no_keys(tmp_path: Path, data: Path) -> None:
    store("before")
    assert answer("storage", "backup", "copy", "--with-keys")["keys"] == 0
    assert not (tmp_path / "copy" / "keys").exists()
    (data / "keys").mkdir()
    (data / "keys" / "local").write_text("secret")
    before = contents(data)
    refused = dragoman("storage", "restore", "copy", "--with-keys", code=1)
    assert "the backup has no keys" in refused.stderr
    assert contents(data) == before


@pytest.mark.parametrize("words", [".", "place", "link"])
def test_an_empty_folder_is_filled_and_stays_the_same_folder(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_artifact()
    place = tmp_path / "place"
    place.mkdir()
    if words == ".":
        monkeypatch.chdir(place)
    elif words == "link":
        Path("link").symlink_to("place")
    before = place.stat()
    with failing_renames(place, 2, 2):
        dragoman("storage", "backup", words, code=1)
    assert os.listdir(place) == []
    with failing_renames(tmp_path, 1, 99) as count:
        dragoman("storage", "backup", words)
    assert (count, place.stat().st_ino) == ([0], before.st_ino), "it may be a mount point, and its parent not ours"
    assert names(place) == [f"artifacts/objects/{KEY}", "dragoman.db"]
    assert not [*place.glob(".dragoman*")]


def test_a_log_that_a_process_makes_during_a_restore_is_not_taken_for_that_of_the_restored_database(
    data: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def begun_meanwhile(source: Path, target: Path) -> Path:
        if target == data / "dragoman.db":
            for name in ("dragoman.db", "dragoman.db-wal", "dragoman.db-shm"):
                (data / name).write_bytes(b"new")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", begun_meanwhile)
    dragoman("storage", "restore", str(copy))
    assert [each.name for each in data.glob("dragoman.db*")] == ["dragoman.db"]
    with closing(sqlite3.connect(data / "dragoman.db")) as restored:
        assert restored.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

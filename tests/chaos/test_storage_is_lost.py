"""A server whose database is lost or damaged while it runs acknowledges nothing more, and says so."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import worker_processes
from tests.support.http_process import HttpProcess
from tests.support.http_wire import modern, modern_call
from tests.support.keyed_calls import with_key
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, wait_until
from tests.support.worker_processes import Wire, served

pytestmark = pytest.mark.slow

TOOLS = path_of("keyed_tools.py")
TROUBLE = "the storage is in trouble until the server is restarted"


def started(folder: Path) -> HttpProcess:
    return HttpProcess(TOOLS, settings={"storage.data_dir": str(folder / "data")})


def pay(server: HttpProcess, folder: Path, key: str) -> dict[str, Any]:
    asked = {"name": "pay", "arguments": {"folder": str(folder)}}
    result: dict[str, Any] = server.ask(modern("tools/call", asked, meta=with_key(key))).json["result"]
    return result


def _delete(file: Path) -> None:
    file.unlink()


def _move(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))


def _replace(file: Path) -> None:
    with closing(sqlite3.connect(file)) as taken, closing(sqlite3.connect(file.with_name("other"))) as copy:
        taken.backup(copy)
    file.with_name("other").replace(file)


@pytest.mark.parametrize("lose", [_delete, _move, _replace])
def test_a_server_whose_database_is_lost_acknowledges_nothing(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    with started(tmp_path) as server:
        assert not pay(server, tmp_path, "key-of-16-letter")["isError"]
        assert (server.get("/ready").status, server.get("/ready").json) == (200, {"status": "running"})
        lose(tmp_path / "data" / "dragoman.db")
        refused = pay(server, tmp_path, "another-16-letters")
        assert refused["isError"]
        ready = server.get("/ready")
        assert (ready.status, ready.json) == (
            503,
            {"status": "running", "missingParts": ["storage"], "trouble": {"storage": "replaced"}},
        )
        health = msgspec.json.decode(server.ask(modern_call("health")).json["result"]["content"][0]["text"])
        assert (health["status"], health["missingParts"]) == ("degraded", ["storage"])
        assert "dragoman_storage_trouble 1.0" in server.get("/metrics").body.decode()
        assert server.get("/health").status == 200  # It is alive, and a restart is what it needs.
        server.wait_for_log(TROUBLE)
    assert [each["reason"] for each in server.log() if each["message"] == TROUBLE] == ["replaced"]
    assert len((tmp_path / "effects").read_text().splitlines()) == 1
    with started(tmp_path) as server:
        assert not pay(server, tmp_path, "another-16-letters")["isError"]
        assert server.get("/ready").status == 200


def test_a_server_that_only_watches_notices_that_its_database_is_gone(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        assert not pay(server, tmp_path, "key-of-16-letter")["isError"]
        (tmp_path / "data" / "dragoman.db").unlink()
        server.wait_for_log(TROUBLE)


def _destroy_root_page(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other:
        for _ in range(2):
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ledger_entry'").fetchone()
        other.execute("CREATE TABLE other (id INTEGER)")  # So that what is cached is read again.
        other.commit()
    with open(file, "r+b") as damaged:
        damaged.seek((root - 1) * 4096)
        damaged.write(b"\xff" * 4096)


def test_a_server_with_a_destroyed_root_page_is_not_ready_before_a_restart(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        assert not pay(server, tmp_path, "key-of-16-letter")["isError"]
        _destroy_root_page(tmp_path / "data" / "dragoman.db")
        wait_until(lambda: pay(server, tmp_path, "another-16-letters")["isError"])
        assert (server.get("/ready").status, server.get("/ready").json["trouble"]) == (503, {"storage": "damaged"})
        server.wait_for_log(TROUBLE)


@pytest.mark.skipif(sys.platform == "win32", reason="no workers there")
async def test_all_workers_of_a_server_are_not_ready_when_one_of_them_has_met_damage(tmp_path: Path) -> None:
    async def paid(key: str) -> bool:
        asked = {"name": "pay", "arguments": {"folder": str(tmp_path)}, "_meta": with_key(key)}
        answer = await worker_processes.modern(server.port, "tools/call", asked, via=0)
        return not answer["result"]["isError"]

    async def told(worker: int) -> tuple[int, Any]:
        wire = await Wire.open(server.port, worker)
        status = await wire.send("GET", {}, path="/ready")
        return status, msgspec.json.decode(await wire.body()).get("trouble")

    with served(TOOLS, settings={"storage.data_dir": str(tmp_path / "data")}) as server:
        assert await paid("key-of-16-letter")
        assert [await told(each) for each in range(2)] == [(200, None)] * 2
        _destroy_root_page(tmp_path / "data" / "dragoman.db")
        async with asyncio.timeout(PATIENCE):
            while await paid("another-16-letters"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        server.wait_for_log(TROUBLE, 2)
        assert [await told(each) for each in range(2)] == [(503, {"storage": "damaged"})] * 2
    Wire.close_all()

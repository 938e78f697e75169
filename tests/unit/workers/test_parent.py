"""The parent of workers: what it tells them, what it makes of what they say, and what each of them may use."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from dragoman.app import configure
from dragoman.changes import Change, ResourceUpdated, ResultsOutdated, ToolRegistered, ToolRemoved
from dragoman.config import Config, make_config
from dragoman.edge.http.listening import bind
from dragoman.edge.settings import HttpConfig
from dragoman.errors import ConfigError
from dragoman.folders import hold
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import open_server
from dragoman.workers.control import (
    BEAT_EVERY,
    Alive,
    FromWorker,
    Garbled,
    Ready,
    Source,
    Welcome,
    encode,
    first_from_parent,
    from_parent,
    from_worker,
)
from dragoman.workers.folder import private_folder, remove_if_unused
from dragoman.workers.parent import RESTARTS, Processes, Worker, Workers, check_settings, divided, reserve
from tests.support.waiting import PATIENCE

CHANGES: list[Change] = [
    ToolRegistered("echo", "parrot", "Says it again.", None),
    ToolRegistered("health", "pulse", "", "1"),
    ToolRemoved("parrot"),
    ResourceUpdated("test://é"),
    ResultsOutdated(("a", "b")),
]
SWITCHES = {
    "tools": {"adminRegistrationEnabled": True, "adminPolicy": {"mode": "local_stdio_only"}},
    "security": {"dynamicRegistrationEnabled": True},
}


def read_from(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_what_is_said_arrives_as_it_was_meant() -> None:
    reader = read_from(b"".join(map(encode, [Ready(), Alive(), *CHANGES])))
    assert [await from_worker(reader) for _ in range(7)] == [Ready(), Alive(), *CHANGES]
    assert await from_worker(reader) is None


async def test_a_welcome_carries_the_settings_and_nothing_after_it_is_read() -> None:
    config = make_config({"auth": {"callers": {"ada": {"token": "a-token-of-some-length"}}}, **SWITCHES})
    settings = msgspec.Raw(msgspec.json.encode(config))
    welcome = Welcome(Source("tools.py", "folder", True), settings, "0-aaaaaaaa", "/tmp/x", "secret", tuple(CHANGES))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(welcome) + encode(CHANGES[0]))
        received = first_from_parent(theirs)
        assert received == welcome
        assert configure(msgspec.json.decode(received.config)) == config
        assert await from_parent(read_from(theirs.recv(1 << 16))) == CHANGES[0]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "said",
    [
        framed(b""),
        framed(b"{"),
        framed(b"[]"),
        framed(b'{"type":"shutdown"}'),
        framed(b'{"type":"toolRemoved"}'),
        framed(b'{"type":"toolRemoved","name":7}'),
        framed(b'{"type":"welcome"}'),
        framed(b"\xff\xfe"),
        framed(b"[" * 100_000),
        b"\xff\xff\xff\xff",
    ],
)
async def test_what_nobody_can_have_meant_is_refused(said: bytes) -> None:
    with pytest.raises(Garbled):
        await from_worker(read_from(said))


@pytest.mark.parametrize("said", [b"", b"\0\0", framed(b'{"type":"ready"}')[:-1]])
async def test_who_breaks_off_is_gone(said: bytes) -> None:
    assert await from_worker(read_from(said)) is None
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(said)
        with pytest.raises(Garbled, match="gone"):
            first_from_parent(theirs)


def test_whoever_is_first_told_anything_but_a_welcome_does_not_start() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(CHANGES[0]))
        with pytest.raises(Garbled):
            first_from_parent(theirs)


# The parent with workers that are real processes and do nothing.


class Fake:
    """The other end of a worker's control sockets."""

    def __init__(self, worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.worker, self.reader, self.writer = worker, reader, writer

    def say(self, message: FromWorker) -> None:
        self.writer.write(encode(message))

    async def hear(self) -> Change | Welcome | None:
        return await asyncio.wait_for(from_parent(self.reader), PATIENCE)


@asynccontextmanager
async def parent_of(
    count: int, folder: Path, patience: float = 0
) -> AsyncIterator[tuple[Workers, list[Fake], list[Any]]]:
    log: list[Any] = []
    with socket.socket() as listening:
        workers = Workers(
            Processes(count, "nothing", listening, folder), _never, StructuredLogger(log.append), patience
        )
        fakes = []
        listeners = []
        for index in range(count):
            ours, theirs = socket.socketpair()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "input()", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            worker = Worker(f"{index}-aaaaaaaa", process, *await asyncio.open_connection(sock=ours))
            workers._there[index] = worker
            fakes.append(Fake(worker, *await asyncio.open_connection(sock=theirs)))
            listeners.append(asyncio.create_task(workers._listen(index, worker)))
        try:
            yield workers, fakes, log
        finally:
            for fake in fakes:
                fake.writer.close()
                fake.worker.kill()
                await fake.worker.process.wait()
                assert fake.worker.process.stdin is not None
                fake.worker.process.stdin.close()
            await asyncio.gather(*listeners)


def _never(name: str, changes: tuple[Change, ...]) -> Welcome:
    raise AssertionError("nobody is started here")


@pytest.mark.slow
async def test_what_one_worker_tells_reaches_all_others_and_lasting_things_in_one_order(tmp_path: Path) -> None:
    async with parent_of(3, tmp_path) as (workers, fakes, _):
        fakes[0].say(CHANGES[0])
        fakes[0].say(CHANGES[2])
        fakes[0].say(CHANGES[3])
        fakes[0].say(CHANGES[1])
        for fake in fakes[1:]:
            assert [await fake.hear() for _ in range(4)] == [CHANGES[0], CHANGES[2], CHANGES[3], CHANGES[1]]
        assert [await fakes[0].hear() for _ in range(3)] == [CHANGES[0], CHANGES[2], CHANGES[1]]
        assert list(workers._changes.values()) == [CHANGES[2], CHANGES[1]]


@pytest.mark.slow
async def test_a_worker_that_is_garbled_is_killed_and_the_others_are_not(tmp_path: Path) -> None:
    async with parent_of(2, tmp_path) as (_, fakes, log):
        fakes[0].writer.write(framed(b"{}"))
        assert await asyncio.wait_for(fakes[0].worker.process.wait(), PATIENCE) == -9
        fakes[1].say(CHANGES[3])
        assert fakes[1].worker.process.returncode is None
        assert [entry["message"] for entry in log] == ["a worker cannot be understood"]


@pytest.mark.slow
async def test_a_worker_that_does_not_listen_is_killed_and_blocks_nobody(tmp_path: Path) -> None:
    async with parent_of(3, tmp_path) as (_, fakes, _log):
        deaf = fakes[2]
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(80):
            fakes[0].say(ResourceUpdated(f"{number}:" + "x" * 100_000))
            heard = await fakes[1].hear()
            assert isinstance(heard, ResourceUpdated)
            assert heard.uri.startswith(f"{number}:")
        assert await asyncio.wait_for(deaf.worker.process.wait(), PATIENCE) == -9
        assert fakes[1].worker.process.returncode is None


@pytest.mark.slow
async def test_a_worker_that_falls_silent_is_killed_and_one_that_shows_life_or_is_not_ready_is_not(
    tmp_path: Path,
) -> None:
    async def show_life(fake: Fake) -> None:
        while True:
            fake.say(Alive())
            await asyncio.sleep(BEAT_EVERY / 2)

    async with parent_of(3, tmp_path, patience=6 * BEAT_EVERY) as (workers, (silent, lively, loading), log):
        living = asyncio.create_task(show_life(lively))
        for fake in (silent, lively):
            fake.say(Ready())
        watching = asyncio.create_task(workers._watch())
        assert await asyncio.wait_for(silent.worker.process.wait(), PATIENCE) == -9
        assert [fake.worker.process.returncode for fake in (lively, loading)] == [None, None]
        for task in (living, watching):
            task.cancel()
        told = {"message": "worker gives no sign of life: killed", "level": "error", "worker": 0}
        assert [entry["worker"] for entry in log if told.items() <= entry.items()] == [0]


@pytest.mark.slow
async def test_nobody_is_watched_who_may_be_silent_for_ever(tmp_path: Path) -> None:
    async with parent_of(1, tmp_path, patience=0) as (workers, (silent,), _):
        silent.say(Ready())
        await workers._watch()
        assert silent.worker.process.returncode is None


@pytest.mark.slow
async def test_pauses_of_a_worker_grow_to_five_seconds_and_those_of_others_do_not(tmp_path: Path) -> None:
    async with parent_of(2, tmp_path) as (workers, _, _log):
        pauses = [workers._pause(0) for _ in range(12)]
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[RESTARTS.longest_delay] * 6]
        assert workers._pause(1) == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("was_ready", [True, False])
async def test_a_worker_that_cannot_be_started_now_is_started_later_if_it_ever_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_ready: bool
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    log: asyncio.Queue[Any] = asyncio.Queue()
    with socket.socket() as listening:
        workers = Workers(Processes(1, "nothing", listening, tmp_path), _never, StructuredLogger(log.put_nowait), 0)
        if was_ready:
            workers._ready[0].set()
        running = asyncio.create_task(workers.run(0, lambda: None))
        said = [await asyncio.wait_for(log.get(), PATIENCE) for _ in range(3 if was_ready else 1)]
        workers.end()
        assert await running == (0 if was_ready else 1)
    if was_ready:
        assert [(each["message"], each["restartInMs"]) for each in said] == [
            ("worker cannot be started", pause) for pause in (100, 200, 400)
        ]
    else:
        assert said[0]["message"] == "worker cannot be started before it was ready: stopping"


def test_what_a_killed_server_has_left_is_removed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own are too long for a socket.
        monkeypatch.setattr("tempfile.tempdir", place)
        _check_removal(Path(place))


def _check_removal(place: Path) -> None:
    left, foreign, linked = (place / f"dragoman-workers-{name}" for name in ("left", "foreign", "linked"))
    for each in (left, foreign):
        each.mkdir(mode=0o700)
        for name in ("log", "0-aaaaaaaa", "12-0123abcd.crash"):
            (each / name).touch()
    (foreign / "notes.txt").touch()
    linked.symlink_to(foreign)
    with private_folder() as held:
        assert (left.exists(), foreign.exists(), linked.is_symlink()) == (False, True, True)
        assert len(list(foreign.iterdir())) == 4
        with private_folder() as other:  # Of a second server, which leaves alone what is in use.
            let_go = hold(other)
            remove_if_unused(other)
            assert (held.exists(), other.exists()) == (True, True)
            let_go()


# What the workers do with it.


async def test_all_end_with_the_same_tool_when_two_register_it_at_once() -> None:
    one, other = (ToolRegistered(kind, "mine", f"a {kind}") for kind in ("echo", "health"))
    async with open_server([], SWITCHES) as first, open_server([], SWITCHES) as second:
        first.runtime.apply(one)
        second.runtime.apply(other)
        for server in (first, second):
            for change in (one, other, other):  # In the parent's order.
                server.runtime.apply(change)
            found = server.runtime.catalogue.get("mine")
            assert found is not None
            assert (found.definition.description, found.is_dynamic) == ("a health", True)


def without_ids(changes: list[Change]) -> list[Change]:
    return [structs.replace(each, correlation_id=None) for each in changes]


async def test_what_is_known_already_is_not_announced_again() -> None:
    async with open_server([], SWITCHES) as server:
        told: list[Change] = []
        server.runtime.shared.publish = told.append
        client = await server.client()
        arguments = {"toolType": "echo", "name": "parrot", "description": "Says it again."}
        await client.call_tool("admin/registerTool", arguments)
        version = server.runtime.catalogue.version
        assert without_ids(told) == [CHANGES[0]]
        server.runtime.apply(CHANGES[0])
        assert server.runtime.catalogue.version == version
        await client.call_tool("admin/unregisterTool", {"name": "parrot"})
        server.runtime.apply(CHANGES[2])
        assert without_ids(told) == [CHANGES[0], CHANGES[2]]
        assert server.runtime.catalogue.version == version + 1
        server.runtime.resource_updated("x:y")
        assert told[2:] == [ResourceUpdated("x:y")]


async def test_a_refused_registration_is_not_told() -> None:
    async with open_server([], SWITCHES) as server:
        told: list[Change] = []
        server.runtime.shared.publish = told.append
        client = await server.client()
        await client.call_tool("admin/registerTool", {"toolType": "echo", "name": "health"})
        await client.call_tool("admin/registerTool", {"toolType": "agentProxy", "name": "x"})
        await client.call_tool("admin/unregisterTool", {"name": "nobody"})
        assert told == []


# What they may use.


def test_what_is_used_at_a_time_is_divided_and_rates_are_not() -> None:
    config = make_config(
        {
            "resources": {"max_concurrent_executions": 10, "max_concurrent_per_caller": 2},
            "limits": {
                "calls_per_minute_per_caller": 60,
                "tools": {"echo": {"max_concurrent": 7, "calls_per_minute": 30, "max_array_size": 9}},
            },
            "http": {"max_connections": 100, "max_sessions": 1, "max_replay_bytes": 1024},
            "guards": {"memory_budget_bytes": 3000},
        }
    )
    part = divided(config, 3)
    assert part.resources.max_concurrent_executions == 3
    assert part.resources.max_concurrent_per_caller == 1
    assert (part.http.max_connections, part.http.max_sessions, part.http.max_replay_bytes) == (33, 1, 1024)
    assert part.guards.memory_budget_bytes == 1000
    assert part.cache.max_size_bytes == config.cache.max_size_bytes // 3
    tool = part.limits.tools["echo"]
    assert (tool.max_concurrent, tool.calls_per_minute, tool.max_array_size) == (2, 30, 9)
    assert part.limits.calls_per_minute_per_caller == 60
    assert divided(Config(), 1) == Config()


def test_what_cannot_be_shared_is_refused_by_name() -> None:
    check_settings(Config(), 10, has_memories=True)
    check_settings(make_config({"storage": {"engine": "memory"}}), 2, has_memories=False)
    with pytest.raises(ConfigError, match=r"storage\.engine"):
        check_settings(make_config({"storage": {"engine": "memory"}}), 2, has_memories=True)
    gateway = {"storage": {"engine": "memory"}, "gateway": {"enabled": True}}
    with pytest.raises(ConfigError, match="documents of its own"):
        check_settings(make_config(gateway), 2, has_memories=False)
    with pytest.raises(ConfigError, match=r"resources\.max_concurrent_executions: must be at least 11"):
        check_settings(Config(), 11, has_memories=False)
    with pytest.raises(ConfigError, match="explorer"):
        check_settings(make_config({"explorer": {"enabled": True}}), 2, has_memories=False)


def test_the_folder_is_private_gone_afterwards_and_never_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "left").touch()
    assert not folder.exists()
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match="TMPDIR"), private_folder():
        pass
    assert list(deep.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the parent's socket is the one that takes connections")
def test_an_address_is_reserved_without_taking_connections() -> None:
    with reserve(HttpConfig(port=0)) as kept:
        address = kept.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with bind(*address, shared=True), pytest.raises(OSError, match="in use"):
            reserve(HttpConfig(host=address[0], port=address[1]))

"""`dragoman serve --workers N`: the parent, which serves nothing itself.

1. It binds the address, starts the workers as fresh processes, and passes on what one of them has to tell the others.
2. A worker that dies is started again after a pause that grows. When too many died within a minute, something is wrong
   that starting again does not help: everything stops.
3. A worker whose event loop is stuck answers nobody. After a time without a sign of life it is killed: also a death.
4. A worker that dies before it was ever ready ends everything at once: it has said why.
5. What has been changed is kept for workers that come later, and reaches all of them in the same order.
6. SIGTERM and SIGINT make all workers finish what they have begun. If the parent is killed, they see that and stop.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from dragoman.changes import Change, ToolRegistered, ToolRemoved
from dragoman.cli.control import BEAT_EVERY, BINDS_ITSELF, Alive, Garbled, Ready, Source, Welcome, encode, from_worker
from dragoman.cli.output import ABANDONED, FAILED, UNUSABLE
from dragoman.config import Config
from dragoman.edge.http.server import bind
from dragoman.edge.signals import on_signals
from dragoman.errors import ConfigError
from dragoman.telemetry.log import Logger

MOST_RESTARTS = 5
WITHIN = 60.0
"""Seconds in which so many workers may be started again."""
_FIRST_PAUSE = 0.1
_MOST_UNREAD = 1 << 22
_LAST_MOMENT = 6.0  # Seconds that a worker may take to end, beyond what its calls may take.
_LAST_WORDS = 0.5  # Seconds to hear what a worker said before it ended.
_LONGEST_ADDRESS = 90


@dataclass(eq=False)
class Worker:
    """One process, from its start to its end."""

    name: str
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_ready: bool = False
    is_deaf: bool = False
    has_spoken: bool = False
    """Since somebody looked last."""

    def tell(self, message: Change) -> None:
        """Never waits. One that does not read what it is told is of no use any more, and is killed.

        Once: to signal a process that may have ended by then looks whether it has, and that would hide its exit code
        from whoever waits for it.
        """
        if self.is_deaf:
            return
        self.writer.write(encode(message))
        if self.writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.is_deaf = True
            self.kill()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)


class Workers:
    """Starts, restarts and stops workers, and is in the middle of what they tell each other."""

    def __init__(
        self,
        count: int,
        welcome: Callable[[str, tuple[Change, ...]], Welcome],
        listening: socket.socket,
        folder: Path,
        logger: Logger,
        patience: float,
    ) -> None:
        """A worker may be silent for `patience` seconds; 0: for ever."""
        self._patience = patience
        self._welcome = welcome
        self._listening = listening
        self._folder = folder
        self._logger = logger
        self._ready = [asyncio.Event() for _ in range(count)]
        """By index, whether a worker was ever ready."""
        self._there: dict[int, Worker] = {}
        self._deaths: deque[float] = deque(maxlen=MOST_RESTARTS + 1)
        self._changes: dict[str, Change] = {}
        """What happened to each tool last."""
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int = 0) -> None:
        """Stop everything; `code` is how the process ends if the workers end well."""
        if not self._over.done():
            self._over.set_result(code)

    async def run(self, timeout: float, on_start: Callable[[], None]) -> int:
        """Serve until the end; the exit code. Calls may then take `timeout` seconds to finish."""
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(self._start_all(group, on_start))
            code = await self._over
            starting.cancel()
            has_abandoned = await self._stop(timeout)
        return code or (ABANDONED if has_abandoned else 0)

    async def _start_all(self, group: asyncio.TaskGroup, on_start: Callable[[], None]) -> None:
        # One first: what it has to say against the settings is said once, and what it creates is there for all.
        for index, ready in enumerate(self._ready):
            group.create_task(self._keep(index, group))
            if index == 0:
                await ready.wait()
        for ready in self._ready:
            await ready.wait()
        on_start()

    async def _keep(self, index: int, group: asyncio.TaskGroup) -> None:
        """Have a worker with this index, until the end."""
        while not self._over.done():
            worker = await self._start(index)
            listening = group.create_task(self._listen(index, worker))
            watching = group.create_task(self._watch(index, worker))
            code = await worker.process.wait()
            watching.cancel()
            await asyncio.wait((listening,), timeout=_LAST_WORDS)
            listening.cancel()  # Whatever it left behind may still hold its end.
            (self._folder / worker.name).unlink(missing_ok=True)
            if self._over.done():
                return
            facts = {"worker": index, "exitCode": code}
            pause = self._pause()
            if not self._ready[index].is_set():
                self.end(UNUSABLE if code == UNUSABLE else FAILED)
            elif pause is None:
                self._logger.error("workers keep dying: stopping", {**facts, "deaths": len(self._deaths)})
                self.end(FAILED)
            else:
                self._logger.error("worker died", {**facts, "restartInMs": round(pause * 1000)})
                await asyncio.wait((self._over,), timeout=pause)

    def _pause(self) -> float | None:
        """Seconds before a worker that died is started again; None: not any more."""
        now = time.monotonic()
        self._deaths.append(now)
        recent = sum(now - death < WITHIN for death in self._deaths)
        return None if recent > MOST_RESTARTS else _FIRST_PAUSE * 2.0 ** (recent - 1)

    async def _start(self, index: int) -> Worker:
        name = f"{index}-{secrets.token_hex(4)}"
        ours, theirs = socket.socketpair()
        with theirs:
            given = (theirs.fileno(), self._listening.fileno())
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dragoman.cli.worker", *map(str, given)),
                pass_fds=given,
                stdin=asyncio.subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the parent.
            )
        worker = self._there[index] = Worker(name, process, *await asyncio.open_connection(sock=ours))
        worker.writer.write(encode(self._welcome(name, tuple(self._changes.values()))))
        if self._over.done():
            worker.kill()  # Too late to be told to stop with the others.
        return worker

    async def _listen(self, index: int, worker: Worker) -> None:
        try:
            while (message := await from_worker(worker.reader)) is not None:
                worker.has_spoken = True
                if isinstance(message, Alive):
                    continue
                if isinstance(message, Ready):
                    worker.is_ready = True
                    self._ready[index].set()
                    self._logger.info("worker ready", {"worker": index, "pid": worker.process.pid})
                else:
                    self._pass_on(message, worker)
        except Garbled as error:
            self._logger.error("a worker cannot be understood", {"worker": index, "reason": str(error)})
            worker.kill()
        finally:
            worker.writer.close()

    async def _watch(self, index: int, worker: Worker) -> None:
        """Kill a worker that is ready and gives no sign of life. What takes long before that is the loading of tools.

        Looks are counted, not seconds: if it is the parent that stood still, it has not listened either.
        """
        if not self._patience:
            return
        looks = 0
        while looks * BEAT_EVERY <= self._patience:
            await asyncio.sleep(BEAT_EVERY)
            looks = 0 if worker.has_spoken or not worker.is_ready else looks + 1
            worker.has_spoken = False
        if not (worker.is_deaf or self._over.done()):
            worker.is_deaf = True
            self._logger.error("worker gives no sign of life: killed", {"worker": index, "pid": worker.process.pid})
            worker.kill()

    def _pass_on(self, change: Change, teller: Worker) -> None:
        is_lasting = isinstance(change, ToolRegistered | ToolRemoved)
        if isinstance(change, ToolRegistered | ToolRemoved):
            self._changes[change.name] = change
        for worker in self._there.values():
            if worker.writer.is_closing():
                continue
            # To whoever told it, too: if two tell different things at once, all hear them in the same order.
            if is_lasting or worker is not teller:
                worker.tell(change)

    async def _stop(self, timeout: float) -> bool:
        """Have all workers finish; whether some of them did not. One that had not even begun has nothing to finish."""
        workers = [worker for worker in self._there.values() if worker.process.returncode is None]
        for worker in workers:
            worker.signal(signal.SIGTERM)
        ends = [asyncio.create_task(worker.process.wait()) for worker in workers]
        if not ends:
            return False
        _, late = await asyncio.wait(ends, timeout=timeout + _LAST_MOMENT)
        if late:
            for worker in workers:
                worker.kill()
        codes = await asyncio.gather(*ends)
        return any(code for code, worker in zip(codes, workers, strict=True) if worker.is_ready)


def reserve(host: str, port: int) -> socket.socket:
    """An address for all workers. Raises as `bind`.

    On Linux each worker listens there by itself: taking turns at one socket, whoever wakes up first takes all that have
    come. This one then only keeps the address, and nobody connects to it.
    """
    listening = bind(host, port)
    if BINDS_ITSELF:
        listening.close()  # Nobody else was there; without trying, another server could be joined by mistake.
        return bind(host, port, shared=True, listens=False)
    return listening


def share_of(config: Config, count: int) -> Config:
    """The settings of one of so many workers, which together stay within what the server may use.

    What there may be of something at a time is divided, rounded down but never to nothing. Rates stay as they are.
    """

    def part(most: int) -> int:
        return max(1, most // count)

    def part_if(most: int | None) -> int | None:
        return None if most is None else part(most)

    resources, http, guards = config.resources, config.http, config.guards
    tools = {
        name: replace(limits, max_concurrent=part_if(limits.max_concurrent))
        for name, limits in config.limits.tools.items()
    }
    return replace(
        config,
        resources=replace(
            resources,
            max_concurrent_executions=part(resources.max_concurrent_executions),
            max_concurrent_per_caller=part_if(resources.max_concurrent_per_caller),
            max_waiting_per_caller=part_if(resources.max_waiting_per_caller),
        ),
        limits=replace(config.limits, tools=tools),
        http=replace(
            http,
            max_connections=part(http.max_connections),
            max_sessions=part(http.max_sessions),
            max_sessions_per_caller=part_if(http.max_sessions_per_caller),
            max_replay_bytes=max(1024, http.max_replay_bytes // count),
        ),
        cache=replace(config.cache, max_size_bytes=part(config.cache.max_size_bytes)),
        guards=replace(guards, memory_budget_bytes=part_if(guards.memory_budget_bytes)),
    )


def check_settings(config: Config, count: int, *, has_memories: bool) -> None:
    """Raise `ConfigError` for settings that several processes cannot share."""
    if has_memories and config.storage.engine == "memory":
        reason = "each worker would have memories of its own; use sqlite, or one worker"
        raise ConfigError([("storage.engine", reason)])
    if config.explorer.enabled:
        raise ConfigError([("explorer.enabled", "the explorer shows what one process does; use one worker")])
    if count > config.resources.max_concurrent_executions:
        reason = f"must be at least {count}, one for each worker"
        raise ConfigError([("resources.max_concurrent_executions", reason)])


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, with a short name: addresses of sockets have to be."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-"))
    try:
        if len(str(folder)) > _LONGEST_ADDRESS:
            raise OSError(f"{folder} is too long for the address of a socket; set TMPDIR to a shorter one")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def supervise(
    count: int,
    source: Source,
    config: Config,
    listening: socket.socket,
    folder: Path,
    logger: Logger,
    on_start: Callable[[], None],
) -> int:
    """Serve with so many workers until SIGTERM or SIGINT; the exit code."""
    if config.security.state_key is None:
        key = secrets.token_hex(32)  # What one of them has asked a client, any of them can hear the answer to.
        config = replace(config, security=replace(config.security, state_key=key))
    config, secret = share_of(config, count), secrets.token_hex(32)

    def welcome(name: str, changes: tuple[Change, ...]) -> Welcome:
        return Welcome(source, config, name, str(folder), secret, changes)

    workers = Workers(count, welcome, listening, folder, logger, config.server.worker_timeout_ms / 1000)
    timeout = config.server.shutdown_timeout_ms / 1000
    restore = on_signals(workers.end, timeout + 2 * _LAST_MOMENT)
    try:
        return await workers.run(timeout, on_start)
    finally:
        restore()

"""`dragoman serve --workers N`: the parent, which serves nothing itself.

1. It binds the address, starts the workers as fresh processes, and passes on what one of them has to tell the others.
2. A worker that dies is started again, as often as it takes, after a pause that grows with its deaths in the last
   minute. A tool that crashes costs the worker that runs it, and the log says where, if the interpreter could.
3. A worker whose event loop is stuck answers nobody. After a time without a sign of life it is killed: also a death.
4. A worker that dies before it was ever ready ends everything at once: it has said why.
5. What has been changed is kept for workers that come later, and reaches all of them in the same order. The parent also
   remembers which answers of clients were used, and decides between workers that are brought the same ones.
6. SIGTERM and SIGINT make all workers finish what they have begun. If the parent is killed, they see that and stop.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.adapters.dict_claims import DictClaims
from dragoman.changes import Change, ToolRegistered, ToolRemoved
from dragoman.clock import SystemClock
from dragoman.config import Config
from dragoman.edge.http.listening import bind, open_listening
from dragoman.edge.settings import HttpConfig
from dragoman.errors import ConfigError, ResourceExhausted
from dragoman.parts.restarts import RestartLimit, delay_before_restart
from dragoman.process.exit_codes import ABANDONED, FAILED, UNUSABLE
from dragoman.process.signals import on_signals
from dragoman.telemetry.log import Logger
from dragoman.workers.control import (
    BEAT_EVERY,
    BINDS_ITSELF,
    Alive,
    Claim,
    Claimed,
    Garbled,
    Ready,
    Source,
    Welcome,
    encode,
    from_worker,
)
from dragoman.workers.folder import crash_file

RESTARTS = RestartLimit(most=8, longest_delay=5.0)
"""`most` only bounds the deaths that are remembered: a worker is never given up."""
_LONGEST_STACK = 4000
_MOST_UNREAD = 1 << 22
_LAST_MOMENT = 6.0  # Seconds that a worker may take to end, beyond what its calls may take.
_LAST_WORDS = 0.5  # Seconds to hear what a worker said before it ended.


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
    looks: int = 0
    """In a row, at which it had not spoken."""

    def tell(self, message: Change | Claimed) -> None:
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


@dataclass(frozen=True)
class Processes:
    """The processes that a parent starts, and what they share."""

    count: int
    module: str
    """What each of them runs, with two descriptors as its arguments: of its control socket, and of `listening`."""
    listening: socket.socket
    folder: Path


class Workers:
    """Starts, restarts and stops workers, and is in the middle of what they tell each other."""

    def __init__(
        self,
        processes: Processes,
        welcome: Callable[[str, tuple[Change, ...]], Welcome],
        logger: Logger,
        patience: float,
    ) -> None:
        """A worker may be silent for `patience` seconds; 0: for ever."""
        self._patience = patience
        self._welcome = welcome
        self._processes = processes
        self._folder = processes.folder
        self._logger = logger
        count = processes.count
        self._ready = [asyncio.Event() for _ in range(count)]
        """By index, whether a worker was ever ready."""
        self._there: dict[int, Worker] = {}
        self._deaths = [deque[float](maxlen=RESTARTS.most) for _ in range(count)]
        self._changes: dict[str, Change] = {}
        """What happened to each tool last."""
        self._claims = DictClaims(SystemClock())
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int = 0) -> None:
        """Stop everything; `code` is how the process ends if the workers end well."""
        if not self._over.done():
            self._over.set_result(code)

    async def run(self, timeout: float, on_start: Callable[[], None]) -> int:
        """Serve until the end; the exit code. Calls may then take `timeout` seconds to finish."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._start_all(group, on_start)), group.create_task(self._watch())]
            code = await self._over
            for task in beside:
                task.cancel()
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
            try:
                worker = await self._start(index)
            except OSError as error:  # The system has no room for another process, perhaps for a while.
                await self._start_later(index, "worker cannot be started", {"reason": error.strerror or str(error)})
                continue
            listening = group.create_task(self._listen(index, worker))
            code = await worker.process.wait()
            await asyncio.wait((listening,), timeout=_LAST_WORDS)
            listening.cancel()  # Whatever it left behind may still hold its end.
            (self._folder / worker.name).unlink(missing_ok=True)
            if self._over.done():
                return
            if not self._ready[index].is_set() and code == UNUSABLE:
                self.end(UNUSABLE)  # It has said why.
            await self._start_later(index, "worker died", {"exitCode": code, **self._stack_of(worker)})

    async def _start_later(self, index: int, message: str, facts: dict[str, Any]) -> None:
        """Log that there is no worker with this index, and wait for the pause. One that was never ready ends it all."""
        if self._over.done():
            return
        facts = {"worker": index, **facts}
        if not self._ready[index].is_set():
            self._logger.error(f"{message} before it was ready: stopping", facts)
            self.end(FAILED)
            return
        pause = self._pause(index)
        self._logger.error(message, {**facts, "restartInMs": round(pause * 1000)})
        await asyncio.wait((self._over,), timeout=pause)

    def _pause(self, index: int) -> float:
        """Seconds before a worker that died is started again."""
        now, deaths = time.monotonic(), self._deaths[index]
        deaths.append(now)
        return delay_before_restart(deaths, now, RESTARTS) or RESTARTS.longest_delay

    def _stack_of(self, worker: Worker) -> dict[str, str]:
        """What the interpreter of a worker that crashed wrote at its end: the functions that its thread was in."""
        path = crash_file(self._folder, worker.name)
        with suppress(OSError):
            stack = path.read_text(errors="replace")
            path.unlink()
            if stack:
                return {"stack": stack[:_LONGEST_STACK]}
        return {}

    async def _start(self, index: int) -> Worker:
        """Raises `OSError`."""
        name = f"{index}-{secrets.token_hex(4)}"
        ours, theirs = socket.socketpair()
        with theirs:
            given = (theirs.fileno(), self._processes.listening.fileno())
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", self._processes.module, *map(str, given)),
                    pass_fds=given,
                    stdin=asyncio.subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C is for the parent.
                )
            except OSError:
                ours.close()
                raise
        worker = self._there[index] = Worker(name, process, *await asyncio.open_connection(sock=ours))
        welcome = self._welcome(name, tuple(self._changes.values()))
        worker.writer.write(encode(replace(welcome, keeper=self._claims.keeper)))
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
                elif isinstance(message, Claim):
                    worker.tell(self._decided(message))
                else:
                    self._pass_on(message, worker)
        except Garbled as error:
            self._logger.error("a worker cannot be understood", {"worker": index, "reason": str(error)})
            worker.kill()
        finally:
            worker.writer.close()

    async def _watch(self) -> None:
        """Kill workers that are ready and give no sign of life. What takes long before that is the loading of tools.

        Looks are counted, not seconds: if it is the parent that stood still, it has not listened either.
        """
        while self._patience:
            await asyncio.sleep(BEAT_EVERY)
            for index, worker in self._there.items():
                worker.looks = 0 if worker.has_spoken or not worker.is_ready else worker.looks + 1
                worker.has_spoken = False
                has_ended = worker.is_deaf or worker.process.returncode is not None
                if worker.looks * BEAT_EVERY > self._patience and not has_ended:
                    worker.is_deaf = True
                    facts = {"worker": index, "pid": worker.process.pid}
                    self._logger.error("worker gives no sign of life: killed", facts)
                    worker.kill()

    def _decided(self, claim: Claim) -> Claimed:
        """Workers ask here and nowhere else, so that only one of them can run a tool with the same answers."""
        try:
            return Claimed(claim.number, self._claims.take(claim.id, claim.until, claim.holder))
        except ResourceExhausted:
            return Claimed(claim.number, None)

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


def reserve(http: HttpConfig) -> socket.socket:
    """An address for all workers. Raises as `open_listening`.

    On Linux each worker listens there by itself: taking turns at one socket, whoever wakes up first takes all that have
    come. This one then only keeps the address, and nobody connects to it. They do take turns at a Unix socket.
    """
    listening = open_listening(http)
    if BINDS_ITSELF and http.uds is None:
        listening.close()  # Nobody else was there; without trying, another server could be joined by mistake.
        return bind(http.host, http.port, shared=True, listens=False)
    return listening


def divided(config: Config, count: int) -> Config:
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
    if (has_memories or config.gateway.enabled) and config.storage.engine == "memory":
        what = "memories" if has_memories else "documents"
        reason = f"each worker would have {what} of its own; use sqlite, or one worker"
        raise ConfigError([("storage.engine", reason)])
    if config.explorer.enabled:
        raise ConfigError([("explorer.enabled", "the explorer shows what one process does; use one worker")])
    if count > config.resources.max_concurrent_executions:
        reason = f"must be at least {count}, one for each worker"
        raise ConfigError([("resources.max_concurrent_executions", reason)])


async def supervise(
    processes: Processes, source: Source, config: Config, logger: Logger, on_start: Callable[[], None]
) -> int:
    """Serve with workers until SIGTERM or SIGINT; the exit code."""
    if config.security.state_key is None:
        key = secrets.token_hex(32)  # What one of them has asked a client, any of them can hear the answer to.
        config = replace(config, security=replace(config.security, state_key=key))
    config, secret = divided(config, processes.count), secrets.token_hex(32)

    def welcome(name: str, changes: tuple[Change, ...]) -> Welcome:
        encoded = msgspec.Raw(msgspec.json.encode(config))
        return Welcome(source, encoded, name, str(processes.folder), secret, changes)

    workers = Workers(processes, welcome, logger, config.server.worker_timeout_ms / 1000)
    timeout = config.server.shutdown_timeout_ms / 1000
    stopper = on_signals(workers.end, timeout + 2 * _LAST_MOMENT)
    try:
        return await workers.run(timeout, on_start)
    finally:
        stopper.restore()

"""A worker of `dragoman serve --workers`: a process of its own that serves HTTP beside others, as its parent says.

It is started with two descriptors: its own end of the control sockets, and the socket that all workers listen on. All
else comes over the former, so that no secret is on a command line or in an environment.
"""

from __future__ import annotations

import asyncio
import faulthandler
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dragoman.adapters.dict_claims import MOST_CLAIMS
from dragoman.app import configure
from dragoman.changes import Change
from dragoman.clock import until_next
from dragoman.edge.asgi import PlainApplication
from dragoman.edge.http.listening import bind, raise_file_limit
from dragoman.edge.http.server import HttpServer, serve
from dragoman.errors import NoFreeSlot, RegistrationError, ResourceExhausted
from dragoman.folders import hold
from dragoman.forks import drop, in_forked_children
from dragoman.telemetry.log import exception_facts
from dragoman.workers.control import (
    BEAT_EVERY,
    BINDS_ITSELF,
    Alive,
    Claim,
    Claimed,
    FromWorker,
    Garbled,
    Ready,
    Welcome,
    encode,
    first_from_parent,
    from_parent,
)
from dragoman.workers.folder import crash_file, remove_if_unused
from dragoman.workers.siblings import SocketSiblings
from dragoman.workers.slot_files import SlotFiles

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.edge.http.app import HttpApp
    from dragoman.runtime import Runtime

_DAY_MS = 86_400_000
_CLAIM_TIMEOUT = 5.0
"""Seconds that the parent may take to decide on a claim."""


@dataclass(frozen=True)
class WorkerPlace:
    """The place of this process among the workers: its sockets, and what the parent has told it."""

    control: socket.socket
    listening: socket.socket
    welcome: Welcome
    config: Config
    siblings: SocketSiblings
    slots: SlotFiles


@contextmanager
def place_at(control_descriptor: int, listening_descriptor: int) -> Iterator[WorkerPlace]:
    """Take the place that the parent gives to this process, and leave it at the end. Raises `Garbled`."""
    control, listening = (socket.socket(fileno=each) for each in (control_descriptor, listening_descriptor))
    for each in (control, listening):
        each.set_inheritable(False)  # A process that a tool starts must not keep them when this one is gone.
    in_forked_children(lambda: drop(control.fileno(), listening.fileno()))
    welcome = first_from_parent(control)
    raise_file_limit()
    folder = Path(welcome.folder)
    let_go = hold(folder)
    crashes = crash_file(folder, welcome.name).open("wb")
    faulthandler.enable(crashes, all_threads=False)
    in_forked_children(lambda: drop(crashes.fileno()))
    siblings = SocketSiblings(welcome.name, folder, welcome.secret)
    config = configure(msgspec.json.decode(welcome.config))
    slots = SlotFiles(folder)
    try:
        yield WorkerPlace(control, listening, welcome, config, siblings, slots)
    finally:
        slots.close()
        siblings.leave()
        let_go()
        remove_if_unused(folder)


async def serve_at(place: WorkerPlace, runtime: Runtime, app: HttpApp) -> int:
    """Serve until the parent says otherwise, or is gone; how many calls had to be abandoned."""
    welcome, siblings, listening = place.welcome, place.siblings, place.listening
    for change in welcome.changes:
        _apply(runtime, change)
    http = place.config.http
    if BINDS_ITSELF and http.uds is None:
        listening = bind(http.host, listening.getsockname()[1], shared=True)
    entrance = PlainApplication(siblings.entrance(app))
    beside = HttpServer(entrance, replace(http, keep_alive_ms=_DAY_MS, max_connections=1 << 20), runtime.clock)
    parent = await Parent.open(place.control, welcome.keeper)
    runtime.shared.publish, runtime.shared.claims, runtime.shared.slots = parent.tell, parent, place.slots
    listening_to_it = asyncio.create_task(parent.listen(runtime))
    showing_life = asyncio.create_task(parent.show_life())
    try:
        return await serve(
            app,
            listening,
            http,
            place.config.server.shutdown_timeout_ms / 1000,
            lambda: parent.tell(Ready()),
            beside=[(beside, siblings.listen())],
            until=listening_to_it,
        )
    finally:
        listening_to_it.cancel()
        showing_life.cancel()


class Parent:
    """The parent, as a worker sees it. Implements `Claims`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keeper: str) -> None:
        self._reader = reader
        self._writer = writer
        self.keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._claims: dict[int, asyncio.Future[bool | None]] = {}

    @classmethod
    async def open(cls, control: socket.socket, keeper: str) -> Parent:
        return cls(*await asyncio.open_connection(sock=control), keeper)

    async def claim(self, id: str, until: float, holder: str = "") -> bool:
        """Have the parent decide. Without its decision nothing is granted."""
        number = next(self._numbers)
        decided: asyncio.Future[bool | None] = self._loop.create_future()
        self._claims[number] = decided
        try:
            self.tell(Claim(number, id, until, holder))
            is_granted = await asyncio.wait_for(decided, _CLAIM_TIMEOUT)
        except TimeoutError:
            details = {"reason": "no_decision", "retryable": True}
            raise ResourceExhausted("The server cannot tell whether the answers were used", details) from None
        finally:
            del self._claims[number]
        if is_granted is None:
            raise NoFreeSlot(MOST_CLAIMS, " for answers that count once")
        return is_granted

    def tell(self, message: FromWorker) -> None:
        """From any thread; never waits. Ignored once the parent is gone."""
        self._loop.call_soon_threadsafe(self._write, encode(message))

    def _write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def show_life(self) -> None:
        """Say again and again that the loop turns: the parent kills a worker that it does not hear."""
        while not self._writer.is_closing():
            if not self._writer.transport.get_write_buffer_size():  # A parent that is suspended reads nothing.
                self.tell(Alive())
            # All workers in the same moment, so that the parent wakes up once for all of them.
            await asyncio.sleep(until_next(time.monotonic(), BEAT_EVERY))

    async def listen(self, runtime: Runtime) -> None:
        """Do as the others did. Returns when the parent is gone."""
        try:
            while (message := await from_parent(self._reader)) is not None:
                if isinstance(message, Welcome):
                    raise Garbled("welcomed twice")
                if isinstance(message, Claimed):
                    self._decide(message)
                else:
                    _apply(runtime, message)
        except Garbled as error:
            runtime.logger.error("the parent cannot be understood", exception_facts(error, "INTERNAL"))
        runtime.logger.error("the parent is gone: stopping")
        self._writer.close()

    def _decide(self, claimed: Claimed) -> None:
        decided = self._claims.get(claimed.number)
        if decided is not None and not decided.done():
            decided.set_result(claimed.is_granted)


def _apply(runtime: Runtime, change: Change) -> None:
    try:
        runtime.apply(change)
    except RegistrationError as error:
        runtime.logger.error("not registered as in another worker", exception_facts(error, error.code))

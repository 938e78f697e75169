"""The runtime: what a server is made of once `app.py` has put it together, and how it starts, runs and stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from dragoman.access.callers import LOCAL, Caller
from dragoman.agents.agent import Agent, agents_apart
from dragoman.calls.answers import Claims
from dragoman.calls.call import Call, Outcome, Stage
from dragoman.calls.common_slots import Alone, CommonSlots
from dragoman.calls.intake import Intake
from dragoman.calls.interrupts import raise_interrupt
from dragoman.calls.lifespans import Lifespans
from dragoman.calls.origin import Origin
from dragoman.calls.pipeline import Common, Policy
from dragoman.calls.places import Full, Holder, Release
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.calls.runner import Runner
from dragoman.calls.tracing import Span
from dragoman.changes import Change, Publish, ResourceUpdated, keep_to_itself
from dragoman.config import Config
from dragoman.edge.announcer import Announcer
from dragoman.edge.connection import Connection, Services, Wire
from dragoman.edge.sdk.kernel import SdkKernel
from dragoman.errors import InternalError, InvalidArgument, RegistrationError
from dragoman.messaging.bus import Bus
from dragoman.offers.catalogue import Offered, lifespans_of, replace_offered
from dragoman.parts.part import Facilities
from dragoman.parts.supervisor import Supervisor
from dragoman.protocol.results import TaskCreated
from dragoman.tasks.client import TASK_MAKER
from dragoman.tasks.part import TasksAtWork
from dragoman.telemetry.log import exception_facts

if TYPE_CHECKING:
    from dragoman.access.authenticator import Identify
    from dragoman.agents.coordinator import Coordinator
    from dragoman.edge.http.app import HttpApp
    from dragoman.edge.http.siblings import Siblings
    from dragoman.edge.sdk.sessions import SdkSessions
    from dragoman.telemetry.metrics import Metrics

_LAST_WORDS = 0.5  # Seconds that streams are given to end in order.


class ServerState(Enum):
    """Where the server itself stands, whatever its connections do."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSED = "closed"


@dataclass
class Shared:
    """What the processes of a server share; a server of one process keeps it to itself."""

    claims: Claims
    """Which answers were used."""
    publish: Publish = keep_to_itself
    """Tells the other processes; what they tell is given to `Runtime.apply`."""
    announce: Publish = keep_to_itself
    """Tells the clients of this process."""
    slots: CommonSlots = field(default_factory=Alone)
    """The slots that belong to all processes together."""

    def get_claims(self) -> Claims:
        """What decides about answers now."""
        return self.claims

    def take_slot(self, name: str, limit: int, holder: Holder | None) -> Release | Full:
        """Take one of the slots that belong to all processes together, by whatever way there is now."""
        return self.slots.take(name, limit, holder)

    def tell(self, change: Change) -> None:
        """Tell the other processes, by whatever way there is now."""
        self.publish(change)

    def resource_updated(self, uri: str) -> None:
        """Tell the clients of all processes that something else is to be read at `uri`."""
        change = ResourceUpdated(uri)
        self.announce(change)
        self.publish(change)


@dataclass(frozen=True)
class Calls:
    """The way of every call."""

    common: Common
    policy: Policy
    stages: tuple[Stage, ...]
    """Of the pipeline for tools."""
    runner: Runner
    intake: Intake
    """Makes calls of tools."""
    offers: Intake
    """Makes calls of resources, prompts and completions."""


@dataclass(frozen=True)
class Edge:
    """The side that clients connect to."""

    kernel: SdkKernel
    services: Services
    announcer: Announcer


class Runtime:
    """Tools and what else is offered, and the one way to call them.

    `create_server` makes one. That starts nothing; `start` needs a running event loop.
    """

    def __init__(
        self,
        config: Config,
        facilities: Facilities,
        calls: Calls,
        edge: Edge,
        supervisor: Supervisor,
        shared: Shared,
        lifespans: Lifespans,
        make_http: Callable[..., HttpApp],
        agents: Coordinator | None = None,
        *,
        tasks: TasksAtWork,
        is_owner: bool = True,
    ) -> None:
        self.config = config
        self.shutdown_timeout = config.server.shutdown_timeout_ms / 1000
        self.facilities = facilities
        """What parts are given."""
        self.clock, self.ids, self.logger = facilities.clock, facilities.ids, facilities.logger
        self.catalogue, self.offers, self.cache = facilities.catalogue, facilities.offers, facilities.cache
        self.health = facilities.health
        self.calls, self.runner, self.intake, self.stages = calls, calls.runner, calls.intake, calls.stages
        self.slots, self.observers = calls.policy.slots, calls.common.observers
        self.edge, self.kernel, self.identity = edge, edge.kernel, edge.services.identity
        self.supervisor = supervisor
        self.shared = shared
        self.agents = agents
        """The agents, and the ways to send them messages; None in a server without any."""
        self.tasks = tasks
        """The tasks of callers."""
        self.is_owner = is_owner
        self.metrics: Metrics | None = None
        """What calls add up to; where the runtime is served over HTTP."""
        self.state = ServerState.STARTING
        self.began = time.monotonic()
        """When it was started; when it was made, before that."""
        self._announcer = edge.announcer
        self.connections: set[Connection] = edge.announcer.connections
        """The clients that are not connected over HTTP."""
        self._lifespans = lifespans
        self._make_http = make_http

    @property
    def is_running(self) -> bool:
        """Whether calls are taken."""
        return self.state is ServerState.RUNNING

    @property
    def bus(self) -> Bus:
        """The message bus. Requests for actions are published on it, with their token as the header `authorization`."""
        return self.facilities.storage.port(Bus)

    @property
    def missing_parts(self) -> tuple[str, ...]:
        """The parts of the server that have failed and are not restarted."""
        return self.supervisor.missing

    @property
    def sessions(self) -> SdkSessions | None:
        """The sessions of the handshake era, where the runtime is served over HTTP."""
        return self._announcer.sessions

    def http(self, *, sse: bool = False, siblings: Siblings | None = None, identify: Identify | None = None) -> HttpApp:
        """The runtime as an ASGI application, with the authentication that the settings ask for; once only.

        `siblings` are the processes that serve the same clients. `identify` authenticates requests in place of the
        settings: it takes the headers by name, and returns the caller, or None for a request to refuse; it may be
        async. Raises `ConfigError` for settings that cannot be used.
        """
        if self.sessions is not None:
            raise RuntimeError("a runtime is served over HTTP once")
        return self._make_http(self, sse=sse, siblings=siblings, identify=identify)

    async def start(self) -> None:
        """Begin to take calls, start the parts, and enter the lifespans; once only.

        Raises `PartFailed`, and what a lifespan raises.
        """
        if self.state is not ServerState.STARTING:
            raise RuntimeError(f"a runtime is started once, and this one is {self.state.value}")
        self.began = time.monotonic()
        self.runner.start()
        self._announcer.start()
        self.state = ServerState.RUNNING
        self.calls.common.admission.is_open = True
        try:
            await self.supervisor.start()
            await self._lifespans.enter(self)
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, timeout: float | None = None) -> int:
        """Refuse new calls, let running ones finish, close connections; how many calls had to be abandoned."""
        if self.state in (ServerState.DRAINING, ServerState.CLOSED):
            return 0
        self.state = ServerState.DRAINING
        self.calls.common.admission.is_open = False
        self._announcer.stop()
        self.supervisor.drain()
        self.calls.common.patience.stop()
        if timeout is None:
            timeout = self.shutdown_timeout
        end = time.monotonic() + timeout
        await self.runner.drain(timeout)
        abandoned = self.runner.abandon()
        await self._lifespans.leave(end)
        self.kernel.end_streams()
        for connection in tuple(self.connections):
            await connection.finish_requests(_LAST_WORDS)
            self.disconnect(connection)
        if self.sessions is not None:
            await self.sessions.stop()
        await self.kernel.close()
        await self.supervisor.stop(end)
        self.state = ServerState.CLOSED
        return abandoned

    def connect(self, wire: Wire, caller: Caller = LOCAL) -> Connection:
        """A new client, whose lines go to `wire`."""
        connection = Connection(self.edge.services, wire, caller)
        self.connections.add(connection)
        return connection

    def disconnect(self, connection: Connection) -> None:
        """The client is gone."""
        self.connections.discard(connection)
        connection.disconnect()

    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        correlation_id: str | None = None,
        caller: Caller = LOCAL,
        trace: list[Span] | None = None,
        idempotency_key: str | None = None,
    ) -> Outcome:
        """Call a tool through the whole pipeline, and wait for the outcome; `trace` gets where the time went.

        A call that is repeated with the same `idempotency_key` has its effect once, and gets the first outcome.
        """
        return await self.intake.call(
            name,
            arguments or {},
            correlation_id=correlation_id,
            caller=caller,
            trace=trace,
            idempotency_key=idempotency_key,
        )

    async def create_task(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        correlation_id: str | None = None,
        caller: Caller = LOCAL,
        idempotency_key: str | None = None,
    ) -> str:
        """Call a tool as a task, and return the task's id once the task is stored; raises what refuses the call.

        `tasks.requests` finds the task then.
        """
        tool = self.catalogue.get(name)
        if tool is not None and tool.task is None and tool.exists_for(caller):
            raise InvalidArgument(f"Calls of {name[:200]} do not become tasks", {"reason": "no_task"})
        origin = Origin(caller, client=TASK_MAKER, is_modern=True)
        call = self.intake.make_local(name, arguments or {}, origin, correlation_id)
        call.meta = TASK_MAKER.meta
        if idempotency_key is not None:
            call.meta = {**call.meta, IDEMPOTENCY_KEY: idempotency_key}
        created: TaskCreated = (await self.intake.answer(call, _as_it_is)).unwrap()
        return created.task_id

    def resource_updated(self, uri: str) -> None:
        """Say that something else is to be read at `uri` now: whoever subscribed to it is told. From any thread."""
        self.shared.resource_updated(uri)

    def apply(self, change: Change) -> None:
        """Do as another process of this server has done; its clients are told as if it had been done here."""
        for contribution in self.supervisor:
            if contribution.on_change is None:
                continue
            try:
                contribution.on_change(change)
            except RegistrationError:
                raise
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                raise_interrupt(error)
                # It is somebody else's code, and the process has to go on hearing the others.
                self.logger.error("a part failed to follow a change", exception_facts(error, InternalError.code))

    def replace(self, leaving: Iterable[Offered | Agent], coming: Iterable[Offered | Agent]) -> None:
        """Remove tools, resources, prompts and agents and add others: all of it, or none with a `RegistrationError`."""
        leaving, leaving_agents = agents_apart(leaving)
        coming, coming_agents = agents_apart(coming)
        if self.agents is not None:
            self.agents.check_exchange(leaving_agents, coming_agents)
        replace_offered(self.catalogue, self.offers, leaving, coming)
        if self.agents is not None:
            self.agents.exchange(leaving_agents, coming_agents)

    async def reload(self, leaving: Iterable[Offered | Agent], coming: Iterable[Offered | Agent]) -> None:
        """As `replace`, between entering the lifespans of what is coming and leaving those of what is replaced.

        The latter are left when the calls that need them have ended. Raises what a lifespan raises, too.
        """
        leaving, coming = tuple(leaving), tuple(coming)

        def replace() -> None:
            if self.state in (ServerState.DRAINING, ServerState.CLOSED):
                raise RuntimeError("the server is stopping")
            self.replace(leaving, coming)

        before, after = (lifespans_of(agents_apart(each)[0]) for each in (leaving, coming))
        await self._lifespans.exchange(self, before, after, replace)


def _as_it_is(call: Call, outcome: Outcome) -> Outcome:
    return outcome

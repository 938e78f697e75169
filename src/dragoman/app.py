"""The composition root: settings and tools become a runtime. The only place that chooses concrete classes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dragoman.access.callers import LOCAL, Caller
from dragoman.access.quota import Quota
from dragoman.access.seal import Seal
from dragoman.adapters.dict_claims import DictClaims
from dragoman.adapters.engines import make_storage
from dragoman.cache.bounded import BoundedCache
from dragoman.calls.answers import Claims
from dragoman.calls.call import Call, Outcome, Stage
from dragoman.calls.call_log import call_log
from dragoman.calls.deadlines import Deadlines
from dragoman.calls.guards import Guards
from dragoman.calls.intake import Intake
from dragoman.calls.interrupts import raise_interrupt
from dragoman.calls.patience import Patience
from dragoman.calls.pipeline import Common, Pipeline, Policy, build_pipeline
from dragoman.calls.rates import Rates
from dragoman.calls.results import Results
from dragoman.calls.run_handler import RunHandler
from dragoman.calls.runner import Runner
from dragoman.calls.shares import Shares
from dragoman.calls.slots import Slots
from dragoman.calls.stages.admit import Admission
from dragoman.calls.stages.ask_client import MOST_WAITING, Waiting
from dragoman.calls.stages.find_tool import FindOffer, FindTool
from dragoman.calls.stages.open_span import OpenSpan
from dragoman.calls.stages.record_completion import Observer
from dragoman.calls.states import States
from dragoman.calls.threads import Threads
from dragoman.calls.tracing import Span
from dragoman.changes import (
    Change,
    Publish,
    ResourceUpdated,
    ResultsOutdated,
    ToolRegistered,
    ToolRemoved,
    keep_to_itself,
)
from dragoman.clock import Clock, SystemClock
from dragoman.config import Config, make_config
from dragoman.edge.connection import Connection, Services, Wire
from dragoman.edge.interests import Interests
from dragoman.edge.listing import Listing
from dragoman.edge.requests import KernelRequests, capabilities_with
from dragoman.edge.sdk.kernel import SdkKernel
from dragoman.errors import ConfigError, DuplicateTool, InternalError, RegistrationError
from dragoman.ids import Ids, RandomIds
from dragoman.lifespans import Lifespan, MakeLifespan
from dragoman.memories.migrations import MIGRATIONS
from dragoman.offers.catalogue import Kind, Offer, Offered, Offers, offered_by
from dragoman.protocol.results import bytes_added_later
from dragoman.protocol.session import Identity
from dragoman.replies.artifacts import Artifacts, random_token
from dragoman.replies.dialects import make_dialect
from dragoman.replies.result_continue import result_continue_tool
from dragoman.storage.port import Storage
from dragoman.telemetry.load import PressureMonitor
from dragoman.telemetry.log import Entry, Logger, StructuredLogger, exception_facts
from dragoman.telemetry.metrics import Levels, Metrics
from dragoman.telemetry.spans import join_trace, make_tracer
from dragoman.tools.builtin.admin import admin_tools, registered_tool
from dragoman.tools.builtin.echo import echo, echo_tool
from dragoman.tools.builtin.health import health_handler, health_tool
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.tool import Handler, Tool

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from dragoman.access.authenticator import Identify
    from dragoman.edge.http.app import HttpApp
    from dragoman.edge.http.siblings import Siblings
    from dragoman.edge.sdk.sessions import SdkSessions
    from dragoman.memories.port import Memories
    from dragoman.parts.route import Route

_LAST_WORDS = 0.5  # Seconds that streams are given to end in order.


class ServerState(Enum):
    """Where the server itself stands, whatever its connections do."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSED = "closed"


def _discard(entry: Entry) -> None:
    """Where log entries go when nobody asked for them."""


@dataclass(kw_only=True)
class ServerOptions:
    """Everything a server is made of. What is left out is made from the rest; nothing reads a global instead."""

    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    logger: Logger | None = None
    catalogue: Catalogue | None = None
    slots: Slots | None = None
    agents: Any = None
    memories: Memories | None = None
    tools: Iterable[Offered] = ()
    """Tools, resources and prompts, or functions that were decorated as such."""
    offers: Offers | None = None
    """For resources and prompts that come only when the server runs: it then says that it has them from the start."""
    stages: Sequence[Stage] = ()
    """Stages of the application's own. Each call goes through them in this order, after `CheckScopes`."""
    tracer_provider: TracerProvider | None = None
    """Whose spans calls become. Without it, OpenTelemetry's own, if the application has set one by now."""
    memory_tools: bool = False
    """Whether the memory_* tools are there, even if the settings do not ask for them."""
    is_owner: bool = True
    """Whether this process does what only one process of a server may do."""
    has_health: bool = True
    """Whether the tool `health` is there. What `/health` says over HTTP is there in any case."""
    lifespan: MakeLifespan | None = None
    """A function that takes no argument, or the runtime, and returns an async context manager, which is entered by
    `start` and left when the last call has ended, before the clients are disconnected. Its value is at `ctx.lifespan`
    of tools whose file has no lifespan. `start` raises what it raises."""
    cursor_mark: str = ""
    """What cursors begin with, so that other processes of a server know whose they are."""


class Runtime:
    """Tools and what else is offered, and the one way to call them.

    Constructing it starts nothing; `start` needs a running event loop.
    """

    def __init__(self, options: ServerOptions) -> None:
        config = options.config
        self.config = config
        self.is_owner = options.is_owner
        self.publish: Publish = keep_to_itself
        """Tells the server's other processes, where there are some; what they tell is given to `apply`."""
        self.clock = options.clock
        self.claims: Claims = DictClaims(self.clock)
        """Which answers were used; where a server has other processes, what they all share."""
        self.ids = options.ids
        self.logger: Logger = options.logger or StructuredLogger(_discard, self.clock, config.logging)
        self.slots = options.slots or Slots(config.resources, config.tools, self.clock)
        given = options.catalogue  # An empty one is false, and still the one to use.
        may_change = config.is_dynamic_registration_effective()
        self.catalogue = (
            given
            if given is not None
            else Catalogue(config.tools, self.logger, config.timeouts, allows_dynamic=may_change, ids=self.ids)
        )
        tools, offers = _sorted_out(options.tools)
        self.offers = (
            options.offers if options.offers is not None else Offers(config.tools, config.timeouts, expected=())
        )
        self.offers.replace((), offers)
        self._info = {"name": config.server.name, "version": config.server.version}
        self.memories = options.memories
        self.storage: Storage = make_storage(config.storage, self.clock, MIGRATIONS)
        if options.has_health:
            self.catalogue.register(health_tool(self.health), is_builtin=True)
        for tool in tools:
            self.catalogue.register(tool)
        for tool in (
            *(self._memory_tools() if config.tools.memory_enabled or options.memory_tools else ()),
            *(self._admin_tools() if may_change else ()),
        ):
            self.catalogue.register(tool, is_builtin=True)
        self.state = ServerState.STARTING
        own = None if options.lifespan is None else Lifespan(options.lifespan)
        self._lifespans = [*([] if own is None else [own]), *_lifespans_of(tools, offers)]
        """Those that are, or will be, entered."""
        self._gate = Admission()
        self.identity = Identity(self._info, capabilities_with(self.offers), config.server.instructions)
        self.cache: BoundedCache[Any] = BoundedCache(config.cache, self.clock)
        artifacts = Artifacts(self.cache, partial(random_token, options.cursor_mark))
        self.dialect = make_dialect(config.response, artifacts, self.identity.server_info)
        if config.response.dialect == "envelope":  # The only one that leaves something to be continued.
            self.catalogue.register(result_continue_tool(artifacts, config.response), is_builtin=True)
        self.connections: set[Connection] = set()
        self.pressure = PressureMonitor(self.clock, config.guards.memory_budget_bytes)
        self.guards = Guards(config.guards, config.limits, self.pressure)
        self.observers: list[Observer] = []
        under_way: dict[Call, Pipeline] = {}
        deadlines = Deadlines(under_way, self.clock, self.logger)
        threads = Threads()
        self._patience = patience = Patience(config.timeouts.input_ms, deadlines, self.clock)
        seal = Seal(config.security.state_key, config.server.name)
        self._results = results = Results(self.cache, self._tell_others, config.response.max_value_bytes)
        tracer = make_tracer(options.tracer_provider)
        self._spans = None if tracer is None else OpenSpan(tracer, self.catalogue)
        if self._spans is not None:
            self.observers.append(self._spans.close)
        self.common = common = Common(
            run=RunHandler(threads, self.logger, patience, own),
            logger=self.logger,
            clock=self.clock,
            admission=self._gate,
            catalogue=self.catalogue,
            guards=self.guards,
            states=States(seal, self.clock, self.logger, self._get_claims, patience.limit),
            patience=patience,
            waiting=Waiting(Quota(config.resources.max_waiting_per_caller or MOST_WAITING // 2)),
            deadlines=deadlines,
            results=results,
            under_way=under_way,
            observers=self.observers,
            spans=self._spans,
            stages=tuple(options.stages),
        )
        """What pipelines share. With it, a part can build one for work of its own."""
        self.policy = policy = Policy(
            find=FindTool(self.catalogue),
            limits=config.limits,
            tools=config.tools,
            rates=Rates(config.limits),
            slots=self.slots,
            shares=Shares(config.resources, config.limits),
        )
        tools_pipeline = build_pipeline(policy, common)
        offers_pipeline = build_pipeline(replace(policy, find=FindOffer()), common)
        self.stages = tools_pipeline.stages
        self.runner = Runner(tools_pipeline, under_way, deadlines, threads, self.logger)
        self.intake = Intake(self.runner, self.ids, self.dialect, self.clock)
        offers_intake = Intake(self.runner, self.ids, self.dialect, self.clock, offers_pipeline)
        listing = Listing(self.catalogue, self.identity)
        self.interests = Interests()
        max_bytes = config.response.max_response_bytes - bytes_added_later(self.identity.server_info)
        requests = KernelRequests(self.intake, self.dialect, offers_intake, self.offers, self.interests, max_bytes)
        handlers = requests.handlers(self.identity.capabilities)
        self.kernel = SdkKernel(self.identity, listing, handlers, self.offers.may_read)
        self._services = Services(
            intake=self.intake,
            catalogue=self.catalogue,
            listing=listing,
            identity=self.identity,
            dialect=self.dialect,
            kernel=self.kernel,
            ids=self.ids,
            logger=self.logger,
            max_message_bytes=config.limits.max_request_bytes,
            shape=config.limits.shape,
        )
        self.routes: list[Route] = []
        """What is served over HTTP besides MCP; read when the application is made."""
        self.sessions: SdkSessions | None = None
        self.metrics: Metrics | None = None
        """What calls add up to; where the runtime is served over HTTP."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._stop_listening = (
            self.catalogue.on_change(lambda: self._from_any_thread(self._announce_list, "tools")),
            self.offers.on_change(lambda kind: self._from_any_thread(self._announce_list, kind)),
        )

    @property
    def is_running(self) -> bool:
        """Whether calls are taken."""
        return self.state is ServerState.RUNNING

    def http(self, *, sse: bool = False, siblings: Siblings | None = None, identify: Identify | None = None) -> HttpApp:
        """The runtime as an ASGI application, with the authentication that the settings ask for; once only.

        `siblings` are the processes that serve the same clients. `identify` authenticates requests in place of the
        settings: it takes the headers by name, and returns the caller, or None for a request to refuse; it may be
        async. Raises `ConfigError` for settings that cannot be used.
        """
        from dragoman.access.authenticator import CustomAuthenticator, make_authenticator
        from dragoman.access.metadata import resource_metadata
        from dragoman.adapters.web_documents import WebDocuments
        from dragoman.edge.http.access import HttpAccess
        from dragoman.edge.http.app import HttpApp, HttpTelemetry
        from dragoman.edge.http.origins import OriginCheck
        from dragoman.edge.http.routes import Endpoint
        from dragoman.edge.http.status import metadata_routes, metrics_route
        from dragoman.edge.sdk.sessions import SdkSessions

        if self.sessions is not None:
            raise RuntimeError("a runtime is served over HTTP once")
        config = self.config
        authenticator = make_authenticator(config.auth, self.clock, WebDocuments(), os.environ)
        if identify is not None:
            if authenticator is not None:
                raise ConfigError([("auth", "is set, and so is an authenticator of the application's own; use one")])
            authenticator = CustomAuthenticator(identify, self.clock)
        if config.http.metrics:
            self._count_calls()
        is_authenticated = authenticator is not None
        prefix = "" if siblings is None else siblings.prefix
        self.sessions = SdkSessions(
            self.kernel, config, self.ids, self.logger, is_authenticated=is_authenticated, prefix=prefix
        )
        routes = [*self.routes]
        metadata = resource_metadata(config.auth)
        if metadata is not None:
            routes += metadata_routes(metadata, config.http.path)
        if self.metrics is not None:
            routes.append(metrics_route(self.metrics, siblings))
        if config.explorer.enabled:
            routes += self._explore()
        # The name that the operator listens at is the server's own, whoever else's names point here.
        own = {config.http.host} - {"*"}
        origins = OriginCheck((*config.http.allowed_hosts, *own), config.http.allowed_origins)
        return HttpApp(
            self,
            self._services,
            self.sessions,
            HttpAccess(origins, authenticator, self.logger),
            Endpoint(config.http.path, has_sse=sse),
            routes=routes,
            siblings=siblings,
            telemetry=HttpTelemetry(self.metrics, None if self._spans is None else join_trace),
        )

    def _explore(self) -> tuple[Route, ...]:
        """The routes of the explorer, which is told of every call from now on."""
        from dragoman.explorer.explored import Explored
        from dragoman.explorer.explorer import Explorer

        explored = Explored(
            settings=self.config.explorer,
            max_response_bytes=self.config.response.max_response_bytes,
            catalogue=self.catalogue,
            stages=self.stages,
            intake=self.intake,
            dialect=self.dialect,
            identity=self.identity,
            clock=self.clock,
            ids=self.ids,
            logger=self.logger,
            state=lambda: self.state.value,
            under_way=lambda: self.runner.under_way,
            health=self.health,
        )
        explorer = Explorer(explored)
        self.observers.append(explorer.recent.observe)
        return explorer.routes()

    async def start(self) -> None:
        """Begin to take calls, and enter the lifespans; once only. Raises what a lifespan raises."""
        if self.state is not ServerState.STARTING:
            raise RuntimeError(f"a runtime is started once, and this one is {self.state.value}")
        self._loop = asyncio.get_running_loop()
        self.runner.start()
        self.slots.lag.start()
        self.pressure.start()
        self.cache.start()
        self.state = ServerState.RUNNING
        self._gate.is_open = True
        try:
            for lifespan in self._lifespans:
                await lifespan.enter(self)
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, timeout: float | None = None) -> int:
        """Refuse new calls, let running ones finish, close connections; how many calls had to be abandoned."""
        if self.state in (ServerState.DRAINING, ServerState.CLOSED):
            return 0
        self.state = ServerState.DRAINING
        self._gate.is_open = False
        self._patience.stop()
        if timeout is None:
            timeout = self.config.server.shutdown_timeout_ms / 1000
        end = time.monotonic() + timeout
        await self.runner.drain(timeout)
        abandoned = self.runner.abandon()
        for lifespan in reversed(self._lifespans):
            await self._leave(lifespan, max(end - time.monotonic(), _LAST_WORDS))
        self.kernel.end_streams()
        for connection in tuple(self.connections):
            await connection.finish_requests(_LAST_WORDS)
            self.disconnect(connection)
        if self.sessions is not None:
            await self.sessions.stop()
        await self.kernel.close()
        with suppress(TimeoutError):  # A disk that hangs must not keep the process.
            await asyncio.wait_for(self.storage.close(), _LAST_WORDS)
        self.slots.lag.stop()
        self.pressure.stop()
        self.cache.stop()
        for stop in self._stop_listening:
            stop()
        self.state = ServerState.CLOSED
        return abandoned

    async def _leave(self, lifespan: Lifespan, timeout: float) -> None:
        try:
            if not await lifespan.leave(timeout):
                self.logger.error("the end of the lifespan took too long", {"timeoutMs": int(timeout * 1000)})
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise_interrupt(error)
            # It is somebody else's code, and no reason not to stop in order.
            self.logger.error("the end of the lifespan failed", exception_facts(error, InternalError.code))

    def connect(self, wire: Wire, caller: Caller = LOCAL) -> Connection:
        """A new client, whose lines go to `wire`."""
        connection = Connection(self._services, wire, caller)
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
    ) -> Outcome:
        """Call a tool through the whole pipeline, and wait for the outcome; `trace` gets where the time went."""
        return await self.intake.call(name, arguments or {}, correlation_id=correlation_id, caller=caller, trace=trace)

    def log_calls(self, logger: logging.Logger, package: str) -> None:
        """Log calls of unknown tools and of tools whose handlers are in `package`, and the errors that answer them."""
        self.runner.on_submit.append(call_log(self.catalogue, logger, package))

    def resource_updated(self, uri: str) -> None:
        """Say that something else is to be read at `uri` now: whoever subscribed to it is told. From any thread."""
        self._from_any_thread(self._announce_update, uri)
        self.publish(ResourceUpdated(uri))

    def apply(self, change: Change) -> None:
        """Do as another process of this server has done; its clients are told as if it had been done here."""
        match change:
            case ToolRegistered():
                self._register_as_told(change)
            case ToolRemoved():
                known = self.catalogue.get(change.name)
                if known is not None and not known.is_builtin:
                    self.catalogue.unregister(change.name, is_dynamic=True, logger=self._logger_of(change))
            case ResourceUpdated():
                self._from_any_thread(self._announce_update, change.uri)
            case ResultsOutdated():
                self._results.outdate(change.tags)

    def replace(self, leaving: Iterable[Offered], coming: Iterable[Offered]) -> None:
        """Remove tools, resources and prompts and add others, all of it or, with a `RegistrationError`, nothing."""
        old_tools, old_offers = _sorted_out(leaving)
        new_tools, new_offers = _sorted_out(coming)
        self.catalogue.replace(_names(old_tools), new_tools)
        try:
            self.offers.replace([offer.key for offer in old_offers], new_offers)
        except RegistrationError:
            self.catalogue.replace(_names(new_tools), old_tools)
            raise

    async def reload(self, leaving: Iterable[Tool | Offer], coming: Iterable[Tool | Offer]) -> None:
        """As `replace`, between entering the lifespans of what is coming and leaving those of what is replaced.

        The latter are left when the calls that need them have ended. Raises what a lifespan raises, too.
        """
        entered: list[Lifespan] = []
        before, after = (_lifespans_of(*_sorted_out(each)) for each in (leaving, coming))
        try:
            for lifespan in after:
                if lifespan not in self._lifespans:
                    entered.append(lifespan)
                    self._lifespans.append(lifespan)
                    await lifespan.enter(self)
            if self.state in (ServerState.DRAINING, ServerState.CLOSED):
                raise RuntimeError("the server is stopping")
            self.replace(leaving, coming)
        except BaseException:
            for lifespan in reversed(entered):
                self._let_go(lifespan)
            raise
        for lifespan in reversed(before):
            if lifespan not in after:
                self._let_go(lifespan)

    def _let_go(self, lifespan: Lifespan) -> None:
        """Leave a lifespan when the calls that need it have ended, but at the latest when the server stops."""

        async def leave() -> None:
            await self.runner.ended(lifespan)
            await self._leave(lifespan, self.config.server.shutdown_timeout_ms / 1000)
            if self.state is ServerState.RUNNING:
                self._lifespans.remove(lifespan)

        self._in_background(leave())

    def health(self) -> dict[str, Any]:
        """What the tool `health` answers."""
        config = self.config
        return {
            "server": {"name": config.server.name, "version": config.server.version},
            "config": {
                "toolTimeoutMs": config.tools.default_timeout_ms,
                "maxConcurrentExecutions": self.slots.limit,
                "maxPayloadBytes": config.tools.max_payload_bytes,
                "maxStateBytes": config.tools.max_state_bytes,
            },
            "resources": msgspec.to_builtins(self.slots.get_telemetry()),
            "status": self.slots.get_health_status(),
        }

    def _count_calls(self) -> None:
        if find_spec("prometheus_client") is None:
            self.logger.warn("there are no metrics: prometheus-client is not installed")
            return
        self.metrics = Metrics(self.catalogue.get, self._levels)
        self.observers.append(self.metrics.observe)

    def _levels(self) -> Levels:
        """What the metrics say about this moment."""
        now = self.slots.get_telemetry()
        return Levels(
            in_flight=self.runner.under_way,
            slots=now.max_concurrent_executions,
            slots_in_use=now.concurrent_executions,
            lag_seconds=now.event_loop_delay_ms / 1000,
            memory_bytes=now.memory_usage_bytes,
            sessions=0 if self.sessions is None else self.sessions.count,
            cache=self.cache.stats(),
        )

    def _memory_tools(self) -> tuple[Tool, ...]:
        from dragoman.memories.port import Memories
        from dragoman.memories.tools import memory_tools

        if self.memories is None:
            self.memories = self.storage.port(Memories)
        response = self.config.response
        return memory_tools(self.memories, response.max_value_bytes - bytes_added_later(self._info))

    def _handlers(self) -> dict[str, Handler]:
        """What a tool can stand for that is registered while the server runs."""
        return {"echo": echo, "health": health_handler(self.health)}

    def _admin_tools(self) -> tuple[Tool, ...]:
        policy = self.config.tools.admin_policy
        return admin_tools(self.catalogue, policy, self._handlers(), self._tell_others)

    def _tell_others(self, change: Change) -> None:
        self.publish(change)

    def _get_claims(self) -> Claims:
        return self.claims

    def _register_as_told(self, change: ToolRegistered) -> None:
        tool = registered_tool(change, self._handlers())
        known = self.catalogue.get(change.name)
        if known is not None and known.definition == tool.definition:
            return
        if known is not None and known.is_builtin:
            raise DuplicateTool(change.name)
        if known is not None:  # Registered here and there at the same time: the last word is the same for all.
            self.catalogue.unregister(change.name)
        logger = self._logger_of(change)
        self.catalogue.register(tool, is_dynamic=True, tool_type=change.tool_type, logger=logger)

    def _logger_of(self, change: ToolRegistered | ToolRemoved) -> Logger | None:
        """Logs under the id of the call that another process made the change for."""
        return None if change.correlation_id is None else self.logger.child({"correlationId": change.correlation_id})

    def _from_any_thread(self, announce: Callable[[Any], None], what: str) -> None:
        loop = self._loop
        if loop is not None and self.state is ServerState.RUNNING:
            loop.call_soon_threadsafe(announce, what)

    def _announce_list(self, kind: Kind | Literal["tools"]) -> None:
        """Tell every client that a list is another one now."""
        for connection in tuple(self.connections):
            if connection.is_listening:
                connection.notify(f"notifications/{kind}/list_changed")
        self._announce(self.kernel.list_changed(kind))
        if self.sessions is not None:
            self.sessions.list_changed(kind)

    def _announce_update(self, uri: str) -> None:
        for listener, caller in self.interests.subscribers(uri):
            if self.offers.may_read(caller, uri):  # It may have been registered after the client subscribed.
                listener.notify("notifications/resources/updated", {"uri": uri})
        self._announce(self.kernel.resource_updated(uri))

    def _announce(self, telling: Coroutine[Any, Any, None]) -> None:
        """Tell the clients of the modern era, which listen through the kernel."""
        self._in_background(telling)

    def _in_background(self, doing: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(doing)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def create_server(options: ServerOptions) -> Runtime:
    """A server from its parts. Nothing runs until it is started."""
    return Runtime(options)


def _sorted_out(offered: Iterable[Offered]) -> tuple[list[Tool], list[Offer]]:
    tools: list[Tool] = []
    offers: list[Offer] = []
    for each in itertools.chain.from_iterable(map(offered_by, offered)):
        if isinstance(each, Tool):
            tools.append(each)
        else:
            offers.append(each)
    return tools, offers


def _lifespans_of(tools: Iterable[Tool], offers: Iterable[Offer]) -> list[Lifespan]:
    """Each of them once, in the order of what has them."""
    found = (each.lifespan for each in (*tools, *(offer.tool for offer in offers)))
    return list(dict.fromkeys(lifespan for lifespan in found if lifespan is not None))


def _names(tools: Iterable[Tool]) -> list[str]:
    return [tool.definition.name for tool in tools]


@asynccontextmanager
async def open_runtime(
    tools: Iterable[Offered] = (), config: Config | Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Runtime]:
    """A running runtime inside this process: `async with dragoman.open(tools) as runtime: await runtime.call(…)`."""
    runtime = create_server(ServerOptions(config=make_config(config), tools=tools, **options))
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


def http_app(
    tools: Iterable[Offered] = (),
    config: Config | Mapping[str, Any] | None = None,
    *,
    allow_unauthenticated: bool = False,
    identify: Identify | None = None,
    **options: Any,
) -> HttpApp:
    """Tools as an ASGI application, to be mounted in any other: `host.mount("/tools", dragoman.http_app(tools))`.

    Give its `lifespan` to the application that it is mounted in, so that it ends in order; without that it starts with
    its first request. Configure `auth`, or pass `identify`, which takes a request's headers by name and returns its
    `Caller` or None, or pass `allow_unauthenticated=True`; raises `ConfigError` otherwise.
    """
    runtime = create_server(ServerOptions(config=make_config(config), tools=tools, **options))
    app = runtime.http(identify=identify)
    if not (app.is_authenticated or allow_unauthenticated or runtime.config.auth.allow_unauthenticated):
        reason = "nobody is authenticated; set up auth, or pass allow_unauthenticated=True"
        raise ConfigError([("auth", reason)])
    return app


async def start_http_server(server: Runtime, host: str | None = None, port: int | None = None) -> int:
    """Serve over HTTP until SIGTERM or SIGINT, at the address in the settings unless another is given.

    Raises `ValueError` for a port that there is not, `OSError` for an address that cannot be had, and `ConfigError` for
    one that others can reach while nobody is authenticated. Returns how many calls had to be abandoned.
    """
    from dragoman.edge.http.server import bind, check_address, serve

    config = server.config
    address = host or config.http.host
    check_address(address, config.auth)
    listening = bind(address, config.http.port if port is None else port)
    return await serve(server.http(), listening, config.http, config.server.shutdown_timeout_ms / 1000)


def builtin_tools() -> tuple[Tool, ...]:
    """What is served when no tools are named; `health` is always there besides."""
    return (echo_tool(),)

"""The composition root: settings, tools and parts become a runtime. The only place that chooses concrete classes."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from random import random
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.access.local_secret import find_local_secret
from dragoman.access.quota import Quota
from dragoman.access.seal import Seal
from dragoman.adapters.dict_claims import DictClaims
from dragoman.adapters.engines import make_storage
from dragoman.agents.agent import Agent, agents_apart
from dragoman.cache.bounded import BoundedCache
from dragoman.calls.call import Call, Dialect, Stage
from dragoman.calls.deadlines import Deadlines
from dragoman.calls.guards import Guards
from dragoman.calls.intake import Intake
from dragoman.calls.interrupts import raise_interrupt
from dragoman.calls.lifespans import Lifespans
from dragoman.calls.patience import Patience
from dragoman.calls.pipeline import Common, Pipeline, Policy, build_pipeline
from dragoman.calls.rates import Rates
from dragoman.calls.results import Results
from dragoman.calls.run_handler import RunHandler
from dragoman.calls.runner import Runner
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.calls.shares import Shares
from dragoman.calls.slots import Slots
from dragoman.calls.stages.admit import Admission
from dragoman.calls.stages.ask_client import MOST_WAITING, Waiting
from dragoman.calls.stages.find_tool import FindOffer, FindTool
from dragoman.calls.states import States
from dragoman.calls.threads import Threads
from dragoman.changes import Change, Publish, StorageDamaged
from dragoman.clock import Clock, SystemClock
from dragoman.config import Config, make_config
from dragoman.edge.announcer import Announcer
from dragoman.edge.connection import Services
from dragoman.edge.interests import Interests
from dragoman.edge.listing import Listing
from dragoman.edge.requests import KernelRequests, capabilities_with
from dragoman.edge.sdk.kernel import SdkKernel
from dragoman.errors import ConfigError, PartFailed, RegistrationError
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from dragoman.ids import Ids, RandomIds
from dragoman.jobs.migrations import MIGRATIONS as JOB_MIGRATIONS
from dragoman.jobs.port import JobStores, Registry, Schedule
from dragoman.jobs.scheduler import Scheduler
from dragoman.lifespans import Lifespan, MakeLifespan
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.part import memories_part
from dragoman.offers.catalogue import Offered, Offers, lifespans_of, sorted_out
from dragoman.parts.admin import admin_part
from dragoman.parts.artifacts import artifacts_part
from dragoman.parts.installed import installed_parts, sections_of
from dragoman.parts.part import Contribution, Facilities, OwnPipeline, Part
from dragoman.parts.spans import spans_part
from dragoman.parts.supervisor import Supervisor
from dragoman.protocol.results import ToolResult, bytes_added_later
from dragoman.protocol.session import Identity
from dragoman.replies.artifacts import Artifacts, random_token
from dragoman.replies.dialects import make_dialect
from dragoman.runtime import Calls, Edge, Runtime, Shared
from dragoman.slo.meter import ActionMeter
from dragoman.storage.port import PurgeClock, Storage
from dragoman.storage.settings import DEFAULT_SPACE, data_directory
from dragoman.tasks.part import TasksAtWork, tasks_part
from dragoman.tasks.port import Runs
from dragoman.telemetry.figures import Gauge
from dragoman.telemetry.load import PressureMonitor
from dragoman.telemetry.log import Entry, Logger, StructuredLogger, make_cleaner
from dragoman.telemetry.metrics import Levels, Metrics
from dragoman.telemetry.spans import join_trace, make_tracer
from dragoman.tools.builtin.echo import echo_tool
from dragoman.tools.builtin.health import health_report, health_tool
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.tool import Tool

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    from dragoman.access.authenticator import Authenticator, Identify
    from dragoman.agents.coordinator import Coordinator
    from dragoman.agents.ledger import Ledger, LedgerAdmin
    from dragoman.agents.tools import AgentTools
    from dragoman.edge.http.app import HttpApp
    from dragoman.edge.http.nearness import Nearness
    from dragoman.edge.http.siblings import Siblings
    from dragoman.explorer.action_letters import ActionLetterViews
    from dragoman.explorer.agents import AgentViews
    from dragoman.explorer.tasks import TaskViews
    from dragoman.gateway.keeping import ArtifactBucket
    from dragoman.knowledge.embedding import Embedders
    from dragoman.memories.port import Memories

_LAST_WORDS = 0.5  # Seconds that the database is given to close.
_TAKEN = frozenset(
    [
        "storage",
        "load",
        "pressure",
        "cache",
        "memories",
        "admin",
        "artifacts",
        "spans",
        "results",
        "announcer",
        "metrics",
        "explorer",
        "aacp",
        "tasks",
        "knowledge",
        "knowledge_page",
        "gateway",
        "jobs",
        "deliveries",
        "slo",
    ]
)
"""The names of what the server itself starts and stops, or may."""
_WORKING = frozenset(["aacp", "tasks"])
"""The parts that keep messages and runs."""


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
    agents: Coordinator | None = None
    """For agents that come only when the server runs, and for hooks. Agents among `tools` are added to it."""
    has_durable_agents: bool | None = None
    """Whether messages to agents are kept in the storage; None: if `storage.data_dir` is set. Otherwise they end with
    the process."""
    ledger: tuple[Ledger, LedgerAdmin] | None = None
    """The ledger for messages to agents, instead of the storage's."""
    runs: tuple[Runs, LedgerAdmin] | None = None
    """The store for tasks and for the outcomes of calls with idempotency keys, instead of the storage's."""
    memories: Memories | None = None
    tools: Iterable[Offered | Agent] = ()
    """Tools, resources, prompts and agents, or functions and classes that were decorated as such."""
    parts: Sequence[Part] = ()
    """The application's own parts. They start after the server's, and before those that `server.parts` names."""
    stages: Sequence[Stage] = ()
    """The application's own stages, after `CheckScopes`, in their order; see docs/stages.md."""
    offers: Offers | None = None
    """For resources and prompts that come only when the server runs: it then says that it has them from the start."""
    tracer_provider: TracerProvider | None = None
    """Whose spans calls become. Without it, OpenTelemetry's own, if the application has set one by now."""
    memory_tools: bool = False
    """Whether the memory_* tools are there, even if the settings do not ask for them."""
    is_owner: bool = True
    """Whether this process does what only one process of a server may do."""
    runs_tasks: bool = True
    """Whether tasks run in this process. Otherwise they wait for another one that uses the same storage."""
    has_health: bool = True
    """Whether the tool `health` is there. What `/health` says over HTTP is there in any case."""
    lifespan: MakeLifespan | None = None
    """A function that takes no argument, or the runtime, and returns an async context manager, which is entered by
    `start` and left when the last call has ended, before the clients are disconnected. Its value is at `ctx.lifespan`
    of tools whose file has no lifespan. `start` raises what it raises."""
    cursor_mark: str = ""
    """What cursors begin with, so that other processes of a server know whose they are."""


def create_server(options: ServerOptions) -> Runtime:
    """A server from its parts. Nothing runs until it is started.

    Raises `RegistrationError` for tools that it cannot have, `ConfigError` for settings that cannot be used, and
    `PartFailed` for a part that cannot be built.
    """
    config, clock = options.config, options.clock
    tools, agents = agents_apart(options.tools)
    coordinator = _coordinator(options, agents)
    logger = options.logger or StructuredLogger(_discard, clock, config.logging)
    slots = options.slots or Slots(config.resources, config.tools, clock)
    pressure = PressureMonitor(clock, config.guards.memory_budget_bytes)
    shared, supervisor = Shared(DictClaims(clock)), Supervisor(clock, logger)
    info = {"name": config.server.name, "version": config.server.version}
    cache: BoundedCache[Any] = BoundedCache(config.cache, clock)
    artifacts = Artifacts(cache, partial(random_token, options.cursor_mark))
    tracer = make_tracer(options.tracer_provider)
    added = (*options.parts, *installed_parts(config.server.parts))
    _check_names(added)
    tasks, meter = TasksAtWork(), ActionMeter()
    scheduler = _make_scheduler(options, logger, lambda: storage if config.gateway.enabled else work)
    own = _own_parts(options, artifacts, tracer, meter, coordinator, scheduler)
    parts = (_tasks_part(options, tasks), *own, *added)
    storage, work = _make_storages(options, parts)
    _supervise_own(supervisor, logger, shared.tell, storage, work, load=slots.lag, pressure=pressure, cache=cache)
    facilities = Facilities(
        settings=None,
        clock=clock,
        ids=options.ids,
        logger=logger,
        catalogue=_catalogue(options, logger),
        offers=Offers(config.tools, config.timeouts, expected=()) if options.offers is None else options.offers,
        storage=storage,
        cache=cache,
        call=lambda *what, **how: runtime.call(*what, **how),
        get_intake=lambda: runtime.intake,
        open_pipeline=lambda most, event: _open_pipeline(runtime, most, event),
        publish=shared.tell,
        take_slot=shared.take_slot,
        resource_updated=shared.resource_updated,
        max_value_bytes=config.response.max_value_bytes,
        health=partial(health_report, info, config.tools, slots, lambda: supervisor.missing),
        scheduled=scheduler.loop,
    )
    _register(tools, facilities, has_health=options.has_health)
    for part in parts:
        _contribute(part, config, facilities, supervisor, work if part.name in _WORKING else storage)
    identity = Identity(info, capabilities_with(facilities.offers), config.server.instructions)
    dialect = make_dialect(config.response, artifacts, identity.server_info)
    lifespan = None if options.lifespan is None else Lifespan(options.lifespan)
    calls = _compose_calls(options, facilities, slots, pressure, dialect, supervisor, shared, lifespan)
    edge = _compose_edge(config, facilities, calls, identity, dialect, tasks)
    supervisor.add("announcer", Contribution(on_change=edge.announcer.on_change))
    shared.announce = edge.announcer.on_change
    entered = (*(() if lifespan is None else (lifespan,)), *lifespans_of(tools))
    lifespans = Lifespans(entered, calls.runner, logger, config.server.shutdown_timeout_ms / 1000)
    make_http = partial(_make_http, meter=meter, has_spans=tracer is not None)
    made = config, facilities, calls, edge, supervisor, shared, lifespans, make_http
    runtime = Runtime(*made, coordinator, tasks=tasks, is_owner=options.is_owner)
    return runtime


def _supervise_own(
    supervisor: Supervisor, logger: Logger, publish: Publish, storage: Storage, work: Storage, **others: Any
) -> None:
    """Have the supervisor close the storages, and start and stop the others, by name."""
    supervisor.add("storage", _storages_at_work({storage, work}, logger, publish))
    for name, each in others.items():
        supervisor.add(name, Contribution(start=each.start, stop=each.stop))


def _make_storages(options: ServerOptions, parts: Iterable[Part]) -> tuple[Storage, Storage]:
    """The storage, and where messages and runs are kept: there, or in one that ends with the process.

    They have the migrations of memories, whose tables there may be without their tools, and of parts. Those of jobs
    too, which any part may have, and those of the gateway, whose part comes only with HTTP.
    """
    config = options.config
    migrations = (*MIGRATIONS, *JOB_MIGRATIONS, *(each for part in parts for each in part.migrations))
    if config.gateway.enabled:
        migrations += GATEWAY_MIGRATIONS
    unique = dict.fromkeys(migrations)
    storage = make_storage(config.storage, options.clock, unique)
    if _is_durable(options) or config.storage.engine == "memory":
        return storage, storage
    in_memory = msgspec.structs.replace(config.storage, engine="memory")
    return storage, make_storage(in_memory, options.clock, unique)


def _storages_at_work(storages: Set[Storage], logger: Logger, publish: Publish) -> Contribution:
    def trouble() -> str | None:
        return next((reason for each in storages if (reason := each.trouble()) is not None), None)

    def tell(each: Storage, reason: str) -> None:
        logger.error("the storage is in trouble until the server is restarted", {"reason": reason})
        if each.is_shared and reason == "damaged":  # Files that are lost each process sees for itself.
            publish(StorageDamaged())

    def on_change(change: Change) -> None:
        for each in storages if isinstance(change, StorageDamaged) else ():
            if each.is_shared:
                each.note_damage()

    for each in storages:
        each.tell_trouble = partial(tell, each)
    about = "1 when the storage is damaged, or its files are gone: the server has to be restarted."
    gauge = Gauge("dragoman_storage_trouble", about, lambda: float(trouble() is not None))
    return Contribution(trouble=trouble, gauges=(gauge,), on_change=on_change, stop=partial(_close, storages))


async def _close(storages: Iterable[Storage]) -> None:
    with suppress(TimeoutError):  # A disk that hangs must not keep the process.
        await asyncio.wait_for(asyncio.gather(*(each.close() for each in storages)), _LAST_WORDS)


def _catalogue(options: ServerOptions, logger: Logger) -> Catalogue:
    if options.catalogue is not None:  # An empty one is false, and still the one to use.
        return options.catalogue
    config = options.config
    may_change = config.is_dynamic_registration_effective()
    return Catalogue(
        config.tools, logger, config.timeouts, allows_dynamic=may_change, ids=options.ids, tasks=config.tasks.tools
    )


def _register(offered: Iterable[Offered], facilities: Facilities, *, has_health: bool) -> None:
    tools, offers = sorted_out(offered)
    facilities.offers.replace((), offers)
    if has_health:
        facilities.catalogue.register(health_tool(facilities.health), is_builtin=True)
    for tool in tools:
        facilities.catalogue.register(tool)


def _coordinator(options: ServerOptions, agents: Iterable[Agent]) -> Coordinator | None:
    """The coordinator that the server is given, or one for its agents; None if there are none."""
    coordinator, agents = options.agents, tuple(agents)
    if coordinator is None and agents:
        from dragoman.agents.coordinator import Coordinator  # Most servers have no agents, and load nothing of this.

        coordinator = Coordinator()
    for each in agents:
        assert coordinator is not None
        coordinator.register(each)
    return coordinator


def _agent_tools(config: Config, coordinator: Coordinator) -> AgentTools:
    from dragoman.agents.tools import AgentTools

    cleaner, most_bytes = make_cleaner(config.logging), _most_value_bytes(config)
    return AgentTools(coordinator, cleaner, most_bytes, config.tools.max_state_bytes)


def _most_value_bytes(config: Config) -> int:
    """What a tool's result may weigh, where the session adds to it."""
    info = {"name": config.server.name, "version": config.server.version}
    return config.response.max_value_bytes - bytes_added_later(info)


def _agents_part(options: ServerOptions, coordinator: Coordinator, tools: AgentTools) -> Part:
    from dragoman.agents.part import agents_part

    config = options.config
    return agents_part(
        coordinator,
        tools,
        config.tools,
        config.timeouts,
        space=config.storage.space or DEFAULT_SPACE,
        ledger=options.ledger,
    )


def _is_durable(options: ServerOptions) -> bool:
    """Whether messages and runs outlive the process."""
    said, config = options.has_durable_agents, options.config.storage
    return config.engine != "memory" and (config.data_dir is not None if said is None else said)


def _make_scheduler(options: ServerOptions, logger: Logger, storage: Callable[[], Storage]) -> Scheduler:
    def open_stores() -> JobStores:
        port = storage().port
        return JobStores(port(Schedule), port(Registry), port(PurgeClock))

    return Scheduler(open_stores, options.clock, logger, options.ids, random, is_owner=options.is_owner)


def _held_agents(coordinator: Coordinator | None) -> Iterator[tuple[str, bool]]:
    """The agents that this process holds, and whether each of them works."""
    if coordinator is not None:
        for name, worker in coordinator.deliveries.workers.items():
            yield name, not (worker.is_stopped or worker.is_quarantined)


def _tasks_part(options: ServerOptions, at_work: TasksAtWork) -> Part:
    config = options.config
    return tasks_part(
        at_work,
        config.resources,
        config.limits,
        lease_ms=config.aacp.lease_ms,
        retry_seconds=config.aacp.retry_seconds,
        max_payload_bytes=config.tools.max_payload_bytes,
        server_info={"name": config.server.name, "version": config.server.version},
        is_owner=options.is_owner,
        runs_tasks=options.runs_tasks,
        runs=options.runs,
        has_past=options.runs is not None or _is_durable(options),
    )


def _own_parts(
    options: ServerOptions,
    artifacts: Artifacts,
    tracer: Tracer | None,
    meter: ActionMeter,
    coordinator: Coordinator | None = None,
    scheduler: Scheduler | None = None,
) -> Iterator[Part]:
    """The parts of the server itself, in the order in which they start."""
    config = options.config
    agent_tools = None if coordinator is None else _agent_tools(config, coordinator)
    if coordinator is not None and agent_tools is not None:
        yield _agents_part(options, coordinator, agent_tools)
    if config.tools.memory_enabled or options.memory_tools:
        yield memories_part(_most_value_bytes(config), options.memories)
    if config.gateway.enabled:
        from dragoman.adapters.chat_answers import make_writer
        from dragoman.knowledge.part import knowledge_part
        from dragoman.slo.part import slo_part

        writer = make_writer(config.knowledge, os.environ)
        yield slo_part(meter)
        embedders = _make_embedders(config, options.clock)
        yield knowledge_part(config.gateway.public_url or "", _most_value_bytes(config), embedders, writer)
        yield _deliveries_part(config, meter)
    if scheduler is not None and (config.gateway.enabled or coordinator is not None):
        from dragoman.jobs.part import jobs_part

        space = config.storage.space or DEFAULT_SPACE
        yield jobs_part(scheduler, partial(_held_agents, coordinator), space=space)
    if config.is_dynamic_registration_effective():
        yield admin_part(config.tools.admin_policy, None if agent_tools is None else agent_tools.send_message)
    if config.response.dialect == "envelope":  # The only one that leaves something to be continued.
        yield artifacts_part(artifacts, config.response)
    if tracer is not None:
        yield spans_part(tracer)


def _deliveries_part(config: Config, meter: ActionMeter) -> Part:
    from dragoman.gateway.deliveries_part import DeliveryOptions, deliveries_part

    return deliveries_part(
        DeliveryOptions(
            gateway=config.gateway,
            knowledge=config.knowledge,
            make_authenticator=partial(_make_authenticator, config),
            make_bucket=partial(_make_bucket, config),
            most_bytes=_most_action_bytes(config),
            most_answer_bytes=config.response.max_response_bytes,
            meter=meter,
            tenants=frozenset(tenant for caller in config.auth.callers.values() for tenant in caller.tenants),
        )
    )


def _make_bucket(config: Config, clock: Clock) -> ArtifactBucket | None:
    """The bucket that artifacts are kept in; None if the storage keeps them. Raises `ConfigError`."""
    if config.gateway.artifact_store is None:
        return None
    from dragoman.adapters.buckets import find_bucket

    return find_bucket(config.gateway, data_directory(config.storage, os.environ), clock)


def _make_embedders(config: Config, clock: Clock) -> Embedders | None:
    """The embedder of passages; None without one."""
    if config.knowledge.embedder == "none":
        return None
    from dragoman.adapters.embedders import ChosenEmbedders

    return ChosenEmbedders(config.knowledge, data_directory(config.storage, os.environ), os.environ, clock)


def _most_action_bytes(config: Config) -> int:
    """How large a request for an action may be."""
    from dragoman.gateway.service import ENVELOPE_BYTES

    return min(config.tools.max_payload_bytes + ENVELOPE_BYTES, config.limits.max_request_bytes)


def parts_of(config: Config) -> tuple[Part, ...]:
    """The parts that a server with these settings has, for what they hold without a runtime: commands and checks."""
    options = ServerOptions(config=config)
    artifacts = Artifacts(BoundedCache(config.cache, options.clock), random_token)
    own = _tasks_part(options, TasksAtWork()), *_own_parts(options, artifacts, None, ActionMeter())
    return (*own, *installed_parts(config.server.parts))


def _check_names(parts: Iterable[Part]) -> None:
    """Raise `ConfigError` for parts that have the name of another, or of what the server itself has."""
    count = Counter(part.name for part in parts)
    problems = [("server.parts", f"there are two parts called {name!r}") for name in count if count[name] > 1]
    problems += [("server.parts", f"{name!r} is the name of a part of the server") for name in count if name in _TAKEN]
    if problems:
        raise ConfigError(problems)


def _build(part: Part, facilities: Facilities) -> Contribution:
    """Build a part's contribution. Raises `PartFailed`, and the errors that the server words itself."""
    try:
        made = part.build(facilities)
        if not isinstance(made, Contribution):
            raise TypeError(f"its build returns {type(made).__name__}, not a Contribution")
    except (ConfigError, RegistrationError):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise_interrupt(error)
        raise PartFailed(part.name, error) from error
    return made


def _contribute(
    part: Part, config: Config, facilities: Facilities, supervisor: Supervisor, storage: Storage | None = None
) -> Contribution:
    """Have a part contribute what it has: its tools are registered, and the supervisor has the rest.

    The part gets `storage` in place of that of the facilities.
    """
    settings = None if part.settings is None else getattr(config, part.name, None) or part.settings()
    own = {"settings": settings, "storage": storage or facilities.storage}
    contribution = _build(part, msgspec.structs.replace(facilities, **own))
    supervisor.add(part.name, contribution)
    tools, offers = sorted_out(contribution.tools)
    for tool in tools:
        facilities.catalogue.register(tool, is_builtin=True)
    facilities.offers.replace((), offers)
    return contribution


def _compose_calls(
    options: ServerOptions,
    facilities: Facilities,
    slots: Slots,
    pressure: PressureMonitor,
    dialect: Dialect[ToolResult],
    supervisor: Supervisor,
    shared: Shared,
    lifespan: Lifespan | None,
) -> Calls:
    """A pipeline for each kind of work, and what runs calls through them."""
    config, clock, logger = options.config, facilities.clock, facilities.logger
    under_way: dict[Call, Pipeline] = {}
    deadlines = Deadlines(under_way, clock, logger)
    threads = Threads()
    patience = Patience(config.timeouts.input_ms, deadlines, clock)
    seal = Seal(config.security.state_key, config.server.name)
    results = Results(facilities.cache, facilities.publish, facilities.max_value_bytes)
    supervisor.add("results", Contribution(on_change=results.on_change))
    common = Common(
        run=RunHandler(threads, logger, patience, lifespan).run,
        logger=logger,
        clock=clock,
        admission=Admission(),
        catalogue=facilities.catalogue,
        guards=Guards(config.guards, config.limits, pressure),
        states=States(seal, clock, logger, shared.get_claims, patience.limit),
        patience=patience,
        waiting=Waiting(Quota(config.resources.max_waiting_per_caller or MOST_WAITING // 2)),
        deadlines=deadlines,
        results=results,
        under_way=under_way,
        observers=[observer for each in supervisor for observer in each.observers],
        around=tuple(stage for each in supervisor for stage in each.around),
        stages=(*(stage for each in supervisor for stage in each.stages), *options.stages),
    )
    policy = Policy(
        find=FindTool(facilities.catalogue),
        limits=config.limits,
        tools=config.tools,
        rates=Rates(config.limits),
        shares=Shares(slots, config.resources, config.limits),
        repeats=next((each.repeats for each in supervisor if each.repeats is not None), None),
    )
    tools = build_pipeline(policy, common)
    offers = build_pipeline(replace(policy, find=FindOffer(), repeats=None), common)
    special = {
        name: build_pipeline(_own_policy(policy, each, clock, shared), common)
        for contribution in supervisor
        for each in contribution.pipelines
        for name in each.tools
    }
    runner = Runner(tools, under_way, deadlines, threads, slots.lag, logger, facilities.on_submit, special)
    intake = Intake(runner, facilities.ids, dialect, clock)
    return Calls(common, policy, tools.stages, runner, intake, Intake(runner, facilities.ids, dialect, clock, offers))


_SHAPELESS = LimitsConfig(max_array_size=None, max_string_length=None, max_object_depth=None, max_object_members=None)


def _own_policy(policy: Policy, own: OwnPipeline, clock: Clock, shared: Shared) -> Policy:
    """The policy for some tools: with slots of their own, for all processes together, and no limits but that of the
    payload."""
    tools, payload_setting = policy.tools, policy.payload_setting
    if own.max_payload_bytes is not None:
        tools, payload_setting = msgspec.structs.replace(tools, max_payload_bytes=own.max_payload_bytes), None
    resources = ResourcesConfig(max_concurrent_executions=own.max_concurrent)
    slots = Slots(resources, tools, clock, own.max_concurrent_setting)
    return replace(
        policy,
        limits=_SHAPELESS,
        tools=tools,
        payload_setting=payload_setting,
        shares=Shares(slots, ResourcesConfig(), _SHAPELESS, own.holder_of),
        common_slots=(own.tools[0], shared.take_slot),
        stages=own.stages,
        repeats=own.repeats,
    )


def _open_pipeline(runtime: Runtime, most: int, event: str) -> tuple[Intake, Pipeline]:
    """A pipeline of a part's own: with slots that are waited for, and no limits but that of the payload."""
    calls, clock = runtime.calls, runtime.clock
    slots = Slots(ResourcesConfig(max_concurrent_executions=most), calls.policy.tools, clock, None)
    policy = replace(
        calls.policy,
        find=FindOffer(),
        limits=_SHAPELESS,
        rates=Rates(_SHAPELESS),
        shares=Shares(slots, ResourcesConfig(), _SHAPELESS),
        waits=True,
        event=event,
        repeats=None,
    )
    pipeline = build_pipeline(policy, calls.common)
    return Intake(calls.runner, runtime.ids, runtime.edge.services.dialect, clock, pipeline), pipeline


def _compose_edge(
    config: Config,
    facilities: Facilities,
    calls: Calls,
    identity: Identity,
    dialect: Dialect[ToolResult],
    tasks: TasksAtWork,
) -> Edge:
    """Compose the side that clients connect to."""
    listing = Listing(facilities.catalogue, identity)
    interests = Interests()
    max_bytes = config.response.max_response_bytes - bytes_added_later(identity.server_info)
    requests = KernelRequests(calls.intake, dialect, calls.offers, facilities.offers, interests, max_bytes)
    handlers = requests.handlers(identity.capabilities)
    kernel = SdkKernel(identity, listing, handlers, facilities.offers.may_read, tasks.feed.listen)
    services = Services(
        intake=calls.intake,
        catalogue=facilities.catalogue,
        listing=listing,
        identity=identity,
        dialect=dialect,
        kernel=kernel,
        ids=facilities.ids,
        logger=facilities.logger,
        max_message_bytes=config.limits.max_request_bytes,
        shape=config.limits.shape,
        answer_task=tasks.requests.handle,
    )
    announcer = Announcer(facilities.catalogue, facilities.offers, interests, kernel)
    return Edge(kernel, services, announcer)


def _make_http(
    runtime: Runtime,
    *,
    sse: bool,
    siblings: Siblings | None,
    identify: Identify | None,
    meter: ActionMeter,
    has_spans: bool,
) -> HttpApp:
    """A runtime as an ASGI application, with the parts that only HTTP has."""
    from dragoman.access.metadata import resource_metadata
    from dragoman.edge.http.admission import HttpAdmission
    from dragoman.edge.http.app import HttpApp
    from dragoman.edge.http.eras import Eras
    from dragoman.edge.http.origins import OriginCheck
    from dragoman.edge.http.routes import Endpoint, Routes
    from dragoman.edge.http.sse import sse_routes
    from dragoman.edge.http.status import Status, metadata_routes
    from dragoman.edge.sdk.sessions import SdkSessions

    config = runtime.config
    authenticator = _authenticator(runtime, identify)
    sessions = SdkSessions(
        runtime.kernel,
        config.http,
        config.limits.max_request_bytes,
        runtime.ids,
        runtime.logger,
        is_authenticated=authenticator is not None,
        prefix="" if siblings is None else siblings.prefix,
    )
    runtime.edge.announcer.sessions = sessions
    runtime.metrics = _make_metrics(runtime) if config.http.metrics else None
    for part in _http_parts(runtime, siblings, authenticator, meter):
        runtime.observers += _contribute(part, config, runtime.facilities, runtime.supervisor).observers
    services, metadata = runtime.edge.services, resource_metadata(config.auth)
    routes = [*Status(runtime, services, siblings).routes(), *(sse_routes(sessions) if sse else ())]
    routes += [route for each in runtime.supervisor for route in each.routes]
    if metadata is not None:
        routes += metadata_routes(metadata, config.http.path)
    # The name that the operator listens at is the server's own, whoever else's names point here.
    own = {config.http.host} - {"*"}
    origins = OriginCheck((*config.http.allowed_hosts, *own), config.http.allowed_origins)
    admission = HttpAdmission(origins, authenticator, services, siblings, _nearness(config, authenticator))
    return HttpApp(
        runtime,
        admission,
        Eras(runtime, services, sessions, admission),
        Routes(Endpoint(config.http.path, has_sse=sse), routes),
        metrics=runtime.metrics,
        join_trace=join_trace if has_spans else None,
    )


def _nearness(config: Config, authenticator: Authenticator | None) -> Nearness:
    """How requests of the owner are known; there is none where callers are authenticated, or come from elsewhere."""
    from dragoman.edge.http.nearness import Nearness

    if authenticator is not None or config.gateway.public_url is not None:
        return Nearness()

    def find() -> str:
        return find_local_secret(data_directory(config.storage, os.environ))

    return Nearness(find if config.has_local_secret() else None, trusts_all=config.auth.local_owner)


def _http_parts(
    runtime: Runtime, siblings: Siblings | None, authenticator: Authenticator | None, meter: ActionMeter
) -> Iterator[Part]:
    """The parts that a server has only over HTTP, in the order in which they start."""
    config = runtime.config
    if runtime.metrics is not None:
        from dragoman.edge.http.metrics import metrics_part

        yield metrics_part(runtime.metrics, siblings)
    if config.gateway.enabled:
        from dragoman.gateway.part import gateway_part

        yield gateway_part(
            runtime.intake,
            authenticator,
            config.knowledge,
            _most_action_bytes(config),
            config.response.max_response_bytes,
            _make_bucket(config, runtime.clock),
            meter,
            is_durable=config.storage.engine != "memory",
        )
    if config.explorer.enabled:
        from dragoman.explorer.part import explorer_part

        most_bytes = config.response.max_response_bytes
        views = _agent_views(runtime), _task_views(runtime), _action_letter_views(runtime)
        yield explorer_part(runtime, runtime.edge.services, runtime.runner, runtime.stages, most_bytes, *views)
    if config.gateway.enabled:
        from dragoman.knowledge_page.part import knowledge_page_part

        has_answers = config.knowledge.answers_url is not None
        yield knowledge_page_part(runtime.edge.services, config.gateway, has_answers=has_answers)


def _agent_views(runtime: Runtime) -> AgentViews | None:
    """The explorer's view of agents; None in a server without any."""
    if runtime.agents is None:
        return None
    from dragoman.explorer.agents import AgentViews

    return AgentViews(runtime.agents, make_cleaner(runtime.config.logging))


def _action_letter_views(runtime: Runtime) -> ActionLetterViews | None:
    """The explorer's view of requests for actions that failed; None in a server without the gateway."""
    if not runtime.config.gateway.enabled:
        return None
    from dragoman.explorer.action_letters import ActionLetterViews
    from dragoman.gateway.dead_letters import ActionLetters
    from dragoman.gateway.requests import ActionRequests
    from dragoman.messaging.bus import DeadLetters

    facilities = runtime.facilities
    storage = facilities.storage
    letters = ActionLetters(storage.port(DeadLetters), storage.port(ActionRequests), facilities.clock)
    return ActionLetterViews(letters, make_cleaner(runtime.config.logging))


def _task_views(runtime: Runtime) -> TaskViews:
    """The explorer's view of tasks, which shows itself where there are any, or could be."""
    from dragoman.explorer.tasks import TaskViews

    cleaner = make_cleaner(runtime.config.logging)
    return TaskViews(runtime.tasks.requests, runtime.create_task, runtime.catalogue, runtime.clock, cleaner)


def _authenticator(runtime: Runtime, identify: Identify | None) -> Authenticator | None:
    from dragoman.access.authenticator import CustomAuthenticator

    authenticator = _make_authenticator(runtime.config, runtime.clock)
    if identify is None:
        return authenticator
    if authenticator is not None:
        raise ConfigError([("auth", "is set, and so is an authenticator of the application's own; use one")])
    return CustomAuthenticator(identify, runtime.clock)


def _make_authenticator(config: Config, clock: Clock) -> Authenticator | None:
    from dragoman.access.authenticator import make_authenticator
    from dragoman.adapters.web_documents import WebDocuments

    return make_authenticator(config.auth, clock, WebDocuments(), os.environ, config.gateway.tenant_claim)


def _make_metrics(runtime: Runtime) -> Metrics | None:
    """The counters of calls; None without the library that words them."""
    if find_spec("prometheus_client") is None:
        runtime.logger.warn("there are no metrics: prometheus-client is not installed")
        return None

    def levels() -> Levels:
        now = runtime.slots.get_telemetry()
        return Levels(
            in_flight=runtime.runner.under_way,
            slots=now.max_concurrent_executions,
            slots_in_use=now.concurrent_executions,
            lag_seconds=now.event_loop_delay_ms / 1000,
            memory_bytes=now.memory_usage_bytes,
            sessions=0 if runtime.sessions is None else runtime.sessions.count,
            cache=runtime.cache.stats(),
        )

    parts = zip(runtime.supervisor.names, runtime.supervisor, strict=True)
    owned = [(name in _TAKEN, gauge) for name, each in parts for gauge in each.gauges]
    gauges = [gauge for _, gauge in owned]
    count = Counter(gauge.name.removesuffix("_total") for gauge in gauges)
    reserved = {gauge.name.removesuffix("_total") for is_own, gauge in owned if not is_own and _is_reserved(gauge)}
    taken = [name for name in count if count[name] > 1 or name in reserved]
    if taken:
        raise ConfigError([("server.parts", f"the gauge {name} is not the only one of this name") for name in taken])
    return Metrics(runtime.catalogue.get, levels, gauges)


def _is_reserved(gauge: Gauge) -> bool:
    """Whether a gauge has a name of the server's own."""
    return gauge.name.startswith(("dragoman_", "a2a_"))


@asynccontextmanager
async def open_runtime(
    tools: Iterable[Offered] = (), config: Config | Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Runtime]:
    """A running runtime inside this process: `async with dragoman.open(tools) as runtime: await runtime.call(…)`."""
    runtime = create_server(ServerOptions(config=configure(config, **options), tools=tools, **options))
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


def configure(config: Config | Mapping[str, Any] | None, *, parts: Sequence[Part] = (), **_: Any) -> Config:
    """Settings from nested values, with the sections of `parts` and of those that the values name in `server.parts`.

    Raises `ConfigError` with everything that is wrong.
    """
    return make_config(config, lambda names: sections_of((*parts, *installed_parts(names))))


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
    runtime = create_server(ServerOptions(config=configure(config, **options), tools=tools, **options))
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
    from dragoman.edge.http.listening import check_address, open_listening, removed_at_the_end
    from dragoman.edge.http.server import serve

    config = server.config
    http = config.http
    http = msgspec.structs.replace(http, host=host or http.host, port=http.port if port is None else port)
    check_address(http, config.auth)
    listening = open_listening(http)
    with removed_at_the_end(listening):
        return await serve(server.http(), listening, http, config.server.shutdown_timeout_ms / 1000)


def builtin_tools() -> tuple[Tool, ...]:
    """What is served when no tools are named; `health` is always there besides."""
    return (echo_tool(),)

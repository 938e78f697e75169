"""A pipeline for each kind of work: stages around the service that does it, outermost first."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service, Stage
from dragoman.calls.common_slots import TakeCommon
from dragoman.calls.deadlines import Deadlines
from dragoman.calls.guards import Guards
from dragoman.calls.patience import Patience
from dragoman.calls.rates import Rates
from dragoman.calls.repeats import IDEMPOTENCY_KEY, Repeats
from dragoman.calls.results import Results
from dragoman.calls.settings import LimitsConfig
from dragoman.calls.shares import Shares
from dragoman.calls.slots import Slots
from dragoman.calls.stages.admit import Admission, Admit
from dragoman.calls.stages.ask_client import AskClient, Waiting
from dragoman.calls.stages.check_call import CheckCall
from dragoman.calls.stages.check_request import CheckRequest
from dragoman.calls.stages.check_scopes import CheckScopes
from dragoman.calls.stages.enforce_deadline import EnforceDeadline
from dragoman.calls.stages.join_repeated import JoinRepeated
from dragoman.calls.stages.keep_outcome import KeepOutcome
from dragoman.calls.stages.limit_rate import LimitRate
from dragoman.calls.stages.open_state import OpenState
from dragoman.calls.stages.record_completion import Observer, RecordCompletion
from dragoman.calls.stages.reuse_results import ReuseResults
from dragoman.calls.stages.take_common_slot import TakeCommonSlot
from dragoman.calls.stages.take_slot import TakeSlot
from dragoman.calls.stages.validate_arguments import ValidateArguments
from dragoman.calls.states import States
from dragoman.calls.tracing import build_traced
from dragoman.clock import Clock
from dragoman.telemetry.log import Logger
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.settings import ToolsConfig

PASSED_BY = (JoinRepeated, OpenState, AskClient, KeepOutcome, ReuseResults)
"""The stages that do nothing for plain calls, as most are: of plain tools, and neither with a key nor of an action."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How one kind of work is limited, timed and recorded. Kinds that share slots are given the same `Shares`."""

    find: Stage
    """Finds what a call runs, or refuses the call."""
    limits: LimitsConfig
    tools: ToolsConfig
    payload_setting: str | None = "tools.max_payload_bytes"
    """The setting that the limit of the payload is; None if it is none."""
    rates: Rates
    shares: Shares
    """Of the slots that it takes."""
    waits: bool = False
    """Whether a call that finds no free slot waits for one. Otherwise it is refused."""
    timeout_ms: int | None = None
    """The deadline of each call; None: the one of the tool that it runs."""
    event: str = "tool call completed"
    """The message of the record that each call leaves."""
    stages: Sequence[Stage] = ()
    """The stages that only this kind of work has."""
    common_slots: tuple[str, TakeCommon] | None = None
    """The name of the slots that all processes of the server share, as many as `slots` has, and how to take one. None:
    each process has its own."""
    repeats: Repeats | None = None
    """Keeps the outcomes of calls that are repeated, or outlive their client. Without it, keys have no effect."""

    @property
    def slots(self) -> Slots:
        return self.shares.slots


@dataclass(frozen=True, kw_only=True)
class Common:
    """The objects that all pipelines of a runtime share."""

    run: Service
    logger: Logger
    clock: Clock
    admission: Admission
    catalogue: Catalogue
    guards: Guards
    states: States
    patience: Patience
    waiting: Waiting
    deadlines: Deadlines
    results: Results
    under_way: dict[Call, Pipeline]
    observers: list[Observer]
    around: Sequence[Stage] = ()
    """The stages that see every call before anything is checked."""
    stages: Sequence[Stage] = ()
    """The stages of parts and of an embedding application."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The way of a call, as it is built from `stages`."""

    stages: tuple[Stage, ...]
    recorder: RecordCompletion
    service: Service
    traced: Service
    """The same with a look at the clock before each stage; for calls with a `trace` to write to."""


def build_pipeline(policy: Policy, common: Common) -> Pipeline:
    """The pipeline of one kind of work. The order of its stages is the contract of the ten steps."""
    clock, logger, guards, slots = common.clock, common.logger, common.guards, policy.slots
    record = RecordCompletion(
        logger, clock, slots, guards, common.under_way, common.observers, policy.event, policy.timeout_ms
    )
    enforce = EnforceDeadline(common.deadlines, policy.timeout_ms)
    take_slot = TakeSlot(slots, policy.shares, common.patience, policy.waits)
    common_slots: tuple[Stage, ...] = ()
    if policy.common_slots is not None:
        name, take = policy.common_slots
        common_slots = (TakeCommonSlot(name, slots.limit, take, policy.shares, common.patience, clock),)
    # Refuse cheaply before taking a slot, start the clock last.
    stages: tuple[Stage, ...] = (
        record,
        *common.around,
        Admit(common.admission),
        CheckRequest(policy.limits, policy.tools, common.catalogue, guards, policy.payload_setting),
        policy.find,
        CheckScopes(),
        *policy.stages,
        *common.stages,
        *((CheckCall(common.under_way),) if common.stages else ()),
        LimitRate(policy.rates, clock),
        JoinRepeated(policy.repeats, enforce),
        OpenState(common.states, slots),
        take_slot,
        *common_slots,
        ValidateArguments(),
        AskClient(common.states, common.patience, take_slot, common.waiting),
        KeepOutcome(policy.repeats, take_slot),
        enforce,
        ReuseResults(common.results),
    )
    return Pipeline(stages, record, compose(stages, common.run), build_traced(stages, common.run, clock.monotonic))


def compose(stages: Sequence[Stage], service: Service) -> Service:
    """The service that runs each stage around the next, and `service` in the middle.

    Where the first of the stages in `PASSED_BY` stands, one check sends plain calls another way, without those stages.
    """
    fork = next((place for place, stage in enumerate(stages) if isinstance(stage, PASSED_BY)), len(stages))
    inner = stages[fork:]
    plain = _around(service, [stage for stage in inner if not isinstance(stage, PASSED_BY)])
    return _around(_forked(plain, _around(service, inner)), stages[:fork])


def _around(service: Service, stages: Sequence[Stage]) -> Service:
    for stage in reversed(stages):
        service = stage(service)
    return service


def _forked(plain: Service, other: Service) -> Service:
    def proceed(call: Call) -> Awaitable[Any]:
        if call.tool.is_plain and call.kept_as is None and IDEMPOTENCY_KEY not in call.meta:
            return plain(call)
        return other(call)

    return proceed

"""The agents that this process holds, and the ways of messages from the ledger to them and between processes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from dragoman.agents.agent import Agent
from dragoman.agents.awaited import AwaitedOutcomes, stored_outcome
from dragoman.agents.drafts import Drafts
from dragoman.agents.elsewhere import StatesElsewhere
from dragoman.agents.hooks import AgentHooks
from dragoman.agents.ledger import EntryStatus, Ledger, LedgerAdmin, LedgerEntry, NewEntry, Settlement
from dragoman.agents.outgoing import Outgoing
from dragoman.agents.settings import AacpConfig
from dragoman.agents.stored_errors import error_in, structured_in
from dragoman.agents.worker import AgentWorker, Sending
from dragoman.calls.call import Outcome
from dragoman.calls.intake import Intake
from dragoman.calls.origin import Origin
from dragoman.calls.pipeline import Pipeline
from dragoman.calls.stages.take_slot import TakeSlot
from dragoman.changes import LedgerChanged, Publish
from dragoman.clock import Clock, Timer
from dragoman.errors import (
    Conflict,
    ErrorCode,
    InternalError,
    NotFound,
    RequestConflict,
    Stopping,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageUncertain,
)
from dragoman.messaging.retries import Random, RetryPolicy
from dragoman.schemas.schema import ANY_OBJECT
from dragoman.telemetry.log import Logger, exception_facts
from dragoman.tools.catalogue import RegisteredTool
from dragoman.tools.tool import MOST_NAME, Tool, ToolDefinition

_TELL_SECONDS = 0.005


class Deliveries:
    """The workers of the agents that this process holds, and what they share."""

    def __init__(
        self,
        ledger: Ledger,
        admin: LedgerAdmin,
        config: AacpConfig,
        clock: Clock,
        logger: Logger,
        drafts: Drafts,
        hooks: AgentHooks,
        random: Random,
        publish: Publish,
        *,
        max_state_bytes: int,
        max_response_bytes: int,
        timeout_ms: int,
    ) -> None:
        self.ledger, self.admin, self.config, self.clock, self.logger = ledger, admin, config, clock, logger
        self.drafts, self.awaited = drafts, AwaitedOutcomes(clock)
        self.elsewhere = StatesElsewhere(ledger, clock)
        self.max_state_bytes, self.max_response_bytes = max_state_bytes, max_response_bytes
        self.timeout_ms = timeout_ms
        self.policy = RetryPolicy(
            max_attempts=config.max_attempts,
            base_delay_ms=config.base_delay_ms,
            max_delay_ms=config.max_delay_ms,
            backoff_multiplier=config.backoff_multiplier,
        )
        self.origin = Origin(transport="agent")
        self.agents: dict[str, Agent] = {}
        self.workers: dict[str, AgentWorker] = {}
        """The agents that this process holds."""
        self.is_stopping = True
        self.retries = self.dead_letters = self.takeovers = 0
        self.hooks = hooks
        self._publish = publish
        self._telling: Timer | None = None
        self.random = random
        self._tasks: set[asyncio.Task[Any]] = set()
        self._holding: set[str] = set()
        """The agents that are about to be held."""
        self.unsettled = asyncio.Event()
        """Whether `Upkeep` has agents to take over, or anything that could not be done before."""
        self.unsettled.set()
        self._leaving: dict[str, AgentWorker] = {}
        """Workers that were stopped, and whose handler has not ended: nothing may overlap it."""

    # The life of the part.

    async def start(self, intake: Intake, pipeline: Pipeline) -> None:
        """Hold every agent that no other process holds, and go on with what waits for them."""
        self.intake = intake
        (take_slot,) = (stage for stage in pipeline.stages if isinstance(stage, TakeSlot))
        self.outgoing: Sending = Outgoing(self, take_slot)
        self.is_stopping = False
        for agent in tuple(self.agents.values()):
            try:
                await self.hold(agent)
            except (StorageFull, StorageBusy, StorageUncertain) as error:  # That passes, and `Upkeep` tries again.
                self.logger.warn("an agent cannot be held", exception_facts(error, ErrorCode.INTERNAL))

    async def stop(self) -> None:
        """Give the agents back."""
        self.is_stopping = True
        for worker in self.workers.values():
            worker.stop()
        self.workers.clear()
        self.awaited.tell_all(Outcome(error=Stopping()))
        for task in tuple(self._tasks):
            task.cancel()
        await self.ledger.close()

    # Agents.

    def add(self, agent: Agent) -> None:
        """Hold an agent, if nobody else does, and from then on whenever nobody does."""
        self.agents[agent.id] = agent
        if not self.is_stopping:
            self.run(self.hold(agent))

    def remove(self, agent_id: str) -> None:
        """Give an agent back. A handling that is under way ends; what is in the ledger waits."""
        del self.agents[agent_id]
        worker = self.workers.pop(agent_id, None)
        if worker is not None:
            worker.stop()
            self._leaving[agent_id] = worker
            if not worker.is_busy:
                self.rested(worker)

    def rested(self, worker: AgentWorker) -> None:
        """The last handling of a worker that was stopped has ended."""
        if self._leaving.get(worker.agent.id) is worker:
            del self._leaving[worker.agent.id]
            if not self.is_stopping:
                self.run(self._change_over(worker.agent.id))

    async def _change_over(self, agent_id: str) -> None:
        """Go on with an agent whose worker has ended, if it is still known here."""
        if agent_id in self.agents:
            await self.hold(self.agents[agent_id])
        elif agent_id not in self._holding:
            await self.ledger.release([agent_id])

    async def hold(self, agent: Agent) -> None:
        """Become an agent's holder, unless another process is."""
        if any(agent.id in each for each in (self._holding, self._leaving, self.workers)):
            return
        self._holding.add(agent.id)
        try:
            hold = await self.ledger.hold(agent.id)
        except StorageError:
            self.unsettled.set()
            raise
        finally:
            self._holding.discard(agent.id)
        if hold is None or self.is_stopping:
            return
        if agent.id not in self.agents:  # It was removed meanwhile.
            await self.ledger.release([agent.id])
            return
        agent = self.agents[agent.id]
        if hold.has_crashed:
            self.takeovers += 1
            self.logger.warn("an agent was taken over from a process that has ended", {"agentId": agent.id})
        worker = AgentWorker(agent, self._tool_of(agent), self, hold)
        self.workers[agent.id] = worker
        await self._load(worker)

    def _tool_of(self, agent: Agent) -> RegisteredTool:
        name = f"agent/handle {agent.id}"[:MOST_NAME]
        definition = ToolDefinition(name=name, description="", input_schema={"type": "object"}, category="execution")
        return RegisteredTool.of(Tool(definition, _never), ANY_OBJECT, agent.timeout_ms or self.timeout_ms)

    # Messages.

    async def accept(self, entry: NewEntry) -> LedgerEntry:
        """Put a message into the ledger. A request is delivered by `outcome_of`."""
        try:
            accepted = await self.ledger.accept(entry)
        except RequestConflict:
            facts = {"reason": "request_conflict"}
            raise Conflict("The requestId was used before, for another request", facts) from None
        if accepted.kind != "REQUEST":
            self.deliver([accepted])
        if accepted.target not in self.workers:
            self._tell_others()
        return accepted

    async def outcome_of(self, entry: LedgerEntry, timeout_ms: int | None) -> Outcome:
        """Wait for the outcome of an accepted request. It is the same for everybody who waits."""
        if not entry.is_open:
            return await stored_outcome(self.ledger, entry)
        arrival = self.awaited.expect(entry)
        self.deliver([entry])
        known = self.agents.get(entry.target)
        own = None if known is None else known.timeout_ms
        waiting = self.awaited.wait(entry, arrival, timeout_ms or own or self.timeout_ms)
        if entry.target in self.workers:
            return await waiting
        self.unsettled.set()  # The agent may come here before the request has ended there.
        look_seldom = self.ledger.look_often()
        try:
            return await waiting
        finally:
            look_seldom()

    def check(self, target: str) -> None:
        """Raise `NotFound` for an unknown agent, and `Stopping` while nothing is taken."""
        if target not in self.agents:
            raise NotFound(f"Unknown agent: {target[:200]}", {"reason": "unknown_agent"})
        if self.is_stopping:
            raise Stopping

    def deliver(self, entries: Iterable[LedgerEntry]) -> None:
        """Hand messages of the ledger to the agents that are here. Responses are for those who wait for them."""
        behind: dict[str, AgentWorker] = {}
        for entry in entries:
            worker = None if entry.kind == "RESPONSE" else self.workers.get(entry.target)
            if worker is not None and entry.target not in behind and not worker.offer(entry):
                behind[entry.target] = worker
        for worker in behind.values():
            self.load_later(worker)

    # What workers need.

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside what is under way; its errors are logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.logger.error("work for an agent failed", exception_facts(error, InternalError.code))

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call a hook of the application."""
        self.hooks.call(hook, self.logger, self.run, *arguments)

    def tell_ended(self, entry: LedgerEntry, settlement: Settlement) -> None:
        """Tell whoever waits for a message what became of it, which is in the ledger by now."""
        if entry.kind == "REQUEST" and not self.awaited.has(entry.number):
            self._tell_others()
        if settlement.status is EntryStatus.COMPLETED:
            outcome = Outcome()
            if self.awaited.has(entry.number):
                answers = [each.payload for each in settlement.sends if each.kind == "RESPONSE"]
                outcome.value = msgspec.json.decode(answers[0]) if answers else None
            self.tell("on_message_completed", entry.message_id)
        else:
            self.dead_letters += settlement.status is EntryStatus.DEAD
            outcome = Outcome(error=error_in(settlement.error))
            has_failed = settlement.status is not EntryStatus.UNKNOWN  # AACP: what is unknown has not failed.
            if has_failed and self.hooks.on_message_failed is not None and settlement.error is not None:
                told = structured_in(settlement.error)
                self.tell("on_message_failed", entry.message_id, told)
        self.awaited.tell(entry.number, outcome)

    def _tell_others(self) -> None:
        """Wake the other processes of the server, which look at the ledger by themselves only now and then."""
        if self._telling is None:  # Once for all that happens until then.
            self._telling = self.clock.call_later(_TELL_SECONDS, self._tell_now)

    def _tell_now(self) -> None:
        self._telling = None
        self._publish(LedgerChanged())

    def load_later(self, worker: AgentWorker) -> None:
        """Read more of what waits for an agent."""
        self.run(self._load(worker))

    async def _load(self, worker: AgentWorker) -> None:
        after, at_once = 0, worker.mailbox.size + 1
        while self.workers.get(worker.agent.id) is worker:
            try:
                entries = await self.ledger.waiting(worker.agent.id, after, at_once)
            except StorageError as error:
                worker.has_more = True
                self.unsettled.set()  # `Upkeep` tries again.
                self.logger.warn("the ledger cannot be read", exception_facts(error, ErrorCode.INTERNAL))
                return
            # Those that are known may all be under way to the ledger, and more behind them.
            if not worker.load(entries) or worker.has_more or len(entries) < at_once:
                return
            after = entries[-1].number

    def lost(self, worker: AgentWorker) -> None:
        """An agent has another holder by now, or what it built on was not stored: begin again with what is stored."""
        if self.workers.get(worker.agent.id) is worker:
            del self.workers[worker.agent.id]
            self._leaving[worker.agent.id] = worker
            self.unsettled.set()
            self.logger.warn("an agent was taken over by another process", {"agentId": worker.agent.id})
        worker.stop()


async def _never(arguments: dict[str, Any], context: Any) -> None:
    """In place of a worker's own handler."""

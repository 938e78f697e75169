"""Runs one agent: a message at a time, each as a call, with its effects stored before anybody learns of them.

1. The next handler starts when the last one has really ended, not when its call was answered.
2. It starts before the last one's effects are stored. If they are refused, everything that was built on them is undone.
3. A storage that fails is tried again, in order, until it works or the agent has another holder: nothing is lost.
4. A handler that fails leaves the state as it was. An exception that is no `ToolError` also makes a new instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from dragoman.agents.agent import Agent, AgentFunction
from dragoman.agents.awaited import AwaitedOutcomes
from dragoman.agents.context import AgentContext
from dragoman.agents.delivery import Delivery, delivery_of
from dragoman.agents.drafts import Drafts
from dragoman.agents.hooks import AgentHooks
from dragoman.agents.ledger import EntryStatus, Hold, Ledger, LedgerEntry, Settlement
from dragoman.agents.mailbox import Mailbox
from dragoman.agents.settings import AacpConfig
from dragoman.agents.settling import Settling, taken_over
from dragoman.agents.state import AgentState
from dragoman.agents.stored_errors import stored_error
from dragoman.agents.verdicts import HandlingVerdict, after_error, before_handling, retried
from dragoman.calls.call import Call, Outcome
from dragoman.calls.intake import Intake
from dragoman.calls.interrupts import is_interrupt
from dragoman.calls.origin import Origin
from dragoman.clock import Clock, Timer
from dragoman.errors import (
    Aborted,
    InternalError,
    InternalFailure,
    LeaseLost,
    ProtocolError,
    ResourceExhausted,
    ResultTooLarge,
    Stopping,
    StorageUncertain,
    ToolError,
)
from dragoman.messaging.retries import Random, RetryPolicy, backoff_ms
from dragoman.parts.restarts import RestartLimit, delay_before_restart
from dragoman.telemetry.causes import cause_of, causes_in, with_causes
from dragoman.telemetry.log import Logger, exception_facts
from dragoman.tools.catalogue import RegisteredTool
from dragoman.tools.context import ToolContext

_encode = msgspec.json.Encoder().encode
_MOST_IN_A_TURN = 32
"""Handlings that end at once may follow each other within a turn of the event loop, and others must not wait long."""


class Sending(Protocol):
    """How handlers send."""

    def send(self, agent_id: str, delivery: Delivery, target: str, payload: Any, kind: str) -> str: ...
    async def request(
        self, agent_id: str, delivery: Delivery, target: str, payload: Any, kind: str, timeout_ms: int | None
    ) -> Any: ...
    def ended(self, delivery: Delivery) -> None: ...


class Host(Protocol):
    """The facilities that a worker needs."""

    ledger: Ledger
    config: AacpConfig
    clock: Clock
    logger: Logger
    policy: RetryPolicy
    random: Random
    drafts: Drafts
    awaited: AwaitedOutcomes
    intake: Intake
    outgoing: Sending
    origin: Origin
    hooks: AgentHooks
    max_state_bytes: int
    max_response_bytes: int
    is_stopping: bool
    retries: int

    def run(self, work: Coroutine[Any, Any, Any]) -> None: ...
    def tell(self, hook: str, *arguments: Any) -> None: ...
    def tell_ended(self, entry: LedgerEntry, settlement: Settlement) -> None: ...
    def load_later(self, worker: AgentWorker) -> None: ...
    def deliver(self, entries: Iterable[LedgerEntry]) -> None: ...
    def lost(self, worker: AgentWorker) -> None: ...
    def rested(self, worker: AgentWorker) -> None: ...


class AgentWorker:
    """One agent in the process that holds it."""

    def __init__(self, agent: Agent, tool: RegisteredTool, host: Host, hold: Hold) -> None:
        self.agent = agent
        self.hold = hold
        self.state = AgentState(hold.state, host.max_state_bytes)
        self.mailbox: Mailbox[Delivery] = Mailbox(host.config.mailbox_size)
        self.running: Delivery | None = None
        self.is_stopped = False
        """It failed too often, or belongs to another process by now."""
        self.has_more = False
        """Whether the ledger has messages for it that are not in the mailbox."""
        self.is_quarantined = False
        """Whether a handler goes on after its deadline. Nothing else is begun until it ends."""
        self.restarts = 0
        self._host = host
        self._tool = msgspec.structs.replace(tool, handler=self._handle, wants_context=False)
        self._handle_message: AgentFunction | None = None
        self._failures: list[float] = []
        self._is_restarting = False
        self._timers: dict[str, Timer] = {}
        self._is_starting = False
        self._settling = Settling(host, hold)

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs, or what one did is being stored."""
        return self.running is not None or self._settling.is_busy

    # Messages in.

    def deliver(self, item: Delivery) -> None:
        """Queue a message behind the others, and handle it when it is its turn."""
        self.mailbox.add(item)
        self.start_next()

    def offer(self, entry: LedgerEntry) -> bool:
        """Queue a message of the ledger; False if it cannot be told whether others of its pair come before it."""
        mailbox = self.mailbox
        if mailbox.is_known(entry.source, entry.seq):
            return True
        if mailbox.is_full:
            self.has_more = True
            return True
        if not mailbox.is_next(entry.source, entry.seq):
            return False
        self._queue(entry)
        self.start_next()
        return True

    def load(self, entries: Sequence[LedgerEntry]) -> bool:
        """Queue messages as they were read from the ledger, in order; False if there was no room for all of them."""
        has_room = True
        for entry in entries:
            if self.mailbox.is_known(entry.source, entry.seq):
                continue
            if self.mailbox.is_full:
                self.has_more, has_room = True, False
                break
            self._queue(entry)
        self.start_next()  # Where tasks start eagerly, this may make room, and ask for more.
        return has_room

    def _queue(self, entry: LedgerEntry) -> None:
        self.mailbox.note(entry.source, entry.seq)
        item = delivery_of(entry)
        self._host.tell("on_message_received", entry)
        is_early = entry.status is EntryStatus.RETRYING and entry.due_at > self._host.drafts.now()
        if is_early and entry.source not in self._timers:
            self._hold_back(item, entry.due_at)
        else:
            self.mailbox.add(item)

    def _hold_back(self, item: Delivery, due_at: float) -> None:
        assert item.source is not None
        source = item.source
        self.mailbox.hold(item)

        def let_go() -> None:
            self._timers.pop(source, None)
            self.mailbox.let_go(source)
            self.start_next()

        # The clock may have been set back since then.
        longest = self._host.config.max_delay_ms / 1000
        delay = min(max(0.0, due_at - self._host.drafts.now()), longest)
        self._timers[source] = self._host.clock.call_later(delay, let_go)

    # One handling.

    def start_next(self) -> None:
        """Begin with the next message, unless one is being handled."""
        if self._is_starting:
            return  # Called by a handling that has ended at once; the loop below goes on.
        self._is_starting = True
        try:
            for _ in range(_MOST_IN_A_TURN):
                if not self._may_start():
                    return
                self._start(self.mailbox.take())
            asyncio.get_running_loop().call_soon(self.start_next)
        finally:
            self._is_starting = False

    def _may_start(self) -> bool:
        if self.running is not None or self.is_stopped or self._is_restarting or self._host.is_stopping:
            return False
        if not self.mailbox.has_ready and self.has_more and not self.mailbox.is_full:
            self.has_more = False
            self._host.load_later(self)
        return self.mailbox.has_ready

    def _start(self, item: Delivery) -> None:
        self.running = item
        message = item.message
        intake = self._host.intake
        arguments = {"type": message.type, "payload": message.payload}
        call = intake.make_local(self._tool.definition.name, arguments, self._host.origin, item.correlation_id)
        call.method, call.tool, item.call = "agent/handle", self._tool, call
        call.reply = partial(self._replied, item)
        intake.submit(call)

    def _replied(self, item: Delivery, call: Call, outcome: Outcome) -> None:
        """The call is answered: by the handler's end, at the deadline, or by a refusal before the handler ran."""
        if not item.has_begun:
            self._refused(item, outcome.error)
            return
        if call.expired and self.running is item:
            self.is_quarantined = True
        if item.reply is not None:
            item.reply(outcome)
        elif call.expired and item.entry is not None and outcome.error is not None:
            self._host.awaited.tell(item.entry.number, outcome)

    def _refused(self, item: Delivery, error: ToolError | ProtocolError | None) -> None:
        """The handler never ran: the server is stopping, or the message is not fit to be handled."""
        self.running = item.call = None
        item.attempts += 1
        self._check_rest()
        if isinstance(error, Stopping) or self._host.is_stopping:
            if item.reply is not None:
                item.reply(Outcome(error=error or Stopping()))
            return
        if item.reply is not None:
            item.reply(Outcome(error=error))
            self.start_next()
        else:
            failed = error if isinstance(error, ToolError) else InternalFailure("The message was not handled")
            self._host.run(self._settle_refused(item, failed))

    async def _settle_refused(self, item: Delivery, error: ToolError) -> None:
        settlement = self._settlement(item, retried(item.attempts, self._host.policy), error)
        settling = self._settling.settle(settlement)
        self._hold_back_if_retried(item, settlement)
        self.start_next()
        try:
            await self._ended(item, settlement, settling)
        finally:
            self._check_rest()

    async def _handle(self, arguments: dict[str, Any], _: ToolContext) -> Any:
        """The handler of the agent's calls."""
        item = self.running
        assert item is not None
        item.has_begun = True
        error: BaseException | None = None
        verdict: HandlingVerdict | None = None
        value: Any = None
        changes: dict[str, bytes | None] = {}
        try:
            if item.entry is not None:
                verdict = await self._begin(item, item.entry)
            if verdict is None:
                value, changes = await self._run(item)
        except LeaseLost as lost:
            self.running = item.call = None
            self._host.lost(self)
            self._check_rest()
            raise taken_over(lost) from None
        except BaseException as raised:  # One that exits ends its message, not the server.
            if isinstance(raised, GeneratorExit) or is_interrupt(raised):
                raise
            error = raised
            verdict = after_error(self.agent, error, item.attempts, self._host.policy)
            self.state.undo()
        status, failure = (EntryStatus.COMPLETED, None) if verdict is None else verdict
        # Now: the next handling begins before this one is stored, and what it changes is not.
        told = self.state.snapshot() if changes and self._host.hooks.on_state_change is not None else None
        ending: Awaitable[Any] | None = None
        if item.entry is not None or changes or (failure is None and item.sends):
            settlement = self._settlement(item, status, failure, changes, error)
            ending = self._ended(item, settlement, self._settling.settle(settlement))
            self._hold_back_if_retried(item, settlement)
        elif self._settling.is_busy:
            ending = self._stored()  # It may have read what is not stored yet.
        self.running, self.is_quarantined = None, False
        if ending is not None:
            self._host.outgoing.ended(item)
        item.call = None  # It leads back here: only the garbage collector would free the two.
        if error is not None and not isinstance(error, ToolError | Aborted | asyncio.CancelledError):
            self._restart(error)
        else:
            self.start_next()
        try:
            if ending is not None:
                await ending
        finally:
            self._check_rest()
        if told is not None:
            self._host.tell("on_state_change", self.agent.id, told)
        if error is not None:
            raise error
        if failure is not None:
            raise failure
        return value

    async def _begin(self, item: Delivery, entry: LedgerEntry) -> HandlingVerdict | None:
        """Note in the ledger that the handling begins, where that matters; the verdict if it must not begin."""
        now, policy = self._host.drafts.now(), self._host.policy
        verdict = before_handling(self.agent, entry, item.attempts, policy, now)
        if verdict is None:
            if not self.agent.may_repeat:
                await self._settling.begin(entry)
            item.attempts += 1
        return verdict

    async def _run(self, item: Delivery) -> tuple[Any, dict[str, bytes | None]]:
        handle = self._handle_message
        if handle is None:
            handle, start = self.agent.make()
            if start is None:
                self._handle_message = handle
            else:
                await start(self._context(item))
        value = await handle(item.message, self._context(item))
        if item.entry is not None and item.entry.kind == "REQUEST":
            response = _as_json(value, self._host.max_response_bytes)
            item.sends.append(self._host.drafts.response_to(item.entry, response))
        changes = self.state.take_changes()
        self._handle_message = handle  # Not before: what `start` did is undone with a message that fails.
        return value, changes

    def _context(self, item: Delivery) -> AgentContext:
        agent_id, outgoing = self.agent.id, self._host.outgoing
        assert item.call is not None
        return AgentContext(
            agent_id,
            self.state,
            item.call,
            self._host.logger,
            item.caller,
            None if item.entry is None else item.entry.request_id,
            partial(outgoing.send, agent_id, item),
            partial(outgoing.request, agent_id, item),
        )

    # What became of it.

    def _settlement(
        self,
        item: Delivery,
        status: EntryStatus,
        error: ToolError | None,
        changes: dict[str, bytes | None] | None = None,
        cause: BaseException | None = None,
    ) -> Settlement:
        """`cause` is the exception that `error` words, where that is another one."""
        now, entry = self._host.drafts.now(), item.entry
        due_at, message_id = 0.0, None
        if status is EntryStatus.RETRYING:
            due_at = now + self._delay_after(item.attempts)
            message_id = self._host.drafts.message_id()
        return Settlement(
            agent=self.agent.id,
            epoch=self.hold.epoch,
            version=self._settling.version,
            at=now,
            number=None if entry is None else entry.number,
            status=status,
            error=None if error is None else self._stored_error(item, error, cause or error, now),
            attempts=item.attempts,
            due_at=due_at,
            message_id=message_id,
            state=changes or {},
            sends=tuple(item.sends) if error is None else (),
        )

    def _stored_error(self, item: Delivery, error: ToolError, cause: BaseException, now: float) -> bytes:
        earlier = causes_in(None if item.entry is None else item.entry.error)
        stored = stored_error(error, item.correlation_id)
        return with_causes(stored, [*earlier, cause_of(cause, item.attempts, now)])

    def _delay_after(self, attempts: int) -> float:
        """Seconds until a message that has failed so often is tried again."""
        return backoff_ms(self._host.policy, max(0, attempts - 1), self._host.random) / 1000

    async def _ended(self, item: Delivery, settlement: Settlement, storing: Awaitable[list[LedgerEntry]]) -> None:
        """Wait until a settlement is stored, and then tell whoever is concerned."""
        try:
            sent = await storing
        except (LeaseLost, StorageUncertain) as lost:
            self._host.lost(self)
            raise taken_over(lost) from None
        if item.entry is not None and settlement.status is not EntryStatus.RETRYING:
            self._host.tell_ended(item.entry, settlement)
        self._host.deliver(sent)

    async def _stored(self) -> None:
        """Wait until what other handlings did is stored."""
        try:
            await self._settling.wait()
        except LeaseLost as lost:
            raise taken_over(lost) from None

    def _hold_back_if_retried(self, item: Delivery, settlement: Settlement) -> None:
        """Before the next one starts: it may be of the same pair."""
        if item.entry is None or settlement.status is not EntryStatus.RETRYING:
            return
        entry = msgspec.structs.replace(
            item.entry,
            status=EntryStatus.RETRYING,
            attempts=settlement.attempts,
            due_at=settlement.due_at,
            message_id=settlement.message_id or item.entry.message_id,
            error=settlement.error,
        )
        self._host.retries += 1
        again = delivery_of(entry)
        again.attempts = settlement.attempts
        self._hold_back(again, settlement.due_at)

    def _restart(self, error: BaseException) -> None:
        """Make a new instance for the next message, unless it has failed too often."""
        host = self._host
        now = host.clock.monotonic()
        limit = RestartLimit(most=self.agent.max_restarts)
        self._failures = [*self._failures, now][-limit.most - 1 :] if limit.most else [now]
        self._handle_message = None
        delay = delay_before_restart(self._failures, now, limit) if limit.most else None
        facts = {"agentId": self.agent.id, **exception_facts(error, InternalError.code)}
        if delay is None:
            self.is_stopped = True
            host.logger.error("an agent failed too often and is not restarted", facts)
            for item in self.mailbox.clear():
                if item.reply is not None:
                    item.reply(Outcome(error=stopped(self.agent.id)))
            return
        self.restarts += 1
        host.logger.warn("an agent failed and is restarted", {**facts, "delayMs": int(delay * 1000)})
        self._is_restarting = True

        def go_on() -> None:
            self._is_restarting = False
            self.start_next()

        self._timers[""] = host.clock.call_later(delay, go_on)

    def _check_rest(self) -> None:
        if self.is_stopped and not self.is_busy:
            self._host.rested(self)

    def stop(self) -> None:
        """Begin with nothing more. A handling that is under way ends and is stored, if it can be."""
        self.is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        for item in self.mailbox.clear():
            if item.reply is not None:
                item.reply(Outcome(error=Stopping()))


def stopped(agent_id: str) -> ResourceExhausted:
    """The error of a message to an agent that is not restarted."""
    return ResourceExhausted(
        f"The agent {agent_id} failed too often and is stopped", {"reason": "agent_stopped", "retryable": False}
    )


def _as_json(value: Any, most: int) -> bytes:
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        failure = InternalFailure("The agent's response is not JSON", {"reason": "bad_response"})
        failure.__cause__ = error
        raise failure from error
    if len(encoded) > most:
        raise ResultTooLarge(len(encoded), most)
    return encoded

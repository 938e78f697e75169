"""The coordinator: which agents there are, and the ways to send them messages.

1. `send_message` keeps nothing: the message is handled by this process, or not at all, and the result is returned.
2. `send_reliable_message` and `send_request` return once the message is in the ledger, or its response is.
3. An agent lives in one process of those that share a ledger. The others reach it through the ledger, and one of them
   takes over when that process ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dragoman.access.callers import LOCAL, Caller
from dragoman.agents.aacp.envelope import check_ids
from dragoman.agents.agent import Agent, make_agent
from dragoman.agents.deliveries import Deliveries
from dragoman.agents.delivery import Delivery
from dragoman.agents.hooks import AgentHooks
from dragoman.agents.ledger import LedgerEntry, Query
from dragoman.agents.message import AgentMessage
from dragoman.agents.senders import client_source
from dragoman.agents.worker import AgentWorker, stopped
from dragoman.calls.call import Outcome
from dragoman.errors import DuplicateAgent, InvalidArgument, InvalidEnvelope, ResourceExhausted, Stopping


class Coordinator(AgentHooks):
    """Agents, and the messages to them. It is given to a server, which starts and stops it."""

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self.agents: dict[str, Agent] = {}
        self.on_agents_change: Callable[[], None] = _nobody
        """Called when an agent was added or removed."""
        self._attached: Deliveries | None = None
        for each in agents:
            self.register(each)

    def attach(self, deliveries: Deliveries) -> None:
        """Belong to a server, once only."""
        if self._attached is not None:
            raise RuntimeError("a coordinator belongs to one server")
        self._attached = deliveries
        for each in self.agents.values():
            deliveries.add(each)

    @property
    def deliveries(self) -> Deliveries:
        """The deliveries of the server; raises `Stopping` for a coordinator that belongs to no server."""
        if self._attached is None:
            raise Stopping
        return self._attached

    def register_agent(self, agent_id: str, handler: Any, **options: Any) -> None:
        """Add an agent; raises `InvalidAgent`, and `DuplicateAgent` for an id that is taken."""
        self.register(make_agent(agent_id, handler, **options))

    def register(self, agent: Agent) -> None:
        """Add an agent; raises `DuplicateAgent` for an id that is taken."""
        if agent.id in self.agents:
            raise DuplicateAgent(agent.id)
        self.agents[agent.id] = agent
        if self._attached is not None:
            self._attached.add(agent)
        self.on_agents_change()

    def unregister_agent(self, agent_id: str) -> bool:
        """Remove an agent; False if there is none. A handling that is under way ends; what is in the ledger waits."""
        if self.agents.pop(agent_id, None) is None:
            return False
        if self._attached is not None:
            self._attached.remove(agent_id)
        self.on_agents_change()
        return True

    def check_exchange(self, leaving: Iterable[Agent], coming: Iterable[Agent]) -> None:
        """Raise `DuplicateAgent` if `exchange` could not be done."""
        taken = self.agents.keys() - {each.id for each in leaving}
        for each in coming:
            if each.id in taken:
                raise DuplicateAgent(each.id)
            taken = taken | {each.id}

    def exchange(self, leaving: Iterable[Agent], coming: Iterable[Agent]) -> None:
        """Remove agents and add others. One that has the id of another goes on with its state and its messages."""
        told, self.on_agents_change = self.on_agents_change, _nobody  # Once, and not for what only seems to go.
        try:
            for each in leaving:
                self.unregister_agent(each.id)
            for each in coming:
                self.register(each)
        finally:
            self.on_agents_change = told
            told()

    def get_agent_state(self, agent_id: str) -> Mapping[str, Any] | None:
        """The state of an agent; None for an unknown agent.

        In the process that holds the agent it is the live one. Elsewhere it is a copy of what is stored, at most a
        second old, and a `StorageError` is raised if that cannot be read within 0.25 seconds. The event loop stands
        still meanwhile: prefer `read_state`, which waits for the newest.
        """
        host = self._attached
        worker = None if host is None else host.workers.get(agent_id)
        if worker is not None:
            return worker.state
        if agent_id not in self.agents:
            return None
        return {} if host is None or host.is_stopping else host.elsewhere.get(agent_id)

    async def read_state(self, agent_id: str) -> dict[str, Any]:
        """An agent's state as it is stored at this moment, wherever the agent lives."""
        stored = await self.deliveries.ledger.state(agent_id)
        return {key: msgspec.json.decode(value) for key, value in stored.items()}

    async def send_message(
        self,
        target: str,
        message: AgentMessage | Mapping[str, Any],
        *,
        caller: Caller = LOCAL,
        correlation_id: str | None = None,
    ) -> Any:
        """Have an agent handle a message, and return the handler's result. Nothing is kept if the process ends.

        Raises `NotFound` for an unknown agent, `ResourceExhausted` for one whose mailbox is full, and what the handler
        failed with. An agent that another process holds is reached through the ledger.
        """
        if not isinstance(message, AgentMessage):
            message = msgspec.convert(message, AgentMessage)
        deliveries = self.deliveries
        deliveries.check(target)
        worker = deliveries.workers.get(target)
        if worker is None:
            return await self._send_elsewhere(target, message, caller, correlation_id)
        _check_room(worker)
        told: list[Outcome] = []
        arrival: asyncio.Future[None] | None = None

        def reply(outcome: Outcome) -> None:
            told.append(outcome)
            if arrival is not None and not arrival.done():
                arrival.set_result(None)

        worker.deliver(Delivery(message, caller=caller, correlation_id=correlation_id, reply=reply))
        if not told:  # Where tasks start eagerly, it may have been handled by now.
            arrival = asyncio.get_running_loop().create_future()
            await arrival
        return told.pop().unwrap()

    async def _send_elsewhere(
        self, target: str, message: AgentMessage, caller: Caller, correlation_id: str | None
    ) -> Any:
        """As `send_message`, for an agent of another process.

        A message that has not begun within the agent's time never does, and one that has is waited for as long again:
        nothing is handled of which the sender has heard that its time was up.
        """
        _check_ids(message.source_agent_id, None)
        deliveries, drafts = self.deliveries, self.deliveries.drafts
        limit = deliveries.agents[target].timeout_ms or deliveries.timeout_ms
        source = message.source_agent_id or client_source(caller)
        told = message.payload, message.type, source, caller, correlation_id, drafts.message_id()
        made = drafts.make("REQUEST", target, *told, ttl_ms=min(limit, drafts.ttl_ms))
        return (await deliveries.outcome_of(await deliveries.accept(made), 2 * limit)).unwrap()

    async def send_reliable_message(
        self,
        target: str,
        payload: Any,
        *,
        type: str = "message",
        source: str | None = None,
        caller: Caller = LOCAL,
        correlation_id: str | None = None,
    ) -> str:
        """Put a message into the ledger, to be handled exactly once and in order; returns its `messageId`."""
        deliveries = self.deliveries
        deliveries.check(target)
        _check_ids(source, None)
        source = source or client_source(caller)
        made = deliveries.drafts.make("EVENT", target, payload, type, source, caller, correlation_id)
        return (await deliveries.accept(made)).message_id

    async def send_request(
        self,
        target: str,
        payload: Any,
        *,
        type: str = "request",
        request_id: str | None = None,
        timeout_ms: int | None = None,
        source: str | None = None,
        caller: Caller = LOCAL,
        correlation_id: str | None = None,
    ) -> Any:
        """Put a request into the ledger, and wait for its response. The same request id again is the same request.

        Raises what the agent failed with, and `TimedOut` when the response takes longer: the outcome is then unknown
        until `get_status` knows it. Raises `Conflict` for a request id that was used for another request.
        """
        deliveries = self.deliveries
        deliveries.check(target)
        _check_ids(source, request_id)
        drafts, source = deliveries.drafts, source or client_source(caller)
        request_id = request_id or drafts.message_id()
        made = drafts.make("REQUEST", target, payload, type, source, caller, correlation_id, request_id)
        outcome = await deliveries.outcome_of(await deliveries.accept(made), timeout_ms)
        return outcome.unwrap()

    async def redrive(self, number: int) -> LedgerEntry | None:
        """Have a dead letter handled again, or a message whose outcome is unknown; None if the number is of neither.

        It gets a new `messageId`, a new place behind the others of its pair, and a new time to live.
        """
        deliveries, drafts = self.deliveries, self.deliveries.drafts
        now = drafts.now()
        entry = await deliveries.admin.redrive(number, drafts.message_id(), now, now + drafts.ttl_ms / 1000)
        deliveries.deliver(() if entry is None else (entry,))
        return entry

    async def get_status(self, owner: str, request_id: str) -> LedgerEntry | None:
        """A request of this owner; None if the owner has made none with this id."""
        query = Query(owner=owner, request_id=request_id, kinds=("REQUEST",), limit=1)
        found = await self.deliveries.admin.page(query)
        return found[0] if found else None


def _check_ids(source: str | None, request_id: str | None) -> None:
    """Raise `InvalidArgument` for ids that no message can have."""
    try:
        check_ids(source, request_id)
    except InvalidEnvelope as error:
        facts = {"reason": "invalid_envelope", "field": error.field}
        raise InvalidArgument(f"{error.field} {error.problem}", facts) from None


def _check_room(worker: AgentWorker) -> None:
    """Raise `ResourceExhausted` for an agent that takes no more messages in memory."""
    name = worker.agent.id
    if worker.is_stopped:
        raise stopped(name)
    if worker.is_quarantined:
        facts = {"reason": "quarantined", "retryable": True}
        raise ResourceExhausted(f"The agent {name} has not ended its last handling, whose time is up", facts)
    if worker.mailbox.is_full:
        facts = {"reason": "mailbox_full", "limit": worker.mailbox.size, "retryable": True}
        raise ResourceExhausted(f"The mailbox of {name} is full", facts)


def _nobody() -> None:
    """For a coordinator whose agents are of no interest to others."""

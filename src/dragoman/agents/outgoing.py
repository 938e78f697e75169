"""Messages that a handler sends, kept until its handling is stored, and requests that it waits for."""

from __future__ import annotations

from typing import Any, Protocol

from dragoman.agents.delivery import Delivery
from dragoman.agents.drafts import Drafts
from dragoman.agents.ledger import LedgerEntry, NewEntry
from dragoman.calls.call import Outcome
from dragoman.calls.stages.take_slot import TakeSlot
from dragoman.errors import InvalidArgument, NotFound, ResourceExhausted, StorageError, StorageUncertain
from dragoman.tools.storage_errors import tool_error


class Accepting(Protocol):
    """Accepts messages into the ledger."""

    drafts: Drafts

    def check(self, target: str) -> None: ...
    async def accept(self, entry: NewEntry) -> LedgerEntry: ...
    async def outcome_of(self, entry: LedgerEntry, timeout_ms: int | None) -> Outcome: ...


class Outgoing:
    """Handlers give their slots back while they wait, and when they have ended."""

    def __init__(self, accepting: Accepting, take_slot: TakeSlot) -> None:
        self._accepting = accepting
        self._take_slot = take_slot

    def send(self, agent_id: str, delivery: Delivery, target: str, payload: Any, kind: str) -> str:
        """Keep a message until the handling that sends it is stored; returns its `messageId`."""
        self._check(agent_id, target)
        caller, correlation_id = delivery.caller, delivery.correlation_id
        entry = self._accepting.drafts.make("EVENT", target, payload, kind, agent_id, caller, correlation_id)
        delivery.sends.append(entry)
        return entry.message_id

    async def request(
        self, agent_id: str, delivery: Delivery, target: str, payload: Any, kind: str, timeout_ms: int | None
    ) -> Any:
        """Ask another agent on behalf of a handling."""
        self._check(agent_id, target)
        entry, call = delivery.entry, delivery.call
        chain = (*(() if entry is None else entry.chain), agent_id)
        if target in chain:
            raise InvalidArgument(f"The agent {target[:200]} waits for this request itself", {"reason": "cycle"})
        delivery.requests += 1
        drafts = self._accepting.drafts
        request_id = drafts.message_id() if entry is None else drafts.derived_id(entry.number, delivery.requests)
        caller, correlation_id = delivery.caller, delivery.correlation_id
        made = drafts.make("REQUEST", target, payload, kind, agent_id, caller, correlation_id, request_id, chain)
        if call is None:
            raise RuntimeError("the handling has ended")
        self._take_slot.let_go(call)
        try:
            outcome = await self._accepting.outcome_of(await self._accepting.accept(made), timeout_ms)
        except StorageUncertain as error:
            raise tool_error(error) from error
        except StorageError as error:
            facts = {"reason": "storage_failed", "retryable": True}
            raise ResourceExhausted("The request cannot be stored now", facts) from error
        finally:
            await self._take_slot.slots.acquire_slot()
            call.undo.append(self._take_slot.slots.give_back)
        return outcome.unwrap()

    def _check(self, agent_id: str, target: str) -> None:
        """Its error may reach the sender of the message that is being handled, whose own agent is known."""
        try:
            self._accepting.check(target)
        except NotFound:
            unknown = target[:200]
            said = f"The message arrived, but its handler, the agent {agent_id}, sends to an unknown agent: {unknown}"
            raise NotFound(said, {"reason": "unknown_agent", "handler": agent_id, "target": unknown}) from None

    def ended(self, delivery: Delivery) -> None:
        """Give the slot of a handler that has ended back: others can run while its effects are stored."""
        if delivery.call is not None:
            self._take_slot.let_go(delivery.call)

"""The `agent/*` tools, and the handler of `agentProxy` tools. Agents that a caller may not reach are unknown to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.agents.coordinator import Coordinator
from dragoman.agents.ledger import OPEN, EntryStatus, LedgerEntry, Query
from dragoman.agents.message import AgentMessage
from dragoman.agents.senders import client_source, may_reach
from dragoman.clock import iso_milliseconds
from dragoman.errors import InvalidArgument, NotFound, ResourceExhausted
from dragoman.replies.encoding import clean_message
from dragoman.telemetry.causes import without_causes
from dragoman.telemetry.clean import Cleaner
from dragoman.tools.context import ToolContext
from dragoman.tools.pages import ANSWER_FRAME, weight_in_answer
from dragoman.tools.storage_errors import words_storage_errors
from dragoman.tools.tool import Handler, Hints, Tool, ToolDefinition

MOST_PENDING = 100
MOST_LIST_BYTES = 65_536
"""Of an answer that is a list."""
MOST_ERROR_BYTES = 4_096
"""Of the error of a message in a list, or beside what had to be left out."""

_ID = {"type": "string", "minLength": 1, "maxLength": 128}
_MESSAGE = {
    "type": "object",
    "properties": {"type": {"type": "string", "minLength": 1, "maxLength": 128}, "payload": {}},
    "required": ["type", "payload"],
    "additionalProperties": False,
}
_UUID = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
_REQUEST_ID = {"type": "string", "pattern": _UUID, "description": "A UUID of version 4."}

OUTCOMES: Mapping[EntryStatus, str] = {
    EntryStatus.COMPLETED: "COMPLETED",
    EntryStatus.FAILED: "FAILED",
    EntryStatus.DEAD: "FAILED",
    EntryStatus.EXPIRED: "FAILED",
}
"""AACP's outcome for each status; every other is UNKNOWN."""


def outcome_of(entry: LedgerEntry) -> str:
    """AACP's outcome of a message."""
    return OUTCOMES.get(entry.status, "UNKNOWN")


class AgentTools:
    """The handlers. No result weighs more than `most_bytes`, no state more than `max_state_bytes`.

    What an agent answers is not shortened: if it weighs more, the call fails, or the dialect shortens it.
    """

    def __init__(self, coordinator: Coordinator, cleaner: Cleaner, most_bytes: int, max_state_bytes: int) -> None:
        self._coordinator = coordinator
        self._cleaner = cleaner
        self._most_bytes = most_bytes
        self._max_state_bytes = min(max_state_bytes, most_bytes)

    def tools(self) -> tuple[Tool, ...]:
        """Every tool."""
        to_agent = {"targetAgentId": _ID, "message": _MESSAGE}
        return (
            _tool(
                "agent/sendMessage",
                "Has an agent handle a message, and answers with the agent's response.",
                {"properties": to_agent, "required": ["targetAgentId", "message"]},
                self.send_message,
                category="execution",
            ),
            _tool(
                "agent/sendRequest",
                "Hands an agent a request that survives a restart of the server, and answers with its response. "
                "A request with the `requestId` of an earlier one is the earlier one, and is not handled again.",
                {"properties": {**to_agent, "requestId": _REQUEST_ID}, "required": ["targetAgentId", "message"]},
                self.send_request,
                category="execution",
                is_idempotent=True,
            ),
            _tool(
                "agent/list",
                "Lists the ids of the agents.",
                {"properties": {}},
                self.list_agents,
                category="query",
                is_read_only=True,
            ),
            _tool(
                "agent/getState",
                "Reads the state of an agent. Values under sensitive keys are replaced.",
                {"properties": {"agentId": _ID}, "required": ["agentId"]},
                self.get_state,
                category="query",
                is_read_only=True,
            ),
            _tool(
                "agent/getStatus",
                "Reports what became of a request that you made with agent/sendRequest.",
                {"properties": {"requestId": _REQUEST_ID}, "required": ["requestId"]},
                self.get_status,
                category="query",
                is_read_only=True,
            ),
            _tool(
                "agent/listPending",
                "Lists your requests that have no outcome yet, the oldest first. One whose outcome stays `unknown` is "
                "handled again only if an operator says so.",
                {"properties": {}},
                self.list_pending,
                category="query",
                is_read_only=True,
            ),
        )

    async def send_message(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        target, told = arguments["targetAgentId"], arguments["message"]
        self._check(target, context)
        if not isinstance(told.get("type"), str) or not told["type"]:
            raise InvalidArgument("message.type must be a string", {"reason": "message_type"})
        message = AgentMessage(told["type"], told.get("payload"), client_source(context.caller))
        self._coordinator.deliveries.drafts.encode(message.type, message.payload)  # The tool may be given more.
        return await self._coordinator.send_message(
            target, message, caller=context.caller, correlation_id=context.correlation_id
        )

    async def send_request(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        target, told = arguments["targetAgentId"], arguments["message"]
        self._check(target, context)
        request_id = arguments.get("requestId")
        return await self._coordinator.send_request(
            target,
            told["payload"],
            type=told["type"],
            request_id=None if request_id is None else request_id.lower(),
            caller=context.caller,
            correlation_id=context.correlation_id,
        )

    async def list_agents(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        known = sorted(each for each in self._coordinator.agents if may_reach(context.caller, each))
        return _within(self._most_bytes, "agentIds", known)

    async def get_state(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        agent_id = arguments["agentId"]
        self._check(agent_id, context)
        state = self._cleaner.redact(await self._coordinator.read_state(agent_id))
        weight = len(msgspec.json.encode(state))
        if weight > self._max_state_bytes:
            facts = {"reason": "state_too_large", "limit": self._max_state_bytes, "actual": weight, "retryable": False}
            raise ResourceExhausted(f"The state of {agent_id} weighs {weight} bytes", facts)
        found: dict[str, Any] = state
        return found

    async def get_status(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        owner = client_source(context.caller)
        entry = await self._coordinator.get_status(owner, arguments["requestId"].lower())
        if entry is None:
            raise NotFound("Unknown request", {"reason": "unknown_request"})
        status = described(entry)
        if entry.status is EntryStatus.COMPLETED:
            result = await self._coordinator.deliveries.ledger.result(owner, entry.request_id or "")
            if result is not None:
                status["response"] = msgspec.json.decode(result)
        if weight_in_answer(status) + ANSWER_FRAME > self._most_bytes:
            status.pop("response", None)
            status = {**_brief(status), "truncated": True}
        return status

    async def list_pending(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        statuses, owner = (*OPEN, EntryStatus.UNKNOWN), client_source(context.caller)
        query = Query(owner=owner, statuses=statuses, kinds=("REQUEST",), limit=MOST_PENDING + 1)
        found = await self._coordinator.deliveries.admin.page(query)
        listed = (_brief(described(each)) for each in found[:MOST_PENDING])
        answer = _within(self._most_bytes, "requests", listed)
        answer["truncated"] |= len(found) > MOST_PENDING
        return answer

    def _check(self, agent_id: str, context: ToolContext) -> None:
        if agent_id not in self._coordinator.agents or not may_reach(context.caller, agent_id):
            raise NotFound(f"Unknown agent: {agent_id[:200]}", {"reason": "unknown_agent"})


def described(entry: LedgerEntry) -> dict[str, Any]:
    """A message as people and clients see it, without its payload."""
    facts: dict[str, Any] = {
        "messageId": entry.message_id,
        "requestId": entry.request_id,
        "messageType": entry.kind,
        "sourceAgentId": entry.source,
        "targetAgentId": entry.target,
        "seq": entry.seq,
        "status": entry.status.value,
        "outcome": outcome_of(entry),
        "attempts": entry.attempts,
        "acceptedAt": iso(entry.accepted_at),
        "expiresAt": iso(entry.expires_at),
        "nextAttemptAt": iso(entry.due_at) if entry.status is EntryStatus.RETRYING else None,
        "endedAt": None if entry.ended_at is None else iso(entry.ended_at),
        "correlationId": entry.correlation_id,
        "completionRef": entry.completion_ref,
        "error": None if entry.error is None else without_causes(msgspec.json.decode(entry.error)),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _brief(described: dict[str, Any]) -> dict[str, Any]:
    """The same with no more of its error than a list has room for."""
    error = described.get("error")
    if error is None or len(msgspec.json.encode(error)) <= MOST_ERROR_BYTES:
        return described
    return {**described, "error": {"code": error["code"], "message": clean_message(error["message"], 1000)}}


def iso(seconds: float) -> str:
    """Seconds of the epoch as text."""
    return iso_milliseconds(datetime.fromtimestamp(seconds, UTC))


def _within(most_bytes: int, name: str, items: Iterable[Any]) -> dict[str, Any]:
    """As many of the items, from the first on, as fit into an answer, and weigh no more than a list may."""
    kept: list[Any] = []
    weight, weight_of_list, truncated = ANSWER_FRAME, len(msgspec.json.encode({name: [], "truncated": False})), False
    for item in items:
        weight += weight_in_answer(item) + 4
        weight_of_list += len(msgspec.json.encode(item)) + 1
        if weight > most_bytes or weight_of_list > MOST_LIST_BYTES:
            truncated = True
            break
        kept.append(item)
    return {name: kept, "truncated": truncated}


def _tool(
    name: str,
    description: str,
    schema: dict[str, Any],
    handler: Callable[..., Any],
    *,
    category: str,
    is_read_only: bool = False,
    is_idempotent: bool = False,
) -> Tool:
    hints = Hints(read_only=is_read_only, destructive=False, idempotent=is_idempotent or is_read_only, open_world=False)
    definition = ToolDefinition(
        name=name,
        description=description,
        input_schema={"type": "object", **schema, "additionalProperties": False},
        category=category,
        hints=hints,
    )
    worded: Handler = words_storage_errors(handler)
    return Tool(definition, worded)

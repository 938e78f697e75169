"""The explorer's view of agents, of the messages of a request, and of dead letters to redrive.

1. A caller that had to authenticate sees its own messages, and those that were sent on its behalf, as far as its scopes
   name both agents. Another's message is as unknown as one that does not exist. An operator sees all messages, and the
   exceptions of their attempts.
2. Lists have pages of bounded length, and payloads, redacted as the log is, are cut. All of it is text for the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.access.callers import Caller, is_operator
from dragoman.agents.agent import Agent, is_agent_id
from dragoman.agents.coordinator import Coordinator
from dragoman.agents.ledger import AgentQueue, EntryStatus, LedgerEntry, Query
from dragoman.agents.senders import as_caller, client_source, may_reach
from dragoman.agents.tools import described
from dragoman.errors import ProtocolError, StorageError, ToolError
from dragoman.explorer.responses import error_response, json_response, unusable
from dragoman.parts.route import HttpRequest, HttpResponse
from dragoman.protocol.jsonrpc import decode_object
from dragoman.replies.encoding import clean_details, clean_message
from dragoman.telemetry.causes import causes_in, described_causes
from dragoman.telemetry.clean import Cleaner

MOST_AGENTS = 100
MOST_COUNTED = 10_000
"""How many waiting messages of an agent are counted."""
MOST_MESSAGES = 50
MOST_READ = 4 * MOST_MESSAGES
"""How many messages are read for a page, where a caller sees only some of them."""
MOST_IN_TIMELINE = 100
WINDOW = (2_000, 10_000)
"""How far before and after a message the others of its timeline are looked for, in messages of the whole ledger."""
LONGEST_PAYLOAD = 4_000
"""Characters."""
LARGEST_PAYLOAD = 65_536
"""Bytes. A larger one is not decoded, so that it cannot be redacted, and is not shown."""
MOST_DETAILS = 4_096
PARKED = (EntryStatus.DEAD, EntryStatus.UNKNOWN)
_MOST_DIGITS = 15
_HIGHEST = int("9" * _MOST_DIGITS)


class AgentViews:
    """Answers below `agents`, `messages`, `dead` and `redrive`."""

    def __init__(self, coordinator: Coordinator, cleaner: Cleaner) -> None:
        self._coordinator = coordinator
        self._cleaner = cleaner

    def has_agents(self, caller: Caller) -> bool:
        """Whether there is anything to show."""
        return any(may_reach(caller, each) for each in self._coordinator.agents)

    async def look_up(self, kind: str, rest: str, request: HttpRequest) -> HttpResponse | None:
        """The answer to a GET; None for an address that is none of these."""
        asked = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
        given = {name: values[0] for name, values in asked.items()}
        is_whole = request.path.endswith(f"/{kind}")
        try:
            match kind:
                case "agents" if is_whole:
                    return json_response(await self._agents(request.caller, given.get("after", "")))
                case "messages" if is_whole:
                    return await self._messages(request, given)
                case "messages":
                    return await self._message(request, _number_in(rest))
                case "dead" if is_whole:
                    return await self._dead(request, _number_in(given.get("after")) or 0)
        except StorageError as error:
            return unusable("ledger", error)
        return None

    async def redrive(self, request: HttpRequest) -> HttpResponse:
        """Have the message whose number is in the body handled again."""
        try:
            given = msgspec.convert(decode_object(await request.body()), _Given)
        except (ProtocolError, msgspec.ValidationError):
            return error_response(400, "Input validation failed: the body must be an object with a number")
        try:
            found = await self._coordinator.deliveries.ledger.get([given.number]) if given.is_possible else []
            if not found or not _may_see(request, found[0]):
                return _not_found()
            entry = await self._coordinator.redrive(given.number)
        except StorageError as error:
            return unusable("ledger", error)
        except ToolError as error:
            return error_response(503, clean_message(error.message))
        if entry is None:
            return error_response(409, "It is no dead letter, or not any longer")
        return json_response({"message": self._brief(entry)})

    async def _agents(self, caller: Caller, after: str) -> dict[str, Any]:
        coordinator, deliveries = self._coordinator, self._coordinator.deliveries
        known = sorted(each for each in coordinator.agents if each > after and may_reach(caller, each))
        shown = known[:MOST_AGENTS]
        queues = await deliveries.admin.queues(shown, MOST_COUNTED)
        held: Mapping[str, Any] = {}
        if not deliveries.workers.keys() >= set(shown):
            held = (await deliveries.admin.figures(by_status=False))["agents"]
        agents = [coordinator.agents[each] for each in shown if each in coordinator.agents]
        return {
            "agents": [self._agent(each, queues.get(each.id), held) for each in agents],
            "next": shown[-1] if len(known) > len(shown) else None,
        }

    def _agent(self, agent: Agent, queue: AgentQueue | None, held: Mapping[str, Any]) -> dict[str, Any]:
        deliveries = self._coordinator.deliveries
        worker = deliveries.workers.get(agent.id)
        if worker is None:
            state = "elsewhere" if held.get(agent.id, {}).get("isHeld", False) else "not held"
        elif worker.is_stopped:
            state = "stopped"
        elif worker.is_quarantined:
            state = "quarantined"
        else:
            state = "idle" if worker.running is None else "handling"
        return {
            "id": agent.id,
            "state": state,
            "effects": agent.effects,
            "idempotent": agent.idempotent,
            "waiting": 0 if queue is None else queue.depth,
            "oldestSeconds": None if queue is None else max(0.0, deliveries.drafts.now() - queue.oldest),
            "mailbox": None if worker is None else len(worker.mailbox),
            "mailboxSize": deliveries.config.mailbox_size,
            "restarts": None if worker is None else worker.restarts,
            "maxRestarts": agent.max_restarts,
        }

    async def _messages(self, request: HttpRequest, given: Mapping[str, str]) -> HttpResponse:
        status, target = given.get("status"), given.get("agent")
        if status is not None and status not in tuple(EntryStatus):
            return error_response(400, "Unknown status")
        query = Query(
            owner=None if _sees_all(request) else client_source(request.caller),
            target=target,
            statuses=None if status is None else (EntryStatus(status),),
            kinds=("REQUEST", "EVENT"),
            before=_number_in(given.get("before")),
            newest_first=True,
            limit=MOST_MESSAGES + 1,
        )
        found = await self._coordinator.deliveries.admin.page(query)
        page = found[:MOST_MESSAGES]
        return json_response(
            {
                "messages": [self._brief(each) for each in page if _may_see(request, each)],
                "next": page[-1].number if len(found) > len(page) else None,
            }
        )

    async def _dead(self, request: HttpRequest, after: int) -> HttpResponse:
        """The oldest first. It may take several pages of the ledger until enough are found that a caller may see."""
        shown: list[LedgerEntry] = []
        more: int | None = after
        for _ in range(MOST_READ // MOST_MESSAGES):
            query = Query(statuses=PARKED, after=more or 0, limit=MOST_MESSAGES)
            found = await self._coordinator.deliveries.admin.page(query)
            for entry in found:
                if len(shown) == MOST_MESSAGES:
                    break
                more = entry.number
                if _may_see(request, entry):
                    shown.append(entry)
            else:
                if len(found) == MOST_MESSAGES:
                    continue
                more = None
            break
        messages = [{**self._brief(each), **_causes(each, request.caller)} for each in shown]
        return json_response({"messages": messages, "next": more})

    async def _message(self, request: HttpRequest, number: int | None) -> HttpResponse:
        deliveries = self._coordinator.deliveries
        found = [] if number is None else await deliveries.ledger.get([number])
        if not found or not _may_see(request, found[0]):
            return _not_found()
        entry = found[0]
        query = Query(
            correlation_id=entry.correlation_id,
            after=max(0, entry.number - WINDOW[0] - 1),
            before=entry.number + WINDOW[1],
            limit=MOST_IN_TIMELINE + 1,
        )
        others = await deliveries.admin.page(query)
        timeline = [*_visible(request, others[:MOST_IN_TIMELINE])]
        return json_response(
            {
                "message": self._whole(entry, request.caller),
                "timeline": [self._whole(each, request.caller) for each in timeline],
                "truncated": len(others) > MOST_IN_TIMELINE,
            }
        )

    def _brief(self, entry: LedgerEntry) -> dict[str, Any]:
        """A message in a list."""
        facts = {"number": entry.number, "type": _type_of(entry), **described(entry)}
        if "error" in facts:
            error = facts["error"]
            facts["error"] = {"code": error["code"], "message": clean_message(error["message"])}
        return {**facts, "canBeRedriven": entry.can_be_redriven}

    def _whole(self, entry: LedgerEntry, caller: Caller) -> dict[str, Any]:
        """A message with its payload, as far as it is shown, and for an operator why its attempts failed."""
        facts: dict[str, Any] = {**self._brief(entry), **_causes(entry, caller), "payloadBytes": len(entry.payload)}
        if entry.error is not None:
            details = msgspec.json.decode(entry.error).get("details")
            facts["error"]["details"] = self._cleaner.redact(clean_details(details, MOST_DETAILS))
        if len(entry.payload) > LARGEST_PAYLOAD or entry.completion_ref is not None:
            return facts
        told = msgspec.json.decode(entry.payload)
        value = told if entry.kind == "RESPONSE" else told["payload"]
        text = msgspec.json.encode(self._cleaner.redact(value)).decode()
        return {**facts, "payload": text[:LONGEST_PAYLOAD], "isPayloadCut": len(text) > LONGEST_PAYLOAD}


class _Given(msgspec.Struct):
    number: int

    @property
    def is_possible(self) -> bool:
        return 0 < self.number <= _HIGHEST


class _Typed(msgspec.Struct):
    type: str = ""


def _causes(entry: LedgerEntry, caller: Caller) -> dict[str, Any]:
    """Why its attempts failed, for an operator."""
    causes = causes_in(entry.error) if is_operator(caller) else []
    return {"causes": described_causes(causes)} if causes else {}


def _type_of(entry: LedgerEntry) -> str:
    return "" if entry.kind == "RESPONSE" else msgspec.json.decode(entry.payload, type=_Typed).type


def _sees_all(request: HttpRequest) -> bool:
    return not request.is_authenticated or is_operator(request.caller)


def _may_see(request: HttpRequest, entry: LedgerEntry) -> bool:
    """Whether a message is one that the caller sent, or that was sent on its behalf, between agents it may reach."""
    if _sees_all(request):
        return True
    own = client_source(request.caller)
    is_own = entry.owner == own or (entry.caller is not None and client_source(as_caller(entry.caller)) == own)
    agents = filter(is_agent_id, (entry.source, entry.target))
    return is_own and all(may_reach(request.caller, each) for each in agents)


def _visible(request: HttpRequest, entries: Iterable[LedgerEntry]) -> Iterable[LedgerEntry]:
    """The messages that a caller may see, and the responses to its requests: they do not say on whose behalf."""
    answered: set[tuple[str, str | None]] = set()
    for entry in entries:
        key = (entry.owner, entry.request_id)
        if _may_see(request, entry) or (entry.kind == "RESPONSE" and key in answered):
            yield entry
            if entry.kind == "REQUEST":
                answered.add(key)


def _number_in(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _not_found() -> HttpResponse:
    return error_response(404, "No such message is known, or not any longer")

"""The explorer's view of dead letters of the bus: requests for actions that failed for good, to be read and redriven.

1. On a server that authenticates its callers, an owner of a tenant, whose scopes allow every action, sees the letters
   of that tenant, and an operator sees all. Another tenant's letter is as unknown as one that does not exist.
2. On a server without authentication the owner of the data directory sees all of them, and nobody else sees any: they
   hold documents of tenants who sign their requests.
3. Lists have pages of bounded length. Envelopes, redacted as the log is, are cut. All of it is text for the page.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.access.callers import Caller, is_operator
from dragoman.clock import iso_milliseconds
from dragoman.errors import Conflict, StorageError, ToolError
from dragoman.explorer.responses import error_response, json_response, unusable
from dragoman.gateway.dead_letters import ActionLetters, DeadAction, content_of, described, errors_of
from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.roles import OWNER, canonical
from dragoman.messaging.bus import DeadLetter
from dragoman.parts.route import HttpRequest, HttpResponse
from dragoman.replies.encoding import clean_details, clean_message
from dragoman.telemetry.clean import Cleaner

KIND = "letters"
"""The address below which this answers."""
MOST_LETTERS = 50
MOST_ERRORS = 50
"""Of one letter: the last ones."""
LONGEST_ENVELOPE = 4_000
"""Characters."""
LARGEST_ENVELOPE = 65_536
"""Bytes. A larger one is not decoded, so that it cannot be redacted, and is not shown."""
MOST_DETAILS = 4_096
_MOST_DIGITS = 15


class ActionLetterViews:
    """Answers below `letters`."""

    def __init__(self, letters: ActionLetters, cleaner: Cleaner) -> None:
        self._letters = letters
        self._cleaner = cleaner

    def may_look(self, request: HttpRequest) -> bool:
        """Whether there is anything to show to a caller."""
        tenants = self._tenants(request)
        return tenants is None or bool(tenants)

    async def look_up(self, kind: str, rest: str, request: HttpRequest) -> HttpResponse | None:
        """The answer to a GET; None for an address that is none of these."""
        is_whole = not rest and not request.path.endswith("/")
        if kind != KIND or (is_whole and not self.may_look(request)):
            return None
        try:
            if is_whole:
                asked = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
                return await self._page(request, _number_in(asked.get("after", [""])[0]) or 0)
            letter = await self._find(request, rest)
        except StorageError as error:
            return unusable("bus", error)
        return _not_found() if letter is None else json_response({"letter": self._whole(letter, request.caller)})

    async def post(self, rest: str, request: HttpRequest) -> HttpResponse | None:
        """Redrive the letter whose number is in the address; None for an address that takes no POST."""
        number, _, what = rest.partition("/")
        if what != "redrive":
            return None
        try:
            letter = await self._find(request, number)
            if letter is None:
                return _not_found()
            made = await self._letters.redrive(letter, request.caller.principal)
        except StorageError as error:
            return unusable("bus", error)
        except Conflict as error:
            return error_response(409, clean_message(error.message))
        except ToolError as error:
            return error_response(503, clean_message(error.message))
        if made is None:
            return error_response(409, "It is no dead letter any longer")
        return json_response({"letter": {"number": made.new_number, "requestId": made.request_id}})

    def _tenants(self, request: HttpRequest) -> frozenset[str] | None:
        """Whose letters a caller sees; None: everybody's."""
        caller = request.caller
        if is_operator(caller):
            return None
        if not request.is_authenticated:
            return frozenset()
        is_owner = OWNER in canonical(caller.roles) and all(caller.may_call(each) for each in ACTIONS)
        return caller.tenants if is_owner else frozenset()

    async def _find(self, request: HttpRequest, text: str) -> DeadLetter | None:
        number = _number_in(text)
        return None if number is None else await self._letters.find(number, self._tenants(request))

    async def _page(self, request: HttpRequest, after: int) -> HttpResponse:
        found = await self._letters.page(MOST_LETTERS + 1, after=after, tenants=self._tenants(request))
        page = found[:MOST_LETTERS]
        more = page[-1].number if len(found) > len(page) else None
        return json_response({"letters": [_brief(each) for each in page], "next": more})

    def _whole(self, letter: DeadLetter, caller: Caller) -> dict[str, Any]:
        """A letter with its envelope, as far as it is shown, and its errors."""
        body = letter.message.body
        facts = {
            **_brief(described(letter)),
            "errors": [self._error(each, caller) for each in errors_of(letter)[-MOST_ERRORS:]],
            "bodyBytes": len(body),
        }
        if len(body) > LARGEST_ENVELOPE:
            return facts
        content = content_of(letter.message)
        is_envelope = "envelope" in content
        text = content.get("body", "")
        if is_envelope:
            text = msgspec.json.encode(self._cleaner.redact(content["envelope"])).decode()
        return {
            **facts,
            "isEnvelope": is_envelope,
            "text": text[:LONGEST_ENVELOPE],
            "isCut": len(text) > LONGEST_ENVELOPE,
        }

    def _error(self, error: dict[str, Any], caller: Caller) -> dict[str, Any]:
        details = self._cleaner.redact(clean_details(error.get("details"), MOST_DETAILS))
        facts = {**_short(error), "attempt": error.get("attempt"), "at": error.get("at"), "details": details}
        return {**facts, "cause": error["cause"]} if "cause" in error and is_operator(caller) else facts


def _brief(letter: DeadAction) -> dict[str, Any]:
    """A letter in a list."""
    return {
        "number": letter.number,
        "tenant": letter.tenant,
        "action": letter.action,
        "author": letter.author,
        "requestId": letter.request_id,
        "isAccepted": letter.is_accepted,
        "attempts": letter.attempts,
        "acceptedAt": _iso(letter.published_at),
        "diedAt": _iso(letter.died_at),
        "error": _short(letter.error),
    }


def _short(error: Any) -> dict[str, str]:
    return {"code": str(error.get("code", "")), "message": clean_message(str(error.get("message", "")))}


def _iso(seconds: float) -> str:
    return iso_milliseconds(datetime.fromtimestamp(seconds, UTC))


def _number_in(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _not_found() -> HttpResponse:
    return error_response(404, "No such dead letter is known, or not any longer")

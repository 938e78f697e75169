"""The addresses of the page: itself, and what it fetches.

1. The page is for everybody, as it says nothing about documents. What it fetches is for callers with a role in the
   tenant, and with the scope of the query; whatever others ask for is not there.
2. It asks for nothing elsewhere, and nothing in a document can run in it: a text is shown in a frame of its own, under
   a policy that allows less than the page's.
3. A search is a call of `knowledge.query_knowledge` like any other, as the page's caller. There is no side door.
4. Requests for texts, histories and differences count against the rates of tenant and principal, as requests to the
   gateway do. Nothing is done any longer for a client that has left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from msgspec import Struct

from dragoman.access.callers import LOCAL, Caller, scope_of
from dragoman.calls.call import Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.calls.places import Holder
from dragoman.edge.connection import Services
from dragoman.errors import NotFound, RateLimited, Refused, ResourceExhausted, StorageError
from dragoman.explorer.responses import HARDENED, error_response, json_response, load_page
from dragoman.explorer.runs import answered_or_gone, by_leaving
from dragoman.gateway.rates import RequestRates, retry_after
from dragoman.knowledge.actions import QUERY
from dragoman.knowledge.port import ROOT
from dragoman.knowledge.standing import PASSAGES_KEY, TENANT_KEY, roles_of, tenants_of
from dragoman.knowledge_page.reading import Reading
from dragoman.knowledge_page.rendering import POLICY, STYLE_HASH, anchor_of, visible
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.replies.encoding import clean_message

PREFIX: Final = "/knowledge"
API: Final = f"{PREFIX}/api/"
MOST_FOUND: Final = 20
LONGEST_QUERY: Final = 2048
_HEADING: Final = re.compile(r"#{1,6} +(.+)")
_PLAIN: Final = {"preferred_format": "plain"}
_PAGE: Final = Path(__file__).with_name("page.html")
_FRAME: Final = ((b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", POLICY.encode()))
_NOT_FOUND: Final = error_response(404, "There is no such document")


class PageRequest(Struct, frozen=True):
    """A request for something about the documents of a tenant."""

    request: HttpRequest
    tenant: str
    values: dict[str, list[str]]

    @property
    def id(self) -> str:
        return self.text("id").lower()

    @property
    def holder(self) -> Holder:
        """Whose share of the server it takes: callers of the page are known by tokens, and not by names they chose."""
        return Holder(self.tenant, self.request.caller.principal)

    def text(self, name: str) -> str:
        """The value of a parameter; empty without one."""
        return self.values.get(name, [""])[0]

    def number(self, name: str) -> int | None:
        """None for what is no number of an ordinary size."""
        text = self.text(name)
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


_Answer: TypeAlias = Callable[[PageRequest], Coroutine[Any, Any, HttpResponse]]


class KnowledgePage:
    """Answers the routes of the page."""

    def __init__(self, reading: Reading, services: Services, rates: RequestRates, *, has_answers: bool) -> None:
        """`has_answers`: whether a model writes answers."""
        self._reading = reading
        self._rates = rates
        self._intake = services.intake
        self._has_answers = has_answers
        self._name = services.identity.server_info["name"]
        self._page = HttpResponse(200, *load_page(_PAGE, "img-src data:; frame-src blob:", f" {STYLE_HASH}"))
        self._answers: dict[str, _Answer] = {
            "children": self._children,
            "document": self._document,
            "rendered": self._rendered,
            "history": self._history,
            "difference": self._difference,
            "search": self._search,
        }
        self._counted = {self._rendered, self._history, self._difference}

    def routes(self) -> tuple[Route, ...]:
        """The addresses, for the application."""
        page = f"{PREFIX}/"
        return (
            Route(PREFIX, self._find_page, needs_caller=False, is_open=True),
            Route(page, self._open_page, needs_caller=False, is_open=True, page=page),
            Route(f"{API}start", self._start, is_open=True),
            Route(f"{API}*", self._answer, scope=scope_of(QUERY)),
        )

    async def _find_page(self, request: HttpRequest) -> HttpResponse:
        # Relative: wherever this is mounted, and the fragment stays.
        return HttpResponse(307, b"", ((b"location", f"{PREFIX[1:]}/".encode()), *HARDENED))

    async def _open_page(self, request: HttpRequest) -> HttpResponse:
        return self._page

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        tenants = self._tenants_of(request.caller)
        answer = self._answers.get(request.path.removeprefix(API))
        query = request.scope.get("query_string", b"").decode("latin-1")
        values = parse_qs(query, keep_blank_values=True, max_num_fields=20) if query.count("&") < 20 else {}
        tenant = values.get("tenant", tenants[:1])[0] if len(tenants) == 1 or "tenant" in values else None
        if answer is None or tenant not in tenants:
            return _NOT_FOUND
        try:
            if answer in self._counted and request.caller is not LOCAL:
                await self._rates.take(request.caller.principal, tenant)
            return await answered_or_gone(answer(PageRequest(request, tenant, values)), request.receive)
        except NotFound:
            return _NOT_FOUND
        except RateLimited as error:
            return error_response(429, clean_message(error.message), retry_after(error))
        except StorageError:
            return error_response(503, "The documents cannot be read at the moment")

    def _tenants_of(self, caller: Caller) -> list[str]:
        """Whose documents the caller may read."""
        may_read = caller.may_call(QUERY) and roles_of(caller)
        return sorted(tenants_of(caller)) if may_read else []

    async def _start(self, request: HttpRequest) -> HttpResponse:
        """What the page needs to know of the server, and the tenants that the caller may read."""
        facts = {
            "name": self._name,
            "tenants": self._tenants_of(request.caller),
            "isAuthenticated": request.is_authenticated,
            "hasAnswers": self._has_answers,
        }
        return json_response(facts)

    async def _children(self, asked: PageRequest) -> HttpResponse:
        parent = asked.id or ROOT
        return json_response(await self._reading.children(asked.holder, parent, asked.number("after")))

    async def _document(self, asked: PageRequest) -> HttpResponse:
        return json_response(await self._reading.document(asked.holder, asked.id))

    async def _rendered(self, asked: PageRequest) -> HttpResponse:
        return HttpResponse(200, await self._reading.rendered(asked.holder, asked.id), (*_FRAME, *HARDENED))

    async def _history(self, asked: PageRequest) -> HttpResponse:
        return json_response(await self._reading.history(asked.holder, asked.id, asked.number("before")))

    async def _difference(self, asked: PageRequest) -> HttpResponse:
        numbers = asked.number("from"), asked.number("to")
        return json_response(await self._reading.compare(asked.holder, asked.id, *numbers))

    async def _search(self, asked: PageRequest) -> HttpResponse:
        """The passages for a question, and an answer if one is wanted."""
        words, tags = asked.text("q")[:LONGEST_QUERY], [each for each in asked.values.get("tag", []) if each]
        arguments: dict[str, Any] = {"query": words, "top_k": MOST_FOUND, "context_hints": _PLAIN}
        if tags:
            arguments["filters"] = {"tags": tags}
        call = self._intake.make_local(QUERY, arguments, Origin(asked.request.caller, "page"), None)
        call.meta = {TENANT_KEY: asked.tenant, PASSAGES_KEY: not asked.text("answer")}
        outcome = await self._intake.answer(call, _as_it_is, by_leaving)
        if outcome.error is None:
            return json_response(_shown(outcome.value))
        error = outcome.error
        is_refused = isinstance(error, Refused) and not isinstance(error, ResourceExhausted)
        return error_response(400 if is_refused else 503, clean_message(error.message))


def _as_it_is(call: Call, outcome: Outcome) -> Outcome:
    return outcome


def _shown(data: dict[str, Any]) -> dict[str, Any]:
    """The result of a search for people: where in the document a passage is, and its characters told apart."""
    context = [
        {
            **each,
            "title": visible(each["title"]),
            "path": [*map(visible, each["path"])],
            "heading": [*map(visible, each["heading"])],
            "passage": visible(each["passage"]),
            "anchor": _anchor_in(each["heading"], each["passage"]),
        }
        for each in data["context"]
    ]
    return {**data, "context": context}


def _anchor_in(headings: list[str], passage: str) -> str:
    """Where a passage is: at the heading that it begins with, or else at the last one above it."""
    begins = _HEADING.match(passage)
    return anchor_of(begins[1] if begins else headings[-1]) if begins or headings else ""

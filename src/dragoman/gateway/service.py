"""The addresses of the gateway for actions: ask for one now or later, and read what can be read.

1. Size, signature, rate, nonce, envelope, tenant and principal are checked here.
2. Roles, TTL, idempotency, `seq`, slot, arguments and the action itself are stages of the action's pipeline: the call
   is the same as one that comes over MCP, but for its origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from dragoman.access.callers import LOCAL, scope_of
from dragoman.calls.intake import Intake
from dragoman.clock import Clock
from dragoman.errors import NotFound, StorageUncertain
from dragoman.gateway.accepting import Acceptor
from dragoman.gateway.answers import ActionAnswers
from dragoman.gateway.asking import AskedAction, GivenArguments, as_it_is, asked_for, call_for, given
from dragoman.gateway.envelope import malformed, read_envelope
from dragoman.gateway.exchanges import REFUSALS, Exchanges, GatewayExchange
from dragoman.gateway.keeping import Objects
from dragoman.gateway.openapi import capabilities, openapi
from dragoman.gateway.page import document_page
from dragoman.gateway.replying import ENVELOPE_TYPE, answer_envelope, wants_envelope
from dragoman.gateway.requests import ActionRequests
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge.actions import ACTIONS, QUERY
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.changing import PAGES
from dragoman.knowledge.port import Documents
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.knowledge.standing import check_time
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.parts.streaming import StreamedResponse
from dragoman.replies.contract import word_success
from dragoman.replies.vocabulary import ContractCode
from dragoman.slo.meter import ABORTED
from dragoman.tools.content import encode_json

ENVELOPE_BYTES: Final = 65_536
"""Bytes that an envelope may have beside the arguments."""
_REQUESTS: Final = "/mcp/requests"
_LATER: Final = b"respond-async"


class Gateway:
    """Answers the routes of the gateway."""

    def __init__(
        self,
        exchanges: Exchanges,
        acceptor: Acceptor,
        requests: ActionRequests,
        objects: Objects,
        answers: ActionAnswers,
        documents: Documents,
        aliases: AliasUse,
        intake: Intake,
        settings: GatewayConfig,
        knowledge: KnowledgeConfig,
        clock: Clock,
    ) -> None:
        self._exchanges = exchanges
        self._acceptor = acceptor
        self._requests = requests
        self._objects = objects
        self._answers = answers
        self._documents = documents
        self._aliases = aliases
        self._intake = intake
        self._settings = settings
        self._keep_seconds = knowledge.idempotency_ttl_ms / 1000
        self._clock = clock
        self._capabilities = encode_json(capabilities(knowledge))
        self._openapi = encode_json(openapi(settings.public_url, settings.mime_types, settings.max_artifact_bytes))

    def routes(self) -> tuple[Route, ...]:
        """Everything is authenticated here, and not before: a signed request is good once."""
        here = partial(Route, needs_caller=False, word_refusal=self._exchanges.word_refusal)
        return (
            here("/mcp/actions", self._act, methods=("POST",), is_open=True),  # Each action has a scope of its own.
            here(f"{_REQUESTS}/*", self._show_request, scope=tuple(map(scope_of, ACTIONS))),
            here("/mcp/capabilities", self._show_capabilities, is_open=True),
            here("/mcp/openapi.json", self._show_openapi, is_open=True),
            here("/schemas/mcp/*", self._show_schema, is_open=True),
            here(f"{PAGES}/*", self._show_document, scope=scope_of(QUERY)),
            here("/mcp/*", self._show_nothing, methods=None, is_open=True),
        )

    async def _act(self, request: HttpRequest) -> HttpResponse:
        """Each request is counted once: here, or when it ends if it is accepted."""
        began, meter = self._clock.monotonic(), self._exchanges.meter
        exchange = self._exchanges.open(request)
        answer = self._accept if _prefers_later(request) else self._answer
        try:
            response = await answer(request, exchange, began)
        except BaseException as error:
            exchange.code = ABORTED if isinstance(error, asyncio.CancelledError) else ContractCode.INTERNAL
            raise
        finally:
            if not exchange.is_accepted:
                meter.ended(exchange.requested, exchange.code, (self._clock.monotonic() - began) * 1000)
        return self._enveloped(request, exchange, response)

    def _enveloped(self, request: HttpRequest, exchange: GatewayExchange, response: HttpResponse) -> HttpResponse:
        """The answer as an envelope, if the client wants that and its own envelope was read and is authentic."""
        envelope = exchange.envelope
        if envelope is None or response.status == 401 or not wants_envelope(request.headers.get(b"accept", b"")):
            return response
        headers = ((name, value) for name, value in response.headers if name != b"content-type")
        body = answer_envelope(envelope, response.body, self._clock)
        return HttpResponse(response.status, body, ((b"content-type", ENVELOPE_TYPE.encode()), *headers))

    async def _answer(self, request: HttpRequest, exchange: GatewayExchange, began: float) -> HttpResponse:
        """Carry out a request, and answer it with what came of it."""
        try:
            await self._exchanges.admit(request, exchange)
            asked = await self._asked(request, exchange)

            most = None if asked.envelope.payload.artifact_uri is None else self._settings.max_artifact_bytes
            arguments = await self._arguments(asked)
            call = call_for(asked, arguments, self._intake, self._keep_seconds, max_payload_bytes=most)
            outcome = await self._intake.answer(call, as_it_is)
            if outcome.error is not None:
                return self._exchanges.refused(exchange, outcome.error)
            latency = round((self._clock.monotonic() - began) * 1000)
            body = await self._answers.word(
                asked.envelope.tenant_id, outcome.value, latency, asked.web_base, call.usage
            )
            return HttpResponse(200, body, exchange.headers)
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)

    async def _arguments(self, asked: AskedAction) -> GivenArguments:
        """The arguments of a request. An artifact is read only for callers that may do it. Raises `REFUSALS`."""
        payload, tenant = asked.envelope.payload, asked.envelope.tenant_id
        if payload.artifact_uri is None or payload.artifact_hash is None:
            return given(asked.action, payload.args or {}, strict=self._settings.strict_args)
        asked.check_granted()
        check_time(self._clock, asked.expires_at)
        sha256 = await self._objects.resolve(tenant, payload.artifact_uri, payload.artifact_hash)
        values = await self._objects.arguments(asked.holder, sha256)
        strict = self._settings.strict_args
        return await asyncio.to_thread(given, asked.action, values, strict=strict, in_artifact=True)

    async def _asked(self, request: HttpRequest, exchange: GatewayExchange) -> AskedAction:
        """The action that a request asks for. Raises `REFUSALS`."""
        credential = exchange.credential
        assert credential is not None
        if request.headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise malformed("", "Content-Type must be application/json")
        envelope = read_envelope(exchange.body)
        exchange.envelope, exchange.trace_id = envelope, envelope.trace_id
        keys = [value for name, value in request.scope["headers"] if name.lower() == b"idempotency-key"]
        web_base = f"{self._settings.public_url or ''}{request.scope.get('root_path', '')}"
        exchange.asked = asked = asked_for(envelope, credential, self._clock, keys, web_base)
        await self._exchanges.count_tenant(exchange, envelope.tenant_id)
        await self._aliases.note({*envelope.principal.roles, *asked.caller.roles}, envelope.tenant_id, asked.author)
        return asked

    async def _accept(self, request: HttpRequest, exchange: GatewayExchange, began: float) -> HttpResponse:
        """Accept a request that is carried out later: it is stored when this is answered."""
        credentials = self._exchanges.credentials
        try:
            await self._exchanges.admit(request, exchange, spends=False)
            assert exchange.credential is not None
            nonce = credentials.nonce_of(exchange.credential)
            try:
                asked = await self._asked(request, exchange)
                kept = await self._acceptor.accept(asked, exchange, nonce)
            except REFUSALS as error:
                if not isinstance(error, StorageUncertain):  # Or else it may have been used, by this very request.
                    await credentials.spend(exchange.credential)  # Whatever else is wrong, the nonce comes first.
                raise
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)
        place = f"{request.scope.get('root_path', '')}{_REQUESTS}/{kept.key.request_id}"
        latency = round((self._clock.monotonic() - began) * 1000)
        exchange.is_accepted = True
        if kept.is_new:
            self._exchanges.meter.acknowledged(exchange.requested, latency)
        headers = (b"location", place.encode()), (b"preference-applied", _LATER)
        return HttpResponse(202, word_success({"status": kept.status}, latency), (*exchange.headers, *headers))

    # What there is to read.

    async def _show_request(self, request: HttpRequest) -> HttpResponse:
        """The state of a request, or its answer, for whoever has sent it."""
        exchange = self._exchanges.open(request)
        try:
            await self._exchanges.admit(request, exchange)
            assert exchange.credential is not None
            caller, id = exchange.credential.caller, request.path.removeprefix(f"{_REQUESTS}/")
            kept = await self._requests.find(caller.tenants, caller.principal, id.lower())
            if kept is None:
                raise NotFound("There is no such request", {"reason": "unknown_request"})
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)
        if kept.http_status is None or kept.body is None:
            return HttpResponse(200, word_success({"status": kept.status}, 0), exchange.headers)
        return HttpResponse(kept.http_status, kept.body, exchange.headers)

    async def _show_capabilities(self, request: HttpRequest) -> HttpResponse:
        return await self._show(request, lambda: self._capabilities)

    async def _show_openapi(self, request: HttpRequest) -> HttpResponse:
        return await self._show(request, lambda: self._openapi)

    async def _show_schema(self, request: HttpRequest) -> HttpResponse:
        name = request.path.rpartition("/")[2].removesuffix(".json")

        def schema() -> bytes:
            if name not in ACTIONS or request.path != f"/schemas/mcp/{name}.json":
                raise NotFound("There is no action of this name", {"actions": sorted(ACTIONS)})
            return ACTIONS[name].schema_bytes

        return await self._show(request, schema)

    async def _show_nothing(self, request: HttpRequest) -> HttpResponse:
        """The answer where nothing is served, in the words of the contract, too."""
        message = f"Nothing is served here; MCP is at {request.scope.get('root_path', '')}{request.endpoint}"
        return HttpResponse(404, self._exchanges.word_refusal(404, message, request.headers))

    async def _show(self, request: HttpRequest, read: Callable[[], bytes]) -> HttpResponse:
        exchange = self._exchanges.open(request)
        try:
            await self._exchanges.admit(request, exchange)
            return HttpResponse(200, read(), exchange.headers)
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)

    async def _show_document(self, request: HttpRequest) -> HttpResponse | StreamedResponse:
        """The page of a document."""
        exchange, caller, kid = self._exchanges.open(request), request.caller, None
        is_named = self._exchanges.credentials.has_authenticator or b"authorization" in request.headers
        if is_named and caller is not LOCAL:
            try:
                await self._exchanges.admit(request, exchange)
                assert exchange.credential is not None
                tenant = request.path.removeprefix(f"{PAGES}/").rpartition("/")[0]
                if tenant in exchange.credential.caller.tenants:
                    await self._exchanges.count_tenant(exchange, tenant)
            except REFUSALS as error:
                return self._exchanges.turned_away(exchange, error)
            caller, kid = exchange.credential.caller, exchange.credential.kid
        return await document_page(request, caller, self._documents, exchange.rate_headers, kid)


def _prefers_later(request: HttpRequest) -> bool:
    """Whether the client does not want to wait: RFC 7240's `Prefer: respond-async`."""
    preferences = request.headers.get(b"prefer", b"").lower().split(b",")
    return any(each.split(b";")[0].strip() == _LATER for each in preferences)

"""Requests to the gateway, one step after the other: each is refused by the first that objects.

1. Size, signature, rate of the principal, nonce, envelope, tenant and principal are checked here. Before the rate
   nothing is written, and of a body that is refused no more is read than its trace.
2. Roles, TTL, idempotency, `seq`, slot, arguments and the action itself are stages of the action's pipeline: the call
   is the same as one that comes over MCP, but for its origin.
3. From here on there are the codes of the contract and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.calls.call import Call, Outcome
from dragoman.calls.intake import Intake
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.clock import Clock
from dragoman.errors import (
    InternalFailure,
    MalformedEnvelope,
    NotFound,
    ProtocolError,
    RateLimited,
    StorageError,
    ToolError,
    Unauthenticated,
    Unauthorized,
    VerifierUnavailable,
)
from dragoman.gateway.credentials import Credential, Credentials, not_authentic
from dragoman.gateway.envelope import Envelope22, is_trace, malformed, new_trace, read_envelope, trace_in
from dragoman.gateway.openapi import capabilities, openapi
from dragoman.gateway.page import document_page
from dragoman.gateway.rates import GatewayRates, Remaining
from dragoman.gateway.settings import GatewayConfig
from dragoman.ids import Ids
from dragoman.knowledge.actions import ACTIONS, Action, subject_of
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.changing import PAGES
from dragoman.knowledge.port import ActionRequest, ActionStream, Audit, Documents
from dragoman.knowledge.roles import canonical
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.knowledge.standing import ActionOrigin, Standings, fingerprint_of
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.replies.contract import word_error, word_success
from dragoman.telemetry.log import Logger
from dragoman.tools.content import encode_json
from dragoman.tools.storage_errors import tool_error

ENVELOPE_BYTES: Final = 65_536
"""Bytes that an envelope may have beside the arguments."""
_CLOCKS_DIFFER: Final = 60.0
"""Seconds that a sender's clock may be ahead."""
_JSON = (b"content-type", b"application/json")
_RETRY_SOON = (b"retry-after", b"1")


class Gateway:
    """Answers the routes of the gateway."""

    def __init__(
        self,
        credentials: Credentials,
        standings: Standings,
        rates: GatewayRates,
        documents: Documents,
        audit: Audit,
        intake: Intake,
        settings: GatewayConfig,
        knowledge: KnowledgeConfig,
        clock: Clock,
        ids: Ids,
        logger: Logger,
        most_bytes: int,
    ) -> None:
        self._credentials = credentials
        self._standings = standings
        self._rates = rates
        self._documents = documents
        self._aliases = AliasUse(audit, clock)
        self._intake = intake
        self._settings = settings
        self._keep_seconds = knowledge.idempotency_ttl_ms / 1000
        self._clock = clock
        self._ids = ids
        self._logger = logger
        self._most_bytes = most_bytes
        self._capabilities = encode_json(capabilities(knowledge.max_concurrent))
        self._openapi = encode_json(openapi(settings.public_url))

    def routes(self) -> tuple[Route, ...]:
        """Everything is authenticated here, and not before: a signed request is good once."""
        return (
            Route("/mcp/actions", self._act, methods=("POST",), needs_caller=False),
            Route("/mcp/capabilities", self._show_capabilities, needs_caller=False),
            Route("/mcp/openapi.json", self._show_openapi, needs_caller=False),
            Route("/schemas/mcp/*", self._show_schema, needs_caller=False),
            Route(f"{PAGES}/*", self._show_document, needs_caller=False),
        )

    # Actions.

    async def _act(self, request: HttpRequest) -> HttpResponse:
        began = self._clock.monotonic()
        exchange = _Exchange(self._trace_of(request))
        try:
            body = await self._admit(request, exchange)
            call = await self._call(request, exchange, body)

            def word(call: Call, outcome: Outcome) -> HttpResponse:
                if outcome.error is not None:
                    return self._refused(exchange, outcome.error)
                latency = round((self._clock.monotonic() - began) * 1000)
                return HttpResponse(200, word_success(outcome.value, latency), exchange.headers)

            return await self._intake.answer(call, word)
        except (ToolError, StorageError, VerifierUnavailable) as error:
            return self._turned_away(exchange, error)

    async def _admit(self, request: HttpRequest, exchange: _Exchange) -> bytes:
        """Let a request in, whatever it asks for; its body. Raises what `_refused` words."""
        length = request.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self._most_bytes:
            raise self._too_large()
        credential = exchange.credential = await self._credentials.identify(request)
        body = await self._read(request)
        if credential.claims is not None:
            try:
                credential.claims.check_body(body)
            except Unauthenticated as error:
                raise not_authentic(error) from None
        exchange.body = body
        await self._count(exchange, credential)
        await self._credentials.spend(credential)
        return body

    async def _call(self, request: HttpRequest, exchange: _Exchange, body: bytes) -> Call:
        """The call that an envelope asks for. Raises what `_refused` words."""
        credential = exchange.credential
        assert credential is not None
        if request.headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise malformed("", "Content-Type must be application/json")
        envelope = read_envelope(body)
        exchange.trace_id = envelope.trace_id
        action = _action_of(envelope)
        sent_at = envelope.sent_at
        if sent_at > self._clock.now().timestamp() + _CLOCKS_DIFFER:
            raise malformed("timestamp", "is in the future")
        key = _key_of(envelope, request)
        caller = _checked_caller(envelope, credential)
        if len(caller.tenants) > 1:
            await self._count_tenant(exchange, envelope.tenant_id)
        await self._aliases.note({*envelope.principal.roles, *caller.roles}, envelope.tenant_id, credential.author)
        asked = ActionRequest(
            tenant=envelope.tenant_id,
            principal=caller.principal,  # Not `sub`: whoever has a key can choose that, be it another caller's name.
            roles=canonical(envelope.principal.roles) & credential.roles,
            action=action.name,
            correlation_id=envelope.correlation_id,
            subject=subject_of(envelope.payload.args),
            key=key,
            fingerprint=fingerprint_of(action, envelope.payload.args),
            keep_seconds=self._keep_seconds,
            stream=None if envelope.seq is None else ActionStream(envelope.context_id, envelope.seq),
            web_base=f"{self._settings.public_url or ''}{request.scope.get('root_path', '')}",
            known_as=credential.author,
        )
        origin = ActionOrigin(caller, "gateway", request=asked, expires_at=sent_at + envelope.ttl_sec)
        call = self._intake.make_local(action.name, envelope.payload.args, origin, envelope.correlation_id)
        call.meta = {IDEMPOTENCY_KEY: key}
        return call

    async def _count(self, exchange: _Exchange, credential: Credential) -> None:
        """Count a request of a principal, and of its tenant if it has but one."""
        settings, caller = self._settings, credential.caller
        buckets = [(f"principal {caller.principal}", settings.requests_per_minute_per_principal)]
        if len(caller.tenants) == 1:
            # First: whoever can choose its name freely is still of one tenant.
            buckets.insert(0, (f"tenant {next(iter(caller.tenants))}", settings.requests_per_minute_per_tenant))
        exchange.rate = await self._rates.take(*buckets)

    async def _count_tenant(self, exchange: _Exchange, tenant: str) -> None:
        rate = await self._rates.take((f"tenant {tenant}", self._settings.requests_per_minute_per_tenant))
        if exchange.rate is None or rate.remaining < exchange.rate.remaining:
            exchange.rate = rate

    async def _read(self, request: HttpRequest) -> bytes:
        """The body, which is never held if it is too large."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await request.receive()
            if message["type"] != "http.request":
                raise MalformedEnvelope("The client left before it had sent the body")
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._most_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(pieces)

    def _too_large(self) -> MalformedEnvelope:
        return malformed("", f"The body has more than {self._most_bytes} bytes", {"limit": self._most_bytes})

    # What there is to read.

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

    async def _show(self, request: HttpRequest, read: Callable[[], bytes]) -> HttpResponse:
        exchange = _Exchange(self._trace_of(request))
        try:
            await self._admit(request, exchange)
            return HttpResponse(200, read(), exchange.headers)
        except (ToolError, StorageError, VerifierUnavailable) as error:
            return self._turned_away(exchange, error)

    async def _show_document(self, request: HttpRequest) -> HttpResponse:
        """The page of a document. Where nobody is authenticated, `Standings` knows what an anonymous caller may see."""
        exchange = _Exchange(self._trace_of(request))
        caller = ANONYMOUS
        if self._credentials.has_authenticator or b"authorization" in request.headers:
            try:
                await self._admit(request, exchange)
            except (ToolError, StorageError, VerifierUnavailable) as error:
                return self._turned_away(exchange, error)
            assert exchange.credential is not None
            caller = exchange.credential.caller
        return await document_page(request, caller, self._documents, self._standings)

    # Refusals.

    def _turned_away(self, exchange: _Exchange, error: Exception) -> HttpResponse:
        """Refuse a request that does not become a call, and so leaves no record but this."""
        exchange.trace_id = trace_in(exchange.body) or exchange.trace_id
        response = self._refused(exchange, error)
        details: Any = getattr(error, "details", None) or {}
        facts = {"status": response.status, "reason": details.get("reason"), "traceId": exchange.trace_id}
        if exchange.credential is not None:
            facts |= {"caller": exchange.credential.author}
        self._logger.warn("request refused", facts)
        return response

    def _refused(self, exchange: _Exchange, error: Exception) -> HttpResponse:
        if isinstance(error, StorageError | VerifierUnavailable):
            self._logger.error("the gateway cannot answer", {"reason": str(error), "traceId": exchange.trace_id})
            error = tool_error(error) if isinstance(error, StorageError) else _no_verifier()
        if isinstance(error, ProtocolError):
            error = InternalFailure("The action failed")
        assert isinstance(error, ToolError)
        status, body = word_error(error, exchange.trace_id)
        headers = exchange.headers
        if isinstance(error, RateLimited):
            after = -(-int((error.details or {}).get("retryAfterMs", 1000)) // 1000)
            limit = int((error.details or {}).get("limit", 0))
            headers = (_JSON, *_rate_headers(Remaining(limit, 0)), (b"retry-after", str(after).encode()))
        elif status in (429, 503):
            headers = (*headers, _RETRY_SOON)
        elif status == 401:
            headers = (*headers, (b"www-authenticate", b'Bearer error="invalid_token"'))
        return HttpResponse(status, body, headers)

    def _trace_of(self, request: HttpRequest) -> str:
        """The trace that the headers name, or a new one: the body may never be read."""
        named = request.headers.get(b"traceparent", b"").decode("latin-1")
        return named if is_trace(named) else new_trace(UUID(self._ids.run_id()))


class _Exchange:
    """What is known of a request while it is answered."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.body = b""
        self.credential: Credential | None = None
        self.rate: Remaining | None = None

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return (_JSON,) if self.rate is None else (_JSON, *_rate_headers(self.rate))


def _no_verifier() -> InternalFailure:
    return InternalFailure("Tokens cannot be verified at the moment", {"reason": "verifier_unavailable"})


def _rate_headers(rate: Remaining) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"x-ratelimit-limit", str(rate.limit).encode()),
        (b"x-ratelimit-remaining", str(max(0, rate.remaining)).encode()),
    )


def _action_of(envelope: Envelope22) -> Action:
    action = ACTIONS.get(envelope.action)
    if action is None:
        raise malformed("action", "There is no action of this name", {"actions": sorted(ACTIONS)})
    if envelope.action_version != action.version:
        raise malformed("action_version", "is not supported", {"supported_versions": [action.version]})
    return action


def _key_of(envelope: Envelope22, request: HttpRequest) -> str:
    """The idempotency key: that of the header or of the envelope, which have to agree, or else the request's id."""
    given = [value for name, value in request.scope["headers"] if name.lower() == b"idempotency-key"]
    if len(given) > 1:
        raise malformed("idempotency_key", "The header Idempotency-Key is there more than once")
    key = envelope.idempotency_key
    if given:
        try:
            header = given[0].decode()
        except UnicodeDecodeError:
            header = ""
        if not (0 < len(header) <= 256 and header.isprintable()) or key not in (None, header):
            raise malformed("idempotency_key", "The header Idempotency-Key is another one, or none")
        key = header
    return key or envelope.request_id


def _checked_caller(envelope: Envelope22, credential: Credential) -> Caller:
    """The caller, if the envelope speaks for it."""
    caller = credential.caller
    if envelope.tenant_id not in caller.tenants:
        raise Unauthorized("The credentials are not for this tenant", {"reason": "other_tenant"})
    if envelope.principal.sub != caller.name:
        raise Unauthorized("principal.sub is not who the credentials are for", {"reason": "other_principal"})
    return caller

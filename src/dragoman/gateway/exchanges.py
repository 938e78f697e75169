"""Shared by all addresses of the gateway: authentication, rates, and the wording of refusals.

1. Size, signature, rate of the principal and nonce are checked in this order. Before the rate nothing is written.
2. From the route on there are the codes of the contract and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from dragoman.errors import (
    InternalFailure,
    MalformedEnvelope,
    MemoryPressure,
    MissingScope,
    ProtocolError,
    RateLimited,
    StorageError,
    ToolError,
    Unauthenticated,
    VerifierUnavailable,
)
from dragoman.gateway.asking import AskedAction, caller_kind, requested_by
from dragoman.gateway.credentials import Credential, Credentials, not_authentic
from dragoman.gateway.envelope import Envelope22, is_trace, malformed, new_trace, trace_in
from dragoman.gateway.rates import GatewayRates, Remaining, RequestRates, retry_after
from dragoman.gateway.settings import GatewayConfig
from dragoman.ids import Ids
from dragoman.parts.route import BodyCutShort, BodyTooLarge, HttpRequest, HttpResponse, NoRoomForBody
from dragoman.replies.contract import code_in_contract, word_error, word_refusal
from dragoman.slo.meter import STRANGER, ActionMeter, Requested
from dragoman.telemetry.log import Logger
from dragoman.tools.storage_errors import tool_error

REFUSALS = (ToolError, StorageError, VerifierUnavailable)
"""What `Exchanges.turned_away` words."""
_JSON = (b"content-type", b"application/json")
_RETRY_SOON = (b"retry-after", b"1")


class GatewayExchange:
    """The facts about a request while it is answered."""

    def __init__(self, find_trace: Callable[[], str]) -> None:
        self._find_trace = find_trace
        self._trace_id: str | None = None
        self.body = b""
        self.credential: Credential | None = None
        self.envelope: Envelope22 | None = None
        self.asked: AskedAction | None = None
        self.code = ""
        """The code of the error that it is answered with."""
        self.rate: Remaining | None = None
        self.is_accepted = False
        """Whether it is carried out later, or was before: it is counted when it ends."""

    @property
    def trace_id(self) -> str:
        """The trace that the envelope names, or the headers, or a new one: the body may never be read."""
        if self._trace_id is None:
            self._trace_id = self._find_trace()
        return self._trace_id

    @trace_id.setter
    def trace_id(self, trace_id: str) -> None:
        self._trace_id = trace_id

    @property
    def requested(self) -> Requested:
        """The facts that are counted: none that the sender could make up."""
        if self.credential is None:
            return STRANGER
        if self.asked is not None:
            return requested_by(self.asked)
        caller = self.credential.caller
        tenant = next(iter(caller.tenants)) if len(caller.tenants) == 1 else ""
        return Requested("", tenant, caller.name, caller_kind(self.credential.kid))

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers of the answer."""
        return (_JSON, *self.rate_headers)

    @property
    def rate_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Those that name the caller's rate, if that is known."""
        return () if self.rate is None else _rate_headers(self.rate)


class Exchanges:
    """Lets requests in, whatever they ask for, and refuses them."""

    def __init__(
        self,
        credentials: Credentials,
        rates: GatewayRates,
        settings: GatewayConfig,
        ids: Ids,
        logger: Logger,
        most_bytes: int,
        meter: ActionMeter,
    ) -> None:
        """No body that `admit` reads has more than `most_bytes`."""
        self.credentials = credentials
        self._rates = RequestRates(rates, settings)
        self._settings = settings
        self._ids = ids
        self._logger = logger
        self._most_bytes = most_bytes
        self._reading: set[tuple[str | None, str] | None] = set()
        """Keys and nonces of the signed requests whose bodies are being read."""
        self.meter = meter
        """Counts requests for actions."""

    def open(self, request: HttpRequest) -> GatewayExchange:
        """For a request over HTTP."""
        return self.open_with(request.headers)

    def open_with(self, headers: Mapping[bytes, bytes]) -> GatewayExchange:
        """For a message with these headers."""
        return GatewayExchange(partial(self._trace_of, headers))

    async def admit(self, request: HttpRequest, exchange: GatewayExchange, *, spends: bool = True) -> bytes:
        """Let a request in; its body. Raises `REFUSALS`.

        Without `spends`, its nonce is still to be used: see `Credentials.spend`.
        """
        await self.identify(request, exchange, self._most_bytes)
        assert exchange.credential is not None
        try:
            body = await self._read(request, exchange.credential)
        except (MalformedEnvelope, MemoryPressure):
            await self.count(exchange)  # An answer to a known caller names its rate.
            raise
        check_body(exchange.credential, body)
        exchange.body = body
        await self.count(exchange)
        if spends:
            await self.credentials.spend(exchange.credential)
        return body

    async def identify(self, request: HttpRequest, exchange: GatewayExchange, most_bytes: int) -> None:
        """Find out who sent a request, and whether it has the scope of the route.

        A request that says that its body is larger than it may be is refused before.
        """
        length = request.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > most_bytes:
            raise too_large(most_bytes)
        url = self._url_of(request)
        exchange.credential = await self.credentials.identify(request.headers, request.method, url)
        if request.scopes and not any(map(exchange.credential.caller.has, request.scopes)):
            await self.count(exchange)
            raise MissingScope(request.scopes[0])

    async def count(self, exchange: GatewayExchange) -> None:
        """Count a request of a principal, and of its tenant if it has but one. Raises `RateLimited`."""
        assert exchange.credential is not None
        caller = exchange.credential.caller
        tenant = next(iter(caller.tenants)) if len(caller.tenants) == 1 else None
        exchange.rate = await self._rates.take(caller.principal, tenant)

    async def count_tenant(self, exchange: GatewayExchange, tenant: str) -> None:
        """Count a request for one of several tenants that its caller has; others were counted before."""
        assert exchange.credential is not None
        if len(exchange.credential.caller.tenants) == 1:
            return
        rate = await self._rates.take(tenant=tenant)
        if exchange.rate is None or rate.remaining < exchange.rate.remaining:
            exchange.rate = rate

    async def _read(self, request: HttpRequest, credential: Credential) -> bytes:
        """The body, in the room that the process has for all. A signed token is good for one at a time."""
        caller, claims = credential.caller, credential.claims
        token = None if claims is None else (credential.kid, claims.nonce)
        if token in self._reading:
            raise not_authentic(Unauthenticated("Another request with this token is being read"))
        if token is not None:
            self._reading.add(token)
        try:
            return await request.collect(self._most_bytes, min(caller.tenants, default=caller.principal))
        except BodyTooLarge:
            raise too_large(self._most_bytes) from None
        except NoRoomForBody:
            raise MemoryPressure("Too much is being sent at once", {"reason": "bodies", "retryable": True}) from None
        except BodyCutShort:
            raise MalformedEnvelope("The client left before it had sent the body") from None
        finally:
            if token is not None:
                self._reading.discard(token)

    # Refusals.

    def turned_away(self, exchange: GatewayExchange, error: Exception) -> HttpResponse:
        """Refuse a request that does not become a call, and so leaves no record but this."""
        exchange.trace_id = trace_in(exchange.body) or exchange.trace_id
        response = self.refused(exchange, error)
        details: Any = getattr(error, "details", None) or {}
        facts = {"status": response.status, "reason": details.get("reason"), "traceId": exchange.trace_id}
        if exchange.credential is not None:
            facts |= {"caller": exchange.credential.author}
        self._logger.warn("request refused", facts)
        return response

    def refused(self, exchange: GatewayExchange, error: Exception) -> HttpResponse:
        """The answer to a request that was refused, or failed."""
        error = self.as_tool_error(exchange, error)
        exchange.code = code_in_contract(error)
        status, body = word_error(error, exchange.trace_id)
        headers = exchange.headers
        if isinstance(error, RateLimited):
            limit = int((error.details or {}).get("limit", 0))
            headers = (_JSON, *_rate_headers(Remaining(limit, 0)), retry_after(error))
        elif status in (429, 503):
            headers = (*headers, _RETRY_SOON)
        elif status == 401:
            headers = (*headers, (b"www-authenticate", b'Bearer error="invalid_token"'))
        return HttpResponse(status, body, headers)

    def word_refusal(self, status: int, message: str, headers: Mapping[bytes, bytes]) -> bytes:
        """The body of a refusal that no exchange was opened for: `WordRefusal` of the routes."""
        return word_refusal(status, message, self._trace_of(headers))

    def as_tool_error(self, exchange: GatewayExchange, error: Exception) -> ToolError:
        """An error as clients are told of it; a failure of the storage is logged."""
        if isinstance(error, StorageError | VerifierUnavailable):
            self._logger.error("the gateway cannot answer", {"reason": str(error), "traceId": exchange.trace_id})
            error = tool_error(error) if isinstance(error, StorageError) else _no_verifier()
        if isinstance(error, ProtocolError):
            error = InternalFailure("The action failed")
        assert isinstance(error, ToolError)
        return error

    def _url_of(self, request: HttpRequest) -> str:
        scope = request.scope
        host = request.headers.get(b"host", b"").decode("latin-1")
        base = self._settings.public_url or f"{scope.get('scheme', 'http')}://{host}"
        return f"{base}{scope.get('root_path', '')}{request.path}"

    def _trace_of(self, headers: Mapping[bytes, bytes]) -> str:
        named = headers.get(b"traceparent", b"").decode("latin-1")
        return named if is_trace(named) else new_trace(UUID(self._ids.run_id()))


def check_body(credential: Credential, body: bytes) -> None:
    """Raise `NotAuthentic` for another body than the one that was signed."""
    if credential.claims is not None:
        try:
            credential.claims.check_body(body)
        except Unauthenticated as error:
            raise not_authentic(error) from None


def too_large(most_bytes: int) -> MalformedEnvelope:
    """The error for a body that is larger than it may be."""
    return malformed("", f"The body has more than {most_bytes} bytes", {"limit": most_bytes})


def _no_verifier() -> InternalFailure:
    return InternalFailure("Tokens cannot be verified at the moment", {"reason": "verifier_unavailable"})


def _rate_headers(rate: Remaining) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"x-ratelimit-limit", str(rate.limit).encode()),
        (b"x-ratelimit-remaining", str(max(0, rate.remaining)).encode()),
    )

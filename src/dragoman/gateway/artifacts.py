"""The addresses of artifacts: send one, and read it with the link that this gives.

1. Size, signature, rate, nonce, tenant, role and type are checked before anything of the body is taken.
2. A link is all that it takes to read, for a quarter of an hour, with GET alone. One that is wrong or has expired is
   answered the same, whether there is such an object or not.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

from dragoman.access.callers import scope_of
from dragoman.calls.places import Holder, Places
from dragoman.clock import Clock
from dragoman.errors import MalformedEnvelope, NoFreeSlot, NotAuthentic, Unauthorized
from dragoman.gateway.contents import mime_type_of
from dragoman.gateway.credentials import verified_part
from dragoman.gateway.envelope import malformed
from dragoman.gateway.exchanges import REFUSALS, Exchanges, GatewayExchange
from dragoman.gateway.keeping import Objects
from dragoman.gateway.links import ARTIFACTS, ArtifactLink, SignedLinks, not_ours
from dragoman.gateway.objects import StoredObject
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge.roles import AGENT, EDITOR, OWNER
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.parts.streaming import StreamedResponse
from dragoman.replies.contract import word_success

MOST_UPLOADS: Final = 8
MOST_DOWNLOADS: Final = 64
"""At a time, in each process."""
LONGEST_UPLOAD: Final = 600.0
"""Seconds."""
_SPARE: Final = 1_048_576
"""So that a body that is too large is refused here, in the words of the contract."""
_FOR_UPLOADS: Final = tuple(scope_of(f"knowledge.{name}_document") for name in ("create", "update"))
"""The actions whose arguments can be too large for a message."""
_TENANT: Final = b"dragoman-tenant"
_RANGE = re.compile(rb"bytes=([0-9]{0,18})-([0-9]{0,18})")
_HASH = re.compile(r"[0-9a-f]{64}")
_SERVED: Final = (
    (b"content-disposition", b"attachment"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"private, no-store"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"accept-ranges", b"bytes"),
)


class Transfers(Places):
    """How many run at a time; the tenants share the places."""

    def __init__(self, name: str, most: int) -> None:
        super().__init__(most)
        self._name = name

    def check(self, holder: Holder) -> None:
        """Raise `NoFreeSlot` if there is no place for one more."""
        if (full := self.full(holder)) is not None:
            raise NoFreeSlot(full.taken, f" for {self._name}{full.whose}")

    @contextmanager
    def taken(self, holder: Holder) -> Iterator[None]:
        """Take a place."""
        self.hold(holder)
        try:
            yield
        finally:
            self.let_go(holder)


class ArtifactRoutes:
    """Answers the addresses of artifacts. Without `links` a cloud serves them, and they can only be sent here."""

    def __init__(
        self, exchanges: Exchanges, objects: Objects, links: SignedLinks | None, settings: GatewayConfig, clock: Clock
    ) -> None:
        self._exchanges = exchanges
        self._objects = objects
        self._links = links
        self._settings = settings
        self._clock = clock
        self._uploads = Transfers("uploads", MOST_UPLOADS)
        self._downloads = Transfers("downloads", MOST_DOWNLOADS)

    def routes(self) -> tuple[Route, ...]:
        """They authenticate by themselves."""
        most = self._settings.max_artifact_bytes + _SPARE
        here = partial(Route, needs_caller=False, word_refusal=self._exchanges.word_refusal)
        upload = here(ARTIFACTS, self._upload, methods=("PUT",), scope=_FOR_UPLOADS, most_bytes=most)
        if self._links is None:
            return (upload,)
        # A link is signed, and is its own authority.
        return upload, here(f"{ARTIFACTS}/*", self._download, is_open=True, takes_head=False)

    # Sending one.

    async def _upload(self, request: HttpRequest) -> HttpResponse:
        began = self._clock.monotonic()
        exchange = self._exchanges.open(request)
        try:
            await self._exchanges.identify(request, exchange, self._settings.max_artifact_bytes)
            await self._exchanges.count(exchange)
            assert exchange.credential is not None
            await self._exchanges.credentials.spend(exchange.credential)
            tenant = _tenant_of(request, exchange)
            await self._exchanges.count_tenant(exchange, tenant)
            mime = mime_type_of(request.headers.get(b"content-type", b""), self._settings.mime_types)
            holder = Holder(tenant, verified_part(exchange.credential.caller, exchange.credential.kid))
            self._uploads.check(holder)
            with self._uploads.taken(holder):
                stored = await self._objects.keep(
                    tenant,
                    mime,
                    self._body_of(request),
                    expected_sha256=_signed_hash(exchange),
                    base=self._base_of(request),
                )
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)
        latency = round((self._clock.monotonic() - began) * 1000)
        return HttpResponse(201, word_success(stored.data, latency), exchange.headers)

    async def _body_of(self, request: HttpRequest) -> AsyncIterator[bytes]:
        began = self._clock.monotonic()
        while True:
            message = await request.receive()
            if message["type"] != "http.request":
                raise MalformedEnvelope("The client left before it had sent the body")
            if self._clock.monotonic() - began > LONGEST_UPLOAD:  # The server itself only sees whether anything comes.
                raise MalformedEnvelope("The body took too long", {"reason": "upload_too_slow"})
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body"):
                return

    def _base_of(self, request: HttpRequest) -> str:
        """How this client reaches the server."""
        host = request.headers.get(b"host", b"").decode("latin-1")
        server = self._settings.public_url or f"{request.scope.get('scheme', 'http')}://{host}"
        return f"{server}{request.scope.get('root_path', '')}"

    # Reading one.

    async def _download(self, request: HttpRequest) -> HttpResponse | StreamedResponse:
        exchange = self._exchanges.open(request)
        try:
            link = await self._opened(request)
            entry = await self._objects.find(link.tenant, link.sha256)
            await self._objects.check_content(entry)
            self._downloads.check(Holder(link.tenant))
        except REFUSALS as error:
            return self._exchanges.turned_away(exchange, error)
        headers = [*_SERVED, (b"content-type", _content_type(link.mime)), (b"etag", f'"{link.sha256}"'.encode())]
        span = _range_of(request, entry.size)
        if span is None:
            return HttpResponse(416, b"", (*headers, (b"content-range", b"bytes */%d" % entry.size)))
        start, end, status = span
        if status == 206:
            headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, entry.size)))
        headers.append((b"content-length", b"%d" % (end - start)))
        return StreamedResponse(status, partial(self._pieces, link.tenant, entry, start, end), tuple(headers))

    async def _opened(self, request: HttpRequest) -> ArtifactLink:
        """The object of a link that is valid now."""
        assert self._links is not None
        query = request.scope.get("query_string", b"").decode("latin-1")
        link = await self._links.open(request.path.removeprefix(f"{ARTIFACTS}/"), query)
        if self._clock.now().timestamp() >= link.expires_at:
            raise not_ours()
        return link

    async def _pieces(self, tenant: str, entry: StoredObject, start: int, end: int) -> AsyncGenerator[bytes, None]:
        with self._downloads.taken(Holder(tenant)):
            async with aclosing(self._objects.read(entry, start, end)) as pieces:
                async for piece in pieces:
                    yield piece


def _tenant_of(request: HttpRequest, exchange: GatewayExchange) -> str:
    """The tenant that an artifact is for. Raises `MalformedEnvelope` and `Unauthorized`."""
    credential = exchange.credential
    assert credential is not None
    tenants, named = credential.caller.tenants, request.headers.get(_TENANT)
    if named is not None:
        try:
            tenant = named.decode()
        except UnicodeDecodeError:
            tenant = ""
        if tenant not in tenants:
            raise Unauthorized("The credentials are not for this tenant", {"reason": "other_tenant"})
    elif len(tenants) == 1:
        (tenant,) = tenants
    elif tenants:
        raise malformed("Dragoman-Tenant", "must name one of the caller's tenants")
    else:
        raise Unauthorized("The credentials are for no tenant", {"reason": "other_tenant"})
    if not credential.roles & {OWNER, EDITOR, AGENT}:
        raise Unauthorized("A role that may write is needed", {"reason": "role"})
    return tenant


def _signed_hash(exchange: GatewayExchange) -> str | None:
    """The hash of the body that an external caller has signed; None for an internal caller."""
    assert exchange.credential is not None
    claims = exchange.credential.claims
    if claims is None:
        return None
    if not _HASH.fullmatch(claims.body_sha256.lower()):
        raise NotAuthentic("The token was signed for another body", {"reason": "unauthenticated"})
    return claims.body_sha256.lower()


def _content_type(mime: str) -> bytes:
    return f"{mime}; charset=utf-8".encode() if mime.startswith("text/") else mime.encode()


def _range_of(request: HttpRequest, size: int) -> tuple[int, int, int] | None:
    """The first byte, the one after the last, and the status; None for a range that there is not.

    A range that is not understood, or more than one, is ignored, as RFC 9110 has it; so is one under a condition that
    does not hold.
    """
    found = _RANGE.fullmatch(request.headers.get(b"range", b""))
    condition = request.headers.get(b"if-range")
    etag = f'"{request.path.rpartition("/")[2]}"'.encode()
    if found is None or found[0] == b"bytes=-" or (condition is not None and condition != etag):
        return 0, size, 200
    first, last = found.groups()
    if not first:
        length = min(int(last), size)
        return (size - length, size, 206) if length else None
    start = int(first)
    if last and int(last) < start:
        return 0, size, 200
    end = min(int(last) + 1, size) if last else size
    return (start, end, 206) if start < size else None

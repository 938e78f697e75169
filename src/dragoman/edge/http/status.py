"""How the server is: what operators, load balancers and clients in search of a token ask it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dragoman.access.callers import METRICS_SCOPE, Caller
from dragoman.access.metadata import METADATA_PATH
from dragoman.clock import Clock
from dragoman.edge.http.asgi import Headers, Receive, RequestRefused, Route, Scope, Send, answer
from dragoman.errors import InvalidRequest
from dragoman.protocol.session import Identity
from dragoman.protocol.versions import HANDSHAKE_VERSIONS, MODERN_VERSIONS
from dragoman.telemetry.metrics import SNAPSHOT, Snapshot
from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.access.authenticator import Authenticator
    from dragoman.edge.http.siblings import Siblings
    from dragoman.telemetry.metrics import Metrics
    from dragoman.tools.catalogue import Catalogue


class Served(Protocol):
    """What the application is in front of."""

    clock: Clock

    @property
    def state(self) -> Enum: ...

    @property
    def is_running(self) -> bool:
        """Whether calls are taken."""
        ...

    @property
    def missing_parts(self) -> tuple[str, ...]:
        """The parts of the server that have failed and are not restarted."""
        ...

    async def start(self) -> None: ...
    async def stop(self, timeout: float | None = None) -> int: ...


class Status:
    """Answers GET at the addresses that are about the server itself."""

    def __init__(
        self,
        runtime: Served,
        catalogue: Catalogue,
        identity: Identity,
        caller: Callable[[Headers], Awaitable[Caller]],
        *,
        authenticator: Authenticator | None,
        metadata: dict[str, Any] | None,
        metrics: Metrics | None,
        siblings: Siblings | None,
    ) -> None:
        self._runtime = runtime
        self._catalogue = catalogue
        self._identity = identity
        self._caller = caller
        self._authenticator = authenticator
        self._metadata = None if metadata is None else msgspec.json.encode(metadata)
        self._metrics = metrics
        self._siblings = siblings
        self.began = time.monotonic()

    def routes(self, endpoint: str) -> dict[str, Route]:
        """What is answered where."""
        found: dict[str, Route] = {
            "/health": self._health,
            "/healthz": self._health,
            "/ready": self._ready,
            "/version": self._version,
        }
        if self._metadata is not None:
            found[METADATA_PATH] = found[METADATA_PATH + endpoint] = self._describe_resource
        if self._metrics is not None:
            found["/metrics"] = self._show_metrics
        return found

    async def _health(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        _only_get(scope)
        uptime = max(time.monotonic() - self.began, sys.float_info.epsilon)
        facts = {"status": "ok", "module_count": len(self._catalogue), "uptime_seconds": uptime}
        await answer(send, 200, msgspec.json.encode(facts))

    async def _ready(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        _only_get(scope)
        ready, missing = self._runtime.is_running, self._runtime.missing_parts
        facts = {"status": self._runtime.state.value, **({"missingParts": missing} if missing else {})}
        await answer(send, 200 if ready else 503, msgspec.json.encode(facts))

    async def _version(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        _only_get(scope)
        facts = {
            **self._identity.server_info,
            "dragoman": __version__,
            "protocolVersions": [*HANDSHAKE_VERSIONS, *MODERN_VERSIONS],
        }
        if self._siblings is not None:
            facts["worker"] = self._siblings.index
        await answer(send, 200, msgspec.json.encode(facts))

    async def _describe_resource(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        _only_get(scope)
        assert self._metadata is not None
        await answer(send, 200, self._metadata)

    async def _show_metrics(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        assert self._metrics is not None
        _only_get(scope)
        caller = await self._caller(headers)
        if not caller.has(METRICS_SCOPE):
            assert self._authenticator is not None
            challenge = self._authenticator.challenge("insufficient_scope", scope=METRICS_SCOPE)
            refusal = InvalidRequest(f"The scope {METRICS_SCOPE} is missing")
            raise RequestRefused(403, refusal, ((b"www-authenticate", challenge),))
        accept = headers.get(b"accept", b"").decode("latin-1")
        snapshot = self._metrics.snapshot()
        if accept == SNAPSHOT:
            await answer(send, 200, msgspec.json.encode(snapshot))
            return
        if self._siblings is not None:
            asking = [(b"accept", SNAPSHOT.encode())]
            if b"authorization" in headers:
                asking.append((b"authorization", headers[b"authorization"]))
            others = await self._siblings.get("/metrics", asking)
            decoded = [msgspec.json.decode(body, type=Snapshot) for status, body in others if status == 200]
            snapshot = Snapshot.together([snapshot, *decoded])
        # On a thread: with hundreds of tools the text takes long enough to be felt by whoever calls meanwhile.
        body, content_type = await asyncio.to_thread(snapshot.page, accept)
        await answer(send, 200, body, ((b"content-type", content_type.encode()),))


def _only_get(scope: Scope) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        raise RequestRefused(405, InvalidRequest("Only GET is allowed here"), ((b"allow", b"GET"),))

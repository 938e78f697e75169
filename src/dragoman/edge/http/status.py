"""How the server is: what operators, load balancers and clients in search of a token ask it."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from dragoman.access.metadata import METADATA_PATH
from dragoman.edge.connection import Services
from dragoman.edge.http.siblings import Siblings
from dragoman.edge.served import Served
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.protocol.versions import HANDSHAKE_VERSIONS, MODERN_VERSIONS
from dragoman.version import __version__


class Status:
    """Answers at the addresses that are about the server itself, and for everybody."""

    def __init__(self, runtime: Served, services: Services, siblings: Siblings | None) -> None:
        self._runtime = runtime
        self._services = services
        self._siblings = siblings

    def routes(self) -> tuple[Route, ...]:
        handlers = {
            "/health": self._health,
            "/healthz": self._health,
            "/ready": self._ready,
            "/version": self._version,
        }
        return tuple(Route(path, handler, needs_caller=False, is_open=True) for path, handler in handlers.items())

    async def _health(self, request: HttpRequest) -> HttpResponse:
        uptime = max(time.monotonic() - self._runtime.began, sys.float_info.epsilon)
        return _json({"status": "ok", "module_count": len(self._services.catalogue), "uptime_seconds": uptime})

    async def _ready(self, request: HttpRequest) -> HttpResponse:
        missing, troubles = self._runtime.missing_parts, self._runtime.supervisor.troubles
        facts = {
            "status": self._runtime.state.value,
            **({"missingParts": missing} if missing else {}),
            **({"trouble": troubles} if troubles else {}),
        }
        return _json(facts, 200 if self._runtime.is_running and not troubles else 503)

    async def _version(self, request: HttpRequest) -> HttpResponse:
        facts = {
            **self._services.identity.server_info,
            "dragoman": __version__,
            "protocolVersions": [*HANDSHAKE_VERSIONS, *MODERN_VERSIONS],
        }
        if self._siblings is not None:
            facts["worker"] = self._siblings.index
        return _json(facts)


def metadata_routes(metadata: dict[str, Any], endpoint: str) -> tuple[Route, ...]:
    """The document that tells clients where to get a token."""
    document = _json(metadata)

    async def describe(request: HttpRequest) -> HttpResponse:
        return document

    paths = METADATA_PATH, METADATA_PATH + endpoint
    return tuple(Route(path, describe, needs_caller=False, is_open=True) for path in paths)


def _json(facts: dict[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(facts))

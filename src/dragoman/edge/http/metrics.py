"""The part that counts calls for Prometheus."""

from __future__ import annotations

import asyncio

import msgspec

from dragoman.access.callers import METRICS_SCOPE
from dragoman.edge.http.siblings import Siblings
from dragoman.parts.part import Contribution, Part
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.telemetry.metrics import SNAPSHOT, Metrics, Snapshot


def metrics_part(metrics: Metrics, siblings: Siblings | None) -> Part:
    """The figures of all processes of the server at `/metrics`; those of this one alone as a `Snapshot`."""

    async def show(request: HttpRequest) -> HttpResponse:
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        snapshot = metrics.snapshot()
        if accept == SNAPSHOT:
            return HttpResponse(200, msgspec.json.encode(snapshot))
        if siblings is not None:
            asking = [(b"accept", SNAPSHOT.encode())]
            if b"authorization" in request.headers:
                asking.append((b"authorization", request.headers[b"authorization"]))
            others = await siblings.get("/metrics", asking)
            decoded = [msgspec.json.decode(body, type=Snapshot) for status, body in others if status == 200]
            snapshot = Snapshot.together([snapshot, *decoded])
        # On a thread: with hundreds of tools the text takes long enough to be felt by whoever calls meanwhile.
        body, content_type = await asyncio.to_thread(snapshot.page, accept)
        return HttpResponse(200, body, ((b"content-type", content_type.encode()),))

    route = Route("/metrics", show, scope=METRICS_SCOPE)
    return Part(name="metrics", build=lambda _: Contribution(routes=(route,), observers=(metrics.observe,)))

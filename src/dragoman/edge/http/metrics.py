"""The part that counts calls for Prometheus."""

from __future__ import annotations

import asyncio

import msgspec

from dragoman.access.callers import ANONYMOUS, METRICS_SCOPE
from dragoman.edge.http.siblings import Siblings
from dragoman.parts.part import Contribution, Part
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.telemetry.metrics import SNAPSHOT, Metrics, Snapshot


def metrics_part(metrics: Metrics, siblings: Siblings | None) -> Part:
    """The figures of all processes of the server at `/metrics`; those of this one alone as a `Snapshot`.

    Callers that are not known, on a server that authenticates nobody, get sums over tenants and principals.
    """

    async def show(request: HttpRequest) -> HttpResponse:
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        snapshots = [metrics.snapshot()]
        if siblings is not None and accept != SNAPSHOT:
            asking = [(b"accept", SNAPSHOT.encode())]
            if b"authorization" in request.headers:
                asking.append((b"authorization", request.headers[b"authorization"]))
            others = await siblings.get("/metrics", asking)
            snapshots += [msgspec.json.decode(body, type=Snapshot) for status, body in others if status == 200]
        if request.caller is ANONYMOUS:
            snapshots = [each.anonymous() for each in snapshots]
        snapshot = Snapshot.together(snapshots)
        if accept == SNAPSHOT:
            return HttpResponse(200, msgspec.json.encode(snapshot))
        # On a thread: with hundreds of tools the text takes long enough to be felt by whoever calls meanwhile.
        body, content_type = await asyncio.to_thread(snapshot.page, accept)
        return HttpResponse(200, body, ((b"content-type", content_type.encode()),))

    route = Route("/metrics", show, scope=METRICS_SCOPE)
    return Part(name="metrics", build=lambda _: Contribution(routes=(route,), observers=(metrics.observe,)))

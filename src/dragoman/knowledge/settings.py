"""Settings of the knowledge service."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dragoman.sections import Count, Section, about

_DAY_MS = 86_400_000


class KnowledgeConfig(Section, frozen=True):
    """The trees of documents. They are there with the gateway."""

    max_concurrent: Annotated[
        Count, about("How many requests of one action are carried out at the same time.", is_limit=True)
    ] = 10
    idempotency_ttl_ms: Annotated[
        Annotated[int, Meta(ge=_DAY_MS, le=365 * _DAY_MS)],
        about("How long an action that is repeated with the same idempotency key gets the first result."),
    ] = _DAY_MS

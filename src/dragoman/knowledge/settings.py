"""Settings of the knowledge service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from dragoman.access.settings import is_secure_url
from dragoman.sections import Count, Problem, Section, about

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
    answers_url: Annotated[
        str | None,
        about(
            "The address of a model that writes answers, as of an OpenAI-compatible API: `/chat/completions` is added. "
            "Unset, passages are quoted."
        ),
    ] = None
    answers_model: Annotated[Annotated[str, Meta(min_length=1)] | None, about("What the model is called there.")] = None
    answers_key_variable: Annotated[
        Annotated[str, Meta(min_length=1)] | None, about("The environment variable that holds the key for it.")
    ] = None
    test_mode: Annotated[
        bool, about("Whether queries may say `routing.noop_qdrant`, and are answered without a search.")
    ] = False

    def conflicts(self) -> Iterator[Problem]:
        if self.answers_url is not None:
            if not is_secure_url(self.answers_url):
                yield "answers_url", "must be a URL with https, or with http on this machine"
            if self.answers_model is None:
                yield "answers_model", "must be set, as answers_url is"

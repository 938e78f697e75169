"""Settings of the knowledge service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from dragoman.access.settings import is_secure_url
from dragoman.sections import Bytes, Count, Problem, Section, about

_DAY_MS = 86_400_000
_SECRETS = frozenset("@?#")
"""Characters of a URL before or behind which secrets are written."""


class KnowledgeConfig(Section, frozen=True):
    """The trees of documents. They are there with the gateway."""

    max_concurrent: Annotated[
        Count,
        about(
            "How many requests of one action are carried out at the same time, by all workers together.", is_limit=True
        ),
    ] = 10
    documents_per_tenant: Annotated[
        Count, about("How many documents one tenant may have; those that are deleted do not count.", is_limit=True)
    ] = 100_000
    document_bytes_per_tenant: Annotated[
        Bytes,
        about(
            "The most that the documents of one tenant may weigh, with all revisions until they are purged; a text "
            "that several have counts once.",
            is_limit=True,
        ),
    ] = 1_073_741_824
    idempotency_ttl_ms: Annotated[
        Annotated[int, Meta(ge=_DAY_MS, le=365 * _DAY_MS)],
        about("How long an action that is repeated with the same idempotency key gets the first result."),
    ] = _DAY_MS
    answer_bytes_per_tenant: Annotated[
        Bytes,
        about("The most that answers to queries may weigh together that are kept for one tenant.", is_limit=True),
    ] = 67_108_864
    embedder: Annotated[
        Literal["none", "minilm", "openai"],
        about(
            "What makes vectors of passages, for a search by meaning: nothing, a small model on this machine "
            "(`dragoman models install minilm`), or a server with OpenAI's API, which is sent every passage."
        ),
    ] = "none"
    embeddings_url: Annotated[
        str | None, about("The address of that API: `/embeddings` is added. With https, or on this machine.")
    ] = None
    embeddings_model: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None, about("What the model is called there.")
    ] = None
    embeddings_key_variable: Annotated[
        Annotated[str, Meta(min_length=1)] | None, about("The environment variable that holds the key for it.")
    ] = None
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
        for name in ("embeddings_url", "answers_url"):
            url = getattr(self, name)
            if url is not None and not is_secure_url(url):
                yield name, "must be a URL with https, or with http on this machine"
            elif url is not None and _SECRETS & {*url}:
                yield name, "must not have a user, a query or a fragment: it is logged, and a key has its own variable"
        if self.embedder == "openai":
            for name in ("embeddings_url", "embeddings_model"):
                if getattr(self, name) is None:
                    yield name, "must be set, as embedder is openai"
        if self.answers_url is not None and self.answers_model is None:
            yield "answers_model", "must be set, as answers_url is"

"""Questions to the documents: what is searched, in which time, and what is answered.

1. A query has a budget. What is found within it is answered, and `missing` names what is not: `vectors` if the embedder
   was too slow or failed, `answer` if the model was, `words` if the index itself was, `documents` if some are not
   indexed yet.
2. Words and vectors are searched at the same time, each for candidates, which are fused; see `fusing.py`.
3. Only documents of the request's tenant are searched, and only those that are there when the passages are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.calls.places import Holder
from dragoman.clock import Clock
from dragoman.errors import ModelUnavailable, NotEnabled, Unauthorized
from dragoman.knowledge.answering import (
    NOT_ANSWERED,
    AnswerWriter,
    Format,
    WantedAnswer,
    checked,
    conversation,
    quoted,
)
from dragoman.knowledge.budget import Budget
from dragoman.knowledge.changing import page_of
from dragoman.knowledge.embedding import GetEmbedder
from dragoman.knowledge.fusing import VECTORS_WEIGHT, WORDS_WEIGHT, Ranked, fuse, keep_few
from dragoman.knowledge.index import FoundPassage, Hit, PassageIndex, PassageQuery
from dragoman.knowledge.kept_answers import answers_full
from dragoman.knowledge.port import QUERY_STEPS, ActionRequest, Applied, Documents, KeepAnswer, QueryStep
from dragoman.tools.context import Cancellation, Progress, ToolContext

CANDIDATES: Final = 50
"""How many passages words and vectors each may give."""
LEAST_ALIKE: Final = 0.1
"""The least cosine of a passage that is found by its vector: there is always one that is nearest."""
_TOLD_EVERY: Final = 200
"""Characters of an answer between two messages about its progress."""

OnFailure: TypeAlias = Callable[[ModelUnavailable], None]


class KnowledgeQuery(Struct, frozen=True, kw_only=True):
    """A question, as the arguments of the action have it."""

    query: str
    tags: frozenset[str] = frozenset()
    top_k: int = 5
    format: Format = "markdown"
    language: str | None = None
    max_latency_ms: int = 4000
    is_noop: bool = False
    wants_external: bool = False

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> KnowledgeQuery:
        """For arguments that fit the schema."""
        hints, routing = arguments.get("context_hints", {}), arguments.get("routing", {})
        return cls(
            query=arguments["query"],
            tags=frozenset(arguments.get("filters", {}).get("tags", ())),
            top_k=int(arguments.get("top_k", 5)),
            format=hints.get("preferred_format", "markdown"),
            language=hints.get("language"),
            max_latency_ms=int(routing.get("max_latency_ms", 4000)),
            is_noop=routing.get("noop_qdrant", False),
            wants_external=routing.get("allow_external_search", False),
        )


class _Answering(Struct):
    """What has come of a query so far."""

    context: list[tuple[Hit, FoundPassage]] = field(default_factory=list)
    response: str = ""
    hits: int = 0
    took_part: set[QueryStep] = field(default_factory=set)
    missing: list[QueryStep | Literal["documents"]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Queries:
    """Answers queries. Without an embedder only words are searched, and without a writer passages are quoted."""

    def __init__(
        self,
        documents: Documents,
        index: PassageIndex,
        clock: Clock,
        get_embedder: GetEmbedder | None = None,
        writer: AnswerWriter | None = None,
        *,
        most_kept: int = 0,
        on_failure: OnFailure = lambda _: None,
        test_mode: bool = False,
    ) -> None:
        """`documents` keeps the answers of requests that can be repeated, up to `most_kept` bytes for each tenant.

        `test_mode`: queries may be no-ops.
        `on_failure` is told why a model could not be used; callers are not.
        """
        self._documents = documents
        self._index = index
        self._clock = clock
        self._get_embedder = get_embedder
        self._writer = writer
        self._most_kept = most_kept
        self._on_failure = on_failure
        self._test_mode = test_mode

    async def perform(self, arguments: dict[str, Any], request: ActionRequest, context: ToolContext) -> Applied:
        """Carries out `knowledge.query_knowledge`. A repeat gets the first answer, and nothing is searched."""
        tenant = arguments.get("filters", {}).get("tenant_id", request.tenant)
        if tenant != request.tenant:
            raise Unauthorized("filters.tenant_id is another tenant's", {"reason": "other_tenant"})
        is_kept = request.key is not None or request.stream is not None
        earlier = await self._documents.recall(request) if is_kept else None
        if earlier is not None:
            return earlier
        if request.key is not None and (kept := await self._documents.kept_answers(tenant)) >= self._most_kept:
            raise answers_full(self._most_kept, kept)  # Before anything is searched.
        query = KnowledgeQuery.of(arguments)
        applied = await self.answer(query, request, context.cancellation, context.progress)
        if not is_kept:
            return applied
        answer = KeepAnswer(data=applied.data, hits=applied.hits, most_kept=self._most_kept)
        told = await self._documents.carry_out(answer, request)
        return told if told.is_repeated else replace(told, took_part=applied.took_part)

    async def answer(
        self,
        query: KnowledgeQuery,
        request: ActionRequest,
        cancellation: Cancellation | None = None,
        progress: Progress | None = None,
    ) -> Applied:
        """Search, and answer; nothing is kept. Raises `NotEnabled`, `Aborted` and `StorageError`s."""
        if query.is_noop and not self._test_mode:
            raise NotEnabled("routing.noop_qdrant is for servers in test mode", {"reason": "test_mode_only"})
        budget = Budget(self._clock, query.max_latency_ms / 1000, cancellation or Cancellation())
        so_far = _Answering()
        if query.wants_external:
            so_far.notes.append("allow_external_search has no effect: only documents are searched")
        if query.is_noop:
            so_far.notes.append("noop_qdrant: nothing was searched")
        elif query.query.strip():
            await self._search(query, request.holder, budget, so_far)
        if so_far.context and not request.passages_only:
            await self._respond(query, budget, so_far, progress)
        took_part = tuple(step for step in QUERY_STEPS if step in so_far.took_part)
        return Applied(_data(so_far, request), hits=so_far.hits, took_part=took_part)

    async def _search(self, query: KnowledgeQuery, holder: Holder, budget: Budget, so_far: _Answering) -> None:
        tenant, key = holder
        asked = PassageQuery(tenant=tenant, tags=query.tags, limit=CANDIDATES, key=key)
        searches = [self._by_words(asked, query.query, budget, so_far)]
        if self._get_embedder is not None:
            searches.append(self._by_vector(asked, query.query, self._get_embedder, budget, so_far))
        lists = [ranked for ranked in await asyncio.gather(*searches) if ranked is not None]
        if unindexed := await self._index.unindexed(tenant):
            so_far.missing.append("documents")
            so_far.notes.append(f"documents that are not indexed yet were not searched: {unindexed}")
        named = {hit.number for ranked in lists if ranked.by_score for hit in ranked.hits}
        left = keep_few(fuse(*lists), named, query.top_k)
        so_far.hits = len(left)
        while left and (wanted := query.top_k - len(so_far.context)):  # Again only if some are gone, or without text.
            best, left = left[:wanted], left[wanted:]
            found = {
                each.number: each for each in await self._index.read(tenant, [hit.number for hit in best], key=key)
            }
            # A title alone, such as a folder's, is alike to every short question.
            there = ((hit, found[hit.number]) for hit in best if hit.number in found)
            so_far.context += [(hit, passage) for hit, passage in there if passage.text or hit.number in named]
        so_far.context.sort(key=lambda found: -found[0].score)

    async def _by_words(self, asked: PassageQuery, text: str, budget: Budget, so_far: _Answering) -> Ranked | None:
        try:
            hits = await budget.within(self._index.by_words(asked, text))
        except TimeoutError:
            so_far.missing.append("words")
            return None
        so_far.took_part.add("words")
        return Ranked(hits, WORDS_WEIGHT, by_score=True)

    async def _by_vector(
        self, asked: PassageQuery, text: str, get_embedder: GetEmbedder, budget: Budget, so_far: _Answering
    ) -> Ranked | None:
        async def search() -> list[Hit]:
            embedder = await get_embedder()
            (vector,) = await embedder.embed([text])
            return await self._index.by_vector(asked, embedder.model, vector)

        try:
            hits = await budget.within(search())
        except TimeoutError:
            so_far.notes.append("the embedder was too slow: only words were searched")
        except ModelUnavailable as error:
            self._on_failure(error)
            so_far.notes.append("the embedder cannot be used now: only words were searched")
        else:
            so_far.took_part.add("vectors")
            return Ranked([hit for hit in hits if hit.score >= LEAST_ALIKE], VECTORS_WEIGHT)
        so_far.missing.append("vectors")
        return None

    async def _respond(
        self, query: KnowledgeQuery, budget: Budget, so_far: _Answering, progress: Progress | None
    ) -> None:
        passages = [passage for _, passage in so_far.context]
        wanted = WantedAnswer(question=query.query, passages=passages, format=query.format, language=query.language)
        if self._writer is not None:
            so_far.response = await self._written(wanted, self._writer, budget, so_far, progress)
        elif query.language is not None:
            so_far.notes.append("context_hints.language has no effect: passages are quoted as they are")
        if so_far.response:
            so_far.took_part.add("answer")
        else:
            so_far.response = quoted(wanted)

    async def _written(
        self, wanted: WantedAnswer, writer: AnswerWriter, budget: Budget, so_far: _Answering, progress: Progress | None
    ) -> str:
        """What a model answers; empty if that cannot be used, with a note."""
        told = 0

        def tell(count: int) -> None:
            nonlocal told
            if progress is not None and count >= told:
                progress(count, None, "writing the answer")
                told = count + _TOLD_EVERY

        tell(0)
        try:
            text = await budget.within(writer.write(conversation(wanted), tell))
        except TimeoutError:
            so_far.notes.append("the model was too slow: the passages are quoted instead")
        except ModelUnavailable as error:
            self._on_failure(error)
            so_far.notes.append("the model cannot be used now: the passages are quoted instead")
        else:
            return _usable(text, wanted.passages, so_far)
        so_far.missing.append("answer")
        return ""


def _usable(text: str, passages: Sequence[FoundPassage], so_far: _Answering) -> str:
    if text.strip().strip(".") == NOT_ANSWERED:
        so_far.notes.append("the model found no answer in the passages: they are quoted instead")
        return ""
    written = checked(text, passages)
    if not written.text:
        so_far.missing.append("answer")
        so_far.notes.append("the model cited none of the passages: they are quoted instead")
    elif written.removed:
        so_far.notes.append(f"paragraphs of the answer that cited no passage were removed: {written.removed}")
    return written.text


def _data(so_far: _Answering, request: ActionRequest) -> dict[str, Any]:
    data: dict[str, Any] = {
        "response": so_far.response,
        "context": [_told(hit, passage, request) for hit, passage in so_far.context],
    }
    if so_far.missing:
        data |= {"partial": True, "missing": so_far.missing}
    if so_far.notes:
        data["notes"] = so_far.notes
    return data


def _told(hit: Hit, passage: FoundPassage, request: ActionRequest) -> dict[str, Any]:
    told: dict[str, Any] = {
        "document_id": passage.document_id,
        "title": passage.title,
        "path": list(passage.path),
        "heading": list(passage.heading),
        "passage": passage.text,
        "score": round(hit.score, 6),
        "revision": passage.revision,
        "tags": list(passage.tags),
    }
    if passage.is_human_readable:
        told["web_uri"] = page_of(request, passage.document_id)
    return told

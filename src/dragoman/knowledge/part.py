"""The knowledge service as a part of a server: its actions as tools, each with slots of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from dragoman.errors import StorageError
from dragoman.knowledge.actions import ACTIONS, CHANGES, QUERY, Perform, changing
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.answering import AnswerWriter
from dragoman.knowledge.embedding import Embedders
from dragoman.knowledge.index import PassageIndex, PassageVectors
from dragoman.knowledge.migrations import MIGRATIONS, PART
from dragoman.knowledge.port import ActionRequest, Applied, Audit, DocumentQuota, Documents
from dragoman.knowledge.querying import Queries
from dragoman.knowledge.repeats import ActionRepeats
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.knowledge.standing import AuthorizeAction, has_tenant, holder_of
from dragoman.knowledge.vectors import EVERY_SECONDS, JOB, VectorWork, embedder_of_queries
from dragoman.parts.part import Contribution, Facilities, Loop, OwnPipeline, Part, ScheduledJob
from dragoman.storage.port import PurgeClock
from dragoman.tools.context import ToolContext

_TIDY_SECONDS = 60.0
_MOST_AT_ONCE = 200
_INDEXED_AT_ONCE = 10
_CONVERTED_AT_ONCE = 100


def knowledge_part(
    web_base: str, most_bytes: int, embedders: Embedders | None = None, writer: AnswerWriter | None = None
) -> Part:
    """Documents have pages at `web_base`. No result of a tool weighs more than `most_bytes`.

    Without embedders, passages are found by their words alone.
    """

    def build(given: Facilities) -> Contribution:
        settings: KnowledgeConfig = given.settings
        documents, passages = given.storage.port(Documents), given.storage.port(PassageIndex)
        repeats = ActionRepeats(documents, most_bytes)
        aliases = AliasUse(given.storage.port(Audit), given.clock)
        queries = Queries(
            documents,
            passages,
            given.clock,
            embedder_of_queries(embedders, given.storage.port(PassageVectors), given.clock),
            writer,
            most_kept=settings.answer_bytes_per_tenant,
            on_failure=lambda error: given.logger.warn("a model cannot be used", {"reason": str(error)}),
            test_mode=settings.test_mode,
        )
        purge_clock = given.storage.port(PurgeClock)
        follow_up = FollowUp(documents, passages, purge_clock)
        quota = DocumentQuota(settings.documents_per_tenant, settings.document_bytes_per_tenant)
        performs: dict[str, Perform] = {
            **{name: follow_up.after(changing(make, documents, given.clock, quota)) for name, make in CHANGES.items()},
            QUERY: queries.perform,
        }

        def pipeline(name: str) -> OwnPipeline:
            action = ACTIONS[name]
            stage = AuthorizeAction(action, performs[name], aliases, given.clock, web_base, settings.idempotency_ttl_ms)
            return OwnPipeline(
                tools=(name,),
                max_concurrent=settings.max_concurrent,
                max_concurrent_setting="knowledge.max_concurrent",
                max_payload_bytes=action.max_payload_bytes,
                stages=(stage,),
                repeats=repeats,
                holder_of=holder_of,
            )

        return Contribution(
            tools=tuple(action.tool(has_tenant) for action in ACTIONS.values()),
            pipelines=tuple(map(pipeline, ACTIONS)),
            loops=(
                Loop("knowledge.follow_up", follow_up.run),
                given.scheduled(ScheduledJob("knowledge.tidy", _TIDY_SECONDS, partial(tidy, documents, purge_clock))),
                given.scheduled(ScheduledJob("knowledge.convert", _TIDY_SECONDS, partial(convert, documents))),
                given.scheduled(ScheduledJob("knowledge.index", _TIDY_SECONDS, partial(catch_up, passages))),
                *_vector_loops(given, embedders),
            ),
        )

    return Part(name=PART, settings=KnowledgeConfig, migrations=MIGRATIONS, build=build)


def _vector_loops(given: Facilities, embedders: Embedders | None) -> Iterator[Loop]:
    embedder = None if embedders is None else embedders.make(is_patient=True)
    if embedder is not None:
        work = VectorWork(given.storage.port(PassageVectors), embedder, given.clock)
        yield given.scheduled(ScheduledJob(JOB, EVERY_SECONDS, work.run))


class FollowUp:
    """Does what changes of this process have left to be done, soon. The jobs do what other processes have left."""

    def __init__(self, documents: Documents, passages: PassageIndex, purge_clock: PurgeClock) -> None:
        self._documents = documents
        self._passages = passages
        self._purge_clock = purge_clock
        self._is_wanted = asyncio.Event()

    def after(self, perform: Perform) -> Perform:
        """Carries out an action, and notices whether something is left."""

        async def perform_and_notice(
            arguments: dict[str, Any], request: ActionRequest, context: ToolContext
        ) -> Applied:
            applied = await perform(arguments, request, context)
            if applied.is_unfinished:
                self._is_wanted.set()
            return applied

        return perform_and_notice

    async def run(self) -> None:
        """The loop. A storage that fails is left to the jobs, which report it."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            with suppress(StorageError):
                await tidy(self._documents, self._purge_clock)
                await catch_up(self._passages)


async def tidy(documents: Documents, purge_clock: PurgeClock) -> dict[str, int]:
    """Delete what is due, and purge, in steps that nobody has to wait for."""
    tidied, now = 0, await purge_clock.now()
    while done := await documents.tidy(_MOST_AT_ONCE, now):
        tidied += done
    return {"tidied": tidied}


async def convert(documents: Documents) -> dict[str, int]:
    """Convert documents from earlier versions, a few revisions at a time: each may have a text of megabytes."""
    converted = 0
    while done := await documents.convert(_CONVERTED_AT_ONCE):
        converted += done
    return {"converted": converted}


async def catch_up(passages: PassageIndex) -> dict[str, int]:
    """Index documents from before there was an index, a few at a time: a document may have thousands of passages."""
    indexed = 0
    while done := await passages.catch_up(_INDEXED_AT_ONCE):
        indexed += done
    return {"indexed": indexed}

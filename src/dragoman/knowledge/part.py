"""The knowledge service as a part of a server: its actions as tools, each with slots of its own."""

from __future__ import annotations

from functools import partial

from dragoman.knowledge.actions import ACTIONS, CHANGES, QUERY, Perform, changing
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.answering import AnswerWriter
from dragoman.knowledge.embedding import Embedder
from dragoman.knowledge.index import PassageIndex
from dragoman.knowledge.migrations import MIGRATIONS, PART
from dragoman.knowledge.port import Audit, Documents
from dragoman.knowledge.querying import Queries
from dragoman.knowledge.repeats import ActionRepeats
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.knowledge.standing import AuthorizeAction, Standings
from dragoman.parts.part import Contribution, Facilities, OwnPipeline, Part, ScheduledJob

_TIDY_SECONDS = 60.0
_MOST_AT_ONCE = 200


def knowledge_part(web_base: str, embedder: Embedder | None = None, writer: AnswerWriter | None = None) -> Part:
    """Documents have pages at `web_base`. Without an embedder only words are searched."""

    def build(given: Facilities) -> Contribution:
        settings: KnowledgeConfig = given.settings
        documents = given.storage.port(Documents)
        standings = Standings(given.is_near)
        repeats = ActionRepeats(documents)
        aliases = AliasUse(given.storage.port(Audit), given.clock)
        index = given.storage.port(PassageIndex)
        queries = Queries(documents, index, given.clock, embedder, writer, test_mode=settings.test_mode)
        performs: dict[str, Perform] = {
            **{name: changing(make, documents, given.clock) for name, make in CHANGES.items()},
            QUERY: queries.perform,
        }

        def pipeline(name: str) -> OwnPipeline:
            action = ACTIONS[name]
            stage = AuthorizeAction(
                action, performs[name], aliases, standings, given.clock, web_base, settings.idempotency_ttl_ms
            )
            return OwnPipeline(
                tools=(name,),
                max_concurrent=settings.max_concurrent,
                max_payload_bytes=action.max_payload_bytes,
                stages=(stage,),
                repeats=repeats,
            )

        return Contribution(
            tools=tuple(action.tool(standings.has_tenant) for action in ACTIONS.values()),
            pipelines=tuple(map(pipeline, ACTIONS)),
            loops=(given.scheduled(ScheduledJob("knowledge.tidy", _TIDY_SECONDS, partial(tidy, documents))),),
        )

    return Part(name=PART, settings=KnowledgeConfig, migrations=MIGRATIONS, build=build)


async def tidy(documents: Documents) -> dict[str, int]:
    """Delete what is due, and purge, in steps that nobody has to wait for."""
    tidied, done = 0, _MOST_AT_ONCE
    while done >= _MOST_AT_ONCE:
        done = await documents.tidy(_MOST_AT_ONCE)
        tidied += done
    return {"tidied": tidied}

"""The knowledge service as a part of a server: its actions as tools, each with slots of its own."""

from __future__ import annotations

from dragoman.clock import Clock, sleep
from dragoman.errors import StorageError
from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.migrations import MIGRATIONS, PART
from dragoman.knowledge.port import Audit, Documents
from dragoman.knowledge.repeats import ActionRepeats
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.knowledge.standing import AuthorizeAction, Standings
from dragoman.parts.part import Contribution, Facilities, Loop, OwnPipeline, Part
from dragoman.telemetry.log import Logger

_PAUSE_SECONDS = 60.0
_MOST_AT_ONCE = 200


def knowledge_part(web_base: str, *, is_owner: bool) -> Part:
    """Documents have pages at `web_base`. The process that is the owner tidies up."""

    def build(given: Facilities) -> Contribution:
        settings: KnowledgeConfig = given.settings
        documents = given.storage.port(Documents)
        standings = Standings(given.is_near)
        repeats = ActionRepeats(documents)
        aliases = AliasUse(given.storage.port(Audit), given.clock)

        def pipeline(name: str) -> OwnPipeline:
            action = ACTIONS[name]
            stage = AuthorizeAction(
                action, documents, aliases, standings, given.clock, web_base, settings.idempotency_ttl_ms
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
            loops=(Loop("tidy", lambda: keep_tidying(documents, given.clock, given.logger)),) if is_owner else (),
        )

    return Part(name=PART, settings=KnowledgeConfig, migrations=MIGRATIONS, build=build)


async def keep_tidying(documents: Documents, clock: Clock, logger: Logger) -> None:
    """Delete what is due, and purge, in steps that nobody has to wait for."""
    while True:
        done = 0
        try:
            done = await documents.tidy(_MOST_AT_ONCE)
        except StorageError as error:
            logger.warn("documents could not be tidied up", {"reason": str(error)})
        if done < _MOST_AT_ONCE:
            await sleep(clock, _PAUSE_SECONDS)

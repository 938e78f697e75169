"""The gateway as a part of a server that is served over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.calls.intake import Intake
from dragoman.errors import ConfigError
from dragoman.findings import Finding
from dragoman.gateway.accepting import Acceptor
from dragoman.gateway.answers import ActionAnswers
from dragoman.gateway.artifacts import ArtifactRoutes
from dragoman.gateway.credentials import Credentials
from dragoman.gateway.exchanges import Exchanges
from dragoman.gateway.keeping import ArtifactBucket, open_objects
from dragoman.gateway.migrations import MIGRATIONS, PART
from dragoman.gateway.port import Quotas, SigningKeys
from dragoman.gateway.rates import GatewayRates
from dragoman.gateway.registry import RegistryRoutes
from dragoman.gateway.requests import ActionRequests
from dragoman.gateway.service import Gateway
from dragoman.gateway.settings import GatewayConfig
from dragoman.jobs.port import Registry
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.port import Audit, Documents
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.parts.part import Contribution, Facilities, Part
from dragoman.slo.meter import ActionMeter
from dragoman.telemetry.log import Logger

if TYPE_CHECKING:
    from dragoman.access.authenticator import Authenticator

NO_VERIFIER = (
    "nobody could be let in: make a key with `dragoman keys generate --tenant NAME --role ROLE`, or set up auth with "
    "callers or an issuer"
)
NO_KEYS = "nobody could be let in: set up auth with callers or an issuer, as keys would end with the process"


def gateway_part(
    intake: Intake,
    authenticator: Authenticator | None,
    knowledge: KnowledgeConfig,
    most_bytes: int,
    most_answer_bytes: int,
    bucket: ArtifactBucket | None,
    meter: ActionMeter,
    *,
    is_durable: bool,
) -> Part:
    """The routes. Internal callers are those that `authenticator` knows; without one there are external ones only.

    No body of a request has more than `most_bytes`, and no answer more than `most_answer_bytes`.
    Artifacts are in `bucket`, or else in the storage. Requests are counted by `meter`.
    """

    def build(given: Facilities) -> Contribution:
        settings: GatewayConfig = given.settings
        keys = given.storage.port(SigningKeys)
        credentials = Credentials(keys, authenticator, given.clock, given.logger, settings.audience)
        rates = GatewayRates(given.storage.port(Quotas), given.clock)
        exchanges = Exchanges(credentials, rates, settings, given.ids, given.logger, most_bytes, meter)
        aliases = AliasUse(given.storage.port(Audit), given.clock)
        documents = given.storage.port(Documents)
        requests = given.storage.port(ActionRequests)
        kept = open_objects(given.storage, settings, given.clock, bucket)
        artifacts = ArtifactRoutes(exchanges, kept.objects, kept.links, settings, given.clock)
        gateway = Gateway(
            exchanges,
            Acceptor(requests, exchanges, kept.objects, given.clock, given.ids, knowledge.answer_bytes_per_tenant),
            requests,
            kept.objects,
            ActionAnswers(kept.objects, most_answer_bytes, knowledge.answer_bytes_per_tenant),
            documents,
            aliases,
            intake,
            settings,
            knowledge,
            given.clock,
        )

        async def start() -> None:
            if bucket is not None and bucket.examine is not None:
                check_findings(await bucket.examine(), given.logger)
            now = given.clock.now().timestamp()
            if authenticator is None and not any(key.is_valid(now) for key in await keys.list()):
                raise ConfigError([("gateway", NO_VERIFIER if is_durable else NO_KEYS)])
            if not is_durable:
                said = "documents, keys, nonces and results end with the process: storage.engine is memory"
                given.logger.warn(said)

        registry = RegistryRoutes(exchanges, given.storage.port(Registry), given.clock)
        return Contribution(routes=(*gateway.routes(), *registry.routes(), *artifacts.routes()), start=start)

    return Part(name=PART, settings=GatewayConfig, migrations=MIGRATIONS, build=build)


def check_findings(findings: Sequence[Finding], logger: Logger) -> None:
    """Raise `ConfigError` for what is wrong with the bucket of artifacts, and log what was not checked."""
    for each in findings:
        if each.verdict == "warning":
            logger.warn("the bucket of artifacts was not checked", {"reason": each.message})
    problems = [("gateway.artifact_store", each.message) for each in findings if each.verdict == "problem"]
    if problems:
        raise ConfigError(problems)

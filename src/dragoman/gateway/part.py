"""The gateway as a part of a server that is served over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.calls.intake import Intake
from dragoman.errors import ConfigError
from dragoman.gateway.credentials import Credentials
from dragoman.gateway.migrations import MIGRATIONS, PART
from dragoman.gateway.port import Quotas, SigningKeys
from dragoman.gateway.rates import GatewayRates
from dragoman.gateway.service import Gateway
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge.port import Audit, Documents
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.knowledge.standing import Standings
from dragoman.parts.part import Contribution, Facilities, Part

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
    *,
    is_durable: bool,
) -> Part:
    """The routes. Internal callers are those that `authenticator` knows; without one there are external ones only.

    No body of a request has more than `most_bytes`.
    """

    def build(given: Facilities) -> Contribution:
        settings: GatewayConfig = given.settings
        keys = given.storage.port(SigningKeys)
        credentials = Credentials(
            keys, authenticator, given.clock, given.logger, settings.audience, settings.public_url
        )
        gateway = Gateway(
            credentials,
            Standings(given.is_near),
            GatewayRates(given.storage.port(Quotas), given.clock),
            given.storage.port(Documents),
            given.storage.port(Audit),
            intake,
            settings,
            knowledge,
            given.clock,
            given.ids,
            given.logger,
            most_bytes,
        )

        async def start() -> None:
            now = given.clock.now().timestamp()
            if authenticator is None and not any(key.is_valid(now) for key in await keys.list()):
                raise ConfigError([("gateway", NO_VERIFIER if is_durable else NO_KEYS)])
            if not is_durable:
                said = "documents, keys, nonces and results end with the process: storage.engine is memory"
                given.logger.warn(said)

        return Contribution(routes=gateway.routes(), start=start)

    return Part(name=PART, settings=GatewayConfig, migrations=MIGRATIONS, build=build)

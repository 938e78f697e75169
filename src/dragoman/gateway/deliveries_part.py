"""Requests that are carried out later, as a part of a server, whatever its transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import random
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.clock import Clock
from dragoman.gateway.accepting import Acceptor, BusAcceptor
from dragoman.gateway.answers import ActionAnswers
from dragoman.gateway.credentials import Credentials
from dragoman.gateway.delivering import Deliverer
from dragoman.gateway.delivery_migrations import MIGRATIONS, PART
from dragoman.gateway.deprecations import Deprecations
from dragoman.gateway.exchanges import Exchanges
from dragoman.gateway.keeping import ArtifactBucket, Objects, open_objects
from dragoman.gateway.port import Quotas, SigningKeys
from dragoman.gateway.rates import GatewayRates
from dragoman.gateway.requests import KEPT_DEAD_SECONDS, ActionRequests
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge.aliases import AliasUse
from dragoman.knowledge.port import Audit
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.messaging.bus import Bus, DeadLetters
from dragoman.messaging.consumer import Consumer
from dragoman.messaging.migrations import MIGRATIONS as BUS_MIGRATIONS
from dragoman.messaging.subjects import ALL_ACCEPTED, ALL_ACTIONS
from dragoman.parts.part import Contribution, Facilities, Loop, Part, ScheduledJob
from dragoman.slo.meter import ActionMeter
from dragoman.storage.port import PurgeClock

if TYPE_CHECKING:
    from dragoman.access.authenticator import Authenticator

_ACCEPTED_AT_ONCE = 8
"""Tenants whose messages of the bus are checked at a time."""
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
_MOST_AT_ONCE = 200


class DeliveryOptions(Struct, frozen=True, kw_only=True):
    """The settings that the part needs."""

    gateway: GatewayConfig
    knowledge: KnowledgeConfig
    make_authenticator: Callable[[Clock], Authenticator | None]
    make_bucket: Callable[[Clock], ArtifactBucket | None]
    """Makes the bucket that artifacts are kept in, if there is one."""
    most_bytes: int
    """Of a message."""
    most_answer_bytes: int
    meter: ActionMeter
    tenants: frozenset[str]
    """Those of internal callers."""


def deliveries_part(options: DeliveryOptions) -> Part:
    """Accepts messages of the bus, and carries out what was accepted, over HTTP too."""

    def build(given: Facilities) -> Contribution:
        kept = open_objects(given.storage, options.gateway, given.clock, options.make_bucket(given.clock))
        deprecations = _deprecations(options, given)
        return Contribution(
            loops=(*_consumers(options, given, kept.objects), *_jobs(given, kept.objects, deprecations)),
            start=deprecations.check,
        )

    return Part(name=PART, migrations=(*BUS_MIGRATIONS, *MIGRATIONS), build=build)


def _consumers(options: DeliveryOptions, given: Facilities, objects: Objects) -> Iterator[Loop]:
    settings, knowledge, clock, storage = options.gateway, options.knowledge, given.clock, given.storage
    bus, requests = storage.port(Bus), storage.port(ActionRequests)
    credentials = Credentials(
        storage.port(SigningKeys), options.make_authenticator(clock), clock, given.logger, settings.audience
    )
    rates = GatewayRates(storage.port(Quotas), clock)
    exchanges = Exchanges(credentials, rates, settings, given.ids, given.logger, options.most_bytes, options.meter)
    aliases = AliasUse(storage.port(Audit), clock)
    accepting = Acceptor(requests, exchanges, objects, clock, given.ids, knowledge.answer_bytes_per_tenant)
    acceptor = BusAcceptor(accepting, requests, exchanges, aliases, clock, random, options.most_bytes)
    deliverer = Deliverer(
        requests,
        exchanges,
        given.get_intake,
        objects,
        ActionAnswers(objects, options.most_answer_bytes, knowledge.answer_bytes_per_tenant),
        settings,
        knowledge,
        clock,
        random,
        given.logger,
        given.take_slot,
    )
    consumer = partial(Consumer, bus, clock=clock, logger=given.logger, ack_seconds=settings.ack_deadline_ms / 1000)
    # One of each tenant: they are accepted in the order of their publication, on which `seq` depends.
    accept = consumer(ALL_ACTIONS, acceptor.handle, at_once=_ACCEPTED_AT_ONCE, most_per_subject=1)
    yield Loop("accept", accept.run)
    # More than are carried out at a time: what is taken and settled meanwhile shares its commits with others. And more
    # than one tenant may have under way.
    most = settings.max_in_flight_per_tenant
    at_once = max(knowledge.max_concurrent, 2 * most)
    yield Loop("deliver", consumer(ALL_ACCEPTED, deliverer.handle, at_once=at_once, most_per_subject=most).run)


def _deprecations(options: DeliveryOptions, given: Facilities) -> Deprecations:
    keys, audit = given.storage.port(SigningKeys), given.storage.port(Audit)
    return Deprecations(options.gateway.deprecations, options.tenants, keys, audit, given.clock, given.logger)


def _jobs(given: Facilities, objects: Objects, deprecations: Deprecations) -> Iterator[Loop]:
    storage = given.storage
    purge = partial(_purge, storage.port(DeadLetters), storage.port(ActionRequests), storage.port(PurgeClock))
    yield given.scheduled(ScheduledJob("gateway.purge", _MINUTE, purge))
    yield given.scheduled(ScheduledJob("gateway.artifacts", _HOUR, objects.sweep))
    yield given.scheduled(ScheduledJob("gateway.deprecations", _DAY, deprecations.announce))


async def _purge(dead: DeadLetters, requests: ActionRequests, purge_clock: PurgeClock) -> dict[str, int]:
    """Forget answers, settled messages and dead letters that were kept long enough, in small steps."""
    purged, now = {"messages": 0, "requests": 0}, await purge_clock.now()
    while done := await dead.purge(_MOST_AT_ONCE, died_before=now - KEPT_DEAD_SECONDS, until=now):
        purged["messages"] += done
    while done := await requests.forget(_MOST_AT_ONCE, now):
        purged["requests"] += done
    return purged

"""The page of the knowledge service as a part of a server that is served over HTTP."""

from __future__ import annotations

from dragoman.edge.connection import Services
from dragoman.gateway.port import Quotas
from dragoman.gateway.rates import GatewayRates, RequestRates
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge.port import Documents
from dragoman.knowledge_page.reading import Reading
from dragoman.knowledge_page.routes import KnowledgePage
from dragoman.parts.part import Contribution, Facilities, Part


def knowledge_page_part(services: Services, gateway: GatewayConfig, *, has_answers: bool) -> Part:
    """The page, and what it fetches, at the rates of the gateway. `has_answers`: whether a model writes answers."""

    def build(given: Facilities) -> Contribution:
        reading = Reading(given.storage.port(Documents))
        rates = RequestRates(GatewayRates(given.storage.port(Quotas), given.clock), gateway)
        page = KnowledgePage(reading, services, rates, has_answers=has_answers)
        return Contribution(routes=page.routes())

    return Part(name="knowledge_page", build=build)

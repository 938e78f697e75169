"""The page of the knowledge service as a part of a server that is served over HTTP."""

from __future__ import annotations

from dragoman.edge.connection import Services
from dragoman.knowledge.port import Documents
from dragoman.knowledge.standing import Standings
from dragoman.knowledge_page.reading import Reading
from dragoman.knowledge_page.routes import KnowledgePage
from dragoman.parts.part import Contribution, Facilities, Part


def knowledge_page_part(services: Services) -> Part:
    """The page, and what it fetches."""

    def build(given: Facilities) -> Contribution:
        reading = Reading(given.storage.port(Documents))
        page = KnowledgePage(reading, Standings(given.is_near), services)
        return Contribution(routes=page.routes())

    return Part(name="knowledge_page", build=build)

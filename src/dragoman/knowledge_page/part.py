"""The page of the knowledge service as a part of a server that is served over HTTP."""

from __future__ import annotations

from dragoman.edge.connection import Services
from dragoman.knowledge.port import Documents
from dragoman.knowledge_page.reading import Reading
from dragoman.knowledge_page.routes import KnowledgePage
from dragoman.parts.part import Contribution, Facilities, Part


def knowledge_page_part(services: Services, *, has_answers: bool) -> Part:
    """The page, and what it fetches. `has_answers`: whether a model writes answers."""

    def build(given: Facilities) -> Contribution:
        reading = Reading(given.storage.port(Documents))
        page = KnowledgePage(reading, services, has_answers=has_answers)
        return Contribution(routes=page.routes())

    return Part(name="knowledge_page", build=build)

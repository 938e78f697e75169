"""Memories as a part of a server: the `memory_*` tools on whatever storage there is."""

from __future__ import annotations

from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Memories
from dragoman.memories.tools import memory_tools
from dragoman.parts.part import Contribution, Facilities, Part


def memories_part(most_bytes: int, memories: Memories | None = None) -> Part:
    """The tools. No result weighs more than `most_bytes`; without `memories`, the storage's own are used."""

    def build(given: Facilities) -> Contribution:
        port = given.storage.port(Memories) if memories is None else memories
        return Contribution(tools=memory_tools(port, most_bytes))

    return Part(name="memories", migrations=MIGRATIONS, build=build)

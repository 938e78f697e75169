"""The explorer as a part of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.calls.call import Stage
from dragoman.calls.runner import Runner
from dragoman.edge.connection import Services
from dragoman.edge.served import Served
from dragoman.explorer.explorer import Explorer
from dragoman.explorer.runs import PageRuns
from dragoman.explorer.settings import ExplorerConfig
from dragoman.parts.part import Contribution, Facilities, Part

if TYPE_CHECKING:
    from dragoman.explorer.action_letters import ActionLetterViews
    from dragoman.explorer.agents import AgentViews
    from dragoman.explorer.tasks import TaskViews


def explorer_part(
    served: Served,
    services: Services,
    runner: Runner,
    stages: tuple[Stage, ...],
    most_bytes: int,
    agents: AgentViews | None,
    tasks: TaskViews,
    letters: ActionLetterViews | None,
) -> Part:
    """The page, and what it fetches. No result that it shows weighs more than `most_bytes`."""

    def build(given: Facilities) -> Contribution:
        def load() -> dict[str, Any]:
            return {
                "state": served.state.value,
                "health": given.health(),
                "tools": given.catalogue.version,
                "underWay": runner.under_way,
            }

        runs = PageRuns(services, given.clock, most_bytes)
        explorer = Explorer(given.settings, services, runs, stages, load, agents, tasks, letters)
        return Contribution(routes=explorer.routes(), observers=(explorer.recent.observe,))

    return Part(name="explorer", settings=ExplorerConfig, build=build)

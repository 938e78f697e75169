"""Agents as a part of a server."""

from __future__ import annotations

from functools import partial
from random import random

from dragoman.agents.coordinator import Coordinator
from dragoman.agents.deliveries import Deliveries
from dragoman.agents.drafts import Drafts
from dragoman.agents.figures import AgentFigures
from dragoman.agents.ledger import Ledger, LedgerAdmin
from dragoman.agents.migrations import MIGRATIONS, PART
from dragoman.agents.settings import AacpConfig
from dragoman.agents.tools import AgentTools
from dragoman.agents.upkeep import Upkeep
from dragoman.parts.part import Contribution, Facilities, Loop, Part
from dragoman.storage.port import PurgeClock
from dragoman.tools.settings import TimeoutsConfig, ToolsConfig


def agents_part(
    coordinator: Coordinator,
    agent_tools: AgentTools,
    tools: ToolsConfig,
    timeouts: TimeoutsConfig,
    *,
    space: str,
    ledger: tuple[Ledger, LedgerAdmin] | None = None,
) -> Part:
    """The agents of a coordinator. Without `ledger`, the storage's own is used."""

    def build(given: Facilities) -> Contribution:
        config, clock, logger = given.settings, given.clock, given.logger
        kept, admin = ledger or (given.storage.port(Ledger), given.storage.port(LedgerAdmin))
        drafts = Drafts(clock, given.ids, space, config.default_ttl_ms, tools.max_payload_bytes)
        deliveries = Deliveries(
            kept,
            admin,
            config,
            clock,
            logger,
            drafts,
            coordinator,
            random,
            given.publish,
            max_state_bytes=tools.max_state_bytes,
            max_response_bytes=given.max_value_bytes,
            timeout_ms=timeouts.tool_timeouts.execution,
        )
        upkeep, figures = Upkeep(deliveries, given.storage.port(PurgeClock)), AgentFigures(deliveries)
        coordinator.attach(deliveries)
        made = agent_tools.tools()

        def show_tools() -> None:
            """The tools are there while there are agents."""
            is_shown = given.catalogue.get(made[0].definition.name) is not None
            if bool(coordinator.agents) is is_shown:
                return
            for each in made:
                if is_shown:
                    given.catalogue.unregister(each.definition.name)
                else:
                    given.catalogue.register(each, is_builtin=True)

        coordinator.on_agents_change = show_tools
        show_tools()
        return Contribution(
            start=partial(_start, deliveries, upkeep, given),
            stop=deliveries.stop,
            on_change=upkeep.on_change,
            loops=(
                Loop("follow", upkeep.follow),
                Loop("hold", upkeep.keep_holding),
                Loop("purge", upkeep.keep_purging),
                Loop("figures", figures.keep_reading),
            ),
            gauges=figures.gauges(),
        )

    return Part(name=PART, settings=AacpConfig, migrations=MIGRATIONS, build=build)


async def _start(deliveries: Deliveries, upkeep: Upkeep, given: Facilities) -> None:
    upkeep.start()
    await deliveries.start(*given.open_pipeline(deliveries.config.max_concurrent, "agent message handled"))

"""The metrics of agents. Each process shows those that it holds, so the figures of several processes add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dragoman.agents.deliveries import Deliveries
from dragoman.agents.ledger import AgentQueue
from dragoman.clock import sleep
from dragoman.errors import ErrorCode, StorageError
from dragoman.telemetry.figures import OTHER, Gauge
from dragoman.telemetry.log import exception_facts
from dragoman.telemetry.metrics import MOST_TOOLS

MOST_COUNTED = 10_000
"""Of one agent's messages; a deeper queue shows as this deep."""
_MOST_IN_ALL = 100_000
_EVERY = 5.0


class AgentFigures:
    """The ledger is read by a loop, and not whenever somebody asks for the metrics."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._queues: Mapping[str, AgentQueue] = {}

    async def keep_reading(self) -> None:
        """Read how deep the queues in the ledger are."""
        host = self._deliveries
        while True:
            held = tuple(host.workers)
            try:
                self._queues = await host.admin.queues(held, min(MOST_COUNTED, _MOST_IN_ALL // max(1, len(held))))
            except StorageError as error:
                host.logger.warn("the queues of agents cannot be counted", exception_facts(error, ErrorCode.INTERNAL))
            await sleep(host.clock, _EVERY)

    def gauges(self) -> tuple[Gauge, ...]:
        host = self._deliveries
        counters = (
            ("dragoman_agent_retries", "Attempts that failed and are followed by another.", lambda: host.retries),
            ("dragoman_agent_dead_letters", "Messages that failed at the last attempt.", lambda: host.dead_letters),
            ("dragoman_agent_takeovers", "Agents taken over from a process that had ended.", lambda: host.takeovers),
        )
        return (
            Gauge("dragoman_agent_mailbox_messages", "Messages that wait in memory.", self._mailboxes, label="agent"),
            Gauge("dragoman_agent_queue_messages", "Open messages in the ledger.", self._depths, label="agent"),
            Gauge("dragoman_agent_oldest_message_seconds", "Age of the oldest of them.", self._ages, label="agent"),
            *(Gauge(name, about, read, is_counter=True) for name, about, read in counters),
            Gauge("dragoman_agents_quarantined", "Agents whose handler goes on after its deadline.", self._quarantined),
        )

    def _mailboxes(self) -> dict[str, float]:
        workers = self._deliveries.workers
        return self._by_agent(lambda agent: len(workers[agent].mailbox), sum)

    def _depths(self) -> dict[str, float]:
        return self._by_agent(lambda agent: self._queues[agent].depth if agent in self._queues else 0, sum)

    def _ages(self) -> dict[str, float]:
        now, queues = self._deliveries.drafts.now(), self._queues
        return self._by_agent(lambda agent: max(0.0, now - queues[agent].oldest) if agent in queues else 0.0, max)

    def _quarantined(self) -> int:
        return sum(each.is_quarantined for each in self._deliveries.workers.values())

    def _by_agent(self, read: Callable[[str], float], together: Callable[[Iterable[float]], float]) -> dict[str, float]:
        """A figure of each agent here. The same agents have a label of their own in every process."""
        host = self._deliveries
        named = set(sorted(host.agents)[:MOST_TOOLS])
        shown = {agent: read(agent) for agent in host.workers if agent in named}
        rest = [read(agent) for agent in host.workers if agent not in named]
        return {**shown, OTHER: together([shown.get(OTHER, 0), *rest])} if rest else shown

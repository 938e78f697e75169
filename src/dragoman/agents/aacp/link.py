"""How envelopes get from one endpoint to another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from dragoman.agents.aacp.codec import AACPEncoder
from dragoman.agents.aacp.envelope import AACPEnvelope, AACPReceipt
from dragoman.errors import LinkDown


class AACPLink(Protocol):
    """Carries one thing at a time, and may lose, repeat, delay and reorder.

    It answers for `sourceAgentId`: an endpoint believes it. Both methods return when the link has taken what it is to
    carry, not when that has arrived, and raise `LinkDown` if it takes nothing now.
    """

    async def carry(self, envelope: AACPEnvelope) -> None: ...

    async def acknowledge(self, receipt: AACPReceipt) -> None: ...


class Receiver(Protocol):
    """The end of a link."""

    async def receive(self, envelope: AACPEnvelope) -> None: ...

    async def receive_receipt(self, receipt: AACPReceipt) -> None: ...


class DirectLink:
    """Carries to endpoints of the same process, each envelope as text, so that the two sides share no value."""

    def __init__(self) -> None:
        self._encoder = AACPEncoder()
        self._receivers: dict[str, Receiver] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def attach(self, agent_id: str, receiver: Receiver) -> None:
        """Carry what is for `agent_id` to `receiver` from now on."""
        self._receivers[agent_id] = receiver

    async def carry(self, envelope: AACPEnvelope) -> None:
        receiver = self._receiver(envelope.target_agent_id)
        self._start(receiver.receive(self._encoder.decode(self._encoder.encode(envelope))))

    async def acknowledge(self, receipt: AACPReceipt) -> None:
        self._start(self._receiver(receipt.target_agent_id).receive_receipt(receipt))

    async def settle(self) -> None:
        """Return when everything has been received, and what was sent in answer too; raises what receivers raised."""
        while tasks := tuple(self._under_way):
            await asyncio.gather(*tasks)
            self._under_way.difference_update(tasks)  # Their own callbacks may not have had a turn yet.

    async def close(self) -> None:
        """Carry nothing more, and cancel what is being received."""
        self._receivers.clear()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _receiver(self, agent_id: str) -> Receiver:
        if agent_id not in self._receivers:
            raise LinkDown(f"There is no endpoint for {agent_id}")
        return self._receivers[agent_id]

    def _start(self, receiving: Coroutine[Any, Any, None]) -> None:
        # Apart from the sender: a handler must not end when a sender stops waiting.
        task = asyncio.create_task(receiving)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

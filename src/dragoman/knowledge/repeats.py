"""Repeated actions. Implements `Repeats` for them: the receipt of an action is stored by its own transaction.

So there is no moment at which an action has had its effect and its outcome is not known, and nothing to be given up
when a process dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from dragoman.calls.call import Call, Service
from dragoman.calls.repeats import key_conflict, until_told
from dragoman.knowledge.port import ActionRequest, Applied, Documents
from dragoman.tools.storage_errors import words_storage_errors


class _Flight(Struct, eq=False):
    """An action with a key that is under way in this process."""

    fingerprint: bytes
    ended: asyncio.Future[None]


class ActionRepeats:
    """A repeat that comes while the first one is under way waits for it, and takes no slot."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._flights: dict[tuple[str, ...], _Flight] = {}

    def join(self, call: Call, proceed: Service) -> Awaitable[Any]:
        """See `Repeats`."""
        request: ActionRequest = call.kept_as
        return proceed(call) if request.key is None else self._join(call, request, request.key, proceed)

    def keep(self, call: Call, proceed: Service, let_go: Callable[[Call], None], take_again: Service) -> Awaitable[Any]:
        """See `Repeats`. The action keeps its outcome itself."""
        return proceed(call)

    async def _join(self, call: Call, request: ActionRequest, key: str, proceed: Service) -> Any:
        scope = request.tenant, request.action, request.subject, key
        while (flight := self._flights.get(scope)) is not None:
            if flight.fingerprint != request.fingerprint:
                raise key_conflict()
            await until_told(call, flight.ended)
        flight = self._flights[scope] = _Flight(request.fingerprint, asyncio.get_running_loop().create_future())
        try:
            earlier = await self._recall(request)
            if earlier is not None:
                call.repeated = earlier.is_repeated
                return earlier.data
            call.cancellation.raise_if_set()  # Its time may be up by now.
            return await proceed(call)
        finally:
            del self._flights[scope]
            flight.ended.set_result(None)
            del flight  # An error in it leads back here, through its traceback.

    @words_storage_errors
    async def _recall(self, request: ActionRequest) -> Applied | None:
        return await self._documents.recall(request)

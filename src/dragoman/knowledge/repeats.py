"""Repeated actions. Implements `Repeats` for them: the receipt of an action is stored by its own transaction.

So there is no moment at which an action has had its effect and its outcome is not known, and nothing to be given up
when a process dies. That transaction also looks for an earlier receipt. A read of its own is needed only for a call
that is refused before it: a repeat gets the first result even if all slots are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from dragoman.calls.call import Call, Service
from dragoman.calls.repeats import key_conflict, until_told
from dragoman.errors import ToolError
from dragoman.knowledge.cutting import cut_to
from dragoman.knowledge.port import ActionRequest, Applied, Documents
from dragoman.knowledge.standing import ActionOrigin
from dragoman.tools.storage_errors import words_storage_errors


class _Flight(Struct, eq=False):
    """An action with a key that is under way in this process."""

    fingerprint: bytes
    ended: asyncio.Future[None]


class ActionRepeats:
    """A repeat that comes while the first one is under way waits for it, and takes no slot."""

    def __init__(self, documents: Documents, most_bytes: int) -> None:
        """A tool's answer weighs at most `most_bytes`. One to an envelope is bounded where it is worded."""
        self._documents = documents
        self._most_bytes = most_bytes
        self._flights: dict[tuple[str, ...], _Flight] = {}

    def join(self, call: Call, proceed: Service) -> Awaitable[Any]:
        """See `Repeats`."""
        request: ActionRequest = call.kept_as
        return proceed(call) if request.key is None else self._join(call, request, request.key, proceed)

    def keep(self, call: Call, proceed: Service, let_go: Callable[[Call], None], take_again: Service) -> Awaitable[Any]:
        """See `Repeats`. The action keeps its outcome itself."""
        return self._keep(call, proceed)

    async def _keep(self, call: Call, proceed: Service) -> Any:
        return self._told(call, await proceed(call))

    async def _join(self, call: Call, request: ActionRequest, key: str, proceed: Service) -> Any:
        scope = request.tenant, request.action, request.subject, key
        while (flight := self._flights.get(scope)) is not None:
            if flight.fingerprint != request.fingerprint:
                raise key_conflict()
            await until_told(call, flight.ended)
        flight = self._flights[scope] = _Flight(request.fingerprint, asyncio.get_running_loop().create_future())
        try:
            return await proceed(call)
        except ToolError:
            earlier = None if call.ran else await self._recall(request)
            if earlier is None:
                raise
            return self._told(call, earlier)
        finally:
            del self._flights[scope]
            flight.ended.set_result(None)
            del flight  # An error in it leads back here, through its traceback.

    @words_storage_errors
    async def _recall(self, request: ActionRequest) -> Applied | None:
        return await self._documents.recall(request)

    def _told(self, call: Call, applied: Applied) -> dict[str, Any]:
        took_part = {} if applied.took_part is None else {"took_part": applied.took_part}
        call.usage = {**call.usage, "qdrant_hits": applied.hits, **took_part}
        call.repeated = applied.is_repeated
        return applied.data if isinstance(call.origin, ActionOrigin) else cut_to(applied.data, self._most_bytes)

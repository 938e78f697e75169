"""The client at the other end of a connection, as the tools that serve it see it: told things, and asked them.

1. In the handshake era the client is sent requests with ids of ours, and its answers come back on the connection.
2. In the modern era it is never sent a request: a tool that has to ask is answered for with its questions.
3. Nobody is made to wait for a client that left, and a client is told when nobody waits for its answer any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from dragoman.errors import ClientCannotBeAsked, ClientRefused, InternalError, InvalidRequest
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, Id
from dragoman.protocol.versions import CAPABILITIES_KEY, LOG_LEVEL_KEY

MOST_QUESTIONS = 256
"""Of one connection, at a time: each is somebody's attention, and a call that waits."""

SendLine: TypeAlias = Callable[[bytes], None]


class Questions:
    """What a connection has asked its client, and not been answered yet. Lives on the event loop."""

    def __init__(self, send: SendLine) -> None:
        self._send = send
        self._ids = count(1)
        self._asked: dict[Id, asyncio.Future[Answer]] = {}
        self.is_open = True

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result; if the waiting is cancelled, the client is told."""
        if not self.is_open or len(self._asked) >= MOST_QUESTIONS:
            raise ClientCannotBeAsked(method)
        request_id = next(self._ids)
        answered = self._asked[request_id] = asyncio.get_running_loop().create_future()
        self._send(jsonrpc.encode_request(request_id, method, params))
        try:
            answer = await answered
        except asyncio.CancelledError:
            if self.is_open:
                params = {"requestId": request_id, "reason": "nobody waits for the answer any longer"}
                self._send(jsonrpc.encode_notification("notifications/cancelled", params))
            raise
        finally:
            self._asked.pop(request_id, None)
            del answered  # An error in it leads back here, through its traceback.
        return _result_in(answer)

    def answered(self, answer: Answer) -> None:
        """The client answers; what nobody asked, or asks any longer, is ignored."""
        waiting = self._asked.pop(answer.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def close(self) -> None:
        """The client is gone: nothing will be answered, and nothing can be asked."""
        self.is_open = False
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            if not waiting.done():
                waiting.set_exception(ClientCannotBeAsked("a request"))


def _result_in(answer: Answer) -> dict[str, Any]:
    if answer.error is not None:
        code, message = answer.error.get("code"), answer.error.get("message")
        raise ClientRefused(code if type(code) is int else InternalError.code, str(message)[:200])
    if not isinstance(answer.result, dict):
        raise ClientRefused(InvalidRequest.code, "the result is not an object")
    return answer.result


class Notify(Protocol):
    """How a notification is sent, from any thread."""

    def __call__(self, method: str, params: Mapping[str, Any]) -> None: ...


class HandshakeClient:
    """The client of a handshake connection: one for all of its calls."""

    def __init__(self, questions: Questions, notify: Notify) -> None:
        self._questions = questions
        self.notify = notify
        self.capabilities: Mapping[str, Any] = {}
        self.log_level: str | None = "info"

    @property
    def can_be_asked(self) -> bool:
        return self._questions.is_open

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and wait for its result."""
        return await self._questions.ask(method, params)


class ModernClient(Struct, frozen=True):
    """The client of one request of the modern era: what it can do is in the request's `_meta`."""

    meta: Mapping[str, Any]
    notify: Notify

    @property
    def capabilities(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.meta[CAPABILITIES_KEY]
        return found

    @property
    def log_level(self) -> str | None:
        level = self.meta.get(LOG_LEVEL_KEY)
        return level if isinstance(level, str) else None

    @property
    def can_be_asked(self) -> bool:
        return False

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """There is nothing to send a request on."""
        raise ClientCannotBeAsked(method)

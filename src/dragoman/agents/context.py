"""The context of a handler: facts about the message that it handles, and the means to send others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

from dragoman.access.callers import Caller
from dragoman.agents.state import AgentState
from dragoman.calls.call import Call
from dragoman.telemetry.log import Logger
from dragoman.tools.context import Cancellation


class AgentContext:
    """The second argument of a handler."""

    __slots__ = ("_call", "_logger", "_request", "_root", "_send", "agent_id", "caller", "request_id", "state")

    def __init__(
        self,
        agent_id: str,
        state: AgentState,
        call: Call,
        logger: Logger,
        caller: Caller,
        request_id: str | None,
        send: Callable[[str, Any, str], str],
        request: Callable[[str, Any, str, int | None], Awaitable[Any]],
    ) -> None:
        self.agent_id = agent_id
        self.state = state
        """JSON values by key. They are stored with the result, together or not at all."""
        self.caller = caller
        """On whose behalf the message was sent."""
        self.request_id = request_id
        """The same for every attempt; None for a message that is no request."""
        self._call = call
        self._root = logger
        self._logger: Logger | None = None
        self._send = send
        self._request = request

    @property
    def logger(self) -> Logger:
        """Logs to the server's log under the ids of this handling."""
        if self._logger is None:
            self._logger = self._root.child({"runId": self._call.run_id, "correlationId": self._call.correlation_id})
        return self._logger

    @property
    def cancellation(self) -> Cancellation:
        """Set when the time is up, or the server stops."""
        return self._call.cancellation

    def send(self, target: str, payload: Any, type: str = "message") -> Awaitable[str]:
        """Send another agent a reliable message, when this one has been handled; gives its `messageId`.

        It is sent whether or not this is awaited, but not if the handler fails. Raises `NotFound` for an unknown agent.
        """
        return _Sent(self._send(target, payload, type))

    async def request(self, target: str, payload: Any, type: str = "request", timeout_ms: int | None = None) -> Any:
        """Ask another agent, and wait for its response.

        A handler that is run again asks under the same request id, so the other agent is not asked twice. Raises the
        `ToolError` that the agent failed with, `TimedOut` when the response takes longer, `NotFound` for an unknown
        agent, and `InvalidArgument` (reason `cycle`) for an agent that waits for this one.
        """
        return await self._request(target, payload, type, timeout_ms)


class _Sent(Awaitable[str]):
    """The id of a message that is kept already: not a coroutine, which would do nothing until it is awaited."""

    __slots__ = ("_message_id",)

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id

    def __await__(self) -> Generator[None, None, str]:
        return self._message_id
        yield  # type: ignore[unreachable]  # It makes this a generator.

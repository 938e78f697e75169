"""The one place that makes calls.

1. Every call has a run id of its own, and the correlation id that its request brought, or a new one.
2. A call is made, kept by whoever may have to withdraw it, and only then submitted: it may be answered at once.
3. Progress is told until the call is answered, and never after that.
4. A call whose answer is awaited is withdrawn when the waiting is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from dragoman.access.callers import LOCAL, Caller
from dragoman.calls.call import Call, Dialect, Outcome, Withdrawal
from dragoman.calls.origin import Origin
from dragoman.calls.pipeline import Pipeline
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.calls.runner import Runner
from dragoman.calls.tracing import Span, spans
from dragoman.clock import Clock
from dragoman.errors import ProtocolError, ToolError
from dragoman.ids import Ids
from dragoman.protocol.jsonrpc import encode
from dragoman.protocol.results import ToolResult
from dragoman.protocol.session import ToolCall, correlation_id_in
from dragoman.tools.client import Client
from dragoman.tools.context import Progress

T = TypeVar("T")
SendReply: TypeAlias = Callable[[Call, Outcome], None]
Word: TypeAlias = Callable[[Call, Outcome], T | ProtocolError]
"""Words an outcome; an error that it returns is raised. As `Call.reply`, raises what the call is to fail with."""

_PYTHON = Origin()


def _not_awaited(call: Call, outcome: Outcome) -> None:
    """The reply of a call until somebody waits for it."""


def _by_client() -> Withdrawal:
    return "client"


class Intake:
    """Makes calls of requests. A door that has to know a call before it begins calls `make`, and then `submit`."""

    def __init__(
        self, runner: Runner, ids: Ids, dialect: Dialect[ToolResult], clock: Clock, pipeline: Pipeline | None = None
    ) -> None:
        """Its calls go through `pipeline`, or through the one for tools."""
        self.submit: Callable[[Call], None]
        self.submit = runner.submit if pipeline is None else partial(runner.submit, pipeline=pipeline)
        self.submit_later: Callable[[Call], None] = lambda call: runner.submit(call, pipeline, later=True)
        self._refuse = runner.refuse
        self._run_id = ids.run_id
        self._correlation_id = ids.correlation_id
        self.render = dialect.render
        self._clock = clock

    def make(self, request: ToolCall, origin: Origin, reply: SendReply = _not_awaited) -> Call:
        """The call that a client's request asks for."""
        meta = request.meta
        call = Call(
            origin,
            request.name,
            request.arguments,
            self._run_id(),
            ("correlationId" in meta and correlation_id_in(meta)) or self._correlation_id(),
            reply,
            request.id,
            meta,
        )
        if meta:
            token = meta.get("progressToken")
            if token is not None and origin.client is not None:
                call.progress = _progress_of(call, origin.client, token)
                call.undo.append(_forget_progress)
            if origin.is_modern:
                call.input_responses, call.request_state = request.input_responses, request.request_state
        return call

    def make_local(self, name: str, arguments: dict[str, Any], origin: Origin, correlation_id: str | None) -> Call:
        """A call that no MCP request asks for, such as one from Python."""
        return Call(origin, name, arguments, self._run_id(), correlation_id or self._correlation_id(), _not_awaited)

    async def answer(self, call: Call, word: Word[T], why_cancelled: Callable[[], Withdrawal] = _by_client) -> T:
        """Submit a call and wait for its answer, as `word` words it.

        If the waiting is cancelled, the call is withdrawn; `why_cancelled` then tells why.
        """
        worded: list[T | ProtocolError] = []
        arrival: asyncio.Future[None] | None = None

        def reply(call: Call, outcome: Outcome) -> None:
            if arrival is None:
                worded.append(word(call, outcome))
            elif not arrival.done():  # It is when the waiting has been cancelled.
                worded.append(word(call, outcome))
                arrival.set_result(None)

        call.reply = reply
        self.submit(call)
        try:
            if not worded:  # Where tasks start eagerly, most calls have been answered by now.
                arrival = asyncio.get_running_loop().create_future()
                await arrival
            if isinstance(worded[0], ProtocolError):
                raise worded[0]
            return worded[0]
        except asyncio.CancelledError:
            call.withdraw(why_cancelled())
            raise
        finally:
            # An error leads to the frames that it passes through, these to the call, and the call to its reply. Were it
            # still in the list, only the garbage collector would free them all.
            worded.clear()

    def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        correlation_id: str | None = None,
        caller: Caller = LOCAL,
        trace: list[Span] | None = None,
        idempotency_key: str | None = None,
    ) -> Awaitable[Outcome]:
        """Make a call from Python, whose outcome can be awaited. `trace` gets the time of each stage."""
        call = self.make_local(name, arguments, _PYTHON if caller is LOCAL else Origin(caller), correlation_id)
        if idempotency_key is not None:
            call.meta = {IDEMPOTENCY_KEY: idempotency_key}
        return self.answer(call, self._rendered) if trace is None else self._traced(call, trace)

    async def _traced(self, call: Call, trace: list[Span]) -> Outcome:
        call.trace = []
        outcome = await self.answer(call, self._rendered)
        trace += spans(call, self._clock.monotonic())
        return outcome

    def refuse(
        self, name: str, error: ToolError, *, correlation_id: str | None = None, caller: Caller = LOCAL
    ) -> Outcome:
        """The outcome of a call that cannot be made, such as one with unreadable arguments. It is recorded."""
        call = self.make_local(name, {}, Origin(caller), correlation_id)
        outcome = self._rendered(call, Outcome(error=error))
        self._refuse(call, error)
        return outcome

    def _rendered(self, call: Call, outcome: Outcome) -> Outcome:
        """An outcome, with what a client would read. A value that no client could be sent is not given to Python."""
        if not isinstance(outcome.error, ProtocolError):
            outcome.rendered = self.render(call, outcome)
        return outcome


def _progress_of(call: Call, client: Client, token: int | str) -> Progress:
    """How a call tells the client that asked for it, with `token`, how far it is. From any thread."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def progress(done: float, total: float | None, message: str | None) -> None:
        params = progress_params(token, done, total, message)
        if threading.get_ident() == thread:
            tell(params)
        else:
            encode(params)  # What has no JSON form fails here, in the handler, and not on the loop.
            loop.call_soon_threadsafe(tell, params)

    def tell(params: Mapping[str, Any]) -> None:
        if not call.answered:  # Here, on the loop: another thread's news may arrive after the answer.
            client.notify("notifications/progress", params)

    return progress


def _forget_progress(call: Call) -> None:
    call.progress = None  # It leads back to the call: only the garbage collector would free the two.


def progress_params(token: int | str, done: float, total: float | None, message: str | None) -> dict[str, Any]:
    """The params of `notifications/progress`; what is not known is left out."""
    facts = {"progressToken": token, "progress": done, "total": total, "message": message}
    return {key: value for key, value in facts.items() if value is not None}

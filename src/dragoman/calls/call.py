"""The waist: a call, its outcome, and the two shapes that everything else is built from."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field

from dragoman.calls.answers import NO_ANSWERS, Answers
from dragoman.calls.origin import Origin
from dragoman.errors import ProtocolError, TimedOut, ToolError
from dragoman.protocol.results import ToolResult
from dragoman.tools.catalogue import NO_TOOL, RegisteredTool
from dragoman.tools.context import Cancellation, Progress

if TYPE_CHECKING:
    import asyncio


class Completion(StrEnum):
    """How a call ended; each one is recorded once, under one of these."""

    SUCCESS = "success"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    LATE_COMPLETED = "late_completed"
    ABORTED = "aborted"
    DISCONNECTED_COMPLETED = "disconnected_completed"
    PROTOCOL_ERROR = "protocol_error"


COMPLETION_MEANINGS = {
    Completion.SUCCESS: "The handler returned in time.",
    Completion.TOOL_ERROR: "The call was refused, or the handler failed, and the client was told so.",
    Completion.TIMEOUT: "The handler was still running when the server stopped; its slot was abandoned.",
    Completion.LATE_COMPLETED: "The handler ended after its deadline; who still waited had been answered TIMEOUT.",
    Completion.ABORTED: "The handler stopped because it was cancelled: the client left, or withdrew the call.",
    Completion.DISCONNECTED_COMPLETED: "The client left, and the handler ran to its end all the same.",
    Completion.PROTOCOL_ERROR: "The call failed outside its tool, and was answered with a JSON-RPC error.",
}


class Outcome(Struct, eq=False):
    """What came of a call: a value, or an error. A value of type `InputRequired` asks the client for more."""

    value: Any = None
    error: ToolError | ProtocolError | None = None
    rendered: ToolResult | None = None
    """What a client reads instead, where it was Python that called and not a client."""

    @property
    def is_error(self) -> bool:
        return self.error is not None

    def unwrap(self) -> Any:
        """The value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


_NO_META: Mapping[str, Any] = MappingProxyType({})

Withdrawal: TypeAlias = Literal["client", "disconnect"]
"""Why a call is withdrawn: its client cancelled it, or has left."""


class Call(Struct, eq=False):
    """One invocation of a tool. The first answer goes to `reply`; the call itself ends when its handler does.

    `Intake` makes calls.
    """

    # Where it comes from.
    origin: Origin

    # What was asked.
    name: str
    arguments: dict[str, Any]
    run_id: str
    correlation_id: str
    reply: Callable[[Call, Outcome], None]
    request_id: int | str | None = None
    meta: Mapping[str, Any] = _NO_META
    """The `_meta` of the request."""
    method: str = "tools/call"
    """The method of the request."""
    progress: Progress | None = None
    input_responses: Mapping[str, Mapping[str, Any]] | None = None
    """The answers that came with it, by question; the modern era's."""
    request_state: str | None = None
    """What came with them: what was asked and answered before, sealed."""

    # What the stages find out.
    tool: RegisteredTool = NO_TOOL
    """The tool that it runs: `NO_TOOL` until step 5, unless the call brings one."""
    task: asyncio.Task[None] | None = None
    given: Any = None
    """The arguments as they came, where they have been converted."""
    payload_bytes: int = 0
    started: float = 0.0
    due: float = math.inf
    """When it is answered whatever happens; never, before its time is being taken."""
    duration_ms: float = 0.0
    ran: bool = False
    answered: bool = False
    expired: bool = False
    disconnected: bool = False
    completed: bool = False
    cached: bool = False
    """Whether the value was found in the cache."""
    kept_as: Any = None
    """How its outcome is kept, for calls with an idempotency key and calls that become tasks."""
    repeated: bool = False
    """Whether the outcome is that of an earlier call with the same idempotency key."""
    usage: Mapping[str, Any] = _NO_META
    """Facts about an action that its contract tells beside the value."""
    rest: Callable[[], AbstractAsyncContextManager[None]] | None = None
    """Gives the slot back for as long as the client is asked in the middle of the work; None: it is kept."""
    resumes: bool = False
    """Whether it is run again after a stop of the server that it did not end before."""
    decisions: tuple[Any, ...] = ()
    """What the guard gates decided, other than to let it pass."""
    trace: list[tuple[str, float]] | None = None
    """When each stage was entered; only for calls that are traced."""
    span: Any = None
    """OpenTelemetry's, where spans are made."""
    trace_ids: tuple[str, str] | None = None
    """The trace and the span that it is recorded as, if it is."""
    answers: Answers = NO_ANSWERS
    """What its client has answered to its tool's questions; only for tools that have some."""
    asked: int = 0
    """How many questions its client was asked."""
    waited_ms: float = 0.0
    """How long the answers took; not part of its duration."""
    _cancellation: Cancellation | None = None
    undo: list[Callable[[Call], None]] = field(default_factory=list)
    """What the stages on the way in took and must give back, whatever happens, when the handler has ended."""

    @property
    def is_found(self) -> bool:
        """Whether what it runs is known."""
        return self.tool is not NO_TOOL

    @property
    def raw_arguments(self) -> Any:
        """The arguments as they came, but for what the handler has changed in them."""
        return self.arguments if self.given is None else self.given

    @property
    def cancellation(self) -> Cancellation:
        """The token that asks the handler to stop; made when somebody first looks at it, which few calls need."""
        if self._cancellation is None:
            self._cancellation = Cancellation()
        return self._cancellation

    def answer(self, outcome: Outcome) -> None:
        """Answer, unless somebody has: a call has one answer, however many ends it has.

        Raises `InternalFailure` when the value cannot be sent; the call is then still to be answered.
        """
        if not self.answered:
            self.reply(self, outcome)
            self.answered = True  # Not before: a reply that fails leaves the call to be answered otherwise.

    def expire(self) -> None:
        """The deadline is here: answer now, and ask the handler to stop."""
        self.expired = True
        self.cancellation.set("deadline")
        timeout = round((self.due - self.started) * 1000)
        self.duration_ms = float(timeout)
        facts: dict[str, Any] = {"timeoutMs": timeout}
        if timeout == self.tool.timeout_ms and self.tool.timeout_setting is not None:
            facts["setting"] = self.tool.timeout_setting
        self.answer(Outcome(error=TimedOut(f"No result within {timeout} ms", facts)))

    def withdraw(self, reason: Withdrawal) -> None:
        """Nobody wants the answer any longer: there will be none, and the handler is asked to stop."""
        self.answered = True
        if reason == "disconnect":
            self.disconnected = True
        self.cancellation.set(reason)


Service: TypeAlias = Callable[[Call], Awaitable[Any]]
"""Takes a call and gives its value, or raises what went wrong."""


class Stage(Protocol):
    """Wraps the rest of the pipeline, once, when it is built: `proceed` goes in, a service around it comes out.

    The service refuses by raising a `ToolError`, rewrites by setting `call.arguments`, or just observes. It is a plain
    function that returns `proceed(call)`; what it takes on the way in, it gives back through `call.undo`. Only one that
    changes the value needs to be a coroutine, which costs as much as all that a plain one does.
    """

    def __call__(self, proceed: Service, /) -> Service: ...


Rendered_co = TypeVar("Rendered_co", covariant=True)


class Dialect(Protocol[Rendered_co]):
    """How answers are worded, in what its surface sends: `Dialect[ToolResult]` for `tools/call`."""

    def render(self, call: Call, outcome: Outcome) -> Rendered_co:
        """The answer; raises `InternalFailure` when the value cannot be sent."""
        ...

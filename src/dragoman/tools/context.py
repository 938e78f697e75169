"""What a handler is told about the call it serves, and how it learns that nobody waits any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import msgspec
from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.errors import Aborted, ClientCannotBeAsked, ClientRefused, InvalidArgument, Stopping
from dragoman.lifespans import Lifespan
from dragoman.protocol.headers import readable_headers
from dragoman.schemas.forms import form_of, make_form
from dragoman.telemetry.log import Logger
from dragoman.tools.client import Client
from dragoman.tools.content import encode_within
from dragoman.tools.questions import NO_ANSWER, FormKind, QuestionKind, Root, RootsKind, SampleKind, is_offered

Progress: TypeAlias = Callable[[float, float | None, str | None], None]
Asking: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Sends the client a request (method, params), and waits for its result with patience."""

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the most severe, as RFC 5424 has them."""

MOST_LOGGED = 1_048_576
"""Bytes of a log message to a client; a longer one is replaced by a word about it."""

T = TypeVar("T")
_encode_into = msgspec.json.Encoder(enc_hook=str).encode_into


class Cancellation(Struct, eq=False):
    """A flag that is raised once, with a reason: `deadline`, `disconnect`, `client` or `shutdown`.

    It asks; it does not kill. A handler polls it, waits for it, or lets it raise, and then stops. It can be polled and
    raised on from any thread, and awaited on the event loop.
    """

    reason: str | None = None
    _waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether the handler should stop."""
        return self.reason is not None

    def raise_if_set(self) -> None:
        """Raise `Aborted` when the handler should stop."""
        if self.reason is not None:
            raise Aborted(self.reason)

    async def wait(self) -> None:
        """Return when the handler should stop."""
        if self.reason is not None:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def set(self, reason: str) -> None:
        """Raise the flag; the first reason stays. Called on the event loop."""
        if self.reason is not None:
            return
        self.reason = reason
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)


def raise_if_cancelled(cancellation: Cancellation) -> None:
    """Raise `Aborted` (code `ABORTED`) when the call was cancelled: at the start, between steps and inside loops."""
    cancellation.raise_if_set()


class ToolContext:
    """The call as its handler sees it. Ask for it by annotating a parameter: `def tool(x: int, ctx: ToolContext)`."""

    __slots__ = (
        "_ask",
        "_client",
        "_header_pairs",
        "_headers",
        "_lifespan",
        "_logger",
        "_progress",
        "_root",
        "caller",
        "cancellation",
        "correlation_id",
        "run_id",
        "transport",
    )

    def __init__(
        self,
        run_id: str,
        correlation_id: str,
        logger: Logger,
        cancellation: Cancellation,
        caller: Caller,
        progress: Progress | None = None,
        transport: str = "local",
        client: Client | None = None,
        ask: Asking | None = None,
        lifespan: Lifespan | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.run_id = run_id
        self.correlation_id = correlation_id
        self.cancellation = cancellation
        self.caller = caller
        self.transport = transport
        self._root = logger
        self._logger: Logger | None = None
        self._progress = progress
        self._client = client
        self._ask = ask
        self._lifespan = lifespan
        self._header_pairs = headers
        self._headers: Mapping[str, str] | None = None

    @property
    def logger(self) -> Logger:
        """Logs to the server's log under this call's ids."""
        if self._logger is None:
            self._logger = self._root.child({"runId": self.run_id, "correlationId": self.correlation_id})
        return self._logger

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the HTTP request, by their names in lower case; empty on stdio and in calls from Python.

        Credentials are left out: `authorization`, `proxy-authorization`, `cookie`, `x-api-key`, `mcp-session-id` and
        the explorer's token. The values of a name that occurs more than once are joined with commas.
        """
        if self._headers is None:  # Few tools look: nothing is made for the others.
            self._headers = readable_headers(self._header_pairs)
        return self._headers

    @property
    def lifespan(self) -> Any:
        """What the `lifespan` of the tool's file gave when the server started, else what the server's own gave.

        None without a lifespan.
        """
        return None if self._lifespan is None else self._lifespan.value

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the work is, if it asked to be told. Safe from any thread; never waits."""
        if self._progress is not None:
            self._progress(progress, total, message)

    def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        """Send the client a log message, if it wants such of this level and still waits for the call's answer.

        Safe from any thread; never waits or fails. It is for whoever uses the client; `ctx.logger` is for whoever runs
        the server.
        """
        if self._client is None or self.cancellation.is_set():
            return
        least = self._client.log_level
        if least not in LOG_LEVELS or LOG_LEVELS.index(level) < LOG_LEVELS.index(least):
            return
        try:
            encoded = encode_within(data, MOST_LOGGED, _encode_into)
            plain = "a message that is too large" if encoded is None else msgspec.json.decode(encoded)
        except Exception:  # It may hold anything.
            plain = "a message that has no JSON form"
        said = {"level": level, "data": plain}
        self._client.notify("notifications/message", said if logger is None else {**said, "logger": logger})

    @property
    def wants_progress(self) -> bool:
        """Whether the client asked to be told how far the work is."""
        return self._progress is not None

    @overload
    async def elicit(self, message: str, kind: type[T]) -> T | None: ...

    @overload
    async def elicit(self, message: str, kind: Mapping[str, Any]) -> dict[str, Any] | None: ...

    async def elicit(self, message: str, kind: type[Any] | Mapping[str, Any]) -> Any:
        """Ask the person behind the client to fill in a form for `kind`, in the middle of the work.

        A JSON Schema in place of a type is sent as it is, and what was filled in is an object that fits it.

        Returns None when the person declines or does not answer in time, when the client answers with an error, and
        the answer does not fit. Raises `ClientCannotBeAsked` when the client cannot be asked at all: in the 2026-07-28
        protocol, without the capability, and in calls from Python. A parameter with `Ask` works in both eras, and in a
        task every question does. The call keeps its slot meanwhile, unless it is a task; its deadline waits.
        """
        form = form_of(kind) if isinstance(kind, Mapping) else make_form(kind, "value")
        return await self._answer(FormKind(form), message)

    async def sample(self, prompt: str, *, max_tokens: int = 1000, system: str | None = None) -> str | None:
        """Ask the client's model, and give the text of its answer. Returns None and raises as `elicit` does."""
        answer: str | None = await self._answer(SampleKind(max_tokens, system), prompt)
        return answer

    async def list_roots(self) -> list[Root] | None:
        """Ask the client which folders it works on. Returns None and raises as `elicit` does."""
        answer: list[Root] | None = await self._answer(RootsKind(), "")
        return answer

    async def _answer(self, kind: QuestionKind, text: str) -> Any:
        self.cancellation.raise_if_set()
        if self._ask is None or self._client is None:
            raise ClientCannotBeAsked(kind.method, "no MCP client made this call")
        if not is_offered(kind, self._client.capabilities):
            raise ClientCannotBeAsked(kind.method, f"it did not declare the capability {'.'.join(kind.required)}")
        if not self._client.can_be_asked:
            raise ClientCannotBeAsked(kind.method, "its protocol or connection does not carry requests to the client")
        try:
            answer = kind.read(await self._ask(kind.method, kind.params(text)))
        except (TimeoutError, ClientRefused, InvalidArgument, Stopping):
            return None
        return None if answer is NO_ANSWER else answer

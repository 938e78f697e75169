"""Every error Dragoman knows, in one tree, split by whose fault it is and whether anything happened.

DragomanError
├── ToolError               answers a call: a `tools/call` result with `isError: true`
│   ├── Refused             the handler did not run, so repeating the call is safe
│   │   ├── InvalidArgument
│   │   │   └── LimitExceeded
│   │   ├── NotFound
│   │   ├── Conflict
│   │   │   └── AlreadyExists
│   │   ├── Unauthorized
│   │   │   ├── MissingScope
│   │   │   └── NotAuthentic
│   │   ├── MalformedEnvelope
│   │   ├── NotEnabled
│   │   ├── Expired
│   │   ├── Unanswered
│   │   └── ResourceExhausted
│   │       ├── PayloadTooLarge
│   │       ├── NoFreeSlot
│   │       ├── RateLimited
│   │       ├── BusFull
│   │       ├── QuotaExceeded
│   │       ├── MemoryPressure
│   │       └── Stopping
│   └── Failed              the handler ran, or is running still
│       ├── TimedOut
│       ├── Abandoned
│       ├── ClientCannotBeAsked  raised inside a handler that asks a client which cannot be asked
│       └── InternalFailure
│           └── ResultTooLarge
├── ProtocolError           answers a message: a JSON-RPC error, never a tool result
│   ├── ParseError
│   ├── InvalidRequest
│   ├── MethodNotFound
│   ├── InvalidParams
│   ├── InternalError
│   ├── NotInitialized
│   ├── ResourceNotFound
│   ├── UnsupportedVersion
│   ├── HeaderMismatch
│   ├── MissingCapability
│   └── RequestCancelled
├── Unauthenticated         answers an HTTP request: 401, there is no token, or none that is any good
├── VerifierUnavailable     answers an HTTP request: 503, whether a token is any good cannot be told now
├── ModelUnavailable        a model that makes vectors or answers cannot be used now
│   └── TextRefused         it takes one text in no form, and may well take others
├── Aborted                 raised by a cancellation token inside a handler
├── ClientRefused           raised inside a handler: the client answered with an error
├── RegistrationError       a tool, resource or prompt that its catalogue will not take
│   ├── DuplicateTool
│   ├── InvalidTool
│   ├── DynamicRegistrationOff
│   ├── DuplicateOffer
│   ├── InvalidOffer
│   ├── DuplicateAgent
│   └── InvalidAgent
├── StorageError            raised by a storage engine, and worded by its users
│   ├── OverQuota
│   ├── TooManyWrites
│   ├── LeaseLost
│   └── StorageFailed
│       ├── StorageFull
│       ├── StorageBusy
│       ├── StorageCorrupt
│       ├── StorageUnavailable
│       │   └── StorageLost
│       ├── StorageUnsupported
│       ├── StorageUncertain
│       └── StorageClosed
├── MessageError            a message between agents that was not sent, not taken, or not answered with a result
│   ├── InvalidEnvelope
│   ├── RequestConflict
│   ├── WindowFull
│   ├── LinkDown
│   ├── RequestFailed
│   └── OutcomeUnknown
├── ConfigError             settings that cannot be used; names each of them
├── PartFailed              a part of the server that cannot be started; names it
└── TargetError             a file or module of tools that cannot be loaded

A handler may raise any `ToolError`; its message is then meant for the client. It may also raise a `ProtocolError` whose
code is -32603 or outside of -32768 to -32000, and its call is answered with that JSON-RPC error. Any other exception of
a handler is answered as INTERNAL and its text stays in the server's log.

`code` is the stable code of an error, in the log and in the `structured` dialect. The words of the other dialects are a
table in `replies/vocabulary.py`. The page docs/errors.md is made from both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

__all__ = [
    "Abandoned",
    "Aborted",
    "AlreadyExists",
    "BusFull",
    "ClientCannotBeAsked",
    "ClientRefused",
    "ConfigError",
    "Conflict",
    "DragomanError",
    "DuplicateAgent",
    "DuplicateOffer",
    "DuplicateTool",
    "DynamicRegistrationOff",
    "ErrorCode",
    "Expired",
    "Failed",
    "HeaderMismatch",
    "InternalError",
    "InternalFailure",
    "InvalidAgent",
    "InvalidArgument",
    "InvalidEnvelope",
    "InvalidOffer",
    "InvalidParams",
    "InvalidRequest",
    "InvalidTool",
    "LeaseLost",
    "LimitExceeded",
    "LinkDown",
    "MalformedEnvelope",
    "MemoryPressure",
    "MessageError",
    "MethodNotFound",
    "MissingCapability",
    "MissingScope",
    "ModelUnavailable",
    "NoFreeSlot",
    "NotAuthentic",
    "NotEnabled",
    "NotFound",
    "NotInitialized",
    "OutcomeUnknown",
    "OverQuota",
    "ParseError",
    "PartFailed",
    "PayloadTooLarge",
    "ProtocolError",
    "QuotaExceeded",
    "RateLimited",
    "Refused",
    "RegistrationError",
    "RequestCancelled",
    "RequestConflict",
    "RequestFailed",
    "ResourceExhausted",
    "ResourceNotFound",
    "ResultTooLarge",
    "Stopping",
    "StorageBusy",
    "StorageClosed",
    "StorageCorrupt",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "StorageLost",
    "StorageUnavailable",
    "StorageUncertain",
    "StorageUnsupported",
    "StructuredError",
    "TargetError",
    "TextRefused",
    "TimedOut",
    "TooManyWrites",
    "ToolError",
    "Unanswered",
    "Unauthenticated",
    "Unauthorized",
    "UnsupportedVersion",
    "VerifierUnavailable",
    "WindowFull",
    "create_error",
    "drop_tracebacks",
]


class ErrorCode(StrEnum):
    """The application error codes; a closed set."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    TIMEOUT = "TIMEOUT"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    INTERNAL = "INTERNAL"
    UNAUTHORIZED = "UNAUTHORIZED"
    NOT_INITIALIZED = "NOT_INITIALIZED"


class StructuredError(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a client is told about a failed call."""

    code: ErrorCode
    message: str
    details: Mapping[str, Any] | None = None
    run_id: str | None = None
    correlation_id: str | None = None


def create_error(code: ErrorCode, message: str, details: Mapping[str, Any] | None = None) -> StructuredError:
    """Build an error without ids; they belong to the call that it will answer."""
    return StructuredError(code, message, details)


class DragomanError(Exception):
    """Anything Dragoman raises on purpose."""


class ToolError(DragomanError):
    """The answer to a call is an error, and `message` is fit for the client to read."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    plain: str | None = None
    """The whole text of the answer in the `plain` dialect, where whoever raised the error has its own words for it."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def details(self) -> Mapping[str, Any] | None:
        """Facts for the client. What a handler gives for them is left out if it is no mapping, or cannot be read."""
        return self._details

    @details.setter
    def details(self, details: Mapping[str, Any] | None) -> None:
        if details is not None and type(details) is not dict:
            try:
                details = dict(details) if isinstance(details, Mapping) else None
            except Exception:  # Of a handler's own mapping.
                details = None
        self._details = details

    def structured(self, run_id: str | None = None, correlation_id: str | None = None) -> StructuredError:
        """This error as the client sees it, with the ids of the call that it answers."""
        return StructuredError(self.code, self.message, self.details, run_id, correlation_id)


class Refused(ToolError):
    """The handler did not run; the call can be repeated without harm."""


class InvalidArgument(Refused):
    """The arguments do not fit the tool's schema, or are not JSON. Correct them; repeating as is cannot help."""

    code = ErrorCode.INVALID_ARGUMENT
    keywords: frozenset[str] = frozenset()
    """The schema's keywords that were not met, where a schema was asked."""
    rules: tuple[str, ...] = ()
    """The codes of those rules, one for each entry of `details["errors"]`; see `rule_code`."""


class LimitExceeded(InvalidArgument):
    """Something in the arguments is beyond a limit; `details.errors` says where, `details.total` how many times."""


class NotFound(Refused):
    """There is no tool of that name (`tools/list` names them all), or no such thing as the tool was asked for."""

    code = ErrorCode.NOT_FOUND


class Conflict(Refused):
    """Something else has changed what the call was about. Look at it again first."""

    code = ErrorCode.INVALID_ARGUMENT


class AlreadyExists(Conflict):
    """What the call would make is there already."""


class Unauthorized(Refused):
    """The caller may not do this."""

    code = ErrorCode.UNAUTHORIZED


class MissingScope(Unauthorized):
    """The caller was not granted the tool; `details.scope` is what it would take."""

    def __init__(self, scope: str) -> None:
        details = {"reason": "insufficient_scope", "scope": scope, "retryable": False}
        super().__init__(f"The scope {scope} is needed", details)
        self.scope = scope


class NotAuthentic(Unauthorized):
    """A signed request does not show who sent it. Only the gateway says so."""


class MalformedEnvelope(Refused):
    """The envelope of an action is not one; `details.path` says where. Only the gateway says so."""

    code = ErrorCode.INVALID_ARGUMENT


class NotEnabled(Refused):
    """The request asks for something that the settings of this server do not allow anybody."""

    code = ErrorCode.INVALID_ARGUMENT


class Expired(Refused):
    """A request came later than its sender allows. Only the gateway says so."""

    code = ErrorCode.TIMEOUT


class Unanswered(Refused):
    """The client was to be asked something that the tool cannot do without, and there is no answer.

    `details.question` is the parameter, `details.reason` why: `declined`, `timeout`, `refused` (by the client, with an
    error) or `unsupported` (the client cannot be asked).
    """

    code = ErrorCode.UNAUTHORIZED

    def __init__(self, question: str, reason: str) -> None:
        said = {
            "declined": f"The question about {question!r} was declined",
            "timeout": f"The question about {question!r} was not answered in time",
            "refused": f"The client refused the question about {question!r}",
        }
        message = said.get(reason, f"The client cannot be asked about {question!r}")
        super().__init__(message, {"reason": reason, "question": question})


def _set_by(setting: str | None) -> dict[str, str]:
    """The setting that a limit is, for `details`; nothing for a limit that is none."""
    return {} if setting is None else {"setting": setting}


class ResourceExhausted(Refused):
    """A limit of the server is reached; `details.setting` names it, if it is a setting.

    When `details.retryable` is true, retry with exponential backoff and jitter.
    """

    code = ErrorCode.RESOURCE_EXHAUSTED
    is_servers_own: bool = True
    """Whether it says something about the server, and not only about one caller or one tool."""


class PayloadTooLarge(ResourceExhausted):
    """The arguments weigh more than is taken. Repeating as is cannot help."""

    def __init__(self, actual: int, limit: int, setting: str | None = "tools.max_payload_bytes") -> None:
        super().__init__(
            f"Arguments are {actual} bytes, and at most {limit} are taken",
            {"reason": "payload_too_large", "limit": limit, "actual": actual, "retryable": False, **_set_by(setting)},
        )


class NoFreeSlot(ResourceExhausted):
    """Every slot is taken: the server's, the tool's or the caller's. Retry with exponential backoff and jitter."""

    def __init__(self, limit: int, whose: str = "", setting: str | None = None) -> None:
        self.is_servers_own = not whose
        details: dict[str, Any] = {"reason": "no_free_slot", "limit": limit, "retryable": True, **_set_by(setting)}
        if whose:  # Nobody knows when one will be free: this is where to begin backing off.
            details["retryAfterMs"] = 100
        super().__init__(f"All {limit} slots{whose} are taken", details)


class RateLimited(ResourceExhausted):
    """The caller makes more calls in a minute than it may. Retry after `details.retryAfterMs`."""

    is_servers_own = False

    def __init__(self, limit: int, retry_after_ms: int, what: str = "", setting: str | None = None) -> None:
        facts = {"reason": "rate_limited", "limit": limit, "retryable": True, "retryAfterMs": retry_after_ms}
        super().__init__(f"At most {limit} calls{what} a minute", {**facts, **_set_by(setting)})


class BusFull(ResourceExhausted):
    """A subject of the message bus has as many messages, or bytes, as it may. Nothing was published; retry later."""

    is_servers_own = False

    def __init__(self, limit: int, what: str) -> None:
        super().__init__(
            f"{limit} {what} wait already; retry later",
            {"reason": "bus_full", "limit": limit, "retryable": True, "retryAfterMs": 1000},
        )


class QuotaExceeded(ResourceExhausted):
    """A tenant would keep more than it may; `details.quota` names the quota. Repeating as is cannot help."""

    is_servers_own = False

    def __init__(self, message: str, reason: str, setting: str, limit: int, actual: int) -> None:
        quota = setting.rpartition(".")[2]
        facts = {"reason": reason, "quota": quota, "limit": limit, "actual": actual, "retryable": False}
        super().__init__(message, {**facts, **_set_by(setting)})


class MemoryPressure(ResourceExhausted):
    """The process uses nearly all the memory that it may. Retry with exponential backoff and jitter."""


class Stopping(ResourceExhausted):
    """The server is stopping. Repeat the call elsewhere, or later."""

    def __init__(self) -> None:
        super().__init__("The server is stopping", {"reason": "stopping", "retryable": True})


class Failed(ToolError):
    """The handler ran; repeat the call only if the tool is idempotent."""


class TimedOut(Failed):
    """The server stopped waiting at the deadline. The work itself may still be going on, or may have succeeded."""

    code = ErrorCode.TIMEOUT


class Abandoned(Failed):
    """The server shut down before the handler had ended. The work itself may have succeeded."""

    code = ErrorCode.TIMEOUT

    def __init__(self, *, retryable: bool) -> None:
        super().__init__(
            "The server is shutting down, and the tool had not finished", {"reason": "stopping", "retryable": retryable}
        )


class ClientCannotBeAsked(Failed):
    """The tool asked its client while it ran, and this client cannot be asked then.

    `details.method` is the request that could not be sent. A parameter with `Ask`, `Sample` or `Roots` works in both
    protocol eras, because the client is asked before the tool runs.
    """

    code = ErrorCode.INTERNAL
    _INSTEAD: ClassVar[Mapping[str, str]] = {"sampling/createMessage": "Sample", "roots/list": "Roots"}

    def __init__(self, method: str, why: str = "there is no way to send it a request") -> None:
        instead = self._INSTEAD.get(method, "Ask")
        super().__init__(
            f"The client cannot be asked while the tool runs: {why}. "
            f"Declare a parameter with {instead}, so that the client is asked before the tool runs",
            {"reason": "client_cannot_be_asked", "method": method},
        )


class InternalFailure(Failed):
    """The handler raised an exception, or returned what cannot be sent. The server's log has the particulars."""

    code = ErrorCode.INTERNAL


class ResultTooLarge(InternalFailure):
    """The handler's result weighs more than is sent. Ask for less; with `details.cursor`, read it part by part.

    `details.actual` is missing where the result was not encoded to its end.
    """

    def __init__(
        self,
        actual: int | None,
        limit: int,
        cursor: str | None = None,
        setting: str | None = "response.max_response_bytes",
    ) -> None:
        facts = {"reason": "result_too_large", "limit": limit, "actual": actual, "cursor": cursor, "setting": setting}
        super().__init__("Result too large", {name: fact for name, fact in facts.items() if fact is not None})


def drop_tracebacks(error: BaseException) -> None:
    """Free what the frames hold that an exception passed through, and all those that it came from.

    A traceback often leads back to its exception, and then only the garbage collector would end them.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        BaseException.with_traceback(each, None)  # An exception's own class may forbid to set it.
        pending += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions


class ProtocolError(DragomanError):
    """A message that is answered with a JSON-RPC error."""

    code: int = -32603
    correlation_id: str | None = None
    """The correlation id of the call that the error answers, for a request that became a call."""

    def __init__(self, message: str, data: Mapping[str, Any] | None = None, *, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        if code is not None:
            self.code = code

    @property
    def may_be_raised(self) -> bool:
        """Whether a handler may answer its call with it: the codes that JSON-RPC reserves say what they say."""
        return type(self.code) is int and (self.code == -32603 or not -32768 <= self.code <= -32000)


class ParseError(ProtocolError):
    """The line is not JSON that can be read (bad syntax, invalid UTF-8, nested too deeply)."""

    code = -32700


class InvalidRequest(ProtocolError):
    """JSON, but not a JSON-RPC 2.0 message that MCP allows here (batches, bad ids, a second `initialize`)."""

    code = -32600
    id: int | str | None = None
    """The id to echo, None when the message has no valid one."""
    meta: Mapping[str, Any] | None = None
    """The message's `params._meta`, where it has one."""


class MethodNotFound(ProtocolError):
    """No such method. The message names it."""

    code = -32601


class InvalidParams(ProtocolError):
    """The method exists, and its `params` have the wrong shape."""

    code = -32602


class InternalError(ProtocolError):
    """The server failed outside any tool. Its log has the particulars under the same correlation id."""

    code = -32603


class NotInitialized(ProtocolError):
    """Handshake connections only: the method came before `initialize` and `initialized` were through."""

    code = -32002

    def __init__(self) -> None:
        text = "The connection is not initialized: send `initialize`, then the `initialized` notification, first."
        super().__init__("Not initialized", {"code": ErrorCode.NOT_INITIALIZED, "message": text})


class ResourceNotFound(ProtocolError):
    """There is no resource at `data.uri`. Since 2026-07-28 the code is -32602."""

    code = -32002

    def __init__(self, uri: str, message: str = "Resource not found", *, modern: bool) -> None:
        super().__init__(message, {"uri": uri})
        if modern:
            self.code = InvalidParams.code


class UnsupportedVersion(ProtocolError):
    """2026-07-28 and later: the request asks for a protocol version that is not served here."""

    code = -32022


class HeaderMismatch(ProtocolError):
    """A header of a 2026-07-28 request over HTTP is missing, doubled, or says something else than the body."""

    code = -32020


class MissingCapability(ProtocolError):
    """The request needs something that its client did not say it can do."""

    code = -32021


class RequestCancelled(ProtocolError):
    """The client withdrew the request; on HTTP its own exchange still has to end."""

    code = -32800

    def __init__(self) -> None:
        super().__init__("Request cancelled")


class Unauthenticated(DragomanError):
    """Nobody knows who is calling. `reason` is fit for the client to read; the token is never part of it."""

    def __init__(self, reason: str, error: str | None = "invalid_token") -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        """What OAuth calls it; None when nothing was presented that could be wrong."""


class VerifierUnavailable(DragomanError):
    """A token cannot be judged now, because the keys for it cannot be had. The text is for the log."""


class ModelUnavailable(DragomanError):
    """A model that makes vectors or answers cannot be used now. The text is for the log."""


class TextRefused(ModelUnavailable):
    """A model makes no vector of a text."""


class Aborted(DragomanError):
    """The call was cancelled, and its handler stopped because of it."""

    code = "ABORTED"

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(f"aborted: {reason}" if reason else "aborted")
        self.reason = reason


class ClientRefused(DragomanError):
    """The client answered a question with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the client answered with error {code}: {message}")
        self.code = code


class RegistrationError(DragomanError):
    """A tool, a resource or a prompt was not registered."""

    code = ErrorCode.INVALID_ARGUMENT


class DuplicateTool(RegistrationError):
    """There is a tool of that name already; it stays."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a tool named {name!r} is registered already; the first registration stays")
        self.name = name


class InvalidTool(RegistrationError):
    """`problems` lists what is wrong as `(path, message)` pairs."""

    def __init__(self, name: str, problems: Sequence[tuple[str, str]]) -> None:
        said = "; ".join(f"{path}: {message}" if path else message for path, message in problems)
        super().__init__(f"tool {name!r} cannot be registered: {said}")
        self.name = name
        self.problems = tuple(problems)


class DynamicRegistrationOff(RegistrationError):
    """Tools cannot be registered while the server runs, unless both switches for it are on."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} cannot be registered: dynamic registration is off")
        self.name = name


class DuplicateOffer(RegistrationError):
    """There is a resource with that URI, or a prompt of that name, already; it stays."""

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(f"a {kind} {key!r} is registered already; the first registration stays")
        self.key = key


class InvalidOffer(RegistrationError):
    """`problems` lists what is wrong with a resource or a prompt as `(path, message)` pairs."""

    def __init__(self, kind: str, key: str, problems: Sequence[tuple[str, str]]) -> None:
        said = "; ".join(f"{path}: {message}" if path else message for path, message in problems)
        super().__init__(f"{kind} {key!r} cannot be registered: {said}")
        self.key = key
        self.problems = tuple(problems)


class DuplicateAgent(RegistrationError):
    """There is an agent with that id already; it stays."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"an agent {agent_id!r} is registered already; the first registration stays")
        self.agent_id = agent_id


class InvalidAgent(RegistrationError):
    """`problems` lists what is wrong with an agent as `(path, message)` pairs."""

    def __init__(self, agent_id: str, problems: Sequence[tuple[str, str]]) -> None:
        said = "; ".join(f"{path}: {message}" if path else message for path, message in problems)
        super().__init__(f"agent {agent_id[:200]!r} cannot be registered: {said}")
        self.agent_id = agent_id
        self.problems = tuple(problems)


class StorageError(DragomanError):
    """Something was not stored, or not read. The text is for the log, and not for clients."""


class OverQuota(StorageError):
    """An owner would keep more than `limit` bytes: `actual`."""

    def __init__(self, limit: int, actual: int) -> None:
        super().__init__(f"{actual} bytes for an owner who may keep {limit}")
        self.limit = limit
        self.actual = actual


class TooManyWrites(StorageError):
    """`limit` writes wait already. Nothing has happened."""

    def __init__(self, limit: int, actual: int) -> None:
        super().__init__(f"{actual} writes, of which {limit} may wait")
        self.limit = limit
        self.actual = actual


class LeaseLost(StorageError):
    """Another process has taken over an agent, or its state is not the one that was expected. Nothing was stored."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"the agent {agent!r} has another holder, or another version, by now")
        self.agent = agent


class StorageFailed(StorageError):
    """The engine failed; the cause says how. Its subclasses are for what an operator can do something about."""


class StorageFull(StorageFailed):
    """There is no space left."""


class StorageBusy(StorageFailed):
    """Another process held a lock for too long."""


class StorageCorrupt(StorageFailed):
    """The data is damaged, or is not the engine's."""


class StorageUnavailable(StorageFailed):
    """The data cannot be reached: permissions, a broken disk, a link in its place."""


class StorageLost(StorageUnavailable):
    """The engine's files were deleted, moved or replaced. No write works any more until the server is restarted."""


class StorageUnsupported(StorageFailed):
    """The engine, or the form of the data, is one that this version cannot use."""


class StorageUncertain(StorageFailed):
    """A commit failed with an I/O error: it is unknown whether its changes are stored. A restart may show them.

    Only what the storage itself recognises may be tried again: by an id, a key, a fence or a version.
    """


class StorageClosed(StorageFailed):
    """The server has closed its storage."""


class MessageError(DragomanError):
    """Something about a message between agents."""


class InvalidEnvelope(MessageError):
    """An envelope breaks the protocol; `field` names where, as on the wire."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


class RequestConflict(MessageError):
    """`owner` has used `request_id` before, for another request. Nothing has happened."""

    def __init__(self, request_id: str, owner: str) -> None:
        super().__init__(f"{owner} has made another request with the id {request_id}")
        self.request_id = request_id
        self.owner = owner


class WindowFull(MessageError):
    """`target` has not acknowledged the last `limit` messages. Nothing has happened; retry later."""

    def __init__(self, target: str, limit: int) -> None:
        super().__init__(f"{target} has not acknowledged the last {limit} messages")
        self.target = target
        self.limit = limit


class LinkDown(MessageError):
    """A link cannot carry anything now. The message is kept, and will be sent again."""


class RequestFailed(MessageError):
    """A request was answered with `error`."""

    def __init__(self, request_id: str, error: StructuredError) -> None:
        super().__init__(f"The request {request_id} failed: {error.message}")
        self.request_id = request_id
        self.error = error


class OutcomeUnknown(MessageError):
    """There was no answer to a request in time, or its record is uncertain.

    It may have been carried out, and its outcome may still arrive.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The outcome of the request {request_id} is unknown")
        self.request_id = request_id


class ConfigError(DragomanError):
    """`problems` lists what is wrong as `(setting, message)` pairs."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{setting}: {message}" for setting, message in problems))
        self.problems = tuple(problems)


class PartFailed(DragomanError):
    """A part of the server cannot be started. The cause is what it raised."""

    def __init__(self, part: str, error: BaseException) -> None:
        super().__init__(f"The part {part!r} cannot be started: {type(error).__name__}: {error}")
        self.part = part


class TargetError(DragomanError):
    """A file or module of tools cannot be loaded; what it raised itself is the cause."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"cannot load tools from {target!r}: {reason}")
        self.target = target
        self.reason = reason

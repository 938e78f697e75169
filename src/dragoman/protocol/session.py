"""One client's MCP connection, without the connection: `receive(bytes)` gives events, and never raises.

The rules:

1. The first request decides the era and the connection keeps it: `initialize` opens the handshake era, a request with
   the 2026-07-28 envelope in `params._meta` opens the modern one. Anything else before that is answered -32002.
2. In the handshake era only the moves in `TRANSITIONS` change the state, and before RUNNING every method but
   `initialize` and `initialized` (`ping` too) is answered -32002 under the connection's correlation id.
3. In the modern era each request stands by itself: its envelope is checked, and -32002 is never sent.
4. Every error carries `data.correlationId`: the request's own when it brought one, else the id of the call that the
   request became, else the connection's.
5. Notifications are never answered. CLOSED is final, and silent.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from dragoman.errors import (
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    NotInitialized,
    ParseError,
    ProtocolError,
    UnsupportedVersion,
)
from dragoman.protocol import jsonrpc
from dragoman.protocol.framing import LineBuffer, Oversized
from dragoman.protocol.jsonrpc import Answer, Id, RpcMessage
from dragoman.protocol.kept import ClientInfo, known_params, known_subscription
from dragoman.protocol.results import Interim, ResultMeta, ToolResult
from dragoman.protocol.shape import UNLIMITED, Shape
from dragoman.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HANDSHAKE_METHODS,
    HANDSHAKE_VERSIONS,
    LATEST_HANDSHAKE,
    MODERN_METHODS,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    TASK_METHODS,
    VERSION_KEY,
)


class State(Enum):
    """Where a handshake connection stands."""

    STARTING = "STARTING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    CLOSED = "CLOSED"


class Move(Enum):
    """What can change the state."""

    INITIALIZE = "initialize"
    INITIALIZED = "initialized"
    CLOSE = "disconnect"


TRANSITIONS: Final[Mapping[tuple[State, Move], State]] = {
    (State.STARTING, Move.INITIALIZE): State.INITIALIZING,
    (State.INITIALIZING, Move.INITIALIZED): State.RUNNING,
    (State.STARTING, Move.CLOSE): State.CLOSED,
    (State.INITIALIZING, Move.CLOSE): State.CLOSED,
    (State.RUNNING, Move.CLOSE): State.CLOSED,
}


class Era(Enum):
    """Which family of protocol revisions a connection speaks."""

    UNDECIDED = "undecided"
    HANDSHAKE = "handshake"
    MODERN = "modern"


class Identity(Struct, frozen=True):
    """What the server says about itself."""

    server_info: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    instructions: str | None = None


class Reply(Struct, gc=False):
    """Send this line as it is."""

    line: bytes


class Refusal(Struct, gc=False):
    """Send this line: the message could not be taken as it is."""

    line: bytes
    code: int
    message: str
    correlation_id: str
    id: Id | None = None
    """The request that it answers; None when there is no valid id to repeat."""


class ToolCall(Struct, gc=False):
    """A `tools/call` that has passed the state gate and whose params have the right shape."""

    id: Id
    name: str
    arguments: dict[str, Any]
    meta: Mapping[str, Any]
    modern: bool
    input_responses: Mapping[str, dict[str, Any]] | None = None
    """What the client answers to the questions that the call was answered with before; the modern era's."""
    request_state: str | None = None
    """What it was told to bring along with them."""


class Request(Struct, gc=False):
    """Any other request of a method that this era knows."""

    id: Id
    method: str
    params: dict[str, Any] | None
    modern: bool

    @property
    def meta(self) -> Mapping[str, Any]:
        return (self.params or {}).get("_meta") or {}


class Initialized(Struct, gc=False):
    """The handshake is through."""


class Cancel(Struct, gc=False):
    """The client no longer wants the answer to request `id`."""

    id: Id
    reason: str | None


Event: TypeAlias = Reply | Refusal | ToolCall | Request | Initialized | Cancel | Answer


class _CallParams(Struct, gc=False):
    name: str
    arguments: dict[str, Any] | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = field(default=UNSET, name="_meta")
    # The modern era's; in the other they are strange to us, whatever they hold.
    input_responses: Any = field(default=UNSET, name="inputResponses")
    request_state: Any = field(default=UNSET, name="requestState")


class _KnownCallParams(_CallParams, gc=False, forbid_unknown_fields=True):
    pass


class _CallMessage(Struct, gc=False, forbid_unknown_fields=True):
    """The commonest message of all, read in one go. No string is skipped, so that each is known to be UTF-8."""

    jsonrpc: Literal["2.0"]
    id: Id
    method: Literal["tools/call"]
    params: _KnownCallParams


class _CancelParams(Struct, rename="camel"):
    request_id: Id
    reason: str | None = None


_decode_call_message: Callable[[Any], _CallMessage] = msgspec.json.Decoder(_CallMessage).decode
_decode_call = msgspec.json.Decoder(_CallParams).decode
_decode_cancel = msgspec.json.Decoder(_CancelParams).decode
_decode_params: Callable[[bytes], dict[str, Any] | None] = msgspec.json.Decoder(dict[str, Any] | None).decode

T = TypeVar("T")

MOST_VERSION = 100
"""Characters of a version that is not spoken, in the answer that says so."""
MOST_TOKEN = 256
"""Characters of a progress token."""

_NO_META: Final[dict[str, Any]] = {}
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Looked up for every message.
_LARGE = 64 * 1024
_RUNNING, _CLOSED, _MODERN, _OVERSIZED = State.RUNNING, State.CLOSED, Era.MODERN, Oversized.LINE


class Session:
    """The protocol side of one connection."""

    def __init__(
        self, identity: Identity, correlation_id: str, max_message_bytes: int, shape: Shape = UNLIMITED
    ) -> None:
        self.identity = identity
        self.correlation_id = correlation_id
        self.state = State.STARTING
        self.era = Era.UNDECIDED
        self.version: str | None = None
        self.client: Mapping[str, Any] | None = None
        self._lines = LineBuffer(max_message_bytes)
        self._limit = max_message_bytes
        self._shape = shape
        self._server_info = Raw(jsonrpc.encode(identity.server_info))  # It is part of every result.
        self._large = min(_LARGE, shape.sure_bytes, max_message_bytes)

    def receive(self, data: bytes) -> list[Event]:
        """What `data` means, in order. Bytes of an unfinished line are kept for the next time."""
        is_small = len(data) <= self._large and not self._lines.is_within_line
        lines = self._lines.feed(data)
        if is_small and (self.state is _RUNNING or (self.era is _MODERN and self.state is not _CLOSED)):
            try:
                return [self._call(_decode_call_message(line)) for line in lines]
            except _UNREADABLE:
                pass  # Some are not calls, as most are.
        events: list[Event] = []
        for line in lines:
            if self.state is _CLOSED:
                break
            event = self.read(line)
            if event is not None:
                events.append(event)
        return events

    def close(self) -> None:
        """The peer is gone."""
        self.move(Move.CLOSE)

    def result(self, request_id: Id, result: Mapping[str, Any], *, modern: bool) -> bytes:
        """The line that answers a request."""
        if modern:
            result = complete(self.identity, result)
        return jsonrpc.encode_result(request_id, result)

    def tool_result(self, request_id: Id, result: ToolResult) -> bytes:
        """The line that answers a `tools/call` of the modern era."""
        result.result_type = "complete"
        result.meta.server_info = self._server_info
        return jsonrpc.encode_result(request_id, result)

    def interim(self, request_id: Id, result: Interim, meta: ResultMeta) -> bytes:
        """The line that answers one with questions, or with the task that it has become."""
        meta.server_info = self._server_info
        result.meta = meta
        return jsonrpc.encode_result(request_id, result)

    def refuse(self, error: ProtocolError, request_id: Id | None, meta: Mapping[str, Any] = _NO_META) -> Refusal:
        """The answer to a message with `error`. Every transport words its protocol errors here."""
        correlation_id = error.correlation_id or correlation_id_in(meta)
        if correlation_id is None or isinstance(error, NotInitialized):
            correlation_id = self.correlation_id
        line = jsonrpc.encode_error(error, request_id, correlation_id)
        return Refusal(line, error.code, error.message, correlation_id, request_id)

    def move(self, move: Move) -> bool:
        """Change the state as `TRANSITIONS` has it; False: there is no such move from where it is."""
        target = TRANSITIONS.get((self.state, move))
        if target is None:
            return False
        self.state = target
        return True

    def _call(self, call: _CallMessage) -> ToolCall | Refusal:
        params = call.params
        if params.meta is UNSET and self.era is not _MODERN:
            arguments = {} if params.arguments is UNSET else params.arguments
            return ToolCall(call.id, params.name, arguments, _NO_META, False)
        try:
            return self._tool_call(params, call.id)
        except ProtocolError as error:
            return self.refuse(error, call.id, params.meta or _NO_META)

    def read(self, line: bytes | Oversized, *, is_weighed: bool = False) -> Event | None:
        """What one whole message means; None: nothing is to be done. `is_weighed`: its shape has been checked."""
        if line is _OVERSIZED:
            text = f"Invalid request: the message is longer than {self._limit} bytes"
            return self.refuse(InvalidRequest(text), None)
        if len(line) > self._large and not is_weighed:
            return self._read_large(line)
        if self.state is _RUNNING or self.era is _MODERN:
            try:
                return self._call(_decode_call_message(line))
            except _UNREADABLE:
                pass  # Another message, or one that is wrong somewhere: it is read again, with care.
        if not line or line.isspace():
            return None
        try:
            message = jsonrpc.decode(line)
        except InvalidRequest as error:
            return self.refuse(error, error.id, error.meta or _NO_META)
        except ParseError as error:
            return self.refuse(error, None)
        if isinstance(message, Answer):
            return message
        if message.id is UNSET:
            return self._notification(message)
        try:
            return self._request(message, message.id)
        except ParseError as error:
            return self.refuse(error, None)
        except ProtocolError as error:
            return self.refuse(error, message.id, _meta_of(message))

    def _read_large(self, line: bytes) -> Event | None:
        excess = self._shape.excess(line)
        if excess is not None:
            return self._refuse_unread(line, InvalidRequest(f"Invalid request: the message has {excess}"))
        # Decoding makes many objects and no garbage: to look for some meanwhile can take longer than all the rest.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self.read(line, is_weighed=True)
        finally:
            if was_enabled:
                gc.enable()

    def _refuse_unread(self, line: bytes, error: ProtocolError) -> Refusal | None:
        heading = jsonrpc.heading(line)
        if heading.method is None:
            return self.refuse(error, None)  # It may be an answer, whose id is one of ours.
        if not heading.has_id:
            return None  # A notification.
        return self.refuse(error, heading.id, heading.correlation)

    def _request(self, message: RpcMessage, request_id: Id) -> Event:
        method = message.method
        if self.era is Era.MODERN:
            return self._modern_request(message, request_id)
        if self.state is State.RUNNING:
            if method == "tools/call":
                return self._tool_call(_call_params(message), request_id)
            if method == "initialize":
                raise InvalidRequest("Invalid request: the connection is initialized already")
            if method not in HANDSHAKE_METHODS:
                raise MethodNotFound(f"Method not found: {method[:200]}")
            params = _params(message)
            meta = _meta_in(params)
            _refuse_envelope(meta)
            _check_progress_token(meta)
            return Request(request_id, method, params, False)
        if method == "initialize":
            return self._initialize(message, request_id)
        if self.era is Era.UNDECIDED and VERSION_KEY in _meta_of(message):
            self.era = Era.MODERN
            return self._modern_request(message, request_id)
        raise NotInitialized

    def _initialize(self, message: RpcMessage, request_id: Id) -> Reply:
        if self.state is not State.STARTING:
            raise InvalidRequest("Invalid request: initialize was sent already")
        self.client = client = initialize_params(message)  # First: it may refuse, and then nothing has changed.
        version = client["protocolVersion"]
        self.version = version if version in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE
        self.era = Era.HANDSHAKE
        self.move(Move.INITIALIZE)
        result: dict[str, Any] = {
            "protocolVersion": self.version,
            "capabilities": self.identity.capabilities,
            "serverInfo": self.identity.server_info,
        }
        if self.identity.instructions is not None:
            result["instructions"] = self.identity.instructions
        return Reply(self.result(request_id, result, modern=False))

    def _tool_call(self, params: _CallParams, request_id: Id) -> ToolCall:
        meta = _NO_META if params.meta is UNSET else params.meta
        modern = self.era is _MODERN
        if modern:
            check_envelope(meta)
        elif meta:
            _refuse_envelope(meta)
        if "progressToken" in meta:
            _check_progress_token(meta)
        call = ToolCall(request_id, params.name, {} if params.arguments is UNSET else params.arguments, meta, modern)
        if modern:
            if params.input_responses is not UNSET:
                call.input_responses = _responses(params.input_responses)
            if params.request_state is not UNSET:
                call.request_state = _state(params.request_state)
        return call

    def _modern_request(self, message: RpcMessage, request_id: Id) -> ToolCall | Request:
        method = message.method
        if method == "initialize":
            raise UnsupportedVersion(
                "The connection speaks 2026-07-28, which has no initialize handshake",
                {"supported": list(MODERN_VERSIONS), **_requested(_params(message))},
            )
        if method == "tools/call":
            check_envelope(_meta_of(message))  # What is wrong with the envelope comes first.
            return self._tool_call(_call_params(message), request_id)
        if (
            method not in MODERN_METHODS and method not in TASK_METHODS
        ):  # Without a look at its params, which could be anything.
            check_envelope(_meta_of(message))
            raise MethodNotFound(f"Method not found: {method[:200]}")
        params = _params(message)
        check_envelope(_meta_in(params))
        _check_progress_token(_meta_in(params))
        if method == "subscriptions/listen":
            params = _kept(known_subscription, message)
        return Request(request_id, method, params, True)

    def _notification(self, message: RpcMessage) -> Event | None:
        if message.method in ("initialized", "notifications/initialized"):
            if self.era is Era.HANDSHAKE and self.move(Move.INITIALIZED):
                return Initialized()
        elif message.method == "notifications/cancelled" and (self.state is State.RUNNING or self.era is Era.MODERN):
            try:
                cancel = _decode_cancel(message.params)
            except (msgspec.DecodeError, RecursionError):
                return None
            return Cancel(cancel.request_id, cancel.reason)
        return None


def initialize_params(message: RpcMessage) -> dict[str, Any]:
    """What is kept of an `initialize`; raises `InvalidParams`."""
    if not message.has_params:
        raise InvalidParams("Invalid params: initialize needs protocolVersion, capabilities, clientInfo")
    known = _kept(known_params, message)
    _check_progress_token(_meta_in(_params(message)))
    return known


def modern_reader(identity: Identity, correlation_id: str) -> Session:
    """A session for requests of the modern era that share nothing: it has no state that a message could change."""
    session = Session(identity, correlation_id, sys.maxsize)
    session.era = Era.MODERN
    return session


def handshake_reader(identity: Identity, correlation_id: str) -> Session:
    """A session that reads the messages of one HTTP session, which the SDK serves. It never speaks the modern era."""
    session = Session(identity, correlation_id, sys.maxsize)
    session.era = Era.HANDSHAKE
    return session


def complete(identity: Identity, result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with what the modern era wants in every one of them."""
    meta = {**(result.get("_meta") or {}), SERVER_INFO_KEY: identity.server_info}
    return {"resultType": "complete", **result, "_meta": meta}


def correlation_id_in(meta: Mapping[str, Any]) -> str | None:
    """The correlation id that a request brought, if it is one: at most 128 printable ASCII characters."""
    value = meta.get("correlationId")
    if type(value) is str and 0 < len(value) <= 128 and value.isascii() and value.isprintable():
        return value
    return None


def check_envelope(meta: Mapping[str, Any]) -> str:
    """The protocol version of a modern request; raises `InvalidParams` or `UnsupportedVersion`."""
    version: Any = meta.get(VERSION_KEY)
    capabilities = meta.get(CAPABILITIES_KEY)
    if version in MODERN_VERSIONS and type(capabilities) is dict and _is_client(meta.get(CLIENT_INFO_KEY)):
        return str(version)  # As nearly every request has it.
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise InvalidParams(f"Invalid params: params._meta lacks {', '.join(missing)}")
    if not isinstance(version, str):
        raise InvalidParams(f"Invalid params: {VERSION_KEY} must be a string")
    if version not in MODERN_VERSIONS:
        raise UnsupportedVersion(
            "Unsupported protocol version", {"supported": list(MODERN_VERSIONS), "requested": version[:MOST_VERSION]}
        )
    if not isinstance(capabilities, dict):
        raise InvalidParams(f"Invalid params: {CAPABILITIES_KEY} must be an object")
    try:
        msgspec.convert(meta[CLIENT_INFO_KEY], ClientInfo)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"Invalid params: {CLIENT_INFO_KEY}: {_said(error)}") from None
    return version


def _is_client(info: Any) -> bool:
    return info is None or (type(info) is dict and type(info.get("name")) is str and type(info.get("version")) is str)


def _refuse_envelope(meta: Mapping[str, Any]) -> None:
    if VERSION_KEY in meta:
        raise InvalidRequest("Invalid request: the connection opened with a handshake; 2026-07-28 is not spoken on it")


def _check_progress_token(meta: Mapping[str, Any]) -> None:
    token = meta.get("progressToken")
    if token is not None:
        check_progress_token(token)


def check_progress_token(token: Any) -> None:
    """Raise `InvalidParams` for one that notifications should not carry: it is part of each of them."""
    if not isinstance(token, int | str) or isinstance(token, bool):
        raise InvalidParams("Invalid params: _meta.progressToken must be a string or an integer")
    if len(token) > MOST_TOKEN if isinstance(token, str) else token.bit_length() > 64:
        raise InvalidParams(f"Invalid params: _meta.progressToken is longer than {MOST_TOKEN} characters or 64 bits")


def _responses(given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        raise InvalidParams("Invalid params: inputResponses must be an object of objects")
    return given


def _state(given: Any) -> str:
    if not isinstance(given, str):
        raise InvalidParams("Invalid params: requestState must be a string")
    return given


def _call_params(message: RpcMessage) -> _CallParams:
    if not message.has_params:
        raise InvalidParams("Invalid params: tools/call needs params with a name")
    return _decoded(_decode_call, message)


def _params(message: RpcMessage) -> dict[str, Any] | None:
    if not message.has_params:
        return None
    params = _decoded(_decode_params, message)
    if params is not None and not isinstance(params.get("_meta", _NO_META), dict):
        raise InvalidParams("Invalid params: _meta must be an object")
    return params


def _decoded(decode: Callable[[bytes], T], message: RpcMessage) -> T:
    try:
        return decode(message.params)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"Invalid params: {_said(error)}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise jsonrpc.unreadable(error) from None


def _kept(reduce: Callable[[bytes], dict[str, Any]], message: RpcMessage) -> dict[str, Any]:
    """What outlives the request."""
    try:
        return _decoded(reduce, message)
    except ValueError as error:
        raise InvalidParams(f"Invalid params: {error}") from None


def _meta_in(params: dict[str, Any] | None) -> Mapping[str, Any]:
    return params.get("_meta", _NO_META) if params is not None else _NO_META


def _meta_of(message: RpcMessage) -> Mapping[str, Any]:
    """`params._meta` where there is one that can be read, whatever else is wrong with the params."""
    return jsonrpc.meta_in(message.params) if message.has_params else _NO_META


def _requested(params: dict[str, Any] | None) -> dict[str, str]:
    version = (params or {}).get("protocolVersion")
    return {"requested": version[:MOST_VERSION]} if isinstance(version, str) else {}


def _said(error: msgspec.ValidationError) -> str:
    return str(error).replace("`$.", "`params.").replace("`$[", "`params[").replace("`$`", "`params`")

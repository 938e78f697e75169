"""Messages as the SDK is given them: decoded, checked and reduced."""

from __future__ import annotations

import msgspec

from dragoman.edge.asgi import RequestRefused
from dragoman.errors import InvalidParams, InvalidRequest, ParseError, ProtocolError
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, RpcMessage, encode_request
from dragoman.protocol.session import initialize_params

NO_BODY = "Parse error: there is no body"


def decoded(body: bytes) -> RpcMessage | Answer:
    """The message in a body. Raises `RequestRefused`."""
    if not body or body.isspace():
        raise RequestRefused(400, ParseError(NO_BODY))
    try:
        return jsonrpc.decode(body)
    except InvalidRequest as error:
        raise RequestRefused(400, error, id=error.id, meta=error.meta or {}) from None
    except ProtocolError as error:
        raise RequestRefused(400, error) from None


def reduced(body: bytes, message: RpcMessage | Answer) -> bytes:
    """A message as the SDK is given it, which keeps all of an `initialize` for the life of the session.

    Raises `RequestRefused` for what the SDK would refuse: its words, which are logged, repeat parts of the message.
    """
    _refuse_misshapen(message)
    if not isinstance(message, RpcMessage) or message.method != "initialize" or message.id is msgspec.UNSET:
        return body
    try:
        return encode_request(message.id, message.method, initialize_params(message))
    except InvalidParams as error:
        raise RequestRefused(400, error, id=message.id, meta=jsonrpc.meta_in(message.params)) from None


def _refuse_misshapen(message: RpcMessage | Answer) -> None:
    if isinstance(message, RpcMessage):
        if message.has_params and bytes(memoryview(message.params)[:1]) not in (b"{", b"n"):
            raise RequestRefused(400, InvalidRequest("Invalid request: params must be an object"))
    elif message.error is None:
        if not isinstance(message.result, dict):
            raise RequestRefused(400, InvalidRequest("Invalid request: result must be an object"))
    elif type(message.error.get("code")) is not int or not isinstance(message.error.get("message"), str):
        raise RequestRefused(400, InvalidRequest("Invalid request: error must have an integer code and a message"))

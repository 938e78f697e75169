"""Envelopes as text."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType
from dragoman.errors import InvalidEnvelope

_TYPES: dict[str, type] = {
    "messageId": str,
    "requestId": str,
    "sourceAgentId": str,
    "targetAgentId": str,
    "seq": int,
    "ack": int,
    "messageType": str,
    "timestamp": str,
}
_OPTIONAL = {"requestId", "ack"}
_NAMES = dict(zip(AACPEnvelope.__struct_encode_fields__, AACPEnvelope.__struct_fields__, strict=True))


class AACPEncoder:
    """Writes and reads envelopes as JSON objects with the field names of the protocol."""

    def encode(self, envelope: AACPEnvelope) -> str:
        """The envelope as JSON; raises `InvalidEnvelope` if its payload is not JSON."""
        try:
            return msgspec.json.encode(envelope).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidEnvelope("payload", f"is not JSON: {error}") from None

    def decode(self, text: str) -> AACPEnvelope:
        """The envelope that `text` is; raises `InvalidEnvelope`. An optional field is left out, and not null."""
        fields = _object(text)
        for name in fields:
            if name not in _NAMES:
                raise InvalidEnvelope(name[:64], "is not a field of an envelope")
        for name in _NAMES:
            if name not in fields:
                if name not in _OPTIONAL:
                    raise InvalidEnvelope(name, "is missing")
            elif type(fields[name]) is not _TYPES.get(name, type(fields[name])):
                raise InvalidEnvelope(name, f"must be {'an integer' if _TYPES[name] is int else 'a string'}")
        return AACPEnvelope(**{_NAMES[name]: value for name, value in fields.items()} | {"message_type": _type(fields)})


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidEnvelope("envelope", f"is not a JSON object: {error}") from None


def _type(fields: dict[str, Any]) -> AACPMessageType:
    try:
        return AACPMessageType(fields["messageType"])
    except ValueError:
        raise InvalidEnvelope("messageType", f"must be one of {', '.join(AACPMessageType)}") from None

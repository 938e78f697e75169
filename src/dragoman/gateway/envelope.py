"""The envelope of an action, version 2.2: read strictly, and refused by the path of what is wrong."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import MalformedEnvelope
from dragoman.knowledge.roles import ALIASES, ROLES

VERSIONS: Final = ("2.2",)
SCHEMA_VERSION: Final = "1.0"
LONGEST_TTL: Final = 86_400
LONGEST_KEY: Final = 256
LONGEST_URI: Final = 4096

_TRACEPARENT = r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
_SEMVER = (
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
_UUID = r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"

Name = Annotated[str, Meta(min_length=1, max_length=256)]
TenantName = Annotated[str, Meta(min_length=1, max_length=128)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]
# With a length: Python's `$` would let a line's end follow.
_Id = Annotated[str, Meta(pattern=_UUID, max_length=36)]
_FIELD = re.compile(r"(?:unknown|required) field `([^`]*)`")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")


class Principal(Struct, frozen=True, forbid_unknown_fields=True):
    """Who asks, and in which roles."""

    sub: Name
    roles: Annotated[tuple[Name, ...], Meta(max_length=16)]


class Payload(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of the action, or an artifact that holds them: one of the two, and nothing else."""

    schema_version: str
    args: dict[str, Any] | None = None
    artifact_uri: Annotated[str, Meta(min_length=1, max_length=LONGEST_URI)] | None = None
    artifact_hash: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$", max_length=64)] | None = None


class Envelope22(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for an action."""

    envelope_version: str
    request_id: _Id
    correlation_id: _Id
    trace_id: Annotated[str, Meta(pattern=_TRACEPARENT, max_length=55)]
    tenant_id: TenantName
    principal: Principal
    timestamp: str
    ttl_sec: Annotated[int, Meta(ge=1, le=LONGEST_TTL)]
    action: Name
    action_version: Annotated[str, Meta(pattern=_SEMVER, max_length=64)]
    payload: Payload
    idempotency_key: IdempotencyKey | None = None
    seq: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    context_id: Annotated[str, Meta(max_length=256)] = ""
    resource_links: Annotated[tuple[Any, ...], Meta(max_length=100)] = ()

    @property
    def sent_at(self) -> float:
        """In seconds since 1970. Raises `MalformedEnvelope`."""
        try:
            moment = datetime.fromisoformat(self.timestamp)
            if "T" in self.timestamp and moment.tzinfo is not None and not moment.utcoffset():
                return moment.timestamp()
        except (ValueError, OverflowError):
            pass
        raise malformed("timestamp", "must be a date and time in UTC, such as 2026-01-31T12:00:00Z")


_decode = msgspec.json.Decoder(Envelope22).decode


def read_envelope(body: bytes) -> Envelope22:
    """The envelope in the body of a request. Raises `MalformedEnvelope`."""
    try:
        envelope = _decode(body)
    except msgspec.ValidationError as error:
        said = str(error)
        at, field = _PLACE.search(said), _FIELD.search(said)
        path = ".".join(each[1] for each in (at, field) if each is not None and each[1])
        raise malformed(path, said[: at.start()] if at else said) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise malformed("", "The body is not JSON") from None
    if envelope.envelope_version not in VERSIONS:
        raise malformed("envelope_version", "is not supported", {"supported_versions": list(VERSIONS)})
    if envelope.payload.schema_version != SCHEMA_VERSION:
        raise malformed("payload.schema_version", "is not supported", {"supported_versions": [SCHEMA_VERSION]})
    _check_payload(envelope.payload)
    for place, role in enumerate(envelope.principal.roles):
        if role not in ROLES and role not in ALIASES:
            known = {"roles": sorted(ROLES), "aliases": sorted(ALIASES)}
            raise malformed(f"principal.roles[{place}]", "is no role", known)
    for name in (envelope.tenant_id, envelope.principal.sub, envelope.context_id, envelope.idempotency_key or ""):
        if not name.isprintable():
            raise malformed("", "Names must consist of printable characters")
    return envelope


def _check_payload(payload: Payload) -> None:
    if payload.artifact_uri is None and payload.artifact_hash is None:
        if payload.args is None:
            raise malformed("payload.args", "is missing; an artifact may be there instead")
    elif payload.args is not None:
        raise malformed("payload.args", "must not be there beside an artifact")
    elif payload.artifact_uri is None:
        raise malformed("payload.artifact_uri", "is missing")
    elif payload.artifact_hash is None:
        raise malformed("payload.artifact_hash", "is missing")


def trace_in(body: bytes) -> str | None:
    """The trace that a body names, even if it is no envelope; None if it names none."""
    try:
        found = msgspec.json.decode(body, type=_Traced).trace_id
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return found if is_trace(found) else None


def is_trace(text: str) -> bool:
    """Whether a text is a traceparent."""
    return re.fullmatch(_TRACEPARENT, text) is not None


class _Traced(Struct):
    trace_id: str


def malformed(path: str, message: str, details: dict[str, Any] | None = None) -> MalformedEnvelope:
    """The error for an envelope in which something is wrong at `path`."""
    return MalformedEnvelope(f"{path}: {message}" if path else message, {"path": path, **(details or {})})


def new_trace(run_id: UUID) -> str:
    """A trace of its own, for a request that names none."""
    return f"00-{run_id.hex}-{run_id.hex[16:]}-00"

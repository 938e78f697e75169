"""The wording of the action contract: `{ok, data | error, usage}`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dragoman.errors import InternalFailure, ToolError
from dragoman.replies.encoding import clean_details, clean_message
from dragoman.replies.vocabulary import STATUSES, ContractCode, words_for
from dragoman.tools.content import encode_json

_NO_USAGE: Mapping[str, Any] = MappingProxyType({})
_LONGEST_MESSAGE = 1000
_MOST_DETAILS = 16_384
_PASSING = frozenset(
    ("storage_full", "storage_busy", "storage_unavailable", "storage_closed", "storage_failed", "verifier_unavailable")
)
"""Reasons of failures that somebody else can mend while the server runs."""
_HINTS: Mapping[ContractCode, str] = {
    ContractCode.INVALID_ARGUMENT: "Correct the envelope at details.path; repeating it as it is cannot help.",
    ContractCode.UNAUTHORIZED: "Sign the request anew, with a key that is valid, and a nonce that was not used.",
    ContractCode.FORBIDDEN: "Ask for a role that may do this, or use the tenant that the credentials are for.",
    ContractCode.NOT_FOUND: "Check the id, and that the document was not deleted.",
    ContractCode.CONFLICT: "Read what is there now, and repeat the request with that, under another idempotency key.",
    ContractCode.UNPROCESSABLE_ENTITY: "Correct the arguments; GET /schemas/mcp/<action>.json has their schema.",
    ContractCode.RATE_LIMIT_EXCEEDED: "Repeat the request after Retry-After, with the same idempotency key.",
    ContractCode.EXPIRED: "Send the request with a new timestamp, and the same idempotency key.",
    ContractCode.INTERNAL: "Tell whoever runs the server the trace_id.",
    ContractCode.UNAVAILABLE: "Repeat the request a little later, with the same idempotency key.",
}
_HINTS_BY_REASON: Mapping[str, str] = {
    "payload_too_large": "Send arguments of at most details.limit bytes.",
    "role": "Use credentials with a role that may do this; an envelope also has to claim it in principal.roles.",
    "other_principal": "Let principal.sub be the subject of the credentials.",
    "document_exists": "Update the document, or choose another document_id.",
    "revision_conflict": "Use details.actual as last_known_revision, if the change is still right.",
    "test_mode_only": "Leave routing.noop_qdrant out: it is for servers with knowledge.test_mode.",
    "idempotency_conflict": "Use another idempotency key for another request.",
    "request_conflict": "Use another request_id for another request.",
    "unknown_request": "Check the id, and that it was accepted for the same principal, not longer ago than it is kept.",
    "unknown_artifact": "Send the artifact again, and use its new artifact_uri.",
    "artifact_link": "Use the artifact_uri that the upload was answered with, as it is, for the same tenant.",
    "artifact_link_expired": "Send the artifact again, and use its new artifact_uri.",
    "artifact_content": "Send content that is what its Content-Type says; arguments are an object of JSON.",
    "document_quota": "Make room: documents are not counted from their deletion on, and their bytes 90 days later.",
    "storage_uncertain": "The change may have been stored. Repeat the request with the same idempotency key.",
    "answer_quota": "Send queries without an idempotency key, at once, or wait until older answers have ended.",
    "artifact_quota": "Wait until older artifacts have ended, a day after they were sent.",
}
"""More particular than those by code."""
_HINTS_BY_STATUS: Mapping[int, str] = {
    400: "Send each header once, as GET /mcp/openapi.json describes the request.",
    403: "Call from a page of this server, or have its operator list the origin in http.allowed_origins.",
    404: "GET /mcp/openapi.json describes what is served.",
    405: "Use a method that the header Allow names.",
    413: "Send a smaller body; large arguments can be an artifact.",
    421: "Use a name of this server as Host, or have its operator list the name in http.allowed_hosts.",
}
_CODES = {status: code for code, status in STATUSES.items()}


def word_success(data: Any, latency_ms: int, usage: Mapping[str, Any] = _NO_USAGE) -> bytes:
    """The body of an answer; `usage` is that of the call."""
    return encode_json({"ok": True, "data": data, "usage": {"latency_ms": latency_ms, "qdrant_hits": 0, **usage}})


def word_error(error: ToolError, trace_id: str) -> tuple[int, bytes]:
    """The status and the body of an answer. Its details always have a hint and the trace."""
    code = code_in_contract(error)
    facts = dict(clean_details(error.details, _MOST_DETAILS) or {})
    return STATUSES[code], _body(code, error.message, {**facts, "hint": _hint_for(code, facts), "trace_id": trace_id})


def word_refusal(status: int, message: str, trace_id: str) -> bytes:
    """The body of an answer to a request that HTTP refuses, whose status the contract need not have."""
    code = _CODES.get(status, ContractCode.INVALID_ARGUMENT)
    return _body(code, message, {"hint": _HINTS_BY_STATUS.get(status, _HINTS[code]), "trace_id": trace_id})


def _body(code: ContractCode, message: str, details: Mapping[str, Any]) -> bytes:
    said = {"code": code, "message": clean_message(message, _LONGEST_MESSAGE) or code.value, "details": details}
    return encode_json({"ok": False, "error": said})


def _hint_for(code: ContractCode, facts: Mapping[str, Any]) -> str:
    reason = facts.get("reason")
    return _HINTS_BY_REASON.get(reason, _HINTS[code]) if isinstance(reason, str) else _HINTS[code]


def code_in_contract(error: ToolError) -> ContractCode:
    """The code of an error: its class's, or UNAVAILABLE for a failure that passes."""
    if isinstance(error, InternalFailure) and (error.details or {}).get("reason") in _PASSING:
        return ContractCode.UNAVAILABLE
    return words_for(type(error)).contract

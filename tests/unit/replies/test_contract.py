"""The wording of the action contract."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import errors
from dragoman.errors import InternalFailure, MalformedEnvelope, Refused, ToolError
from dragoman.replies.contract import code_in_contract, word_error, word_success
from dragoman.replies.vocabulary import STATUSES, VOCABULARY, ContractCode
from dragoman.tools.storage_errors import tool_error

TRACE = "00-00000000000000000000000000000001-0000000000000001-01"


def bare(kind: type[ToolError], message: str = "Said", details: Any = None) -> ToolError:
    """An error of any class, whatever its own arguments are."""
    error = kind.__new__(kind)
    ToolError.__init__(error, message, details)
    return error


def worded(error: ToolError) -> tuple[int, dict[str, Any]]:
    status, body = word_error(error, TRACE)
    answer = json.loads(body)
    assert answer.keys() == {"ok", "error"}
    assert answer["ok"] is False
    return status, answer["error"]


@pytest.mark.requirement("MC-RESP-01")
def test_a_success_has_data_and_usage() -> None:
    body = word_success({"id": "a", "revision": 1}, 7)
    assert json.loads(body) == {
        "ok": True,
        "data": {"id": "a", "revision": 1},
        "usage": {"latency_ms": 7, "qdrant_hits": 0},
    }


@pytest.mark.requirement("MC-ERR-01")
def test_there_are_these_codes_and_no_others() -> None:
    assert {code.value: status for code, status in STATUSES.items()} == {
        "INVALID_ARGUMENT": 400,
        "UNAUTHORIZED": 401,
        "FORBIDDEN": 403,
        "NOT_FOUND": 404,
        "CONFLICT": 409,
        "UNPROCESSABLE_ENTITY": 422,
        "RATE_LIMIT_EXCEEDED": 429,
        "EXPIRED": 440,
        "INTERNAL": 500,
        "UNAVAILABLE": 503,
    }
    assert set(STATUSES) == set(ContractCode)


@pytest.mark.requirement("MC-ERR-02")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.MalformedEnvelope, "INVALID_ARGUMENT"),
        (errors.PayloadTooLarge, "INVALID_ARGUMENT"),
        (errors.NotAuthentic, "UNAUTHORIZED"),
        (errors.Unauthorized, "FORBIDDEN"),
        (errors.MissingScope, "FORBIDDEN"),
        (errors.NotFound, "NOT_FOUND"),
        (errors.Conflict, "CONFLICT"),
        (errors.AlreadyExists, "CONFLICT"),
        (errors.InvalidArgument, "UNPROCESSABLE_ENTITY"),
        (errors.RateLimited, "RATE_LIMIT_EXCEEDED"),
        (errors.NoFreeSlot, "RATE_LIMIT_EXCEEDED"),
        (errors.Expired, "EXPIRED"),
        (errors.InternalFailure, "INTERNAL"),
        (errors.ToolError, "INTERNAL"),
        (errors.Stopping, "UNAVAILABLE"),
        (errors.MemoryPressure, "UNAVAILABLE"),
        (errors.TimedOut, "UNAVAILABLE"),
    ],
)
def test_each_kind_of_error_has_the_code_that_says_what_it_is(kind: type[ToolError], code: str) -> None:
    assert code_in_contract(bare(kind)).value == code


@pytest.mark.requirement("MC-ERR-02")
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.StorageBusy("busy"), "UNAVAILABLE"),
        (errors.StorageFull("full"), "UNAVAILABLE"),
        (errors.StorageUnavailable("gone"), "UNAVAILABLE"),
        (errors.StorageCorrupt("torn"), "INTERNAL"),
    ],
)
def test_a_failure_that_passes_is_unavailable_and_one_that_stays_is_not(
    failure: errors.StorageError, code: str
) -> None:
    assert code_in_contract(tool_error(failure)).value == code


@pytest.mark.requirement("MC-ERR-01", "MC-RESP-02")
@pytest.mark.parametrize("kind", VOCABULARY)
def test_every_class_of_the_tree_has_a_code_a_hint_and_the_trace(kind: type[ToolError]) -> None:
    status, error = worded(bare(kind, details={"reason": "because"}))
    assert error.keys() == {"code", "message", "details"}
    assert STATUSES[ContractCode(error["code"])] == status
    assert error["message"] == "Said"
    hint = error["details"].pop("hint")
    assert isinstance(hint, str)
    assert hint.endswith(".")
    assert error["details"] == {"reason": "because", "trace_id": TRACE}


@pytest.mark.requirement("MC-RESP-02")
@pytest.mark.parametrize(
    "details",
    [
        None,
        {},
        {"hint": "mine", "trace_id": "mine"},
        {"large": "x" * 100_000},
        {"deep": [[[[[[[[[[1]]]]]]]]]]},
        {"odd": object()},
        {"odd": float("nan")},
        {5: 6},
        ["no", "mapping"],
        "text",
    ],
    ids=lambda value: str(value)[:20],
)
def test_hint_and_trace_are_there_whatever_the_details_are(details: Any) -> None:
    status, error = worded(bare(Refused, details=details))
    assert status == 400
    assert error["details"]["trace_id"] == TRACE
    assert error["details"]["hint"] != "mine"
    assert len(json.dumps(error)) < 40_000


@pytest.mark.requirement("MC-RESP-02")
def test_a_message_is_short_clean_and_never_empty() -> None:
    for said in ("", "x" * 100_000, "line\nline", "\ud800"):
        status, error = worded(bare(InternalFailure, said))
        assert status == 500
        assert 0 < len(error["message"]) <= 1000


@pytest.mark.requirement("MC-RESP-02")
def test_a_reason_has_a_hint_of_its_own() -> None:
    _, role = worded(errors.Unauthorized("No", {"reason": "role"}))
    _, tenant = worded(errors.Unauthorized("No", {"reason": "other_tenant"}))
    assert "principal.roles" in role["details"]["hint"]
    assert "principal.roles" not in tenant["details"]["hint"]


@pytest.mark.requirement("MC-RESP-02", "MC-ENV-06")
def test_facts_go_along() -> None:
    facts = {"path": "action_version", "supported_versions": ["1.0.0"]}
    status, error = worded(MalformedEnvelope("action_version: is not supported", facts))
    assert (status, error["code"]) == (400, "INVALID_ARGUMENT")
    assert error["details"] == {**facts, "hint": error["details"]["hint"], "trace_id": TRACE}


@pytest.mark.requirement("MC-RESP-02")
@pytest.mark.parametrize(
    ("kind", "reason", "word"),
    [
        (errors.NotFound, "unknown_request", "accepted"),
        (errors.Conflict, "request_conflict", "request_id"),
        (errors.NotFound, "unknown_artifact", "artifact"),
        (errors.Unauthorized, "artifact_link", "artifact_uri"),
        (errors.Expired, "artifact_link_expired", "artifact_uri"),
        (errors.InvalidArgument, "artifact_content", "Content-Type"),
        (errors.ResourceExhausted, "artifact_quota", "artifacts"),
    ],
)
def test_a_hint_is_about_what_was_refused_and_not_about_documents(
    kind: type[ToolError], reason: str, word: str
) -> None:
    _, error = worded(bare(kind, details={"reason": reason}))
    assert word in error["details"]["hint"]
    assert "document" not in error["details"]["hint"]

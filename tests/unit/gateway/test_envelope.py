"""Envelopes: what is read, and the path of what is not."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from dragoman.errors import MalformedEnvelope
from dragoman.gateway.envelope import Envelope22, new_trace, read_envelope, trace_in
from dragoman.gateway.openapi import openapi
from dragoman.knowledge.roles import ALIASES, ROLES
from tests.support.gateway import Signer, as_body

SIGNER = Signer("acme", "owner", sub="svc:agent-cskh")
TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"
MISSING: Any = Ellipsis
ID = "6d1a2f5e-0c55-4a2b-9a57-3f0a8a3c1d01"


def envelope(**fields: Any) -> dict[str, Any]:
    """One that is read, but for `fields`; `MISSING` leaves one out."""
    given = {**SIGNER.envelope("knowledge.create_document", {"a": 1}), "trace_id": TRACE, **fields}
    return {name: value for name, value in given.items() if value is not MISSING}


def read(**fields: Any) -> Envelope22:
    return read_envelope(as_body(envelope(**fields)))


def refusal(body: bytes) -> MalformedEnvelope:
    with pytest.raises(MalformedEnvelope) as refused:
        read_envelope(body)
    return refused.value


def path_of(**fields: Any) -> Any:
    details = refusal(as_body(envelope(**fields))).details
    assert details is not None
    return details["path"]


@pytest.mark.requirement("MC-ENV-01", "MC-ENV-02", "MC-ENV-03", "MC-ENV-04", "MC-ENV-05")
def test_an_envelope_is_read_whole() -> None:
    given = envelope(
        context_id="thread-7",
        idempotency_key="acme:subject-123:create_document:v1",
        seq=5,
        resource_links=[{"uri": "x"}],
        timestamp="1970-01-01T00:01:00.5Z",
    )
    found = read_envelope(as_body(given))
    assert found.envelope_version == "2.2"
    assert (found.request_id, found.correlation_id) == (given["request_id"], given["correlation_id"])
    assert (found.trace_id, found.tenant_id, found.context_id) == (TRACE, "acme", "thread-7")
    assert (found.principal.sub, found.principal.roles) == ("svc:agent-cskh", ("owner",))
    assert (found.sent_at, found.ttl_sec, found.seq) == (60.5, 300, 5)
    assert found.idempotency_key == "acme:subject-123:create_document:v1"
    assert (found.action, found.action_version) == ("knowledge.create_document", "1.0.0")
    assert (found.payload.schema_version, found.payload.args) == ("1.0", {"a": 1})


@pytest.mark.requirement("MC-ENV-02", "MC-ENV-04")
def test_some_fields_may_be_left_out() -> None:
    found = read()
    assert (found.idempotency_key, found.seq, found.context_id, found.resource_links) == (None, None, "", ())


@pytest.mark.requirement("MC-ENV-01")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nothing",
        b"\xff\xfe",
        b'{"envelope_version": "2.2"',
        b'{"envelope_version": "\xff"}',
        b'{"envelope_version": "\\ud800"}',
        b"[" * 100_000,
        as_body(envelope()) + b"{}",
        as_body(envelope()).decode().encode("utf-16"),
        b"\xef\xbb\xbf" + as_body(envelope()),
        b"[]",
        b"null",
        b'"2.2"',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_object_of_json_is_no_envelope(body: bytes) -> None:
    assert refusal(body).details == {"path": ""}


@pytest.mark.requirement("MC-ENV-01", "MC-ENV-02", "MC-ENV-03", "MC-ENV-04", "MC-ENV-05")
@pytest.mark.parametrize(
    "name",
    [
        "envelope_version",
        "request_id",
        "correlation_id",
        "trace_id",
        "tenant_id",
        "principal",
        "timestamp",
        "ttl_sec",
        "action",
        "action_version",
        "payload",
    ],
)
def test_other_fields_may_not_be_left_out_or_be_null(name: str) -> None:
    assert path_of(**{name: MISSING}) == name
    assert path_of(**{name: None}) == name


@pytest.mark.requirement("MC-ENV-02", "MC-ENV-03", "MC-ENV-04", "MC-ENV-05")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"x": 1}, "x"),
        ({"Request_Id": ID}, "Request_Id"),
        ({"principal": {"sub": "s", "roles": [], "x": 1}}, "principal.x"),
        ({"principal": {"sub": "s"}}, "principal.roles"),
        ({"principal": {"roles": []}}, "principal.sub"),
        ({"principal": {"sub": "", "roles": []}}, "principal.sub"),
        ({"principal": {"sub": "s" * 257, "roles": []}}, "principal.sub"),
        ({"principal": {"sub": 5, "roles": []}}, "principal.sub"),
        ({"principal": {"sub": "s", "roles": "owner"}}, "principal.roles"),
        ({"principal": {"sub": "s", "roles": [5]}}, "principal.roles[0]"),
        ({"principal": {"sub": "s", "roles": ["owner"] * 17}}, "principal.roles"),
        ({"principal": {"sub": "s", "roles": ["owner", "admin"]}}, "principal.roles[1]"),
        ({"principal": {"sub": "s", "roles": ["Owner"]}}, "principal.roles[0]"),
        ({"payload": {"schema_version": "1.0"}}, "payload.args"),
        ({"payload": {"args": {}}}, "payload.schema_version"),
        ({"payload": {"schema_version": "1.0", "args": []}}, "payload.args"),
        ({"payload": {"schema_version": "1.0", "args": {}, "x": 1}}, "payload.x"),
        ({"payload": {"schema_version": "1.1", "args": {}}}, "payload.schema_version"),
        ({"tenant_id": ""}, "tenant_id"),
        ({"tenant_id": "t" * 129}, "tenant_id"),
        ({"tenant_id": 5}, "tenant_id"),
        ({"context_id": None}, "context_id"),
        ({"context_id": "c" * 257}, "context_id"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 257}, "idempotency_key"),
        ({"idempotency_key": 5}, "idempotency_key"),
        ({"seq": -1}, "seq"),
        ({"seq": 1.5}, "seq"),
        ({"seq": "1"}, "seq"),
        ({"seq": 2**53 + 1}, "seq"),
        ({"seq": 10**100}, "seq"),
        ({"resource_links": {}}, "resource_links"),
        ({"resource_links": [0] * 101}, "resource_links"),
        ({"action": ""}, "action"),
        ({"action": "a" * 257}, "action"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_field_that_is_wrong_or_unknown_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    assert path_of(**fields) == path


@pytest.mark.requirement("MC-ENV-03")
def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    error = refusal(as_body(envelope(principal={"sub": "s", "roles": ["nobody"]})))
    assert error.details == {"path": "principal.roles[0]", "roles": sorted(ROLES), "aliases": sorted(ALIASES)}


@pytest.mark.requirement("MC-ENV-05")
def test_the_address_of_an_artifact_has_4096_characters_at_most() -> None:
    def payload(length: int) -> dict[str, Any]:
        return {"schema_version": "1.0", "artifact_uri": "x" * length, "artifact_hash": "0" * 64}

    assert [len(read(payload=payload(each)).payload.artifact_uri or "") for each in (1, 4096)] == [1, 4096]
    assert [path_of(payload=payload(each)) for each in (0, 4097)] == ["payload.artifact_uri"] * 2


@pytest.mark.requirement("MC-ENV-02", "MC-ENV-03")
@pytest.mark.parametrize("text", ["a\nb", "a\0", "\x1b[31m", "a\u2028b", "\u202eevil", "\u200b"])
def test_names_consist_of_printable_characters(text: str) -> None:
    principal = {"sub": text, "roles": []}
    for fields in ({"tenant_id": text}, {"principal": principal}, {"context_id": text}, {"idempotency_key": text}):
        assert path_of(**fields) == ""
    assert read(tenant_id="Đà Nẵng 日本").tenant_id == "Đà Nẵng 日本"


@pytest.mark.requirement("MC-ENV-01")
@pytest.mark.parametrize("version", ["2.1", "2.20", "3", "", "2.2 ", "v2.2"])
def test_another_version_of_the_envelope_is_refused_with_the_supported_ones(version: str) -> None:
    error = refusal(as_body(envelope(envelope_version=version)))
    assert error.details == {"path": "envelope_version", "supported_versions": ["2.2"]}


@pytest.mark.requirement("MC-ENV-02")
@pytest.mark.parametrize(
    "text",
    ["", "1", "x" * 36, ID.replace("-", ""), f"{{{ID}}}", f"urn:uuid:{ID}", f"{ID}\n", f" {ID}", 5, None],
)
def test_ids_are_uuids(text: Any) -> None:
    for name in ("request_id", "correlation_id"):
        assert path_of(**{name: text}) == name
    assert read(request_id=str(uuid4()).upper()).request_id.isupper()


@pytest.mark.requirement("MC-ENV-02")
@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACE.upper(),
        TRACE[:-1],
        f"{TRACE}0",
        f"{TRACE}\n",
        f"{TRACE}-extra",
        f"01{TRACE[2:]}",
        f"ff{TRACE[2:]}",
        f"00-{'0' * 32}-{'cd' * 8}-01",
        f"00-{'ab' * 16}-{'0' * 16}-01",
        f"00-{'zz' * 16}-{'cd' * 8}-01",
        TRACE.replace("-", "_"),
        5,
        None,
    ],
)
def test_a_trace_is_a_traceparent(text: Any) -> None:
    assert path_of(trace_id=text) == "trace_id"
    assert trace_in(json.dumps({"trace_id": text}).encode()) is None


def test_the_trace_of_a_body_that_is_no_envelope_is_found() -> None:
    assert trace_in(json.dumps({"x": [1], "trace_id": TRACE}).encode()) == TRACE
    for body in (b"", b"{", b"[]", b"\xff", b"{}", b"[" * 100_000, b'{"trace_id": 5}'):
        assert trace_in(body) is None


def test_a_new_trace_is_a_traceparent() -> None:
    trace = new_trace(UUID("01890a5d-ac96-774b-bcce-b302099a8057"))
    assert read(trace_id=trace).trace_id == trace


@pytest.mark.requirement("MC-ENV-05", "MC-VER-01")
@pytest.mark.parametrize(
    "version",
    [
        "",
        "1",
        "1.0",
        "1.0.0.0",
        "01.0.0",
        "1.0.0-",
        "1.0.0-01",
        "1.0.0+",
        "v1.0.0",
        " 1.0.0",
        "1.0.0-é",
        "1" * 65,
        1,
        None,
    ],
)
def test_the_version_of_an_action_is_semantic(version: Any) -> None:
    assert path_of(action_version=version) == "action_version"


@pytest.mark.requirement("MC-ENV-05", "MC-VER-01")
@pytest.mark.parametrize("version", ["0.0.0", "1.0.0", "10.20.30", "1.0.0-alpha.1", "1.0.0-0A", "2.0.0-rc.1+build.5"])
def test_every_semantic_version_is_read(version: str) -> None:
    assert read(action_version=version).action_version == version


@pytest.mark.requirement("MC-ENV-04")
@pytest.mark.parametrize("seconds", [0, -1, 86_401, 1.5, "300", True, None, 10**30])
def test_a_request_lives_for_a_second_at_least_and_a_day_at_most(seconds: Any) -> None:
    assert path_of(ttl_sec=seconds) == "ttl_sec"
    assert [read(ttl_sec=each).ttl_sec for each in (1, 86_400)] == [1, 86_400]


@pytest.mark.requirement("MC-ENV-04")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("1970-01-02T00:00:00.123Z", 86_400.123),
        ("1970-01-01T00:00:00+00:00", 0.0),
        ("1969-12-31T23:59:59Z", -1.0),
    ],
)
def test_a_timestamp_is_a_moment_in_utc(text: str, seconds: float) -> None:
    assert read(timestamp=text).sent_at == seconds


@pytest.mark.requirement("MC-ENV-04")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "0",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00+01:00",
        "2026-01-31 12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-31T12:00:00Z\n",
        "2026-01-31T12:00:00Zulu",
        "99999-01-31T12:00:00Z",
    ],
)
def test_another_timestamp_is_refused(text: str) -> None:
    with pytest.raises(MalformedEnvelope) as refused:
        read(timestamp=text).sent_at  # noqa: B018
    assert refused.value.details == {"path": "timestamp"}


@pytest.mark.requirement("MC-ENV-02", "MC-ENV-04")
def test_the_published_envelope_says_what_may_be_left_out_and_the_server_holds_to_it() -> None:
    published = openapi(None)["components"]["schemas"]["Envelope"]["oneOf"]
    optional = {"idempotency_key", "seq", "context_id", "resource_links"}
    for each in published:
        assert {*each["required"]} == each["properties"].keys() - optional
    whole = {**envelope(), "idempotency_key": "k", "seq": 1, "context_id": "c", "resource_links": []}
    assert whole.keys() == published[0]["properties"].keys()
    for name in whole:
        body = json.dumps({other: value for other, value in whole.items() if other != name}).encode()
        if name in optional:
            read_envelope(body)
        else:
            with pytest.raises(MalformedEnvelope):
                read_envelope(body)

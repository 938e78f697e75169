"""Conformance of the gateway: envelopes, versions, times, idempotency and order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from dragoman.adapters.engines import ENGINES
from tests.support.gateway import Signer, create_args
from tests.support.gateway_serving import (
    EACH_TRANSPORT,
    LATER,
    NOW,
    TENANT,
    WAYS,
    GatewayApp,
    HeldDocuments,
    HeldStorage,
    open_gateway,
    open_way,
)
from tests.support.waiting import until

MISSING: Any = Ellipsis


@pytest.fixture(params=EACH_TRANSPORT)
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[GatewayApp]:
    async with open_gateway(transport=request.param) as gateway:
        yield gateway


@pytest.fixture
async def signer(gateway: GatewayApp) -> Signer:
    return await gateway.signer("owner")


async def error_of(gateway: GatewayApp, signer: Signer, envelope: Any, **headers: str) -> tuple[int, str, Any]:
    """Status, code and path of a refusal."""
    response = await gateway.post(signer, envelope, **headers)
    error = response.json["error"]
    assert response.json["ok"] is False
    assert error["details"]["hint"]
    return response.status, error["code"], error["details"].get("path")


FIELDS: list[tuple[str, Any]] = [
    ("envelope_version", MISSING),
    ("envelope_version", "2.1"),
    ("envelope_version", "3.0"),
    ("envelope_version", 2.2),
    ("request_id", MISSING),
    ("request_id", "1"),
    ("request_id", "11111111111141118111111111111111"),
    ("correlation_id", MISSING),
    ("correlation_id", "{11111111-1111-4111-8111-111111111111}"),
    ("trace_id", MISSING),
    ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ("trace_id", f"00-{'0' * 32}-00f067aa0ba902b7-01"),
    ("trace_id", f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01"),
    ("trace_id", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tenant_id", MISSING),
    ("tenant_id", ""),
    ("tenant_id", 7),
    ("principal", MISSING),
    ("principal", "svc:writer"),
    ("principal.sub", MISSING),
    ("principal.roles", MISSING),
    ("principal.roles", "owner"),
    ("principal.roles[0]", "root"),
    ("principal.name", "more"),
    ("timestamp", MISSING),
    ("timestamp", "2026-01-31"),
    ("timestamp", "2026-01-31T12:00:00"),
    ("timestamp", "2026-01-31T12:00:00+01:00"),
    ("timestamp", "9999-01-31T12:00:00Z"),
    ("timestamp", 1_700_000_000),
    ("ttl_sec", MISSING),
    ("ttl_sec", 0),
    ("ttl_sec", 86_401),
    ("ttl_sec", 1.5),
    ("ttl_sec", "300"),
    ("idempotency_key", ""),
    ("idempotency_key", "x" * 257),
    ("idempotency_key", 1),
    ("seq", -1),
    ("seq", "1"),
    ("seq", 2**53 + 1),
    ("context_id", 1),
    ("resource_links", "a"),
    ("action", MISSING),
    ("action", "knowledge.answer_question"),
    ("action", "echo"),
    ("action_version", MISSING),
    ("action_version", "1"),
    ("action_version", "1.0"),
    ("action_version", "v1.0.0"),
    ("action_version", "01.0.0"),
    ("payload", MISSING),
    ("payload", []),
    ("payload.schema_version", MISSING),
    ("payload.schema_version", "2.0"),
    ("payload.args", MISSING),
    ("payload.args", []),
    ("payload.more", 1),
    ("more", None),
]


def spoiled(envelope: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """An envelope with something wrong at a path."""
    outer, _, name = path.rpartition(".")
    held: dict[str, Any] = envelope[outer] if outer else envelope
    if name.endswith("]"):
        held[name.partition("[")[0]] = [value]
    elif value is MISSING:
        del held[name]
    else:
        held[name] = value
    return envelope


@pytest.mark.requirement("MC-ENV-01", "MC-ENV-02", "MC-ENV-03", "MC-ENV-04", "MC-ENV-05", "MC-VER-01", "MC-RBAC-01")
@pytest.mark.parametrize(("path", "value"), FIELDS, ids=lambda each: str(each)[:20] if each is not MISSING else "none")
async def test_an_envelope_is_refused_by_the_path_of_what_is_wrong(
    gateway: GatewayApp, signer: Signer, path: str, value: Any
) -> None:
    envelope = spoiled(gateway.envelope(signer, "knowledge.create_document", create_args()), path, value)
    assert await error_of(gateway, signer, envelope) == (400, "INVALID_ARGUMENT", path)
    assert await gateway.events() == []


@pytest.mark.requirement("MC-ENV-01")
@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b'"2.2"', b"\xff", b"{}", b'{"a":' * 5000, b'{"\\ud800":1}']
)
async def test_a_message_without_an_envelope_is_refused(gateway: GatewayApp, signer: Signer, body: bytes) -> None:
    assert (await error_of(gateway, signer, body))[:2] == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("gateway", [NOW, LATER], indirect=True)
@pytest.mark.parametrize("kind", ["text/plain", "application/json-patch+json", ""])
async def test_a_body_that_does_not_say_it_is_json_is_refused(gateway: GatewayApp, signer: Signer, kind: str) -> None:
    envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
    assert (await error_of(gateway, signer, envelope, content_type=kind))[:2] == (400, "INVALID_ARGUMENT")


@pytest.mark.requirement("MC-ENV-02", "MC-ENV-04")
async def test_optional_fields_are_taken(gateway: GatewayApp, signer: Signer) -> None:
    optional = {
        "context_id": "thread-7",
        "resource_links": [{"uri": "kb://1"}, "kb://2"],
        "idempotency_key": "acme:subject-123:create_document:v1",
        "seq": 0,
        "ttl_sec": 86_400,
    }
    assert (await gateway.act(signer, "create_document", create_args(), **optional)).status == 200


@pytest.mark.requirement("MC-ENV-06", "MC-VER-01")
@pytest.mark.parametrize("version", ["2.0.0", "1.1.0", "0.9.0", "1.0.1", "1.0.0-rc.1", "1.0.0+build"])
async def test_an_unsupported_version_of_an_action_names_the_supported_ones(
    gateway: GatewayApp, signer: Signer, version: str
) -> None:
    response = await gateway.act(signer, "create_document", create_args(), action_version=version)
    error = response.json["error"]
    assert (response.status, error["code"]) == (400, "INVALID_ARGUMENT")
    assert (error["details"]["path"], error["details"]["supported_versions"]) == ("action_version", ["1.0.0"])


@pytest.mark.requirement("MC-ENV-01", "MC-VER-02")
async def test_an_unsupported_version_of_the_envelope_names_the_supported_ones(
    gateway: GatewayApp, signer: Signer
) -> None:
    response = await gateway.act(signer, "create_document", create_args(), envelope_version="2.3")
    assert response.json["error"]["details"]["supported_versions"] == ["2.2"]


@pytest.mark.requirement("MC-RESP-02")
async def test_a_refusal_has_the_trace_of_its_request(gateway: GatewayApp, signer: Signer) -> None:
    envelope = gateway.envelope(signer, "knowledge.create_document", {})
    for sent in (envelope, {**envelope, "more": 1}, {**envelope, "principal": {"sub": "x", "roles": []}}):
        error = (await gateway.post(signer, sent)).json["error"]
        assert set(error) == {"code", "message", "details"}
        assert error["details"]["trace_id"] == envelope["trace_id"]
    # One that names none has that of its headers, or gets its own.
    trace = f"00-{uuid4().hex}-{uuid4().hex[:16]}-01"
    assert (await gateway.post(signer, b"{}", traceparent=trace)).json["error"]["details"]["trace_id"] == trace
    assert (await gateway.post(signer, b"{}")).json["error"]["details"]["trace_id"].startswith("00-")


# Times.


@pytest.mark.requirement("MC-ENV-07")
async def test_a_request_has_an_effect_until_its_ttl_is_over_and_none_later(
    gateway: GatewayApp, signer: Signer
) -> None:
    in_time = gateway.envelope(signer, "knowledge.create_document", create_args(), ttl_sec=30)
    late = gateway.envelope(signer, "knowledge.create_document", create_args(), ttl_sec=29)
    gateway.clock.advance(29.5)
    assert (await gateway.post(signer, in_time)).status == 200
    response = await gateway.post(signer, late)
    assert (response.status, response.json["error"]["code"]) == (440, "EXPIRED")
    assert len(await gateway.events()) == 1


async def test_a_timestamp_may_be_a_little_ahead_and_no_more(gateway: GatewayApp, signer: Signer) -> None:
    ahead = gateway.envelope(signer, "knowledge.create_document", create_args())
    gateway.clock.advance(-59)
    assert (await gateway.post(signer, ahead)).status == 200
    gateway.clock.advance(-2)
    assert await error_of(gateway, signer, ahead) == (400, "INVALID_ARGUMENT", "timestamp")


# Idempotency.


@pytest.mark.requirement("MC-TRANS-02", "MC-IDEM-02")
async def test_the_header_can_repeat_the_signed_key_and_nothing_else(gateway: GatewayApp, signer: Signer) -> None:
    args = create_args()
    without = gateway.envelope(signer, "knowledge.create_document", args)
    keyed = {**without, "idempotency_key": "one-key"}
    refused = [
        await error_of(gateway, signer, envelope, idempotency_key=key)
        for envelope, key in ((without, "one-key"), (without, without["request_id"]), (keyed, "another-key"))
    ]
    assert refused == [(400, "INVALID_ARGUMENT", "idempotency_key")] * 3
    assert await gateway.events() == []
    first = await gateway.post(signer, keyed)
    again = await gateway.post(signer, keyed, idempotency_key="one-key")
    assert again.json["data"] == first.json["data"]
    assert len(await gateway.events()) == 1


@pytest.mark.requirement("MC-TRANS-02")
@pytest.mark.parametrize("key", ["", "x" * 257, "\x7f"])
async def test_a_header_that_is_no_key_is_refused(gateway: GatewayApp, signer: Signer, key: str) -> None:
    envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
    assert (await error_of(gateway, signer, envelope, idempotency_key=key))[2] == "idempotency_key"


@pytest.mark.requirement("MC-IDEM-02")
async def test_without_a_key_the_request_id_is_the_key(gateway: GatewayApp, signer: Signer) -> None:
    envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
    first = await gateway.post(signer, envelope)
    assert (await gateway.post(signer, envelope)).json["data"] == first.json["data"]
    other = await gateway.post(signer, {**envelope, "request_id": str(uuid4())})
    assert (other.status, other.json["error"]["details"]["reason"]) == (409, "document_exists")


@pytest.mark.requirement("MC-IDEM-02")
async def test_an_id_in_capitals_is_the_same_id(gateway: GatewayApp, signer: Signer) -> None:
    envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
    first = await gateway.post(signer, envelope)
    again = await gateway.post(signer, {**envelope, "request_id": envelope["request_id"].upper()})
    assert (again.status, again.json["data"]) == (first.status, first.json["data"])


@pytest.mark.requirement("MC-IDEM-01", "MC-IDEM-02")
async def test_times_traces_and_tokens_do_not_make_another_request(gateway: GatewayApp, signer: Signer) -> None:
    args, key = create_args(), "a-key"
    first = await gateway.act(signer, "create_document", args, idempotency_key=key)
    gateway.clock.advance(5)
    second = await gateway.signer("editor", sub="svc:other")
    reordered = dict(reversed(args.items()))
    for asked in (signer, second):
        again = await gateway.act(asked, "create_document", reordered, idempotency_key=key, ttl_sec=7)
        assert again.json["data"] == first.json["data"]


@pytest.mark.requirement("MC-IDEM-01")
async def test_the_scope_of_a_key_is_the_tenant_the_action_and_the_document(
    gateway: GatewayApp, signer: Signer
) -> None:
    key, args = "a-key", create_args()
    other = await gateway.signer("owner", tenant="globex")
    for asked, document in ((signer, args), (other, args), (signer, create_args())):
        response = await gateway.act(asked, "create_document", document, idempotency_key=key)
        assert (response.status, response.json["data"]["revision"]) == (200, 1)
    deleted = await gateway.act(signer, "delete_document", {"document_id": args["document_id"]}, idempotency_key=key)
    assert deleted.json["data"]["deleted"] is True
    assert len(await gateway.events()) == 4


@pytest.mark.requirement("MC-IDEM-01")
async def test_two_documents_at_once_with_one_key_are_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)
    async with open_gateway() as gateway:
        documents, signer = gateway.documents, await gateway.signer("owner")
        assert isinstance(documents, HeldDocuments)
        documents.gate.clear()
        begun = [gateway.act(signer, "create_document", create_args(), idempotency_key="a-key") for _ in range(2)]
        asking = [asyncio.create_task(each) for each in begun]
        await until(lambda: documents.waiting == 2 or any(each.done() for each in asking))
        documents.gate.set()
        assert [each.status for each in await asyncio.gather(*asking)] == [200, 200]


@pytest.mark.slow
@pytest.mark.requirement("MC-IDEM-01")
@pytest.mark.parametrize("name", WAYS)
async def test_a_result_is_kept_for_a_day_however_it_was_asked_for(name: str) -> None:
    async with open_gateway() as gateway:
        way, args, key = await open_way(gateway, name), create_args(), str(uuid4())
        first = await way.do("create_document", args, key)
        assert first.code is None
        gateway.clock.skip(86_390)
        await gateway.documents.tidy(1000)
        way = await open_way(gateway, name)  # So much time has passed that a session may have ended.
        assert (await way.do("create_document", args, key)).data == first.data
        gateway.clock.skip(20)
        await gateway.documents.tidy(1000)
        assert (await way.do("create_document", args, key)).details["reason"] == "document_exists"


@pytest.mark.requirement("MC-IDEM-02")
async def test_a_refused_request_leaves_no_result_behind(gateway: GatewayApp, signer: Signer) -> None:
    parent = create_args()
    below = create_args(None, parent["document_id"])
    refused = await gateway.act(signer, "create_document", below, idempotency_key="a-key", seq=7)
    assert refused.status == 404
    assert (await gateway.act(signer, "create_document", parent, seq=3)).json["data"]["revision"] == 1
    assert (await gateway.act(signer, "create_document", below, idempotency_key="a-key", seq=4)).status == 200


# Order.


@pytest.mark.requirement("MC-IDEM-04")
async def test_a_lower_seq_has_no_effect_and_is_told_so(gateway: GatewayApp, signer: Signer) -> None:
    late = create_args()
    for seq in (5, 5, 9):
        assert (await gateway.act(signer, "create_document", create_args(), seq=seq, context_id="a")).status == 200
    response = await gateway.act(signer, "create_document", late, seq=8, context_id="a")
    assert (response.status, response.json["data"]) == (200, {"ignored": True, "last_seq": 9})
    assert await gateway.documents.get(TENANT, late["document_id"]) is None
    # Requests of another stream, of another principal, or of none, have nothing to do with it.
    assert "ignored" not in (await gateway.act(signer, "create_document", late, seq=1, context_id="b")).json["data"]
    other = await gateway.signer("owner", sub="svc:other")
    for asked, fields in ((other, {"seq": 1, "context_id": "a"}), (signer, {"context_id": "a"})):
        assert (await gateway.act(asked, "create_document", create_args(), **fields)).json["data"]["revision"] == 1

"""The end-to-end scenarios of the action contract, in every way in which actions can be asked for."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from joserfc import jws
from joserfc.jwk import OctKey

from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import TENANT, WAYS, GatewayApp, open_gateway, open_way
from tests.support.gateway_serving import Way as ActionWay

MCP_CODES = {"CONFLICT": "INVALID_ARGUMENT", "UNPROCESSABLE_ENTITY": "INVALID_ARGUMENT"}
"""MCP's clients are told fewer codes; `details.reason` is the same."""
every_way = pytest.mark.parametrize("name", WAYS)


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayApp]:
    async with open_gateway() as gateway:
        yield gateway


def update_args(document_id: str, title: str, revision: int | None = None) -> dict[str, Any]:
    known = {} if revision is None else {"last_known_revision": revision}
    patch = {"metadata": {"title": title}}
    return {"document_id": document_id, "patch": patch, "update_mask": ["metadata.title"], **known}


def worded(name: str, code: str) -> str:
    """A code of the contract, as it is worded in one of the ways."""
    return MCP_CODES.get(code, code) if name in ("modern", "handshake") else code


async def data_of(way: ActionWay, action: str, args: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    answer = await way.do(action, args, key)
    assert answer.data is not None, answer
    return answer.data


@pytest.mark.requirement("MC-TEST-02", "MC-RBAC-06", "MC-UPDATE-02")
@every_way
async def test_of_two_writers_of_one_revision_the_second_reloads_and_succeeds(gateway: GatewayApp, name: str) -> None:
    first, second = await open_way(gateway, name), await open_way(gateway, name)
    id = str(uuid4())
    known = (await data_of(first, "create_document", create_args(id)))["revision"]

    assert (await data_of(first, "update_document", update_args(id, "The first", known)))["revision"] == known + 1
    refused = await second.do("update_document", update_args(id, "The second", known))
    facts = {fact: refused.details[fact] for fact in ("reason", "expected_revision", "actual")}
    assert facts == {"reason": "revision_conflict", "expected_revision": known, "actual": known + 1}
    assert refused.code == worded(name, "CONFLICT")
    document = await gateway.documents.get(TENANT, id)
    assert document is not None
    assert (document.title, document.revision) == ("The first", known + 1)

    reloaded = facts["actual"]
    again = await data_of(second, "update_document", update_args(id, "The second", reloaded))
    assert again["revision"] == reloaded + 1
    kept = await gateway.documents.history(TENANT, id, 10)
    assert [each.document.title for each in kept] == ["The second", "The first", "A document"]


@every_way
async def test_of_two_writers_at_once_one_wins_in_each_way(gateway: GatewayApp, name: str) -> None:
    way = await open_way(gateway, name)
    id = str(uuid4())
    await data_of(way, "create_document", create_args(id))
    answers = await asyncio.gather(*(way.do("update_document", update_args(id, f"{n}", 1)) for n in range(5)))
    assert sorted(answer.code or "" for answer in answers) == ["", *[worded(name, "CONFLICT")] * 4]


@pytest.mark.requirement("MC-TEST-04", "MC-IDEM-02", "MC-MOVE-02", "MC-DELETE-02")
@every_way
async def test_a_saga_with_a_failing_step_ends_consistently_and_replays_change_nothing(
    gateway: GatewayApp, name: str
) -> None:
    way = await open_way(gateway, name)
    folder, draft = str(uuid4()), str(uuid4())
    steps: list[tuple[str, dict[str, Any]]] = [
        ("create_document", create_args(folder)),
        ("create_document", create_args(draft, folder)),
        ("update_document", update_args(draft, "Ready", 1)),
        ("move_document", {"document_id": folder, "new_parent_id": draft}),  # Below itself: the step that fails.
        ("move_document", {"document_id": draft, "new_parent_id": "root"}),
        ("delete_document", {"document_id": folder, "reason": "The draft is out of it"}),
    ]
    keys = [f"saga-{uuid4()}" for _ in steps]
    first = [await way.do(*step, key) for step, key in zip(steps, keys, strict=True)]
    codes = [answer.code for answer in first]
    assert codes == [None, None, None, worded(name, "UNPROCESSABLE_ENTITY"), None, None]
    assert first[3].details["reason"] == "cycle"
    events = await gateway.events()
    assert [event.event.partition(".")[2] for event in events] == ["created", "created", "updated", "moved", "deleted"]

    for _ in range(2):
        again = [await way.do(*step, key) for step, key in zip(steps, keys, strict=True)]
        # The refusal is one again: it was never carried out, and now the folder is gone.
        assert [answer.data for answer in again] == [answer.data for answer in first]
        assert again[3].code == "NOT_FOUND"
    assert await gateway.events() == events

    document = await gateway.documents.get(TENANT, draft)
    assert document is not None
    assert (document.parent, document.title, document.revision) == ("root", "Ready", 3)
    assert await gateway.documents.get(TENANT, folder) is None
    assert [each.id for each in await gateway.documents.children(TENANT, "root", 10)] == [draft]


@every_way
async def test_replays_that_come_at_once_have_one_effect(gateway: GatewayApp, name: str) -> None:
    way = await open_way(gateway, name)
    args, key = create_args(), f"once-{uuid4()}"
    answers = await asyncio.gather(*(way.do("create_document", args, key) for _ in range(8)))
    assert {(answer.code, str(answer.data)) for answer in answers} == {(None, str(answers[0].data))}
    assert [event.event for event in await gateway.events()] == ["document.created"]


@every_way
async def test_a_key_that_was_used_for_something_else_is_a_conflict(gateway: GatewayApp, name: str) -> None:
    way = await open_way(gateway, name)
    id, key = str(uuid4()), f"used-{uuid4()}"
    await data_of(way, "create_document", create_args(id), key)
    other = await way.do("create_document", create_args(id, is_human_readable=False), key)
    assert (other.code, other.details["reason"]) == (worded(name, "CONFLICT"), "idempotency_conflict")
    # Another action, or another document, is another scope.
    assert (await data_of(way, "update_document", update_args(id, "New"), key))["revision"] == 2
    assert (await data_of(way, "create_document", create_args(), key))["revision"] == 1


# External callers.


@pytest.mark.requirement("MC-TEST-07", "MC-SEC-02", "MC-SEC-05", "MC-TRANS-01", "MC-TRANS-05")
async def test_an_external_caller_with_a_valid_signature_passes(gateway: GatewayApp) -> None:
    signer = await gateway.signer("editor")
    id = str(uuid4())
    key = f"acme:{id}:create_document:v1"
    envelope = gateway.envelope(signer, "knowledge.create_document", create_args(id), idempotency_key=key)
    response = await gateway.post(signer, envelope, idempotency_key=key)
    body = response.json
    assert isinstance(body["usage"].pop("latency_ms"), int)
    uri = f"/knowledge/documents/acme/{id}"
    assert (response.status, body) == (
        200,
        {"ok": True, "data": {"id": id, "revision": 1, "web_uri": uri}, "usage": {"qdrant_hits": 0}},
    )


def forged(signer: Signer, token: str) -> str:
    return token[:-6] + ("AAAAAA" if token[-6:] != "AAAAAA" else "BBBBBB")


def unsigned(signer: Signer, token: str) -> str:
    head = urlsafe_b64encode(json.dumps({"alg": "none", "kid": signer.kid}).encode()).decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def symmetric(signer: Signer, token: str) -> str:
    """Signed with the public half of the key, as if it were a secret."""
    _, payload, _ = token.split(".")
    secret = OctKey.import_key({"kty": "oct", "k": str(signer.private["x"])})
    claims = urlsafe_b64decode(payload + "==")
    return jws.serialize_compact({"alg": "HS256", "kid": signer.kid}, claims, secret)


async def refusal_of(gateway: GatewayApp, body: bytes, token: str) -> tuple[int, str]:
    response = await gateway.send(body, token)
    assert response.headers["www-authenticate"].startswith("Bearer")
    return response.status, response.json["error"]["code"]


REFUSED = 401, "UNAUTHORIZED"
MISSING = ("exp", "iat", "nonce", "sub", "aud", "htm", "htu", "body_sha256")


@pytest.mark.requirement("MC-TEST-07", "MC-SEC-02", "MC-SEC-03", "MC-SEC-05")
@pytest.mark.parametrize("spoil", [forged, unsigned, symmetric])
async def test_an_external_caller_whose_signature_is_none_is_refused(gateway: GatewayApp, spoil: Any) -> None:
    signer = await gateway.signer("owner")
    body = as_body(gateway.envelope(signer, "knowledge.create_document", create_args()))
    assert await refusal_of(gateway, body, spoil(signer, gateway.token(signer, body))) == REFUSED
    assert await gateway.events() == []


@pytest.mark.requirement("MC-TEST-07", "MC-SEC-02")
async def test_an_external_caller_is_refused_with_a_token_that_expired_or_was_used(gateway: GatewayApp) -> None:
    signer = await gateway.signer("owner")
    body = as_body(gateway.envelope(signer, "knowledge.create_document", create_args()))
    now = int(gateway.clock.now().timestamp())
    assert await refusal_of(gateway, body, gateway.token(signer, body, iat=now - 120, exp=now - 60)) == REFUSED
    assert await refusal_of(gateway, body, gateway.token(signer, body, exp=now + 601)) == REFUSED
    token = gateway.token(signer, body)
    assert (await gateway.send(body, token)).status == 200
    assert await refusal_of(gateway, body, token) == REFUSED
    assert (await gateway.post(signer, body)).status == 200  # Signed anew, it is a replay, and gets the first result.
    assert len(await gateway.events()) == 1


@pytest.mark.requirement("MC-SEC-02")
@pytest.mark.parametrize("claim", MISSING)
async def test_an_external_caller_has_to_sign_every_claim(gateway: GatewayApp, claim: str) -> None:
    signer = await gateway.signer("owner")
    body = as_body(gateway.envelope(signer, "knowledge.create_document", create_args()))
    assert await refusal_of(gateway, body, gateway.token(signer, body, **{claim: None})) == REFUSED


@pytest.mark.requirement("MC-SEC-02")
async def test_a_used_nonce_is_remembered_for_as_long_as_its_token_is_good() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        body = as_body(gateway.envelope(signer, "knowledge.create_document", create_args()))
        token = gateway.token(signer, body)
        assert (await gateway.send(body, token)).status == 200
        for _ in range(5):
            gateway.clock.advance(11)
            # Each request that is let in forgets nonces that are no longer needed.
            assert (await gateway.act(signer, "create_document", create_args())).status == 200
            assert (await gateway.send(body, token)).status == 401


@pytest.mark.requirement("MC-SEC-04")
async def test_several_keys_are_valid_during_a_rotation_and_none_for_more_than_90_days(gateway: GatewayApp) -> None:
    now, day = gateway.clock.now().timestamp(), 86_400
    signers = [Signer(TENANT, "owner") for _ in range(4)]
    for signer, age in zip(signers, (0, 75 * day, 80 * day, 90 * day + 1), strict=True):
        assert await gateway.keys.add(signer.key(created_at=now - age))
    answers = [(await gateway.act(signer, "create_document", create_args())).status for signer in signers]
    assert answers == [200, 200, 200, 401]
    warnings = [entry for entry in gateway.log if entry["message"] == "a signing key is going to be refused soon"]
    assert [(entry["kid"], entry["ageDays"]) for entry in warnings] == [(signers[2].kid, 80)]


@pytest.mark.requirement("MC-RBAC-07")
async def test_the_page_of_a_document_opens_for_signed_requests_of_its_tenant() -> None:
    async with open_gateway() as gateway:
        owner, other = await gateway.signer("owner"), await gateway.signer("owner", tenant="beta")
        uri = (await gateway.act(owner, "create_document", create_args())).json["data"]["web_uri"]
        assert (await gateway.get(uri, owner)).status == 200
        assert (await gateway.get(uri, other)).status == 404
        assert (await gateway.get(uri)).status == 401
        token = gateway.token(owner, b"", uri, "GET")
        assert [(await gateway.get(uri, token=token)).status for _ in range(2)] == [200, 401]


async def test_requests_that_are_turned_away_are_in_the_log() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        await gateway.send(b"{}", "no.token.here")
        await gateway.act(signer, "create_document", create_args(), tenant_id="beta")
        refused = [entry for entry in gateway.log if entry["message"] == "request refused"]
        assert [(each["status"], each["reason"]) for each in refused] == [
            (401, "unauthenticated"),
            (403, "other_tenant"),
        ]
        assert refused[1]["caller"] == f"{signer.sub} ({signer.kid})"

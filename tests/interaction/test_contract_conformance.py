"""The conformance list of the action contract, point by point, over every transport.

One example of each point; the suites of the gateway go deeper. The ninth point, ToolMessage wrapping, needs an
environment of its own: `tests/langroid`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_artifacts import JSON, put_signed
from tests.support.gateway_serving import TRANSPORTS, GatewayApp, open_gateway

pytestmark = pytest.mark.requirement("MC-TEST-01")
CREATE, QUERY = "knowledge.create_document", "knowledge.query_knowledge"


@pytest.fixture(params=TRANSPORTS)
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[GatewayApp]:
    async with open_gateway(transport=request.param) as gateway:
        yield gateway


@pytest.fixture
async def signer(gateway: GatewayApp) -> Signer:
    return await gateway.signer("owner")


async def told(gateway: GatewayApp, signer: Signer, envelope: dict[str, Any]) -> tuple[int, str]:
    """Status and code of the answer; an empty code for a success."""
    response = await gateway.post(signer, envelope)
    return response.status, "" if response.json["ok"] else response.json["error"]["code"]


async def test_envelope_validation(gateway: GatewayApp, signer: Signer) -> None:
    envelope = gateway.envelope(signer, CREATE, create_args())
    response = await gateway.post(signer, {**envelope, "ttl_sec": 0})
    assert (response.status, response.json["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert response.json["error"]["details"]["path"] == "ttl_sec"


async def test_idempotency_ttl_and_ordering(gateway: GatewayApp, signer: Signer) -> None:
    envelope = gateway.envelope(signer, CREATE, create_args(), seq=5, context_id="a thread", ttl_sec=60)
    keyed = {**envelope, "idempotency_key": "a key"}
    first = await gateway.post(signer, keyed)
    again = await gateway.post(signer, {**keyed, "request_id": str(uuid4())})
    assert (first.status, again.json["data"]) == (200, first.json["data"])
    late = gateway.envelope(signer, CREATE, create_args(), seq=4, context_id="a thread")
    assert (await gateway.post(signer, late)).json["data"] == {"ignored": True, "last_seq": 5}
    gateway.clock.advance(61)
    assert await told(gateway, signer, {**envelope, "request_id": str(uuid4())}) == (440, "EXPIRED")
    assert [event.event for event in await gateway.events()] == ["document.created"]


async def test_error_handling(gateway: GatewayApp, signer: Signer) -> None:
    args = create_args()
    assert (await gateway.act(signer, "create_document", args)).status == 200
    for wrong, expected in (
        ({**args, "is_human_readable": False}, (409, "CONFLICT")),
        (create_args(None, str(uuid4())), (404, "NOT_FOUND")),
        ({**create_args(), "metadata": {}}, (422, "UNPROCESSABLE_ENTITY")),
    ):
        response = await gateway.act(signer, "create_document", wrong)
        error = response.json["error"]
        assert (response.status, error["code"]) == expected
        assert {"hint", "trace_id"} <= set(error["details"])


async def test_security_by_signatures(gateway: GatewayApp, signer: Signer) -> None:
    envelope = gateway.envelope(signer, CREATE, create_args())
    stranger = Signer(kid=signer.kid)  # Another private key under a name that is known.
    assert await told(gateway, stranger, envelope) == (401, "UNAUTHORIZED")
    assert await told(gateway, signer, envelope) == (200, "")


async def test_large_artifact(gateway: GatewayApp, signer: Signer) -> None:
    content = {"mime_type": "text/plain", "body": "long " * 40_000}
    stored = await put_signed(gateway, signer, as_body(create_args(content=content)), JSON)
    link = {name: stored.json["data"][name] for name in ("artifact_uri", "artifact_hash")}
    envelope = gateway.envelope(signer, CREATE, {})
    assert await told(gateway, signer, {**envelope, "payload": {"schema_version": "1.0", **link}}) == (200, "")
    wrong = {"schema_version": "1.0", **link, "artifact_hash": "0" * 64}
    refused = await told(gateway, signer, {**envelope, "request_id": str(uuid4()), "payload": wrong})
    assert refused == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(("field", "version"), [("envelope_version", "2.1"), ("action_version", "2.0.0")])
async def test_version_negotiation(gateway: GatewayApp, signer: Signer, field: str, version: str) -> None:
    response = await gateway.post(signer, {**gateway.envelope(signer, CREATE, create_args()), field: version})
    assert (response.status, response.json["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert response.json["error"]["details"]["supported_versions"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_noop_routing(transport: str) -> None:
    args = {"query": "anything", "routing": {"noop_qdrant": True}}
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("viewer")
        envelope = gateway.envelope(signer, QUERY, args)
        assert await told(gateway, signer, envelope) == (400, "INVALID_ARGUMENT")
    async with open_gateway({"knowledge": {"test_mode": True}}, transport=transport) as gateway:
        signer = await gateway.signer("viewer")
        response = await gateway.act(signer, "query_knowledge", args)
        assert (response.json["data"]["context"], response.json["usage"]["qdrant_hits"]) == ([], 0)


async def test_rbac(gateway: GatewayApp) -> None:
    owner, editor, agent, viewer = [await gateway.signer(role) for role in ("owner", "editor", "agent", "viewer")]
    args = create_args()
    assert (await gateway.act(owner, "create_document", args)).status == 200
    deletion = {"document_id": args["document_id"]}
    for signer, action, given, reason in (
        (viewer, "create_document", create_args(), "role"),
        (agent, "create_document", create_args(), "no_inbox"),
        (agent, "delete_document", deletion, "role"),
        (editor, "move_document", {**deletion, "new_parent_id": "root"}, "role"),
    ):
        response = await gateway.act(signer, action, given)
        error = response.json["error"]
        assert (response.status, error["code"], error["details"]["reason"]) == (403, "FORBIDDEN", reason)
        assert await told(gateway, signer, gateway.envelope(signer, QUERY, {"query": "owls"})) == (200, "")
    assert (await gateway.act(editor, "delete_document", deletion)).status == 200


def test_tool_message_wrapping_is_tested_with_langroid_itself() -> None:
    tests = (Path(__file__).parents[1] / "langroid/test_messages.py").read_text("utf-8")
    assert 'requirement("MC-ACT-02")' in tests

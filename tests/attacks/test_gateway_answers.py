"""Callers that may only read, and would fill the disk with answers: through every door that keeps some."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.gateway.links import LINK_SECONDS
from dragoman.knowledge.kept_answers import SMALLEST_CHARGE
from tests.support.gateway import Signer, create_args
from tests.support.gateway_artifacts import fetch, put
from tests.support.gateway_serving import TENANT, WAYS, GatewayApp, OverHttp, open_gateway, open_way

ROOM = 4 * SMALLEST_CHARGE
SETTINGS: dict[str, Any] = {
    "knowledge": {"answer_bytes_per_tenant": ROOM},
    "gateway": {"artifact_bytes_per_tenant": 4096},
    "response": {"max_response_bytes": SMALLEST_CHARGE},
}
DAY = 86_400

pytestmark = pytest.mark.slow


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayApp]:
    async with open_gateway(SETTINGS) as gateway:
        yield gateway


async def write(gateway: GatewayApp, title: str, body: str = "x") -> None:
    content, metadata = {"mime_type": "text/plain", "body": body}, {"title": title}
    args = create_args(content=content, metadata=metadata)
    assert (await (await open_way(gateway, "signed")).do("create_document", args)).code is None


async def kept(gateway: GatewayApp) -> int:
    return await gateway.documents.kept_answers(TENANT)


@pytest.mark.parametrize("name", ["signed", "token", "modern", "handshake"])
async def test_queries_without_a_key_leave_nothing(gateway: GatewayApp, name: str) -> None:
    way = await open_way(gateway, name)
    for _ in range(5):
        assert (await way.do("query_knowledge", {"query": "owls"})).code is None
    assert await kept(gateway) == 0


async def test_the_id_of_a_request_does_not_stand_in_for_the_key_of_a_query(gateway: GatewayApp) -> None:
    viewer = await gateway.signer("viewer")
    envelope = gateway.envelope(viewer, "knowledge.query_knowledge", {"query": "owls"})
    assert (await gateway.post(viewer, envelope)).json["data"]["context"] == []
    await write(gateway, "Owls")
    assert len((await gateway.post(viewer, envelope)).json["data"]["context"]) == 1


@pytest.mark.requirement("MC-IDEM-01")
@pytest.mark.parametrize("name", WAYS)
async def test_answers_with_a_key_are_kept_within_a_quota_and_not_forgotten_for_others(
    gateway: GatewayApp, name: str
) -> None:
    way, keys = await open_way(gateway, name), [f"a-key-for-this-{number}" for number in range(5)]
    is_later = name in ("later", "bus")  # What can be fetched is kept beside the receipt.
    for key in keys[: 1 if is_later else 4]:
        assert (await way.do("query_knowledge", {"query": "owls"}, key)).code is None
    await write(gateway, "Owls")
    refused = await way.do("query_knowledge", {"query": "owls"}, keys[4])
    assert refused.details["reason"] == "answer_quota"
    assert refused.code in ("RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")
    if not is_later:  # There, a repeat is a request of its own, whose answer would be kept.
        first = await way.do("query_knowledge", {"query": "owls"}, keys[0])
        assert first.data is not None
        assert first.data["context"] == []
    other = OverHttp(gateway, await gateway.signer("viewer", tenant="globex"))
    assert (await other.do("query_knowledge", {"query": "owls"}, keys[4])).code is None
    gateway.clock.advance(DAY)
    await gateway.documents.tidy(100)
    await gateway.requests.forget(100)
    assert (await way.do("query_knowledge", {"query": "owls"}, keys[4])).code is None


async def test_answers_that_can_be_fetched_count_whatever_key_they_have(gateway: GatewayApp) -> None:
    way = await open_way(gateway, "later")
    answers = [await way.do("query_knowledge", {"query": "owls"}) for _ in range(5)]
    reasons = [each.details.get("reason") for each in answers]
    assert (reasons[0], reasons[-1]) == (None, "answer_quota")
    await write(gateway, "Owls")
    changes = await way.do("create_document", create_args())
    assert changes.code is None


async def test_large_answers_leave_the_quota_of_artifacts_alone_and_end_with_their_links() -> None:
    settings = {**SETTINGS, "knowledge": {"answer_bytes_per_tenant": 6000}}
    async with open_gateway(settings) as gateway:
        viewer = await gateway.signer("viewer")
        for title in ("Owls", "Bats"):
            await write(gateway, title, "x " * 600)

        async def ask(signer: Signer, query: str) -> Any:
            return (await gateway.act(signer, "query_knowledge", {"query": query})).json

        data = (await ask(viewer, "owls"))["data"]
        assert (await fetch(gateway, data["artifact_uri"])).json["context"][0]["title"] == "Owls"
        assert (await ask(viewer, "owls"))["ok"]
        assert (await ask(viewer, "bats"))["error"]["details"]["reason"] == "answer_quota"
        assert (await put(gateway, b"mine")).status == 201
        for _ in range(4):  # Purges look at the clock twice, an hour apart.
            gateway.clock.advance(LINK_SECONDS + 3600)
            later = await ask(viewer, "bats")
        assert later["ok"]
        assert 1024 < await kept(gateway) <= 6000

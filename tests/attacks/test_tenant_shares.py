"""A tenant, and a key of a tenant, that takes what it can leaves others what they need."""

from __future__ import annotations

import asyncio

from tests.support.asgi import Asked
from tests.support.document_entries import Tree
from tests.support.gateway import Signer, as_body
from tests.support.gateway_serving import GatewayApp, answered, open_gateway
from tests.support.model_server import serving_model
from tests.support.waiting import PATIENCE, until

QUERY = {"query": "owls"}


def begin(gateway: GatewayApp, signer: Signer, sub: str = "svc:reader") -> Asked:
    """A query that a model is to answer."""
    signer.sub = sub
    envelope = gateway.envelope(signer, "knowledge.query_knowledge", QUERY)
    return gateway.begin(envelope, gateway.token(signer, as_body(envelope)))


async def test_viewers_with_a_slow_model_keep_neither_the_slots_nor_the_readers() -> None:
    async with serving_model() as model, open_gateway({"knowledge": model.settings}) as gateway:
        for tenant in ("acme", "globex"):
            await Tree(gateway.documents, tenant).create("a", body="Owls hunt at night.")
        model.gate.clear()
        viewer, other = await gateway.signer("viewer"), await gateway.signer("viewer")
        asked = [begin(gateway, viewer, f"svc:{number}") for number in range(10)]  # As many names as it likes.
        await until(lambda: len(model.requests) + sum(each.is_complete for each in asked) == 10)
        refused = [each.response for each in asked if each.is_complete]
        assert {each.status for each in refused} == {429}
        assert all("of this caller" in each.json["error"]["message"] for each in refused)
        assert len(model.requests) == 7
        # Another key of the tenant, and then another tenant: each finds a slot, and its answer.
        for signer in (other, await gateway.signer("viewer", tenant="globex")):
            asking = begin(gateway, signer)
            count = len(model.requests)
            await until(lambda count=count: len(model.requests) > count)  # type: ignore[misc]
            asked.append(asking)
        # The slots that are taken hold none of the threads that read.
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(gateway.documents.get("globex", "a", key=str(number)) for number in range(20)))
        model.gate.set()
        for each in asked:
            await answered(each)
        assert [each.response.status for each in asked].count(200) == 9

"""Callers that sign: each is a key and a `sub`, whatever names others choose, and outlives a rotation of its key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Signer, create_args
from tests.support.gateway_serving import GatewayApp, open_gateway
from tests.support.http_wire import Response, request

PATH = "/mcp/registry"
QUERY = {"query": "words"}
SETTINGS = {"gateway": {"enabled": True, "requests_per_minute_per_principal": 50}}


class Senders:
    """A writer, a viewer of the same tenant that uses the writer's name, and the writer with its next key."""

    def __init__(self, gateway: GatewayApp, writer: Signer, thief: Signer, rotated: Signer) -> None:
        self.gateway, self.writer, self.thief, self.rotated = gateway, writer, thief, rotated

    async def create(self, signer: Signer, seq: int, **args: Any) -> Response:
        made = create_args(**args)
        return await self.gateway.act(signer, "create_document", made, seq=seq, context_id="c")

    async def query(self, signer: Signer, **fields: Any) -> Response:
        return await self.gateway.act(signer, "query_knowledge", QUERY, **fields)

    async def beat(self, signer: Signer) -> list[tuple[str, int]]:
        """The names and revisions of the caller's entries, after a heartbeat of its."""
        body = b'{"status":"healthy"}'
        headers = {"authorization": f"Bearer {self.gateway.token(signer, body, PATH)}"}
        answer = await self.gateway.driver.ask(request(body, headers, path=PATH))
        return [(each["name"], each["revision"]) for each in answer.json["data"]["entries"]]


@pytest.fixture
async def senders(tmp_path: Path) -> AsyncIterator[Senders]:
    async with open_gateway(SETTINGS, tmp_path) as gateway:
        writer, thief = await gateway.signer("editor"), await gateway.signer("viewer")
        assert writer.sub == thief.sub
        yield Senders(gateway, writer, thief, await gateway.signer("editor", line=writer.line))


async def test_nobody_silences_another_by_its_name_and_a_high_number(senders: Senders) -> None:
    assert (await senders.create(senders.writer, 10)).status == 200
    carried_out = await senders.query(senders.thief, seq=2**53, context_id="c")
    assert "ignored" not in carried_out.json["data"]
    assert (await senders.create(senders.thief, 2**53)).status == 403
    assert (await senders.create(senders.writer, 2**53, parent_id="no-such-parent")).status == 404
    assert "id" in (await senders.create(senders.writer, 11)).json["data"]
    late = (await senders.create(senders.rotated, 10)).json["data"]
    assert late == {"ignored": True, "last_seq": 11}


async def test_a_later_answer_is_for_the_sender_and_for_its_next_key(senders: Senders) -> None:
    gateway, writer = senders.gateway, senders.writer
    envelope = gateway.envelope(writer, "knowledge.create_document", create_args())
    accepted = await gateway.post(writer, envelope, prefer="respond-async")
    await gateway.finished(writer, envelope["request_id"])
    statuses = {
        each: (await gateway.get(accepted.headers["location"], each)).status
        for each in (writer, senders.thief, senders.rotated)
    }
    assert [*statuses.values()] == [200, 404, 200]


async def test_a_rate_is_spent_by_the_sender_and_by_its_next_key(senders: Senders) -> None:
    left = []
    for signer in (senders.writer, senders.thief, senders.thief, senders.rotated):
        answer = await senders.query(signer)
        left.append((int(answer.headers["x-ratelimit-limit"]), int(answer.headers["x-ratelimit-remaining"])))
    assert left == [(50, 49), (50, 49), (50, 48), (50, 48)]


async def test_an_entry_of_the_registry_is_the_senders_and_its_next_keys(senders: Senders) -> None:
    own, other = (f"svc:writer ({each.line})" for each in (senders.writer, senders.thief))
    beats = [await senders.beat(each) for each in (senders.writer, senders.thief, senders.rotated)]
    assert beats == [[(own, 1)], [(other, 1)], [(own, 2)]]


async def test_a_kept_answer_of_a_query_is_the_senders_and_its_next_keys(senders: Senders) -> None:
    first = await senders.query(senders.writer, idempotency_key="k")
    assert (
        await senders.gateway.act(senders.thief, "query_knowledge", {"query": "other"}, idempotency_key="k")
    ).status == 200
    again = await senders.gateway.act(senders.rotated, "query_knowledge", {"query": "other"}, idempotency_key="k")
    assert (first.status, again.json["error"]["code"]) == (200, "CONFLICT")

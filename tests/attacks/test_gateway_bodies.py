"""Bodies that never end, of callers that sign them: they are held in the room that the process has for all bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.edge.http import admission
from tests.support.asgi import Asked, scope_of
from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args
from tests.support.gateway_serving import TOKEN, GatewayApp, answered, open_gateway
from tests.support.http_wire import modern, request
from tests.support.waiting import until

CREATE = "knowledge.create_document"
MOST = 120_000
PIECE = 50_000


class Unfinished(Asked):
    """A request whose body comes in two pieces, the second one when it is told."""

    def __init__(self, gateway: GatewayApp, data: bytes, size: int = PIECE) -> None:
        scope, body = scope_of(data)
        super().__init__()
        self._incoming = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body[:size], "more_body": True})
        self._rest = body[size:]
        self.task = asyncio.create_task(gateway.driver.app(scope, self.receive, self.send))

    async def held(self) -> Unfinished:
        """Wait until the first piece has been read, or the request is answered."""
        await until(lambda: self._incoming.empty() or self.is_complete)
        return self

    def end(self) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": self._rest, "more_body": False})


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GatewayApp]:
    monkeypatch.setattr(admission, "MOST_READ_AT_ONCE", 2 * MOST)
    async with open_gateway({"limits": {"max_request_bytes": MOST}}) as gateway:
        yield gateway


def signed(gateway: GatewayApp, signer: Signer, token: str | None = None) -> bytes:
    content = {"mime_type": "text/plain", "body": "x" * PIECE}
    body = as_body(gateway.envelope(signer, CREATE, create_args(content=content)))
    return with_token(body, token or gateway.token(signer, body))


def with_token(body: bytes, token: str) -> bytes:
    return request(body, {"authorization": f"Bearer {token}"}, path=ACTIONS_PATH)


def over_mcp() -> bytes:
    arguments = create_args(content={"mime_type": "text/plain", "body": "x" * PIECE})
    return modern("tools/call", {"name": CREATE, "arguments": arguments}, {"authorization": f"Bearer {TOKEN}"})


async def refusal(asked: Asked) -> tuple[int, Any]:
    response = await answered(asked)
    error = response.json["error"]
    return response.status, error["code"]


async def test_unfinished_signed_bodies_and_those_of_others_have_one_room(gateway: GatewayApp) -> None:
    signers = [await gateway.signer("owner", tenant=each) for each in ("acme", "globex", "initech", "umbrella")]
    held = [await Unfinished(gateway, signed(gateway, each)).held() for each in signers]
    assert not any(each.is_complete for each in held)
    beyond = await gateway.signer("owner", tenant="hooli")
    refused = Unfinished(gateway, signed(gateway, beyond))
    assert await refusal(refused) == (503, "UNAVAILABLE")
    assert refused.response.headers["retry-after"] == "1"
    assert (await answered(Unfinished(gateway, over_mcp()))).status == 503
    held[0].leave()
    await held[0].task
    for asked in (held[1], await Unfinished(gateway, signed(gateway, beyond)).held(), *held[2:]):
        asked.end()
        assert (await answered(asked)).status == 200


async def test_a_tenant_has_no_more_than_half_of_the_room(gateway: GatewayApp) -> None:
    one, other = await gateway.signer("owner"), await gateway.signer("owner", tenant="globex")
    held = [await Unfinished(gateway, signed(gateway, one)).held() for _ in range(2)]
    assert await refusal(Unfinished(gateway, signed(gateway, one))) == (503, "UNAVAILABLE")
    theirs = await Unfinished(gateway, signed(gateway, other)).held()
    for asked in (theirs, *held):
        asked.end()
        assert (await answered(asked)).status == 200


async def test_a_token_is_good_for_one_unfinished_body_at_a_time(gateway: GatewayApp) -> None:
    signer = await gateway.signer("owner")
    body = as_body(gateway.envelope(signer, CREATE, create_args()))
    data = with_token(body, gateway.token(signer, body))
    first = await Unfinished(gateway, data, 10).held()
    for _ in range(3):
        assert await refusal(Unfinished(gateway, data, 10)) == (401, "UNAUTHORIZED")
    first.end()
    assert (await answered(first)).status == 200
    left = await Unfinished(gateway, with_token(body, token := gateway.token(signer, body)), 10).held()
    left.leave()
    await left.task
    again = await Unfinished(gateway, with_token(body, token), 10).held()
    again.end()
    assert (await answered(again)).status == 200  # The nonce is used when the body has come.


async def test_internal_callers_may_send_several_bodies_at_once(gateway: GatewayApp) -> None:
    internal = Signer("acme", "owner", sub="svc:internal")
    held = [await Unfinished(gateway, signed(gateway, internal, TOKEN)).held() for _ in range(2)]
    for asked in held:
        asked.end()
        assert (await answered(asked)).status == 200

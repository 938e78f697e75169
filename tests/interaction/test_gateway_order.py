"""A request to the gateway is refused by the first step that objects; before its rate is known nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.engines import ENGINES
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import (
    BUS,
    LATER,
    TRANSPORTS,
    Answer,
    GatewayApp,
    HeldDocuments,
    HeldStorage,
    open_gateway,
)
from tests.support.http_wire import Response
from tests.support.waiting import until

ID = "11111111-1111-4111-8111-111111111111"
KEY = "acme:subject-123:create_document:v1"
MOST_BYTES = 65_536 + 4096
SETTINGS: dict[str, Any] = {
    "gateway": {"enabled": True, "requests_per_minute_per_principal": 20},
    "knowledge": {"max_concurrent": 1},
    "tools": {"max_payload_bytes": 4096},
}


@dataclass
class Draft:
    """A request that would be accepted, until steps are made to object to it."""

    gateway: GatewayApp
    signer: Signer
    envelope: dict[str, Any]
    claims: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    is_forged: bool = False

    @property
    def args(self) -> dict[str, Any]:
        args: dict[str, Any] = self.envelope["payload"]["args"]
        return args

    async def send(self) -> Response:
        body = as_body(self.envelope)
        body += b" " * (self.size - len(body))
        token = self.gateway.token(self.signer, body, **self.claims)
        token = token[:-8] + "AAAAAAAA" if self.is_forged else token
        return await self.gateway.send(body, token, self.signer)

    async def send_before(self, **fields: Any) -> None:
        """Another request of the same caller, which is accepted."""
        args = create_args(fields.pop("document_id", None))
        assert (await self.gateway.act(self.signer, "create_document", args, **fields)).status == 200


async def too_large(draft: Draft) -> None:
    draft.size = MOST_BYTES + 1


async def forged(draft: Draft) -> None:
    draft.is_forged = True


async def too_many(draft: Draft) -> None:
    path = "/mcp/capabilities"  # It takes no slot, and has no key: the other steps are as they were.
    while (await draft.gateway.get(path, draft.signer)).status != 429:
        pass


async def nonce_again(draft: Draft) -> None:
    draft.claims["nonce"] = "a-nonce-that-was-used"
    path = "/mcp/capabilities"
    token = draft.gateway.token(draft.signer, b"", path, "GET", **draft.claims)
    assert (await draft.gateway.get(path, token=token)).status == 200


async def unknown_field(draft: Draft) -> None:
    draft.envelope["priority"] = 1


async def other_tenant(draft: Draft) -> None:
    draft.envelope["tenant_id"] = "globex"


async def no_role(draft: Draft) -> None:
    draft.envelope["principal"]["roles"] = ["viewer"]


async def late(draft: Draft) -> None:
    draft.envelope |= {"timestamp": "2020-01-01T00:00:00Z"}


async def key_again(draft: Draft) -> None:
    await draft.send_before(document_id=ID, idempotency_key=KEY)
    draft.envelope["idempotency_key"] = KEY
    draft.args["metadata"] = {"title": "Another title"}


async def old_seq(draft: Draft) -> None:
    await draft.send_before(seq=5, context_id="a thread")
    draft.envelope |= {"seq": 4, "context_id": "a thread"}


async def no_slot(draft: Draft) -> None:
    documents = draft.gateway.documents
    assert isinstance(documents, HeldDocuments)
    documents.gate.clear()
    other = await draft.gateway.signer("owner", sub="svc:other")
    envelope = draft.gateway.envelope(other, "knowledge.create_document", create_args())
    draft.gateway.begin(envelope, draft.gateway.token(other, as_body(envelope)))
    await until(lambda: documents.waiting == 1)


async def unfit(draft: Draft) -> None:
    del draft.args["content"]


async def no_parent(draft: Draft) -> None:
    draft.args["parent_id"] = "22222222-2222-4222-8222-222222222222"


Step = Callable[[Draft], Any]
STEPS: dict[str, tuple[Step, int, Answer]] = {
    "size": (too_large, 400, Answer(code="INVALID_ARGUMENT", details={"limit": MOST_BYTES})),
    "signature": (forged, 401, Answer(code="UNAUTHORIZED", details={"message": "The token's signature is wrong"})),
    "rate": (too_many, 429, Answer(code="RATE_LIMIT_EXCEEDED", details={"limit": 20})),
    "nonce": (
        nonce_again,
        401,
        Answer(code="UNAUTHORIZED", details={"message": "The nonce was used before, or the key has been revoked"}),
    ),
    "envelope": (unknown_field, 400, Answer(code="INVALID_ARGUMENT", details={"path": "priority"})),
    "tenant": (other_tenant, 403, Answer(code="FORBIDDEN", details={"reason": "other_tenant"})),
    "roles": (no_role, 403, Answer(code="FORBIDDEN", details={"reason": "role"})),
    "ttl": (late, 440, Answer(code="EXPIRED")),
    "idempotency": (key_again, 409, Answer(code="CONFLICT", details={"reason": "idempotency_conflict"})),
    "seq": (old_seq, 200, Answer({"ignored": True, "last_seq": 5})),
    "slot": (no_slot, 429, Answer(code="RATE_LIMIT_EXCEEDED", details={"limit": 1})),
    "arguments": (unfit, 422, Answer(code="UNPROCESSABLE_ENTITY")),
    "action": (no_parent, 404, Answer(code="NOT_FOUND", details={"argument": "parent_id"})),
}
# What has to be sent before, for some steps, has to be sent before others object to everything.
PREPARED_FIRST = ("nonce", "idempotency", "seq", "slot")
WAITED_FOR = {"rate": (BUS,), "slot": (LATER, BUS)}
"""What a request waits for over these transports, instead of being refused."""
REFUSING = [(each, step) for each in TRANSPORTS for step in STEPS if each not in WAITED_FOR.get(step, ())]
over_transports = partial(pytest.mark.parametrize, ("gateway", "step"), indirect=["gateway"])


@pytest.fixture(params=TRANSPORTS)
async def gateway(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[GatewayApp]:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)  # type: ignore[misc]
    async with open_gateway(SETTINGS, transport=request.param) as gateway:
        yield gateway
        assert isinstance(gateway.documents, HeldDocuments)
        gateway.documents.gate.set()


async def draft_of(gateway: GatewayApp) -> Draft:
    signer = await gateway.signer("owner")
    return Draft(gateway, signer, gateway.envelope(signer, "knowledge.create_document", create_args(ID)))


async def answer_to(gateway: GatewayApp, *failing: str) -> tuple[int, Answer]:
    """The answer to a request that these steps object to, with no more of its details than the table has."""
    failing = tuple(step for step in failing if gateway.transport not in WAITED_FOR.get(step, ()))
    draft = await draft_of(gateway)
    for step in sorted(failing, key=lambda step: step not in PREPARED_FIRST):
        await STEPS[step][0](draft)
    response = await draft.send()
    if response.json["ok"]:
        return response.status, Answer(response.json["data"])
    error = response.json["error"]
    found = {**error["details"], "message": error["message"]}
    details = {name: found.get(name) for name in STEPS[failing[0]][2].details}
    return response.status, Answer(None, error["code"], details)


@pytest.mark.requirement("MC-ERR-02", "MC-CAP-04", "MC-ENV-07", "MC-IDEM-04")
@over_transports(REFUSING)
async def test_each_step_alone_has_its_own_answer(gateway: GatewayApp, step: str) -> None:
    _, *expected = STEPS[step]
    assert await answer_to(gateway, step) == tuple(expected)


@over_transports([each for each in REFUSING if each[1] != "action"])
async def test_a_step_answers_before_the_next(gateway: GatewayApp, step: str) -> None:
    names = [*STEPS]
    _, *expected = STEPS[step]
    assert await answer_to(gateway, step, names[names.index(step) + 1]) == tuple(expected)


@over_transports([each for each in REFUSING if each[1] != "action"])
async def test_a_step_answers_before_all_that_follow(gateway: GatewayApp, step: str) -> None:
    names = [*STEPS]
    _, *expected = STEPS[step]
    assert await answer_to(gateway, *names[names.index(step) :]) == tuple(expected)


def rows_in(folder: Path) -> dict[str, int]:
    """How many rows each table has."""
    with sqlite3.connect(folder / "dragoman.db") as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        tables = [name for (name,) in connection.execute(query)]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}


@pytest.mark.parametrize("step", [too_large, forged])
async def test_before_the_rate_nothing_is_written(tmp_path: Path, step: Step) -> None:
    async with open_gateway(SETTINGS, tmp_path) as gateway:
        draft = await draft_of(gateway)
        before = rows_in(tmp_path)
        await step(draft)
        draft.envelope["principal"]["roles"] = ["codex"]  # An alias, which would leave an event.
        assert (await draft.send()).status in (400, 401)
        assert rows_in(tmp_path) == before
        draft.size, draft.is_forged = 0, False
        assert (await draft.send()).status == 403
        written = {name: count - before[name] for name, count in rows_in(tmp_path).items() if count != before[name]}
        event = {"audit_event": 1, "bus_message": 1, "bus_body": 1, "bus_subject": 1, "sqlite_sequence": 2}
        assert written == {"signing_nonce": 1, "purge_clock": 1, "gateway_quota": 2, **event}


async def test_a_request_beyond_the_rate_spends_no_nonce(tmp_path: Path) -> None:
    async with open_gateway(SETTINGS, tmp_path) as gateway:
        draft = await draft_of(gateway)
        await too_many(draft)
        before = rows_in(tmp_path)
        draft.claims["nonce"] = "a-nonce-for-later-on"
        assert (await draft.send()).status == 429
        assert rows_in(tmp_path) == before


@pytest.mark.requirement("MC-ERR-02")
@pytest.mark.parametrize("id", [5, None, [], {"a": 1}, True, 1.5])
async def test_a_document_id_that_is_no_string_goes_on_to_the_arguments(gateway: GatewayApp, id: Any) -> None:
    signer = await gateway.signer("owner")
    for action in ("create_document", "update_document", "delete_document", "move_document"):
        response = await gateway.act(signer, action, {**create_args(), "document_id": id})
        assert (response.status, response.json["error"]["code"]) == (422, "UNPROCESSABLE_ENTITY")


@pytest.mark.requirement("MC-IDEM-02", "MC-IDEM-04")
async def test_a_replay_gets_its_first_result_whatever_its_seq(gateway: GatewayApp) -> None:
    signer = await gateway.signer("owner")
    first = gateway.envelope(signer, "knowledge.create_document", create_args(), seq=3, idempotency_key=KEY)
    result = (await gateway.post(signer, first)).json["data"]
    assert result["revision"] == 1
    assert (await gateway.act(signer, "create_document", create_args(), seq=9)).status == 200
    for seq in (0, 3, 9, 100):
        again = {**first, "seq": seq}
        assert (await gateway.post(signer, again)).json["data"] == result
    # None of the replays moved the stream on.
    ignored = await gateway.act(signer, "create_document", create_args(), seq=8)
    assert ignored.json["data"] == {"ignored": True, "last_seq": 9}


@pytest.mark.requirement("MC-IDEM-02")
@pytest.mark.parametrize("gateway", [each for each in TRANSPORTS if each not in WAITED_FOR["slot"]], indirect=True)
async def test_a_replay_gets_its_first_result_even_if_all_slots_are_taken(gateway: GatewayApp) -> None:
    draft = await draft_of(gateway)
    first = await draft.send()
    await no_slot(draft)
    again = await draft.send()
    assert (again.status, again.json["data"]) == (200, first.json["data"])


@pytest.mark.requirement("MC-ENV-07")
async def test_an_expired_replay_gets_expired(gateway: GatewayApp) -> None:
    signer = await gateway.signer("owner")
    first = gateway.envelope(signer, "knowledge.create_document", create_args(), ttl_sec=60)
    assert (await gateway.post(signer, first)).status == 200
    gateway.clock.advance(61)
    response = await gateway.post(signer, first)
    assert (response.status, response.json["error"]["code"]) == (440, "EXPIRED")
    assert response.json["error"]["details"]["trace_id"] == first["trace_id"]
    fresh = {**first, "timestamp": gateway.clock.timestamp()}
    assert (await gateway.post(signer, fresh)).json["data"]["revision"] == 1

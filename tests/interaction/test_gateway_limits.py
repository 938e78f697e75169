"""The statuses of the gateway, its rates and its slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from dragoman import tool
from dragoman.adapters.engines import ENGINES
from dragoman.errors import StorageUnavailable
from dragoman.replies.vocabulary import STATUSES
from tests.support.answers import error_in
from tests.support.asgi import Asked
from tests.support.common_slots import CountedSlots
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import (
    INTERNAL,
    TOKEN,
    TRANSPORTS,
    GatewayApp,
    HeldDocuments,
    HeldStorage,
    OverMcp,
    advance_until_finished,
    answered,
    internal,
    open_gateway,
)
from tests.support.http_wire import modern_call, request
from tests.support.waiting import until

CONTRACT = {
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


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayApp]:
    async with open_gateway() as gateway:
        yield gateway


@pytest.mark.requirement("MC-ERR-01")
def test_the_codes_and_their_statuses_are_those_of_the_contract() -> None:
    assert {code.value: status for code, status in STATUSES.items()} == CONTRACT


async def error_of(gateway: GatewayApp, case: str) -> tuple[int, str]:
    """Status and code of one error, brought about in the way that it comes about."""
    signer = await gateway.signer("owner")
    id = str(uuid4())
    args: dict[str, Any] = create_args(id)
    fields: dict[str, Any] = {}
    if case == "CONFLICT":
        assert (await gateway.act(signer, "create_document", args)).status == 200
    elif case == "INVALID_ARGUMENT":
        fields["seq"] = -1
    elif case == "FORBIDDEN":
        fields["tenant_id"] = "globex"
    elif case == "NOT_FOUND":
        args["parent_id"] = str(uuid4())
    elif case == "UNPROCESSABLE_ENTITY":
        args["content"] = {"mime_type": "application/json", "body": "{"}
    elif case == "EXPIRED":
        fields["timestamp"] = "2020-01-01T00:00:00Z"
    elif case == "RATE_LIMIT_EXCEEDED":
        while (await gateway.get("/mcp/capabilities", signer)).status == 200:
            pass
    elif case == "UNAUTHORIZED":
        assert await gateway.keys.revoke(signer.kid, 0.0)
    response = await gateway.act(signer, "create_document", args, **fields)
    assert set(response.json) == {"ok", "error"}
    return response.status, response.json["error"]["code"]


@pytest.mark.requirement("MC-ERR-01", "MC-ERR-02", "MC-RESP-02")
@pytest.mark.parametrize("code", [code for code in CONTRACT if code not in ("INTERNAL", "UNAVAILABLE")])
async def test_an_error_has_its_code_and_its_status(gateway: GatewayApp, code: str) -> None:
    assert await error_of(gateway, code) == (CONTRACT[code], code)


class FailingDocuments(HeldDocuments):
    """Documents of an engine that does not work."""

    error: Exception = StorageUnavailable("/var/lib/secret.db: SELECT 1")

    async def carry_out(self, *_: Any) -> Any:
        raise self.error


class FailingStorage(HeldStorage):
    documents = FailingDocuments


@pytest.mark.requirement("MC-ERR-01", "MC-ERR-02")
@pytest.mark.parametrize(
    ("error", "code"),
    [(StorageUnavailable("/var/lib/secret.db: SELECT 1"), "UNAVAILABLE"), (KeyError("secret"), "INTERNAL")],
)
async def test_what_goes_wrong_inside_is_told_without_saying_what_it_was(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    monkeypatch.setitem(ENGINES, "memory", FailingStorage)  # type: ignore[misc]
    monkeypatch.setattr(FailingDocuments, "error", error)
    async with open_gateway() as gateway:
        response = await gateway.act(await gateway.signer("owner"), "create_document", create_args())
    assert (response.status, response.json["error"]["code"]) == (CONTRACT[code], code)
    assert ("retry-after" in response.headers) is (code == "UNAVAILABLE")
    assert b"secret" not in response.body


@pytest.mark.requirement("MC-ERR-01", "MC-SEC-05", "MC-TRANS-01")
@pytest.mark.parametrize(
    "path", ["/mcp/capabilities", "/mcp/openapi.json", "/schemas/mcp/knowledge.create_document.json"]
)
async def test_reading_needs_credentials_too(gateway: GatewayApp, path: str) -> None:
    for token in (None, "nobodys-token-0123456789", ""):
        refused = await gateway.get(path, token=token)
        assert (refused.status, refused.json["error"]["code"]) == (401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert (await gateway.get(path, token=TOKEN)).status == 200
    assert (await gateway.get(path, await gateway.signer("viewer"))).status == 200


@pytest.mark.parametrize("name", ["nope", "knowledge.create_document.json", "../mcp/knowledge.create_document", ""])
async def test_there_is_no_schema_of_another_name(gateway: GatewayApp, name: str) -> None:
    missing = await gateway.get(f"/schemas/mcp/{name}.json", token=TOKEN)
    assert (missing.status, missing.json["error"]["code"]) == (404, "NOT_FOUND")


@pytest.mark.requirement("MC-CAP-03", "MC-ERR-02")
@pytest.mark.parametrize(("action", "limit"), [("create_document", 131_072), ("update_document", 131_072)])
async def test_arguments_above_the_limit_of_their_action_are_refused_and_at_it_are_not(
    gateway: GatewayApp, action: str, limit: int
) -> None:
    signer = await gateway.signer("owner")
    content = {"mime_type": "text/plain", "body": ""}
    args: dict[str, Any] = create_args(content=content)
    if action == "update_document":
        assert (await gateway.act(signer, "create_document", args)).status == 200
        args = {"document_id": args["document_id"], "patch": {"content": content}, "update_mask": ["content.body"]}
    content["body"] = "x" * (limit - len(as_body(args).replace(b", ", b",").replace(b": ", b":")))
    assert (await gateway.act(signer, action, args)).status == 200
    content["body"] += "x"
    refused = await gateway.act(signer, action, {**args, "document_id": str(uuid4())})
    assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_ARGUMENT")


# Rates.


@pytest.mark.requirement("MC-TRANS-03", "MC-ERR-02")
async def test_answers_say_how_much_of_the_rate_is_left_and_when_there_is_more() -> None:
    async with open_gateway({"gateway": {"enabled": True, "requests_per_minute_per_principal": 3}}) as gateway:
        signer = await gateway.signer("owner")
        seen = []
        for _ in range(5):
            response = await gateway.act(signer, "create_document", create_args())
            rate = [response.headers.get(f"x-ratelimit-{name}") for name in ("limit", "remaining")]
            seen.append((response.status, *rate))
        assert seen == [(200, "3", "2"), (200, "3", "1"), (200, "3", "0"), (429, "3", "0"), (429, "3", "0")]
        assert response.json["error"]["details"]["setting"] == "gateway.requests_per_minute_per_principal"
        wait = int(response.headers["retry-after"])
        assert 1 <= wait <= 60
        # Refusals after the rate have the headers, too; those before it have none.
        other = await gateway.signer("owner", sub="svc:other")
        refused = await gateway.act(other, "create_document", {})
        assert (refused.status, refused.headers["x-ratelimit-remaining"]) == (422, "2")
        unknown = await gateway.send({}, "nobodys-token-0123456789")
        assert (unknown.status, "x-ratelimit-limit" in unknown.headers) == (401, False)
        gateway.clock.advance(wait)
        assert (await gateway.act(signer, "create_document", create_args())).status == 200


@pytest.mark.requirement("MC-TRANS-03")
async def test_every_answer_to_a_caller_that_is_known_names_its_rate() -> None:
    narrow = "a-token-that-may-do-very-little"
    callers = {INTERNAL: internal("owner"), "svc:narrow": {**internal("owner", token=narrow), "scopes": ["tool:none"]}}
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        signer = await gateway.signer("owner")
        uri = (await gateway.act(signer, "create_document", create_args())).json["data"]["web_uri"]
        for path, token, status in (
            ("/mcp/capabilities", TOKEN, 200),
            ("/mcp/registry", TOKEN, 200),
            ("/schemas/mcp/nothing.json", TOKEN, 404),
            (f"/mcp/requests/{uuid4()}", TOKEN, 404),
            (f"/mcp/requests/{uuid4()}", narrow, 403),
            (uri, None, 200),
            (uri, narrow, 403),
        ):
            response = await gateway.get(path, signer if token is None else None, token)
            assert (response.status, response.headers.get("x-ratelimit-limit")) == (status, "120"), path
            assert "x-ratelimit-remaining" in response.headers
        chunked = {"authorization": f"Bearer {TOKEN}", "content-length": None, "transfer-encoding": "chunked"}
        body = b"493e0\r\n" + b"x" * 300_000 + b"\r\n0\r\n\r\n"
        refused = await gateway.driver.ask(request(body, chunked, path="/mcp/actions"))
        assert (refused.status, refused.headers.get("x-ratelimit-limit")) == (400, "120")


@pytest.mark.requirement("MC-TRANS-03")
async def test_the_principals_of_a_tenant_share_its_rate() -> None:
    rates = {"enabled": True, "requests_per_minute_per_tenant": 4, "requests_per_minute_per_principal": 3}
    async with open_gateway({"gateway": rates}) as gateway:
        one, two = await gateway.signer("owner", sub="svc:1"), await gateway.signer("owner", sub="svc:2")
        other = await gateway.signer("owner", tenant="globex", sub="svc:1")
        answers = [await gateway.act(each, "create_document", create_args()) for each in (one, one, one, two, two)]
        assert [each.status for each in answers] == [200, 200, 200, 200, 429]
        assert answers[-1].json["error"]["details"]["setting"] == "gateway.requests_per_minute_per_tenant"
        assert (await gateway.act(other, "create_document", create_args())).status == 200


async def test_of_a_caller_with_several_tenants_the_one_that_is_asked_for_is_counted() -> None:
    settings = {
        "gateway": {"enabled": True, "requests_per_minute_per_tenant": 2},
        "auth": {"callers": {"svc:internal": internal("owner", tenants=("acme", "globex"))}},
    }
    async with open_gateway(settings) as gateway:

        async def ask(tenant: str) -> int:
            signer = Signer(tenant, "owner", sub="svc:internal")
            envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
            return (await gateway.send(envelope, TOKEN)).status

        assert [await ask("acme") for _ in range(3)] == [200, 200, 429]
        assert await ask("globex") == 200


# Slots.


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[GatewayApp]:
    """A gateway whose changes are held up until the gate opens."""
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)  # type: ignore[misc]
    settings, tools = getattr(request, "param", ({}, ()))
    async with open_gateway(settings, tools=tools) as gateway:
        documents_of(gateway).gate.clear()
        yield gateway
        documents_of(gateway).gate.set()


def documents_of(gateway: GatewayApp) -> HeldDocuments:
    assert isinstance(gateway.documents, HeldDocuments)
    return gateway.documents


def begin(gateway: GatewayApp, way: str) -> Asked:
    """An action over HTTP, or the call of its tool."""
    if way == "mcp":
        call = modern_call("knowledge.create_document", {"authorization": f"Bearer {TOKEN}"}, **create_args())
        return gateway.driver.begin(call)
    signer = Signer("acme", "owner", sub="svc:internal")
    return gateway.begin(gateway.envelope(signer, "knowledge.create_document", create_args()), TOKEN)


def code_of(asked: Asked, way: str) -> str | None:
    response = asked.response
    if way == "mcp":
        result = response.message["result"]
        return str(error_in(result)["code"]) if result["isError"] else None
    if response.json["ok"]:
        return None
    assert response.status == 429
    assert response.headers["retry-after"]
    return str(response.json["error"]["code"])


FULL = {"http": "RATE_LIMIT_EXCEEDED", "mcp": "RESOURCE_EXHAUSTED"}


@pytest.mark.requirement("MC-RESP-01")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_latency_of_an_answer_is_the_time_since_the_request_came(
    monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)  # type: ignore[misc]
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        for seconds in (0.25, 3.0):
            documents_of(gateway).gate.clear()
            asking = asyncio.create_task(gateway.act(signer, "create_document", create_args()))
            await until(lambda: documents_of(gateway).waiting == 1)
            gateway.clock.advance(seconds)
            documents_of(gateway).gate.set()
            body = (await asking).json
            assert (body["ok"], body["usage"]) == (True, {"latency_ms": seconds * 1000, "qdrant_hits": 0})


@pytest.mark.requirement("MC-CAP-04", "MC-ERR-02")
@pytest.mark.parametrize("held", [({"knowledge": {"max_concurrent": 1}}, ())], indirect=True)
@pytest.mark.parametrize("second", FULL)
@pytest.mark.parametrize("first", FULL)
async def test_a_full_action_refuses_however_it_was_filled(held: GatewayApp, first: str, second: str) -> None:
    under_way = begin(held, first)
    await until(lambda: documents_of(held).waiting == 1)
    refused = begin(held, second)
    await answered(refused)
    assert code_of(refused, second) == FULL[second]
    # Another action has slots of its own.
    other = await OverMcp(held).do("move_document", {"document_id": "no id", "new_parent_id": "root"})
    assert other.code == "INVALID_ARGUMENT"
    documents_of(held).gate.set()
    await answered(under_way)
    assert code_of(under_way, first) is None


@tool
def count_to(most: int) -> int:
    """Count."""
    return most


@pytest.mark.requirement("MC-CAP-04", "MC-TRANS-03")
@pytest.mark.parametrize("held", [({"resources": {"max_concurrent_executions": 1}}, [count_to])], indirect=True)
async def test_an_action_has_ten_slots_beside_those_of_the_server_and_tenants_share_them(held: GatewayApp) -> None:
    acme = [await held.signer("owner", sub="svc:one") for _ in range(3)]
    globex = [await held.signer("owner", tenant="globex") for _ in range(2)]
    under_way: list[Asked] = []

    async def refusal(signer: Signer, sub: str = "svc:one") -> str | None:
        """The refusal of one more, or None if it has a slot."""
        signer.sub, count = sub, documents_of(held).waiting
        envelope = held.envelope(signer, "knowledge.create_document", create_args())
        asked = held.begin(envelope, held.token(signer, as_body(envelope)))
        await until(lambda: asked.is_complete or documents_of(held).waiting > count)
        if not asked.is_complete:
            under_way.append(asked)
            return None
        assert code_of(asked, "http") == "RATE_LIMIT_EXCEEDED"
        assert asked.response.json["error"]["details"]["setting"] == "knowledge.max_concurrent"
        assert (asked.response.status, asked.response.headers["retry-after"]) == (429, "1")
        assert {"x-ratelimit-limit", "x-ratelimit-remaining"} <= asked.response.headers.keys()
        return str(asked.response.json["error"]["message"])

    # A key has what leaves another one of its tenant a place, whatever names its holder chooses.
    assert [await refusal(acme[0], f"svc:{number}") for number in range(7)] == [None] * 7
    assert await refusal(acme[0], "svc:another") == "All 7 slots of this caller are taken"
    # A tenant has what leaves others a fifth.
    assert [await refusal(acme[1]), await refusal(acme[2])] == [None, "All 8 slots of this tenant are taken"]
    assert [await refusal(each) for each in globex] == [None, None]
    assert await refusal(globex[0]) == "All 10 slots are taken"
    # The one slot of the server is free.
    called = await held.driver.ask(modern_call("count_to", {"authorization": f"Bearer {TOKEN}"}, most=3))
    assert called.message["result"]["isError"] is False
    documents_of(held).gate.set()
    for each in under_way:
        await answered(each)
        assert code_of(each, "http") is None
    documents_of(held).gate.clear()
    assert [await refusal(acme[0]) for _ in range(7)] == [None] * 7  # Everything was given back.


@pytest.fixture
async def workers(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[GatewayApp, GatewayApp, CountedSlots]]:
    """Two gateways as workers have them, whose changes are held up, and the slots that they share."""
    monkeypatch.setitem(ENGINES, "memory", HeldStorage)  # type: ignore[misc]
    slots = CountedSlots()
    settings = getattr(request, "param", {})
    async with open_gateway(settings) as one, open_gateway(settings) as other:
        for each in (one, other):
            each.runtime.shared.slots = slots
            documents_of(each).gate.clear()
        yield one, other, slots
        for each in (one, other):
            documents_of(each).gate.set()


@pytest.mark.requirement("MC-CAP-02", "MC-CAP-04")
@pytest.mark.parametrize("way", FULL)
async def test_workers_share_the_slots_that_the_server_advertises(
    workers: tuple[GatewayApp, GatewayApp, CountedSlots], way: str
) -> None:
    one, other, slots = workers
    under_way = [begin(each, way) for each in (one, one, one, one, other, other, other)]  # One caller has seven of ten.
    await until(lambda: [documents_of(each).waiting for each in (one, other)] == [4, 3])
    for each in (one, other):
        refused = begin(each, way)
        await answered(refused)
        assert code_of(refused, way) == FULL[way]
        assert (await OverMcp(each).do("move_document", {"document_id": "no id", "new_parent_id": "root"})).code
    for each in (one, other):
        documents_of(each).gate.set()
    for asked in under_way:
        await answered(asked)
        assert code_of(asked, way) is None
    await until(lambda: slots.in_use == 0)


@pytest.mark.requirement("MC-TRANS-04")
@pytest.mark.parametrize("workers", [{"knowledge": {"max_concurrent": 2}}], indirect=True)
async def test_requests_for_later_leave_half_of_the_slots_of_all_workers(
    workers: tuple[GatewayApp, GatewayApp, CountedSlots],
) -> None:
    one, other, _ = workers
    ids = []
    for each in (one, other):
        signer = await each.signer("owner")
        envelope = each.envelope(signer, "knowledge.create_document", create_args())
        assert (await each.post(signer, envelope, prefer="respond-async")).status == 202
        ids.append((each, signer, envelope["request_id"]))
        await until(lambda: documents_of(one).waiting == 1)
    globex = await other.signer("owner", tenant="globex")
    body = as_body(other.envelope(globex, "knowledge.create_document", create_args()))
    at_once = other.begin(body, other.token(globex, body))
    await until(lambda: documents_of(other).waiting == 1)
    documents_of(other).gate.set()
    await answered(at_once)
    assert code_of(at_once, "http") is None
    documents_of(one).gate.set()
    for each, signer, id in ids:
        assert (await advance_until_finished(each, signer, id)).http_status == 200


TRACE = f"00-{'4b' * 16}-{'f0' * 8}-01"
_BEFORE_THE_ROUTE: dict[str, tuple[dict[str, str | None], str, str, int, str]] = {
    "another method": ({}, "GET", "/mcp/actions", 405, "INVALID_ARGUMENT"),
    "another method of an artifact": ({}, "POST", "/mcp/artifacts", 405, "INVALID_ARGUMENT"),
    "another method of the registry": ({}, "DELETE", "/mcp/registry", 405, "INVALID_ARGUMENT"),
    "another method of a schema": ({}, "PUT", "/schemas/mcp/knowledge.query_knowledge.json", 405, "INVALID_ARGUMENT"),
    "another host": ({"host": "evil.example"}, "POST", "/mcp/actions", 421, "INVALID_ARGUMENT"),
    "another host for nothing": ({"host": "evil.example"}, "GET", "/mcp/nothing", 421, "INVALID_ARGUMENT"),
    "another origin": ({"origin": "https://evil.example"}, "POST", "/mcp/actions", 403, "FORBIDDEN"),
    "nothing there": ({}, "GET", "/mcp/nothing", 404, "NOT_FOUND"),
}


@pytest.mark.requirement("MC-ERR-01", "MC-RESP-02")
@pytest.mark.parametrize("case", _BEFORE_THE_ROUTE)
async def test_a_request_that_http_refuses_is_told_so_in_the_words_of_the_contract(
    gateway: GatewayApp, case: str
) -> None:
    headers, method, path, status, code = _BEFORE_THE_ROUTE[case]
    named = {"authorization": f"Bearer {TOKEN}", "traceparent": TRACE, **headers}
    response = await gateway.driver.ask(request(b"{}", named, method=method, path=path))
    assert (response.status, response.headers["content-type"]) == (status, "application/json")
    assert ("allow" in response.headers) is (status == 405)
    error = response.json["error"]
    assert response.json == {"ok": False, "error": error}
    assert (error["code"], error["details"]["trace_id"]) == (code, TRACE)
    assert error["message"]
    assert error["details"]["hint"]


async def test_refusals_of_other_addresses_keep_the_words_of_mcp(gateway: GatewayApp) -> None:
    for method, path, status in (("POST", "/health", 405), ("GET", "/nothing", 404), ("PUT", "/mcp", 405)):
        named = {"authorization": f"Bearer {TOKEN}"}
        response = await gateway.driver.ask(request(b"{}", named, method=method, path=path))
        assert (response.status, "jsonrpc" in response.json) == (status, True)

"""Arguments of signed requests that the published schema does not name, and answers that are envelopes."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.support.asgi import Asked
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_serving import (
    LATER,
    NOW,
    TOKEN,
    TRANSPORTS,
    GatewayApp,
    OverMcp,
    answered,
    open_gateway,
)

ENVELOPE = "application/vnd.a2a.envelope+json"


def spoiled(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a creation with members that no schema names."""
    metadata = {**args["metadata"], "titel": "?", "tags": ["x"]}
    return {**args, "content": {**args["content"], "charset": {"is": ["utf-8"]}}, "metadata": metadata, "notify": True}


@pytest.mark.requirement("MC-CREATE-01", "MC-UPDATE-01", "MC-DELETE-01", "MC-MOVE-01", "MC-QUERY-01")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_members_that_no_schema_names_have_no_effect_and_are_named_in_the_answer(transport: str) -> None:
    async with open_gateway(transport=transport) as gateway:
        signer, args = await gateway.signer("owner"), create_args()
        id = args["document_id"]
        plain = await gateway.act(signer, "create_document", create_args())
        assert "ignored" not in plain.json["usage"]
        asked = {
            "create_document": (spoiled(args), ["content.charset", "metadata.titel", "notify"]),
            "update_document": (
                {"document_id": id, "patch": {"metadata": {"title": "T", "titel": "?"}, "x": 1},
                 "update_mask": ["metadata"], "last_revision": 9},
                ["patch.metadata.titel", "patch.x", "last_revision"],
            ),
            "query_knowledge": ({"query": "text", "routing": {"noop": True}, "k": 3}, ["routing.noop", "k"]),
            "move_document": ({"document_id": id, "new_parent_id": "root", "position": {"after": id}},
                              ["position.after"]),
            "delete_document": ({"document_id": id, "purge": True}, ["purge"]),
        }  # fmt: skip
        for action, (given, ignored) in asked.items():
            response = await gateway.act(signer, action, given)
            assert (response.status, response.json["usage"].get("ignored")) == (200, ignored), action
        (created,) = await gateway.documents.history(signer.tenant, id, limit=1, before=2)
        assert (created.document.title, created.document.tags) == (args["metadata"]["title"], ("x",))


@pytest.mark.requirement("MC-CREATE-01")
async def test_at_most_twenty_paths_of_a_hundred_characters_are_named() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        many = {f"{number:03}{'x' * 200}": number for number in range(30)}
        response = await gateway.act(signer, "query_knowledge", {"query": "x", **many})
    assert response.json["usage"]["ignored"] == [name[:100] for name in many][:20]


@pytest.mark.requirement("MC-IDEM-01", "MC-CREATE-01")
async def test_a_repeat_with_other_members_that_are_ignored_is_a_repeat() -> None:
    async with open_gateway() as gateway:
        signer, args = await gateway.signer("owner"), create_args()
        first = await gateway.act(signer, "create_document", args, idempotency_key="k")
        again = await gateway.act(signer, "create_document", {**args, "more": 1}, idempotency_key="k")
    assert (again.status, again.json["data"]) == (200, first.json["data"])
    assert again.json["usage"]["ignored"] == ["more"]


@pytest.mark.requirement("MC-CREATE-01")
async def test_members_that_are_ignored_count_towards_the_limit_of_arguments() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        refused = await gateway.act(signer, "create_document", {**create_args(), "more": "x" * 131_072})
        assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_ARGUMENT")
        assert await gateway.events() == []


@pytest.mark.requirement("MC-CREATE-01", "MC-UPDATE-01", "MC-QUERY-01")
@pytest.mark.parametrize("transport", [NOW, LATER])
async def test_a_server_that_is_strict_refuses_members_that_no_schema_names(transport: str) -> None:
    async with open_gateway({"gateway": {"strict_args": True}}, transport=transport) as gateway:
        signer = await gateway.signer("owner")
        refused = await gateway.act(signer, "create_document", spoiled(create_args()))
        assert (refused.status, refused.json["error"]["code"]) == (422, "UNPROCESSABLE_ENTITY")
        named = {each["path"] for each in refused.json["error"]["details"]["errors"]}
        assert named == {"/content/charset", "/metadata/titel", "/notify"}
        assert (await gateway.act(signer, "create_document", create_args())).status == 200


@pytest.mark.requirement("MC-CREATE-01", "MC-UPDATE-01", "MC-DELETE-01", "MC-MOVE-01", "MC-QUERY-01")
async def test_the_tools_refuse_members_that_no_schema_names() -> None:
    async with open_gateway() as gateway:
        way, args = OverMcp(gateway), create_args()
        assert (await way.do("create_document", spoiled(args))).code == "INVALID_ARGUMENT"
        for action, given in {
            "update_document": {"document_id": args["document_id"], "patch": {"x": 1}, "update_mask": []},
            "delete_document": {"document_id": args["document_id"], "x": 1},
            "move_document": {"document_id": args["document_id"], "new_parent_id": "root", "x": 1},
            "query_knowledge": {"query": "x", "x": 1},
        }.items():
            assert (await way.do(action, given)).code == "INVALID_ARGUMENT", action
        assert await gateway.events() == []


@pytest.mark.requirement("MC-UPDATE-01", "MC-UPDATE-02")
async def test_null_in_a_patch_removes_a_field_and_a_path_that_does_not_exist_is_refused() -> None:
    async with open_gateway() as gateway:
        signer, args = await gateway.signer("owner"), spoiled(create_args())
        id = args["document_id"]
        await gateway.act(signer, "create_document", args)
        patch = {"document_id": id, "patch": {"metadata": {"tags": None}}, "update_mask": ["metadata.tags"]}
        assert (await gateway.act(signer, "update_document", patch)).status == 200
        (kept,) = await gateway.documents.history(signer.tenant, id, limit=1)
        assert kept.document.tags == ()
        for path in ("metadata.titel", "x"):
            wrong = {**patch, "patch": {"metadata": {"titel": "T"}, "x": 1}, "update_mask": [path]}
            assert (await gateway.act(signer, "update_document", wrong)).status == 422


@pytest.mark.requirement("MC-CREATE-01")
@pytest.mark.parametrize("title", ["T", "A title of more than ten characters", "x" * 1000])
async def test_a_title_may_have_any_length_up_to_its_limit(title: str) -> None:
    async with open_gateway() as gateway:
        signer, args = await gateway.signer("owner"), create_args(metadata={"title": title})
        assert (await gateway.act(signer, "create_document", args)).status == 200
        (kept,) = await gateway.documents.history(signer.tenant, args["document_id"], limit=1)
    assert kept.document.title == title


# Answers.


def begin(gateway: GatewayApp, envelope: Any, token: str, accept: str, **headers: str) -> Asked:
    return gateway.begin(envelope, token, accept=accept, **headers)


@pytest.mark.requirement("MC-ENV-01", "MC-RESP-01", "MC-ERR-01")
async def test_an_answer_is_an_envelope_with_the_ids_of_its_request_if_the_client_takes_one() -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        args = create_args()
        envelope = gateway.envelope(signer, "knowledge.create_document", args, correlation_id=str(uuid4()))
        for status, sent, more in (
            (200, envelope, {}),
            (409, {**envelope, "request_id": str(uuid4())}, {}),
            (422, {**envelope, "payload": {"schema_version": "1.0", "args": {}}, "request_id": str(uuid4())}, {}),
            (400, {**envelope, "action_version": "9.0.0"}, {}),
            (202, {**envelope, "request_id": str(uuid4())}, {"prefer": "respond-async"}),
        ):
            token = gateway.token(signer, as_body(sent))
            response = await answered(begin(gateway, sent, token, f"text/html, {ENVELOPE};v=2", **more))
            assert (response.status, response.headers["content-type"]) == (status, ENVELOPE)
            answer = json.loads(response.body)
            same = ("request_id", "correlation_id", "trace_id", "tenant_id", "action", "action_version")
            assert {name: answer[name] for name in same} == {name: sent[name] for name in same}
            assert (answer["envelope_version"], answer["principal"]["sub"]) == ("2.2", "dragoman")
            assert answer["payload"]["ok"] is (status < 300)
            assert answer["payload"].keys() == ({"ok", "data", "usage"} if status < 300 else {"ok", "error"})


@pytest.mark.requirement("MC-ENV-01")
@pytest.mark.parametrize("accept", ["application/json", "*/*", f"{ENVELOPE};q=0", ""])
async def test_an_answer_is_its_body_for_a_client_that_asks_for_no_envelope(accept: str) -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
        response = await answered(begin(gateway, envelope, gateway.token(signer, as_body(envelope)), accept))
    assert (response.headers["content-type"], response.json.keys()) == (
        "application/json",
        {"ok", "data", "usage"},
    )


@pytest.mark.requirement("MC-ENV-01")
@pytest.mark.parametrize("prefer", ["", "respond-async"])
async def test_a_request_that_is_no_envelope_or_not_authentic_gets_the_plain_body(prefer: str) -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        envelope = gateway.envelope(signer, "knowledge.create_document", create_args())
        token = gateway.token(signer, as_body(envelope))
        await answered(gateway.begin(envelope, token))
        stranger = Signer("acme", "owner")
        unreadable = {**envelope, "more": 1}
        for sent, credentials, status in (
            (unreadable, gateway.token(signer, as_body(unreadable)), 400),
            (envelope, token, 401),  # Its nonce was used.
            (envelope, gateway.token(stranger, as_body(envelope)), 401),
            (b"{", TOKEN, 400),
        ):
            response = await answered(begin(gateway, sent, credentials, ENVELOPE, prefer=prefer))
            assert (response.status, response.headers["content-type"]) == (status, "application/json")
            assert response.json.keys() == {"ok", "error"}

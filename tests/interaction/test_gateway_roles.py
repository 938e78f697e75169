"""Who may do what over the gateway, and with the tools of the same names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import product
from typing import Any
from uuid import uuid4

import pytest

from dragoman.testing import ManualClock
from tests.support.gateway import Signer, create_args
from tests.support.gateway_serving import (
    EACH_TRANSPORT,
    TENANT,
    TOKEN,
    GatewayApp,
    OverMcp,
    internal,
    open_gateway,
)
from tests.support.http_wire import Response

CHANGES = ("create_document", "update_document", "delete_document", "move_document")
ACTIONS = (*CHANGES, "query_knowledge")
MAY = {
    "owner": {*ACTIONS},
    "editor": {"create_document", "update_document", "delete_document", "query_knowledge"},
    "viewer": {"query_knowledge"},
    "agent": {"query_knowledge"},  # It may create under an inbox, and nowhere else.
    "codex": {"create_document", "update_document", "delete_document", "query_knowledge"},
    "cursor": {"query_knowledge"},
}


@pytest.fixture(params=EACH_TRANSPORT)
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[GatewayApp]:
    async with open_gateway(transport=request.param) as gateway:
        yield gateway


def args_of(action: str, id: str) -> dict[str, Any]:
    return {
        "create_document": create_args(),
        "update_document": {"document_id": id, "patch": {}, "update_mask": []},
        "delete_document": {"document_id": id},
        "move_document": {"document_id": id, "new_parent_id": "root"},
        "query_knowledge": {"query": "folder"},
    }[action]


async def created(gateway: GatewayApp, *tags: str) -> str:
    """The id of a document with these tags."""
    args = create_args(metadata={"title": "A folder", "tags": list(tags)})
    owner = await gateway.signer("owner", sub=f"svc:{uuid4()}")
    assert (await gateway.act(owner, "create_document", args)).status == 200
    return str(args["document_id"])


def outcome(response: Response) -> Any:
    return response.status, None if response.json["ok"] else response.json["error"]["code"]


FORBIDDEN = 403, "FORBIDDEN"


@pytest.mark.requirement("MC-RBAC-02", "MC-RBAC-03", "MC-SEC-05", "MC-VER-02")
@pytest.mark.parametrize(("role", "action"), [*product(MAY, ACTIONS)])
async def test_a_role_may_do_what_it_may_and_nothing_else(gateway: GatewayApp, role: str, action: str) -> None:
    id = await created(gateway)
    signer = await gateway.signer(role)
    expected = (200, None) if action in MAY[role] else FORBIDDEN
    assert outcome(await gateway.act(signer, action, args_of(action, id))) == expected


@pytest.mark.requirement("MC-RBAC-02")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", MAY)
async def test_a_tool_is_for_the_same_roles_as_its_action(role: str, action: str) -> None:
    async with open_gateway({"auth": {"callers": {"svc:internal": internal(role)}}}) as gateway:
        id = await created(gateway)
        answer = await OverMcp(gateway).do(action, args_of(action, id))
        assert answer.code == (None if action in MAY[role] else "UNAUTHORIZED")


@pytest.mark.requirement("MC-RBAC-02", "MC-RBAC-03")
@pytest.mark.parametrize("role", ["agent", "cursor"])
async def test_an_agent_may_create_under_an_inbox_and_nowhere_else(gateway: GatewayApp, role: str) -> None:
    inbox, folder = await created(gateway, "agent-inbox", "more"), await created(gateway, "agent-inbox-2")
    signer = await gateway.signer(role)
    note = create_args(None, inbox)
    assert outcome(await gateway.act(signer, "create_document", note)) == (200, None)
    for parent in ("root", folder, note["document_id"]):
        assert outcome(await gateway.act(signer, "create_document", create_args(None, parent))) == FORBIDDEN
    for action in ("update_document", "delete_document", "move_document"):
        assert outcome(await gateway.act(signer, action, args_of(action, note["document_id"]))) == FORBIDDEN
    # An agent that is an editor, too, is an editor.
    both = await gateway.signer("agent", "editor", sub="svc:both")
    assert outcome(await gateway.act(both, "create_document", create_args(None, folder))) == (200, None)


@pytest.mark.requirement("MC-RBAC-01", "MC-RBAC-02", "MC-SEC-05")
@pytest.mark.parametrize(
    ("granted", "claimed", "is_allowed"),
    [
        (("viewer",), ["owner"], False),
        (("editor",), ["owner"], False),
        (("owner",), ["editor"], False),
        (("owner", "editor"), ["editor"], True),
        (("owner",), [], False),
        (("owner",), ["viewer", "owner"], True),
        (("editor",), ["codex"], True),
        (("codex",), ["editor"], True),
        (("agent",), ["codex"], False),
    ],
)
async def test_roles_are_those_that_the_body_claims_and_the_credentials_grant(
    gateway: GatewayApp, granted: tuple[str, ...], claimed: list[str], is_allowed: bool
) -> None:
    signer = await gateway.signer(*granted)
    principal = {"sub": signer.sub, "roles": claimed}
    response = await gateway.act(signer, "create_document", create_args(), principal=principal)
    assert outcome(response) == ((200, None) if is_allowed else FORBIDDEN)
    assert len([each for each in await gateway.events() if each.event == "document.created"]) == is_allowed


@pytest.mark.requirement("MC-SEC-01", "MC-RBAC-02")
@pytest.mark.parametrize(("granted", "is_allowed"), [("owner", True), ("editor", False), ("admin", False)])
async def test_the_roles_of_an_internal_caller_are_those_of_its_token(granted: str, is_allowed: bool) -> None:
    async with open_gateway({"auth": {"callers": {"svc:internal": internal(granted)}}}) as gateway:
        envelope = gateway.envelope(
            Signer(TENANT, "owner", sub="svc:internal"), "knowledge.create_document", create_args()
        )
        assert outcome(await gateway.send(envelope, TOKEN)) == ((200, None) if is_allowed else FORBIDDEN)


@pytest.mark.requirement("MC-SEC-05", "MC-ENV-03")
async def test_credentials_are_for_one_tenant_and_one_principal(gateway: GatewayApp) -> None:
    signer = await gateway.signer("owner")
    own = {"sub": signer.sub, "roles": ["owner"]}
    for fields in ({"tenant_id": "globex"}, {"principal": {**own, "sub": "svc:somebody"}}):
        assert outcome(await gateway.act(signer, "create_document", create_args(), **fields)) == FORBIDDEN
    inside = Signer("globex", "owner", sub="svc:internal")
    envelope = gateway.envelope(inside, "knowledge.create_document", create_args())
    assert outcome(await gateway.send(envelope, TOKEN)) == FORBIDDEN


async def test_documents_of_another_tenant_are_not_there(gateway: GatewayApp) -> None:
    id = await created(gateway)
    other = await gateway.signer("owner", tenant="globex")
    for action in CHANGES[1:]:
        response = await gateway.act(other, action, args_of(action, id))
        assert outcome(response) == (404, "NOT_FOUND")
        assert TENANT not in response.body.decode()
    below = await gateway.act(other, "create_document", create_args(None, id))
    assert outcome(below) == (404, "NOT_FOUND")
    same = await gateway.act(other, "create_document", create_args(id))
    assert outcome(same) == (200, None)


@pytest.mark.requirement("MC-RBAC-03", "MC-RBAC-04")
async def test_an_alias_leaves_one_event_for_each_tenant_and_quarter() -> None:
    quarters = [
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 3, 31, 23, tzinfo=UTC),
        datetime(2026, 4, 1, tzinfo=UTC),
    ]
    async with open_gateway() as gateway:
        signers = [
            await gateway.signer(role, tenant=tenant, sub=sub)
            for role, tenant, sub in (
                ("codex", "acme", "svc:a"),
                ("codex", "acme", "svc:b"),
                ("cursor", "acme", "svc:a"),
                ("codex", "globex", "svc:a"),
                ("editor", "acme", "svc:c"),
            )
        ]
        for quarter in quarters:
            turn_to(gateway.clock, quarter)
            for signer in signers:
                key = signer.key(created_at=quarter.timestamp())
                again = Signer(signer.tenant, *signer.roles, sub=signer.sub)
                again.private = signer.private
                assert await gateway.keys.add(again.key(created_at=key.created_at))
                await gateway.act(again, "update_document", args_of("update_document", str(uuid4())))
        events = [event for event in await gateway.events() if event.event == "role.deprecation"]
        noted = [(event.tenant, event.subject, event.details["role"]) for event in events]
        once = [("acme", "codex", "editor"), ("acme", "cursor", "agent"), ("globex", "codex", "editor")]
        assert noted == once * 2  # The first two moments are in one quarter.
        assert {event.at for event in events} == {quarters[0].timestamp(), quarters[2].timestamp()}
        assert {event.details["end_of_life"] for event in events} == {None}


def turn_to(clock: ManualClock, moment: datetime) -> None:
    """Set the clock, whatever it would have fired on the way."""
    clock._start += moment - clock.now()

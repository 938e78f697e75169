"""Other tenants' documents, roles that were not granted, others' keys and streams, and the pages of documents."""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_process import CREATE, DELETE, MOVE, UPDATE, GatewayProcess, add_keys, code_of
from tests.support.http_wire import Response, modern, request

pytestmark = pytest.mark.slow

ACME, BETA = Signer("acme"), Signer("beta")
CAFE, CAFE_APART = (Signer(unicodedata.normalize(form, "caf\u00e9")) for form in ("NFC", "NFD"))
ODD = Signer("50%41/x")
KEYS = {role: Signer("acme", role) for role in ("owner", "editor", "viewer", "agent")}
CALLERS: dict[str, dict[str, Any]] = {
    "svc:in": {"token": "token-of-an-owner-of-acme", "roles": ["owner"], "tenants": ["acme"]},
    "svc:viewer": {"token": "token-of-a-viewer-of-acme", "roles": ["viewer"], "tenants": ["acme"]},
    "svc:beta": {"token": "token-of-an-owner-of-beta", "roles": ["owner"], "tenants": ["beta"]},
    "svc:odd": {"token": "token-of-an-odd-tenant", "roles": ["viewer"], "tenants": [ODD.tenant]},
    "svc:nobody": {"token": "token-without-any-role", "tenants": ["acme"]},
    "svc:lonely": {"token": "token-without-a-tenant", "roles": ["owner"]},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    add_keys(folder, ACME, BETA, CAFE, CAFE_APART, ODD, *KEYS.values())
    with GatewayProcess(folder, callers=CALLERS) as server:
        yield server


def as_internal(server: GatewayProcess, name: str, action: str, args: dict[str, Any], **fields: Any) -> Response:
    """The answer to an envelope with an internal caller's token."""
    envelope = {"principal": {"sub": name, "roles": ["owner"]}, **fields}
    return server.post(as_body(ACME.envelope(action, args, **envelope)), CALLERS[name]["token"])


# Tenants.

OTHERS = (
    "beta", "Acme", "ACME", "acme ", " acme", "acme\t", "acme\n", "acme\0", "acme/", "acme%00", "acm\u0435",
    "\uff41cme", "acme\u200b", "a\u00adcme", "\u202eacme", "acme\ufeff", "acme'--", "*", "%", "acme,beta", "root", "..",
)  # fmt: skip


@pytest.mark.parametrize("tenant", OTHERS)
def test_no_other_spelling_of_a_tenant_is_let_in(server: GatewayProcess, tenant: str) -> None:
    before = server.rows()
    answers = [
        server.act(ACME, CREATE, create_args(), tenant_id=tenant),
        as_internal(server, "svc:in", CREATE, create_args(), tenant_id=tenant),
    ]
    for answered in answers:
        assert (answered.status, code_of(answered)) in ((403, "FORBIDDEN"), (400, "INVALID_ARGUMENT"))
    assert server.rows()["document"] == before["document"]


def test_tenants_whose_names_look_the_same_have_trees_of_their_own(server: GatewayProcess) -> None:
    id = str(uuid.uuid4())
    assert CAFE.tenant != CAFE_APART.tenant
    assert server.act(CAFE, CREATE, create_args(id)).status == 200
    assert server.act(CAFE_APART, DELETE, {"document_id": id}).status == 404
    assert server.act(CAFE_APART, CREATE, create_args(id)).status == 200
    assert server.act(CAFE, CREATE, create_args(id), tenant_id=CAFE_APART.tenant).status == 403
    assert server.act(CAFE, DELETE, {"document_id": id}).json["data"]["documents"] == 1
    assert server.count("document", f"id = '{id}' AND deleted_at IS NULL") == 1


def test_a_static_token_counts_for_its_own_tenants_and_its_own_name(server: GatewayProcess) -> None:
    assert as_internal(server, "svc:in", CREATE, create_args()).status == 200
    refusals = [
        as_internal(server, "svc:beta", CREATE, create_args()),
        as_internal(server, "svc:lonely", CREATE, create_args()),
        as_internal(server, "svc:nobody", CREATE, create_args()),
        as_internal(server, "svc:viewer", CREATE, create_args()),
        as_internal(server, "svc:in", CREATE, create_args(), principal={"sub": "svc:beta", "roles": ["owner"]}),
        as_internal(server, "svc:in", CREATE, create_args(), principal={"sub": "SVC:IN", "roles": ["owner"]}),
        as_internal(server, "svc:in", CREATE, create_args(), principal={"sub": "svc:in", "roles": []}),
    ]
    for refused in refusals:
        assert (refused.status, code_of(refused)) == (403, "FORBIDDEN")


PLACES: dict[str, tuple[str, str]] = {
    "updated": (UPDATE, "document_id"),
    "deleted": (DELETE, "document_id"),
    "moved": (MOVE, "document_id"),
    "moved below": (MOVE, "new_parent_id"),
    "moved before": (MOVE, "before"),
    "created below": (CREATE, "parent_id"),
}


@pytest.mark.parametrize("place", PLACES)
def test_another_tenants_document_is_as_one_that_there_is_not(server: GatewayProcess, place: str) -> None:
    action, name = PLACES[place]
    theirs, gone = server.create(BETA), server.create(ACME)
    assert server.act(ACME, DELETE, {"document_id": gone}).status == 200
    said = []
    for id in (theirs, theirs.upper(), gone, str(uuid.uuid4())):
        args: dict[str, Any] = {"document_id": server.create(ACME)}
        more: dict[str, dict[str, Any]] = {UPDATE: {"patch": {}, "update_mask": []}, MOVE: {"new_parent_id": "root"}}
        args |= more.get(action, {})
        args |= {"position": {"before": id}} if name == "before" else {name: id}
        answered = server.act(ACME, action, create_args(**{name: id}) if action == CREATE else args)
        assert code_of(answered) == ("UNPROCESSABLE_ENTITY" if name == "before" else "NOT_FOUND")
        assert id.encode() not in answered.body
        assert b"beta" not in answered.body
        answer = answered.json
        del answer["error"]["details"]["trace_id"]
        said.append((answered.status, json.dumps(answer), sorted({*answered.headers} - {"date"})))
    assert len(set(map(str, said))) == 1, said
    assert server.count("document", f"id = '{theirs}' AND revision = 1 AND deleted_at IS NULL") == 1


def test_another_tenants_id_can_be_used_for_a_document_of_ones_own(server: GatewayProcess) -> None:
    """To refuse it would tell that it is taken."""
    id = server.create(BETA)
    assert server.act(ACME, CREATE, create_args(id)).status == 200
    assert server.act(ACME, DELETE, {"document_id": id}).status == 200
    assert server.act(BETA, UPDATE, {"document_id": id, "patch": {}, "update_mask": []}).status == 200


def test_over_mcp_a_tenant_in_the_call_is_no_way_around(server: GatewayProcess) -> None:
    headers: dict[str, str | None] = {"authorization": f"Bearer {CALLERS['svc:in']['token']}"}
    for tenant in ("beta", ["acme"], {"acme": 1}, 1, True, "acme\n"):
        params = {"name": CREATE, "arguments": create_args()}
        result = server.ask(modern("tools/call", params, headers, meta={"dragoman/tenant": tenant})).json["result"]
        assert result["isError"] is True
        assert json.loads(result["content"][0]["text"])["code"] == "UNAUTHORIZED"


# Roles.


@pytest.mark.requirement("MC-RBAC-02")
@pytest.mark.parametrize("claimed", [["owner"], ["owner", "editor", "viewer", "agent", "cursor", "codex"]])
def test_a_role_in_the_body_that_was_not_granted_is_worth_nothing(server: GatewayProcess, claimed: list[str]) -> None:
    id = server.create(ACME)
    move, update = {"document_id": id, "new_parent_id": "root"}, {"document_id": id, "patch": {}, "update_mask": []}
    may = {
        "viewer": (403, 403, 403),
        "agent": (403, 403, 403),
        "editor": (403, 200, 200) if "editor" in claimed else (403, 403, 403),
        "owner": (200, 200, 200),
    }
    for role, statuses in may.items():
        principal = {"sub": KEYS[role].sub, "roles": claimed}
        answers = [
            server.act(KEYS[role], action, args, principal=principal).status
            for action, args in ((MOVE, move), (UPDATE, update), (CREATE, create_args()))
        ]
        assert tuple(answers) == statuses, role


def test_an_agent_creates_in_an_inbox_and_cannot_make_one(server: GatewayProcess) -> None:
    agent, tags = KEYS["agent"], {"title": "T", "tags": ["agent-inbox"]}
    inbox, other = (
        server.create(ACME, metadata=tags),
        server.create(ACME, metadata={"title": "T", "tags": ["Agent-Inbox"]}),
    )
    assert server.act(agent, CREATE, create_args(parent_id=inbox)).status == 200
    for parent in ("root", other):
        answered = server.act(agent, CREATE, create_args(parent_id=parent, metadata=tags))
        assert (answered.status, code_of(answered)) == (403, "FORBIDDEN")


# Idempotency keys and streams of others.


def test_an_idempotency_key_means_nothing_in_another_tenant(server: GatewayProcess) -> None:
    args = create_args()
    for signer in (ACME, BETA):
        assert server.act(signer, CREATE, args, idempotency_key="shared").status == 200
    assert server.count("document", f"id = '{args['document_id']}'") == 2


def test_what_a_principal_learns_by_the_key_of_another_of_its_tenant(server: GatewayProcess) -> None:
    """The scope is tenant, action and document: that the key was used, and what the first one got for the same body."""
    args = create_args(content={"mime_type": "text/plain", "body": "a secret of svc:in"})
    first = as_internal(server, "svc:in", CREATE, args, idempotency_key="theirs")
    assert first.status == 200
    same = server.act(ACME, CREATE, args, idempotency_key="theirs")
    assert same.json["data"] == first.json["data"]
    other = server.act(
        ACME, CREATE, {**args, "content": {"mime_type": "text/plain", "body": "?"}}, idempotency_key="theirs"
    )
    assert (other.status, code_of(other)) == (409, "CONFLICT")
    assert b"svc:in" not in other.body
    assert b"secret" not in other.body
    elsewhere = server.act(ACME, CREATE, create_args(), idempotency_key="theirs")
    assert elsewhere.json["data"]["id"] != args["document_id"]
    # The roles come first: without one the key tells nothing.
    assert server.act(KEYS["viewer"], CREATE, args, idempotency_key="theirs").status == 403


def test_a_key_that_signs_as_an_internal_caller_does_not_move_its_stream(server: GatewayProcess) -> None:
    impostor = Signer("acme", sub="svc:in")
    add_keys(server.folder, impostor)
    assert as_internal(server, "svc:in", CREATE, create_args(), seq=1, context_id="c").status == 200
    assert server.act(impostor, CREATE, create_args(), seq=2**53, context_id="c").status == 200
    answered = as_internal(server, "svc:in", CREATE, create_args(), seq=2, context_id="c")
    assert "ignored" not in answered.json["data"]
    # Nor does the audit say that it was the internal caller.
    assert server.count("audit_event", "principal = 'svc:in' AND event = 'document.created'") == server.count(
        "document_revision", "principal = 'svc:in' AND action = 'knowledge.create_document'"
    )
    assert server.count("audit_event", "principal LIKE 'svc:in (%)'") == 1


def test_streams_of_other_tenants_principals_and_contexts_are_apart(server: GatewayProcess) -> None:
    other = Signer("acme", sub="svc:another")
    add_keys(server.folder, other)
    for signer, context in ((ACME, "a"), (ACME, "b"), (BETA, "a"), (other, "a")):
        assert "id" in server.act(signer, CREATE, create_args(), seq=2**53, context_id=context).json["data"]
    for signer, context in ((ACME, "A"), (ACME, "a "), (Signer("acme", sub="svc:writer2"), "a")):
        if signer is not ACME:
            add_keys(server.folder, signer)
        assert "id" in server.act(signer, CREATE, create_args(), seq=1, context_id=context).json["data"]
    ignored = server.act(ACME, CREATE, create_args(), seq=1, context_id="a").json["data"]
    assert ignored == {"ignored": True, "last_seq": 2**53}


# Pages.

SCRIPT = "</pre></title></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'{title}{0}<!--\u202e\0"


def page(server: GatewayProcess, path: str, caller: str | None = "svc:in", **headers: str) -> Response:
    token = {} if caller is None else {"authorization": f"Bearer {CALLERS[caller]['token']}"}
    return server.ask(request(None, {"host": server.host, **token, **headers}, method="GET", path=path))


@pytest.mark.requirement("MC-RBAC-07")
@pytest.mark.parametrize("kind", ["text/plain", "text/markdown", "application/json"])
def test_markup_in_a_document_is_shown_as_text(server: GatewayProcess, kind: str) -> None:
    body = json.dumps(SCRIPT) if kind == "application/json" else SCRIPT
    args = create_args(content={"mime_type": kind, "body": body}, metadata={"title": SCRIPT, "tags": [SCRIPT]})
    uri = server.act(ACME, CREATE, args).json["data"]["web_uri"]
    shown = page(server, uri)
    assert shown.status == 200
    assert b"<script" not in shown.body
    assert b"<img" not in shown.body
    assert shown.body.count(b"&lt;script&gt;") == 4
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert shown.headers["cache-control"] == "no-store"
    policy = shown.headers["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'none'"} <= {*policy}
    assert not any("script" in each for each in policy)


def test_a_page_is_for_callers_of_the_tenant_that_have_a_role(server: GatewayProcess) -> None:
    ours, theirs = server.create(ACME), server.create(BETA)
    hidden, gone = server.create(ACME, is_human_readable=False), server.create(ACME)
    assert server.act(ACME, DELETE, {"document_id": gone}).status == 200
    at = "/knowledge/documents"
    assert page(server, f"{at}/acme/{ours}").status == page(server, f"{at}/acme/{ours}", "svc:viewer").status == 200
    missing = page(server, f"{at}/acme/{uuid.uuid4()}")
    assert missing.status == 404
    for path, caller in (
        (f"{at}/beta/{theirs}", "svc:in"),
        (f"{at}/acme/{theirs}", "svc:in"),
        (f"{at}/acme/{ours}", "svc:beta"),
        (f"{at}/acme/{ours}", "svc:lonely"),
        (f"{at}/acme/{ours}", "svc:nobody"),
        (f"{at}/acme/{hidden}", "svc:in"),
        (f"{at}/acme/{gone}", "svc:in"),
    ):
        refused = page(server, path, caller)
        assert (refused.status, refused.body) == (404, missing.body)
        assert refused.headers["content-security-policy"].startswith("sandbox")
    assert page(server, f"{at}/acme/{ours}", None).status == 401
    assert (
        page(server, f"{at}/acme/{ours}", None, authorization=f"Bearer {ACME.token(b'', server.url(), 'GET')}").status
        == 401
    )


@pytest.mark.parametrize(
    "path",
    [
        "/acme/../beta/{}", "/beta/../acme/{}", "/acme%2F..%2Fbeta/{}", "/beta%00acme/{}", "/acme/{}%00", "/acme/{}/",
        "//acme/{}", "/acme/{}%20", "/acme/*", "/acme/%25", "/acme/' OR '1'='1", "/", "/acme", "/acme/",
        "/%61cme%2f{}%2f..", "/ac%256De/{}",
    ],
)  # fmt: skip
def test_paths_that_are_not_a_documents_are_not_found(server: GatewayProcess, path: str) -> None:
    for id in (server.create(BETA), server.create(ACME)):
        found = page(server, "/knowledge/documents" + path.replace("{}", id).replace(" ", "%20"))
        assert found.status == 404


def test_a_tenant_with_an_odd_name_has_its_page(server: GatewayProcess) -> None:
    uri = server.act(ODD, CREATE, create_args()).json["data"]["web_uri"]
    assert page(server, uri, "svc:odd").status == 200
    assert page(server, uri, "svc:in").status == 404


def test_a_page_of_another_site_cannot_read_one(server: GatewayProcess) -> None:
    id = server.create(ACME)
    for origin in ("https://evil.example", "null", f"http://{server.host}.evil.example"):
        assert page(server, f"/knowledge/documents/acme/{id}", origin=origin).status == 403
